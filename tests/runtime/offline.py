"""Decoding with everything in reach: world, loop, ledger and sessions, and what models say without a cache to compare.

Letters: V vocabulary.
"""

import copy
import dataclasses

import torch
from paceline.decoding.seen import Start
from paceline.policies import Policy, make_policy
from paceline.runtime.coupled_noise import RequestNoise
from paceline.runtime.decode import Run, decode, sessions_of
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.prompts import Prompt
from paceline.runtime.world import TorchWorld
from paceline.traces.meta import Sampling

GREEDY = Sampling(mode="greedy")
COUPLED = Sampling(mode="coupled", temperature=0.9, seed=5)
REJECTION = Sampling(mode="rejection", temperature=0.9, seed=3)
NUM_TOKENS = 16
# One that ends early, one with repeats for lookups to copy, and lengths far apart.
PROMPTS = (
    Prompt(request_id="one", text="a"),
    Prompt(request_id="two", text="hello there, how do you do?"),
    Prompt(request_id="three", text="the cat, the cat, the ca"),
    Prompt(request_id="four", text="pace line.\nriders draft"),
    Prompt(request_id="five", text="we go!"),
)


class Offline:
    """One run, from prompts to its log; `policy` by name or an object, `options` of the world."""

    def __init__(
        self,
        pool,
        policy,
        prompts=PROMPTS,
        *,
        sampling=GREEDY,
        num_tokens=NUM_TOKENS,
        world=TorchWorld,
        start=Start.prefill,
        debug=True,
        **options,
    ):
        self.members = loaded_pool(pool)
        built = make_policy(policy, self.members) if isinstance(policy, str) else policy
        self.world = world(pool=pool, sampling=sampling, debug=debug, **options)
        self.setup = Run(self.world, built, name="p")
        self.sessions = sessions_of(pool, prompts, num_tokens, start=start)

    def run(self, *, batch=1):
        for _ in self.setup.driver.run(self.sessions, batch):
            pass
        return self

    @property
    def texts(self):
        return [session.emitted for session in self.sessions]

    @property
    def failed(self):
        return self.setup.driver.failed

    @property
    def log(self):
        return self.setup.ledger.finish({"members": list(self.members.names)}, reanchored={}, divergent={})


def decoded(pool, policy, prompts=PROMPTS, *, sampling=GREEDY, num_tokens=NUM_TOKENS, **options):
    """(outputs, log) of `decode`."""
    built = make_policy(policy, loaded_pool(pool)) if isinstance(policy, str) else policy
    return decode(pool, built, prompts, sampling=sampling, max_new_tokens=num_tokens, name="p", **options)


class Decides(Policy):
    """A policy that one function of what is seen is."""

    def __init__(self, decide):
        self.decide = decide


def watched(note):
    """A kind of world that calls `note(world, level, items, results)` after every draft and verdict."""

    class Watched(TorchWorld):
        def draft(self, level, items):
            results = super().draft(level, items)
            note(self, level, items, results)
            return results

        def verify(self, level, items, chunks=()):
            results = super().verify(level, items, chunks)
            note(self, level, items, results)
            return results

    return Watched


def chosen(model, context, num_prompt, request_id, sampling=GREEDY):
    """The token that a model writes after a context, without a cache: greedy or coupled."""
    scores = logits_after(model, context)
    if sampling.mode == "coupled":
        noise = RequestNoise(seed=sampling.seed, request_id=request_id, vocab_size=model.config.vocab_size)
        scores = scores / sampling.temperature + torch.from_numpy(noise.at(len(context) - num_prompt))
    return int(scores.argmax())


def trunk(pool, prompt, *, sampling=GREEDY, num_tokens=NUM_TOKENS):
    """What the target writes alone."""
    context, start = pool.encode(prompt.text), len(pool.encode(prompt.text))
    while len(context) < start + num_tokens and pool.eos_token_ids[0] not in context[start:]:
        context.append(chosen(pool.target.model, context, start, prompt.request_id, sampling))
    return context[start:]


@torch.inference_mode()
def logits_after(model, context):
    """`[V]` without any cache."""
    return model(torch.tensor([list(context)]), use_cache=False).logits[0, -1]


def with_models(pool, **models):
    """The pool with other networks for the members named."""
    members = tuple(dataclasses.replace(member, model=models.get(member.name, member.model)) for member in pool.members)
    return dataclasses.replace(pool, members=members)


def in_double(pool):
    """The pool in float64, where no rounding can turn a choice."""
    models = {member.name: copy.deepcopy(member.model).double() for member in pool.members if member.model is not None}
    return with_models(pool, **models)
