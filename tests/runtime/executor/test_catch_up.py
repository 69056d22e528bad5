"""A member that sat out reads what it missed: its drafts and verdicts are those of one that never did."""

import dataclasses

import pytest
from paceline.policies import Verify
from paceline.policies.fixed import Chain
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.prompts import Prompt
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld

from ..offline import COUPLED, GREEDY, Offline, in_double, logits_after

NUM_TOKENS = 84
CHAIN = "draft:2/mid:3/target"
PROMPTS = tuple(Prompt(request_id=name, text=name) for name in ("a", "the", "cat", "pace"))


@pytest.fixture(scope="module")
def pool(tiny_pool):
    """Texts that go on to the budget."""
    return dataclasses.replace(in_double(tiny_pool), eos_token_ids=())


class SitsOut(Chain):
    """Plain decoding for so many rounds, then a chain."""

    def __init__(self, pool, rounds):
        super().__init__(pool, CHAIN)
        self._rounds = rounds

    def decide(self, seen):
        sits_out = seen.num_emitted < self._rounds[seen.request_id]
        return Verify(seen.pool.target) if sits_out else super().decide(seen)


class Noting(TorchWorld):
    """Notes what members wrote and accepted, by request, and how many tokens each forward was fed."""

    def __init__(self, **options):
        super().__init__(**options)
        self.noted = {}

    def draft(self, level, items):
        results = super().draft(level, items)
        for (session, _), row in zip(items, results.rows, strict=True):
            self.note(session, level, "draft", tuple(row.tokens))
        return results

    def verify(self, level, items):
        results = super().verify(level, items)
        for (session, _), row in zip(items, results.rows, strict=True):
            self.note(session, level, "verify", (row.num_accepted, row.own_token))
        return results

    def note(self, session, level, kind, said):
        context, cached = session.tail(0), session.cached[level]
        self.noted.setdefault(session.request_id, []).append((level, kind, said, context, cached))


def noted(pool, policy, prompts, num_tokens, **options):
    offline = Offline(pool, policy, prompts, num_tokens=num_tokens, world=Noting, **options)
    return offline, offline.world.noted


@pytest.mark.parametrize(
    ("cache", "batch", "sampling"),
    [("slots", 4, GREEDY), ("mask", 3, COUPLED)],
    ids=lambda value: getattr(value, "mode", str(value)),
)
def test_steps_after_sitting_out_are_those_of_a_member_that_was_there(pool, cache, batch, sampling):
    """Each request comes back at another time, so that backlogs in a batch differ."""
    rounds = {prompt.request_id: 50 + 4 * index for index, prompt in enumerate(PROMPTS)}
    options = {"sampling": sampling, "memory": Memory(cache=cache)}
    policy = SitsOut(loaded_pool(pool), rounds)
    late, by_request = noted(pool, policy, PROMPTS, NUM_TOKENS, **options)
    late.run(batch=batch)
    plain = Offline(pool, "plain", PROMPTS, sampling=sampling, num_tokens=NUM_TOKENS).run(batch=4)
    assert late.texts == plain.texts
    for prompt in PROMPTS:
        name = prompt.request_id
        there, always = noted(pool, Follows(loaded_pool(pool), rounds[name]), (prompt,), NUM_TOKENS, **options)
        there.run()
        steps = [step[:4] for step in by_request[name] if len(step[3]) >= len(pool.encode(prompt.text)) + rounds[name]]
        assert steps == [step[:4] for step in always[name]][-len(steps) :]
        assert sum(said[0] for _, kind, said, *_ in steps if kind == "verify") > 0


class Follows(Chain):
    """Plain decoding with every member reading along, then the chain: nobody ever has to catch up."""

    def __init__(self, pool, rounds):
        super().__init__(pool, CHAIN)
        self._rounds = rounds
        self._turn = 0

    def decide(self, seen):
        if seen.num_emitted >= self._rounds:
            return super().decide(seen)
        if seen.num_pending:
            return Verify(seen.pool.target)
        # One token by one of the small ones, which the target then replaces or keeps.
        self._turn += 1
        return Verify("mid") if self._turn % 2 and seen.room > 1 else self._draft_one

    @property
    def _draft_one(self):
        return dataclasses.replace(self._draft, tokens=1)


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_drafts_after_sitting_out_need_no_cache_to_be_explained(pool, cache):
    rounds = {prompt.request_id: 50 for prompt in PROMPTS}
    options = {"memory": Memory(cache=cache)}
    offline, by_request = noted(pool, SitsOut(loaded_pool(pool), rounds), PROMPTS, 70, **options)
    offline.run(batch=4)
    num_drafts = 0
    for steps in by_request.values():
        for level, kind, said, context, _ in steps:
            if kind == "draft":
                num_drafts += 1
                for token in said:
                    model = pool.members[level].model
                    assert token == int(logits_after(model, context).argmax())
                    context = [*context, token]
    assert num_drafts > 4 * 4


def test_catching_up_is_one_forward_over_all_that_was_missed(pool):
    rounds = {PROMPTS[0].request_id: 50}
    offline, by_request = noted(pool, SitsOut(loaded_pool(pool), rounds), PROMPTS[:1], 60)
    log = offline.run().log
    first = next(step for step in by_request["a"] if step[0] == 1)
    assert first[4] == 0  # it held nothing
    drafts = log.ops["level"] == 1
    assert log.ops["new_tokens"][drafts][0] == len(first[3]) + len(first[2]) - 1
    assert (log.ops["new_tokens"][drafts][1:] < 12).all()
