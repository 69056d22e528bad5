"""Tuning under load: the values of a policy's ranges with the most goodput at a rate, or the highest rate under limits.

Trials and halves are those of `tune`: acceptance is drawn from the tuning half, and the reported figure is served again
from the other half. At one seed all trials have the same arrivals.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError
from ..base.terminal import Progress, held_interrupts
from ..policies.chain_text import BASELINE
from ..policies.ranges import policy_ranges
from ..reports.limits import service_limits
from ..reports.sweeps import HIGHEST, TunedUnderLoad, TunedUnderLoadHalf, mean_of
from ..traces.recording import Recording
from .load import LoadRuns, check_policies, meta_of
from .options import FindRatesOptions, TuneUnderLoadOptions, checked, shared, takes
from .rates import NoRateError, check_rates, rate_of
from .serving import ServingSetting, serving_setting
from .setting import NamedPolicy, named_policies, open_recording
from .tune import (
    TRAIL,
    TuningTrial,
    best_of,
    first_of,
    inputs_of_trials,
    search_trials,
    setting_text,
    split_recording,
    write_trail,
)

GOODPUT = "goodput_per_s"


def _figures(policy: str, setting: str) -> dict[str, Any]:
    """The figure to maximise of a policy that serves with the acceptance of the tuning half: by seed, and the mean."""
    question = question_of(setting)
    (named,) = named_policies([policy])
    found = question.figures(named, question.settings[0]).by_seed
    return {
        question.figure: mean_of(question.figure, found.values()),
        "seeds": {str(seed): value for seed, value in found.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    by_seed: Mapping[int, float]  # the figure to maximise; a single one if nothing is random
    rejected: float  # requests a run, mean over seeds
    remarks: list[str]  # on these runs, a line each


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    asked: TuneUnderLoadOptions
    requests: tuple[int, int]  # recorded ones of the tuning half, and of the other one
    settings: tuple[ServingSetting, ServingSetting]

    @property
    def figure(self) -> str:
        return GOODPUT if self.asked.limits is None else HIGHEST

    @property
    def words(self) -> str:
        """The figure to maximise."""
        if self.asked.limits is not None:
            return f"arrivals/s at which {self.asked.limits} holds"
        return "goodput /s" + ("" if self.asked.rate is None else f" at {self.asked.rate:g} arrivals/s")

    def figures(self, policy: NamedPolicy, setting: ServingSetting) -> _Figures:
        """The figures of a policy."""
        if self.asked.limits is not None:
            rate, remarks = rate_of(setting, policy, service_limits(self.asked.limits, argument="limits"))
            return _Figures(by_seed=rate.by_seed, rejected=rate.rejected, remarks=remarks)
        with held_interrupts() as interrupts, Progress("serving", 1, unit="policies") as progress:
            tables = setting.tables(setting.replay.seed)
            runs = LoadRuns(setting, tables, interrupts, progress)
            row = runs.row(policy, self.asked.rate)
            rejected = row.mean("rejected") or 0.0
            return _Figures(by_seed=row.by_seed(GOODPUT), rejected=rejected, remarks=runs.remarks(row.runs))


@lru_cache(maxsize=1)
def question_of(setting: str) -> _Question:
    """The question with both halves opened, cached for the next trial; raises ArgumentError for bad options."""
    said = json.loads(setting)
    recording, share, seed = said.pop("recording"), said.pop("split"), said.pop("split_seed")
    asked = TuneUnderLoadOptions(**said)
    halves: tuple[Recording, Recording] = split_recording(open_recording(recording), share, seed)
    serving = _serving(asked)
    first, second = (serving_setting(half, asked.workload, asked.cluster, serving) for half in halves)
    numbers = len(halves[0].requests), len(halves[1].requests)
    return _Question(asked=asked, requests=numbers, settings=(first, second))


def _serving(asked: TuneUnderLoadOptions) -> FindRatesOptions:
    return FindRatesOptions(**shared(FindRatesOptions, asked, but=["limits"]), limits=asked.limits or "")


@takes(TuneUnderLoadOptions)
def tune_under_load(
    policy: str,
    recording: str | Path | None = None,
    *,
    workload: str | Path,
    cluster: str | Path,
    out: str | Path,
    jobs: int | None = None,
    **options: Any,  # noqa: ANN401 - see `TuneUnderLoadOptions`
) -> TunedUnderLoad:
    """Find the values of a policy's ranges that serve a workload best, on a part of a recording's requests.

    Best is the most goodput at `rate`, with `slo`; or, with `limits`, the highest rate at which all of them hold.

    Args:
        policy: a text with ranges, as `tune` takes it.
        recording: that acceptance is drawn from; None: the one that comes with the package.
        workload: a file of requests, or a generator's text; with `limits` one that leaves its rate open.
        cluster: a TOML file, or a device of the sheet.
        out: a folder for the trials, which are not played again, and their trail, `trail.parquet`.
        jobs: processes at a time; None: one for each processor.
        options: see `TuneUnderLoadOptions`. `limits` as `find_rates` takes it.

    Raises:
        ValueError: a bad argument or policy, or no value that can be played; one line.
        ModuleNotFoundError: `trials`, and Optuna is not installed.
    """
    asked = checked(TuneUnderLoadOptions, options | {"workload": workload, "cluster": cluster})
    _check(asked)
    ranges = policy_ranges(policy)
    spec = first_of(ranges, asked)
    setting = setting_text(asked, recording)
    question = question_of(setting)  # raises here, not trial by trial
    served = question.settings[0]
    if asked.limits is not None:
        check_rates(served, _serving(asked), service_limits(asked.limits, argument="limits"))
    check_policies(served, named_policies([BASELINE, spec.label]), served.tables(asked.seed))
    inputs = inputs_of_trials(spec, ranges, setting)
    trial = partial(TuningTrial, call="tune under load", setting=setting, inputs=inputs, figures=_figures)
    figure = question.figure
    trail = search_trials(ranges, trial, folder=Path(out), figure=figure, trials=asked.trials, jobs=jobs)
    write_trail(ranges, trail, Path(out) / TRAIL, lambda figures: {figure: figures.get(figure)})
    searched = best_of(ranges, trail, figure, setting)
    reported, remarks = _half(question, searched["best"], "not tuned on", 1)
    return TunedUnderLoad(
        **searched,
        figure=figure,
        words=question.words,
        halves=(reported, _half(question, searched["best"], "tuned on", 0)[0]),
        workload=str(workload),
        cluster=str(cluster),
        meta=meta_of(question.settings[1]),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _check(asked: TuneUnderLoadOptions) -> None:
    """Raises ArgumentError unless exactly one option defines what is best."""
    if asked.limits is None and asked.slo is None:
        raise ArgumentError("`workload` goes with `slo`, for the most goodput, or with `limits`, for the highest rate")
    if asked.limits is not None and asked.rate is not None:
        raise ArgumentError(f"`rate` must be left out beside `limits`, which ask for one, got {asked.rate:g}")


def _half(question: _Question, best: str, name: str, place: int) -> tuple[TunedUnderLoadHalf, list[str]]:
    """(a half, remarks on the runs of `best`)."""
    figures: dict[str, _Figures] = {}
    for policy in named_policies([best, BASELINE]):
        try:
            figures[policy.name] = question.figures(policy, question.settings[place])
        except NoRateError:  # limits hold at no rate, or at every one: there is no ratio
            if policy.name == best:
                raise
    own, alone = figures[best], figures.get(BASELINE)
    remarks = own.remarks
    asks_rate = question.asked.limits is not None and question.asked.slo is None  # with `slo`, rejections count
    if alone is not None and asks_rate and own.rejected != alone.rejected:
        told = f"{own.rejected:g} requests a run are rejected under {best}, {alone.rejected:g} under {BASELINE}"
        alone, remarks = None, [*remarks, f"{told}: their rates are not compared"]
    half = TunedUnderLoadHalf(
        name=name,
        requests=question.requests[place],
        tuned=own.by_seed,
        alone=None if alone is None else alone.by_seed,
        figure=question.figure,
    )
    return half, remarks
