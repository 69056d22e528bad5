"""What a run on this machine is made of: a world, and all that drives it."""

from dataclasses import asdict
from typing import Any

from ..policies.contract import Policy
from ..policies.loop import Loop
from ..policies.pool import Pool
from ..policies.session import Ending, Session
from ..traces.run_ledger import RunLedger
from .driver import Driver, OnCommit
from .pools.loaded_pool import loaded_pool
from .pools.pool import ModelPool
from .prompts import Prompt
from .timed_policy import TimedPolicy
from .world import TorchWorld


class Run:
    """A world with a policy, the loop that asks it, the driver of the loop and the ledger of both.

    Args:
        world: of the models.
        policy: built for `loaded_pool(world.pool)`; one object for all requests.
        name: of the policy, for errors and the log.
        on_commit: told of every request's newly committed tokens.

    Attributes:
        world: as given.
        members: the pool as the policy sees it.
        ledger: told of all that happens.
        driver: answers the sessions of the run.
    """

    def __init__(self, world: TorchWorld, policy: Policy, *, name: str, on_commit: OnCommit | None = None) -> None:
        self.world = world
        self.members = loaded_pool(world.pool)
        self.ledger = RunLedger()
        self._name = name
        self._timed = TimedPolicy(policy)
        loop = Loop(pool=self.members, policy=self._timed, name=name, world=world, ledger=self.ledger)
        self.driver = Driver(loop, world, self.ledger, on_commit=on_commit)

    def meta(self, *, pool: str, max_new_tokens: int, batch: int) -> dict[str, Any]:
        """What a run log says of the run so far; `pool` is the name of the models."""
        return {
            "world": "runtime",
            "policy": self._name,
            "pool": pool,
            "sampling": self.world.sampling.model_dump(),
            "max_new_tokens": max_new_tokens,
            "batch": batch,
            "cache": self.world.memory.cache,
            "forward": self.world.forward_names,
            "members": list(self.members.names),
            "policy_s": self._timed.seconds,
            "phases": asdict(self.world.phases),
        }


def session_of(
    pool: ModelPool, members: Pool, prompt: Prompt, max_new_tokens: int, ending: Ending | None = None
) -> Session:
    """The request that a prompt is; `members` are those of the run.

    Raises:
        ValueError: the prompt does not fit into the pool's context with its budget.
    """
    tokens = tuple(pool.encode(prompt.text))
    if len(tokens) + max_new_tokens > pool.context_tokens:
        raise ValueError(
            f"request {prompt.request_id}: prompt of {len(tokens)} tokens and max_new_tokens {max_new_tokens} must fit "
            f"into the pool's context of {pool.context_tokens} tokens"
        )
    return Session(
        pool=members,
        request_id=prompt.request_id,
        tag=prompt.tag,
        prompt=tokens,
        budget=max_new_tokens,
        eos=pool.eos_token_id,
        ending=ending,
    )
