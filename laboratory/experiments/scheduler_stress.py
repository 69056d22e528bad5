"""Batches of 1 to 64: does the chain that SpecRouter chooses change with the load, and does it pay?

The recording holds fewer than 64 requests: the largest batch holds them all from the start. Beyond the measured widths,
seconds follow their last slope.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.base.errors import counted
from paceline.decoding.legal_steps import Policy
from paceline.policies.by_name import make_policy
from paceline.policies.specrouter.policy import SpecRouter
from paceline.reports.panels import Panel, series_of
from paceline.reports.summary import summarise_run
from paceline.sim.cost.by_name import default_cost, make_cost
from paceline.sim.simulate import Scenario, simulate

from ..findings import Cell, ExperimentSetting, Finding, Rows, table, table_cell
from ..replays import TARGET_ALONE, drafters_of, recording_of, scenario_of, three_levels, two_levels

BATCHES = (1, 2, 4, 8, 16, 32, 64)
WINDOWS = (1, 2, 4, 8)
LOWER_WINDOWS, UPPER_WINDOWS = (1, 3, 6), (4, 8)
CHOSEN, PER_TAG, SHARED = "specrouter", "specrouter,select=request", "specrouter,select=batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One batch size. Speeds are output tokens per second."""

    batch: int  # requests at a time
    plain: float  # of the target alone
    static: tuple[str, float]  # the fastest fixed chain, and its speed
    alone: tuple[str, float]  # the chain that is fastest at batch 1, and its speed here
    routed: float  # of SpecRouter by its defaults
    # of SpecRouter with a chain per tag, and with one for all, in step
    per_tag: float
    shared: float
    own_chain: str | None  # members of the chain that most tags ended with by the defaults; None if they had none
    shared_chain: str | None  # members of the chain of all by the defaults; None if there was none
    switches: int  # times the members of a chain were changed

    @property
    def chosen(self) -> str:
        """Members in use."""
        return self.shared_chain or self.own_chain or ""


def run(setting: ExperimentSetting) -> Finding:
    """Replay fixed chains and SpecRouter at every batch size."""
    trace = recording_of(setting)
    cost = make_cost(default_cost(trace), trace, extrapolate=True)
    scenario = replace(scenario_of(setting, trace), cost=cost)
    found: list[Loaded] = []
    for batch in BATCHES:
        found.append(_loaded(replace(scenario, batch=batch), found[0].static[0] if found else None))
    speeds = table("speed-up over the target alone at the same batch", [_speeds(one, found[0]) for one in found])
    return Finding(
        question="Does the chain that SpecRouter chooses change from batch 1 to 64, and does the choice pay?",
        tables=(speeds, table("what SpecRouter chose by its defaults", map(_chosen, found))),
        panels=(_panel(speeds, found[0].static[0]),),
        answer=_answer(found, len(trace.requests)),
    )


def _loaded(scenario: Scenario, best_alone: str | None) -> Loaded:
    pool = scenario.tables.pool
    chains = two_levels(drafters_of(scenario), pool.target, WINDOWS)
    chains += three_levels(pool, lower=LOWER_WINDOWS, upper=UPPER_WINDOWS)
    speeds = {name: _speed(scenario, make_policy(name, pool), name) for name in chains}
    static = max(speeds, key=lambda name: speeds[name])
    router = SpecRouter(pool)
    routed = _speed(scenario, router, CHOSEN)
    members = Counter(_members(chain) for chain in router.chains.values())
    return Loaded(
        batch=scenario.batch,
        plain=_speed(scenario, make_policy(TARGET_ALONE, pool), TARGET_ALONE),
        static=(static, speeds[static]),
        alone=(best_alone or static, speeds[best_alone or static]),
        routed=routed,
        per_tag=_speed(scenario, make_policy(PER_TAG, pool), PER_TAG),
        shared=_speed(scenario, make_policy(SHARED, pool), SHARED),
        own_chain=members.most_common(1)[0][0] if members else None,
        shared_chain=None if router.shared_chain is None else _members(router.shared_chain),
        switches=router.counters.switches,
    )


def _speed(scenario: Scenario, policy: Policy, name: str) -> float:
    return summarise_run(simulate(scenario, policy, name)).output_tokens_per_s


def _members(chain: str) -> str:
    return "/".join(part.partition(":")[0] for part in chain.split("/"))


def _speeds(one: Loaded, first: Loaded) -> list[Cell]:
    return [
        table_cell("batch", one.batch),
        table_cell("target alone", one.plain, "tokens/s", 1),
        table_cell("best fixed chain", one.static[0]),
        table_cell("its speed-up", one.static[1] / one.plain, "x", 2),
        table_cell(f"of {first.static[0]}", one.alone[1] / one.plain, "x", 2),
        table_cell(CHOSEN, one.routed / one.plain, "x", 2),
        table_cell(PER_TAG, one.per_tag / one.plain, "x", 2),
        table_cell(SHARED, one.shared / one.plain, "x", 2),
    ]


def _chosen(one: Loaded) -> list[Cell]:
    return [
        table_cell("batch", one.batch),
        table_cell("members for most tags", one.own_chain or "-"),
        table_cell("members for all, in step", one.shared_chain or "-"),
        table_cell("changes of members", one.switches),
    ]


def _panel(speeds: Rows, alone: str) -> Panel:
    lines = {
        "best fixed chain of each batch": speeds.numbers("its speed-up"),
        f"{alone}, best at batch 1": speeds.numbers(f"of {alone}"),
        **{name: speeds.numbers(name) for name in (CHOSEN, PER_TAG, SHARED)},
    }
    return Panel(
        title="load",
        x_label="requests at a time",
        y_label="speed-up over the target alone",
        series=series_of(speeds.numbers("batch"), lines),
        log_x=True,
    )


def _answer(found: Sequence[Loaded], num_requests: int) -> str:
    chosen = dict.fromkeys(one.chosen for one in found)
    changes = "stay the same" if len(chosen) == 1 else "change"
    pays = [one.batch for one in found if one.routed >= one.static[1]]
    worst = min(found, key=lambda one: one.routed / one.static[1])
    where = f"at batch {', '.join(map(str, pays))}" if pays else "at no batch"
    least = min(one.routed / one.plain for one in found)
    return (
        f"Over {counted(num_requests, 'request')} the members in use {changes} with the load ({', '.join(chosen)}). "
        f"SpecRouter is at least as fast as the best fixed chain of each batch {where}; at worst, at batch "
        f"{worst.batch}, it reaches {worst.routed / worst.static[1]:.2f} of it. "
        f"Its speed-up goes from {found[0].routed / found[0].plain:.2f} at batch {found[0].batch} to "
        f"{found[-1].routed / found[-1].plain:.2f} at batch {found[-1].batch}, and is {least:.2f} at least."
    )
