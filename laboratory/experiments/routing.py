"""VIA-SD's three-way routing against plain speculation and the strongest cascade, with the same drafter and block.

VIA-SD (arXiv:2606.12243) lets a slim verifier keep, replace or escalate each drafted token; the strongest rule among
Faster Cascades' (arXiv:2405.19261) is `token`. All are lossy but plain speculation and the lossless variant, so every
figure of speed stands beside what it cost: divergences, and the target's own view of the text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...counted import counted
from ...decoding.ledger import VERIFY
from ...reports.quality import Quality, quality_of
from ...reports.rejection import rejection_rate
from ...runs.log import RunLog
from ...runs.text_quality import with_quality
from ...studies.agreeing.matching_recording import matching_trace
from ...studies.runtime_door import runtime_module
from ...traces.meta import Sampling
from ...traces.tries.recording import TrieRecording
from ..finding import Cell, Column, Finding, Panel, Rows, Series, Setting, x_of
from ..live_runs import pool_of, prompts_of, ran_in_turns
from ..replays import ALL, TARGET_ALONE, drafters_of, recording_of, replayed, scenario_of, speed_of, steps_of, tags_of

if TYPE_CHECKING:
    from ...runtime.pools.pool import ModelPool
    from ...runtime.prompts import Prompt

BLOCK = 5
MEASURED_PROMPTS = 12
RUNS = 3  # interleaved; the quickest counts, as whatever else the machine does only adds seconds
SPECULATION, VIA_SD = "speculation", "via-sd"


class Figures(NamedTuple):
    """What one policy did with the requests of one tag.

    Attributes:
        rejection_rate: see `reports.rejection`.
        calls_per_token: target calls per committed token.
        speed_up: over the target alone.
        quality: of the texts; None where nothing is known.
    """

    rejection_rate: float
    calls_per_token: float
    speed_up: float
    quality: Quality | None


Table = Mapping[tuple[str, str], Figures]  # by policy and tag


def run(setting: Setting) -> Finding:
    """Replay all policies by tag, then run them on the models.

    Raises:
        ValueError: a pool without a drafter and a verifier between it and the target.
        TraceFormatError: the recording is not one of this pool and its prompts.
    """
    trace = recording_of(setting)
    pool = pool_of(setting)
    prompts = prompts_of(setting, min(MEASURED_PROMPTS, len(trace.requests)))
    budget = trace.requests[0].max_new_tokens
    matching_trace(setting.trace, pool, prompts, sampling=Sampling(mode="greedy"), max_new_tokens=budget)
    scenario = scenario_of(setting, trace)
    free = {member.name for member in scenario.tables.pool.members if member.model_free}
    drafter = next(name for name in drafters_of(scenario) if name not in free)
    policies = _policies(drafter, scenario.tables.pool.target)
    logs = {name: replayed(scenario, policy) for name, policy in policies.items()}
    plain = replayed(scenario, TARGET_ALONE)
    tags = (ALL, *tags_of(trace))
    simulated = {(name, tag): _figures(log, plain, tag) for name, log in logs.items() for tag in tags}
    measured = _measured(pool, prompts, policies, max_new_tokens=budget)
    among = f"{counted(len(prompts), 'prompt')}, greedy, the quickest of {RUNS} interleaved runs"
    return Finding(
        question="What does routing between a slim and the full verifier save, what does it cost in text, and where?",
        tables=(
            _overall(
                f"simulated: {counted(len(trace.requests), 'request')}, block {BLOCK}, drafter {drafter}", simulated
            ),
            _overall(f"on the models: {among}", measured),
            _by_tag(simulated, tags),
        ),
        panels=_panels(simulated, measured, tags),
        answer=_answer(simulated, measured, trace),
    )


def _policies(drafter: str, target: str) -> dict[str, str]:
    """By the name that tables show."""
    shape = f"draft={drafter},tokens={BLOCK}"
    return {
        SPECULATION: f"{drafter}:{BLOCK}/{target}",
        VIA_SD: f"via-sd,{shape}",
        "via-sd-lossless": f"via-sd-lossless,{shape}",
        "cascade": f"cascade,rule=token,{shape}",
    }


def _figures(log: RunLog, plain: RunLog, tag: str = ALL) -> Figures:
    steps = log.steps
    here = steps_of(log, tag)
    calls = here & (steps["kind"] == VERIFY) & (steps["level"] == len(log.meta["members"]) - 1)
    return Figures(
        rejection_rate=rejection_rate(steps, here),
        calls_per_token=int(calls.sum()) / int(steps["emitted"][here].sum()),
        speed_up=speed_of(log, tag=tag).tokens_per_s / speed_of(plain, tag=tag).tokens_per_s,
        quality=quality_of(log, tag=None if tag == ALL else tag),
    )


def _measured(
    pool: "ModelPool", prompts: "Sequence[Prompt]", policies: Mapping[str, str], *, max_new_tokens: int
) -> Table:
    """The same policies on the models: their quickest run, and the quality of its texts."""
    chains = {TARGET_ALONE: TARGET_ALONE, **policies}
    turns = ran_in_turns(pool, list(chains.values()), prompts, runs=RUNS, max_new_tokens=max_new_tokens)
    quickest = {
        name: max(turns[policy], key=lambda turn: speed_of(turn[1]).tokens_per_s) for name, policy in chains.items()
    }
    measure = runtime_module("quality")
    alone = measure.Alone(sampling=Sampling(mode="greedy"), max_new_tokens=max_new_tokens)
    figures = {}
    for name in policies:
        outputs, log = quickest[name]
        qualities = measure.text_qualities(pool, prompts, outputs, alone, show_progress=False)
        figures[name, ALL] = _figures(with_quality(log, qualities), quickest[TARGET_ALONE][1])
    return figures


def _overall(title: str, table: Table) -> Rows:
    """One row per policy, over all tags."""
    columns = (
        Column(name="policy"),
        Column(name="rejection rate", unit="%", digits=1),
        Column(name="target calls per token", digits=3),
        Column(name="speed-up", unit="x", digits=2),
        Column(name="divergences per 1,000 tokens", digits=1),
        Column(name="same text", unit="%", digits=1),
        Column(name="log-likelihood per token", unit="nats", digits=3),
        Column(name="of the target's own text", unit="nats", digits=3),
        Column(name="answers right (own)"),
    )
    rows: list[tuple[Cell, ...]] = [
        (name, one.rejection_rate * 100, one.calls_per_token, one.speed_up, *_quality_cells(one.quality))
        for (name, tag), one in table.items()
        if tag == ALL
    ]
    return Rows(title=title, columns=columns, rows=tuple(rows))


def _quality_cells(quality: Quality | None) -> tuple[Cell, ...]:
    if quality is None:
        return (None,) * 5
    agreement = quality.text_agreement
    answers = quality.answers_total
    return (
        quality.divergences_per_1000,
        None if agreement is None else agreement * 100,
        quality.log_prob_per_token,
        quality.own_log_prob_per_token,
        None if answers is None else f"{quality.answers_right} ({quality.answers_own}) of {answers}",
    )


def _by_tag(table: Table, tags: Sequence[str]) -> Rows:
    """Every figure of every policy, a column for each tag."""
    wanted: Mapping[str, Callable[[Figures], float]] = {
        "rejection rate, %": lambda one: one.rejection_rate * 100,
        "target calls per 1,000 tokens": lambda one: one.calls_per_token * 1000,
        "speed-up, x": lambda one: one.speed_up,
        "divergences per 1,000 tokens": _divergences,
    }
    names = dict.fromkeys(name for name, _ in table)
    rows: list[tuple[Cell, ...]] = [
        (name if first else "", figure, *(read(table[name, tag]) for tag in tags))
        for name in names
        for first, (figure, read) in zip((True, *(False,) * len(wanted)), wanted.items(), strict=False)
    ]
    columns = (Column(name="policy"), Column(name="figure"), *(Column(name=tag, digits=2) for tag in tags))
    return Rows(title="simulated, by kind of text", columns=columns, rows=tuple(rows))


def _panels(simulated: Table, measured: Table, tags: Sequence[str]) -> tuple[Panel, ...]:
    names = tuple(dict.fromkeys(name for name, _ in simulated))
    x = x_of(tags)

    def bars(title: str, y_label: str, read: Callable[[Figures], float]) -> Panel:
        series = tuple(Series(name=name, x=x, y=tuple(read(simulated[name, tag]) for tag in tags)) for name in names)
        return Panel(title=title, x_label="", y_label=y_label, kind="bar", categories=tuple(tags), series=series)

    worlds = tuple(
        Series(name=name + suffix, x=(table[name, ALL].speed_up,), y=(_divergences(table[name, ALL]),))
        for table, suffix in ((simulated, ""), (measured, " (measured)"))
        for name in names
    )
    return (
        bars("rejection rate, simulated", "% of drafted tokens", lambda one: one.rejection_rate * 100),
        bars("target calls, simulated", "calls per token", lambda one: one.calls_per_token),
        bars("speed, simulated", "speed-up over the target alone", lambda one: one.speed_up),
        Panel(
            title="what speed costs: simulated and on the models",
            x_label="speed-up over the target alone",
            y_label="divergences per 1,000 tokens",
            kind="scatter",
            series=worlds,
        ),
    )


def _divergences(figures: Figures) -> float:
    quality = figures.quality
    return 0.0 if quality is None or quality.divergences_per_1000 is None else quality.divergences_per_1000


def _answer(simulated: Table, measured: Table, trace: TrieRecording) -> str:
    tags = tags_of(trace)
    faster = [tag for tag in tags if simulated[VIA_SD, tag].speed_up > simulated[SPECULATION, tag].speed_up]
    named = f" ({', '.join(faster)})" if faster else ""
    return (
        f"{_against(simulated, 'In replay')} {_against(measured, 'On the models')} "
        f"By kind of text it is faster in replay than plain speculation on {len(faster)} of {len(tags)}{named}. "
        "The cascade commits "
        f"{_divergences(simulated['cascade', ALL]):.0f} divergences per 1,000 tokens at "
        f"{simulated['cascade', ALL].speed_up:.2f}x; the lossless variant of the routing reaches "
        f"{simulated['via-sd-lossless', ALL].speed_up:.2f}x in replay and "
        f"{measured['via-sd-lossless', ALL].speed_up:.2f}x on the models."
    )


def _against(table: Table, where: str) -> str:
    """VIA-SD beside plain speculation, in a sentence."""
    via, two = table[VIA_SD, ALL], table[SPECULATION, ALL]
    change = ""
    if two.rejection_rate:
        fewer = 1 - via.rejection_rate / two.rejection_rate
        change = f" ({abs(fewer):.0%} {'less' if fewer >= 0 else 'more'})"
    return (
        f"{where} VIA-SD rejects {via.rejection_rate:.1%} of drafted tokens where plain speculation rejects "
        f"{two.rejection_rate:.1%}{change}, calls the target "
        f"{via.calls_per_token:.3f} times a token against {two.calls_per_token:.3f}, runs at {via.speed_up:.2f}x "
        f"against {two.speed_up:.2f}x, and commits {_divergences(via):.0f} divergences per 1,000 tokens."
    )
