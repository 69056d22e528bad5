"""What operations took is learnt from whole ones, whoever was told of their rows."""

from math import inf

from paceline.decoding.seen import ServerLoad
from paceline.policies import Draft, Outcome, Verify
from paceline.policies.specrouter.policy import OperationTimer

TARGET = 2


class Profiler:
    """Keeps what it is told; knows nothing."""

    def __init__(self):
        self.num_lookups = 0
        self.told = []

    def note(self, level, *, new_tokens, seconds):
        self.told.append((level, new_tokens, seconds))

    def narrowest_s(self, level, num_rows):
        return None

    def guessed_s(self, level, num_rows):
        return inf


def verified(request, *, rows, seconds):
    return Outcome(request, Verify("target"), 0, 3, 3, 1, 4, None, (), seconds, rows, done=False)


def timer():
    profiler = Profiler()
    return profiler, OperationTimer(profiler, TARGET)


def after(rows, new_tokens, seconds):
    """The load after an operation of the target."""
    load = ServerLoad(TARGET + 1)
    load.batch[TARGET], load.new_tokens[TARGET], load.duration_s[TARGET] = rows, new_tokens, seconds
    return load


def test_an_operation_is_learnt_by_all_the_tokens_it_was_fed():
    """Once, by who decides next; chunks of prompts, of which nobody learns, are among them."""
    profiler, clock = timer()
    for request, fed in (("r0", 4), ("r1", 1), ("r2", 5)):
        clock.note(TARGET, fed, verified(request, rows=3, seconds=0.5))
    for _ in range(2):
        clock.settle(after(4, 50, 0.5), begins=False)
    assert profiler.told == [(TARGET, 50, 0.5)]


def test_equal_operations_are_learnt_each():
    profiler, clock = timer()
    for _ in range(2):
        clock.note(TARGET, 4, verified("r0", rows=1, seconds=0.5))
        clock.settle(after(1, 4, 0.5), begins=False)
    assert profiler.told == [(TARGET, 4, 0.5)] * 2


def test_a_prefill_among_verifications_is_learnt_once():
    profiler, clock = timer()
    clock.note(TARGET, 4, verified("r0", rows=2, seconds=0.5))
    for begins in (True, False, True):
        clock.settle(after(3, 44, 0.5), begins=begins)
    assert profiler.told == [(TARGET, 44, 0.5)]


def test_prefills_alone_are_learnt_by_the_requests_that_begin():
    profiler, clock = timer()
    for _ in range(2):
        clock.settle(after(2, 80, 0.7), begins=True)
    assert profiler.told == [(TARGET, 80, 0.7)]
    clock.settle(after(0, 0, 0.0), begins=True)
    assert len(profiler.told) == 1, "what was never fed took nothing"


def test_rows_of_a_verifier_below_are_gathered():
    """Rows that nobody will tell of do not reach into the next operation, which may be as long and as wide."""
    profiler, clock = timer()
    load = after(1, 1, 0.1)
    clock.note(1, 4, verified("r0", rows=2, seconds=0.5))
    clock.settle(load, begins=False)
    clock.note(1, 3, verified("r0", rows=2, seconds=0.5))
    assert profiler.told == []
    clock.note(1, 2, verified("r1", rows=2, seconds=0.5))
    assert profiler.told == [(1, 5, 0.5)]


def test_a_draft_is_learnt_by_the_forward():
    profiler, clock = timer()
    clock.note(0, 1, Outcome("r0", Draft("draft", 4), 4, 0, 0, 0, 0, None, (), 0.4, 1, done=False))
    assert profiler.told == [(0, 1, 0.1)]


def test_a_first_draft_over_a_prompt_is_told_from_the_forwards_that_follow():
    """As far as others tell what these take: were all taken to be alike, the member would look dear for good."""
    profiler, clock = timer()
    profiler.guessed_s = lambda level, num_rows: 0.1
    clock.note(0, 60, Outcome("r0", Draft("draft", 4), 4, 0, 0, 0, 0, None, (), 1.5, 1, done=False))
    ((level, tokens, seconds),) = profiler.told
    assert (level, tokens) == (0, 60)
    assert abs(seconds - 1.2) < 1e-12


def test_a_lookup_is_learnt_whole_however_much_it_reads_or_copies():
    profiler, clock = timer()
    profiler.num_lookups = 1
    for fed, copied in ((900, 6), (40, 1)):
        clock.note(0, fed, Outcome("r0", Draft("ngram", 8), copied, 0, 0, 0, 0, None, (), 0.25, 1, done=False))
    assert profiler.told == [(0, 1, 0.25)] * 2


def test_lookups_of_an_operation_are_learnt_one_by_one():
    """Few of the requests copy, and what it takes when more do is that many times one."""
    profiler, clock = timer()
    profiler.num_lookups = 1
    for request in ("r0", "r1", "r2", "r3"):
        clock.note(0, 40, Outcome(request, Draft("ngram", 8), 6, 0, 0, 0, 0, None, (), 1.0, 4, done=False))
    assert profiler.told == [(0, 1, 0.25)]
