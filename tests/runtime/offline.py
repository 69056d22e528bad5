"""Decoding with everything in reach: world, loop, ledger and sessions, and the text of the target alone to compare.

Letters: V vocabulary.
"""

import copy
import dataclasses
from collections.abc import Sequence

import torch
from paceline.decoding.seen import Start
from paceline.policies import make_policy
from paceline.runtime.coupled_noise import RequestNoise
from paceline.runtime.decode import Run, sessions_of
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.runtime.world import TorchWorld
from paceline.traces.meta import Sampling

GREEDY = Sampling(mode="greedy")
COUPLED = Sampling(mode="coupled", temperature=0.9, seed=5)
NUM_TOKENS = 24
# One that ends early, one with repeats for lookups to copy, and lengths far apart.
PROMPTS = (
    Prompt(request_id="one", text="a"),
    Prompt(request_id="two", text="hello there, how do you do?"),
    Prompt(request_id="three", text="the cat, the cat, the ca"),
    Prompt(request_id="four", text="pace line.\nriders draft"),
    Prompt(request_id="five", text="we go!"),
)


class Offline:
    """One run, from prompts to its log.

    Args:
        pool: the models.
        policy: by name, or an object.
        prompts: their ids must differ.
        world: of another class than TorchWorld.
        start: how requests begin.
        options: of the world.
    """

    def __init__(
        self,
        pool: ModelPool,
        policy: object,
        prompts: Sequence[Prompt] = PROMPTS,
        *,
        sampling: Sampling = GREEDY,
        num_tokens: int = NUM_TOKENS,
        world: type[TorchWorld] = TorchWorld,
        start: Start = Start.prefill,
        debug: bool = True,
        **options: object,
    ) -> None:
        self.members = loaded_pool(pool)
        built = make_policy(policy, self.members) if isinstance(policy, str) else policy
        self.world = world(pool=pool, sampling=sampling, debug=debug, **options)
        self.setup = Run(self.world, built, name="p")
        self.sessions = sessions_of(pool, prompts, num_tokens, start=start)

    def run(self, *, batch: int = 1) -> "Offline":
        for _ in self.setup.driver.run(self.sessions, batch):
            pass
        return self

    @property
    def texts(self) -> list[list[int]]:
        return [session.emitted for session in self.sessions]

    @property
    def failed(self) -> dict[str, Exception]:
        return self.setup.driver.failed

    @property
    def log(self):
        return self.setup.ledger.finish({"members": list(self.members.names)}, reanchored={}, divergent={})


def trunk(pool: ModelPool, prompt: Prompt, *, sampling: Sampling = GREEDY, num_tokens: int = NUM_TOKENS) -> list[int]:
    """What the target writes alone, without a cache: greedy or coupled."""
    noise = None
    model = pool.target.model
    if sampling.mode == "coupled":
        noise = RequestNoise(seed=sampling.seed, request_id=prompt.request_id, vocab_size=model.config.vocab_size)
    context, start = pool.encode(prompt.text), len(pool.encode(prompt.text))
    while len(context) < start + num_tokens and pool.eos_token_ids[0] not in context[start:]:
        scores = logits_after(model, context)
        if noise is not None:
            scores = scores / sampling.temperature + torch.from_numpy(noise.at(len(context) - start))
        context.append(int(scores.argmax()))
    return context[start:]


@torch.inference_mode()
def logits_after(model: torch.nn.Module, context: Sequence[int]) -> torch.Tensor:
    """`[V]` without any cache."""
    return model(torch.tensor([list(context)]), use_cache=False).logits[0, -1]


def with_models(pool: ModelPool, **models: torch.nn.Module) -> ModelPool:
    """The pool with other networks for the members named."""
    members = tuple(dataclasses.replace(member, model=models.get(member.name, member.model)) for member in pool.members)
    return dataclasses.replace(pool, members=members)


def in_double(pool: ModelPool) -> ModelPool:
    """The pool in float64, where no rounding can turn a choice."""
    models = {member.name: copy.deepcopy(member.model).double() for member in pool.members if member.model is not None}
    return with_models(pool, **models)
