"""What a run on this machine is made of: a world, and all that drives it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..arguments import ArgumentError
from ..decoding.loop import Loop
from ..decoding.policy import Policy
from ..decoding.prefill import Start, prefill_before
from ..decoding.request_tokens import Ending
from ..decoding.session import Session
from ..policies.about import Observable, about_of, observed_by
from ..policies.step_watch import StepWatch
from ..runs.ledger import RunLedger
from .driver import Driver, OnCommit
from .no_oracles import refuse_oracle
from .pools.loaded_members import loaded_pool
from .pools.pool import ModelPool
from .prompts import Prompt
from .timing.priced_seconds import PricedSeconds, Prices
from .timing.timed_policy import TimedPolicy
from .world import TorchWorld


class Run:
    """A world with a policy, the loop that asks it, the driver of the loop and the ledger of both.

    Args:
        world: of the models.
        policy: built for `loaded_pool(world.pool)`; one object for all requests.
        name: of the policy, for errors and the log.
        on_commit: told of every request's newly committed tokens.
        prices: what operations are said to take; None measures.

    Attributes:
        world: as given.
        members: the pool as the policy sees it.
        ledger: told of all that happens.
        driver: answers the sessions of the run.
        timed: the policy, and the seconds it has taken.

    Raises:
        ValueError: an oracle, or token trees under rejection sampling.
    """

    def __init__(
        self,
        world: TorchWorld,
        policy: Policy,
        *,
        name: str,
        on_commit: OnCommit | None = None,
        prices: Prices | None = None,
    ) -> None:
        refuse_oracle(policy, name)
        if world.sampling.mode == "rejection" and Observable.branches in observed_by(policy):
            raise ArgumentError(f"policy {name} drafts token trees, under greedy and coupled sampling, got rejection")
        self.world = world
        self.members = loaded_pool(world.pool)
        self.ledger = RunLedger()
        self._name = name
        self.timed = TimedPolicy(policy, StepWatch(self.members.target))
        loop = Loop(pool=self.members, policy=self.timed, name=name, world=world, ledger=self.ledger)
        priced = None if prices is None else PricedSeconds(prices, self.members.names)
        self.driver = Driver(loop, world, self.ledger, on_commit=on_commit, priced=priced)

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
            "prefix_cache": None if (size := self.world.memory.prefixes) is None else asdict(size),
            "forward": self.world.forward_names,
            "members": list(self.members.names),
            "lossless": about.lossless if (about := about_of(self.timed.wrapped)) else None,
            "lossy_steps": self._lossy_steps(),
            "policy_s": self.timed.seconds,
            "phases": asdict(self.world.phases),
            "overlap": asdict(self.world.ahead),
            **self._sharing(),
            "processes": 1 if (ranks := self.world.pool.ranks) is None else ranks.num_ranks,
        }

    def _sharing(self) -> dict[str, Any]:
        """With prefix caches, how each member attends to what rows share: only fused forwards can do so once."""
        memory = self.world.memory
        if memory.prefixes is None:
            return {}
        how = memory.shared_attention
        names = self.world.forward_names
        each = {name: how if kind == "fused" else kind for name, kind in names.items()}
        return {"shared_attention": each, "shared_attention_asked": how}

    def _lossy_steps(self) -> bool:
        """Whether steps may have changed the text, or under rejection sampling what it follows."""
        watch = self.timed.watch
        return watch.lossy_drawn if self.world.sampling.mode == "rejection" else watch.lossy


def sessions_of(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    ending: Ending | None = None,
    *,
    start: Start = Start.prefill,
) -> list[Session]:
    """The requests that prompts are; raises as `pool.tokens_of`, and ValueError for a start that only a log holds."""
    members = loaded_pool(pool)
    return [
        Session(
            pool=members,
            request_id=prompt.request_id,
            tag=prompt.tag,
            prompt=tokens,
            budget=max_new_tokens,
            eos=frozenset(pool.eos_token_ids),
            ending=ending,
            prefill_before=prefill_before(start, members, what="a run of models"),
        )
        for prompt, tokens in zip(prompts, pool.tokens_of(prompts, max_new_tokens), strict=True)
    ]
