"""GRID.toml of a sweep: what is varied, checked and counted before anything is played, and its cells.

A cell is one call of `compare` on a recording, or of `simulate` where the grid has workloads. A cell's figures are
determined by its options, the code of this package, and the files that its texts name: these are read once, and a hash
of each is part of the cell.
"""

import ast
import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from itertools import chain, product
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..base.by_name import names_path
from ..base.errors import ArgumentError, is_foreign, known_are, repeated
from ..base.files import DEFAULT_RECORDING, recording_path
from ..base.toml import TomlFileError, checked_toml, read_toml
from ..policies.by_name import PolicySpec
from ..policies.ranges import policy_ranges
from ..reports.comparison import labels_of
from ..reports.serving_tables import short_of
from ..reports.sweeps import NOTES
from ..sim.cost.kernel_tables import KERNELS, TABLES
from ..traces.folder import META
from .options import ComparisonOptions, SimulateOptions, checked

MOST_CELLS = 1_000_000
MOST_TRIED = 30  # cells with a value: where all of them fail before their policy is asked, the value is refused at once
ANY_WINDOW = ":*"  # in a chain: one of `windows`
# Folders whose code determines a cell's figures.
CODE = ("base", "decoding", "policies", "reports", "runs", "sim", "studies", "traces")
ROOT = Path(__file__).parents[1]
DIGEST_BYTES = 16
# Axes with their keywords, in the order of cells, the last changing fastest.
REPLAYED = {"recordings": "recording", "costs": "cost", "devices": "devices"}
SERVED = {"recordings": "recording", "workloads": "workload", "clusters": "cluster", "rates": "rate", "costs": "cost"}
# Options that are an axis of their own, are of no use for one cell, or select what is printed.
OWN = frozenset(
    "cost devices seed seeds workload cluster rate rates log out events by_tag regret why".split()  # noqa: SIM905 - one line
)
# What a row of a cell's result has beside figures.
TOLD = frozenset(
    "policy workload cluster folder seed seeds orders levels stopped of_best of_best_ci".split()  # noqa: SIM905 - as above
)


class GridFileError(TomlFileError):
    """A file of a grid that breaks a rule."""


class GridFile(BaseModel):
    """The content of a file; each list is varied."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    policies: list[str] = []  # as `compare` takes them, with ranges in place of values
    windows: list[int] = []  # for each `*` of a chain, as in draft:*/target
    options: dict[str, Any] = {}  # keywords of compare or simulate, each a value, or a list of them
    recordings: list[str] = [DEFAULT_RECORDING]
    costs: list[str] = []
    devices: list[str] = []  # where members run, as `devices` of compare
    clusters: list[str] = []
    workloads: list[str] = []
    rates: list[float] = []
    seeds: list[int] = [0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepGrid:
    """All cells of a sweep, in order; made by `read_grid`."""

    axes: Mapping[str, tuple[Any, ...]]  # values by keyword, `policy` and `seed` among them; a single None is left out
    constants: Mapping[str, Any]  # further keywords of every cell
    inputs: Mapping[str, str]  # a hash of each file named by a text, by the text; `code` is this package's
    serves: bool  # whether cells are calls of `simulate`

    def __len__(self) -> int:
        return prod(map(len, self.axes.values()))

    @property
    def asked(self) -> dict[str, Any]:
        """All of it, as JSON; `grid_from` reads it again."""
        axes = {name: list(values) for name, values in self.axes.items()}
        return {"axes": axes, "constants": self.constants, "inputs": self.inputs, "serves": self.serves}

    def cells(self) -> Iterator["SweepCell"]:
        """All cells, the last axis changing fastest."""
        for values in product(*self.axes.values()):
            said = {name: value for name, value in zip(self.axes, values, strict=True) if value is not None}
            yield SweepCell(keywords={**said, **self.constants}, inputs=self.inputs, serves=self.serves)

    @property
    def varied(self) -> list[str]:
        """Keywords of which the grid has several values."""
        return [name for name, values in self.axes.items() if len(values) > 1]


def grid_from(asked: Mapping[str, Any]) -> SweepGrid:
    """The inverse of `SweepGrid.asked`; raises KeyError or AttributeError for something else."""
    axes = {name: tuple(values) for name, values in asked["axes"].items()}
    return SweepGrid(axes=axes, constants=asked["constants"], inputs=asked["inputs"], serves=asked["serves"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """One call; see `runs.cells.CellWork`."""

    keywords: Mapping[str, Any]  # of the call; `policy`, `recording` and `workload` among them
    inputs: Mapping[str, str]  # of the whole grid
    serves: bool  # whether it is one of `simulate`

    @property
    def asked(self) -> dict[str, Any]:
        """See `CellWork`; with the inputs that this cell names."""
        named = set(texts_in(self.keywords.values())) | {CODE_OF}
        inputs = {text: found for text, found in self.inputs.items() if text in named}
        return {"call": "simulate" if self.serves else "compare", "keywords": self.keywords, "inputs": inputs}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.keywords.items())

    def set_up(self) -> None:
        """Check what the function checks before it asks the policy; raises as that does."""
        from .serving import serving_setting  # noqa: PLC0415 - as in `play`
        from .setting import kept_recording, kept_tables, setting_of  # noqa: PLC0415

        given = {name: value for name, value in self.keywords.items() if name != "policy"}
        recording = given.pop("recording", None)
        asked: SimulateOptions | ComparisonOptions
        if self.serves:
            asked = checked(SimulateOptions, given)
            setting = serving_setting(kept_recording(recording), asked.workload, asked.cluster, asked)
            setting.check_classes(setting.opened(asked.rate, asked.seed))
        else:
            asked = checked(ComparisonOptions, given)
            setting_of(kept_tables(recording), asked).scenarios()
        if asked.shift_acceptance:
            kept_recording(recording).shifted(asked.shift_acceptance, seed=asked.seed)

    def play(self) -> dict[str, Any]:
        """The figures of the policy, flat, without its options; raises as the function does."""
        # Imported here: a third of the start-up time, not needed where all cells are played.
        from .compare import compare  # noqa: PLC0415
        from .serving import simulate  # noqa: PLC0415
        from .setting import kept_recording, kept_tables  # noqa: PLC0415

        given = dict(self.keywords)
        policy, named = given.pop("policy", None), given.pop("recording", None)
        if self.serves:
            served = simulate(given.pop("workload"), policy, kept_recording(named), **given)
            if served.interrupted:
                raise KeyboardInterrupt
            (row,), (own,) = served.to_dicts(), served.rows
            notes = [*own.about.notes, *short_of(own.runs)]
        else:
            found = compare(kept_tables(named), [policy], seeds=1, **given)
            row = next(one for one in found.to_dicts() if one["policy"] == found.runs.rows[0].policy)
            meta = found.runs.meta
            notes = [*labels_of(meta), *meta["remarks"], *meta["cost_notes"]]
        figures = {name: value for name, value in row.items() if name not in TOLD and _is_figure(value)}
        return figures | {NOTES: "\n".join(notes)}


def _is_figure(value: object) -> bool:
    """Whether it is a number, a text or an interval; longer lists do not fit into a table."""
    return not isinstance(value, list | tuple) or (len(value) == 2 and all(isinstance(one, float) for one in value))


def read_grid(path: Path) -> SweepGrid:
    """Read a file of a grid, check all that can be checked before playing, and count its cells.

    Raises:
        GridFileError: no grid, an unknown key, an axis that contradicts others, more than a million cells; one line.
        PolicySpecError: a text that names no policy.
    """
    values = read_toml(path, "the grid", GridFileError)
    file = checked_toml(path, values, GridFile, GridFileError)
    serves = bool(file.workloads)
    own = SERVED if serves else REPLAYED
    _check_axes(path, file, own, serves=serves)
    axes: dict[str, tuple[Any, ...]] = {keyword: tuple(getattr(file, key)) or (None,) for key, keyword in own.items()}
    constants, varied = _options(path, file.options, serves=serves)
    try:
        policies_of = [
            policy_ranges(text.replace(ANY_WINDOW, ":1")).count * len(file.windows) ** text.count(ANY_WINDOW)
            for text in file.policies
        ]
        cells = max(sum(policies_of), 1) * prod(map(len, [*axes.values(), *varied.values(), file.seeds]))
        if cells > MOST_CELLS:
            raise ArgumentError(f"must have {MOST_CELLS:,} cells at most, got {cells:,}")
        policies = tuple(dict.fromkeys(chain.from_iterable(_policies(text, file.windows) for text in file.policies)))
    except ArgumentError as error:
        raise GridFileError(path, "the grid", str(error).replace("`policies` ", "policies "), None, told=True) from None
    specs = {policy: PolicySpec.parse(policy) for policy in policies}
    axes = {"policy": policies or (None,), **axes, **varied, "seed": tuple(file.seeds)}
    foreign = {text: spec.policy_class for text, spec in specs.items()}
    inputs = inputs_of(texts_in([*chain.from_iterable(axes.values()), *constants.values()]), foreign)
    grid = SweepGrid(axes=axes, constants=constants, inputs=inputs, serves=serves)
    # Values of the file before defaults: of several that may be meant by an error the first is named.
    keys = sorted(own, key=lambda key: key not in file.model_fields_set)
    _check_values(path, grid, {own[key]: key for key in keys} | {"seed": "seeds"})
    _check_policies(path, grid)
    return grid


def _check_values(path: Path, grid: SweepGrid, keys: Mapping[str, str]) -> None:
    """Raise GridFileError for a value with which no cell can begin, whatever its policy; `keys` by keyword."""
    axes = {name: values for name, values in grid.axes.items() if name != "policy"}
    axes["seed"] = tuple(sorted({min(axes["seed"]), max(axes["seed"])}))  # those between can begin where both can
    for name in [*keys, *(name for name in axes if name not in keys)]:
        for value in axes[name]:
            # Beside other values one rate is enough: a workload may be read to the end for each.
            rates = {"rate": axes["rate"][:1]} if "rate" in axes else {}
            some = replace(grid, axes={**axes, **rates, "seed": axes["seed"][:1], name: (value,)})
            if value is None or len(some) > MOST_TRIED:
                continue
            failed: tuple[SweepCell, ValueError] | None = None
            for cell in some.cells():
                try:
                    cell.set_up()
                except ValueError as error:
                    failed = failed or (cell, error)
                else:
                    break
            else:
                assert failed is not None, "a grid without cells"
                cell, says = failed[0], str(failed[1])
                named = re.match(r"`(\w+)` ", says)
                given = [(one, text) for one, text in cell.keywords.items() if isinstance(text, str)]
                texts = [one for one, text in given if repr(text) in says or says.startswith(f"{text}: ")]
                blamed = next(one for one in (*(named.groups() if named else ()), *texts, name) if one in cell.keywords)
                rule = says.removeprefix(f"`{blamed}` ")
                key = keys.get(blamed, f"options.{blamed}")
                raise GridFileError(path, key, rule, cell.keywords[blamed], told=True)


def _check_policies(path: Path, grid: SweepGrid) -> None:
    """Raise GridFileError for a policy that may run on no recording of the grid."""
    from ..sim.replay_tables import tables_of  # noqa: PLC0415 - as in `SweepCell.play`
    from .compare import built  # noqa: PLC0415
    from .serving import check_served  # noqa: PLC0415
    from .setting import kept_recording, named_policy  # noqa: PLC0415

    check = check_served if grid.serves else built
    lossless = all(grid.axes.get("lossless", (grid.constants.get("lossless", False),)))
    left = {policy: "" for policy in grid.axes["policy"] if policy is not None}
    for recording in grid.axes["recording"] if left else ():
        try:
            tables, failed = tables_of(kept_recording(recording)), dict[str, str]()
        except ValueError as error:
            raise GridFileError(path, "recordings", str(error), recording, told=True) from None
        for policy in left:
            try:
                check(tables, named_policy(policy), lossless=lossless)
            except ValueError as error:
                failed[policy] = str(error)
        left = failed
    for policy, says in left.items():
        raise GridFileError(
            path, "policies", says.removeprefix("`policies` ").removeprefix("policy "), policy, told=True
        )


def _check_axes(path: Path, file: GridFile, own: Iterable[str], *, serves: bool) -> None:
    """Raise GridFileError for an axis that would be ignored, a missing one, and a repeated value."""
    world = "a grid with workloads" if serves else "a grid without workloads"
    for key in ("devices", "clusters", "rates"):
        if getattr(file, key) and key not in own:
            raise GridFileError(path, key, f"does not apply to {world}", getattr(file, key))
    for key, needed in (("policies", not serves), ("clusters", serves), ("seeds", True)):
        if needed and not getattr(file, key):
            raise GridFileError(path, key, f"must name one at least in {world}", [])
    for key in sorted(file.model_fields_set - {"options"}):
        if not getattr(file, key):
            raise GridFileError(path, key, "must name one at least, or be left out", [])
    for key in GridFile.model_fields:
        twice = repeated(getattr(file, key)) if key != "options" else []
        if twice:
            raise GridFileError(path, key, "must name each once", twice[0])
    if file.windows and min(file.windows) < 1:
        raise GridFileError(path, "windows", "must be >= 1", min(file.windows))
    if bool(file.windows) != any(ANY_WINDOW in text for text in file.policies):
        raise GridFileError(path, "windows", f"must go with a `{ANY_WINDOW}` of a chain, draft:*/target", file.windows)
    if "here" in file.costs:
        raise GridFileError(path, "costs", "must name the profile, as each machine has a newest one of its own", "here")


def _options(
    path: Path, options: Mapping[str, Any], *, serves: bool
) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """(options of one value, options of several), checked as by the functions."""
    record: Any = SimulateOptions if serves else ComparisonOptions
    known = [one.name for one in fields(record) if one.name not in OWN]
    constants, varied = dict[str, Any](), dict[str, tuple[Any, ...]]()
    for name, value in options.items():
        if name not in known:
            axis = next((key for key, word in {**REPLAYED, **SERVED, "seeds": "seed"}.items() if name == word), None)
            near = f"it is the key `{axis}` of the grid" if axis else known_are(name, known)
            raise GridFileError(path, f"options.{name}", f"is not a known option; {near}", value, told=True)
        values = value if isinstance(value, list) else [value]
        if not values or any(one in values[:place] for place, one in enumerate(values)):
            raise GridFileError(path, f"options.{name}", "must have one value at least, each once", value)
        for one in values:
            try:
                checked(record, {"workload": "", "cluster": "", name: one} if serves else {name: one})
            except ArgumentError as error:
                rule = str(error).removeprefix(f"`{name}` ")
                if rule.startswith("must be several texts") and isinstance(value, list):
                    rule += ": each entry of a list is a value of its own, several texts are a list in it, [[...]]"
                raise GridFileError(path, f"options.{name}", rule, one, told=True) from None
        if isinstance(value, list):
            varied[name] = tuple(values)
        else:
            constants[name] = value
    return constants, varied


def _policies(text: str, windows: Sequence[int]) -> Iterator[str]:
    """Every policy in a text with ranges."""
    parts = text.split(ANY_WINDOW)
    for chosen in product(windows, repeat=len(parts) - 1):
        filled = "".join(f"{part}:{window}" for part, window in zip(parts, chosen, strict=False)) + parts[-1]
        yield from policy_ranges(filled).policies()


CODE_OF = "paceline"  # the key of this package among the inputs


def texts_in(values: Iterable[Any]) -> Iterator[str]:
    """Every text in values of JSON."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from texts_in(value.values())
        elif isinstance(value, list | tuple):
            yield from texts_in(value)


def inputs_of(texts: Iterable[str], policies: Mapping[str, object] = MappingProxyType({})) -> dict[str, str]:
    """A hash of the files that texts name, by text; without texts that name none.

    `policies` are classes by text: a module of another package counts as a file that the text names.
    """
    found = {CODE_OF: code_hash(ROOT / folder for folder in CODE)}
    known = dict[str, tuple[Path, ...]]()
    for text in dict.fromkeys(texts):
        files = _files_of(text, known)
        kind = policies.get(text)
        if isinstance(kind, type) and is_foreign(kind) and not names_path(text.partition(",")[0]):
            files.append(Path(inspect.getfile(kind)))
        if files:
            found[text] = _digest(file.read_bytes() for file in files)
    return found


def code_hash(folders: Iterable[Path]) -> str:
    """A hash of the modules and tables of figures in folders."""
    files = (file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix in (".py", ".toml"))
    return _digest(file.read_bytes() for file in files)


_ENDS = str.maketrans(dict.fromkeys("(),=@|+:", "\0"))


def _files_of(text: str, known: dict[str, tuple[Path, ...]]) -> list[Path]:
    """The files that a text or a part of it names; `known` caches those of earlier parts."""
    parts = dict.fromkeys((text, *text.translate(_ENDS).split("\0")))
    for part in parts:
        if part not in known:
            known[part] = tuple(_named_by(part))
    return [file for part in parts for file in known[part]]


def _named_by(part: str) -> Iterator[Path]:
    """The files of a path: of a recording its meta, which has hashes of the rest, and files named in files."""
    if part.startswith(KERNELS):
        yield from sorted(Path(part.removeprefix(KERNELS)).glob(TABLES))
    if "/" in part.rstrip("/") and not os.path.exists(part):  # noqa: PTH110 - a chain; many `Path`s are slow
        return
    try:
        path = recording_path(part) if part and "\n" not in part and not part.isdigit() else None
        if path is not None and path.is_dir():
            yield from (path / name for name in (META, "config.json") if (path / name).is_file())
        elif path is not None and path.is_file():
            yield from _with_named(path)
    except (ValueError, OSError):  # no path
        return


def _with_named(path: Path) -> Iterator[Path]:
    """A file, and those that a module imports from its folder or a cluster file names."""
    yield path
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for beside in (path.with_name(f"{name.partition('.')[0]}.py") for name in names if name):
                if beside.is_file() and beside != path:
                    yield beside
    elif path.suffix == ".toml":
        for text in texts_in([read_toml(path, "the file", GridFileError)]):
            if text.startswith(KERNELS):
                yield from _named_by(f"{KERNELS}{path.parent / text.removeprefix(KERNELS)}")
            for named in (
                path.parent / text,
                Path(text.partition(".py:")[0] + ".py") if ".py:" in text else Path(text),
            ):
                if text and named.is_file() and named != path:
                    yield named


def _digest(parts: Iterable[bytes]) -> str:
    found = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()
