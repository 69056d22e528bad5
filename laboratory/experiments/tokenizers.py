"""Drafters with another tokenizer: what of their drafts survives, and what carrying them over costs.

The same small network is trained on the same texts, once in the target's tokens and once each in tokens of its own, so
that what differs is the vocabulary. All of them draft for the pool's target.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from ...counted import counted
from ...reports.summary import Summary, summarise_run
from ..finding import Cell, Column, Finding, Panel, Rows, Series, Setting, x_of
from ..live_runs import pool_of, prompts_of, ran_in_turns
from ..replays import TARGET_ALONE
from ..trained_drafters import DrafterTraining

if TYPE_CHECKING:
    from ...runtime.decode import Output
    from ...runtime.pools.pool import ModelPool
    from ...runtime.prompts import Prompt

SAME = "same"
VOCABULARIES = {"coarse": 2400, "fine": 600}  # foreign ones, by the drafter's name
WINDOWS = (3, 6)
PROMPTS, NEW_TOKENS = 12, 48
RUNS = 4  # interleaved; the quickest counts, as whatever else the machine does only adds seconds
PERFECT_TOKENS = 6  # of the other vocabulary in a draft that writes the target's own text


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One drafter at one window.

    Attributes:
        drafter, window: of the chain; window 0 is the target alone.
        summary: of its last run; counts are the same in all.
        token_s: seconds per output token in its quickest run.
    """

    drafter: str
    window: int
    summary: Summary
    token_s: float

    @property
    def acceptance(self) -> float:
        """Accepted of the target tokens that counted as drafted, 0 to 1."""
        return self.summary.draft_acceptance_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What the alignment does to perfect drafts of one vocabulary, in the answers of the target.

    Attributes:
        drafts: number of them.
        counted: target tokens that counted as drafted, per draft.
        spelled_share: of these, spelled as the target spells the text; 0 to 1.
        to_other_s: median seconds of reading a context in the other's tokens.
        drafted_s: median seconds of spelling a draft in the target's tokens.
    """

    drafts: int
    counted: float
    spelled_share: float
    to_other_s: float
    drafted_s: float

    @property
    def round_s(self) -> float:
        """Seconds of alignment in a round."""
        return self.to_other_s + self.drafted_s


def run(setting: Setting) -> Finding:
    """Train the drafters, decode under each, and carry perfect drafts over."""
    pool = pool_of(setting)
    prompts = prompts_of(setting, PROMPTS)
    training = DrafterTraining(pool, seed=setting.seed)
    same = training.same_vocabulary(SAME)
    foreign = tuple(training.foreign(name, size) for name, size in VOCABULARIES.items())
    pool = replace(pool, members=(*foreign, same, pool.target))
    outputs, (plain, *speeds) = _runs(pool, prompts)
    plain_s = plain.token_s
    carried = {name: _carried(pool, name, prompts, outputs) for name in VOCABULARIES}
    sizes = {SAME: pool.tokenizer.get_vocab_size(), **VOCABULARIES}
    return Finding(
        question="What does a drafter lose, in acceptance and in seconds, if its tokenizer is not the target's?",
        tables=(_speed_table(speeds, sizes, plain_s, len(prompts)), _carried_table(carried, sizes, speeds)),
        panels=_panels(speeds, carried, plain_s),
        answer=_answer(speeds, carried, sizes, plain_s),
    )


def _runs(pool: "ModelPool", prompts: "Sequence[Prompt]") -> "tuple[Sequence[Output], list[Speed]]":
    """The target's answers; speeds of the target alone and of every drafter at every window, in interleaved runs."""
    chains = {
        f"{name}:{window}/{pool.target.name}": (name, window) for name in (SAME, *VOCABULARIES) for window in WINDOWS
    }
    turns = ran_in_turns(pool, [TARGET_ALONE, *chains], prompts, runs=RUNS, max_new_tokens=NEW_TOKENS)
    speeds = []
    for policy, runs in turns.items():
        name, window = chains.get(policy, (TARGET_ALONE, 0))
        summaries = [summarise_run(log) for _, log in runs]
        token_s = min(1 / summary.output_tokens_per_s for summary in summaries)
        speeds.append(Speed(drafter=name, window=window, summary=summaries[-1], token_s=token_s))
    answers, _ = turns[TARGET_ALONE][0]
    return answers, speeds


def _carried(pool: "ModelPool", name: str, prompts: "Sequence[Prompt]", outputs: "Sequence[Output]") -> Carried:
    """Draft the target's own text in the other's tokens, from every place of every answer.

    Raises:
        ValueError: no answer is long enough for a draft.
    """
    alignment = pool.alignment(name)
    to_other_s, drafted_s, counted, spelled = [], [], 0, 0
    for prompt, output in zip(prompts, outputs, strict=True):
        start = pool.encode(prompt.text)
        trunk = [*start, *output.tokens]
        written = alignment.to_other(trunk)
        for cut in range(len(start), len(trunk) - PERFECT_TOKENS):
            begin_s = time.perf_counter()
            before = alignment.to_other(trunk[:cut])
            read_s = time.perf_counter()
            draft = written[len(before) : len(before) + PERFECT_TOKENS]
            if written[: len(before)] != before or not draft:  # the cut parts a token of the other vocabulary
                continue
            spelling_s = time.perf_counter()
            tokens = alignment.drafted(trunk[:cut], draft)
            drafted_s.append(time.perf_counter() - spelling_s)
            to_other_s.append(read_s - begin_s)
            counted += len(tokens)
            spelled += _num_equal(tokens, trunk[cut:])
    if not drafted_s:
        raise ValueError(f"answers must hold more than {PERFECT_TOKENS} tokens, got none such of {len(outputs)}")
    return Carried(
        drafts=len(drafted_s),
        counted=counted / len(drafted_s),
        spelled_share=spelled / counted if counted else 0.0,
        to_other_s=median(to_other_s),
        drafted_s=median(drafted_s),
    )


def _num_equal(tokens: Sequence[int], text: Sequence[int]) -> int:
    """Tokens of the longest common prefix."""
    for place, (one, other) in enumerate(zip(tokens, text, strict=False)):
        if one != other:
            return place
    return min(len(tokens), len(text))


def _speed_table(speeds: Sequence[Speed], sizes: dict[str, int], plain_s: float, num_prompts: int) -> Rows:
    rows: list[tuple[Cell, ...]] = [(TARGET_ALONE, None, None, 1.0, None, None, plain_s * 1e3, 1.0)]
    for one in speeds:
        judged = one.summary.levels[-1].judged / _num_rounds(one.summary)
        figures = (one.summary.acceptance_length, judged, one.acceptance * 100)
        rows.append((one.drafter, sizes[one.drafter], one.window, *figures, one.token_s * 1e3, plain_s / one.token_s))
    columns = (
        Column(name="drafter"),
        Column(name="vocabulary"),
        Column(name="window"),
        Column(name="acceptance length", digits=2),
        Column(name="target tokens judged a round", digits=2),
        Column(name="acceptance", unit="%", digits=1),
        Column(name="a token", unit="ms", digits=2),
        Column(name="speed-up", unit="x", digits=2),
    )
    asked = counted(num_prompts, "prompt")
    title = f"on the models: {asked}, {NEW_TOKENS} new tokens, the quickest of {RUNS} interleaved runs"
    return Rows(title=title, columns=columns, rows=tuple(rows))


def _carried_table(carried: dict[str, Carried], sizes: dict[str, int], speeds: Sequence[Speed]) -> Rows:
    rows = []
    for name, one in carried.items():
        share = one.round_s / _fastest_round_s(speeds, name) * 100
        micro = (one.to_other_s * 1e6, one.drafted_s * 1e6)
        rows.append((name, sizes[name], one.drafts, one.counted, one.spelled_share * 100, *micro, share))
    columns = (
        Column(name="drafter"),
        Column(name="vocabulary"),
        Column(name="drafts"),
        Column(name="target tokens a draft", digits=2),
        Column(name="spelled as the target spells", unit="%", digits=1),
        Column(name="reading the context", unit="µs", digits=0),
        Column(name="spelling the draft", unit="µs", digits=0),
        Column(name="of a round's seconds", unit="%", digits=1),
    )
    title = f"the alignment alone: perfect drafts of {PERFECT_TOKENS} tokens of the other vocabulary"
    return Rows(title=title, columns=columns, rows=tuple(rows))


def _fastest(speeds: Sequence[Speed], name: str) -> Speed:
    return min((one for one in speeds if one.drafter == name), key=lambda one: one.token_s)


def _fastest_round_s(speeds: Sequence[Speed], name: str) -> float:
    """Seconds of a round at the drafter's better window."""
    one = _fastest(speeds, name)
    return one.token_s * one.summary.output_tokens / _num_rounds(one.summary)


def _num_rounds(summary: Summary) -> int:
    """Verifications by the target after the prefills."""
    return sum(summary.accepted_histogram)


def _panels(speeds: Sequence[Speed], carried: dict[str, Carried], plain_s: float) -> tuple[Panel, ...]:
    names = (SAME, *VOCABULARIES)
    places = x_of(names)
    by_window = {window: [one for one in speeds if one.window == window] for window in WINDOWS}
    lengths = [
        Series(name=f"window {window}", x=places, y=tuple(one.summary.acceptance_length for one in ones))
        for window, ones in by_window.items()
    ]
    gains = [
        Series(name=f"window {window}", x=places, y=tuple(plain_s / one.token_s for one in ones))
        for window, ones in by_window.items()
    ]
    along = x_of(carried)
    parts = [
        Series(name="reading the context", x=along, y=tuple(one.to_other_s * 1e6 for one in carried.values())),
        Series(name="spelling the draft", x=along, y=tuple(one.drafted_s * 1e6 for one in carried.values())),
    ]
    heads = (
        ("acceptance length", "tokens per check by the target", names, lengths),
        ("speed-up, measured", "over the target alone", names, gains),
        ("alignment", "µs a round", tuple(carried), parts),
    )
    return tuple(
        Panel(
            title=title,
            x_label="vocabulary of the drafter",
            y_label=y_label,
            kind="bar",
            categories=categories,
            series=tuple(series),
        )
        for title, y_label, categories, series in heads
    )


def _answer(speeds: Sequence[Speed], carried: dict[str, Carried], sizes: dict[str, int], plain_s: float) -> str:
    same = _fastest(speeds, SAME)
    parts = []
    for name in VOCABULARIES:
        one = _fastest(speeds, name)
        parts.append(
            f"{name} ({sizes[name]:,} tokens) {one.summary.acceptance_length:.2f} tokens a check and "
            f"{plain_s / one.token_s:.2f}x"
        )
    share = {name: one.round_s / _fastest_round_s(speeds, name) for name, one in carried.items()}
    kept = [one.spelled_share for one in carried.values()]
    return (
        f"At its better window the drafter with the target's vocabulary reaches {same.summary.acceptance_length:.2f} "
        f"tokens a check and {plain_s / same.token_s:.2f}x over the target alone; the same network with tokens of its "
        f"own: {', '.join(parts)}. "
        f"Alignment takes {min(share.values()):.1%} to {max(share.values()):.1%} of a round's seconds, and of perfect "
        f"drafts {min(kept):.0%} to {max(kept):.0%} of the tokens are spelled as the target spells them."
    )
