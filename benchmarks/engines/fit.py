"""Fit the terms of engines to measured rows, and write them to the file of the package, sim/cost/engines.toml.

Few terms for all rows: shares of peak and seconds per layer are shared by all engines; seconds of an all-reduce, a row,
a layer of experts and a round belong to an engine. Those of a round are fitted to measured gains, all others to
seconds; rounds of models that draft, and of copied drafts, have terms of their own in addition to those of heads. Rows
are weighted so that each group (engine, model, format, device) of a source counts the same. The uncertainty of the
terms comes from unseen rows: each engine's rows of a model are predicted by a fit to all others. That of rounds of an
engine comes, where other rounds are left, from fits that see the kept rows and leave out one source or, where all are
of one source, one model.

python -m benchmarks.engines.fit ROWS     (ROWS: the folder engine_rows; writes the table)
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from paceline.sim.cost.engines import EngineTerms, engines
from scipy.optimize import least_squares

from ..shared.report import parser_of
from .rows import Predicted, Row, costs_of, kept_rows, plain_step_s, predicted, predicted_s, rows_in

TABLE = Path(__file__).parents[2] / "sim" / "cost" / "engines.toml"
CLASSES = {
    "hopper": ("h100-sxm", "h100", "h100-pcie", "h200", "gh200", "h20"),
    "blackwell": ("b200",),
    "ampere": ("a100-80gb", "a100", "a100-40gb"),
}
VERSIONS = {
    "vllm": "0.15 to 0.28",
    "vllm-0.12": "0.11 and 0.12",
    "vllm-0.9": "0.9",
    "sglang": "0.5",
    "trtllm": "1.0 to 1.3",
}
# Releases whose host works between two steps, by the one that they take its seconds from. vLLM plans steps ahead since
# 0.14, SGLang and TensorRT-LLM do so too: with a term for them, models left out were further off.
BETWEEN_STEPS = {"vllm-0.12": "vllm-0.12", "vllm-0.9": "vllm-0.12"}
OLDER = dict.fromkeys(BETWEEN_STEPS, "vllm")  # differ from it by few terms; none is in the means of others
SHARES = ("bandwidth", "arithmetic", "narrow", "link")
SHARED = (*SHARES, "alike")  # by all engines on all devices
ROUNDS = ("draft_step_s", "draft_row_s", "wide_s", "rereads")
REREADING = ("ampere",)  # classes where vLLM's attention does not pack heads of queries (FlashAttention 2)
EXPERTS = ("expert_layer_s", "bf16_expert_layer_s")
OF_CLASS = (*EXPERTS, "rereads")  # of an engine on a class of devices
COPIES = ("lookup_layer_s", "lookup_row_s")
# Of each release. A draft's rows are not told by rounds of older ones, all at one request.
OF_RELEASE = ("draft_step_s", "wide_s", "lookup_round_s")
# Plans steps ahead, but not with copied drafts: their rounds take what the host takes in another release.
UNPLANNED = {"vllm": ("vllm-0.12", "", "step_s")}
# Terms fitted one after another, with those before known: to steps of dense models, to their rounds, and to mixtures.
PLAIN = (*SHARES, "step_s", "width_s", "reduce_s", "row_s")
MOST_BANDWIDTH = 0.9  # of the peak: about that of a copy within an H100's memory
CLOSE = 0.05  # larger errors weigh less than their square (soft L1), so that a few odd rows do not dominate
FULL = 12  # rows of a group with full weight
TAIL = 0.05  # share of the rows on either side of the range of residuals
FEW = 3  # models below which a class of devices has no range of plain steps of its own
ENOUGH = 10  # rows of an engine's rounds, that a fit with others of them left out, for a range of its own

Place = tuple[str, str, str]  # engine and class of devices, "" if all share it, and the field
Terms = dict[Place, float]
Known = TypeVar("Known")  # a row, or one with its seconds


def class_of(device: str) -> str:
    """The class of a device on the sheet."""
    return next(kind for kind, devices in CLASSES.items() if device in devices)


def place_of(field: str, engine: str, kind: str) -> Place:
    """The engine and class of devices of a field's term."""
    if field in SHARED:
        return "", "", field
    if field == "width_s":
        return "", kind, field
    shared = BETWEEN_STEPS if field == "step_s" else {} if field in OF_RELEASE else OLDER
    engine = shared.get(engine, engine)
    return engine, kind if field in OF_CLASS else "", field


def terms_by(values: Mapping[Place, float]) -> Callable[[Row], EngineTerms]:
    """The terms of a row's engine on its device; those that no row determines are the mean of the others'.

    Layers of a class of devices without rows are those of the first class.
    """
    made: dict[tuple[str, str], EngineTerms] = {}

    def of(row: Row) -> EngineTerms:
        key = row.engine, class_of(row.device)
        if key not in made:
            start = engines()["vllm"]["h100"]
            names = [field.name for field in fields(EngineTerms) if field.type is float]
            found = {name: _value(values, place_of(name, *key)) for name in names}
            made[key] = replace(start, name=row.engine, version="", **found)
        return made[key]

    return of


def _value(values: Mapping[Place, float], place: Place) -> float:
    if place in values:
        return values[place]
    if place[2] == "lookup_round_s":
        return values.get(UNPLANNED.get(place[0], place), 0.0)
    if place[2] in ("step_s", "rereads"):
        return 0.0
    if place[2] == "width_s":
        return values["", next(iter(CLASSES)), "width_s"]
    known = {other: value for other, value in values.items() if other[2] == place[2] and other[0] not in OLDER}
    near = [value for other, value in known.items() if other[1] == place[1]] or [*known.values()]
    return float(np.mean(near)) if near else 0.0


def fit(rows: Sequence[Row]) -> Terms:
    """The terms that predict the rows best, except trees: SGLang needs more to build one than these terms hold."""
    terms: Terms = {}
    rows = [row for row in rows if row.wide == 1]
    dense, mixtures = ([row for row in rows if (row.target.experts is not None) == mixed] for mixed in (False, True))
    by_drafts = {"": PLAIN, "head": ROUNDS, "model": ("draft_layer_s",), "copy": COPIES}
    parts = [([row for row in dense if row.drafts_by == drafts], names) for drafts, names in by_drafts.items()]
    for chosen, names in (*parts, (mixtures, (*EXPERTS, "alike"))):
        if places := list(_told_of(chosen, names)):
            terms |= _fitted(chosen, places, terms)
    return terms


def _told_of(rows: Iterable[Row], names: Sequence[str]) -> dict[Place, None]:
    """The terms of these fields that rows determine, in order."""
    found: dict[Place, None] = {}
    for row in rows:
        narrow = row.target.quantised is not None and row.target.quantised.experts
        known = {"bandwidth", "arithmetic", "width_s", EXPERTS[0 if narrow else 1]}
        known |= {"step_s"} if row.engine in BETWEEN_STEPS else set()
        known |= {"row_s", "draft_row_s", "lookup_row_s"} if row.num_rows > 1 else set()
        known |= {"narrow"} if row.target.quantised is not None and row.target.quantised.arithmetic else set()
        known |= {"link", "reduce_s"} if row.num_devices > 1 else set()
        known |= {"draft_step_s", "wide_s", "draft_layer_s"} if row.drafter is not None else set()
        known |= {"lookup_layer_s"} if row.copied else set()
        known |= {"alike"} if row.drafted else set()
        known |= {"rereads"} if row.engine == "vllm" and class_of(row.device) in REREADING else set()
        found |= dict.fromkeys(place_of(name, row.engine, class_of(row.device)) for name in names if name in known)
    return found


def _fitted(rows: Sequence[Row], places: Sequence[Place], known: Terms) -> Terms:
    weight = weights(rows) ** 0.5

    def values(logs: NDArray[np.float64]) -> Terms:
        return {place: float(value) for place, value in zip(places, np.exp(logs), strict=True)}

    def errors(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        cost = costs_of(terms_by(known | values(logs)))
        found = (Predicted(row, predicted_s(row, cost(row)), plain_step_s(row, cost(row)), 0.0) for row in rows)
        return weight * np.log1p([one.error for one in found])

    begins = {"width_s": 1e-8, "rereads": 0.5, "alike": 0.3, **dict.fromkeys(SHARES, 0.7)}
    begin = [begins.get(place[2], 3e-5) for place in places]
    most = {"bandwidth": MOST_BANDWIDTH, **dict.fromkeys((*SHARED[1:], "rereads"), 1.0)}
    ends = [most.get(place[2], 1e-2) for place in places]
    bounds = (np.log([1e-9] * len(places)), np.log(ends))
    found = least_squares(errors, np.log(begin), loss="soft_l1", f_scale=CLOSE, bounds=bounds)
    return values(found.x)


def unseen(rows: Sequence[Row]) -> Iterator[Predicted]:
    """Every row as predicted by a fit without any row of its model under its engine, in any format or device."""
    for one in dict.fromkeys(map(model_of, rows)):
        others = fit([row for row in rows if model_of(row) != one])
        yield from predicted([row for row in rows if model_of(row) == one], terms_by(others))


def model_of(row: Row) -> tuple[str, int, int]:
    """A row's engine and model, whatever both are called."""
    return OLDER.get(row.engine, row.engine), row.target.parameters, row.target.layers


def sources_of_rounds(rows: Iterable[Row]) -> dict[str, bool]:
    """Engines whose rounds a fit may see in part, by dense chains: of several sources, or (False) of models of one."""
    models: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for row in rows:
        if row.drafts_by == "head" and row.wide == 1 and row.target.experts is None:
            models[row.engine].add((row.source, row.target.name.lower()))
    sources = {engine: {source for source, _ in found} for engine, found in models.items()}
    return {engine: len(sources[engine]) > 1 for engine, found in models.items() if len(found) > 1}


def left_out(
    fitted: Sequence[Known], kept: Sequence[Known], row_of: Callable[[Known], Row]
) -> Iterator[tuple[list[Known], list[Known]]]:
    """Rounds of dense models, source by source or model by model (`sources_of_rounds`), and what a fit to others sees.

    That includes `kept`, which may hold all other rounds of an engine; where all that is left out is kept, the fit is
    the one of the table.
    """
    by_source = sources_of_rounds(row_of(one) for one in (*fitted, *kept))

    def part(one: Known) -> tuple[str, str, str]:
        row = row_of(one)
        return row.engine, row.source, "" if by_source.get(row.engine) else row.target.name.lower()

    rounds: dict[tuple[str, str, str], list[Known]] = defaultdict(list)
    for one in (*fitted, *kept):
        if row_of(one).drafts_by == "head" and row_of(one).target.experts is None and row_of(one).engine in by_source:
            rounds[part(one)].append(one)
    for name, apart in rounds.items():
        seen = any(part(one) == name for one in fitted)
        yield apart, [one for one in (*fitted, *kept) if part(one) != name] if seen else [*fitted]


def unseen_rounds(rows: Sequence[Row], kept: Sequence[Row]) -> Iterator[Predicted]:
    """Rounds of dense models as predicted by fits that have not seen them, but others of their engine (`left_out`)."""
    for apart, others in left_out(rows, kept, lambda row: row):
        yield from predicted(apart, terms_by(fit(others)))


def heads_or_plain(found: Iterable[Predicted]) -> list[Predicted]:
    """Without rounds that no head drafts."""
    return [one for one in found if one.row.drafts_by in ("head", "")]


GROUPS = {"dense": "dense models", "mixture": "mixtures of experts"}


def group_of_target(row: Row) -> str:
    """The group of targets whose ranges apply to a row."""
    return "dense" if row.target.experts is None else "mixture"


def sure_lines(
    found: Sequence[Predicted],
    kept: Sequence[Predicted],
    own: Sequence[Predicted],
    classes: Mapping[str, Collection[str]],
) -> list[str]:
    """Ranges of seconds by group of targets and class of devices (`classes`: devices by name of class), as tables.

    `found` are rows predicted by fits without their model, `kept` others, predicted by terms that were not fitted to
    them, but rounds without a head tell nothing of heads. `own` are those of `unseen_rounds`: an engine with
    enough of them has a range of its own. Engines without have one that holds these and that of all others.
    """
    lines = []
    kept = heads_or_plain(kept)
    by_source = sources_of_rounds(one.row for one in own)
    for group, name in GROUPS.items():
        rounds = [
            one for one in heads_or_plain((*kept, *found)) if one.row.drafted and group_of_target(one.row) == group
        ]
        known = _by_engine(one for one in own if group_of_target(one.row) == group)
        named = {kind: f"{name} on {kind.capitalize()}" if len(classes) > 1 else name for kind in classes}
        of_rounds = " and ".join(
            named[kind] for kind, devices in classes.items() if any(one.row.device in devices for one in rounds)
        )
        for kind, devices in classes.items():
            plain = [
                one
                for one in (*kept, *found)
                if not one.row.drafted and group_of_target(one.row) == group and one.row.device in devices
            ]
            if not plain:
                continue
            of = named[kind]
            if len({model_of(one.row) for one in plain}) < FEW:  # no surer than all classes together
                plain = [one for one in (*kept, *found) if not one.row.drafted and group_of_target(one.row) == group]
                there = {one.row.device for one in plain}
                of = " and ".join(named[each] for each, devices in classes.items() if not there.isdisjoint(devices))
            lines += ["", f"[sure.{group}.{kind}]", f'of = "{of}"', f'of_rounds = "{of_rounds}"']
            lines += [_range_line("plain", plain), _range_line("rounds", rounds, *known.values())]
            lines += _gains_lines(rounds)
            here = _by_engine(one for each in known.values() for one in each if one.row.device in devices)
            for engine, each in here.items():
                new = _new(engine, each, by_source=by_source[engine])
                lines += ["", f'[sure.{group}.{kind}.own."{engine}"]', f'new = "{new}"']
                lines += [_range_line("rounds", each), *_gains_lines(each)]
    return lines


def _by_engine(own: Iterable[Predicted]) -> dict[str, list[Predicted]]:
    """Rounds of each engine that has enough."""
    found: dict[str, list[Predicted]] = defaultdict(list)
    for one in own:
        found[one.row.engine].append(one)
    return {engine: found[engine] for engine in sorted(found) if len(found[engine]) >= ENOUGH}


def _new(engine: str, rounds: Sequence[Predicted], *, by_source: bool) -> str:
    """What of the rounds of an engine fits have not seen, in words, and whether all were of one request at a time."""
    alone = " at one request" if all(one.row.num_rows == 1 for one in rounds) else ""
    return (f"new sources of {engine}" if by_source else f"{engine}'s new models") + alone


def _range_line(part: str, *parts: Sequence[Predicted]) -> str:
    """A range that holds those of all parts."""
    ends = [_between(found) for found in parts]
    return f"{part} = {{ low = {min(low for low, _ in ends):.3g}, high = {max(high for _, high in ends):.3g} }}"


def _gains_lines(rounds: Sequence[Predicted]) -> list[str]:
    losses = sum(measured < 1 < said for measured, said in (one.speed_ups for one in rounds))
    return [f"gains = {len(rounds)}", f"losses = {losses}"]


def weights(rows: Sequence[Row]) -> NDArray[np.float64]:
    """The weight of each row: groups of a source with `FULL` rows or more count the same, smaller ones less."""
    sizes = Counter((row.group, row.source) for row in rows)
    return np.array([min(size, FULL) / FULL / size for size in (sizes[row.group, row.source] for row in rows)])


def _between(found: Sequence[Predicted]) -> tuple[float, float]:
    """The factors between which nine in ten rows lie, both unweighted and weighted as in a fit."""
    factors = np.array([one.factor for one in found])
    ends = [
        np.quantile(factors, (TAIL, 1 - TAIL), weights=each, method="inverted_cdf")
        for each in (np.ones(len(found)), weights([one.row for one in found]))
    ]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    return min(1.0, max(0.0, float(low))), max(1.0, float(high))


def written(terms: Terms, sure: Sequence[str], measured: Collection[tuple[str, str]]) -> str:
    """The table for the package; `sure` is from `sure_lines`, `measured` are engines and classes with rounds."""
    lines = [
        "# What engines take, as benchmarks/engines/fit.py writes it; docs/fidelity.md says from which rows, and how",
        "# well it does. The fields are those of EngineTerms.",
        "",
        "[shared]",
        *(f"{name} = {_value(terms, ('', '', name)):.3g}" for name in SHARED),
    ]
    for kind, devices in CLASSES.items():
        names = ", ".join(f'"{device}"' for device in devices)
        lines += ["", f"[classes.{kind}]", f"devices = [{names}]"]
        lines.append(f"width_s = {_value(terms, ('', kind, 'width_s')):.3g}")
    for engine, version in VERSIONS.items():
        lines += ["", f'[engines."{engine}"]', f'version = "{version}"']
        for name in OF_CLASS:
            by_class = (f"{kind} = {_value(terms, place_of(name, engine, kind)):.3g}" for kind in CLASSES)
            lines.append(f"{name} = {{ {', '.join(by_class)} }}")
        names = (
            "step_s",
            "reduce_s",
            "row_s",
            "draft_step_s",
            "draft_row_s",
            "wide_s",
            "draft_layer_s",
            "lookup_round_s",
            *COPIES,
        )
        lines += [f"{name} = {_value(terms, place_of(name, engine, '')):.3g}" for name in names]
        told = ", ".join(f'"{kind}"' for kind in CLASSES if (engine, kind) in measured)
        lines += [f"rounds_measured = [{told}]"]
    return "\n".join([*lines, *sure, ""])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("rows", type=Path)
    rows = rows_in(parser.parse_args().rows)
    measured = {(row.engine, class_of(row.device)) for row in rows if row.drafts_by == "head"}
    terms, kept = fit(rows), kept_rows()
    own = list(unseen_rounds(rows, kept))
    sure = sure_lines(list(unseen(rows)), predicted(kept, terms_by(terms)), own, CLASSES)
    TABLE.write_text(written(terms, sure, measured), encoding="utf-8")
    print(TABLE.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
