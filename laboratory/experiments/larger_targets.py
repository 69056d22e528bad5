"""What if the models were larger: the recording at the price of targets of 7B, 70B and 405B, and at 1 : 10 : 100.

Acceptance is that of the recorded models; only seconds change. Seconds by roofline are a lower bound (docs/costs.md has
the error), so read ratios between chains, not seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.reports.panels import Panel, by_category
from paceline.reports.summary import summarise_run
from paceline.runs.log import RunLog
from paceline.sim.cost.base import CostModel
from paceline.sim.cost.files import CostLine, FileCost
from paceline.sim.cost.what_if import PricedAsCost
from paceline.sim.simulate import Scenario
from paceline.traces.contexts.meta import TrieMeta
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.meta import ModelInfo

from ..findings import Cell, ExperimentSetting, Finding, Rows, table, table_cell
from ..replays import (
    ALL,
    TARGET_ALONE,
    Family,
    drafters_of,
    families,
    recording_of,
    replayed,
    scenario_of,
    speed_of,
    speed_up_of,
    submodel,
    tags_of,
    three_levels,
    two_levels,
)

WINDOWS = (1, 2, 3, 4, 5, 6, 8, 11)
LOWER_WINDOWS, UPPER_WINDOWS = (2, 3, 5), (4, 7, 11)  # together at most 16, the shipped recording's reach
RATIO = (1e-3, 1e-2, 1e-1)  # seconds of any forward of drafter, middle level and target
CONTEXT_TOKENS = 128  # at which the price of a token is shown
ADAPTIVE = "specrouter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """One pricing of the recording's members."""

    name: str
    devices: str
    cost: CostModel  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The fastest policies under one pricing."""

    world: Pricing  # the pricing
    token_s: tuple[float, ...]  # seconds of a forward of one token, by role (drafter, middle level, target)
    # the fastest chain of two and of three levels over all text, and its speed-up
    two: tuple[str, float]
    three: tuple[str, float]
    adaptive: float  # speed-up of SpecRouter
    exact_share: float  # least share of token decisions that were replayed, not modelled, in these three runs; 0 to 1
    gains: Mapping[str, float]  # by tag, speed of the best three levels over that of the best two on this tag


def run(setting: ExperimentSetting) -> Finding:
    """Replay two- and three-level chains and SpecRouter in every world."""
    trace = recording_of(setting)
    roles = _roles(trace.meta)
    recorded = scenario_of(setting, trace)
    found = [_best(replace(recorded, cost=world.cost), trace, roles, world) for world in _worlds(trace.meta, roles)]
    title = "gain of the best three levels over the best two, each the best of the tag"
    gains = table(title, [_gains(best, tags_of(trace)) for best in found])
    return Finding(
        question="Does a middle level pay for larger targets, if acceptance stays what it was recorded to be?",
        tables=(
            table("speed-up over the target alone, batch 1, all text; seconds are modelled", map(_speeds, found)),
            gains,
        ),
        panels=_panels(found, gains, tags_of(trace)),
        answer=_answer(found, tags_of(trace)),
    )


def _roles(meta: TrieMeta) -> tuple[str, str, str]:
    own = [model.name for model in meta.models if model.submodel_of is None]
    if len(own) != 3:
        raise ValueError(f"recording {meta.name}: models that are no submodels must be 3, got {', '.join(own)}")
    return own[0], own[1], own[2]


def _worlds(meta: TrieMeta, roles: tuple[str, str, str]) -> list[Pricing]:
    worlds = [_family_world(meta, roles, family) for family in families()]
    lines = dict(zip(roles, RATIO, strict=True))
    lines |= {model.name: RATIO[-1] * _share(meta, model) for model in meta.models if model.submodel_of is not None}
    cost = FileCost("1 : 10 : 100", {name: CostLine(intercept_s=seconds) for name, seconds in lines.items()})
    return [*worlds, Pricing(name="1 : 10 : 100", devices="any", cost=cost)]


def _family_world(meta: TrieMeta, roles: tuple[str, str, str], family: Family) -> Pricing:
    prices = {
        role: family.price(model, count)
        for role, model, count in zip(roles, family.models, family.devices, strict=True)
    }
    for model in meta.models:
        if model.submodel_of is not None:
            prices[model.name] = family.price(submodel(family.target, _share(meta, model)), family.devices[-1])
    return Pricing(
        name=family.name, devices=f"{family.devices[-1]} {family.device}", cost=PricedAsCost(family.name, prices)
    )


def _share(meta: TrieMeta, model: ModelInfo) -> float:
    """Parameters of a submodel over those of its model."""
    whole = next(other for other in meta.models if other.name == model.submodel_of)
    return model.parameters / whole.parameters


def _best(scenario: Scenario, trace: TrieRecording, roles: tuple[str, str, str], world: Pricing) -> Best:
    plain = replayed(scenario, TARGET_ALONE)
    pool = scenario.tables.pool
    two = {name: replayed(scenario, name) for name in two_levels(drafters_of(scenario), pool.target, WINDOWS)}
    deep = three_levels(pool, lower=LOWER_WINDOWS, upper=UPPER_WINDOWS)
    three = {name: replayed(scenario, name) for name in deep}
    best_two, best_three = _fastest(two, ALL), _fastest(three, ALL)
    adaptive = replayed(scenario, ADAPTIVE)
    return Best(
        world=world,
        token_s=tuple(
            world.cost.forward_s(role, num_rows=1, new_tokens=1, context_tokens=CONTEXT_TOKENS) for role in roles
        ),
        two=(best_two, speed_up_of(two[best_two], plain)),
        three=(best_three, speed_up_of(three[best_three], plain)),
        adaptive=speed_up_of(adaptive, plain),
        exact_share=min(summarise_run(log).exact_share for log in (two[best_two], three[best_three], adaptive)),
        gains={
            tag: speed_up_of(three[_fastest(three, tag)], two[_fastest(two, tag)], tag=tag) for tag in tags_of(trace)
        },
    )


def _fastest(logs: Mapping[str, RunLog], tag: str) -> str:
    return max(logs, key=lambda name: speed_of(logs[name], tag=tag))


def _speeds(best: Best) -> list[Cell]:
    return [
        table_cell("target (drafter, middle)", best.world.name),
        table_cell("devices", best.world.devices),
        table_cell(
            "seconds of a token, relative", " : ".join(f"{each / best.token_s[0]:.3g}" for each in best.token_s)
        ),
        table_cell("target's token", best.token_s[-1] * 1e3, "ms", 2),
        table_cell("best two levels", best.two[0]),
        table_cell("speed-up", best.two[1], "x", 2),
        table_cell("best three levels", best.three[0]),
        table_cell("speed-up", best.three[1], "x", 2),
        table_cell("gain", (best.three[1] / best.two[1] - 1) * 100, "%", 1),
        table_cell(ADAPTIVE, best.adaptive, "x", 2),
        table_cell("replayed, least of the three", best.exact_share * 100, "%", 1),
    ]


def _gains(best: Best, tags: Sequence[str]) -> list[Cell]:
    gains = [table_cell(tag, (best.gains[tag] - 1) * 100, "%", 1) for tag in tags]
    return [table_cell("target (drafter, middle)", best.world.name), *gains]


def _panels(found: Sequence[Best], gains: Rows, tags: Sequence[str]) -> tuple[Panel, ...]:
    worlds = [best.world.name for best in found]
    bars = {
        "best two levels": [best.two[1] for best in found],
        "best three levels": [best.three[1] for best in found],
        ADAPTIVE: [best.adaptive for best in found],
    }
    by_tag = zip(*(gains.numbers(tag) for tag in tags), strict=True)
    return (
        by_category("all text", "speed-up over the target alone", worlds, bars, x_label="target (drafter, middle)"),
        by_category(
            "what a middle level adds",
            "three levels over two, %",
            tags,
            dict(zip(worlds, by_tag, strict=True)),
            kind="scatter",
        ),
    )


def _answer(found: Sequence[Best], tags: Sequence[str]) -> str:
    gains = {best.world.name: best.three[1] / best.two[1] - 1 for best in found}
    told = ", ".join(f"{name} {gain:+.0%}" for name, gain in gains.items())
    pays = [name for name, gain in gains.items() if round(gain * 100) > 0]  # as printed: a gain of 0% is none
    steep = found[-1]
    high = max(tags, key=lambda tag: steep.gains[tag])
    shares = [best.adaptive / max(best.two[1], best.three[1]) for best in found]
    return (
        f"A middle level pays in {len(pays)} of {len(found)} worlds; the best three levels against the best two: "
        f"{told}. "
        f"At 1 : 10 : 100 the best chain is {max(steep.two, steep.three, key=lambda one: one[1])[0]}, and with the "
        f"best chains of each kind of text the gain is largest in {high} ({steep.gains[high] - 1:+.0%}). "
        f"{ADAPTIVE} reaches {min(shares):.0%} to {max(shares):.0%} of the best static chain's speed."
    )
