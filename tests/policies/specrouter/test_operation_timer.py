"""What operations took is learnt from whole ones, whoever was told of their rows."""

from paceline.policies import Draft, Outcome, Verify
from paceline.policies.specrouter.operation_timer import OperationTimer

TARGET = 2


class Profiler:
    """Keeps what it is told; knows nothing."""

    def __init__(self):
        self.told = []

    def note(self, level, *, new_tokens, seconds):
        self.told.append((level, new_tokens, seconds))

    def narrowest_s(self, level, num_rows):
        return None


def verified(request, *, rows, seconds):
    return Outcome(request, Verify("target"), 0, 3, 3, 1, 4, None, (), seconds, rows, done=False)


def timer():
    profiler = Profiler()
    return profiler, OperationTimer(profiler, TARGET)


def test_an_operation_is_learnt_by_all_the_tokens_it_was_fed():
    profiler, clock = timer()
    for request, fed in (("r0", 4), ("r1", 1), ("r2", 5)):
        clock.note(TARGET, fed, verified(request, rows=3, seconds=0.5))
    assert profiler.told == [(TARGET, 10, 0.5)]


def test_a_prefill_among_verifications_is_told_by_the_request_that_begins():
    profiler, clock = timer()
    clock.note(TARGET, 4, verified("r0", rows=2, seconds=0.5))
    clock.settle()
    assert profiler.told == [], "a row is missing"
    clock.note_prefill(40, num_rows=2, seconds=0.5)
    assert profiler.told == [(TARGET, 44, 0.5)]


def test_prefills_alone_are_an_operation():
    profiler, clock = timer()
    for num_prompt in (30, 50):
        clock.settle()
        clock.note_prefill(num_prompt, num_rows=2, seconds=0.7)
    assert profiler.told == [(TARGET, 80, 0.7)]


def test_rows_that_nobody_will_tell_of_do_not_reach_into_the_next_operation():
    """A request that ended with its first token never begins; the next operation may be as long and as wide."""
    profiler, clock = timer()
    clock.note(TARGET, 4, verified("r0", rows=2, seconds=0.5))
    clock.settle()
    clock.note(TARGET, 3, verified("r0", rows=2, seconds=0.5))
    assert profiler.told == []
    clock.note(TARGET, 2, verified("r1", rows=2, seconds=0.5))
    assert profiler.told == [(TARGET, 5, 0.5)]


def test_a_draft_is_learnt_by_the_forward():
    profiler, clock = timer()
    clock.note(0, 1, Outcome("r0", Draft("draft", 4), 4, 0, 0, 0, 0, None, (), 0.4, 1, done=False))
    assert profiler.told == [(0, 1, 0.1)]
