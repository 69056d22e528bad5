"""A run from prompts to outputs: what is told while it goes on, where answers end, and what an interrupt leaves."""

import dataclasses
from collections import defaultdict

import pytest
from paceline.policies import Commit, Draft, make_policy
from paceline.policies.fixed import Chain
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.threads import Memory
from paceline.traces.meta import Sampling

from .conftest import ALPHABET
from .offline import COUPLED, GREEDY, NUM_TOKENS, PROMPTS, trunk

POLICY = "draft:2/mid:4/target"


def decoded(pool, policy=POLICY, *, prompts=PROMPTS, sampling=GREEDY, num_tokens=NUM_TOKENS, **options):
    built = make_policy(policy, loaded_pool(pool)) if isinstance(policy, str) else policy
    return decode(pool, built, prompts, sampling=sampling, max_new_tokens=num_tokens, name="p", **options)


@pytest.fixture(scope="module")
def trunks(tiny_pool):
    return {prompt.request_id: tuple(trunk(tiny_pool, prompt)) for prompt in PROMPTS}


def text_of(tokens):
    return "".join(ALPHABET[token] for token in tokens)


@pytest.mark.parametrize("batch", [1, 3])
def test_outputs_stand_in_the_order_of_prompts(tiny_pool, trunks, batch):
    outputs, log = decoded(tiny_pool, batch=batch)
    assert {output.request_id: output.tokens for output in outputs} == trunks
    assert [output.request_id for output in outputs] == [prompt.request_id for prompt in PROMPTS]
    assert [output.finish_reason for output in outputs] == [
        "eos" if tokens[-1] == tiny_pool.eos_token_ids[0] else "length" for tokens in trunks.values()
    ]
    assert all(output.error == "" and output.text == tiny_pool.decode(list(output.tokens)) for output in outputs)
    assert log.meta["interrupted"] is False
    assert log.requests["failed"].tolist() == [""] * len(PROMPTS)


def test_the_log_says_where_it_is_from(tiny_pool):
    _, log = decoded(tiny_pool, "draft:3/target", sampling=COUPLED, num_tokens=8, memory=Memory(cache="mask"), batch=2)
    assert log.meta["world"] == "runtime"
    assert log.meta["sampling"] == COUPLED.model_dump()
    assert (log.meta["cache"], log.meta["batch"]) == ("mask", 2)
    assert set(log.meta["forward"]) == {"draft", "mid", "slim", "target"}
    assert 0 < log.meta["policy_s"] < log.ops["duration_s"].sum()
    assert 0 < log.meta["phases"]["forward_s"] < log.ops["duration_s"].sum()
    assert log.meta["plain_step_s"] > 0
    assert (log.ops["duration_s"] > 0).all()
    assert (log.steps["end_s"][1:] >= log.steps["end_s"][:-1]).all()


@pytest.mark.parametrize("policy", ["plain", POLICY, "ngram", "commits"])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_committed_token_is_told_once_in_order(tiny_pool, trunks, policy, batch):
    told, texts = defaultdict(list), defaultdict(str)

    def on_token(request_id, token, text):
        told[request_id].append(token)
        texts[request_id] += text

    chosen = Committing(loaded_pool(tiny_pool), POLICY) if policy == "commits" else policy
    outputs, _ = decoded(tiny_pool, chosen, batch=batch, on_token=on_token)
    assert {output.request_id: output.tokens for output in outputs} == {
        name: tuple(tokens) for name, tokens in told.items()
    }
    assert {output.request_id: output.text for output in outputs} == dict(texts)
    if policy != "commits":
        assert dict(told) == {name: list(tokens) for name, tokens in trunks.items()}


class Committing(Chain):
    """Takes drafts as they are: requests end without an operation."""

    def decide(self, seen):
        return Commit(seen.num_pending) if seen.num_pending else Draft("draft", 3)


def test_tokens_are_told_while_others_still_run(tiny_pool):
    """Interleaved, not request by request."""
    order = []
    decoded(tiny_pool, "plain", batch=3, on_token=lambda request_id, *_: order.append(request_id))
    assert order[:6] == ["one", "two", "three", "one", "two", "three"]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", ["plain", POLICY, "ngram"])
def test_a_stop_string_ends_an_answer_wherever_rounds_end(tiny_pool, trunks, policy, batch):
    whole = text_of(trunks["two"])
    stop = whole[7:10]
    outputs, _ = decoded(tiny_pool, policy, batch=batch, stop=(stop, "\0"))
    for output in outputs:
        text = text_of(trunks[output.request_id])
        if stop in text:
            end = text.index(stop) + len(stop)
            assert output.tokens == trunks[output.request_id][:end]
            assert output.text == text[: text.index(stop)]
            assert output.finish_reason == "stop"
        else:
            assert output.tokens == trunks[output.request_id]
            assert output.finish_reason != "stop"
    assert outputs[1].finish_reason == "stop"


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED, Sampling(mode="rejection", temperature=1.0, seed=1)], ids=str)
def test_a_stop_string_that_is_everywhere_ends_at_once(tiny_pool, sampling):
    outputs, _ = decoded(tiny_pool, batch=3, stop=tuple(ALPHABET), sampling=sampling)
    assert {(len(output.tokens), output.text, output.finish_reason) for output in outputs} == {(1, "", "stop")}


@pytest.mark.parametrize("policy", ["plain", POLICY])
def test_another_end_of_sequence_token_of_the_target_ends_an_answer(tiny_pool, trunks, policy):
    extra = trunks["two"][9]
    pool = dataclasses.replace(tiny_pool, eos_token_ids=(*tiny_pool.eos_token_ids, extra))
    outputs, _ = decoded(pool, policy, batch=3)
    for output in outputs:
        tokens = trunks[output.request_id]
        ends = [index for index, token in enumerate(tokens) if token == extra]
        assert output.tokens == (tokens[: ends[0] + 1] if ends else tokens)
        assert (output.finish_reason == "eos") == bool(ends or tokens[-1] in tiny_pool.eos_token_ids)


class Impatient(Chain):
    """The user presses Ctrl-C at the n-th step."""

    def __init__(self, pool, spec, at):
        super().__init__(pool, spec)
        self.left = at

    def decide(self, seen):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().decide(seen)


@pytest.mark.parametrize("at", [1, 2, 20, 45, 10_000])
@pytest.mark.parametrize("batch", [1, 2])
def test_an_interrupt_keeps_what_is_finished(tiny_pool, trunks, at, batch):
    policy = Impatient(loaded_pool(tiny_pool), POLICY, at)
    outputs, log = decoded(tiny_pool, policy, batch=batch)
    assert log.meta["interrupted"] is (policy.left <= 0)
    assert_finished_are_kept(outputs, log, trunks)
    if at == 1:
        assert outputs == ()
    if at == 10_000:
        assert len(outputs) == len(PROMPTS)


@pytest.mark.parametrize("at", [1, 10, 24, 25, 60])
@pytest.mark.parametrize("batch", [1, 3])
def test_an_interrupt_while_tokens_are_told_keeps_what_is_finished(tiny_pool, trunks, at, batch):
    """The last token of an answer may be the one: the answer is finished all the same."""
    told = []

    def on_token(*token):
        told.append(token)
        if len(told) == at:
            raise KeyboardInterrupt

    outputs, log = decoded(tiny_pool, batch=batch, on_token=on_token)
    assert log.meta["interrupted"] is True
    assert_finished_are_kept(outputs, log, trunks)
    if (at, batch) == (24, 1):
        assert [output.request_id for output in outputs] == ["one"]


def assert_finished_are_kept(outputs, log, trunks):
    """Every output is whole, and the log says "interrupted" of all other requests that began."""
    for output in outputs:
        assert output.tokens == trunks[output.request_id]
        assert output.error == ""
    finished = {output.request_id for output in outputs}
    for request_id, reason in zip(log.requests["request_id"], log.requests["failed"], strict=True):
        assert reason == ("" if request_id in finished else "interrupted")


def test_input_that_cannot_be_decoded_is_refused(tiny_pool):
    with pytest.raises(ValueError, match="`prompts` must have unique ids, got 'one' twice"):
        decoded(tiny_pool, prompts=[PROMPTS[0], PROMPTS[0]])
    with pytest.raises(ValueError, match="request one: prompt of 1 token and `max_new_tokens` 96 must fit"):
        decoded(tiny_pool, num_tokens=96)
    with pytest.raises(ValueError, match="`batch` must be >= 1, got 0"):
        decoded(tiny_pool, batch=0)
    with pytest.raises(ValueError, match="stop"):
        decoded(tiny_pool, stop=("",))


def test_nothing_to_decode_is_answered_with_nothing(tiny_pool):
    outputs, log = decoded(tiny_pool, prompts=())
    assert outputs == ()
    assert len(log.requests["request_id"]) == 0


def test_a_context_filled_to_the_last_position(tiny_pool):
    outputs, _ = decoded(tiny_pool, prompts=PROMPTS[:1], num_tokens=tiny_pool.context_tokens - 1)
    assert list(outputs[0].tokens) == trunk(tiny_pool, PROMPTS[0], num_tokens=tiny_pool.context_tokens - 1)
