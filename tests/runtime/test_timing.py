"""Clocks, seconds of forwards and of members that were watched, and requests that arrive over real models."""

import copy
from collections import deque
from itertools import count
from random import Random
from time import perf_counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.loop import Loop
from paceline.decoding.results import DRAFT, VERIFY
from paceline.policies import make_policy
from paceline.runs.log import RunLedger
from paceline.runtime import clock as clock_module
from paceline.runtime.clock import Clock, timed
from paceline.runtime.decode import sessions_of
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.profiling import costs as costs_module
from paceline.runtime.profiling import forwards as forwards_module
from paceline.runtime.profiling.costs import measure_costs
from paceline.runtime.profiling.forwards import (
    MemoryFloor,
    RowsHeld,
    cases_within,
    copied_bytes_per_s,
    measure_uneven,
    weight_bytes,
)
from paceline.runtime.profiling.probe import Journal, ProbedForward, ProbedOp, longer_in_decoding
from paceline.runtime.threads import Memory
from paceline.runtime.timing import hardware
from paceline.runtime.world import TorchWorld
from paceline.traces.profile import (
    BatchShape,
    ForwardsInDecoding,
    InDecoding,
    Longer,
    MeasuredForward,
    ProfiledForwards,
    Reload,
    UnevenRows,
    WeightsRead,
)

from ..profiles.profiles import made_profile, seconds_of
from ..tiny_models import tiny_pool_of_four
from .conftest import ALPHABET
from .offline import GREEDY, PROMPTS, in_double, trunk, with_models
from .tiny_decoders import VOCABULARY, tiny_decoder

# -- clocks


@pytest.mark.parametrize("error", [None, KeyError("a")])
def test_a_paused_clock_leaves_out_what_is_done_meanwhile(monkeypatch, error):
    now_s = [7.0]
    monkeypatch.setattr(clock_module, "perf_counter", lambda: now_s[0])
    clock = Clock()
    now_s[0] += 1.0
    pause = clock.paused()
    pause.__enter__()
    now_s[0] += 64.0
    assert not pause.__exit__(error and type(error), error, None)
    now_s[0] += 2.0
    assert clock.now_s() == 3.0


def test_time_is_that_of_the_call_and_the_machine_is_told_in_words():
    calls = []
    began_s = perf_counter()
    assert 0 <= timed(lambda: calls.append(1), torch.device("cpu")) <= perf_counter() - began_s
    assert calls == [1]
    assert hardware().endswith(("cores, 1 thread", "1 core, 1 thread"))


# -- seconds of forwards


class Watched:
    """Notes where forwards were placed, and how many logits they gave."""

    def __init__(self, forward, seen):
        self._forward, self._seen = forward, seen
        self.kv_shape, self.slot_cache = forward.kv_shape, forward.slot_cache

    def __call__(self, ids, placement, cache, keep):
        logits = self._forward(ids, placement, cache, keep)
        apart = not isinstance(placement.rows, slice)
        shape = BatchShape(len(placement.counts), len(ids), placement.longest, placement.num_slots, apart)
        self._seen.append((shape, len(logits)))
        return logits


def test_every_model_and_point_is_timed(tiny_pool, monkeypatch):
    """Contexts are filled with rows of 64: what the pool's 96 leave beside a row of 32."""
    sizes, choose = {}, type(tiny_pool).forward

    def watched(pool, level, kind, *, share_weights):
        return Watched(choose(pool, level, kind, share_weights=share_weights), sizes.setdefault(level, []))

    monkeypatch.setattr(type(tiny_pool), "forward", watched)
    costs = measure_costs(tiny_pool, new_tokens=(3, 32, 48), repeats=2)
    assert list(costs.tables) == ["draft", "mid", "slim", "target"]
    assert costs.rounds == 2
    assert costs.spread >= 0 <= costs.drift
    for table in costs.tables.values():
        assert table.new_tokens == (3, 32, 48)
        assert min(table.seconds) > 0
    # Every turn of a model begins with its smallest point, untimed.
    assert [(shape.num_rows, shape.longest) for shape, _ in sizes[4]] == [
        (1, 3), (1, 3), (1, 32), (3, 16), (3, 16)
    ] * 3  # fmt: skip
    assert {shape.num_slots - shape.longest for shape, _ in sizes[4]} == {64}
    with pytest.raises(ValueError, match="new_tokens above 32 must be multiples of 16, got 40"):
        measure_costs(tiny_pool, new_tokens=(1, 40))
    with pytest.raises(ValueError, match="repeats must be >= 1, got 0"):
        measure_costs(tiny_pool, repeats=0)


@pytest.mark.parametrize(
    ("most_s", "rounds"),
    [(1e6, 5), (56, 4), (20, 3), (4, None), (1, None)],
)
def test_rounds_end_in_time_or_are_too_few(tiny_pool, monkeypatch, most_s, rounds):
    """By a clock that moves on by a second each time that it is read: a round of 12 points takes 13."""
    now_s = count()
    monkeypatch.setattr(costs_module, "perf_counter", lambda: next(now_s))
    if rounds is None:
        with pytest.raises(TimeoutError, match=r"only [012] of 3 rounds of forwards were measured in time"):
            measure_costs(tiny_pool, new_tokens=(1, 2, 48), repeats=5, most_s=most_s)
        return
    found = measure_costs(tiny_pool, new_tokens=(1, 2, 48), repeats=5, most_s=most_s)
    assert found.rounds == rounds


@pytest.mark.parametrize(
    ("held", "counts", "apart", "num_logits"),
    [
        ((5, 5), (2, 2), False, 4),
        ((5, 9, 3), (1, 4, 2), True, 7),
        ((5, 0), (1, 22), False, 2),  # a prompt among them: the last token of each
    ],
)
def test_shapes_are_those_that_were_asked_for(held, counts, apart, num_logits):
    seen = []
    forward = Watched(tiny_pool_of_four().forward(1, "auto", share_weights=False), seen)
    with torch.inference_mode():
        shape, run = RowsHeld(forward, held, apart=apart).run_of(counts)
        run()
        run()
    assert seen == [(shape, num_logits)] * 2
    assert (shape.num_rows, shape.new_tokens, shape.apart) == (len(counts), sum(counts), apart)


FLOOR = MemoryFloor("target", weight_bytes=8_000_000_000, kv_bytes_per_token=100_000, bytes_per_s=2e12)


def test_weights_are_read_once_and_the_cache_once_a_row():
    assert FLOOR.seconds(1, 1, 999) == pytest.approx((8e9 + 1000 * 1e5) / 2e12)
    assert FLOOR.seconds(4, 2, 998) - FLOOR.seconds(3, 2, 998) == pytest.approx(1000 * 1e5 / 2e12)
    grid = [(rows, new, context) for rows in (1, 16) for new in (1, 5) for context in (0, 200)]
    shapes = [MeasuredForward("target", *point, 1.5 * FLOOR.seconds(*point), 0.01) for point in grid]
    assert FLOOR.comparison(shapes) == (
        "target against its memory floor (8 GB of weights at 2000 GB/s, 4.01 ms a step): "
        "1.50x at 1 x 1 after 200, 1.50x at 16 x 1 after 200"
    )
    assert FLOOR.comparison(shapes[:3]).endswith(": 1.50x at 1 x 1 after 200")


@pytest.mark.parametrize(("tied", "dtype"), [(False, torch.float32), (True, torch.float32), (False, torch.bfloat16)])
def test_an_embedding_table_counts_only_where_it_is_the_head_too(tied, dtype):
    model = tiny_decoder("llama", dtype, tie_word_embeddings=tied)
    everything = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
    assert weight_bytes(model) == everything - (0 if tied else VOCABULARY * 32 * dtype.itemsize)


def test_copying_reads_and_writes_each_byte(monkeypatch):
    marks = count(0.0, step=2.0)  # so every copy takes two seconds
    monkeypatch.setattr(clock_module, "mark", lambda _: next(marks))
    monkeypatch.setattr(forwards_module, "_COPIED_BYTES", 2**20)
    assert copied_bytes_per_s(torch.device("cpu")) == 2**20


@pytest.mark.parametrize("longest", [51, 60, 100, 200, 300])
def test_every_case_fits_every_context_that_has_room_for_its_new_tokens(longest):
    cases = cases_within(longest)
    assert len(cases) == 14
    for case in cases:
        assert max(held + more for held, more in zip(case.held, case.counts, strict=True)) <= longest
        assert min(case.counts) >= 1
    assert any(len(set(case.held)) > 1 for case in cases)
    assert 0 < len(cases_within(10)) < 14
    assert cases_within(1) == []


def test_uneven_rows_of_a_short_context_are_measured():
    """Whatever these took beyond even ones, it is in terms of which none is negative."""
    grid = [(rows, new, held) for rows in (1, 12) for new in (1, 60) for held in (0, 60)]
    even = ProfiledForwards([MeasuredForward("draft", *point, 1e-9, 0.0) for point in grid], None)
    forward = tiny_pool_of_four().forward(1, "auto", share_weights=False)
    found = measure_uneven({"draft": forward}, {"draft": even}, longest=56)
    assert max(found["draft"].model_dump().values()) > 0


# -- what forwards took in decoding beyond what is foreseen


PROFILE = made_profile()
MORE = st.floats(-1e-4, 1e-3)
EACH = (1, 3, 5, 9)


class Probed:
    """Operations of a drafter on one row behind 50 tokens, each of which begins when the one before ends."""

    def __init__(self):
        self.ops, self.now_s = [], 0.0

    def add(self, kind, *forwards, idle_s=0.0):
        """A forward is (new tokens, tokens with them, seconds)."""
        self.now_s += idle_s
        probed = []
        for new, total, taken_s in forwards:
            self.now_s += taken_s
            probed.append(ProbedForward(0, BatchShape(1, new, new, total), self.now_s, taken_s))
        self.ops.append(ProbedOp(kind, 0, 1, 1, tuple(probed), 0.0, 1, 0.0, 1, stops=False))

    def longer(self):
        alone = ProfiledForwards(PROFILE.of("draft"), PROFILE.meta.members[0].smooth)
        reload = Reload(new_tokens=(1,), away_s=(1.0,), longer_s=((0.5,),))
        foreseen = ForwardsInDecoding(alone, UnevenRows(), reload, InDecoding())
        return longer_in_decoding(self.ops, [foreseen, None], ["draft", "ngram"], WeightsRead({}))["draft"]


@given(longer_s=st.tuples(*[MORE] * 4), later_s=MORE)
def test_means_by_new_tokens_apart_for_first_and_later_forwards(longer_s, later_s):
    probed = Probed()
    for each, more_s in zip(EACH, longer_s, strict=True):
        for _ in range(30):
            first_s = seconds_of(1, each, 50) + 0.5 * (0.25 if probed.ops else 1.0) + more_s
            later = (1, 60, seconds_of(1, 1, 59) + later_s)
            probed.add(DRAFT, (each, 50 + each, first_s), later, idle_s=0.25)
    found = probed.longer()
    assert found.first.new_tokens == EACH
    assert found.first.longer_s == pytest.approx(longer_s, abs=1e-8)
    assert found.later.longer_s == (pytest.approx(later_s, abs=1e-8),)


def test_prompts_and_forwards_that_something_interrupted_do_not_enter():
    probed = Probed()
    for taken_s in [seconds_of(1, 1, 50) + 0.5] + [seconds_of(1, 1, 50)] * 40 + [1.0]:
        probed.add(VERIFY, (1, 51, taken_s))
    for _ in range(30):
        probed.add(VERIFY, (40, 40, 9.0))
    found = probed.longer()
    assert found.first.longer_s == (pytest.approx(0.0, abs=1e-9),)
    assert found.later == Longer()


def test_few_of_a_number_are_taken_with_the_next_and_very_few_as_foreseen():
    probed = Probed()
    for place, each in enumerate((1, 2, 3) * 10):
        probed.add(VERIFY, (each, 50 + each, seconds_of(1, each, 50) + each * 1e-4 + (0.0 if place else 0.5)))
    found = probed.longer().first
    assert found.new_tokens == (2,)
    assert found.longer_s == (pytest.approx(2e-4, rel=0.1),)
    del probed.ops[3:]
    assert probed.longer() == InDecoding()


# -- a journal gives back what was noted


ABOUT = {"pool": "tiny", "threads": 1, "grid": (1, 2)}
SECONDS = {("draft", 1, 2, 0): 0.25, ("target", 1, 2, 0): 1.5}


def filled(path):
    journal = Journal(path, ABOUT)
    for number in range(3):
        journal.note(number, (1, 0), {key: value + number for key, value in SECONDS.items()})
    return journal


def test_what_was_noted_is_known_to_the_next_of_the_same_setting(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    first, again = filled(path), Journal(path, ABOUT)
    assert len(again) == 3
    assert again.begun_at == first.begun_at is not None
    assert again.known(1, (1, 0)) == {key: value + 1 for key, value in SECONDS.items()}
    assert again.known(1, (2, 0)) is None
    assert again.seconds() == {key: [value, value + 1, value + 2] for key, value in SECONDS.items()}
    assert len(Journal(path, ABOUT | {"threads": 2})) == 0
    assert len(Journal(path, ABOUT, resume=False)) == 0
    first.forget()
    assert (len(first), first.begun_at, path.exists()) == (0, None, False)
    # A file that cannot be written does not matter.
    (tmp_path / "a").write_text("")
    assert len(filled(tmp_path / "a" / "b.jsonl")) == 3


@given(share=st.floats(0, 1))
def test_a_file_cut_short_anywhere_gives_its_whole_lines_and_grows_on(tmp_path_factory, share):
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    filled(path)
    content = path.read_bytes()
    cut = content[: int(share * len(content))]
    path.write_bytes(cut)
    again = Journal(path, ABOUT)
    assert len(again) == max(0, cut.count(b"\n") - 1)
    again.note(7, (3, 60), SECONDS)
    third = Journal(path, ABOUT)
    assert len(third) == len(again)
    assert third.known(7, (3, 60)) == SECONDS


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]\n", b'{"about": 1}\n', b"\xff\n", b'{"about": {}, "begun_at": 3}\n']
)
def test_a_file_that_is_no_journal_is_begun_anew(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert len(Journal(path, ABOUT)) == 0
    filled(path)
    assert len(Journal(path, ABOUT)) == 3


# -- the loop drives real models: virtual arrivals, measured seconds


NUM_TOKENS = 16
MOST_RUNNING = 3
POLICY = "draft:2/mid:4/target"


class Server:
    """Requests arrive at given times and wait for a place; a device works whenever somebody is there."""

    def __init__(self, pool, gap_s, memory=None):
        self.ledger, rng = RunLedger(), Random(0)
        self.world = TorchWorld(pool=pool, sampling=GREEDY, memory=memory, debug=True)
        members = loaded_pool(pool)
        decider = make_policy(POLICY, members)
        self.loop = Loop(pool=members, policy=decider, name=POLICY, world=self.world, ledger=self.ledger)
        self.sessions = sessions_of(pool, PROMPTS, NUM_TOKENS)
        self.arrivals = [0.0]
        for _ in PROMPTS[1:]:
            self.arrivals.append(self.arrivals[-1] + rng.expovariate(1 / gap_s))
        self.queue, self.ended, self.failed, self.seen_waiting = [], {}, {}, []
        self.now_s = 0.0
        self.serve()
        self.log = self.ledger.finish({"members": list(members.names)}, reanchored={}, divergent={})

    def serve(self):
        coming = deque(zip(self.sessions, self.arrivals, strict=True))
        while len(self.ended) + len(self.failed) < len(PROMPTS):
            if not (self.queue or self.loop.load.num_running):
                self.now_s = max(self.now_s, coming[0][1])
            while coming and coming[0][1] <= self.now_s:
                self.queue.append(coming.popleft())
            self.admit(self.now_s)
            op, start_s = self.loop.next_op(self.now_s), self.now_s
            results = op.run(self.world)
            self.now_s += results.duration_s
            self.loop.finish(op, results, start_s=start_s, now_s=self.now_s)
            self.on_finished(self.now_s)

    def on_finished(self, now_s):
        self.ended |= {session.request_id: session.emitted for session in self.loop.finished}
        self.failed |= {session.request_id: now_s for session, _ in self.loop.failed}
        self.loop.finished.clear()
        self.loop.failed.clear()
        self.admit(now_s)

    def admit(self, now_s):
        while self.queue and self.loop.load.num_running < MOST_RUNNING:
            session, arrived_at_s = self.queue.pop(0)
            times = {"arrived_at_s": arrived_at_s, "now_s": now_s}
            self.ledger.note_admitted(session.request_id, tag="", num_prompt=session.num_prompt, **times)
            self.loop.admit(session)
        self.loop.load.num_waiting = len(self.queue)
        self.seen_waiting.append(len(self.queue))


@pytest.fixture(scope="module")
def pool(tiny_pool):
    return in_double(tiny_pool)


@pytest.fixture(scope="module")
def trunks(pool):
    return {prompt.request_id: trunk(pool, prompt, num_tokens=NUM_TOKENS) for prompt in PROMPTS}


@pytest.mark.parametrize(
    ("gap_s", "cache"), [(1e-6, "slots"), (0.01, "mask"), (1e6, "slots")], ids=["at once", "overlapping", "one by one"]
)
def test_virtual_arrivals_over_real_models(pool, trunks, gap_s, cache):
    server = Server(pool, gap_s, Memory(cache=cache))
    requests, ops, steps = server.log.requests, server.log.ops, server.log.steps
    assert server.ended == trunks
    arrived = dict(zip(requests["request_id"].tolist(), requests["arrived_at_s"].tolist(), strict=True))
    assert arrived == dict(zip(trunks, server.arrivals, strict=True))
    assert (requests["admitted_at_s"] >= requests["arrived_at_s"]).all()
    assert (requests["first_token_at_s"] > requests["admitted_at_s"]).all()
    for index, admitted_at_s in enumerate(requests["admitted_at_s"]):
        assert ops["start_s"][steps["op"][steps["request"] == index][0]] >= admitted_at_s
    ends = ops["start_s"] + ops["duration_s"]
    assert (ops["start_s"][1:] >= ends[:-1] - 1e-12).all()  # one operation at a time
    assert (ops["duration_s"] > 0).all()
    assert ops["num_rows"].max() <= (1 if gap_s == 1e6 else MOST_RUNNING)
    if gap_s < 1e-5:
        assert ops["num_rows"].max() == MOST_RUNNING
        assert max(server.seen_waiting) > 0
    if gap_s == 1e6:
        assert server.now_s > server.arrivals[-1]
        assert (requests["admitted_at_s"] == requests["arrived_at_s"]).all()


def test_a_failed_request_makes_room_like_a_finished_one(pool, trunks):
    """Also where a draft holds the letter that breaks the target."""
    model = copy.deepcopy(pool.target.model)
    model.model.embed_tokens.weight[ALPHABET.index("?")] = torch.nan
    server = Server(with_models(pool, target=model), 1e-6)
    assert "two" in server.failed
    assert server.ended.keys() | server.failed.keys() == trunks.keys()
    assert len(server.ended) >= 2
    assert all(text == trunks[name] for name, text in server.ended.items())
    finished = dict(zip(server.log.requests["request_id"], server.log.requests["finished_at_s"], strict=True))
    assert all(finished[name] == now_s for name, now_s in server.failed.items())
    assert server.loop.load.num_running == 0


def test_little_memory_is_no_matter_of_who_drives(pool, trunks):
    limit = 2 * 64 * sum(pool.member(name).kv_bytes_per_token * 2 for name in ("draft", "mid", "target"))
    server = Server(pool, 1e-6, Memory(limit_bytes=limit))
    assert server.ended == trunks
    assert server.log.requests["preempted"].sum() > 0
