"""The rejection rate: by hand, and against a count token by token over steps of any kind, in any batch."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.results import COMMIT, DRAFT, VERIFY
from paceline.policies import make_policy
from paceline.reports import summarise_run
from paceline.reports.summary import rejection_rate
from paceline.sim.recorded import recorded_pool

from ..sim.tries.small_traces import Anything, replay, with_ngram
from ..strategies import synthetic_traces
from .test_summary import by_hand, by_hand_with_failures

COLUMNS = ("request", "kind", "drafted", "judged", "accepted")


def steps_of(*rows):
    """Columns of steps given as (request, kind, drafted, judged, accepted), none of them part of an Overlap."""
    columns = dict(zip(COLUMNS, np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T, strict=True))
    refused = (columns["accepted"] < columns["judged"]).astype(np.int8)
    return {**columns, "part": np.zeros(len(rows), dtype=np.int64), "refused": refused}


def by_token(steps, among=None):
    """(refusals, drafted tokens looked at), with the tokens that nobody has judged yet kept in a list per request."""
    refusals = looked_at = 0
    pending: dict[int, list[str]] = {}
    rows = zip(*(steps[name].tolist() for name in COLUMNS), strict=True)
    for index, (request, kind, drafted, judged, accepted) in enumerate(rows):
        new = pending.setdefault(request, [])
        if kind == DRAFT:
            new.extend(["new"] * drafted)
        if kind == VERIFY:
            given = (["old"] * judged + new)[-judged:] if judged else []
            new.clear()
            if among is None or among[index]:
                refusals += accepted < judged
                looked_at += given[: accepted + 1].count("new")
    return refusals, looked_at


def test_of_two_levels_by_hand():
    assert rejection_rate(by_hand().steps) == 1 / 5  # of three drafted tokens the third was refused, then both kept
    assert summarise_run(by_hand()).rejection_rate == 1 / 5


@pytest.mark.parametrize(
    ("rows", "rate"),
    [
        pytest.param([], 0.0, id="nothing happened"),
        pytest.param([(0, VERIFY, 0, 0, 0)], 0.0, id="plain decoding"),
        pytest.param([(0, DRAFT, 4, 0, 0), (0, VERIFY, 0, 4, 1)], 1 / 2, id="tokens after a refusal do not count"),
        pytest.param(
            [(0, DRAFT, 2, 0, 0), (0, VERIFY, 0, 2, 1), (0, VERIFY, 0, 2, 1)], 1.0, id="two levels refuse of two tokens"
        ),
        pytest.param(
            [(0, DRAFT, 1, 0, 0), (0, VERIFY, 0, 1, 0), (0, VERIFY, 0, 1, 0)], 2.0, id="an own token is refused too"
        ),
        pytest.param(
            [(0, DRAFT, 2, 0, 0), (0, VERIFY, 0, 2, 2), (0, DRAFT, 1, 0, 0), (0, VERIFY, 0, 4, 4)],
            0.0,
            id="what a level below has judged is not looked at first again",
        ),
        pytest.param(
            [(0, DRAFT, 2, 0, 0), (0, DRAFT, 2, 0, 0), (0, VERIFY, 0, 4, 3)], 1 / 4, id="two drafts and one verdict"
        ),
        pytest.param(
            [(0, DRAFT, 4, 0, 0), (0, COMMIT, 0, 0, 0), (0, VERIFY, 0, 1, 0)], 1.0, id="committed tokens do not count"
        ),
        pytest.param(
            [(0, DRAFT, 2, 0, 0), (1, DRAFT, 3, 0, 0), (0, VERIFY, 0, 2, 0), (1, VERIFY, 0, 3, 3)],
            1 / 4,
            id="two requests in turn",
        ),
    ],
)
def test_what_counts(rows, rate):
    assert rejection_rate(steps_of(*rows)) == rate


@given(trace=synthetic_traces(max_models=3), seed=st.integers(0, 99), batch=st.integers(1, 3))
def test_it_is_the_count_token_by_token(trace, seed, batch):
    trace = with_ngram(trace)
    log, _ = replay(trace, Anything(recorded_pool(trace), seed), batch=batch)
    refusals, looked_at = by_token(log.steps)
    assert rejection_rate(log.steps) == (refusals / looked_at if looked_at else 0.0)
    first = log.steps["request"] == 0
    refusals, looked_at = by_token(log.steps, first)
    assert rejection_rate(log.steps, first) == (refusals / looked_at if looked_at else 0.0)


@settings(max_examples=20)
@given(trace=synthetic_traces(max_models=2), batch=st.integers(1, 3))
def test_a_batch_changes_nothing(trace, batch):
    pool = recorded_pool(trace)
    chain = f"{pool.names[0]}:3/{pool.target}" if len(pool.names) > 1 else "plain"
    alone, together = (replay(trace, make_policy(chain, pool), batch=size)[0] for size in (1, batch))
    assert rejection_rate(alone.steps) == rejection_rate(together.steps)


def test_requests_that_failed_do_not_count_in_a_summary():
    log = by_hand_with_failures()
    assert summarise_run(log).rejection_rate == summarise_run(by_hand()).rejection_rate
    assert Counter(log.requests["failed"].tolist())[""] == 2
