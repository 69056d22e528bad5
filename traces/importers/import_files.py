"""Foreign files to a recording: in memory, or streamed to a folder, whole or not at all."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from ...arguments import ArgumentError, repeated
from ..errors import TraceFormatError
from ..rounds.meta import LOOKUP, RoundsMeta
from ..rounds.recording import RoundsRecording
from ..rounds.rounds import RoundsRequest
from ..rounds.store import write_rounds
from ..shapes.named import model_called
from .detect import detect
from .format import Format
from .formats import format_named, format_names, unknown_format
from .kept_tokens import KeptTokens
from .ongoing import Ongoing
from .options import ImportOptions
from .reading.lines import lines_of

AUTO = "auto"
MOST_LINES = 64
MOST_CHARACTERS = 65_536  # of a line: what comes after is text that somebody wrote
_CALLED = re.compile(
    rb"""(?<![\w\\])"?(?:model|model_id|model_name|model_path|served_model_name)"?\s*[:=]\s*"([^"\\]{1,200})\""""
)

Watch = Callable[[Iterable[RoundsRequest]], Iterable[RoundsRequest]]


def choose_format(name: str, files: Sequence[Path]) -> Format:
    """The format of that name, or for "auto" the one the files have.

    Raises:
        ValueError: no such format, no files, or one of them twice.
        TraceFormatError: the files do not say which.
    """
    if not files:
        raise ValueError("files must name at least one file, got none")
    twice = repeated(files)
    if twice:
        raise ValueError(f"files must be given once each, got {str(twice[0])!r} twice")
    if name not in (AUTO, *format_names()):
        raise ValueError(f"format must be {AUTO} or {unknown_format(name)}")
    return detect(files) if name == AUTO else format_named(name)


def read_recording(format_name: str, files: Sequence[Path], options: ImportOptions | None = None) -> RoundsRecording:
    """All of some files in memory, not yet checked as a written recording is; raises as `import_recording`."""
    source, ongoing = choose_format(format_name, files), Ongoing(options or ImportOptions())
    requests = tuple(_requests(source, files, ongoing))
    return RoundsRecording(meta=_meta(source, files, ongoing), requests=requests)


def import_recording(
    format_name: str,
    files: Sequence[Path],
    out: Path,
    options: ImportOptions | None = None,
    *,
    watch: Watch = iter,
) -> RoundsMeta:
    """Stream some files to a recording at `out`; a file of many requests never lies in memory as a whole.

    Args:
        format_name: see `formats`; "auto" to have it told by the files.
        files: in the order in which drafters are to be numbered.
        out: the folder to write.
        options: what the files do not say.
        watch: is handed the requests and hands them on, for a progress bar.

    Raises:
        TraceFormatError: a file breaks its format, or what it holds is no sound recording.
        ValueError: an option that names nothing of the files.
    """
    source, ongoing = choose_format(format_name, files), Ongoing(options or ImportOptions())
    return write_rounds(watch(_requests(source, files, ongoing)), lambda: _meta(source, files, ongoing), out)


def _requests(source: Format, files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """The requests of files; raises TraceFormatError, which names the formats where a file is none of them."""
    if ongoing.options.skip_bad_lines and not source.by_line:
        raise ArgumentError(f"`skip_bad_lines` must be left out: {source.name} files do not go by lines")
    kept = KeptTokens()
    try:
        for request in source.read(files, ongoing):
            kept.see(request)
            if request.prompt and request.output:
                ongoing.findings.mattered.add("lookup")
            yield request
    except TraceFormatError as error:
        if error.field != "JSON":
            raise
        rule = f"{error.rule}; {source.name} is told by {', '.join(source.keys)}"
        raise TraceFormatError(error.path, error.field, rule, error.value) from None
    for words in kept.remarks(ongoing.drafters.seen()):
        ongoing.findings.remark(words)


def _meta(source: Format, files: Sequence[Path], ongoing: Ongoing) -> RoundsMeta:
    options = ongoing.options
    try:
        drafters = ongoing.drafters.infos()
        options.refuse_idle(ongoing.findings.mattered)
        return RoundsMeta(
            name=options.name,
            source=source.name,
            form=ongoing.findings.form(source.form),
            target=options.target,
            drafters=drafters,
            models=options.models,
            served_model=served_model(files),
            notes=(*source.notes, *ongoing.notes()),
            ngram=options.lookup or LOOKUP,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "recording"
        raise ValueError(f"{field}: {first['msg'].removeprefix('Value error, ')}") from None


def served_model(files: Sequence[Path]) -> str:
    """The preset of the model that the files name in their first lines; "" if there is none, or more than one."""
    found = {model for path in files if path.is_file() for model in _models(path)}
    return found.pop() if len(found) == 1 else ""


def _models(path: Path) -> set[str]:
    texts = [text[:MOST_CHARACTERS] for _, text in islice(lines_of(path), MOST_LINES)]
    called = [match.decode(errors="replace") for text in texts for match in _CALLED.findall(text)]
    return {model for name in called if (model := model_called(name)) is not None}
