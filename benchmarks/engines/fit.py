"""Fit the terms of engines to measured rows, and write them to the file of the package, sim/cost/engines.toml.

Few terms for all rows: shares of peak and seconds per layer are shared by all engines; seconds of an all-reduce, a row,
a layer of experts and a round belong to an engine. Those of a round are fitted to measured gains, all others to
seconds. Rows are weighted so that each group (engine, model, format, device) counts the same. The uncertainty of the
terms comes from unseen rows: each engine's rows of a model are predicted by a fit to all others. For an engine with
rounds in several sources, that of its rounds comes from fits that leave out one model in one source and see the kept
rows.

python -m benchmarks.engines.fit ROWS     (ROWS: the folder engine_rows; writes the table)
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from paceline.sim.cost.engines import EngineTerms, engines
from scipy.optimize import least_squares

from ..shared.report import parser_of
from .rows import Predicted, Row, costs_of, kept_rows, plain_step_s, predicted, predicted_s, rows_in

TABLE = Path(__file__).parents[2] / "sim" / "cost" / "engines.toml"
CLASSES = {"hopper": ("h100-sxm", "h100", "h200"), "blackwell": ("b200",)}
VERSIONS = {"vllm": "0.9 to 0.19", "sglang": "0.5", "trtllm": "1.0 to 1.3"}
SHARES = ("bandwidth", "arithmetic", "narrow", "link")
ROUNDS = ("draft_step_s", "wide_s")
# Terms fitted to dense models, then, with those known, terms fitted to mixtures of experts.
STAGES = ((*SHARES, "width_s", "reduce_s", "row_s", *ROUNDS), ("expert_layer_s",))
MOST_BANDWIDTH = 0.9  # of the peak: about that of a copy within an H100's memory
# The cost of a drafted token over a round, in rows of a plain step. Chosen from 1 to 4 by all rows of the fit,
# including those that a fit of `unseen` leaves out.
CHOICES = 3
CLOSE = 0.05  # larger errors weigh less than their square (soft L1), so that a few odd rows do not dominate
FULL = 12  # rows of a group with full weight
TAIL = 0.05  # share of the rows on either side of the range of residuals
ENOUGH = 10  # rows of rounds for a range of engines whose own were measured

Place = tuple[str, str, str]  # engine and class of devices, "" if all share it, and the field
Terms = dict[Place, float]


def class_of(device: str) -> str:
    """The class of a device on the sheet."""
    return next(kind for kind, devices in CLASSES.items() if device in devices)


def place_of(field: str, engine: str, kind: str) -> Place:
    """The engine and class of devices of a field's term."""
    if field in SHARES:
        return "", "", field
    if field == "width_s":
        return "", kind, field
    return engine, kind if field == "expert_layer_s" else "", field


def terms_by(values: Mapping[Place, float]) -> Callable[[Row], EngineTerms]:
    """The terms of a row's engine on its device; terms that no row determines are the mean of the others'."""
    made: dict[tuple[str, str], EngineTerms] = {}

    def of(row: Row) -> EngineTerms:
        key = row.engine, class_of(row.device)
        if key not in made:
            start = engines()["vllm"]["h100"]
            names = [field.name for field in fields(EngineTerms) if isinstance(getattr(start, field.name), float)]
            found = {name: _value(values, place_of(name, *key)) for name in names}
            found["draft_row_s"] = CHOICES * found["row_s"]
            made[key] = replace(start, name=row.engine, version="", **found)
        return made[key]

    return of


def _value(values: Mapping[Place, float], place: Place) -> float:
    if place in values:
        return values[place]
    alike = [value for other, value in values.items() if other[2] == place[2] and other[1] == place[1]]
    alike = alike or [value for other, value in values.items() if other[2] == place[2]]
    return float(np.mean(alike)) if alike else 0.0


def fit(rows: Sequence[Row]) -> Terms:
    """The terms that predict the rows best, except trees: SGLang needs more to build one than these terms hold."""
    terms: Terms = {}
    rows = [row for row in rows if row.wide == 1]
    for mixtures, names in enumerate(STAGES):
        chosen = [row for row in rows if (row.target.experts is not None) == bool(mixtures)]
        terms |= _fitted(chosen, list(_told_of(chosen, names)), terms)
    return terms


def _told_of(rows: Iterable[Row], names: Sequence[str]) -> dict[Place, None]:
    """The terms of these fields that rows determine, in order."""
    found: dict[Place, None] = {}
    for row in rows:
        known = {"bandwidth", "arithmetic", "width_s", "row_s", "expert_layer_s"}
        known |= {"narrow"} if row.target.quantised is not None and row.target.quantised.arithmetic else set()
        known |= {"link", "reduce_s"} if row.num_devices > 1 else set()
        known |= set(ROUNDS) if row.drafter is not None else set()
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

    begin = [1e-8 if place[2] == "width_s" else 3e-5 if place[2] not in SHARES else 0.7 for place in places]
    most = {"bandwidth": MOST_BANDWIDTH, **dict.fromkeys(SHARES[1:], 1.0)}
    ends = [most.get(place[2], 1e-2) for place in places]
    bounds = (np.log([1e-9] * len(places)), np.log(ends))
    found = least_squares(errors, np.log(begin), loss="soft_l1", f_scale=CLOSE, bounds=bounds)
    return values(found.x)


def unseen(rows: Sequence[Row]) -> Iterator[Predicted]:
    """Every row as predicted by a fit without any row of its model under its engine, in any format or device."""
    for engine, model in dict.fromkeys((row.engine, row.target.name) for row in rows):
        apart = [row for row in rows if (row.engine, row.target.name) == (engine, model)]
        others = fit([row for row in rows if (row.engine, row.target.name) != (engine, model)])
        yield from predicted(apart, terms_by(others))


def source_of(row: Row) -> tuple[str, str, str]:
    """The rows that a fit leaves out together: those of an engine, a source and a model."""
    return row.engine, row.source, row.target.name


def sources_of_rounds(rows: Iterable[Row]) -> list[tuple[str, str, str]]:
    """Sources of engines whose rounds a fit without one source still sees, in dense chains of another source."""
    told = dict.fromkeys((source_of(row), row.wide == 1 and row.target.experts is None) for row in rows if row.drafted)
    fitted = Counter(engine for (engine, *_), chains in told if chains)
    return list(dict.fromkeys(source for source, _ in told if fitted[source[0]] > 1))


def unseen_rounds(rows: Sequence[Row], kept: Sequence[Row]) -> Iterator[Predicted]:
    """Rounds of `rows`, predicted by fits to other rounds of their engine, without their model and source.

    The fits see `kept` too, which may hold all other rounds of an engine.
    """
    for source in sources_of_rounds([*rows, *kept]):
        apart = [row for row in rows if row.drafted and source_of(row) == source]
        if apart:
            yield from predicted(apart, terms_by(fit([row for row in (*rows, *kept) if source_of(row) != source])))


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
    them. `own` are those of `unseen_rounds`: with `kept` they give the range of rounds of their engines.
    """
    lines = []
    measured = [one for one in (*own, *kept) if one.row.engine in {other.row.engine for other in own}]
    for group, name in GROUPS.items():
        rounds = [one for one in (*kept, *found) if one.row.drafted and group_of_target(one.row) == group]
        named = {kind: f"{name} on {kind.capitalize()}" if len(classes) > 1 else name for kind in classes}
        of_rounds = " and ".join(
            named[kind] for kind, devices in classes.items() if any(one.row.device in devices for one in rounds)
        )
        for kind, devices in classes.items():
            plain = [
                one
                for one in found
                if not one.row.drafted and group_of_target(one.row) == group and one.row.device in devices
            ]
            if not plain:
                continue
            lines += ["", f"[sure.{group}.{kind}]", f'of = "{named[kind]}"', f'of_rounds = "{of_rounds}"']
            lines += [_range_line("plain", plain), *_rounds_lines(rounds)]
            here = [one for one in measured if group_of_target(one.row) == group and one.row.device in devices]
            if len(here) >= ENOUGH:
                names = ", ".join(f'"{engine}"' for engine in dict.fromkeys(one.row.engine for one in here))
                lines += ["", f"[sure.{group}.{kind}.own]", f"engines = [{names}]", *_rounds_lines(here)]
    return lines


def _range_line(part: str, found: Sequence[Predicted]) -> str:
    low, high = _between(found)
    return f"{part} = {{ low = {low:.3g}, high = {high:.3g} }}"


def _rounds_lines(rounds: Sequence[Predicted]) -> list[str]:
    losses = sum(measured < 1 < said for measured, said in (one.speed_ups for one in rounds))
    return [_range_line("rounds", rounds), f"gains = {len(rounds)}", f"losses = {losses}"]


def weights(rows: Sequence[Row]) -> NDArray[np.float64]:
    """The weight of each row: groups of `FULL` rows or more count the same, smaller ones less."""
    sizes = Counter(row.group for row in rows)
    return np.array([min(sizes[row.group], FULL) / FULL / sizes[row.group] for row in rows])


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
        *(f"{name} = {_value(terms, ('', '', name)):.3g}" for name in SHARES),
    ]
    for kind, devices in CLASSES.items():
        names = ", ".join(f'"{device}"' for device in devices)
        width_s = _value(terms, ("", kind, "width_s"))
        lines += ["", f"[classes.{kind}]", f"devices = [{names}]", f"width_s = {width_s:.3g}"]
    for engine, version in VERSIONS.items():
        by_class = (f"{kind} = {_value(terms, (engine, kind, 'expert_layer_s')):.3g}" for kind in CLASSES)
        lines += ["", f"[engines.{engine}]", f'version = "{version}"', f"expert_layer_s = {{ {', '.join(by_class)} }}"]
        lines += [f"{name} = {_value(terms, (engine, '', name)):.3g}" for name in ("reduce_s", "row_s", *ROUNDS)]
        told = ", ".join(f'"{kind}"' for kind in CLASSES if (engine, kind) in measured)
        lines += [f"rounds_measured = [{told}]"]
        lines += [f"draft_row_s = {CHOICES * _value(terms, (engine, '', 'row_s')):.3g}"]
    return "\n".join([*lines, *sure, ""])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("rows", type=Path)
    rows = rows_in(parser.parse_args().rows)
    measured = {(row.engine, class_of(row.device)) for row in rows if row.drafter is not None}
    terms, kept = fit(rows), kept_rows()
    own = list(unseen_rounds(rows, kept))
    sure = sure_lines(list(unseen(rows)), predicted(kept, terms_by(terms)), own, CLASSES)
    TABLE.write_text(written(terms, sure, measured), encoding="utf-8")
    print(TABLE.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
