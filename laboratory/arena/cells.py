"""What is played in the arena: cells of `cells.toml` by the split of `split.toml`, their loads, and the policies.

A cell is a recording, a ladder of costs and a load. A load is a batch, a closed loop in which one request finishes and
the next starts, or Poisson arrivals to one replica that runs at most `MOST_RUNNING` requests at a time: the recording's
requests, with their lengths and tags. Their rate is a share of capacity, the target's own output tokens a second in the
same cell with `MOST_RUNNING` running. The split (recordings to tune constants on, recordings to report) was committed
before any tuning. A policy that must be fitted gets a head fitted to tuning recordings only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import sha256
from inspect import Parameter, signature
from pathlib import Path
from typing import NamedTuple, Self

from paceline.base.errors import ArgumentError, repeated
from paceline.base.files import write_whole
from paceline.base.terminal import tell
from paceline.base.toml import TomlFileError, checked_toml, read_toml
from paceline.policies.about import BRANCHES, about_of
from paceline.policies.by_name import PolicySpec, PolicySpecError, own_policies
from paceline.policies.chain_text import PolicyClass
from paceline.policies.check import check_pool
from paceline.policies.learned import SpecDec
from paceline.sim.recorded import recorded_pool
from paceline.studies.fit import fit_shared_head
from paceline.studies.grids import inputs_of
from paceline.traces.meta import Record
from paceline.traces.opening import by_form, open_recording
from pydantic import ValidationInfo, field_validator

from .ladders import ladder, ladders


def default_field() -> tuple[str, ...]:
    """Every policy of this package, with its defaults, in the order of the registry.

    Without oracles, which see ahead, policies of token trees, which few recordings hold, and those with a required
    option: a chain, or another policy.
    """
    return tuple(name for name, kind in own_policies().items() if not _left_out(kind) and not _needs_option(kind))


def asked_field(policies: Sequence[str] | None, added: Sequence[str] | None) -> tuple[PolicySpec, ...]:
    """The policies to play: texts as `compare` takes them, by default the default field, and further ones.

    Raises:
        PolicySpecError: a text that names nothing, or unknown options; one line.
        ArgumentError: a repeated one.
    """
    specs = [PolicySpec.parse(text) for text in (*(policies or default_field()), *(added or ()))]
    for spec in specs:
        if spec.policy_class is None:  # a target's name, or unknown: raises now, not cell by cell
            spec.build(check_pool())
    twice = repeated(spec.label for spec in specs)
    if twice:
        raise ArgumentError(f"`policies` must differ, got {twice[0]} twice")
    return tuple(specs)


def _left_out(kind: PolicyClass) -> bool:
    about = about_of(kind)
    return about is not None and (about.oracle or about.observes >= BRANCHES)


def _needs_option(kind: PolicyClass) -> bool:
    _, *options = signature(kind).parameters.values()  # the pool comes first
    return any(one.default is Parameter.empty and one.kind is not Parameter.VAR_KEYWORD for one in options)


HEAD = "head"  # the option


def needs_head(spec: PolicySpec) -> bool:
    """Whether a policy must be given an acceptance head."""
    return spec.policy_class is SpecDec and HEAD not in spec.options


def with_heads(specs: Sequence[PolicySpec], tuning: Mapping[str, Path], work: Path) -> tuple[PolicySpec, ...]:
    """The policies, with a head fitted to the recordings for those that need one, under the same names.

    Nothing is random: a head is the same for the same recordings. It is kept below `work`, and fitted again if they or
    the code change. Recordings without probabilities are left out; if none remains, policies are unchanged.
    """
    known = {name: path for name, path in tuning.items() if _has_probabilities(path)}
    if not known:
        return tuple(specs)
    made_of = sha256(repr(sorted(inputs_of(map(str, known.values())).values())).encode()).hexdigest()
    file = work / "heads" / f"{made_of[:12]}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, fit_shared_head(list(known.values())).head.to_json())
    tell(f"acceptance heads are fitted to {', '.join(known)}")
    return tuple(replace(one, options={**one.options, HEAD: str(file)}) if needs_head(one) else one for one in specs)


def _has_probabilities(path: Path) -> bool:
    return by_form(open_recording(path), tries=lambda _: True, rounds=lambda _: False)


def check_buildable(specs: Sequence[PolicySpec], traces: Iterable[Path]) -> None:
    """Raise PolicySpecError for a named policy that cannot be played on any of the recordings, if there are any.

    A policy is left out of the cells of recordings that do not support it; default ones, and ones without a recording
    to fit their head to, may be left out of all.
    """
    named = [spec for spec in specs if spec.label not in default_field() and not needs_head(spec)]
    if not named:
        return
    pools = [recorded_pool(open_recording(path)) for path in traces]
    for spec in named:
        refused: list[PolicySpecError] = []
        for pool in pools:
            try:
                spec.build(pool)
                break
            except PolicySpecError as error:
                refused.append(error)
        else:
            if refused:
                raise refused[0]


MOST_RUNNING = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests arrive; exactly one is given."""

    batch: int | None = None  # requests that run at a time, >= 1
    share: float | None = None  # of capacity that arrives, 0 to 1


def loads() -> Mapping[str, Load]:
    """The loads by name."""
    return {
        "batch-1": Load(batch=1),
        "batch-8": Load(batch=8),
        "batch-32": Load(batch=MOST_RUNNING),
        "half": Load(share=0.5),
        "ninety": Load(share=0.9),
    }


def load(name: str) -> Load:
    """The load of a name; raises ArgumentError for an unknown one."""
    known = loads()
    if name not in known:
        raise ArgumentError(f"the load of a cell must be one of {', '.join(known)}, got {name!r}")
    return known[name]


class ArenaCell(NamedTuple):
    """A recording, at the seconds of a ladder, under a load; its text is `gpt2-weak/steep/batch-8`."""

    recording: str  # by the arena's name of it
    ladder: str  # of seconds, by name
    load: str  # how requests come, by name

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a cell's text; raises ArgumentError unless it is three names with slashes between."""
        names = text.split("/")
        if len(names) != len(cls._fields):
            raise ArgumentError(f"a cell must be RECORDING/LADDER/LOAD, as pico/steep/batch-8, got {text!r}")
        return cls(*names)


NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
SPLIT_FILE = Path(__file__).with_name("split.toml")


class SplitFileError(TomlFileError):
    """A split that breaks a rule."""


class Side(StrEnum):
    """The sides of a split."""

    tune = "tune"
    report = "report"
    all = "all"


class Split(Record):
    """Recordings on two sides: `tune` for tuning constants, and those to report, at least one."""

    tune: tuple[str, ...] = ()
    report: tuple[str, ...]

    @field_validator("tune", "report")
    @classmethod
    def _names_each_once(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.field_name == "report" and not names:
            raise ValueError("must name one recording at least")
        before = (*info.data.get("tune", ()),)
        for place, name in enumerate(names):
            if not NAME.fullmatch(name):
                raise ValueError(f"must hold names that match {NAME.pattern}, which {name!r} does not")
            if name in (*before, *names[:place]):
                raise ValueError(f"must hold what no side holds before, which {name!r} is not")
        return names

    def recordings(self, side: Side) -> tuple[str, ...]:
        """Recordings of a side, in the order of the file; of both sides the tuning side's first."""
        return {Side.tune: self.tune, Side.report: self.report, Side.all: (*self.tune, *self.report)}[side]

    def side_of(self, recording: str) -> Side:
        """`tune` or `report`; raises KeyError for a recording that is on neither."""
        if recording in self.tune:
            return Side.tune
        if recording in self.report:
            return Side.report
        raise KeyError(recording)


def read_split(path: Path = SPLIT_FILE) -> Split:
    """Read a split, by default the committed one; raises SplitFileError, one line, for a bad one."""
    return checked_toml(path, read_toml(path, "the split", SplitFileError), Split, SplitFileError)


CELLS_FILE = Path(__file__).with_name("cells.toml")


class CellsFileError(TomlFileError):
    """Cells that break a rule."""


class Block(Record):
    """Every recording at every ladder under every load: names, in which `*` stands for anything."""

    recordings: tuple[str, ...]
    ladders: tuple[str, ...]
    loads: tuple[str, ...]


class Blocks(Record):
    """All of `cells.toml`; a cell in several blocks counts once."""

    blocks: tuple[Block, ...]


def all_cells(split: Split, path: Path = CELLS_FILE) -> tuple[ArenaCell, ...]:
    """Every cell, by recording in the order of the split, then in the order of the blocks; raises CellsFileError."""
    blocks = checked_toml(path, read_toml(path, "the cells", CellsFileError), Blocks, CellsFileError).blocks
    recordings = split.recordings(Side.all)
    found = dict.fromkeys(
        ArenaCell(recording=recording, ladder=at, load=under)
        for place, block in enumerate(blocks)
        for recording in recordings
        if any(fnmatchcase(recording, pattern) for pattern in block.recordings)
        for at in _named(block.ladders, ladders(), path, f"blocks[{place}].ladders")
        for under in _named(block.loads, loads(), path, f"blocks[{place}].loads")
    )
    return tuple(sorted(found, key=lambda cell: recordings.index(cell.recording)))


def asked_cells(split: Split, side: Side, pattern: str | None) -> tuple[ArenaCell, ...]:
    """The cells of a side of the split that match a pattern, as `*/batch-1`, or the one named in full.

    Raises ArgumentError where no cell matches, or the side has no recording.
    """
    if not split.recordings(side):
        raise ArgumentError(f"`split` must be a side with recordings, got {side}")
    known = [cell for cell in all_cells(split) if cell.recording in split.recordings(side)]
    if pattern is None:
        return tuple(known)
    found = tuple(cell for cell in known if fnmatchcase(str(cell), pattern))
    if found:
        return found
    if "*" in pattern or pattern.count("/") != 2:
        raise ArgumentError(f"`cells` must match one of the {len(known)} cells of split {side}, got {pattern!r}")
    return (_checked(ArenaCell.parse(pattern), split.recordings(side), side),)


def _checked(cell: ArenaCell, recordings: Sequence[str], side: Side) -> ArenaCell:
    if cell.recording not in recordings:
        raise ArgumentError(
            f"`cells` must name a recording of split {side} ({', '.join(recordings)}), got {cell.recording!r}"
        )
    ladder(cell.ladder)
    load(cell.load)
    return cell


def _named(patterns: Iterable[str], names: Iterable[str], path: Path, field: str) -> list[str]:
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise CellsFileError(path, field, f"must name {', '.join(known)}", pattern)
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
