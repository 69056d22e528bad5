"""Decode sessions with models that a program holds already, under whatever it gives for a policy."""

import inspect
from collections.abc import Callable, Sequence
from typing import cast

import torch
from transformers.generation.streamers import BaseStreamer

from ..policies.contract import Policy
from ..policies.loop import Loop
from ..policies.pool import Pool
from ..policies.registry import make_policy
from ..policies.session import Session
from ..traces.meta import Sampling
from ..traces.run_ledger import RunLedger
from ..traces.run_log import RunLog
from .clock import Clock
from .driver import Driver, OnCommit
from .kv_fit import check_fit
from .loaded_members import LoadedMembers
from .timed_policy import TimedPolicy
from .world import Memory, TorchWorld

# Tokens at each handover of the default chain.
WINDOW = 4

PolicyLike = str | Policy | Callable[[Pool], Policy]


def decode_live(
    pool: LoadedMembers,
    sessions: Sequence[Session],
    policy: PolicyLike | None,
    *,
    sampling: Sampling,
    memory: Memory,
    streamer: BaseStreamer | None,
) -> RunLog:
    """Answer all sessions at once, with models that are not ours: they stay as they are.

    Args:
        pool: the models.
        sessions: of `loaded_pool(pool)`, one at least; mutated.
        policy: text, policy, or what makes one of a pool; None for a chain of all members.
        sampling: greedy, coupled or rejection.
        memory: kind of cache and its limit.
        streamer: told of every token; for a single session.

    Raises:
        ValueError: a policy that is none, models that cannot run, caches that cannot fit, or a request that failed.
        PolicyError: the policy broke the contract.
    """
    check_fit(pool, sessions, memory)
    members = sessions[0].pool
    name, built = _policy(policy, members)
    clock = Clock(member.model.device for member in pool.members if member.model is not None)
    world = TorchWorld(pool=pool, sampling=sampling, clock=clock, memory=memory, share_weights=False)
    ledger, timed = RunLedger(), TimedPolicy(built)
    loop = Loop(pool=members, policy=timed, name=name, world=world, ledger=ledger)
    driver = Driver(loop, world, ledger, clock, on_commit=None if streamer is None else _streaming(streamer))
    for _ in driver.run(sessions, len(sessions)):
        pass
    for error in driver.failed.values():
        raise error
    if streamer is not None:
        streamer.end()
    meta = {
        "world": "runtime",
        "policy": name,
        "pool": "live",
        "sampling": sampling.model_dump(),
        "max_new_tokens": sessions[0].budget,
        "batch": len(sessions),
        "cache": memory.cache,
        "forward": world.forward_names,
        "members": list(members.names),
        "policy_s": timed.seconds,
        "phases": world.phases.as_dict(),
    }
    return ledger.finish(meta, reanchored={}, divergent={})


def _policy(given: PolicyLike | None, pool: Pool) -> tuple[str, Policy]:
    """The policy and what errors call it."""
    if given is None:
        given = "/".join([*(f"{name}:{WINDOW}" for name in pool.names[:-1]), pool.target])
    if isinstance(given, str):
        return given, make_policy(given, pool)
    made: object = given
    if inspect.isclass(given) or not hasattr(given, "decide"):
        if not callable(given):
            raise ValueError(f"policy must be a text, a policy, or what makes one of a pool, got {given!r}")
        made = cast(Callable[[Pool], object], given)(pool)
    if not hasattr(made, "decide") or not hasattr(made, "learn"):
        raise ValueError(f"policy must have decide and learn, got {type(made).__name__}")
    return type(made).__name__, cast(Policy, made)


def _streaming(streamer: BaseStreamer) -> OnCommit:
    """Hands tokens on one by one, as `generate()` does."""

    def on_commit(_: Session, tokens: list[int]) -> None:
        for token in tokens:
            streamer.put(torch.tensor([token]))

    return on_commit
