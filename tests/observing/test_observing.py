"""What is sent when, what an event says, and what counters tell of a run, unknown where nobody tells."""

import json
from dataclasses import replace
from threading import Lock
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.base.errors import message_of
from paceline.observing.load_generator import Counters, LoadGenerator, acceptance_between
from paceline.observing.server import ClientClock, Exchange, chunk_of
from paceline.runs.observed import ObservedMeta, ObservedRequest
from paceline.traces.importers.reading import BrokenStreamError
from paceline.traces.workloads.arrival import Arrival

MS = 10**9

# -- nothing early, nothing lost, nothing twice, and never more at a time than asked for


class Stop:
    """Heard after so many requests were sent; None: never."""

    def __init__(self, after=None):
        self.after, self.sent = after, 0

    def heard(self):
        return self.after is not None and self.sent >= self.after


class Sender:
    """Answers after a while, and counts."""

    def __init__(self, clock, stop):
        self.clock, self.stop, self.lock = clock, stop, Lock()
        self.running = self.most = 0

    def __call__(self, arrival, due_at_ps):
        sent_at_ps = self.clock.now_ps()
        with self.lock:
            self.stop.sent += 1
            self.running += 1
            self.most = max(self.most, self.running)
        sleep(0.002)
        with self.lock:
            self.running -= 1
        times = {"due_at_ps": due_at_ps, "sent_at_ps": sent_at_ps, "ended_at_ps": self.clock.now_ps()}
        seen = ObservedRequest(request_id=arrival.request_id, prompt_id="p", asked_tokens=1, **times)
        return Exchange(seen=seen, prompt="", body={}, answer="", done=True)


def load(times_ms, *, after=None):
    arrivals = [Arrival(str(number), at * MS, 1, 1) for number, at in enumerate(sorted(times_ms))]
    clock, stop, ended = ClientClock(), Stop(after), []
    sender = Sender(clock, stop)
    return LoadGenerator(arrivals, sender, clock, stop, lambda: ended.append(None)), sender, ended


@settings(max_examples=15)
@given(st.lists(st.integers(0, 30), max_size=12))
def test_an_open_loop_sends_each_once_and_none_early(times_ms):
    made, _, ended = load(times_ms)
    made.open_loop()
    seen = [one.seen for one in made.ended()]
    assert sorted(one.request_id for one in seen) == sorted(map(str, range(len(times_ms))))
    assert sorted(one.due_at_ps for one in seen) == [at * MS for at in sorted(times_ms)]
    assert all(one.sent_at_ps >= one.due_at_ps for one in seen)
    assert len(ended) == len(times_ms)


@settings(max_examples=10)
@given(st.integers(0, 12), st.integers(1, 5))
def test_a_closed_loop_sends_each_once_and_never_more_at_a_time(count, concurrency):
    made, sender, _ = load([10**6] * count)  # their times do not matter
    made.closed_loop(concurrency)
    assert len(made.ended()) == count
    assert sender.most == min(count, concurrency) or sender.most < concurrency


@pytest.mark.parametrize("concurrency", [None, 2])
def test_after_a_stop_nothing_is_sent(concurrency):
    days = 10**9  # in milliseconds: nobody waits for what is due then
    made, sender, _ = load([0, 0, 0] + [days] * 9 if concurrency is None else [0] * 50, after=3)
    made.open_loop() if concurrency is None else made.closed_loop(concurrency)
    # A thread that is slow to begin is not seen by who starts the next one.
    assert 3 <= len(made.ended()) == sender.stop.sent <= 3 + (concurrency or 0)


def test_what_a_thread_raises_is_raised():
    def broken(*_):
        raise RuntimeError("ours")

    made = LoadGenerator(
        [Arrival("a", 0, 1, 1), Arrival("b", 10**12 * 60, 1, 1)], broken, ClientClock(), Stop(), lambda: None
    )
    made.open_loop()
    with pytest.raises(RuntimeError, match="ours"):
        made.ended()


# -- what an event of a streamed completion says


def test_a_chunk_says_what_it_says_and_nothing_else():
    usage = {"prompt_tokens": 7, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 4}}
    found = chunk_of(json.dumps({"choices": [], "usage": usage}))
    assert (found.text, found.finish_reason, found.drafted, found.accepted) == ("", None, None, None)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (7, 0, 4)
    assert chunk_of('{"choices": [{"text": "", "finish_reason": "stop"}]}').finish_reason == "stop"
    assert chunk_of('{"choices": [{"delta": {"reasoning_content": "so"}}]}').text == "so"
    assert chunk_of('{"choices": [{"delta": {"reasoning": "so", "reasoning_content": "so"}}]}').text == "so"
    # Constants in fields that nobody reads do no harm.
    assert chunk_of('{"choices": [{"text": "a", "logprob": -Infinity}], "x": NaN}').text == "a"
    assert chunk_of('{"choices": [], "usage": {"prompt_tokens": NaN}}').prompt_tokens is None


SECOND, NO_JSON = "second choice: one answer was asked for", "an event is no JSON"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        *((json.dumps({"choices": several}), SECOND) for several in
          ([{"index": 1, "text": "b"}], [{"index": 0}, {"index": 1}], [{}, {}])),
        *((data, NO_JSON) for data in ("{half", "[1]", "7", '{"a": 1, "a": 2}')),
    ],
)  # fmt: skip
def test_an_event_that_is_none_is_refused(data, told):
    with pytest.raises(BrokenStreamError, match=told):
        chunk_of(data)


def test_messages_of_all_servers_are_read():
    said = "no such model"
    assert {message_of(one) for one in ({"error": {"message": said}}, {"error": said}, {"detail": said}, said)} == {
        said
    }


@pytest.mark.parametrize(
    ("timings", "pair", "odd"),
    [
        ({"draft_n": 8, "draft_n_accepted": 3}, (8, 3), ()),
        ({"draft_n": 0, "draft_n_accepted": 0}, (0, 0), ()),
        ({"draft_n": None}, (None, None), ()),
        ({"draft_n": 8}, (None, None), ("drafted",)),
        ({"draft_n": 8, "draft_n_accepted": None}, (None, None), ("drafted",)),
        ({"draft_n_accepted": 0}, (None, None), ("accepted",)),
        ({"draft_n": -1, "draft_n_accepted": 3}, (None, None), ("drafted", "accepted")),
        ({"draft_n": 8, "draft_n_accepted": "3"}, (None, None), ("accepted", "drafted")),
        ({"draft_n": 3, "draft_n_accepted": 8}, (None, None), ("drafted", "accepted")),
    ],
)
def test_half_a_pair_of_counts_is_named_and_the_rest_is_kept(timings, pair, odd):
    told = chunk_of(json.dumps({"choices": [{"text": "a"}], "usage": {"completion_tokens": 5}, "timings": timings}))
    assert (told.drafted, told.accepted) == pair
    assert told.odd == odd
    assert (told.text, told.output_tokens) == ("a", 5)


def test_drafts_of_a_request_are_read_as_vllm_tells_them():
    """In the last chunk, with `--per-request-spec-decode-metrics summary` or more."""
    told = {"speculative_decoding": {"num_draft_tokens": 12, "num_accepted_draft_tokens": 7, "num_spec_steps": 3}}
    found = chunk_of(json.dumps({"choices": [], "usage": {"completion_tokens": 11}, "metrics": told}))
    assert (found.drafted, found.accepted, found.output_tokens, found.odd) == (12, 7, 11, ())
    half = chunk_of(json.dumps({"choices": [], "metrics": {"speculative_decoding": {"num_draft_tokens": 12}}}))
    assert (half.drafted, half.accepted, half.odd) == (None, None, ("drafted",))
    assert chunk_of(json.dumps({"choices": [], "metrics": {"speculative_decoding": None}})).drafted is None


# -- counters of speculative decoding


POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def page(drafts, drafted, accepted, places=(), model="m", prefix="vllm:"):
    """As vLLM gives it, for two engines that share the counts."""
    lines = ["# HELP vllm:spec_decode_num_drafts_total Number of drafts.", "# TYPE vllm:spec_decode_num_drafts counter"]
    name = f"{prefix}spec_decode_num"
    for kind, value in (("drafts", drafts), ("draft_tokens", drafted), ("accepted_tokens", accepted)):
        lines.append(f'{name}_{kind}_total{{engine="0",model_name="{model}"}} {float(value)}')
        lines.append(f'{name}_{kind}_total{{engine="1",model_name="{model}"}} 1.0')
    labels = f'engine="0",model_name="{model}"'
    kept = f"{name}_accepted_tokens_per_pos_total"
    lines += [f'{kept}{{{labels},position="{place}"}} {float(value)}' for place, value in enumerate(places)]
    return "\n".join(lines)


def between(before, after, answers=()):
    found, why = acceptance_between(Counters(text=before), Counters(text=after), answers, "m")
    assert (found is None) == bool(why)
    # Whatever it is, the folder of a run can hold it.
    about = {"url": "u", "model": "m", "endpoint": "/", "workload": "w", "prompts": "p", "loop": "open"}
    ObservedMeta(**about, ended_at_ps=0, acceptance=found, acceptance_unknown=why)
    return found, why


COUNTS = st.lists(st.integers(0, 10**6), min_size=3, max_size=3)


@given(COUNTS, COUNTS, st.sampled_from(["vllm:", "llamacpp:"]))
def test_acceptance_is_what_was_counted_in_between(first, more, prefix):
    drafts, drafted, accepted = more[0], more[1], min(more[1:])
    later = [one + other for one, other in zip(first, (drafts, drafted, accepted), strict=True)]
    found, _ = between(page(*first, [5, 3], prefix=prefix), page(*later, [9, 3], prefix=prefix))
    assert (found.drafts, found.drafted, found.accepted) == (drafts, drafted, accepted)
    assert found.accepted_by_place == (4, 0)
    assert found.accept_length == (1 + accepted / drafts if drafts else None)
    assert found.rate == (accepted / drafted if drafted else None)
    assert found.source == f"counters of /metrics ({'vLLM' if prefix == 'vllm:' else 'llama.cpp'})"


def sglang(requests, tokens, steps):
    labels = 'model_name="m",is_streaming="true"'
    return (
        f"sglang:num_requests_total{{{labels}}} {requests}\nsglang:generation_tokens_total{{{labels}}} {tokens}\n"
        f'sglang:spec_verify_calls_total{{model_name="m"}} {steps}\nsglang:spec_accept_length{{model_name="m"}} 3.5'
    )


def trtllm(drafted, accepted):
    name = "trtllm_spec_decode_num"
    return (
        f'{name}_draft_tokens_total{{model_name="m"}} {drafted}\n'
        f'{name}_accepted_tokens_total{{model_name="m"}} {accepted}'
    )


def gauges(*values):
    return "\n".join(
        f'sglang:spec_accept_length{{dp_rank="{rank}",model_name="m"}} {value}' for rank, value in enumerate(values)
    )


def test_counters_of_each_engine_are_of_the_run():
    other = page(9, 9, 9, model="n")
    found, _ = between(f"{page(0, 0, 0)}\n{other}", f"{page(4, 8, 6)}\n{other}")
    assert (found.drafts, found.drafted, found.accepted) == (4, 8, 6)
    found, _ = between(sglang(5, 100, 40), sglang(15, 310, 120))
    assert (found.accept_length, found.source) == (2.5, "counters of /metrics (SGLang)")
    found, _ = between(trtllm(10, 5), trtllm(50, 35))
    assert (found.drafts, found.drafted, found.accepted) == (None, 40, 30)
    found, _ = between(gauges(2.75), gauges(2.75))
    assert (found.accept_length, found.drafted, found.accepted) == (2.75, None, None)
    assert "gauge" in found.source


def test_answers_of_llama_cpp_add_up():
    plain = ObservedRequest(request_id="r", prompt_id="p", asked_tokens=1, due_at_ps=0, sent_at_ps=0)
    answers = [replace(plain, drafted=8, accepted=3), plain, replace(plain, drafted=4, accepted=4)]
    for before, after in (("", ""), (page(9, 9, 9), page(1, 1, 1))):  # a page of no use spoils not what answers say
        found, _ = between(before, after, answers)
        assert (found.drafts, found.drafted, found.accepted, found.accept_length) == (None, 12, 7, None)
        assert found.source == "counts of 2 answers"


NOTHING = "no counters of speculative decoding"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("", page(9, 9, 9, model="/models/m"), "/metrics has counters of model /models/m, asked was m"),
        ("", "vllm:num_requests_running 0", f"/metrics has {NOTHING}, and no answer counts its drafts"),
        ("", "vllm:spec_decode_efficiency 0.4", f"{NOTHING} (but vllm:spec_decode_efficiency)"),
        (page(9, 9, 9), page(1, 1, 1), "the server was restarted in between"),
        (gauges(2.5, 2.7), gauges(2.5, 2.7), "two gauges, 2.5 and 2.7"),
        (gauges(2.7, 2.5, 2.6), gauges(2.7, 2.5, 2.6), "three gauges, 2.5, 2.6 and 2.7"),
        (gauges(1.5, 2.5, 2.6, 2, 3), gauges(1.5, 2.5, 2.6, 2, 3), "5 gauges, 1.5 to 3"),
        ("", page(9, 9, 9, model="\x1b[31mred\u2028" + "x" * 900), "red"),
        *((gauges(value), gauges(value), "") for value in ("-2.5", "NaN", "0", "0.4")),
        *((page(1, 2, 1), f"{page(9, 18, 9)}\n{bad}", "") for bad in (
            f"{POSITIONS}{{",
            *(f'vllm:spec_decode_num_drafts_total{{model_name="m"}} {value}' for value in
              ("-1", "NaN", "+Inf", "9" * 5000)),
            'vllm:spec_decode_num_drafts_total{model_name="m",pod="2"} 4',
            'vllm:spec_decode_num_drafts_total{model_name="m" ' + "," * 9999,
            'vllm:spec_decode_num_accepted_tokens_total{model_name="m",engine="7"} 100',
        )),
    ],
)  # fmt: skip
def test_what_tells_nothing_is_a_reason_and_no_end(before, after, told):
    found, why = between(before, after)
    assert found is None
    assert told in why
    assert why.isprintable()
    assert len(why) <= 400


@pytest.mark.parametrize(
    "labels", ['position="x"', 'position="-1"', f'position="{10**11}"', 'position="1\x1b[31m"', ""]
)
def test_a_position_that_cannot_be_read_leaves_the_totals(labels):
    bad = f'{POSITIONS}{{model_name="m"{"," * bool(labels)}{labels}}} 5'
    found, _ = between(page(1, 2, 1), f"{page(9, 18, 9)}\n{bad}")
    assert (found.drafts, found.drafted, found.accepted, found.accepted_by_place) == (8, 16, 8, None)
    assert "by position it is unknown: /metrics after the run, line 9: " in found.source
