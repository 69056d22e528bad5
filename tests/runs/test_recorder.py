"""A recorder's log is what it was told; what does not go together is refused in one line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.runs.recorder import MOST_POINTS, States
from paceline.runs.serving import (
    GAP_FIELDS,
    PREEMPTION_FIELDS,
    REQUEST_FIELDS,
    SERIES_FIELDS,
    check_log,
    total_gaps,
    total_ps,
)
from paceline.traces.errors import TraceFormatError
from paceline.traces.workloads.arrival import MOST_PS, Arrival

from .making import ABOUT, played, told


@given(run=played())
def test_the_log_is_what_was_told(run):
    log = run.log
    requests = {name: column.tolist() for name, column in log.requests.items()}
    assert tuple(requests) == REQUEST_FIELDS
    assert requests["request_id"] == [told.arrival.request_id for told in run.told]
    assert requests["tag"] == [told.arrival.tag for told in run.told]
    assert requests["replica"] == [told.replica for told in run.told]
    assert requests["scheduled_at_ps"] == [told.scheduled for told in run.told]
    assert requests["first_token_at_ps"] == [told.outputs[0][0] if told.outputs else -1 for told in run.told]
    assert requests["ended_at_ps"] == [told.ended for told in run.told]
    assert requests["rejected"] == [told.rejected for told in run.told]
    assert requests["emitted_tokens"] == [told.emitted for told in run.told]
    assert log.finished.tolist() == [told.ended >= 0 and not told.rejected for told in run.told]
    assert (log.meta.ended_at_ps, log.meta.stopped) == (run.ended, run.stopped)
    gaps = [gap for told in run.told for gap in told.gaps]
    assert (total_gaps(log.gaps), total_ps(log.gaps)) == (len(gaps), sum(gaps))
    preempted = sorted((at, index) for index, told in enumerate(run.told) for at in told.preempted)
    assert sorted(zip(*(log.preemptions[name].tolist() for name in ("at_ps", "request")), strict=True)) == preempted
    assert [tuple(table) for table in (log.preemptions, log.series, log.gaps)] == [
        PREEMPTION_FIELDS,
        SERIES_FIELDS,
        GAP_FIELDS,
    ]


@given(run=played())
def test_sums_over_time_are_those_of_all_states(run):
    for replica, states in zip(run.log.meta.replicas, run.states, strict=True):
        ends = [*(at for at, *_ in states[1:]), run.ended]
        spans = [end - at for (at, *_), end in zip(states, ends, strict=False)]
        assert replica.states == len(states)
        assert replica.running_ps == sum(state[1] * span for state, span in zip(states, spans, strict=True))
        assert replica.waiting_ps == sum(state[2] * span for state, span in zip(states, spans, strict=True))
        assert replica.most_waiting == max((state[2] for state in states), default=0)
        target = replica.members[1]
        assert target.block_ps == sum(state[3][1] * span for state, span in zip(states, spans, strict=True))
        assert target.most_blocks == max((state[3][1] for state in states), default=0)
        assert (target.forwards, target.busy_ps) == (len(states), sum(spans))


@given(
    sizes=st.lists(st.integers(1, 3 * MOST_POINTS), min_size=1, max_size=8),
    replicas=st.integers(1, 3),
    data=st.data(),
)
def test_the_series_holds_every_so_many_th_state(sizes, replicas, data):
    """However many states were packed at a time."""
    states = States(replicas, 1)
    told = [[] for _ in range(replicas)]
    for size in sizes:
        for number in range(size):
            replica = data.draw(st.integers(0, replicas - 1)) if number == 0 else number % replicas
            state = (sum(map(len, told)) * 7, number, len(told[replica]), (number,))
            states.add(replica, *state)
            told[replica].append((*state[:3], *state[3]))
        states.all()
    for found, every in zip(states.all(), told, strict=True):
        stride = 1
        while len(every[::stride]) > MOST_POINTS:
            stride *= 2
        assert list(map(tuple, found.kept.tolist())) == every[::stride]
        assert found.count == len(every)


def test_sums_outgrow_64_bits():
    states = States(1, 1)
    states.add(0, 0, 1000, 0, (10**6,))
    states.add(0, 10**18, 0, 0, (0,))
    (found,) = states.all()
    assert found.until(2 * 10**18) == [1000 * 10**18, 0, 10**24]


def test_states_in_thousands_are_added_up_as_they_come():
    """Packed rows never pile up, and the sums are those of one go."""
    states = States(2, 1)
    for number in range(50_000):
        states.add(number % 2, number, number, 1, (number % 7,))
    assert states.all()[0].sums[0] == sum(2 * number for number in range(0, 49_998, 2))
    assert states.all()[1].count == 25_000


LAST = f"gaps: increment_ps: must leave the last gap in [0, {MOST_PS}] (row 1), got"
EARLY = "must not be before the request was scheduled, and not be there if it was rejected (row 0), got 20"
CACHED = "must be in [0, prompt_tokens]"
ADDED = "must add up to at most 1 gaps, as tokens were emitted"
FILLED = "must add up to the 11 ps between first and last tokens"
BETWEEN = "must be between the request's first step and the end of the run (row 0), got 5"


def arrives(recorder, replica=0):
    recorder.arrived(Arrival("b", 9, 1, 1), replica)


def emits_too_many(recorder):
    arrives(recorder)
    recorder.emitted(1, 2)
    recorder.stopped(30, "horizon")


WRONG = [
    (lambda told: arrives(told, 2), "requests: replica: must be in [0, 1] (row 1), got 2"),
    (lambda told: told.gaps(10, -6, 3, 1), f"{LAST} -6"),
    (lambda told: told.gaps(10, MOST_PS, 2**30, 1), f"{LAST} {MOST_PS}"),
    (arrives, "requests: ended_at_ps: must be there where the run was not stopped (row 1), got -1"),
    (lambda told: told.scheduled(0, 4, ()), "requests: scheduled_at_ps: must not be before the arrival (row 0), got 4"),
    (lambda told: told.scheduled(0, 6, (0, 11)), f"requests: cached_tokens: {CACHED} (row 0), got [0, 11]"),
    (lambda told: told.rejected(0, 30, "too long"), f"requests: first_token_at_ps: {EARLY}"),
    (emits_too_many, "requests: emitted_tokens: must be at most output_tokens (row 1), got 2"),
    (lambda told: told.gaps(10, 0, 1, 1), f"gaps: count: {ADDED}, got 2"),
    (lambda told: told.finished(0, 31), f"gaps: first_ps: {FILLED}, got 10"),
    (lambda told: told.stopped(29, "horizon"), "requests: ended_at_ps: must be in [-1, 29] (row 0), got 30"),
    (lambda told: told.preempted(0, 5), f"preemptions: at_ps: {BETWEEN}"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "line"), WRONG)
def test_what_does_not_go_together_is_refused(spoil, line):
    recorder = told()
    recorder.log(ABOUT)
    spoil(recorder)
    with pytest.raises(TraceFormatError) as refused:
        recorder.log(ABOUT)
    assert str(refused.value) == f"run/{line.replace(':', '.parquet:', 1)}"


def test_columns_that_were_changed_are_refused():
    log = told().log(ABOUT)
    log.requests["emitted_tokens"][0] = 1
    with pytest.raises(TraceFormatError, match="emitted_tokens: must be output_tokens of a finished request"):
        check_log(log, Path("run"))
    recorder = told()
    arrives(recorder)
    recorder.rejected(1, 9, "too long")
    log = recorder.log(ABOUT)
    log.requests["request_id"][1] = "a"
    with pytest.raises(TraceFormatError, match=r"request_id: must be unique \(row 1\), got 'a'"):
        check_log(log, Path("run"))


def states_back_in_time(recorder):
    for replica, at_ps in ((0, 10), (1, 9), (0, 9)):
        recorder.state(replica, at_ps, 1, 0, (0, 0))


REFUSED = [
    (lambda told: told.arrived(Arrival("a", 9, 1, 1), 0), "request a: request_id must be unique .*, got it twice"),
    (lambda told: told.arrived(Arrival("l", MOST_PS + 1, 1, 1), 0), f"request l: arrives_ps must be at most {MOST_PS}"),
    (lambda told: told.state(1, 10, 1, 0, (41, 0)), "most_blocks must be at most num_blocks, 40, got 41"),
    (states_back_in_time, "a state must not be before the one before it, at 10 ps, got 9 ps"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "line"), REFUSED)
def test_what_cannot_be_is_refused(spoil, line):
    def spoilt_log():
        recorder = told()
        spoil(recorder)
        return recorder.log(ABOUT)

    with pytest.raises(ValueError, match=line):
        spoilt_log()


def test_the_recorder_goes_on_after_a_log():
    recorder = told()
    assert len(recorder.log(ABOUT).requests["tag"]) == 1
    recorder.arrived(Arrival("b", 9, 1, 1), 1)
    recorder.rejected(1, 9, "too long")
    assert recorder.log(ABOUT).requests["rejected"].tolist() == ["", "too long"]
