"""The figures of each pool member in a serving run, all replicas together."""

from dataclasses import dataclass

import numpy as np

from ...runs.serving.log import UNKNOWN, ServingLog
from ...traces.workloads.exact_seconds import PS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetrics:
    """One member; shares lie between 0 and 1, and None stands where nothing was asked, judged or counted.

    Attributes:
        name: of the member.
        forwards: batched forwards it ran.
        busy_s: seconds of them.
        verifications: one per request and forward in which it judged, or wrote a token of its own; prefills are none.
        acceptance_length: tokens a verification leaves: accepted ones and its own.
        accepted_per_verification: the same without its own token.
        acceptance_rate: accepted over judged tokens; own tokens in neither.
        kv_use_mean: used over available KV blocks, over time.
        kv_use_max: the largest such share of any replica.
        hit_share_blocks: full blocks that its prefix cache held, over those looked up.
        hit_share_tokens: the same of tokens.
        cached_prompt_share: prompt tokens that it held when their request was first scheduled, over all of those.
    """

    name: str
    forwards: int
    busy_s: float
    verifications: int
    acceptance_length: float | None
    accepted_per_verification: float | None
    acceptance_rate: float | None
    kv_use_mean: float | None
    kv_use_max: float | None
    hit_share_blocks: float | None
    hit_share_tokens: float | None
    cached_prompt_share: float | None


def member_metrics(log: ServingLog, duration_ps: int) -> tuple[MemberMetrics, ...]:
    """The figures of each member, in level order.

    Args:
        log: of the run.
        duration_ps: that KV use is a mean over.
    """
    return tuple(_of_member(log, level, duration_ps) for level in range(len(log.meta.members)))


def ratio(part: float, whole: float) -> float | None:
    """A share or a rate; None of nothing."""
    return part / whole if whole else None


def _of_member(log: ServingLog, level: int, duration_ps: int) -> MemberMetrics:
    parts = [replica.members[level] for replica in log.meta.replicas]
    judged = log.meta.levels[level]
    lookups = [part.lookups for part in parts]
    blocks = [part.num_blocks for part in parts if part.num_blocks is not None]
    counted = len(blocks) == len(parts)
    scheduled = log.requests["scheduled_at_ps"] != UNKNOWN
    return MemberMetrics(
        name=log.meta.members[level],
        forwards=sum(part.forwards for part in parts),
        busy_s=sum(part.busy_ps for part in parts) / PS_PER_S,
        verifications=judged.verifications,
        acceptance_length=ratio(judged.accepted + judged.own, judged.verifications),
        accepted_per_verification=ratio(judged.accepted, judged.verifications),
        acceptance_rate=ratio(judged.accepted, judged.judged),
        kv_use_mean=ratio(sum(part.block_ps for part in parts), sum(blocks) * duration_ps) if counted else None,
        kv_use_max=max(part.most_blocks / most for part, most in zip(parts, blocks, strict=True)) if counted else None,
        hit_share_blocks=ratio(sum(one.found_blocks for one in lookups), sum(one.asked_blocks for one in lookups)),
        hit_share_tokens=ratio(sum(one.found_tokens for one in lookups), sum(one.asked_tokens for one in lookups)),
        cached_prompt_share=ratio(
            int(np.sum(log.requests["cached_tokens"][scheduled, level])),
            int(np.sum(log.requests["prompt_tokens"][scheduled])),
        ),
    )
