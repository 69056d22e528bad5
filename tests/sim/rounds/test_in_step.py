"""Runs in step are those of the loop, to the bit, whatever is recorded and however requests begin."""

from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.seen import Start
from paceline.policies import make_policy
from paceline.sim.cost.base import CostModel, DraftTerms
from paceline.sim.in_step import AskedInStep, RunSetting
from paceline.sim.rounds import RoundsTables
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.meta import DraftBlock
from paceline.traces.profile import DecideSeconds
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import DrafterInfo, RoundsMeta, StatedAcceptance

from ...unit_cost import UnitCost
from .small_rounds import NAMES, one_request, recording_of, recordings, rounds_of


def looped(tables, policy, cost=None, prefill_before=(False,) * 3, **setting):
    """Why it goes through the loop."""
    asked = AskedInStep(
        policy=make_policy(policy, tables.pool),
        name=policy,
        setting=RunSetting(cost=cost or UnitCost(), batch=2, **setting),
        prefill_before=prefill_before,
        decide_s=DecideSeconds.of_step(0.0),
    )
    return tables.in_step.why_looped(asked)


class Uneven(CostModel):
    """Each forward takes other seconds, which no order of additions leaves alone."""

    name = "uneven"

    def __init__(self, terms=None):
        self.asked, self._terms = [], terms

    def __eq__(self, other):  # so that it has no hash
        return self is other

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        self.asked.append((model, num_rows, new_tokens, context_tokens))
        return 0.1 + len(model) / 3 + num_rows / 7 + new_tokens / 11 + context_tokens / 13

    def draft_terms(self, model):
        return self._terms if model in NAMES else None


def same(ours, theirs):
    assert ours.meta == theirs.meta
    for part in ("ops", "steps", "requests"):
        for name, column in getattr(ours, part).items():
            other = getattr(theirs, part)[name]
            assert column.dtype == other.dtype, name
            assert np.array_equal(column, other, equal_nan=column.dtype.kind == "f"), name


def check(tables, policy, *, terms=None, **scenario):
    """The same log and texts, and the same forwards asked for, with the loop and without."""
    found = []
    for stepwise in (False, True):
        cost, outputs = Uneven(terms), {}
        asked = Scenario(tables=tables, cost=cost, **scenario)
        log = simulate(asked, make_policy(policy, tables.pool), policy, outputs=outputs, stepwise=stepwise)
        found.append((log, outputs, set(cost.asked)))
    (ours, texts, asked), (theirs, other_texts, other_asked) = found
    same(ours, theirs)
    assert texts == other_texts
    assert asked == other_asked


@given(
    recordings(stopping=True) | recordings(),
    st.sampled_from(["plain", *(f"{name}:{window}/target" for name in NAMES for window in (1, 2, 5, 9))]),
    st.integers(1, 5),
    st.integers(0, 3),
    st.sampled_from([None, Start.prefill, Start.draft]),
    st.sampled_from([None, 0.3]),
)
def test_the_log_is_that_of_the_loop(recording, policy, batch, seed, start, decide_s):
    tables = RoundsTables(recording)
    check(tables, policy, batch=batch, seed=seed, start=start, decide_s=decide_s)
    # What was played is played on, at another batch, seed and window.
    check(tables, policy, batch=batch + 1, seed=seed, start=start, decide_s=decide_s)
    check(tables, "tokens:3/target", batch=batch, seed=seed + 1, start=start, decide_s=decide_s)


@given(st.integers(1, 12), st.integers(0, 6), st.integers(1, 5), st.integers(1, 3))
def test_copies_are_those_of_the_loop(length, more, tokens, batch):
    """A drafter's answer may be longer; of what stands there nothing is known."""
    text = tuple(range(1, 7)) * 3
    lengths = {"": length, "feature": length + more}
    requests = [
        one_request(lengths, {}, request_id=name, prompt=text[:6], prompt_tokens=6, output=text[:length])
        for name in ("r0", "r1")
    ]
    tables, policy = RoundsTables(recording_of(*requests)), f"ngram,tokens={tokens}"
    assert not looped(tables, policy)
    check(tables, policy, batch=batch)


# By the round, with its forwards or with seconds a token in their place; and the whole draft in one forward.
FED = ("text", "block", "last")
EACH_S = [(None, None), (0.0, None), (0.3, None), *((None, DraftBlock(tokens=9, fed=fed)) for fed in FED)]
TERMS = [DraftTerms(0.7, each_s, block, row_s) for each_s, block in EACH_S for row_s in (0.0, 0.11)]


@given(
    recordings(stopping=True) | recordings(),
    st.sampled_from(TERMS),
    st.sampled_from(NAMES),
    st.sampled_from([1, 2, 5, 9]),
    st.integers(1, 5),
    st.sampled_from([None, Start.prefill, Start.draft]),
)
def test_drafts_that_are_charged_as_a_whole_give_the_log_of_the_loop(recording, terms, name, window, batch, start):
    tables, policy = RoundsTables(recording), f"{name}:{window}/target"
    assert not looped(tables, policy, Uneven(terms))
    check(tables, policy, terms=terms, batch=batch, start=start)


def stated(drafting):
    """Tables of nine requests of which nothing is known but the rates of a drafter."""
    rates = StatedAcceptance(hazards=(0.8, 0.7, 0.6, 0.5), drafting=drafting)
    info = DrafterInfo(name="stated", by_start=True, window=4, stated=rates)
    lengths = [5 + 7 * index % 23 for index in range(9)]
    requests = tuple(
        one_request({"": length, "stated": length}, {}, request_id=f"r{index}") for index, length in enumerate(lengths)
    )
    meta = RoundsMeta(name="by hand", source="vllm-metrics", form="rates", drafters=(info,))
    return RoundsTables(RoundsRecording(meta=meta, requests=requests))


@given(st.sampled_from([1.0, 0.6]), st.integers(1, 12), st.integers(1, 6), st.integers(0, 5))
def test_rounds_that_are_all_drawn(drafting, batch, window, seed):
    check(stated(drafting), f"stated:{window}/target", batch=batch, seed=seed)


def test_policies_that_are_not_in_step_go_through_the_loop():
    tables = RoundsTables(recording_of(one_request({"": 8}, dict.fromkeys(NAMES, rounds_of((0, 1, 4))))))
    why = partial(looped, tables)

    assert not why("feature:2/target")
    assert not why("plain")
    assert why("adaptive,draft=feature")
    assert not why("plain", strict=True)
    assert why("feature:2/target", prefill_before=(True, False, False))
    for name in ("knows_rounds", "knows_operations"):
        cost = UnitCost()
        setattr(cost, name, True)
        assert "knows" in why("feature:2/target", cost=cost)
