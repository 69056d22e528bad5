"""Decode sessions with models that a program holds already, under whatever it gives for a policy."""

import inspect
from collections.abc import Callable, Sequence
from typing import cast

import torch
from transformers.generation.streamers import BaseStreamer

from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ...decoding.session import Session
from ...foreign_code import at
from ...policies.spec import make_policy
from ...runs.log import RunLog
from ...traces.meta import Sampling
from ..driver import OnCommit
from ..fit import check_fit
from ..memory import Memory
from ..pools.loaded_members import LoadedMembers
from ..run import Run
from ..world import TorchWorld

PolicyLike = str | Policy | Callable[[Pool], Policy]


def decode_live(
    pool: LoadedMembers,
    sessions: Sequence[Session],
    policy: PolicyLike,
    *,
    sampling: Sampling,
    memory: Memory,
    streamer: BaseStreamer | None,
) -> RunLog:
    """Answer all sessions at once, with models that are not ours: they stay as they are.

    Args:
        pool: the models.
        sessions: of `loaded_pool(pool)`, one at least; mutated.
        policy: text, policy, or what makes one of a pool.
        sampling: greedy, coupled or rejection.
        memory: kind of cache and its limit.
        streamer: told of every token; for a single session.

    Raises:
        ValueError: a policy that is none or cannot be made, models that cannot run, caches that cannot fit, or a
            request that failed.
        PolicyError: the policy broke the contract.
    """
    check_fit(pool, sessions, memory)
    name, built = _policy(policy, sessions[0].pool)
    with TorchWorld(pool=pool, sampling=sampling, memory=memory, share_weights=False) as world:
        run = Run(world, built, name=name, on_commit=None if streamer is None else _streaming(streamer))
        for _ in run.driver.run(sessions, len(sessions)):
            pass
    run.driver.raise_failure()
    if streamer is not None:
        streamer.end()
    meta = run.meta(pool="live", max_new_tokens=sessions[0].budget, batch=len(sessions))
    return run.ledger.finish(meta, reanchored={}, divergent={})


def _policy(given: PolicyLike, pool: Pool) -> tuple[str, Policy]:
    """The policy and what errors call it."""
    if isinstance(given, str):
        return given, make_policy(given, pool)
    made: object = given
    if inspect.isclass(given) or not hasattr(given, "decide"):
        if not callable(given):
            rule = "must be a text, a policy, or what makes one of a pool"
            raise ValueError(f"policy {rule}, got {type(given).__name__}")
        made = _made(cast(Callable[[Pool], object], given), pool)
    if not hasattr(made, "decide") or not hasattr(made, "learn"):
        raise ValueError(f"policy must have decide and learn, got {type(made).__name__}")
    return type(made).__name__, cast(Policy, made)


def _made(make: Callable[[Pool], object], pool: Pool) -> object:
    """What a class or function makes of the pool."""
    try:
        return make(pool)
    except Exception as error:  # it may be foreign code
        name = getattr(make, "__name__", type(make).__name__)
        told = " ".join(str(error).split())
        raise ValueError(
            f"policy {name}: called with the pool it raised {type(error).__name__}: {told}{at(error)}"
        ) from error


def _streaming(streamer: BaseStreamer) -> OnCommit:
    """Hands tokens on one by one, as `generate()` does."""

    def on_commit(_: Session, tokens: list[int]) -> None:
        for token in tokens:
            streamer.put(torch.tensor([token]))

    return on_commit
