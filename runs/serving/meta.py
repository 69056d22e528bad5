"""What a serving run says of itself, and its sums: `meta.json` of its folder.

Sums of time are whole picoseconds times requests or blocks, as exact as the clock. Letter: L levels.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from ...traces.meta import NAME_PATTERN, TITLE_PATTERN, Record, Version

Count = Annotated[int, Field(ge=0)]
# How the steps of a replica were worked out.
STEP_BY_STEP = "step by step"
JUMPS = "in jumps of many steps"
ROUNDS = "from rounds played once"

Title = Annotated[str, Field(pattern=TITLE_PATTERN)]


class Lookups(Record):
    """What was asked of a member's prefix cache, and what it held.

    Attributes:
        asked_blocks: full blocks of the texts that were looked up.
        found_blocks: of those, how many it held.
        asked_tokens: tokens of the texts that were looked up, those of a last block that is not full included.
        found_tokens: of those, how many it held.
    """

    asked_blocks: Count = 0
    found_blocks: Count = 0
    asked_tokens: Count = 0
    found_tokens: Count = 0

    @model_validator(mode="after")
    def _found(self) -> "Lookups":
        for what in ("blocks", "tokens"):
            asked, found = getattr(self, f"asked_{what}"), getattr(self, f"found_{what}")
            if found > asked:
                raise ValueError(f"found_{what} must be at most asked_{what}, {asked}, got {found}")
        return self


class MemberTotals(Record):
    """What one member of a replica did and held.

    Attributes:
        num_blocks: KV blocks it may use; None: nobody counts them, or it keeps no keys and values.
        most_blocks: that it used at once.
        block_ps: used blocks, added up over time.
        busy_ps: time of its forwards, of those that the end of the run cuts until then.
        forwards: batched forwards it ran.
        lookups: in its prefix cache.
    """

    num_blocks: Annotated[int, Field(ge=1)] | None
    most_blocks: Count
    block_ps: Count
    busy_ps: Count
    forwards: Count
    lookups: Lookups

    @model_validator(mode="after")
    def _fits(self) -> "MemberTotals":
        if self.num_blocks is not None and self.most_blocks > self.num_blocks:
            raise ValueError(f"most_blocks must be at most num_blocks, {self.num_blocks}, got {self.most_blocks}")
        return self


class HostTotals(Record):
    """What host memory did for the prefix caches of a replica.

    Attributes:
        stored: blocks of each member that came, by its name.
        loaded: blocks that were read again.
        dropped: blocks that went.
        most_bytes: that were used at once.
        load_ps: that steps took longer for what was read, until the end of the run.
    """

    stored: dict[str, Count]
    loaded: dict[str, Count]
    dropped: dict[str, Count]
    most_bytes: Count
    load_ps: Count


class ReplicaTotals(Record):
    """What one replica did.

    Attributes:
        name: unique among the replicas.
        path: how its steps were worked out, in words; figures do not depend on it.
        states: that it reported, of which the series holds some.
        most_running: requests in its batch at once.
        running_ps: requests in its batch, added up over time.
        most_waiting: requests in its queue at once, preempted ones among them.
        waiting_ps: requests in its queue, added up over time.
        members: `[L]`.
        host: what host memory did for it; None where it has none.
    """

    name: str = Field(pattern=NAME_PATTERN)
    path: Title = STEP_BY_STEP
    states: Count
    most_running: Count
    running_ps: Count
    most_waiting: Count
    waiting_ps: Count
    members: tuple[MemberTotals, ...]
    host: HostTotals | None = None


class LevelTotals(Record):
    """What one member judged in all replicas; a prefill judges nothing and is not among it.

    Attributes:
        verifications: one per request and forward in which it judged, or wrote a token of its own.
        judged: drafted tokens that it was given.
        accepted: of those, how many stayed; own tokens are not among them.
        own: tokens it added itself, corrections and bonuses.
    """

    verifications: Count
    judged: Count
    accepted: Count
    own: Count

    @model_validator(mode="after")
    def _accepted(self) -> "LevelTotals":
        if self.accepted > self.judged:
            raise ValueError(f"accepted must be at most judged, {self.judged}, got {self.accepted}")
        if self.own > self.verifications:
            raise ValueError(f"own must be at most verifications, {self.verifications}, got {self.own}")
        return self


class TransferTotals(Record):
    """What crossed the link from replicas that prefill to those that decode, until the end of the run.

    Attributes:
        handed_over: requests.
        held_ps: times from the end of their prefill until blocks and a place were there for them, added up.
        sent: transfers that came to the link; a request whose text the other prefix cache holds needs none.
        unfinished: of these, those that the end of the run found waiting, or cut.
        bytes: that were sent; of a transfer that was cut, in whole ones, what its time until then is of all of it.
        busy_ps: time of the link for them.
        queued_ps: times that they waited for others before them, added up.
        most_queued_ps: the longest of these.
    """

    handed_over: Count
    held_ps: Count
    sent: Count
    unfinished: Count = 0
    bytes: Count
    busy_ps: Count
    queued_ps: Count
    most_queued_ps: Count


class ServingAbout(Record):
    """What was run.

    Attributes:
        policy: as it was named.
        workload: as it was named, rate included.
        cluster: as it was named.
        seed: of the acceptance that was drawn and of whatever else is chance.
        notes: what a reader of its figures has to know, a line each.
        setting: all else that was asked for, by option.
    """

    policy: Title
    workload: Title
    cluster: Title
    seed: int = 0
    notes: tuple[Title, ...] = ()
    setting: dict[str, JsonValue] = Field(default_factory=dict)


class ServingMeta(Record):
    """`meta.json` of a serving run.

    Attributes:
        about: what was run.
        members: of the pool, in level order, the target last.
        replicas: in the order of their indices.
        levels: `[L]`.
        ended_at_ps: when the last request ended, or the run was stopped.
        stopped: why the run was stopped before all requests had ended; "" if it was not.
        transfers: from replicas that prefill to those that decode; None where there are none.
    """

    format: Literal["paceline-serving"] = "paceline-serving"
    version: Version = 1
    kind: Literal["serving"] = "serving"
    about: ServingAbout
    members: tuple[Annotated[str, Field(pattern=NAME_PATTERN)], ...] = Field(min_length=1)
    replicas: tuple[ReplicaTotals, ...] = Field(min_length=1)
    levels: tuple[LevelTotals, ...]
    ended_at_ps: Count
    stopped: Title = ""
    transfers: TransferTotals | None = None

    @model_validator(mode="after")
    def _lengths(self) -> "ServingMeta":
        _check_unique("members", self.members)
        _check_unique("replicas", [replica.name for replica in self.replicas])
        for name, found in (("levels", self.levels), *(("members", replica.members) for replica in self.replicas)):
            if len(found) != len(self.members):
                raise ValueError(f"{name} must be one per member, {len(self.members)}, got {len(found)}")
        return self


def _check_unique(name: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise ValueError(f"names of {name} must be unique, got {list(names)}")
