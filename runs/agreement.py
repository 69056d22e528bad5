"""How far a replay and a run of the real models are the same: what `same_steps.compare_runs` finds."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from .record_exit import RecordExit

AROUND = 12  # tokens that a difference shows on either side


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one world did where the two differ.

    Attributes:
        did: the step, in words.
        tokens: what it committed from there on, at most `AROUND` ids.
    """

    did: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first step, in the order of the run, that the two worlds did not take alike.

    Where nothing but the operation as a whole differs (its rows, forwards or tokens fed), its first step stands for it.

    Attributes:
        request_id: whose step it is.
        step: index among the steps of the request, from 0.
        num_committed: tokens both worlds had committed to the answer before it.
        committed: the last of those, at most `AROUND` ids.
        replayed: the simulator's part.
        ran: the runtime's part.
    """

    request_id: str
    step: int
    num_committed: int
    committed: tuple[int, ...]
    replayed: Side
    ran: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two runs of a policy are the same. What comes after the first difference is not counted.

    Attributes:
        policy: as the runs call it.
        num_requests: in both runs.
        num_steps: steps that were compared and found alike: those of all operations before the first difference.
        num_ops: these operations.
        num_tokens: committed tokens that were compared and found alike.
        num_asked_tokens, num_hit_tokens, num_evicted_blocks: of the prefix caches, compared operation by operation and
            found alike; 0 without these caches.
        num_other_answers: requests whose whole answers are not the same, those that left the record not among them.
        difference: the first one, None if there is none.
        num_replayed: steps of the replay, compared or not.
        num_left: requests that left the record.
        left: the first step outside the record, None if there is none. It ends the comparison.
        ahead: how the runtime's members worked at the same time, in `threads` or `turns`; "" where they never did.
    """

    policy: str
    num_requests: int
    num_steps: int
    num_ops: int
    num_tokens: int
    num_asked_tokens: int
    num_hit_tokens: int
    num_evicted_blocks: int
    num_other_answers: int
    difference: Difference | None
    num_replayed: int
    num_left: int
    left: RecordExit | None
    ahead: str


def joined(agreements: Sequence[Agreement]) -> Agreement:
    """One of all requests, from those of one policy on some requests each, in the order of the runs."""
    counts = [field.name for field in fields(Agreement) if field.name.startswith("num_")]
    sums = {name: sum(getattr(agreement, name) for agreement in agreements) for name in counts}
    difference = next((agreement.difference for agreement in agreements if agreement.difference), None)
    left = next((agreement.left for agreement in agreements if agreement.left), None)
    ahead = next((agreement.ahead for agreement in agreements if agreement.ahead), "")
    return replace(agreements[0], **sums, difference=difference, left=left, ahead=ahead)
