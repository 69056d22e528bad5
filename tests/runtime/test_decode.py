"""A run from prompts to outputs: what is told while it goes on, where answers end, and what an interrupt leaves."""

import dataclasses
from collections import defaultdict

import pytest
from paceline.policies import Commit, Draft, make_policy
from paceline.policies.fixed import Chain
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.refusals import refuse_oracle
from paceline.runtime.threads import Memory

from .conftest import ALPHABET
from .offline import COUPLED, GREEDY, PROMPTS, REJECTION, Decides, decoded, trunk

POLICY = "draft:2/mid:4/target"


@pytest.fixture(scope="module")
def trunks(tiny_pool):
    return {prompt.request_id: tuple(trunk(tiny_pool, prompt)) for prompt in PROMPTS}


def text_of(tokens):
    return "".join(ALPHABET[token] for token in tokens)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", ["plain", POLICY, "ngram"])
def test_outputs_stand_in_order_and_every_token_was_told_once(tiny_pool, trunks, policy, batch):
    told, texts = defaultdict(list), defaultdict(str)

    def on_token(request_id, token, text):
        told[request_id].append(token)
        texts[request_id] += text

    outputs, log = decoded(tiny_pool, policy, batch=batch, on_token=on_token)
    assert [output.request_id for output in outputs] == [prompt.request_id for prompt in PROMPTS]
    assert {name: tuple(tokens) for name, tokens in told.items()} == trunks
    for output in outputs:
        tokens = trunks[output.request_id]
        assert (output.tokens, output.text, output.error) == (tokens, text_of(tokens), "")
        assert output.text == texts[output.request_id]
        assert output.finish_reason == ("eos" if tokens[-1] == tiny_pool.eos_token_ids[0] else "length")
    assert log.meta["interrupted"] is False
    assert log.requests["failed"].tolist() == [""] * len(PROMPTS)


@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_committed_as_it_was_drafted_is_told_too(tiny_pool, batch):
    """Requests end without an operation."""
    told = defaultdict(list)
    commits = Decides(lambda seen: Commit(seen.num_pending) if seen.num_pending else Draft("draft", 3))
    outputs, _ = decoded(tiny_pool, commits, batch=batch, on_token=lambda name, token, _: told[name].append(token))
    assert {output.request_id: list(output.tokens) for output in outputs} == told


def test_tokens_are_told_while_others_still_run(tiny_pool):
    """Interleaved, not request by request."""
    order = []
    decoded(tiny_pool, "plain", batch=3, on_token=lambda request_id, *_: order.append(request_id))
    assert order[:6] == ["one", "two", "three", "one", "two", "three"]


def test_the_log_says_where_it_is_from(tiny_pool):
    _, log = decoded(tiny_pool, "draft:3/target", sampling=COUPLED, num_tokens=8, memory=Memory(cache="mask"), batch=2)
    said = (log.meta["world"], log.meta["sampling"], log.meta["cache"], log.meta["batch"])
    assert said == ("runtime", COUPLED.model_dump(), "mask", 2)
    assert set(log.meta["forward"]) == {"draft", "mid", "slim", "target"}
    assert 0 < log.meta["policy_s"] < log.ops["duration_s"].sum()
    assert 0 < log.meta["phases"]["forward_s"] < log.ops["duration_s"].sum()
    assert log.meta["plain_step_s"] > 0
    assert (log.ops["duration_s"] > 0).all()
    assert (log.steps["end_s"][1:] >= log.steps["end_s"][:-1]).all()


@pytest.mark.parametrize(("policy", "batch"), [("plain", 1), (POLICY, 1), (POLICY, 3), ("ngram", 3)])
def test_a_stop_string_ends_an_answer_wherever_rounds_end(tiny_pool, trunks, policy, batch):
    stop = text_of(trunks["two"])[7:10]
    outputs, _ = decoded(tiny_pool, policy, batch=batch, stop=(stop, "\0"))
    for output in outputs:
        tokens = trunks[output.request_id]
        before, found, _ = text_of(tokens).partition(stop)
        assert output.text == before
        assert output.tokens == tokens[: len(before + found)]
        assert (output.finish_reason == "stop") == bool(found)
    assert outputs[1].finish_reason == "stop"


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED, REJECTION], ids=str)
def test_a_stop_string_that_is_everywhere_ends_at_once(tiny_pool, sampling):
    outputs, _ = decoded(tiny_pool, POLICY, batch=3, stop=tuple(ALPHABET), sampling=sampling)
    assert {(len(output.tokens), output.text, output.finish_reason) for output in outputs} == {(1, "", "stop")}


@pytest.mark.parametrize("policy", ["plain", POLICY])
def test_another_end_of_sequence_token_of_the_target_ends_an_answer(tiny_pool, trunks, policy):
    extra = trunks["two"][9]
    pool = dataclasses.replace(tiny_pool, eos_token_ids=(*tiny_pool.eos_token_ids, extra))
    for output in decoded(pool, policy, batch=3)[0]:
        tokens = trunks[output.request_id]
        assert output.tokens == (tokens[: tokens.index(extra) + 1] if extra in tokens else tokens)
        assert (output.finish_reason == "eos") == (output.tokens[-1] in pool.eos_token_ids)


class Impatient(Chain):
    """The user presses Ctrl-C at the n-th step."""

    def __init__(self, pool, at):
        super().__init__(pool, POLICY)
        self.left = at

    def decide(self, seen):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().decide(seen)


@pytest.mark.parametrize(
    ("where", "at", "batch", "num_ended"),
    [
        ("steps", 1, 1, 0),
        ("steps", 2, 2, 0),
        ("steps", 20, 1, None),
        ("steps", 45, 2, None),
        ("steps", 10_000, 1, 5),
        ("tokens", 1, 3, 0),
        ("tokens", 10, 1, 0),
        ("tokens", 24, 1, 1),  # the last token of an answer: it is finished all the same
        ("tokens", 25, 1, None),
        ("tokens", 60, 3, None),
    ],
)
def test_an_interrupt_keeps_what_is_finished(tiny_pool, trunks, where, at, batch, num_ended):
    policy, told = Impatient(loaded_pool(tiny_pool), at if where == "steps" else 10_000), []

    def on_token(*token):
        told.append(token)
        if len(told) == at and where == "tokens":
            raise KeyboardInterrupt

    outputs, log = decoded(tiny_pool, policy, batch=batch, on_token=on_token)
    assert log.meta["interrupted"] is (at < 10_000)
    assert all((output.tokens, output.error) == (trunks[output.request_id], "") for output in outputs)
    finished = {output.request_id for output in outputs}
    assert num_ended in {None, len(finished)}
    for request_id, reason in zip(log.requests["request_id"], log.requests["failed"], strict=True):
        assert reason == ("" if request_id in finished else "interrupted")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prompts": [PROMPTS[0], PROMPTS[0]]}, "`prompts` must have unique ids, got 'one' twice"),
        ({"num_tokens": 96}, "request one: prompt of 1 token and `max_new_tokens` 96 must fit"),
        ({"batch": 0}, "`batch` must be >= 1, got 0"),
        ({"stop": ("",)}, "stop"),
        ({"policy": "oracle-window"}, "^policy p sees ahead, which only a recording allows$"),
        ({"policy": "oracle-chain"}, "^policy p sees ahead, which only a recording allows$"),
    ],
)
def test_what_cannot_be_decoded_is_refused(tiny_pool, options, told):
    with pytest.raises(ValueError, match=told):
        decoded(tiny_pool, **{"policy": POLICY, **options})
    refuse_oracle(make_policy("two-level", loaded_pool(tiny_pool)), "two-level")


def test_nothing_to_decode_is_answered_with_nothing(tiny_pool):
    outputs, log = decoded(tiny_pool, POLICY, prompts=())
    assert (outputs, len(log.requests["request_id"])) == ((), 0)


def test_a_context_filled_to_the_last_position(tiny_pool):
    outputs, _ = decoded(tiny_pool, POLICY, prompts=PROMPTS[:1], num_tokens=tiny_pool.context_tokens - 1)
    assert list(outputs[0].tokens) == trunk(tiny_pool, PROMPTS[0], num_tokens=tiny_pool.context_tokens - 1)
