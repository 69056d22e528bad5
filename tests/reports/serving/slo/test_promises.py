"""Promises by class: those of all are those of one class for each, classes add up to the whole, and a run by hand."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.reports.serving import Promises, ServiceLevels, metrics_of

from ....runs.making import played
from ..worked_example import worked_log

NAMES = ("", "chat", "batch")
levels = st.builds(
    lambda ttft, e2e: ServiceLevels(ttft=ttft, e2e=e2e),
    st.none() | st.integers(1, 10**6).map(lambda ps: ps / 1e12),
    st.none() | st.integers(1, 10**6).map(lambda ps: ps / 1e12),
)
promises = st.builds(
    lambda others, classes: Promises(others=others, classes=classes),
    levels,
    st.dictionaries(st.sampled_from(NAMES[1:]), levels),
)


def of_classes(log, names):
    """The log with these classes of its requests."""
    column = np.empty(len(names), object)
    column[:] = names
    return replace(log, requests={**log.requests, "slo": column})


@st.composite
def classed(draw):
    log = draw(played()).log
    return of_classes(log, [draw(st.sampled_from(NAMES)) for _ in log.requests["slo"]])


@given(log=classed(), promised=promises)
def test_classes_add_up_to_the_whole(log, promised):
    found = metrics_of(log, promised)
    assert [one.name for one in found.classes] in ([], sorted({*log.requests["slo"].tolist()}))
    if not found.classes:
        assert not any(log.requests["slo"].tolist())
        return
    for count in ("requests", "finished", "rejected", "unfinished", "output_tokens"):
        assert sum(getattr(one, count) for one in found.classes) == getattr(found, count)
    kept = [one for one in found.classes if one.slo_met is not None]
    assert (found.slo_met is None) == (not promised.any)
    if found.slo_met is not None:
        assert sum(one.slo_met for one in kept) == found.slo_met
        asked = sum(one.requests for one in kept)
        assert found.slo_share == (found.slo_met / asked if asked else None)
    for one in found.classes:
        assert (one.slo_met is None) == (not promised.of(one.name).promised)


@given(log=classed(), same=levels)
def test_the_same_promise_to_every_class_is_one_to_all(log, same):
    each = metrics_of(log, Promises(others=same, classes=dict.fromkeys(NAMES[1:], same)))
    assert asdict(each) == asdict(metrics_of(log, Promises(others=same)))


@given(run=played(), name=st.sampled_from(NAMES[1:]), same=levels)
def test_a_class_of_all_requests_has_the_figures_of_the_run(run, name, same):
    log = of_classes(run.log, [name] * len(run.log.requests["slo"]))
    found = metrics_of(log, Promises(classes={name: same}))
    for one in found.classes:
        figures = asdict(one)
        assert figures.pop("name") == name
        assert figures == {figure: asdict(found)[figure] for figure in figures}


def test_a_run_by_hand():
    """docs/serving-metrics.md: a and c are chat, b is batch, d has no class and is promised nothing."""
    log = of_classes(worked_log(), ["chat", "batch", "chat", ""])
    promised = Promises(classes={"chat": ServiceLevels(ttft=2.5), "batch": ServiceLevels(e2e=2)})
    found = metrics_of(log, promised)
    assert (found.slo_met, found.slo_share, found.goodput_per_s) == (1, 1 / 3, 1 / 6)
    none, batch, chat = found.classes
    assert (chat.requests, chat.finished, chat.rejected, chat.slo_met, chat.slo_share) == (2, 1, 1, 1, 0.5)
    assert (batch.requests, batch.slo_met, batch.slo_share, batch.goodput_per_s) == (1, 0, 0.0, 0.0)
    assert (none.requests, none.unfinished, none.slo_met, none.slo_share, none.ttft_s) == (1, 1, None, None, None)
    assert chat.ttft_s.mean == 2.0
    assert found.to_json()["classes"]["batch"]["e2e_s"]["mean"] == 3.0
    assert promised.in_words() == "SLO chat: ttft 2.5 s; batch: e2e 2 s"
    assert replace(promised, others=ServiceLevels(queue=1)).in_words().endswith("; others: queue 1 s")


@pytest.mark.parametrize("given_to", ["others", "classes"])
def test_nothing_promised_is_no_promise(given_to):
    nothing = ServiceLevels()
    assert not Promises(**{given_to: {"chat": nothing} if given_to == "classes" else nothing}).any
