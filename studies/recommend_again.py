"""Run a candidate of `recommendation.json` again, on the requests behind its figures.

`FILE#N` names candidate N. Its files must be unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError
from ..base.files import checked_json
from ..policies.chain_text import BASELINE
from ..reports.ledger import FORMAT, VERSION, Again
from ..reports.recommendation import DraftLength
from ..reports.tables import Printed
from ..traces.errors import TraceFormatError
from ..traces.recording import Recording
from .compare import compare
from .grids import inputs_of
from .load import compare_under_load
from .options import (
    MixOptions,
    RecommendOptions,
    RecommendUnderLoadOptions,
    ReplayOptions,
    SeedsOptions,
    SimulateOptions,
    checked,
    shared,
)
from .recommend import halves_of
from .recommend_under_load import UNDER_LOAD, serving_options
from .serving import simulate
from .setting import opened_recording

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A candidate as read."""

    name: str  # FILE#N
    asked: Figures  # the call
    policy: str
    batch: int | None
    figures: Figures
    by_seed: Mapping[str, Figures]

    def half(
        self, recording: Recording | str | Path | None, options: RecommendOptions | RecommendUnderLoadOptions
    ) -> Any:  # noqa: ANN401 - a Recording
        """The requests behind the figures."""
        where = self.asked["recording"] if recording is None else recording
        if where is None:
            raise ArgumentError(f"`recording` must be given: {self.name} is of one that was in memory")
        return halves_of(opened_recording(where), options)[1]


def simulate_again(candidate: str, recording: Recording | str | Path | None = None) -> Again:
    """Serve the workload under a candidate, "recommendation.json#7", as `simulate` does, at the first seed.

    `recording` is the one that the recommendation was made from, if that was in memory. Raises ValueError, one line: no
    such candidate, one without a served workload, or a changed file.
    """
    line = _read(candidate)
    if line.batch is not None:
        raise ArgumentError(
            f"`candidate` {line.name} was replayed without arrivals: paceline compare --from {line.name}"
        )
    asked = _asked(RecommendUnderLoadOptions, line)
    options = shared(SimulateOptions, serving_options(asked), but=["rate"])
    found = simulate(policy=line.policy, recording=line.half(recording, asked), rate=asked.rate, **options)
    now, then = found.rows[0].runs[0].flat, line.by_seed[str(asked.seed)]
    return _again(found, line, {name: now.get(name) for name in then}, then)


def compare_again(candidate: str, recording: Recording | str | Path | None = None) -> Again:
    """Compare a candidate with the target alone as `compare` does; arguments and errors as of `simulate_again`."""
    line = _read(candidate)
    policies = list(dict.fromkeys([BASELINE, line.policy]))
    if line.batch is None:
        return _compare_served(line, policies, recording)
    replayed = _asked(RecommendOptions, line)
    records = (ReplayOptions, SeedsOptions, MixOptions)
    options = {one.name: getattr(replayed, one.name) for record in records for one in fields(record)}
    if line.asked["call"] == UNDER_LOAD:  # its cost may be that of the cluster's device
        options |= line.asked["replayed_at"]
    found = compare(line.half(recording, replayed), policies, batch=line.batch, **options)
    row = next(row for row in found.runs.ranked() if row.policy == line.policy)
    now = DraftLength.of(found.runs, row, line.figures["draft_tokens"], tuned_on=found.runs)
    names_compared = ("speed_up", "speed_up_ci", "speed_up_range", "tokens_per_s")
    return _again(found, line, {name: getattr(now, name) for name in names_compared}, line.figures)


def _compare_served(line: _Line, policies: list[str], recording: Recording | str | Path | None) -> Again:
    asked = _asked(RecommendUnderLoadOptions, line)
    options = {
        name: value for name, value in vars(serving_options(asked)).items() if name not in ("limits", "chains", "rate")
    }
    rates = None if asked.rate is None else [asked.rate]
    found = compare_under_load(line.half(recording, asked), policies, rates=rates, **options)
    row = next(row for row in found.rates[0].rows if row.about.policy == line.policy)
    return _again(found, line, {"in_system_s": row.mean("in_system_s")}, line.figures)


def _asked(record: Any, line: _Line) -> Any:  # noqa: ANN401 - a record of options
    """The keywords of the call; for replays beside a served workload the common ones."""
    known = {one.name for one in fields(record)}
    return checked(record, {name: value for name, value in line.asked.items() if name in known})


def _again(found: Printed, line: _Line, now: Figures, then: Figures) -> Again:
    differing = {name: (value, then[name]) for name, value in now.items() if _plain(value) != then[name]}
    return Again(found=found, candidate=line.name, differing=differing)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _read(candidate: str) -> _Line:
    """Raises ArgumentError for a text of another form, TraceFormatError for a bad file."""
    file, hash_sign, number = candidate.rpartition("#")
    if not (hash_sign and file and number.isascii() and number.isdecimal()):
        raise ArgumentError(f"`candidate` must be FILE#N, as in recommendation.json#7, got {candidate!r}")
    path = Path(file)
    read = checked_json(path, TraceFormatError)
    if not isinstance(read, dict) or read.get("format") != FORMAT:
        raise TraceFormatError(path, "format", f"must be {FORMAT!r}, as `paceline recommend --out` writes it", None)
    if read.get("version") != VERSION:
        raise TraceFormatError(path, "version", f"must be {VERSION}", read.get("version"))
    lines, asked = read["candidates"], read["asked"]
    if not 1 <= int(number) <= len(lines):
        raise ArgumentError(f"`candidate` must be #1 to #{len(lines)} of {file}, got #{number}")
    found = lines[int(number) - 1]
    if not found["figures"] or (found["batch"] is None and not found["by_seed"]):
        raise ArgumentError(
            f"`candidate` {candidate} was never run: {found['policy']} is {found['standing']}: {found['reason']}"
        )
    hashes = inputs_of(read["inputs"])
    for text, was in read["inputs"].items():
        if text not in hashes:
            raise ArgumentError(
                f"`candidate` {candidate} was made of {text}, which is not to be found from {Path.cwd()}"
            )
        if hashes[text] != was:
            raise ArgumentError(
                f"`candidate` {candidate} was made of another {text} than there is now: recommend again"
            )
    kept = {name: found[name] for name in ("policy", "batch", "figures", "by_seed")}
    return _Line(name=candidate, asked=asked, **kept)
