"""Recordings written by hand, seconds that can be summed in the head, and policies that do as they are told."""

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import numpy as np
from paceline.decoding.seen import Start
from paceline.policies import Commit, Draft, Exact, Policy, Verify
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostModel
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import Closure, NgramInfo, Sampling, Trie, TrieMeta, TrieRecording, TrieRequest
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS

from ...strategies import model_info

TWO = ("draft", "target")
THREE = ("draft", "mid", "target")
EXACT = (Exact(),)


def request_of(views, *, request_id="r0", tag="a", prompt=(1, 2, 3), budget=8, own=None):
    """A request from `views`: tokens after the prompt -> the token each model writes there, smallest model first.

    Every model gives its own token a log-probability of -0.5, and any other recorded token -1.0, or what `own` says:
    tokens after the prompt -> log-probability each model gave to the last of them.
    """
    contexts = sorted(views, key=lambda context: (len(context), context))
    place = {context: node for node, context in enumerate(contexts)}
    trunk = {()}
    context = ()
    while len(context) < budget and (*context, views[context][-1]) in views:
        context = (*context, views[context][-1])
        trunk.add(context)
    num_models, size = len(views[()]), len(contexts)
    flat = np.ones((num_models, size))
    own_log_prob = [
        (own or {}).get(context, (-1.0,) * num_models) if context else (0.0,) * num_models for context in contexts
    ]
    trie = Trie(
        parent=np.array([place[context[:-1]] if context else -1 for context in contexts], np.int32),
        token=np.array([context[-1] if context else -1 for context in contexts], np.int32),
        depth=np.array([len(context) for context in contexts], np.int32),
        on_trunk=np.array([context in trunk for context in contexts]),
        next_token=np.array([views[context] for context in contexts], np.int32).T.copy(),
        next_log_prob=LOG_PROBS.round(-0.5 * flat),
        top_log_prob=LOG_PROBS.round(-0.5 * flat),
        gap=UNITS.round(0.25 * flat),
        entropy=ENTROPIES.round(flat),
        own_log_prob=LOG_PROBS.round(np.array(own_log_prob).T),
        tvd=UNITS.round(0.25 * np.ones((num_models * (num_models - 1) // 2, size))),
    )
    return TrieRequest(request_id=request_id, tag=tag, prompt=prompt, max_new_tokens=budget, trie=trie)


def trace_of(*requests, models=TWO, eos=None, ngram=False):
    meta = TrieMeta(
        name="by hand",
        kind="recorded",
        models=tuple(model_info(name) for name in models),
        ngram=NgramInfo(name="ngram", max_match=3) if ngram else None,
        vocab_size=64,
        eos_token_ids=() if eos is None else (eos,),
        sampling=Sampling(mode="greedy"),
        closure=Closure(kind="full", reach=8, run=8),
    )
    return TrieRecording(meta=meta, requests=requests)


def with_ngram(trace):
    """The same recording of a pool that also has prompt lookup."""
    return TrieRecording(
        meta=trace.meta.model_copy(update={"ngram": NgramInfo(name="ngram", max_match=3)}), requests=trace.requests
    )


def trunk_of(trace):
    """What the target writes for each request."""
    return {record.request_id: record.trie.token[record.trie.trunk[1:]].tolist() for record in trace.requests}


@dataclass
class EasyCost(CostModel):
    """1 s for a forward of the smallest, 2 s for the next, and so on; 1/16 s per new token, 1/1024 s per token held.

    All are binary fractions, so that sums are exact. Keeps what it was asked.
    """

    base: dict[str, float]
    name: str = "easy"
    lookup_s: float = 1 / 64
    asked: list[tuple] = field(default_factory=list)

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        self.asked.append((model, num_rows, new_tokens, context_tokens))
        return self.base[model] + new_tokens / 16 + context_tokens / 1024


def easy_cost(trace):
    return EasyCost({name: 1.0 + level for level, name in enumerate(trace.meta.model_names)})


def replay(trace, policy, *, name="policy", cost=None, **scenario):
    """(run log, committed tokens by request)."""
    outputs = {}
    cost = easy_cost(trace) if cost is None else cost
    log = simulate(Scenario(tables=TrieTables(trace), cost=cost, **scenario), policy, name, outputs=outputs)
    return log, outputs


def replay_bare(trace, policy, **scenario):
    """The same from the bare prompt on, without a prefill: every step is the policy's."""
    return replay(trace, policy, start=Start.draft, **scenario)


def table(log, part, *names):
    """Some columns of a log, row by row."""
    columns = getattr(log, part)
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


class Script(Policy):
    """Takes every request through the same steps, or its own; the target alone after the last one."""

    def __init__(self, pool, steps):
        self._steps = steps if isinstance(steps, dict) else defaultdict(lambda: steps)
        self._taken = defaultdict(int)
        self._rest = Verify(pool.target)

    def decide(self, seen):
        steps, taken = self._steps[seen.request_id], self._taken[seen.request_id]
        self._taken[seen.request_id] += 1
        return steps[taken] if taken < len(steps) else self._rest


class Anything(Policy):
    """Any legal step, by chance of the request alone: a batch does not change what a request does.

    Args:
        rules: what verifiers may be asked to apply.
        commits: whether Commit is among the steps.
    """

    def __init__(self, pool, seed, *, rules=EXACT, commits=False):
        self._pool, self._seed, self._rules, self._commits = pool, seed, rules, commits
        self._rng = {}

    def decide(self, seen):
        rng = self._rng.setdefault(seen.request_id, Random(f"{self._seed} {seen.request_id}"))
        return rng.choice(self._legal(seen, rng))

    def _legal(self, seen, rng):
        found_nothing = seen.last is not None and isinstance(seen.last.step, Draft) and not seen.last.num_drafted
        steps = []
        for member in self._pool.members:
            if member.name != self._pool.target and seen.room > 0 and not (member.model_free and found_nothing):
                steps.append(Draft(member.name, rng.randint(1, 5)))
            if member.verifies and (not seen.num_pending or seen.waiting(member.name)):
                steps.append(Verify(member.name, rng.choice(self._rules)))
        if self._commits and seen.num_pending:
            steps.append(Commit(rng.randint(1, seen.num_pending)))
        return steps
