"""How well measured kernels predict measured rows, beside published peaks and the terms of engines.

The tables lack one number an engine: seconds of a layer for small kernels and the gaps between all of them. It is
fitted to plain decoding of dense models. What a fit predicts of a model is judged where it has not seen the model.

python -m benchmarks.engines.kernels ROWS TABLES [--write]
(ROWS: the folder engine_rows; TABLES: the folder that holds h100_sxm, h200_sxm and b200_sxm; --write: kernels.toml and
docs/fidelity.md)
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from paceline.base.errors import ArgumentError
from paceline.sim.cost.base import CostRangeError
from paceline.sim.cost.engines import engines
from paceline.sim.cost.kernel_tables import KernelTables
from paceline.sim.cost.kernels import KernelCost, beside_kernels
from paceline.traces.meta import ModelInfo
from paceline.traces.parts import ModelParts, parts_of
from paceline.traces.shapes import DecoderShape, Mixture, presets
from scipy.optimize import minimize_scalar

from ..shared.report import parser_of
from .fidelity import PAGE, Says, errors, lengths, markdown, middle, said, worst
from .fit import CLOSE, FULL, Foretold, residuals
from .rows import DEVICES, Row, costs_of, foretold_s, kept_rows, plain_step_s, rows_in

TABLE = Path(__file__).parents[2] / "sim" / "cost" / "kernels.toml"
BEGIN, END = "<!-- made by benchmarks/engines/kernels.py -->", "<!-- end of kernels -->"
FOLDERS = {device: name for name, device in DEVICES.items() if name.endswith("_sxm")}
# Of models in the rows that are no preset, one whose layers are all alike, with keys and values of heads.
_OTHERS = {
    "MiniMax-M2.5": DecoderShape(
        hidden=3072, layers=62, heads=48, kv_heads=8, head_size=128, intermediate=1536, vocabulary=200_064,
        mixture=Mixture(experts=256, per_token=8, intermediate=1536),
    ),
}  # fmt: skip
_DENSE = [replace(shape, mixture=None) for shape in presets().values() if shape.mixture is not None]  # their heads


class Kernels(NamedTuple):
    """What kernels say of a row, as a line in the seconds of a layer."""

    row: Row
    seconds: float  # at none
    plain_s: float
    layers: int  # that `seconds` counts
    plain_layers: int

    def at(self, layer_s: float) -> Foretold:
        """At so many seconds of a layer."""
        return Foretold(self.row, self.seconds + layer_s * self.layers, self.plain_s + layer_s * self.plain_layers)


def parts(model: ModelInfo) -> ModelParts | None:
    """What a model of a row is made of; None where nobody knows."""
    known = _OTHERS.get(model.name)
    return parts_of(model, _DENSE) if known is None else parts_of(known.info(model.name), [known])


class Costs:
    """Costs of rows' models by measured kernels."""

    def __init__(self, folder: Path) -> None:
        self._tables = cache(lambda device, engine: KernelTables(folder / FOLDERS[device], engine, extrapolate=True))
        self._costs: dict[tuple[str, ...], KernelCost] = {}

    def of(self, row: Row) -> KernelCost:
        """Raises ArgumentError where no table has a kernel, or nobody knows what a model is made of."""
        models = [row.target] if row.drafter is None else [row.drafter, row.target]
        key = (row.engine, row.device, str(row.num_devices), *(model.model_dump_json() for model in models))
        if key not in self._costs:
            made = {model.name: parts(model) for model in models}
            self._costs[key] = KernelCost(
                self._tables(row.device, row.engine), models, made, tensor_parallel=row.num_devices
            )
        return self._costs[key]

    def said(self, rows: Iterable[Row], refused: dict[str, int]) -> Iterator[Kernels]:
        """What kernels say of those rows that they know, and why others were `refused`."""
        for row in rows:
            layer_s, _ = beside_kernels(row.engine)
            layers = row.target.layers + (0 if row.drafter is None else row.drafted * row.drafter.layers)
            try:
                cost = self.of(row)
                seconds, plain_s = foretold_s(row, cost), plain_step_s(row, cost)
            except (ArgumentError, CostRangeError) as error:
                why = f"{' '.join(row.group[1:])}: {error}"
                refused[why] = refused.get(why, 0) + 1
                continue
            yield Kernels(
                row, seconds - layer_s * layers, plain_s - layer_s * row.target.layers, layers, row.target.layers
            )


def fit(found: Sequence[Kernels]) -> float:
    """The seconds of a layer that predict the rows best, each group the same."""
    sizes: dict[tuple[str, ...], int] = defaultdict(int)
    for one in found:
        sizes[one.row.group] += 1
    weight = np.array([min(sizes[one.row.group], FULL) / FULL / sizes[one.row.group] for one in found])

    def loss(layer_s: float) -> float:
        log = np.log([one.at(layer_s).seconds / one.row.seconds for one in found])
        return float(np.sum(weight * 2 * (np.sqrt(1 + (log / CLOSE) ** 2) - 1)))

    return float(minimize_scalar(loss, bounds=(0.0, 2e-4), method="bounded").x)


def fitted_to(found: Iterable[Kernels], engine: str) -> list[Kernels]:
    """The rows that an engine's number is fitted to."""
    return [one for one in found if one.row.engine == engine and not one.row.drafted and one.row.target.experts is None]


def unseen(found: Sequence[Kernels]) -> Iterator[Foretold]:
    """Every row by a fit that saw nothing of its model; of an engine with one model's rows, by that of all engines."""
    every = [one for engine in engines() for one in fitted_to(found, engine)]
    for engine, model in dict.fromkeys((one.row.engine, one.row.target.name) for one in found):
        rest = [one for one in fitted_to(found, engine) if one.row.target.name != model]
        layer_s = fit(rest or [one for one in every if one.row.target.name != model])
        yield from (one.at(layer_s) for one in found if (one.row.engine, one.row.target.name) == (engine, model))


def tables(rows: Sequence[Row], found: Sequence[Kernels], layer_s: dict[str, float]) -> list[str]:
    """A line a group: peaks, terms, kernels, and kernels where the fit has not seen the model."""
    known = [one.row for one in found]
    by_kernels = [Says(*one.at(layer_s[one.row.engine])) for one in found]
    sources = {
        "bare": errors(said(known, costs_of(lambda _: None))),
        "terms": errors(said(known, costs_of(lambda row: engines()[row.engine][row.device]))),
        "kernels": errors(by_kernels),
        "not seen": errors(Says(*one) for one in unseen(found)),
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
    best = lengths(by_kernels)
    within = sum(float(one[-1].rstrip("%")) <= 3 for one in best)
    return [
        *lines,
        f"Of {len(best)} settings, the predicted draft length is the best or loses at most 3% in {within}.",
        "",
    ]


def written(layer_s: dict[str, float], between: dict[str, tuple[float, float]]) -> str:
    """The figures that the package reads, after its head."""
    head = TABLE.read_text(encoding="utf-8").partition("[layer_s]")[0]
    figures = [f"{engine} = {seconds:.3g}" for engine, seconds in layer_s.items()]
    ends = [f"{kind} = {{ low = {low:.3g}, high = {high:.3g} }}" for kind, (low, high) in between.items()]
    return head + "\n".join(["[layer_s]", *figures, "", "[residuals]", *ends, ""])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = [*rows_in(given.rows), *kept_rows()]
    refused: dict[str, int] = {}
    found = list(Costs(given.tables).said(rows, refused))
    layer_s = {engine: fit(fitted_to(found, engine)) for engine in engines()}
    figures = written(layer_s, residuals(list(unseen(found))))
    lines = tables(rows, found, layer_s)
    print("\n".join([*lines, *(f"{number} rows without: {why}" for why, number in refused.items()), "", figures]))
    if given.write:
        TABLE.write_text(figures, encoding="utf-8")
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *lines, f"{END}{rest.partition(END)[2]}"]), encoding="utf-8")


if __name__ == "__main__":
    main()
