"""Errors of measured kernels against measured rows, beside published peaks and the terms of engines.

The tables lack a layer's time for small kernels and for the gaps between all kernels, and the host's time for a round.
Both are fitted to dense models, four numbers per engine. Predictions of a fit are judged on models that it has not
seen. Prompts between the tokens of plain rows take a verification's seconds from kernels.toml: run it twice.

python -m benchmarks.engines.kernels ROWS TABLES [--write]
(ROWS: the folder engine_rows; TABLES: the folder that holds h100_sxm, h200_sxm and b200_sxm; --write: kernels.toml and
docs/fidelity.md)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from paceline.base.errors import ArgumentError
from paceline.sim.cost.base import CostRangeError
from paceline.sim.cost.engines import engines
from paceline.sim.cost.kernel_tables import KernelTables
from paceline.sim.cost.kernels import KernelCost, beside_kernels
from paceline.traces.meta import ModelInfo
from paceline.traces.parts import ModelParts, parts_of
from paceline.traces.shapes import presets
from scipy.optimize import least_squares

from ..shared.report import parser_of
from .fidelity import bare, by_group, lengths, markdown, middle, rewrite, terms_of, worst
from .fit import CLOSE, OLDER, heads_or_plain, left_out, model_of, sure_lines, weights
from .rows import DEVICES, OTHERS, Predicted, Row, kept_rows, plain_step_s, predicted, predicted_s, rows_in

TABLE = Path(__file__).parents[2] / "sim" / "cost" / "kernels.toml"
BEGIN, END = "<!-- made by benchmarks/engines/kernels.py -->", "<!-- end of kernels -->"
ENGINES = [engine for engine in engines() if engine not in OLDER]  # tables are of today's
FOLDERS = {device: name for name, device in DEVICES.items() if name.endswith("_sxm")}
_DENSE = [replace(shape, mixture=None) for shape in presets().values() if shape.mixture is not None]  # for heads


class Beside(NamedTuple):
    """Seconds of an engine outside kernels: for a layer, a draft's forward and each row of it, and a verification."""

    layer_s: float
    draft_step_s: float
    draft_row_s: float
    wide_s: float


class Kernels(NamedTuple):
    """A row's seconds by kernels, without the fitted ones."""

    row: Row
    seconds: float
    plain_s: float

    def at(self, beside: Beside) -> Predicted:
        """The row as predicted with fitted seconds."""
        row, target = self.row, self.row.target
        layers = target.layers + (0 if row.drafter is None else row.drafted * row.drafter.layers)
        draft_s = row.drafted * (beside.draft_step_s + row.num_rows * beside.draft_row_s)
        rounds_s = 0.0 if row.drafter is None else draft_s + beside.wide_s
        seconds = self.seconds + beside.layer_s * layers
        return Predicted(row, seconds + rounds_s, self.plain_s + beside.layer_s * target.layers, seconds)


def parts(model: ModelInfo) -> ModelParts | None:
    """The parts of a row's model; None if unknown."""
    return parts_of(model, (*_DENSE, *OTHERS.values()))


class Costs:
    """The costs of rows' models by measured kernels."""

    def __init__(self, folder: Path) -> None:
        self._tables = cache(lambda device, engine: KernelTables(folder / FOLDERS[device], engine, extrapolate=True))
        self._costs: dict[tuple[str, ...], KernelCost] = {}

    def of(self, row: Row) -> KernelCost:
        """The cost of a row; raises ArgumentError if no table has a kernel, or a model's parts are unknown."""
        models = [row.target] if row.drafter is None else [row.drafter, row.target]
        key = (row.engine, row.device, str(row.num_devices), *(model.model_dump_json() for model in models))
        if key not in self._costs:
            made = {model.name: parts(model) for model in models}
            self._costs[key] = KernelCost(
                self._tables(row.device, row.engine), models, made, tensor_parallel=row.num_devices
            )
        return self._costs[key]

    def said(self, rows: Iterable[Row], refused: dict[str, int]) -> Iterator[Kernels]:
        """The seconds of rows that kernels cover; counts in `refused` why others were rejected."""
        for row in rows:
            try:
                if row.device not in FOLDERS:
                    raise ArgumentError(f"no tables of {row.device}")
                cost = self.of(row)
                seconds, plain_s = predicted_s(row, cost), plain_step_s(row, cost)
            except (ArgumentError, CostRangeError) as error:
                why = f"{' '.join(row.group[1:])}: {error}"
                refused[why] = refused.get(why, 0) + 1
                continue
            beside = beside_kernels(row.engine, row.device)
            terms = beside.terms
            known = Beside(beside.layer_s, terms.draft_step_s, terms.draft_row_s, terms.wide_s)
            charged = Kernels(row, 0.0, 0.0).at(known)
            yield Kernels(row, seconds - charged.seconds, plain_s - charged.plain_s)


def fit(found: Sequence[Kernels]) -> dict[str, Beside]:
    """The seconds that predict an engine's rows best: layers of plain decoding of dense models, then rounds.

    An engine without such rows has the mean of the others.
    """
    dense = [one for one in found if one.row.target.experts is None and one.row.wide == 1]
    layers: dict[str, float] = {}
    rounds: dict[str, tuple[float, ...]] = {}
    for engine in ENGINES:
        plain = [one for one in dense if one.row.engine == engine and not one.row.drafted]
        if plain:
            (layers[engine],) = _fitted(plain, lambda value: Beside(value[0], 0.0, 0.0, 0.0), [2e-5])
    every = float(np.mean([*layers.values()]))
    for engine in ENGINES:
        chains = [one for one in dense if one.row.engine == engine and one.row.drafts_by == "head"]
        if chains:
            known = layers.get(engine, every)
            rounds[engine] = _fitted(chains, lambda value, known=known: Beside(known, *value), [1e-4, 1e-5, 5e-4])  # type: ignore[misc]
    mean = tuple(np.mean([*rounds.values()], axis=0).tolist())
    return {engine: Beside(layers.get(engine, every), *rounds.get(engine, mean)) for engine in ENGINES}


def _fitted(
    found: Sequence[Kernels], made: Callable[[Sequence[float]], Beside], begin: Sequence[float]
) -> tuple[float, ...]:
    """Fitted values of `made`; each group of a source counts the same."""
    weight = weights([one.row for one in found]) ** 0.5

    def errors(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        beside = made(np.exp(logs).tolist())
        return weight * np.log1p([one.at(beside).error for one in found])

    bounds = (np.log([1e-9] * len(begin)), np.log([1e-2] * len(begin)))
    fitted = least_squares(errors, np.log(begin), loss="soft_l1", f_scale=CLOSE, bounds=bounds)
    return tuple(np.exp(fitted.x).tolist())


def unseen(found: Sequence[Kernels]) -> Iterator[Predicted]:
    """Every row as predicted by a fit without rows of its model under its engine, whatever it is called."""
    for model in dict.fromkeys(model_of(one.row) for one in found):
        beside = fit([one for one in found if model_of(one.row) != model])
        yield from (one.at(beside[one.row.engine]) for one in found if model_of(one.row) == model)


def unseen_rounds(found: Sequence[Kernels], kept: Sequence[Kernels]) -> Iterator[Predicted]:
    """Rounds of dense models by fits that have not seen them, but others of their engine (see `left_out`)."""
    for apart, others in left_out(found, kept, lambda one: one.row):
        beside = fit(others)
        yield from (one.at(beside[one.row.engine]) for one in apart)


def tables(by_kernels: Sequence[Predicted], apart: Iterable[Predicted]) -> list[str]:
    """A line per group: peaks, terms, kernels, and kernels by a fit that has not seen the model (`apart`)."""
    known = [one.row for one in by_kernels]
    sources = {
        "bare": by_group(predicted(known, bare)),
        "terms": by_group(predicted(known, terms_of)),
        "kernels": by_group(by_kernels),
        "not seen": by_group(apart),
    }
    lines = []
    for kind, title in (("plain", "Seconds of a token, plain decoding"), ("round", "Speed-ups of rounds")):
        shown = []
        for group in sorted(one for one in sources["kernels"] if one[0] == kind):
            figures = [middle(sources["bare"][group]), middle(sources["terms"][group])]
            figures += [text(sources[name][group]) for name in ("kernels", "not seen") for text in (middle, worst)]
            shown.append([*filter(None, group[1:]), str(len(sources["kernels"][group])), *figures])
        drafts = ["drafts"] if kind == "round" else []
        head = ["engine", "model", "device", *drafts, "rows", "bare", "terms", "kernels", "worst", "not seen", "worst"]
        lines += [f"**{title}**", "", *markdown(head, shown)]
    best = lengths(heads_or_plain(by_kernels))
    within = sum(float(one[-1].rstrip("%")) <= 3 for one in best)
    return [
        *lines,
        f"Of {len(best)} settings, the predicted draft length is the best or loses at most 3% in {within}.",
        "",
    ]


def written(beside: dict[str, Beside], sure: Sequence[str]) -> str:
    """The figures for the package, after its head."""
    lines = [TABLE.read_text(encoding="utf-8").partition("[engines")[0].rstrip(), ""]
    for engine, fitted in beside.items():
        lines += [f"[engines.{engine}]", *(f"{name} = {value:.3g}" for name, value in fitted._asdict().items()), ""]
    return "\n".join([*lines[:-1], *sure, ""])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    costs = Costs(given.tables)
    refused: dict[str, int] = {}
    found = list(costs.said(rows_in(given.rows), refused))
    beside, apart = fit(found), list(unseen(found))
    typed = list(costs.said(kept_rows(), refused))
    kept, own = [one.at(beside[one.row.engine]) for one in typed], list(unseen_rounds(found, typed))
    figures = written(beside, sure_lines(apart, kept, own, {"all": tuple(FOLDERS)}))
    lines = tables([*(one.at(beside[one.row.engine]) for one in found), *kept], [*apart, *kept])
    print("\n".join([*lines, *(f"{number} rows without: {why}" for why, number in refused.items()), "", figures]))
    if given.write:
        TABLE.write_text(figures, encoding="utf-8")
        rewrite(BEGIN, END, lines)


if __name__ == "__main__":
    main()
