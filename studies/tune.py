"""Tuning: the values of a policy's ranges that are fastest on half of a recording, and their speed on the rest.

A choice on some requests looks better there than it is (the winner's curse), so the figure of a tuned policy is from
requests that were not used for the choice. Trials are cells of a sweep: a tuning that was cut short continues, and
Optuna, which gets the same values in the same order, chooses the same ones again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import ArgumentError, check_within, counted, load_optuna
from ..base.files import DEFAULT_RECORDING, num_processors, recording_path, shipped_names, whole_file
from ..decoding.pool import Pool
from ..policies.by_name import PolicySpec
from ..policies.chain_text import BASELINE
from ..policies.ranges import PolicyRanges, policy_ranges, written
from ..reports.intervals import OverTags
from ..reports.resampled import RequestShares, Resampled
from ..reports.side_by_side import SideBySide
from ..reports.sweeps import Tuned, TunedHalf
from ..runs.cells import CellFound, CellStore, CellWork, key_of
from ..runs.workers import kept_processes, play_cells
from ..traces.recording import Recording, Request, by_session, by_tag
from .compare import check_devices, run_policies
from .grids import inputs_of, texts_in
from .options import TrialsOptions, TuneOptions, checked, takes
from .setting import NamedPolicy, Scenarios, Setting, named_policies, open_recording, setting_of

TRAIL = "trail.parquet"
JOURNAL = "optuna.journal"  # of the trials that Optuna chose
MOST_TRIALS = 100_000
MOST_KINDS = 100  # policies, of each text that a range may stand for, that are asked whether members work ahead
# Trials that Optuna chooses before it gets their results, for any number of processes: so the same ones are chosen on
# every machine.
AT_ONCE = 8
RANDOM_FIRST = 10
DIGITS = 6  # of numbers that Optuna chooses, so that they can be read and typed


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningTrial:
    """A policy on the tuning half; see `runs.cells.CellWork`."""

    call: str  # which tuning it is of
    policy: str
    setting: str  # JSON of `recording`, `split`, `split_seed` and the other options
    inputs: Mapping[str, str]  # a hash of each file that is read
    figures: Callable[[str, str], dict[str, Any]]  # of a policy in a setting, flat

    @property
    def asked(self) -> dict[str, Any]:
        said = json.loads(self.setting)
        return {"call": self.call, "policy": self.policy, "setting": said, "inputs": self.inputs}

    def __str__(self) -> str:
        return self.policy

    def play(self) -> dict[str, Any]:
        return self.figures(self.policy, self.setting)


def _figures(policy: str, setting: str) -> dict[str, Any]:
    """Output tokens per second: of each tag, their mean and their least, all as means over seeds."""
    (_, first), _ = halves_of(setting)
    runs = run_policies(first, named_policies([policy]), lossless=json.loads(setting)["lossless"])
    shares = runs.by_request[runs.asked[0]]
    rates = [one.rates() for one in shares]
    tags = {tag: fmean(of_seed[tag] for of_seed in rates) for tag in rates[0]}
    return {"tags": tags, **{over.value: rate_over_tags(shares, over) for over in OverTags}}


@lru_cache(maxsize=1)
def halves_of(setting: str) -> tuple[tuple[Setting, Scenarios], tuple[Setting, Scenarios]]:
    """The setting and scenarios of the tuning half and of the other one, cached for the next trial."""
    said = json.loads(setting)
    recording, share, seed = said.pop("recording"), said.pop("split"), said.pop("split_seed")
    asked = TuneOptions(**said)
    both = split_recording(open_recording(recording), share, seed)
    first, second = (setting_of(half, asked, batch=asked.batch) for half in both)
    return (first, first.scenarios()), (second, second.scenarios())


def sampled(recording: Recording, most: int, seed: int) -> Recording:
    """About `most` requests in the recorded order, drawn, of each tag its share and at least one; or all."""
    count = len(recording.requests)
    if count <= most:
        return recording
    rng, drawn, passed = np.random.default_rng(seed), set[str](), 0
    for requests in by_tag(recording.requests).values():
        taken = max(round(most * (passed + len(requests)) / count) - round(most * passed / count), 1)
        passed += len(requests)
        drawn.update(requests[place].request_id for place in rng.permutation(len(requests))[:taken].tolist())
    return recording[[one.request_id for one in recording.requests if one.request_id in drawn]]


def split_recording(recording: Recording, share: float, seed: int) -> tuple[Recording, Recording]:
    """(the requests to tune on, the others), each in the recorded order.

    A session is never split, or the reporting half would have turns of sessions that were tuned on. Of the sessions of
    the same tags (a request of no session is one of its own) about `share` is drawn, of several at least one on each
    side; those whose tags no other has are drawn together.

    Raises ArgumentError where one side has no request.
    """
    rng, tuned = np.random.default_rng(seed), set[str]()
    by_tags: dict[tuple[str, ...], list[list[Request]]] = {}
    everyone = by_session(recording.requests)
    for unit in everyone:
        by_tags.setdefault(tuple(sorted({request.tag for request in unit})), []).append(unit)
    alone = [units[0] for units in by_tags.values() if len(units) == 1]
    for units in [*(units for units in by_tags.values() if len(units) > 1), *([alone] if alone else [])]:
        count = len(units)
        taken = min(max(round(share * count), 1), count - 1) if count > 1 else int(rng.random() < share)
        tuned.update(one.request_id for place in rng.permutation(count)[:taken].tolist() for one in units[place])
    sides = [
        [one.request_id for one in recording.requests if (one.request_id in tuned) is own] for own in (True, False)
    ]
    if not all(sides):
        raise ArgumentError(
            "`recording` must have requests of two sessions at least, one to tune on, got "
            f"{counted(len(recording.requests), 'request')} of {counted(len(everyone), 'session')}"
        )
    return recording[sides[0]], recording[sides[1]]


@takes(TuneOptions)
def tune(
    policy: str,
    recording: str | Path | None = None,
    *,
    out: str | Path,
    jobs: int | None = None,
    **options: Any,  # noqa: ANN401 - see `TuneOptions`
) -> Tuned:
    """Find the values of a policy's ranges with the most tokens per second on a part of a recording's requests.

    Args:
        policy: a text with ranges, as "adaptive,most=2..12", "draft:1..8/mid:2..8/target" or
            "my.py:Ewma,alpha=0.01..1:log,kind=fast|slow".
        recording: its path; None: the one that comes with the package.
        out: a folder for the trials, which are not played again, and their trail, `trail.parquet`; with `trials` also
            `optuna.journal`, a study that `optuna-dashboard` opens.
        jobs: processes at a time; None: one for each processor.
        options: see `TuneOptions`.

    Returns:
        The best values, and their speed on the requests that were not used to choose them.

    Raises:
        ValueError: a bad argument or policy, or no value that can be played; one line.
        ModuleNotFoundError: `trials`, and Optuna is not installed.
    """
    asked = checked(TuneOptions, options)
    ranges, over = policy_ranges(policy), OverTags(asked.over_tags)
    spec = first_of(ranges, asked)
    setting = setting_text(asked, recording)
    (_, first), _ = halves_of(setting)  # raises here, not trial by trial
    if asked.devices is not None:
        _check_devices(asked.devices, ranges, first.first.tables.pool)
    inputs = inputs_of_trials(spec, ranges, setting)
    trial = partial(TuningTrial, call="tune", setting=setting, inputs=inputs, figures=_figures)
    trail = search_trials(ranges, trial, folder=Path(out), figure=over, trials=asked.trials, jobs=jobs)
    write_trail(ranges, trail, Path(out) / TRAIL, _of_tags)
    return _tuned(ranges, trail, over, setting)


def _check_devices(devices: str | Mapping[str, str], ranges: PolicyRanges, pool: Pool) -> None:
    """Raises as `check_devices`, of some policies of the ranges, without those that cannot be built."""
    kinds = [one.choices or (written(one.first), written(one.last)) for one in ranges.ranges]
    built: list[NamedPolicy] = []
    for values in islice(product(*kinds), MOST_KINDS):
        with suppress(ValueError):  # its trial fails and says why
            (policy,) = named_policies([ranges.at(values)])
            policy.build(pool)
            built.append(policy)
    if built:
        check_devices(devices, built, pool)


def inputs_of_trials(spec: PolicySpec, ranges: PolicyRanges, setting: str) -> dict[str, str]:
    """A hash of each file that trials of a policy, which `spec` is one of, read; by the text that names it."""
    return inputs_of(texts_in([ranges.text, *json.loads(setting).values()]), {ranges.text: spec.policy_class})


Trail = list[tuple[Sequence[str], CellFound]]  # values of the ranges, and their results


def search_trials(
    ranges: PolicyRanges,
    trial: Callable[..., CellWork],
    *,
    folder: Path,
    figure: str,
    trials: int | None,
    jobs: int | None,
) -> Trail:
    """Play trials of a policy's ranges: every value, or `trials` that Optuna chooses to maximise `figure`.

    `trial` makes one of a text, the keyword `policy`.
    """
    trail: Trail = []

    def play(values: Sequence[Sequence[str]]) -> list[CellFound]:
        made = [trial(policy=ranges.at(one)) for one in values]
        came = _played(made, folder, num_processors() if jobs is None else jobs)
        trail.extend(zip(values, came, strict=True))
        return came

    with kept_processes():
        if trials is None:
            play(list(product(*(one.values() for one in ranges.ranges))))
        else:
            _choose(ranges, trials, figure, folder, play)
    return trail


def best_of(ranges: PolicyRanges, trail: Trail, figure: str, setting: str) -> dict[str, Any]:
    """The fields of `TuningResult`: the values with the most of a figure, the first of equal ones.

    Raises ArgumentError where all trials failed.
    """
    known = [(found.figures[figure], place) for place, (_, found) in enumerate(trail) if found.figures is not None]
    if not known:
        raise ArgumentError(f"`policy` {ranges.text}: no value can be played: {trail[0][1].failed}")
    most = max(value for value, _ in known)
    values = trail[next(place for value, place in known if value == most)][0]
    said = json.loads(setting)
    return {
        "ranges": ranges.text,
        "best": ranges.at(values),
        "values": dict(zip((one.name for one in ranges.ranges), values, strict=True)),
        "trail": tuple(None if found.figures is None else found.figures[figure] for _, found in trail),
        "failed": tuple(dict.fromkeys(found.failed for _, found in trail if found.figures is None)),
        **{name: said[name] for name in ("recording", "split", "split_seed")},
    }


def first_of(ranges: PolicyRanges, asked: TrialsOptions) -> PolicySpec:
    """The policy at one value of each range; raises ArgumentError for a text without a range, or too many trials."""
    policy = ranges.text
    check_within("`split`", asked.split, "(0, 1)")
    if not ranges.ranges:
        raise ArgumentError(
            f"`policy` must have a range, as in draft:1..8/target or adaptive,most=2..12, got {policy!r}"
        )
    if asked.trials is None and any(one.count is None for one in ranges.ranges):
        name = next(one.name for one in ranges.ranges if one.count is None)
        raise ArgumentError(f"`trials` must be given where a range has infinitely many values, as {name} in {policy!r}")
    count = ranges.count if asked.trials is None else asked.trials
    if count > MOST_TRIALS:
        raise ArgumentError(f"`policy` must have {MOST_TRIALS:,} values at most, got {count:,}; `trials` chooses some")
    return PolicySpec.parse(ranges.at([one.choices[0] if one.choices else written(one.first) for one in ranges.ranges]))


def setting_text(asked: TrialsOptions, recording: str | Path | None) -> str:
    """Everything that determines a trial except its policy, as JSON."""
    left_out = {"trials", "over_tags"}  # how trials are used
    said = {name: value for name, value in vars(asked).items() if name not in left_out}
    if not isinstance(recording, str | Path | None):
        raise ArgumentError(f"`recording` must be a path, which trials in other processes open, got {recording!r}")
    named = DEFAULT_RECORDING if recording is None else str(recording)
    title = Path(named).stem
    if title in shipped_names("recordings", ".trace") and Path(named).resolve() == recording_path(title).resolve():
        named = title  # the same on every machine
    return json.dumps({**said, "recording": named}, sort_keys=True, default=str)


def _played(trials: Sequence[CellWork], folder: Path, jobs: int) -> list[CellFound]:
    """The result of each; raises KeyboardInterrupt after an interrupt; the same call then continues."""
    once = {str(one): one for one in trials}.values()
    done = play_cells([[one] for one in once], folder, jobs=jobs, unit="trials")
    if done.missing:
        raise KeyboardInterrupt
    store, lost = CellStore(folder), dict(done.lost)
    found = [store.read(key_of(one.asked)) for one in trials]
    return [
        CellFound(asked=trial.asked, figures=None, failed=lost[str(trial)]) if one is None else one
        for trial, one in zip(trials, found, strict=True)
    ]


def _choose(
    ranges: PolicyRanges,
    count: int,
    figure: str,
    folder: Path,
    play: Callable[[Sequence[Sequence[str]]], list[CellFound]],
) -> None:
    """Play values that Optuna chooses, some at a time, the next ones after it has these results.

    Kept trials are given to it again, so that its journal is complete, for its own tools.
    """
    optuna = load_optuna("`trials`")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JOURNAL).unlink(missing_ok=True)
    journal = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL)))
    made, space = optuna.distributions, dict[str, Any]()
    for one in ranges.ranges:
        first, last = (int if one.whole else float)(one.first), (int if one.whole else float)(one.last)
        if one.choices:
            space[one.name] = made.CategoricalDistribution(one.choices)
        elif one.whole:
            space[one.name] = made.IntDistribution(first, last, log=one.log, step=int(one.step or 1))
        else:
            step = None if one.step is None else float(one.step)
            space[one.name] = made.FloatDistribution(first, last, log=one.log, step=step)
    sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_FIRST, seed=0, constant_liar=True)
    study = optuna.create_study(study_name=ranges.text, storage=journal, sampler=sampler, direction="maximize")
    while count > 0:
        asked = [study.ask(space) for _ in range(min(count, AT_ONCE))]
        count -= len(asked)
        came = play([[_written(trial.params[one.name]) for one in ranges.ranges] for trial in asked])
        for trial, found in zip(asked, came, strict=True):
            if found.figures is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, found.figures[figure])


def _written(value: str | float) -> str:
    return value if isinstance(value, str) else written(Decimal(f"{value:.{DIGITS}g}"))


def _of_tags(figures: Mapping[str, Any]) -> dict[str, Any]:
    tags = {f"tag_{tag}": rate for tag, rate in figures.get("tags", {}).items()}
    return {over.value: figures.get(over) for over in OverTags} | tags


def write_trail(
    ranges: PolicyRanges, trail: Trail, path: Path, shown: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> None:
    """A row for each trial in the order of the search: its values, `shown` of its figures, and why it failed."""
    names = [one.name for one in ranges.ranges]
    rows = [
        {
            "trial": number,
            "policy": ranges.at(values),
            **dict(zip(names, values, strict=True)),
            **shown(found.figures or {}),
            "error": found.failed,
        }
        for number, (values, found) in enumerate(trail)
    ]
    columns = dict.fromkeys(name for row in rows for name in row)
    with whole_file(path) as part:
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in columns}), part)


def _tuned(ranges: PolicyRanges, trail: Trail, over: OverTags, setting: str) -> Tuned:
    """The best of the trials on both halves; raises as `best_of`."""
    searched = best_of(ranges, trail, over, setting)
    best = searched["best"]
    halves, compared = list[TunedHalf](), list[SideBySide]()
    for name, (own, scenarios) in zip(("tuned on", "not tuned on"), halves_of(setting), strict=True):
        runs = run_policies(scenarios, named_policies([best]), lossless=own.lossless)
        knows_alone = BASELINE in runs.by_request
        # Figures are over these tags, whatever their frequency.
        resampled = Resampled(runs.by_request, sessions=runs.sessions, fixed_mix=True)
        compared.append(runs.side_by_side({**own.meta(scenarios.first), "fixed_mix": True}, scenarios.first.cost))
        halves.append(
            TunedHalf(
                name=name,
                requests=resampled.num_requests,
                rate=rate_over_tags(runs.by_request[best], over),
                alone=rate_over_tags(runs.by_request[BASELINE], over) if knows_alone else None,
                interval=resampled.rate_of_tags(best, over),
                speed_up=resampled.rate_of_tags(best, over, BASELINE) if knows_alone else None,
            )
        )
    words = f"tokens/s, {'mean over tags' if over is OverTags.mean else 'of the worst tag'}"
    return Tuned(**searched, words=words, over_tags=over, halves=(halves[1], halves[0]), compared=compared[1])


def rate_over_tags(runs: Sequence[RequestShares], over: OverTags) -> float:
    """Output tokens per second: the mean or the least over tags, then the mean over runs."""
    made = fmean if over is OverTags.mean else min
    return fmean(made(list(run.rates().values())) for run in runs)
