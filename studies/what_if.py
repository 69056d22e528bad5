"""What if: a served workload with changes, one at a time and all together, against the same without them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError, known_are, repeated
from ..base.terminal import Interrupts, Progress, held_interrupts
from ..reports.serving_tables import short_of
from ..reports.what_if import TOGETHER, Changed, WhatIf
from ..sim.cost.roofline import SHEET, device_sheet
from ..sim.serving.cluster import PlacedReplica
from ..traces.recording import Recording
from ..traces.workloads.workload import OpenedWorkload, is_closed
from .load import LoadRuns, check_policies, meta_of
from .options import WhatIfOptions, checked, takes
from .serving import ServingSetting, notes_on, serving_setting
from .setting import NamedPolicy, PolicyGiven, named_policy, opened_recording

OF_A_RUN = ("rate", "device", "policy", "prefix_cache")
_FACTOR = re.compile(r"((?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,2})?)x", re.ASCII)
_SHIFT = re.compile(r"[+-](\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,2})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload with its setting."""

    policy: PolicyGiven
    cached: bool = True  # False: no member keeps a prefix cache, whatever the cluster says
    faster: float = 1.0  # factor of the rate of the workload's own times; not beside a rate
    asked: WhatIfOptions

    def setting(self, recording: Recording) -> ServingSetting:
        """The setting, by `serving_setting`."""
        setting = serving_setting(recording, self.asked.workload, self.asked.cluster, self.asked)
        return setting if self.cached else setting.with_replicas(_uncached)


def _uncached(replica: PlacedReplica) -> PlacedReplica:
    if replica.limits.offload is not None:
        raise ArgumentError("`changes` prefix_cache=off does not go with host memory for evicted blocks (`offload`)")
    memory = tuple(
        replace(device, members=tuple(replace(one, kv=replace(one.kv, prefix_cache=False)) for one in device.members))
        for device in replica.memory
    )
    kv = {name: replace(one, prefix_cache=False) for name, one in replica.limits.kv.items()}
    return replace(replica, memory=memory, limits=replace(replica.limits, kv=kv))


def changed(case: Case, change: str, members: Sequence[str]) -> Case:
    """A case with one change, `NAME=VALUE`.

    `members` are those of the recording. Raises ArgumentError for a bad change, or one without effect.
    """
    name, equals, value = change.partition("=")
    if not (equals and value):
        raise ArgumentError(f"`changes` must be NAME=VALUE, as in rate=2x or draft.seconds=0.5x, got {change!r}")
    made = _MADE[name](case, value) if name in _MADE else _of_member(case, name, value, members)
    factor = _FACTOR.fullmatch(value)
    if (
        made == case
        or (factor is not None and float(factor[1]) == 1.0)
        or (name.endswith(".acceptance") and not float(value))
    ):
        raise ArgumentError(f"`changes` must change something, {change} does not")
    return made


def _of_member(case: Case, name: str, value: str, members: Sequence[str]) -> Case:
    member, _, what = name.rpartition(".")
    known = [*OF_A_RUN, *(f"{one}.seconds" for one in members), *(f"{one}.acceptance" for one in members[:-1])]
    if name not in known:
        raise ArgumentError(f"`changes` knows no {name!r}: {known_are(name, known)}")
    asked = case.asked
    if what == "seconds":
        scale = dict(asked.scale or {})
        scale[member] = scale.get(member, 1.0) * _factor(name, value)
        return replace(case, asked=replace(asked, scale=scale))
    if not _SHIFT.fullmatch(value):
        raise ArgumentError(f"`changes` {name} must be a shift with its sign, as in +0.05, got {value!r}")
    shifts = dict(asked.shift_acceptance or {})
    shifts[member] = shifts.get(member, 0.0) + float(value)
    return replace(case, asked=replace(asked, shift_acceptance=shifts))


def _factor(name: str, value: str) -> float:
    found = _FACTOR.fullmatch(value)
    if found is None or not float(found[1]):
        raise ArgumentError(f"`changes` {name} must be a factor > 0, as in 0.5x, got {value!r}")
    return float(found[1])


def _rate(case: Case, value: str) -> Case:
    own = case.asked.rate
    if value.endswith("x"):
        factor = _factor("rate", value)
        if case.asked.time_scale is not None:
            raise ArgumentError(f"`changes` rate={value} does not go with `time_scale`, got {case.asked.time_scale:g}")
        if own is None:
            return replace(case, faster=factor)
        return replace(case, asked=replace(case.asked, rate=own * factor))
    try:
        return replace(case, asked=replace(case.asked, rate=float(value)))
    except ValueError:
        raise ArgumentError(f"`changes` rate must be a number or a factor, as in 2x, got {value!r}") from None


def _device(case: Case, value: str) -> Case:
    """The memory of another device, and its seconds."""
    sheet, asked = device_sheet(), case.asked
    if value not in sheet:
        raise ArgumentError(f"`changes` knows no device {value!r}: {known_are(value, sorted(sheet), where=SHEET)}")
    for name in ("cluster", "cost"):
        given = getattr(asked, name)
        if given is not None and str(given) not in sheet:
            rule = f"goes with a device of the sheet as `{name}`, whose place it takes"
            raise ArgumentError(f"`changes` device={value} {rule}, got {given}")
    named = [str(one) for one in (asked.cluster, asked.cost) if one is not None]
    if all(replace(sheet[one], name=value) == sheet[value] for one in named):  # the same by another name
        return case
    cost = None if asked.cost is None else value
    return replace(case, asked=replace(asked, cluster=value, cost=cost))


def _policy(case: Case, value: str) -> Case:
    return replace(case, policy=value)


def _prefix_cache(case: Case, value: str) -> Case:
    if value != "off":
        raise ArgumentError(f"`changes` prefix_cache must be off, got {value!r}; a cluster says what is on")
    return replace(case, cached=False)


_MADE: Mapping[str, Callable[[Case, str], Case]] = {
    "rate": _rate,
    "device": _device,
    "policy": _policy,
    "prefix_cache": _prefix_cache,
}


def _own_rate(setting: ServingSetting) -> float:
    """Of the workload's times, in arrivals per second; raises ArgumentError where it has none to scale."""
    opened = setting.opened(None, setting.replay.seed)
    rate = opened.own_rate() if isinstance(opened, OpenedWorkload) else None
    if rate is None:
        rule = "rate must be a multiple of `rate`, or of the rate of a log's own times (a generator's goes into `rate`)"
        why = "in a closed loop" if is_closed(opened) else "without `rate`"
        raise ArgumentError(f"`changes` {rule}, got {setting.workload} {why}")
    return rate


def _prepared(
    case: Case, recording: Recording, interrupts: Interrupts, progress: Progress
) -> tuple[LoadRuns, NamedPolicy, float | None]:
    """(runs of a case, its policy, its rate); raises ValueError for one that cannot run."""
    setting, named = case.setting(recording), named_policy(case.policy)
    tables = setting.tables(setting.replay.seed)
    check_policies(setting, [named], tables)
    rate = case.asked.rate if case.faster == 1 else case.faster * _own_rate(setting)
    setting.check_classes(setting.opened(rate, setting.replay.seed))
    return LoadRuns(setting, tables, interrupts, progress, ends=setting.ends()), named, rate


@takes(WhatIfOptions)
def what_if(
    workload: str | Path,
    policy: PolicyGiven,
    changes: Sequence[str],
    recording: Recording | str | Path | None = None,
    *,
    cluster: str | Path,
    **options: Any,  # noqa: ANN401 - see `WhatIfOptions`
) -> WhatIf:
    """A served workload with changes, one at a time and all together, against the same without them.

    At one seed all runs have the same requests, each replayed from the same recorded request.

    Args:
        workload: a file of requests, or a generator's text.
        policy: of all replicas that have none of their own, as `compare` takes it.
        changes: `rate=2x` (of `rate`, or of a log's own times) or `rate=20`; `device=h200`, its memory and seconds,
            where `cluster` is a device; `policy=draft:2/target`; `prefix_cache=off`; of a member `draft.seconds=0.5x`
            and `draft.acceptance=+0.05`.
        recording: that acceptance is drawn from; None: the one that comes with the package.
        cluster: a TOML file, or a device of the sheet.
        options: see `WhatIfOptions`; `start` may be "prefill" only.

    Raises:
        ValueError: a bad argument, change, row of the workload, cluster or policy, in one line.
        CostRangeError: seconds unknown to the cost.
        PolicyError: a policy that broke the contract.
        KeyboardInterrupt: earlier runs are not kept.
    """
    given = {"workload": workload, "cluster": cluster, "changes": changes}
    asked = checked(WhatIfOptions, options | given)
    if not changes:
        raise ArgumentError(f"`changes` must be a list of at least one text, got {changes!r}")
    if twice := repeated(change.partition("=")[0] for change in changes):
        raise ArgumentError(f"`changes` must hold one of each kind, got {twice[0]} twice")
    opened = opened_recording(recording)
    members = opened.about.models
    base = Case(policy=policy, asked=asked)
    cases = {change: changed(base, change, members) for change in changes}
    if len(cases) > 1:
        every = base
        for change in changes:
            every = changed(every, change, members)
        cases[TOGETHER] = every
    with held_interrupts() as interrupts, Progress("serving", 1 + len(cases), unit="runs") as progress:
        made = [_prepared(case, opened, interrupts, progress) for case in (base, *cases.values())]
        first, *rows = [runs.row(named, rate) for runs, named, rate in made]
    changed_rows = [Changed(name=name, row=row) for name, row in zip(cases, rows, strict=True)]
    runs = made[0][0]
    setting = runs.setting
    notes = dict.fromkeys(notes_on(setting))
    for name, (others, _, _) in zip(cases, made[1:], strict=True):  # notes on the recording are for all runs together
        runs.served += others.served
        runs.has_chance |= others.has_chance
        told = [note for note in notes_on(others.setting) if note not in notes]
        notes |= dict.fromkeys(told, name)
    said = [note if name is None else f"{name}: {note}" for note, name in notes.items()]
    short = short_of(run for row in (first, *rows) for run in row.runs)
    return WhatIf(
        base=first,
        alone=tuple(changed_rows[: len(changes)]),
        together=changed_rows[-1] if len(cases) > len(changes) else None,
        promised=setting.promised,
        meta=meta_of(setting) | {"workload": first.about.workload, "policy": first.about.policy},
        remarks=tuple(dict.fromkeys((*said, *runs.notes, *short))),
    )
