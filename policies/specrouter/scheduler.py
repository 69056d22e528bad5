"""Which plan a request follows in its next round: the warm-up, a chain of its tag, or one in step with all that run.

SpecRouter (arXiv:2505.07680) has a scheduler pick the chain of least predicted time per token from running profiles.
How a member gets its first profile is not described. Here the warm-up is one *ladder* for all: a round in which the
smallest member drafts and every other one judges in turn. It times every member and, by `evidence`, scores every pair.
One plain step of the target follows.
"""

from math import inf

from ...decoding.pool import Pool
from .constants import RouterConstants
from .in_step import InStep
from .knowledge import Knowledge
from .options import RouterOptions
from .per_tag import PerTag
from .plan import Plan, Planner
from .selector import Counters


class ModelChainScheduler:
    """Plans by tag, or of a batch in step. Mutated by `plan`, `note_round` and through `knowledge`.

    Args:
        pool: the members.
        options: of the policy.
        constants: of the policy.

    Attributes:
        counters: what was done.
        knowledge: what selections go by; takes verdicts.
        planner: makes the steps.

    Raises:
        ValueError: costs that are none of this pool.
    """

    def __init__(self, pool: Pool, options: RouterOptions, constants: RouterConstants) -> None:
        self.counters = Counters()
        self.knowledge = Knowledge(pool, options, constants)
        self.planner = Planner(pool, options, self.knowledge.survival, constants)
        parts = (pool, options, self.knowledge, self.planner, self.counters, constants)
        self._per_tag, self._in_step = PerTag(*parts), InStep(*parts)
        self._together = {"auto": constants.together, "batch": 1, "request": inf}[options.select]
        self._patience = constants.patience
        self._left: dict[str, int] = {}  # rounds that a tag goes on in step when few requests run
        self._num_running = 1
        self._warm_up = _warm_up(pool, self.planner)

    def plan(self, tag: str, *, num_rows: int, num_running: int) -> Plan:
        """What a request of this tag does in the round that begins now.

        Args:
            tag: of the request.
            num_rows: requests that the target met last.
            num_running: requests that run.
        """
        self._num_running = num_running
        if self._warm_up:
            self.counters.trials += 1
            return self._warm_up.pop(0)
        together = num_running >= self._together
        if together or (not self._per_tag.has(tag) and self._left.get(tag, 0)):
            self._left[tag] = self._patience if together else self._left[tag] - 1
            return self._in_step.plan(tag, num_running)
        return self._per_tag.plan(tag, num_rows)

    def note_round(self, tag: str, plan: Plan, *, num_tokens: int, copied: bool) -> None:
        """The target committed so many tokens for a request of this tag, after a copy or a round of its plan."""
        self.counters.rounds += 1
        if self._together < inf:
            self._in_step.note_round(tag)
            self._in_step.note_commit(num_tokens, self._num_running, copied=copied)
        if not plan.in_step:
            self._per_tag.note_round(tag)

    def chains(self) -> dict[str, str]:
        """By tag, the chain in use in notation."""
        return self._per_tag.chains()

    @property
    def shared_chain(self) -> str | None:
        """The chain of all that run, in notation; None as long as there was none."""
        chain = self._in_step.chain
        return None if chain is None else self.planner.notation(chain)


def _warm_up(pool: Pool, planner: Planner) -> list[Plan]:
    lowest, *above = [level for level, member in enumerate(pool.members) if not member.model_free]
    judges = [level for level in above if pool.members[level].verifies]
    plans = [planner.ladder((lowest, *judges)), planner.alone()] if judges else []
    # A member that cannot judge is known by drafting for the target.
    return plans + [planner.ladder((level, pool.target_level)) for level in above if level not in judges]
