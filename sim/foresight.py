"""What a recording grants an oracle: its future, by trying rounds in a replay of its own."""

from copy import deepcopy
from functools import cache
from math import inf

from ..arguments import ArgumentError
from ..decoding.policy import Policy
from ..decoding.pool import Pool
from ..decoding.session import READER
from ..policies.about import about_of
from ..policies.oracles.foresight import Foresight, ForwardSeconds
from .cost.base import CostModel, CostRangeError
from .device import paused_collector
from .replay_tables import ReplayTables


def grant_foresight(
    policy: Policy,
    name: str,
    recording: ReplayTables,
    cost: CostModel,
    prefill_before: tuple[bool, ...],
    *,
    seed: int = 0,
    strict: bool = False,
) -> None:
    """Show a policy the future if it is an oracle; any other is left as it is.

    Args:
        policy: any.
        name: for errors.
        recording: holds the future.
        cost: of the run.
        prefill_before: of the run's sessions.
        seed: of the run.
        strict: whether the run refuses what is not recorded.

    Raises:
        ValueError: an oracle that cannot be shown anything; ArgumentError beside a member whose forwards in a round
            depend on what the target has judged.
    """
    about = about_of(policy)
    if about is None or not about.oracle:
        return
    if recording.pool.feature_level is not None:
        reader = recording.pool.names[recording.pool.feature_level]
        raise ArgumentError(f"policy {name} sees ahead, which rounds beside {reader} do not allow, {READER}")
    foresee = getattr(policy, "foresee", None)
    if foresee is None:
        raise ValueError(f"policy {name} says it is an oracle, but has no method foresee(foresight)")
    with paused_collector():
        foresee(foresight_of(recording, cost, prefill_before, seed=seed, strict=strict))


def foresight_of(
    recording: ReplayTables, cost: CostModel, prefill_before: tuple[bool, ...], *, seed: int = 0, strict: bool = False
) -> Foresight:
    """The future of a recording's requests, as far as it is recorded or drawn as the run draws it."""
    # A copy: what is only asked about must not appear among the notes of the run's own seconds.
    cost = deepcopy(cost)
    foreseen = recording.foreseen(cost, seed=seed, strict=strict, prefill_before=prefill_before)
    return Foresight(recording.pool, foreseen, _forward_s(recording.pool, cost))


def _forward_s(pool: Pool, cost: CostModel) -> ForwardSeconds:
    @cache
    def forward_s(level: int, new_tokens: int, held_tokens: int) -> float:
        return _asked_s(cost, pool.names[level], new_tokens, held_tokens)

    return forward_s


def _asked_s(cost: CostModel, name: str, new_tokens: int, held_tokens: int) -> float:
    terms = cost.draft_terms(name)
    if terms is not None and terms.per_token_s is not None:
        return 0.0  # its drafts cost the same whatever its cache lacks, and it cannot judge
    try:
        return cost.forward_s(name, num_rows=1, new_tokens=new_tokens, context_tokens=held_tokens)
    except CostRangeError:
        return inf  # a catch-up beyond what was measured is none that a plan may count on
