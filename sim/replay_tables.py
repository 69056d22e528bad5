"""A recording ready for replay, whichever its form: what `simulate` and the serving engine ask of it."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Protocol, TypeGuard, cast

from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.seen import Start
from ..decoding.session import Session
from ..decoding.world import World
from ..policies.about import Observable, check_observes
from ..policies.oracles import Foreseen
from ..runs.log import TextQuality
from ..traces.opening import by_form
from ..traces.recording import Recording, reordered
from .contexts import TrieTables
from .cost.base import CostModel
from .in_step import InStepReplay
from .recorded import RecordedAnswers


class RecordedWorld(World, Protocol):
    """A world that replays a recording."""

    num_reanchored: dict[str, int]  # per request, times replay resumed on the trunk after it had left the record
    # per closed request, committed tokens that differ from the trunk at their position, and positions that only one of
    # the two texts has
    num_divergent: dict[str, int]
    # per closed request, how the target sees its text; none where the recording holds no log-probabilities
    quality: dict[str, TextQuality]

    def sessions(self, prefill_before: tuple[bool, ...]) -> Iterator[Session]:
        """The requests in file order, each made when it is asked for; `prefill_before` as in `Session`."""
        ...

    def session(self, request_id: str, prefill_before: tuple[bool, ...]) -> Session:
        """One request, from its start; raises KeyError for one that the recording does not hold."""
        ...


class ReplayTables(Protocol):
    """A recording as replay walks it: `TrieTables` or `RoundsTables`, by its form.

    Attributes:
        trace: the recording itself.
    """

    pool: Pool  # its members in level order
    observables: frozenset[Observable]  # what it knows of tokens, and a policy can see in replay
    default_start: Start  # how its requests begin unless asked for otherwise
    default_policies: tuple[str, ...]  # what is compared on it if no policies are named, as texts

    @property
    def in_step(self) -> InStepReplay | None:
        """What replays it without a loop, where that can be done; None: nothing does."""
        ...

    @property
    def trace(self) -> Recording:
        """See above; a class may know its form."""
        ...

    def prefill_before(self, start: Start) -> tuple[bool, ...]:
        """What `start` means for each member, as in `Session`; raises ValueError for a start that it does not hold."""
        ...

    def world(
        self, cost: CostModel, *, seed: int, strict: bool, now_s: Callable[[], float] | None = None
    ) -> RecordedWorld:
        """A world that replays it.

        Args:
            cost: seconds of forwards.
            seed: of decisions that have to be modelled.
            strict: refuse what is not recorded instead of modelling it.
            now_s: reads the clock of the run that it is for, from its first operation on; None where rounds are only
                tried, one right after the other.
        """
        ...

    def answers(self, *, seed: int, strict: bool) -> RecordedAnswers:
        """What it answers row by row, to sessions that choose what they replay; arguments as of `world`."""
        ...

    def foreseen(self, cost: CostModel, *, seed: int, strict: bool, prefill_before: tuple[bool, ...]) -> Foreseen:
        """What an oracle is shown of a run with these options; `prefill_before` as in `Session`."""
        ...


def tables_of(recording: Recording) -> ReplayTables:
    """A recording of either form, ready for replay."""
    return by_form(recording, tries=TrieTables, rounds=_rounds_tables)


def _rounds_tables(recording: Recording) -> ReplayTables:
    # What replays an imported recording takes a tenth of all imports of ours, for which no other replay shall wait.
    return cast(ReplayTables, vars(import_module(".rounds", __package__))["RoundsTables"](recording))


def is_ready(recording: object) -> TypeGuard[ReplayTables]:
    """Whether it is a recording that is ready for replay."""
    return hasattr(recording, "trace") and hasattr(recording, "world")


def in_order(tables: ReplayTables, order: int, *, parts: int = 1) -> ReplayTables:
    """Of the same requests in another order, see `reordered`; those of tries share what anybody holds."""
    if order == 0:
        return tables
    other = reordered(tables.trace, order, parts=parts)
    return by_form(other, tries=cast(TrieTables, tables).reordered, rounds=_rounds_tables)


def check_observed(policy: Policy, name: str, recording: ReplayTables) -> None:
    """Refuse a policy that has to see what the recording does not hold; raises ValueError, naming both."""
    check_observes(policy, name, recording.observables, f"recording {recording.trace.about.name}")
