"""A recording of either form, ready for replay: the interface for `simulate` and the serving engine."""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, TypeGuard, cast

from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.seen import Start
from ..policies.about import Observable, check_observes
from ..policies.oracles import Foreseen
from ..traces.opening import by_form
from ..traces.recording import Recording, reordered
from .contexts import TrieTables
from .cost.base import CostModel
from .in_step import InStepReplay
from .recorded import RecordedAnswers
from .world import RecordedWorld


class ReplayTables(Protocol):
    """A recording for replay: `TrieTables` or `RoundsTables`, by its form.

    Attributes:
        trace: the recording itself.
    """

    pool: Pool  # its members in level order
    observables: frozenset[Observable]  # facts of tokens that it holds, which policies can see in replay
    default_start: Start  # how its requests begin by default
    default_policies: tuple[str, ...]  # compared on it by default, as texts

    @property
    def in_step(self) -> InStepReplay | None:
        """Its replay without a loop; None: not possible."""

    @property
    def trace(self) -> Recording:
        """See above; a class may return its own form."""

    def prefill_before(self, start: Start) -> tuple[bool, ...]:
        """`start` for each member, as in `Session`; raises ValueError for a start that it does not hold."""

    def world(
        self, cost: CostModel, *, seed: int, strict: bool, now_s: Callable[[], float] | None = None
    ) -> RecordedWorld:
        """A world that replays it.

        Args:
            cost: seconds of forwards.
            seed: of decisions that have to be modelled.
            strict: raise for what is not recorded instead of modelling it.
            now_s: reads the clock of its run, from its first operation on; None where rounds are only tried, one right
                after the other.
        """

    def answers(self, *, seed: int, strict: bool) -> RecordedAnswers:
        """Its answers row by row, to sessions that choose what they replay; arguments as of `world`."""

    def foreseen(self, cost: CostModel, *, seed: int, strict: bool, prefill_before: tuple[bool, ...]) -> Foreseen:
        """The future of a run with these options, for oracles; `prefill_before` as in `Session`."""


def tables_of(recording: Recording) -> ReplayTables:
    """A recording of either form, ready for replay."""
    return by_form(recording, tries=TrieTables, rounds=_rounds_tables)


def _rounds_tables(recording: Recording) -> ReplayTables:
    # Replay of imported recordings takes a tenth of all import time, so other replays do not import it.
    return cast(ReplayTables, vars(import_module(".rounds", __package__))["RoundsTables"](recording))


def is_ready(recording: object) -> TypeGuard[ReplayTables]:
    """Whether it is a recording that is ready for replay."""
    return hasattr(recording, "trace") and hasattr(recording, "world")


def in_order(tables: ReplayTables, order: int, *, parts: int = 1) -> ReplayTables:
    """The same requests in another order, see `reordered`; those of tries share kept tables."""
    if order == 0:
        return tables
    other = reordered(tables.trace, order, parts=parts)
    return by_form(other, tries=lambda trie: cast(TrieTables, tables).reordered(trie), rounds=_rounds_tables)


def check_observed(policy: Policy, name: str, recording: ReplayTables) -> None:
    """Raise ValueError, naming both, for a policy that must see what the recording does not hold."""
    check_observes(policy, name, recording.observables, f"recording {recording.trace.about.name}")
