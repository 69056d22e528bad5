"""VIA-SD's three-way routing against plain speculation and the strongest cascade, with the same drafter and block.

VIA-SD (arXiv:2606.12243) lets a slim verifier keep, replace or escalate each drafted token; the strongest rule among
Faster Cascades' (arXiv:2405.19261) is `token`. All are lossy except plain speculation and the lossless variant, so
every figure of speed is shown with its cost: divergences, and the target's own view of the text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from paceline.base.errors import counted
from paceline.reports.panels import Panel, Series, by_category
from paceline.reports.quality import Quality, quality_of
from paceline.reports.summary import rejection_rate
from paceline.runs.log import RunLog, with_quality
from paceline.runtime.decode import Alone, text_qualities
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.traces.contexts.recording import TrieRecording

from ..findings import Cell, ExperimentSetting, Finding, table, table_cell
from ..replays import (
    ALL,
    TARGET_ALONE,
    calls_per_token,
    drafters_of,
    recording_of,
    replayed,
    scenario_of,
    speed_of,
    speed_up_of,
    steps_of,
    tags_of,
)
from ..shared import GREEDY, models_of, ran_in_turns

BLOCK = 5
MEASURED_PROMPTS = 12
RUNS = 3  # interleaved; the fastest counts, as other work on the machine only adds seconds
SPECULATION, VIA_SD = "speculation", "via-sd"


class PolicyFigures(NamedTuple):
    """The figures of one policy on the requests of one tag."""

    rejection_rate: float  # see `reports.summary`
    calls_per_token: float  # target calls per committed token
    speed_up: float  # over the target alone
    quality: Quality | None  # of the texts; None if unknown

    @property
    def rejected(self) -> float:
        """Percent of drafted tokens."""
        return self.rejection_rate * 100

    @property
    def divergences(self) -> float:
        """Per 1,000 tokens; 0 if unknown."""
        known = None if self.quality is None else self.quality.divergences_per_1000
        return known or 0.0


ByPolicy = Mapping[tuple[str, str], PolicyFigures]  # by policy and tag


def run(setting: ExperimentSetting) -> Finding:
    """Replay all policies by tag, then run them on the models."""
    trace = recording_of(setting)
    pool, prompts = models_of(setting, trace, MEASURED_PROMPTS)
    scenario = scenario_of(setting, trace)
    drafter = next(name for name in drafters_of(scenario) if not scenario.tables.pool.is_model_free(name))
    policies = _policies(drafter, scenario.tables.pool.target)
    logs = {name: replayed(scenario, policy) for name, policy in policies.items()}
    plain = replayed(scenario, TARGET_ALONE)
    tags = (ALL, *tags_of(trace))
    simulated = {(name, tag): _figures(log, plain, tag) for name, log in logs.items() for tag in tags}
    measured = _measured(pool, prompts, policies, max_new_tokens=trace.requests[0].max_new_tokens)
    replays = f"simulated: {counted(len(trace.requests), 'request')}, block {BLOCK}, drafter {drafter}"
    models = f"on the models: {counted(len(prompts), 'prompt')}, greedy, the quickest of {RUNS} interleaved runs"
    return Finding(
        question="What does routing between a slim and the full verifier save, what does it cost in text, and where?",
        tables=(
            table(replays, [_overall(name, simulated[name, ALL]) for name in policies]),
            table(models, [_overall(name, measured[name, ALL]) for name in policies]),
            table("simulated, by kind of text", [row for name in policies for row in _by_tag(name, simulated, tags)]),
        ),
        panels=_panels(simulated, measured, tags),
        answer=_answer(simulated, measured, trace),
    )


def _policies(drafter: str, target: str) -> dict[str, str]:
    shape = f"draft={drafter},tokens={BLOCK}"
    return {
        SPECULATION: f"{drafter}:{BLOCK}/{target}",
        VIA_SD: f"via-sd,{shape}",
        "via-sd-lossless": f"via-sd-lossless,{shape}",
        "cascade": f"cascade,rule=token,{shape}",
    }


def _figures(log: RunLog, plain: RunLog, tag: str = ALL) -> PolicyFigures:
    return PolicyFigures(
        rejection_rate=rejection_rate(log.steps, steps_of(log, tag)),
        calls_per_token=calls_per_token(log, tag),
        speed_up=speed_up_of(log, plain, tag=tag),
        quality=quality_of(log, tag=None if tag == ALL else tag),
    )


def _measured(
    pool: ModelPool, prompts: Sequence[Prompt], policies: Mapping[str, str], *, max_new_tokens: int
) -> ByPolicy:
    chains = {TARGET_ALONE: TARGET_ALONE, **policies}
    turns = ran_in_turns(pool, list(chains.values()), prompts, runs=RUNS, max_new_tokens=max_new_tokens)
    quickest = {name: max(turns[policy], key=lambda turn: speed_of(turn[1])) for name, policy in chains.items()}
    alone = Alone(sampling=GREEDY, max_new_tokens=max_new_tokens)
    figures = {}
    for name in policies:
        outputs, log = quickest[name]
        qualities = text_qualities(pool, prompts, outputs, alone)
        figures[name, ALL] = _figures(with_quality(log, qualities), quickest[TARGET_ALONE][1])
    return figures


def _overall(name: str, one: PolicyFigures) -> list[Cell]:
    quality = one.quality
    same = None if quality is None or quality.text_agreement is None else quality.text_agreement * 100
    right = None
    if quality is not None and quality.answers_total is not None:
        right = f"{quality.answers_right} ({quality.answers_own}) of {quality.answers_total}"
    return [
        table_cell("policy", name),
        table_cell("rejection rate", one.rejected, "%", 1),
        table_cell("target calls per token", one.calls_per_token, digits=3),
        table_cell("speed-up", one.speed_up, "x", 2),
        table_cell("divergences per 1,000 tokens", None if quality is None else quality.divergences_per_1000, digits=1),
        table_cell("same text", same, "%", 1),
        table_cell("log-likelihood per token", None if quality is None else quality.log_prob_per_token, "nats", 3),
        table_cell("of the target's own text", None if quality is None else quality.own_log_prob_per_token, "nats", 3),
        table_cell("answers right (own)", right),
    ]


def _by_tag(name: str, found: ByPolicy, tags: Sequence[str]) -> Iterator[list[Cell]]:
    figures: dict[str, Callable[[PolicyFigures], float]] = {
        "rejection rate, %": lambda one: one.rejected,
        "target calls per 1,000 tokens": lambda one: one.calls_per_token * 1000,
        "speed-up, x": lambda one: one.speed_up,
        "divergences per 1,000 tokens": lambda one: one.divergences,
    }
    for place, (figure, read) in enumerate(figures.items()):
        cells = [table_cell(tag, read(found[name, tag]), digits=2) for tag in tags]
        yield [table_cell("policy", "" if place else name), table_cell("figure", figure), *cells]


def _panels(simulated: ByPolicy, measured: ByPolicy, tags: Sequence[str]) -> tuple[Panel, ...]:
    names = tuple(dict.fromkeys(name for name, _ in simulated))

    def bars(title: str, y_label: str, read: Callable[[PolicyFigures], float]) -> Panel:
        return by_category(title, y_label, tags, {name: [read(simulated[name, tag]) for tag in tags] for name in names})

    return (
        bars("rejection rate, simulated", "% of drafted tokens", lambda one: one.rejected),
        bars("target calls, simulated", "calls per token", lambda one: one.calls_per_token),
        bars("speed, simulated", "speed-up over the target alone", lambda one: one.speed_up),
        Panel(
            title="what speed costs: simulated and on the models",
            x_label="speed-up over the target alone",
            y_label="divergences per 1,000 tokens",
            kind="scatter",
            series=tuple(
                Series(name=name + suffix, x=(found[name, ALL].speed_up,), y=(found[name, ALL].divergences,))
                for found, suffix in ((simulated, ""), (measured, " (measured)"))
                for name in names
            ),
        ),
    )


def _answer(simulated: ByPolicy, measured: ByPolicy, trace: TrieRecording) -> str:
    tags = tags_of(trace)
    faster = [tag for tag in tags if simulated[VIA_SD, tag].speed_up > simulated[SPECULATION, tag].speed_up]
    named = f" ({', '.join(faster)})" if faster else ""
    return (
        f"{_against(simulated, 'In replay')} {_against(measured, 'On the models')} "
        f"By kind of text it is faster in replay than plain speculation on {len(faster)} of {len(tags)}{named}. "
        "The cascade commits "
        f"{simulated['cascade', ALL].divergences:.0f} divergences per 1,000 tokens at "
        f"{simulated['cascade', ALL].speed_up:.2f}x; the lossless variant of the routing reaches "
        f"{simulated['via-sd-lossless', ALL].speed_up:.2f}x in replay and "
        f"{measured['via-sd-lossless', ALL].speed_up:.2f}x on the models."
    )


def _against(found: ByPolicy, where: str) -> str:
    via, two = found[VIA_SD, ALL], found[SPECULATION, ALL]
    change = ""
    if two.rejection_rate:
        fewer = 1 - via.rejection_rate / two.rejection_rate
        change = f" ({abs(fewer):.0%} {'less' if fewer >= 0 else 'more'})"
    return (
        f"{where} VIA-SD rejects {via.rejection_rate:.1%} of drafted tokens where plain speculation rejects "
        f"{two.rejection_rate:.1%}{change}, calls the target "
        f"{via.calls_per_token:.3f} times a token against {two.calls_per_token:.3f}, runs at {via.speed_up:.2f}x "
        f"against {two.speed_up:.2f}x, and commits {via.divergences:.0f} divergences per 1,000 tokens."
    )
