"""Memory of layers with a window: what is held against a count of every token, and against figures by hand."""

from array import array
from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from paceline.runs.recorder import ServingRecorder
from paceline.sim.serving.limits import Admission, KvLimits, KvWindow
from paceline.sim.serving.memory import MemberKv
from paceline.sim.serving.replica import ReplicaBooks, Role, Transfer
from paceline.traces.workloads.arrival import Arrival

from ..engine.both_ways import check as check_both_ways
from ..engine.lined_costs import COSTS
from ..engine.served_runs import Run, limits_of, pico, some_rounds, target_only

SIZE = 4  # tokens of a block


def keys_of(owner):
    return array("q", range(owner * 1000, owner * 1000 + 100))


def kv_of(num_blocks, *, tokens, whole=1, near=1, most_new=64, **options):
    window = KvWindow(tokens=tokens, whole=whole, near=near, most_new=most_new)
    return MemberKv(KvLimits(num_blocks=num_blocks, block_tokens=SIZE, window=window, **options))


def test_a_text_that_grows_by_hand():
    """Five groups, four with a window of 9 tokens: 6 blocks of a text are 6 of the first and 3 or 4 of each other."""
    kv = kv_of(100, tokens=9, whole=1, near=4, prefix_cache=False)
    kv.open(1, (), 24)
    assert kv.reserve(1, 24)  # a prefill of 6 blocks: nothing of it is computed, so all groups hold it
    assert kv.used_blocks == 6 * 5
    kv.slide(1, 24)  # the next token attends to tokens 16 to 24, of which 16 is the first of the fifth block
    assert kv.used_blocks == 6 + 4 * 2
    assert kv.reserve(1, 25, 24)
    assert kv.used_blocks == 7 + 4 * 3
    assert kv.reserve(1, 29, 28)
    assert kv.used_blocks == 8 + 4 * 3
    kv.close(1)
    assert kv.free_blocks == 100


def test_a_batch_that_fits_and_one_request_more_that_does_not():
    """With a window of 8 a request at 41 tokens holds 11 + 3 blocks: 42 are enough for three of them, of 22 for one."""
    kv = kv_of(42, tokens=8, prefix_cache=False)
    for owner in range(3):
        assert kv.fits((), 40, 8)
        kv.open(owner, (), 40)
        for read in range(0, 40, 8):  # in chunks
            assert kv.reserve(owner, read + 8, read)
        assert kv.reserve(owner, 41, 40)
        assert kv.used_blocks == 14 * (owner + 1)
    assert not kv.fits((), 4, 4)
    every = MemberKv(KvLimits(num_blocks=21, block_tokens=SIZE, prefix_cache=False))  # as many bytes
    assert every.fits((), 41, 41)
    every.open(0, (), 41)
    assert every.reserve(0, 41)
    assert not every.fits((), 44, 44)


def test_a_batch_under_load():
    """36 tokens of a prompt and 20 of an answer are 14 + 3 blocks at most: 51 are enough for three; of 28, for one."""
    arrivals = [Arrival(f"q{index}", 0, 36, 20) for index in range(6)]
    window = KvWindow(tokens=8, whole=1, near=1, most_new=8)
    for most, memory in ((3, {"num_blocks": 51, "window": window}), (1, {"num_blocks": 17})):
        limits = limits_of(pico(), token_budget=8, prefix_cache=False, **memory)
        run = Run(arrivals, pico(), limits=replace(limits, admission=Admission.whole_prompt))
        run.go()
        assert run.log.meta.replicas[0].most_running == most
        assert not len(run.log.preemptions["at_ps"])


@given(st.data())
def test_what_is_held_is_what_a_count_of_tokens_says(data):
    """Without shared texts, any order of requests: a block of a group is held if any of its tokens may be read."""
    whole, near = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3))
    tokens, most_new = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 12))
    kv = kv_of(60, tokens=tokens, whole=whole, near=near, most_new=most_new, prefix_cache=data.draw(st.booleans()))
    running = {}  # read and reserved tokens
    for owner in range(data.draw(st.integers(1, 25))):
        for _ in range(data.draw(st.integers(0, 6))):
            if not running:
                break
            other = data.draw(st.sampled_from(sorted(running)))
            read, room = running[other]
            keys = keys_of(other)
            if data.draw(st.integers(0, 4)) == 0:
                kv.close(other)
                del running[other]
            else:
                new = data.draw(st.integers(1, most_new))
                if kv.reserve(other, read + new, read):
                    kv.slide(other, read + new)
                    kv.commit(other, read + new, keys)
                    running[other] = read + new, max(room, -(-(read + new) // SIZE))
            check(kv, running, tokens, whole, near)
        kv.open(owner, keys_of(owner), 400)
        running[owner] = 0, 0
    for owner in list(running):
        kv.close(owner)
    assert kv.used_blocks == 0
    assert kv.available_blocks == 60
    assert kv.free_blocks >= 0


def check(kv, running, tokens, whole, near):
    """The latest token is not in the cache yet: the next one attends to itself and `tokens` - 1 before it."""
    held = 0
    for read, units in running.values():
        live = [unit for unit in range(units) if (unit + 1) * SIZE > read - tokens + 1]
        held += whole * units + near * len(live)
    assert kv.used_blocks == held
    assert kv.free_blocks >= 0


@given(st.data())
def test_shared_texts_keep_the_count_of_blocks(data):
    """`fits` says whether a request gets its blocks, and whatever is shared, evicted and found, none is lost."""
    whole, near = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3))
    kv = kv_of(30, tokens=data.draw(st.integers(1, 20)), whole=whole, near=near, most_new=data.draw(st.integers(1, 40)))
    running = {}
    for owner in range(data.draw(st.integers(1, 25))):
        if running and data.draw(st.booleans()):
            kv.close(running.pop(data.draw(st.sampled_from(sorted(running)))))
        keys = array("q", data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=12)))
        text = SIZE * len(keys)
        wanted = data.draw(st.integers(kv.usable_tokens(keys, text), text))
        fits = kv.fits(keys, text, wanted)
        hit = kv.open(owner, keys, text)
        assert kv.reserve(owner, wanted, hit) == fits
        running[owner] = owner
        if fits:
            kv.commit(owner, wanted, keys)
            kv.slide(owner, wanted)
        assert kv.free_blocks >= 0
        assert 0 <= kv.used_blocks <= 30
    for owner in running:
        kv.close(owner)
    assert kv.used_blocks == 0


def test_a_member_that_first_drafts_holds_all_of_the_text_that_it_reads():
    """36 tokens of a prompt, one of the answer, 4 to draft and one more are 11 blocks of both groups."""
    window = KvWindow(tokens=8, whole=1, near=1, most_new=64)
    limits = limits_of(some_rounds(), prefix_cache=False, window=window, token_budget=64)
    run = Run([Arrival("a", 0, 36, 20)], some_rounds(), "feature:4/target", limits).go()
    draft, _, target = run.log.meta.replicas[0].members
    assert draft.most_blocks == 11 * 2
    assert target.most_blocks == 10 * 2


def test_a_text_that_was_read_elsewhere_holds_its_windows_alone():
    """36 tokens of a prompt and 2 of an answer are 10 blocks, of which 3 may be read in a window of 8."""
    window = KvWindow(tokens=8, whole=1, near=1, most_new=64)
    options = {"roles": [Role.prefill, Role.decode], "transfer": Transfer(bytes_per_s=1e9, latency_s=0, token_bytes=1)}
    run = Run([Arrival("a", 0, 36, 2)], target_only(), limits=limits_of(target_only(), window=window), **options).go()
    series = run.log.series
    assert series["used_blocks"][series["replica"] == 1].max() == 10 + 3


def test_blocks_that_rounds_give_up_count_at_their_time():
    """Rows of a cycle take blocks and give up others; the most at once is that of single steps."""
    prompts, answers = (2, 1, 1, 1, 1, 1), (9, 7, 1, 1, 1, 1)
    arrivals = [
        Arrival(f"q{index}", index // 5 * 10**6, *tokens)
        for index, tokens in enumerate(zip(prompts, answers, strict=True))
    ]
    window = KvWindow(tokens=3, whole=0, near=1, most_new=6)
    limits = limits_of(some_rounds(), max_num_seqs=5, token_budget=6, block_tokens=1, prefix_cache=False, window=window)
    for cost in COSTS:
        check_both_ways(arrivals, some_rounds(), "tokens:2/target", limits=limits, cost=cost(some_rounds()))


def test_blocks_that_are_taken_and_given_up_count_where_both_cancel_out():
    """2 more, 4 fewer and 2 more, at equal distances: neither the blocks nor their sum over time is another one."""
    batch, memory = SimpleNamespace(running=[], waiting=[], elsewhere=0), SimpleNamespace(members=[0], windowed=True)
    memory.used_blocks = [5]
    recorder = ServingRecorder(["target"], {"replica": [9]})
    books = ReplicaBooks(0, recorder, batch, memory, lambda requests, at_ps: None)
    books.note_state(0)
    for at_ps, blocks in ((1, 2), (2, -4), (3, 2)):
        books.grew(0, blocks, at_ps)
    books.note_state(4)
    (states,) = recorder._states.all()
    assert states.most[-1] == 5 + 2
