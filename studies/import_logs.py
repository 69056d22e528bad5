"""What `paceline trace import` does: make a recording from logs of another engine or a benchmark."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.errors import counted
from ..base.terminal import Progress
from ..reports.tables import Printed, flat_rows
from ..traces.importers import AUTO, Format, ImportOptions, choose_format, import_recording
from ..traces.rounds.rounds import TRUST, DrafterInfo, RoundsMeta, RoundsRequest


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Imported(Printed):
    """A recording made of logs; prints as `paceline trace import` does."""

    out: Path  # its folder
    meta: RoundsMeta  # its metadata; the notes say what is exact and what is unknown
    num_requests: int
    saw: str = ""  # the format in words, if detected from the files; empty if it was given

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/importing.md)."""
        return {"trace": str(self.out), "requests": self.num_requests, **self.meta.model_dump(mode="json")}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each drafter; columns as in docs/trace-format.md, `drafters`."""
        return flat_rows([each.model_dump(mode="json") for each in self.meta.drafters])

    def lines(self) -> list[str]:
        meta, saw = self.meta, f"; saw {self.saw}" if self.saw else ""
        drafters = ", ".join(map(_in_words, meta.drafters)) or "none"
        first = f"{self.out}: imported from {meta.source} ({TRUST[meta.form]}), {counted(self.num_requests, 'request')}"
        return [f"{first}, drafters {drafters}{saw}", *meta.notes]


def import_logs(
    files: str | Path | Sequence[str | Path],
    out: str | Path,
    options: ImportOptions | None = None,
    *,
    format_name: str | Format = AUTO,
) -> Imported:
    """Import logs request by request; a file of many requests is never in memory as a whole.

    Args:
        files: plain or .gz, in the order in which drafters are to be numbered.
        out: the .trace folder to write.
        options: what the files lack.
        format_name: one of `paceline.traces.importers.format_names()`, one of another package, file or module, or
            "auto" to detect it; or a format itself.

    Raises:
        TraceFormatError: a file breaks its format, has no known one, or its content makes no valid recording.
        FileExistsError: `out` exists.
        ValueError: no such format, or an option that names nothing in the files.
    """
    places, folder = [Path(file) for file in ([files] if isinstance(files, str | Path) else files)], Path(out)
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder}: exists already; a recording is never overwritten")
    source = choose_format(format_name, places)
    num_requests = 0
    with Progress("importing", unit="requests") as progress:

        def passing(requests: Iterable[RoundsRequest]) -> Iterator[RoundsRequest]:
            nonlocal num_requests
            for request in requests:
                num_requests += 1
                progress.advance()
                yield request

        meta = import_recording(source, places, folder, options, watch=passing)
    return Imported(out=folder, meta=meta, num_requests=num_requests, saw=source.words if format_name == AUTO else "")


def _in_words(drafter: DrafterInfo) -> str:
    window = "window unknown" if drafter.window is None else f"window {drafter.window}"
    return f"{drafter.name} ({window}{'' if drafter.by_start else ', reads tokens'})"
