"""A recording of contexts replayed one request after another, under a policy that only pending tokens decide.

What `simulate` does by loop, session and policy, done in bulk: rounds are walked in the tries, and written down many at
once. The log is the same to the bit.
"""

from dataclasses import dataclass

from ...decoding.policy import Policy
from ...decoding.session import Session
from ...policies.about import decides_by_pending
from ...runs.ledger import RunLedger
from ..cost.base import CostModel, OperationCost
from ..replay_tables import RecordedWorld, ReplayTables
from ..tries.request_tables import RequestTables
from ..tries.tables import TrieTables
from ..tries.world import ReplayWorld
from .automaton import Automaton
from .op_rows import OpRows
from .play import Fixed
from .trie_walk import TrieWalk


def why_looped(policy: Policy, name: str, *, tables: ReplayTables, world: RecordedWorld, cost: CostModel) -> str:
    """Why a run has to go through the loop, in words; "" if its rounds can be walked."""
    if not decides_by_pending(policy):
        return f"policy {name} does not say that pending tokens alone decide"
    if isinstance(cost, OperationCost):
        return f"cost {cost.name} knows more of operations than their forwards"
    if not isinstance(tables, TrieTables) or type(world) is not ReplayWorld:  # one made of it may answer otherwise
        return f"recording {tables.trace.about.name} is not one of contexts"
    if tables.pool.feature_level is not None:
        return f"what {tables.pool.names[tables.pool.feature_level]} drafts depends on what the target has judged"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedRun:
    """What is replayed without a loop, and who is told.

    Attributes:
        policy: says `About.by_pending` of itself.
        name: of it, for errors.
        tables: the recording.
        world: told of requests that begin and end; what it keeps of them is as after a run of the loop.
        cost: seconds.
        decide_s: seconds that the policy is charged for each step.
        ledger: told what happens.
    """

    policy: Policy
    name: str
    tables: TrieTables
    world: ReplayWorld
    cost: CostModel
    decide_s: float
    ledger: RunLedger

    def automaton(self) -> Automaton:
        """The policy, to be asked."""
        return Automaton(Fixed(self.policy, self.name, self.tables.pool), self.tables.num_free)


class ClosedLoop:
    """Requests one after another, each walked from its start to its end.

    Args:
        run: what is replayed.
    """

    def __init__(self, run: WalkedRun) -> None:
        self._tables, self._world = run.tables, run.world
        self._automaton = run.automaton()
        self._walk = TrieWalk(self._automaton, run.world)
        self._rows = OpRows(
            cost=run.cost,
            names=run.tables.pool.names,
            num_free=run.tables.num_free,
            decide_s=run.decide_s,
            ledger=run.ledger,
        )

    def run(self, prefill_before: tuple[bool, ...], outputs: dict[str, list[int]] | None) -> bool:
        """Walk all requests of the recording.

        Args:
            prefill_before: as in `Session`.
            outputs: takes the committed tokens of every request by its id; None drops them.

        Returns:
            Whether that is all; else an answer was not recorded to its end, and the run is for the loop.

        Raises:
            Exception: whatever is wrong with a step or a forward, with no word on whose it was.
        """
        for session in self._world.sessions(prefill_before):
            recorded = self._tables.of(session.request_id)
            self._world.open(session)
            if not self._walk.begin(session, recorded):
                return False
            self._replay(session, recorded)
            self._world.close(session)
            if outputs is not None:
                outputs[session.request_id] = session.emitted
        self._rows.flush()
        return True

    def _replay(self, session: Session, recorded: RequestTables) -> None:
        walk, rows, num_prompt, budget = self._walk, self._rows, session.num_prompt, session.budget
        rows.begin(session.request_id, session.tag, num_prompt)
        position, state = 0, self._automaton.bare
        if session.prefills_first:
            prefill = self._automaton.prefilled
            rows.add([prefill], num_prompt)
            position, state = 1, prefill.after
        while position < walk.length:
            path = walk.round(state, position, budget)
            rows.add(path, num_prompt + position)
            last = path[-1]
            position += last.emitted
            state = last.after
        session.emitted = recorded.trunk_tokens[:position]
