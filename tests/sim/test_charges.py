"""What operations cost, to the last token, on recordings small enough to do it in the head."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import DRAFT, VERIFY
from paceline.policies import ConfidenceBelow, Draft, Verify
from paceline.sim.recorded import recorded_pool

from ..strategies import synthetic_traces
from .tries.small_traces import (
    THREE,
    Anything,
    Script,
    easy_cost,
    request_of,
    table,
    trace_of,
    with_ngram,
)
from .tries.small_traces import (
    replay_bare as replay,
)

OP = ("kind", "level", "num_rows", "num_forwards", "new_tokens")
STEP = ("kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted")
EOS = 63

# Written by draft, mid and target. The trunk is 10, 11, ... 17.
VIEWS = {
    (): (10, 10, 10),
    (10,): (11, 11, 11),
    (10, 11): (20, 12, 12),
    (10, 11, 20): (21, 22, 23),
    (10, 11, 12): (13, 13, 13),
    (10, 11, 12, 13): (30, 31, 14),
    (10, 11, 12, 13, 14): (15, 15, 15),
    (10, 11, 12, 13, 14, 15): (16, 40, 16),
    (10, 11, 12, 13, 14, 15, 16): (17, 17, 17),
    (10, 11, 12, 13, 14, 15, 16, 17): (1, 1, 1),
}
STEPS = [
    Draft("draft", 3),  # 10 11 20: reads the 3 tokens of the prompt, then its own first two
    Verify("mid"),  # keeps 10 11, writes 12: reads prompt and draft
    Draft("draft", 1),  # 13: still holds prompt, 10, 11; reads 12
    Verify("target"),  # keeps all four, writes 14: reads 7 tokens
    Draft("mid", 2),  # 15 40: holds prompt, 10, 11; sat out 12 13 14
    Verify("target"),  # keeps 15, writes 16: reads 14 (its own), 15 and 40
    Verify("target"),  # 17: reads 16
]


def three_models():
    return trace_of(request_of(VIEWS), models=THREE)


def test_every_token_that_is_fed():
    trace = three_models()
    log, outputs = replay(trace, Script(recorded_pool(trace), STEPS), strict=True)
    assert outputs == {"r0": [10, 11, 12, 13, 14, 15, 16, 17]}
    assert table(log, "ops", *OP) == [
        (DRAFT, 0, 1, 3, 3 + 2),
        (VERIFY, 1, 1, 1, 3 + 3),
        (DRAFT, 0, 1, 1, 1),
        (VERIFY, 2, 1, 1, 3 + 4),
        (DRAFT, 1, 1, 2, 3 + 1),
        (VERIFY, 2, 1, 1, 1 + 2),
        (VERIFY, 2, 1, 1, 1),
    ]
    assert table(log, "steps", *STEP) == [
        (DRAFT, 0, 3, 3, 0, 0, 0, 0),
        (VERIFY, 1, 0, 0, 3, 2, 1, 0),
        (DRAFT, 0, 1, 1, 0, 0, 0, 0),
        (VERIFY, 2, 0, 0, 4, 4, 1, 5),
        (DRAFT, 1, 2, 2, 0, 0, 0, 0),
        (VERIFY, 2, 0, 0, 2, 1, 1, 2),
        (VERIFY, 2, 0, 0, 0, 0, 1, 1),
    ]


def test_every_second():
    """Durations by hand: base of the level + new / 16 + held / 1024, once per forward."""
    trace = three_models()
    log, _ = replay(trace, Script(recorded_pool(trace), STEPS), decide_s=1 / 8)
    durations = [
        (1 + 3 / 16 + 0) + 2 * (1 + 1 / 16 + 3 / 1024),
        2 + 6 / 16,
        1 + 1 / 16 + 5 / 1024,
        3 + 7 / 16,
        (2 + 3 / 16 + 5 / 1024) + (2 + 1 / 16 + 8 / 1024),
        3 + 3 / 16 + 7 / 1024,
        3 + 1 / 16 + 9 / 1024,
    ]
    assert log.ops["duration_s"].tolist() == durations
    ends = np.cumsum(np.array(durations) + 1 / 8)
    assert log.ops["start_s"].tolist() == (ends - durations).tolist()
    assert log.steps["end_s"].tolist() == ends.tolist()
    assert log.requests["first_token_at_s"].tolist() == [ends[3]]
    assert log.requests["finished_at_s"].tolist() == [ends[-1]]


def test_a_lookup_costs_seconds_and_no_forward():
    views = {(): (1, 2), (2,): (1, 3), (2, 3): (1, 9), (2, 3, 9): (1, 1)}
    trace = trace_of(request_of(views, prompt=(1, 2, 3, 1), budget=3), ngram=True)
    pool = recorded_pool(trace)
    log, outputs = replay(trace, Script(pool, [Draft("ngram", 2), Verify("target")]), strict=True)
    assert outputs == {"r0": [2, 3, 9]}
    assert table(log, "ops", *OP, "duration_s") == [
        (DRAFT, 0, 1, 0, 0, 1 / 64),
        (VERIFY, 2, 1, 1, 6, 2 + 6 / 16),
    ]
    assert log.steps["accepted"].tolist() == [0, 2]


def ends_after(length, request_id, prompt):
    """A request whose draft model writes the end of the text as token `length`; the target never does."""
    written = [*range(20, 19 + length), EOS]
    views = {tuple(written[:index]): (written[index], 10) for index in range(length)}
    return request_of(views, request_id=request_id, prompt=prompt)


def test_rows_that_end_earlier():
    """Three rows draft 2, 2 and 4 tokens: a forward each while they run, the first one over the prompts."""
    trace = trace_of(
        ends_after(2, "r0", (1, 2, 3)), ends_after(4, "r1", (1, 2, 3, 4, 5)), ends_after(2, "r2", (1,)), eos=EOS
    )
    pool, cost = recorded_pool(trace), easy_cost(trace)
    log, _ = replay(trace, Script(pool, [Draft("draft", 6), Verify("target")]), cost=cost, batch=3)
    assert log.steps["drafted"][:3].tolist() == [2, 4, 2]
    assert cost.asked[:4] == [
        ("draft", 3, 9, 0),  # 3 + 5 + 1 tokens of prompts
        ("draft", 3, 3, 9),
        ("draft", 1, 1, 6),  # the row that still runs holds 6, then 7 tokens
        ("target", 3, 9 + 8, 0),
    ]
    assert table(log, "ops", *OP)[:2] == [(DRAFT, 0, 3, 1 + 1 + 2, 9 + 3 + 2), (VERIFY, 1, 3, 1, 17)]
    first, second, last = 1 + 9 / 16, 1 + 3 / 16 + 9 / 1024, 1 + 1 / 16 + 6 / 1024
    assert log.ops["duration_s"][0] == first + second + 2 * last


def test_a_row_that_stops_at_its_own_rule():
    """Rows of one operation may carry different steps: a stop rule here, another window there."""
    views = {tuple(20 + i for i in range(n)): (20 + n, 10) for n in range(6)}
    trace = trace_of(request_of(views), request_of(views, request_id="r1"))
    steps = {"r0": [Draft("draft", 5, ConfidenceBelow(0.7))], "r1": [Draft("draft", 3)]}
    log, _ = replay(trace, Script(recorded_pool(trace), steps), batch=2)
    assert log.steps["drafted"][:2].tolist() == [1, 3]  # a probability of exp(-0.5) is below 0.7
    assert table(log, "ops", *OP)[0] == (DRAFT, 0, 2, 3, 6 + 2)


@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_ragged_drafts_feed_every_token_once(lengths):
    trace = trace_of(*(ends_after(length, f"r{row}", (1, 2)) for row, length in enumerate(lengths)), eos=EOS)
    cost = easy_cost(trace)
    log, _ = replay(trace, Script(recorded_pool(trace), [Draft("draft", 8)]), cost=cost, batch=len(lengths))
    assert log.steps["drafted"][: len(lengths)].tolist() == lengths
    fed = 2 * len(lengths) + sum(lengths) - len(lengths)
    assert table(log, "ops", *OP)[0] == (DRAFT, 0, len(lengths), max(lengths), fed)
    rows = [rows for model, rows, _, _ in cost.asked if model == "draft"]
    assert rows == sorted(rows, reverse=True)


@pytest.mark.parametrize("length", range(1, 9))
def test_the_middle_of_a_draft_stands_for_it(length):
    """The tokens held grow by one a forward; their mean is charged, rounded down to a whole token."""
    trace = trace_of(ends_after(length, "r0", (1, 2, 3)), eos=EOS)
    log, _ = replay(trace, Script(recorded_pool(trace), [Draft("draft", length)]))
    exact = 1 + 3 / 16 + sum(1 + 1 / 16 + held / 1024 for held in range(3, 3 + length - 1))
    assert exact - (length - 1) * 0.5 / 1024 <= log.ops["duration_s"][0] <= exact


def test_a_verifier_reads_again_what_it_judges():
    """The middle model wrote after the small one's token, so its cache holds that token but no verdict on it."""
    trace = three_models()
    steps = [Draft("draft", 1), Draft("mid", 1), Verify("mid")]
    log, _ = replay(trace, Script(recorded_pool(trace), steps), strict=True)
    assert log.ops["new_tokens"][:3].tolist() == [3, 4, 3]
    assert log.steps["judged"][2] == 2


class Bookkeeper:
    """What every member's cache holds, followed from the steps alone."""

    def __init__(self, num_levels, num_prompt):
        self.held = [0] * num_levels
        self.context = num_prompt

    def drafted(self, level, count):
        """Tokens fed for a draft of `count`."""
        fed = self.context - self.held[level] + count - 1
        self.context += count
        self.held[level] = self.context - 1
        return fed

    def judged(self, level, judged, accepted, own):
        """Tokens fed for a verification: it needs the position before each token it judges once more."""
        fed = self.context - min(self.held[level], self.context - judged - 1)
        kept = self.context - judged + accepted
        self.held = [min(held, kept) for held in self.held]
        self.held[level] = kept
        self.context = kept + own
        return fed


@given(trace=synthetic_traces(), seed=st.integers(0, 99), ngram=st.booleans())
def test_whoever_sat_out_catches_up(trace, seed, ngram):
    trace = with_ngram(trace) if ngram else trace
    pool = recorded_pool(trace)
    log, _ = replay(trace, Anything(pool, seed))
    books = {index: Bookkeeper(len(pool.names), n) for index, n in enumerate(log.requests["prompt_tokens"].tolist())}
    names = ("op", "request", "kind", "level", "drafted", "judged", "accepted", "own")
    for op, request, kind, level, drafted, judged, accepted, own in table(log, "steps", *names):
        if kind == VERIFY:
            fed = books[request].judged(level, judged, accepted, own)
        elif pool.members[level].model_free:
            books[request].context += drafted
            fed = 0
        else:
            fed = books[request].drafted(level, drafted)
        assert log.ops["new_tokens"][op] == fed


@given(
    trace=synthetic_traces(), seed=st.integers(0, 99), batch=st.integers(1, 4), decide_s=st.sampled_from([0.0, 0.25])
)
def test_seconds_are_conserved(trace, seed, batch, decide_s):
    """One device: operations follow one another, and they and the decisions are all the time there is."""
    policy = Anything(recorded_pool(trace), seed)
    log, _ = replay(trace, policy, batch=batch, decide_s=decide_s)
    start, duration = log.ops["start_s"], log.ops["duration_s"]
    ends = start + duration
    assert start[0] == decide_s * min(batch, len(trace.requests))
    assert (start[1:] >= ends[:-1]).all()
    makespan = log.requests["finished_at_s"].max()
    assert makespan == ends[-1] == log.steps["end_s"][-1]
    assert makespan == pytest.approx(duration.sum() + decide_s * len(log.steps["op"]))
    assert (duration > 0).all()
