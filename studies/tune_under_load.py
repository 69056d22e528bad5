"""Tuning under load: the values of a policy's ranges with the most goodput at a rate, or the highest rate under limits.

Trials and halves are those of `tune`: acceptance is drawn from the tuning half, and the reported figure is served again
from the other half. At one seed all trials have the same arrivals.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from ..base.errors import ArgumentError
from ..base.terminal import Progress, held_interrupts
from ..policies.chain_text import BASELINE
from ..policies.ranges import PolicyRanges, policy_ranges
from ..reports.limits import SHARE, service_limits
from ..reports.serving_tables import reject_alike, rejecting_fewest
from ..reports.sweeps import HIGHEST, TunedUnderLoad, TunedUnderLoadHalf, mean_of
from ..traces.recording import Recording
from .load import LoadRuns, check_policies, meta_of
from .options import FindRatesOptions, TuneUnderLoadOptions, checked, shared, takes
from .rates import NoRateError, check_rates, rate_of
from .serving import ServingSetting, serving_setting
from .setting import NamedPolicy, named_policies, open_recording
from .tune import (
    TRAIL,
    Trail,
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
    """Of a policy that serves with the acceptance of the tuning half: the figure to maximise, and rejected requests.

    Both by seed, and the mean.
    """
    question = question_of(setting)
    (named,) = named_policies([policy])
    served = question.serve(named, question.settings[0])
    return {
        question.figure: mean_of(question.figure, served.by_seed.values()),
        "seeds": {str(seed): value for seed, value in served.by_seed.items()},
        "rejected": fmean(served.rejected.values()),
        "rejected_by_seed": {str(seed): count for seed, count in served.rejected.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    by_seed: Mapping[int, float]  # the figure to maximise; a single one if nothing is random
    rejected: Mapping[int, float]  # requests, by seed
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

    @property
    def by_times(self) -> bool:
        """Whether the figure is by times alone, of which a rejected request has none; it keeps no promise."""
        return self.asked.limits is not None and SHARE not in self.asked.limits

    def serve(self, policy: NamedPolicy, setting: ServingSetting) -> _Served:
        """The figures of a policy."""
        if self.asked.limits is not None:
            rate, remarks = rate_of(setting, policy, service_limits(self.asked.limits, argument="limits"))
            return _Served(by_seed=rate.by_seed, rejected=rate.rejected, remarks=remarks)
        with held_interrupts() as interrupts, Progress("serving", 1, unit="policies") as progress:
            tables = setting.tables(setting.replay.seed)
            runs = LoadRuns(setting, tables, interrupts, progress)
            row = runs.row(policy, self.asked.rate)
            return _Served(by_seed=row.by_seed(GOODPUT), rejected=row.rejected, remarks=runs.remarks(row.runs))


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
    trial = partial(
        TuningTrial, call="tune under load, rejections too", setting=setting, inputs=inputs, figures=_figures
    )
    figure = question.figure
    trail = search_trials(ranges, trial, folder=Path(out), figure=figure, trials=asked.trials, jobs=jobs)
    shown = (figure, "rejected")
    write_trail(ranges, trail, Path(out) / TRAIL, lambda figures: {name: figures.get(name) for name in shown})
    searched = best_of(ranges, _serving_most(ranges, trail) if question.by_times else trail, figure, setting)
    reported, remarks = _half(question, searched["best"], "not tuned on", 1)
    return TunedUnderLoad(
        **searched,
        figure=figure,
        words=question.words,
        halves=(reported, _half(question, searched["best"], "tuned on", 0)[0]),
        workload=str(workload),
        cluster=str(cluster),
        promised=served.promised,
        meta=meta_of(question.settings[1]),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _check(asked: TuneUnderLoadOptions) -> None:
    """Raises ArgumentError unless exactly one option defines what is best."""
    if asked.limits is None and asked.slo is None:
        raise ArgumentError("`workload` goes with `slo`, for the most goodput, or with `limits`, for the highest rate")
    if asked.limits is not None and asked.rate is not None:
        raise ArgumentError(f"`rate` must be left out beside `limits`, which ask for one, got {asked.rate:g}")


def _serving_most(ranges: PolicyRanges, trail: Trail) -> Trail:
    """The trail, where those count as failed that reject more requests than others: their times are of fewer."""
    played = [found.figures for _, found in trail if found.figures is not None]
    if not played:
        return trail
    fewest = rejecting_fewest(played, lambda figures: figures["rejected_by_seed"])
    kept: Trail = []
    for values, found in trail:
        if found.figures is not None and found.figures not in fewest:
            own, least = (figures["rejected"] for figures in (found.figures, fewest[0]))
            told = f"{ranges.at(values)} is left out: it rejects {own:g} requests a run, others {least:g}"
            found = replace(found, figures=None, failed=told)
        kept.append((values, found))
    return kept


def _half(question: _Question, best: str, name: str, place: int) -> tuple[TunedUnderLoadHalf, list[str]]:
    """(a half, remarks on the runs of `best`)."""
    served: dict[str, _Served] = {}
    for policy in named_policies([best, BASELINE]):
        try:
            served[policy.name] = question.serve(policy, question.settings[place])
        except NoRateError:  # limits hold at no rate, or at every one: there is no ratio
            if policy.name == best:
                raise
    own, alone = served[best], served.get(BASELINE)
    remarks = own.remarks
    if alone is not None and question.by_times and not reject_alike(own.rejected, alone.rejected):
        ours, theirs = (fmean(one.rejected.values()) for one in (own, alone))
        told = f"{ours:g} requests a run are rejected under {best}, {theirs:g} under {BASELINE}"
        alone, remarks = None, [*remarks, f"{told}: their rates are not compared"]
    half = TunedUnderLoadHalf(
        name=name,
        requests=question.requests[place],
        tuned=own.by_seed,
        alone=None if alone is None else alone.by_seed,
        figure=question.figure,
    )
    return half, remarks
