"""Statistics of similarity against the acceptance they predict, over drafters near and far from the target.

Drafters are the target itself with an increasing number of layers left out, and with noise on its weights. Each
statistic is taken on the target's own text after some prompts; observed is the target's acceptance when it writes after
them.

SimScore is 1 - E[TVD] (SpecRouter, arXiv:2505.07680), what rejection sampling accepts of one token (Leviathan et al.
2023, arXiv:2211.17192, Cor. 3.6). Greedy decoding accepts where the two argmax are equal. Coupled sampling accepts
where the two choose alike with the same noise, which is less than SimScore (Daliri et al. 2024, arXiv:2408.07978).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean

import numpy as np
from paceline.decoding.results import VERIFY
from paceline.reports.panels import Panel, Series, by_category, series_of
from paceline.runtime.pools.members import describe_model
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.prompts import Prompt
from paceline.runtime.slim import Calibration, calibrate, measure_distance, target_with_layers
from paceline.traces.meta import Sampling
from transformers import PreTrainedModel

from ..findings import Cell, ExperimentSetting, Finding, table, table_cell
from ..replays import chain
from ..shared import GREEDY, measure_agreement, perturbed, pool_of, prompts_of, ran

LEFT_OUT = (0.1, 0.3, 0.45, 0.65, 0.8)  # shares of the layers
NOISE = (0.1, 0.2, 0.3, 0.4)
WINDOW, PROMPTS, NEW_TOKENS, TEMPERATURE = 4, 12, 40, 1.0
MODES = ("greedy", "coupled", "rejection")
SIM_SCORE, EQUAL_ARGMAX, SHARED_NOISE = "1 - E[TVD]", "equal argmax", "shared noise"
STATISTICS = (SIM_SCORE, EQUAL_ARGMAX, SHARED_NOISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One drafter with the target, in one mode of sampling."""

    drafter: str  # in words
    mode: str  # of sampling
    predicted: Mapping[str, float]  # by statistic, 0 to 1
    observed: float  # share of the judged tokens that the target accepted, 0 to 1
    tokens: int  # judged: all up to the first rejected one of each verification

    def error(self, statistic: str) -> float:
        """Predicted less observed."""
        return self.predicted[statistic] - self.observed


def run(setting: ExperimentSetting) -> Finding:
    """Measure every statistic and the acceptance of every drafter in every mode."""
    pool = pool_of(setting)
    prompts = prompts_of(setting, PROMPTS)
    samplings = {mode: _sampling(mode, setting.seed) for mode in MODES}
    greedy, sampled = (
        calibrate(pool, prompts, max_new_tokens=NEW_TOKENS, sampling=samplings[mode]) for mode in ("greedy", "coupled")
    )
    pairs: list[Pair] = []
    for drafter, model in _drafters(pool, setting.seed):
        predicted = {"greedy": _predicted(model, greedy)} | dict.fromkeys(MODES[1:], _predicted(model, sampled))
        for mode, sampling in samplings.items():
            observed, tokens = _observed(pool, model, prompts, sampling)
            pair = Pair(drafter=drafter, mode=mode, predicted=predicted[mode], observed=observed, tokens=tokens)
            pairs.append(pair)
    errors = "percentage points; error: mean |predicted - observed| over drafters; bias: mean of predicted - observed"
    title = f"window {WINDOW}, {NEW_TOKENS} new tokens a prompt, sampling at temperature {TEMPERATURE:g}"
    return Finding(
        question="Which statistic of two models predicts how much of a draft is accepted, and how well?",
        tables=(table(errors, [_errors(pairs, mode) for mode in MODES]), table(title, map(_row, pairs))),
        panels=_panels(pairs),
        answer=_answer(pairs),
    )


def _sampling(mode: str, seed: int) -> Sampling:
    if mode == "greedy":
        return GREEDY
    return Sampling.model_validate({"mode": mode, "temperature": TEMPERATURE, "seed": seed})


def _drafters(pool: ModelPool, seed: int) -> Iterator[tuple[str, PreTrainedModel]]:
    """One at a time, since those with noise have weights of their own."""
    target = target_with_layers(pool)
    num_layers = pool.target.num_layers
    for skipped in sorted({round(share * num_layers) for share in LEFT_OUT} - {0, num_layers}):
        mask = spread(skipped, num_layers)
        yield f"{skipped} of {num_layers} layers left out", make_submodel(target, mask)
    for noise in NOISE:
        yield f"noise {noise:g}", perturbed(target, noise, seed=seed)


def spread(skipped: int, num_layers: int) -> tuple[int, ...]:
    """The mask of `skipped` layers, evenly over the depth; the first layer is left out last."""
    return tuple(num_layers - 1 - place * num_layers // skipped for place in range(skipped))[::-1]


def _predicted(model: PreTrainedModel, calibration: Calibration) -> dict[str, float]:
    distance = measure_distance(model, calibration)
    agreement = measure_agreement(model, calibration)
    return {SIM_SCORE: 1 - distance.tvd, EQUAL_ARGMAX: 1 - distance.disagreement, SHARED_NOISE: agreement}


def _observed(
    pool: ModelPool, model: PreTrainedModel, prompts: Sequence[Prompt], sampling: Sampling
) -> tuple[float, int]:
    """(accepted share of the tokens that the target judged, their number)."""
    drafter = describe_model("drafter", "model", model, None)
    pair = replace(pool, members=(drafter, pool.target))
    spec = chain(("drafter", pool.target.name), (WINDOW,))
    outputs, log = ran(pair, spec, prompts, max_new_tokens=NEW_TOKENS, sampling=sampling, batch=len(prompts))
    failed = [output.error for output in outputs if output.error]
    if failed:
        raise ValueError(failed[0])
    verifies = log.steps["kind"] == VERIFY
    accepted, judged = log.steps["accepted"][verifies], log.steps["judged"][verifies]
    looked_at = int(np.minimum(accepted + 1, judged).sum())
    return int(accepted.sum()) / looked_at, looked_at


def _of(pairs: Sequence[Pair], mode: str) -> list[Pair]:
    return [pair for pair in pairs if pair.mode == mode]


def _calibration_error(pairs: Sequence[Pair], mode: str, statistic: str) -> float:
    """Mean absolute difference of predicted and observed, over drafters."""
    return fmean(abs(pair.error(statistic)) for pair in _of(pairs, mode))


def _bias(pairs: Sequence[Pair], mode: str, statistic: str) -> float:
    return fmean(pair.error(statistic) for pair in _of(pairs, mode))


def _errors(pairs: Sequence[Pair], mode: str) -> list[Cell]:
    errors = (table_cell(f"error: {one}", _calibration_error(pairs, mode, one) * 100, digits=1) for one in STATISTICS)
    biases = (table_cell(f"bias: {one}", _bias(pairs, mode, one) * 100, digits=1) for one in STATISTICS)
    return [table_cell("sampling", mode), *errors, *biases, table_cell("best", _best(pairs, mode))]


def _best(pairs: Sequence[Pair], mode: str) -> str:
    return min(STATISTICS, key=lambda statistic: _calibration_error(pairs, mode, statistic))


def _row(pair: Pair) -> list[Cell]:
    return [
        table_cell("drafter", pair.drafter),
        table_cell("sampling", pair.mode),
        *(table_cell(statistic, pair.predicted[statistic] * 100, "%", 1) for statistic in STATISTICS),
        table_cell("accepted", pair.observed * 100, "%", 1),
        table_cell("tokens looked at", pair.tokens),
    ]


def _panels(pairs: Sequence[Pair]) -> tuple[Panel, ...]:
    curves = [
        Panel(
            title=mode,
            x_label="predicted acceptance",
            y_label="observed acceptance",
            series=(*(_curve(pairs, mode, statistic) for statistic in STATISTICS), *_diagonal(pairs, mode)),
        )
        for mode in MODES
    ]
    bars = {one: [_calibration_error(pairs, mode, one) * 100 for mode in MODES] for one in STATISTICS}
    return (*curves, by_category("calibration error", "percentage points", MODES, bars))


def _curve(pairs: Sequence[Pair], mode: str, statistic: str) -> Series:
    points = sorted((pair.predicted[statistic], pair.observed) for pair in _of(pairs, mode))
    return Series(name=statistic, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))


def _diagonal(pairs: Sequence[Pair], mode: str) -> tuple[Series, ...]:
    """The line where predicted equals observed, over the observed range."""
    values = [value for pair in _of(pairs, mode) for value in (*pair.predicted.values(), pair.observed)]
    ends = (min(values), max(values))
    return series_of(ends, {"predicted = observed": ends})


def _answer(pairs: Sequence[Pair]) -> str:
    observed = [pair.observed for pair in pairs]
    told = [f"for {mode} decoding {_told(pairs, mode)}" for mode in MODES]
    bias = _bias(pairs, "coupled", SIM_SCORE) * 100
    # Mean standard error of an observed acceptance, its tokens taken as independent.
    chance = fmean(sqrt(pair.observed * (1 - pair.observed) / pair.tokens) for pair in pairs)
    return (
        f"Over drafters whose tokens are accepted from {min(observed):.0%} to {max(observed):.0%}, mean errors in "
        f"percentage points: {'; '.join(told)}. "
        f"Under coupled sampling {SIM_SCORE}, the SimScore, is {abs(bias):.1f} points too "
        f"{'high' if bias > 0 else 'low'} in the mean. "
        f"An acceptance is of {min(pair.tokens for pair in pairs)} tokens or more, so that chance alone is worth about "
        f"{chance * 100:.1f} points."
    )


def _told(pairs: Sequence[Pair], mode: str) -> str:
    errors = {statistic: _calibration_error(pairs, mode, statistic) * 100 for statistic in STATISTICS}
    return ", ".join(
        f"{statistic} {errors[statistic]:.1f}" for statistic in sorted(errors, key=lambda name: errors[name])
    )
