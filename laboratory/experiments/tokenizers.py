"""Drafters with another tokenizer: what of their drafts survives, and what carrying them over costs.

The same small network is trained on the same texts, once in the target's tokens and once each in tokens of its own, so
that only the vocabulary differs. All of them draft for the pool's target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.base.errors import counted
from paceline.reports.panels import Panel, by_category
from paceline.reports.summary import Summary, summarise_run
from paceline.runtime.decode import Output
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt

from ..findings import Cell, ExperimentSetting, Finding, table, table_cell
from ..replays import TARGET_ALONE, chain
from ..shared import DrafterTraining, Tally, add_drafts, pool_of, prompts_of, ran_in_turns

SAME = "same"
VOCABULARIES = {"coarse": 2400, "fine": 600}  # of other tokenizers, by the drafter's name
WINDOWS = (3, 6)
PROMPTS, NEW_TOKENS = 12, 48
RUNS = 4  # interleaved; the fastest counts, as other work on the machine only adds seconds
PERFECT_TOKENS = 6  # of the other vocabulary in a draft that writes the target's own text


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSpeed:
    """One drafter at one window."""

    # of the chain; window 0 is the target alone
    drafter: str
    window: int
    summary: Summary  # of its last run; counts are the same in all
    token_s: float  # seconds per output token in its fastest run

    @property
    def acceptance(self) -> float:
        """Accepted of the target tokens that counted as drafted, 0 to 1."""
        rate = self.summary.draft_acceptance_rate
        assert rate is not None  # None for token trees only
        return rate

    @property
    def judged_a_round(self) -> float:
        """Mean tokens judged per verification of the target."""
        return self.summary.levels[-1].judged / _num_rounds(self.summary)


def run(setting: ExperimentSetting) -> Finding:
    """Train the drafters, decode under each, and convert perfect drafts."""
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
    rounds_s = {name: _fastest_round_s(speeds, name) for name in carried}
    asked = counted(len(prompts), "prompt")
    return Finding(
        question="What does a drafter lose, in acceptance and in seconds, if its tokenizer is not the target's?",
        tables=(
            table(
                f"on the models: {asked}, {NEW_TOKENS} new tokens, the quickest of {RUNS} interleaved runs",
                [_speed_row(one, sizes, plain_s) for one in (plain, *speeds)],
            ),
            table(
                f"the alignment alone: perfect drafts of {PERFECT_TOKENS} tokens of the other vocabulary",
                [_carried_row(name, one, sizes[name], rounds_s[name]) for name, one in carried.items()],
            ),
        ),
        panels=_panels(speeds, carried, plain_s),
        answer=_answer(speeds, carried, sizes, plain_s),
    )


def _runs(pool: ModelPool, prompts: Sequence[Prompt]) -> tuple[Sequence[Output], list[DrafterSpeed]]:
    """The target's answers; speeds of the target alone and of every drafter at every window, in interleaved runs."""
    chains = {
        chain((name, pool.target.name), (window,)): (name, window)
        for name in (SAME, *VOCABULARIES)
        for window in WINDOWS
    }
    turns = ran_in_turns(pool, [TARGET_ALONE, *chains], prompts, runs=RUNS, max_new_tokens=NEW_TOKENS)
    speeds = []
    for policy, runs in turns.items():
        name, window = chains.get(policy, (TARGET_ALONE, 0))
        summaries = [summarise_run(log) for _, log in runs]
        token_s = min(1 / summary.output_tokens_per_s for summary in summaries)
        speeds.append(DrafterSpeed(drafter=name, window=window, summary=summaries[-1], token_s=token_s))
    answers, _ = turns[TARGET_ALONE][0]
    return answers, speeds


def _carried(pool: ModelPool, name: str, prompts: Sequence[Prompt], outputs: Sequence[Output]) -> Tally:
    """Draft the target's own text in the other's tokens, from every place of every answer."""
    tally = Tally()
    for prompt, output in zip(prompts, outputs, strict=True):
        start = pool.encode(prompt.text)
        text = [*start, *output.tokens]
        add_drafts(tally, pool.alignment(name), text, range(len(start), len(text) - PERFECT_TOKENS), PERFECT_TOKENS)
    if not tally.counted:
        raise ValueError(f"answers must hold more than {PERFECT_TOKENS} tokens, got none such of {len(outputs)}")
    return tally


def _speed_row(one: DrafterSpeed, sizes: dict[str, int], plain_s: float) -> list[Cell]:
    """The row of a drafter; the target alone has neither a vocabulary of its own nor drafts."""
    drafts = one.window > 0
    return [
        table_cell("drafter", one.drafter),
        table_cell("vocabulary", sizes.get(one.drafter)),
        table_cell("window", one.window if drafts else None),
        table_cell("acceptance length", one.summary.acceptance_length if drafts else 1.0, digits=2),
        table_cell("target tokens judged a round", one.judged_a_round if drafts else None, digits=2),
        table_cell("acceptance", one.acceptance * 100 if drafts else None, "%", 1),
        table_cell("a token", one.token_s * 1e3, "ms", 2),
        table_cell("speed-up", plain_s / one.token_s, "x", 2),
    ]


def _carried_row(name: str, one: Tally, size: int, round_s: float) -> list[Cell]:
    reading_s, spelling_s = one.typical_s
    return [
        table_cell("drafter", name),
        table_cell("vocabulary", size),
        table_cell("drafts", len(one.counted)),
        table_cell("target tokens a draft", one.counted_a_draft, digits=2),
        table_cell("spelled as the target spells", one.spelled_share * 100, "%", 1),
        table_cell("reading the context", reading_s * 1e6, "µs", 0),
        table_cell("spelling the draft", spelling_s * 1e6, "µs", 0),
        table_cell("of a round's seconds", (reading_s + spelling_s) / round_s * 100, "%", 1),
    ]


def _fastest(speeds: Sequence[DrafterSpeed], name: str) -> DrafterSpeed:
    return min((one for one in speeds if one.drafter == name), key=lambda one: one.token_s)


def _fastest_round_s(speeds: Sequence[DrafterSpeed], name: str) -> float:
    one = _fastest(speeds, name)
    return one.token_s * one.summary.output_tokens / _num_rounds(one.summary)


def _num_rounds(summary: Summary) -> int:
    return sum(summary.accepted_histogram)


def _panels(speeds: Sequence[DrafterSpeed], carried: dict[str, Tally], plain_s: float) -> tuple[Panel, ...]:
    names, x_label = (SAME, *VOCABULARIES), "vocabulary of the drafter"
    by_window = {f"window {window}": [one for one in speeds if one.window == window] for window in WINDOWS}
    lengths = {name: [one.summary.acceptance_length for one in ones] for name, ones in by_window.items()}
    gains = {name: [plain_s / one.token_s for one in ones] for name, ones in by_window.items()}
    parts = {
        "reading the context": [one.typical_s[0] * 1e6 for one in carried.values()],
        "spelling the draft": [one.typical_s[1] * 1e6 for one in carried.values()],
    }
    return (
        by_category("acceptance length", "tokens per check by the target", names, lengths, x_label=x_label),
        by_category("speed-up, measured", "over the target alone", names, gains, x_label=x_label),
        by_category("alignment", "µs a round", list(carried), parts, x_label=x_label),
    )


def _answer(speeds: Sequence[DrafterSpeed], carried: dict[str, Tally], sizes: dict[str, int], plain_s: float) -> str:
    same = _fastest(speeds, SAME)
    parts = []
    for name in VOCABULARIES:
        one = _fastest(speeds, name)
        parts.append(
            f"{name} ({sizes[name]:,} tokens) {one.summary.acceptance_length:.2f} tokens a check and "
            f"{plain_s / one.token_s:.2f}x"
        )
    share = {name: sum(one.typical_s) / _fastest_round_s(speeds, name) for name, one in carried.items()}
    kept = [one.spelled_share for one in carried.values()]
    return (
        f"At its better window the drafter with the target's vocabulary reaches {same.summary.acceptance_length:.2f} "
        f"tokens a check and {plain_s / same.token_s:.2f}x over the target alone; the same network with tokens of its "
        f"own: {', '.join(parts)}. "
        f"Alignment takes {min(share.values()):.1%} to {max(share.values()):.1%} of a round's seconds, and of perfect "
        f"drafts {min(kept):.0%} to {max(kept):.0%} of the tokens are spelled as the target spells them."
    )
