"""What a replica writes down: when tokens of requests come out, what it holds, and sums at the end."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from ....decoding.results import Results
from ....decoding.world import Op, VerifyItem
from ....runs.serving.recorder import ServingRecorder
from .batch import Batch
from .replica_memory import ReplicaMemory
from .served_session import ServedSession

# Told of requests whose answers others wait for, and when.
Reached: TypeAlias = Callable[[Iterable[ServedSession], int], None]


class Going(NamedTuple):
    """What a replica runs: an operation, if any, with its results, and chunks of prefills beside it.

    `forwards` are those of a step of the target; an operation below it says its own.
    """

    op: Op | None
    results: Results | None
    chunks: list[VerifyItem]
    ending: list[ServedSession]
    level: int
    forwards: int
    start_ps: int
    end_ps: int


class ReplicaBooks:
    """Tells the recorder of a run.

    Args:
        index: of the replica.
        recorder: of the run.
        batch: of the replica.
        memory: of the replica.
        reached: told of answers that others of their sessions wait for, and when.

    Attributes:
        num_emitted, num_cycled: tokens that came out, and those after the first pass of a recorded answer.
    """

    def __init__(
        self, index: int, recorder: ServingRecorder, batch: Batch, memory: ReplicaMemory, reached: Reached
    ) -> None:
        self._index = index
        self._reached = reached
        self._recorder = recorder
        self._batch = batch
        self._memory = memory
        self._held: tuple[int, int, list[int]] | None = None
        self.num_emitted = self.num_cycled = 0

    def note_outputs(self, sessions: Iterable[ServedSession], at_ps: int) -> None:
        """Write down what is new in answers; all tokens of one request that are new came out together."""
        gaps: dict[int, int] = {}
        reached: list[ServedSession] = []
        for session in sessions:
            num_answer = len(session.earlier) + len(session.emitted)
            num_noted = session.num_noted
            if num_answer == num_noted:
                continue
            if num_noted:
                gap_ps = at_ps - session.noted_at_ps
                gaps[gap_ps] = gaps.get(gap_ps, 0) + 1
            else:
                self._recorder.first_token(session.serial, at_ps)
            self.num_emitted += num_answer - num_noted
            if session.earlier:
                self.num_cycled += num_answer - max(num_noted, session.num_first)
            session.num_noted = num_answer
            session.noted_at_ps = at_ps
            if session.depths and num_answer >= session.depths[0]:
                reached.append(session)
        for gap_ps, rows in gaps.items():
            self._recorder.gaps(gap_ps, 0, 1, rows)
        if reached:
            self._reached(reached, at_ps)

    def note_state(self, at_ps: int) -> None:
        """Write down what is held from now on, if that is something else than before."""
        batch = self._batch
        held = len(batch.running), len(batch.waiting), self._memory.used_blocks
        if held != self._held:
            self._held = held
            self._recorder.state(self._index, at_ps, *held)

    def cut(self, going: Going, until_ps: int) -> None:
        """The run ends while this runs: the member was busy until then, with forwards that are not over."""
        own = () if going.results is None else going.results.forwards
        if going.forwards or any(new and repeats for _, new, repeats, _ in own):
            lasted_ps = min(until_ps, going.end_ps) - going.start_ps
            self._recorder.busy(self._index, going.level, max(lasted_ps, 0), forwards=0)

    def close(self, sessions: Iterable[ServedSession], until_ps: int) -> None:
        """Tell what is told once: look-ups in prefix caches, and the answers of `sessions`, which have not ended."""
        for level, kv in enumerate(self._memory.members):
            if kv is not None:
                hits = kv.hits
                asked, found = (hits.asked_blocks, hits.asked_tokens), (hits.found_blocks, hits.found_tokens)
                self._recorder.looked_up(self._index, level, asked, found)
        if self._memory.host is not None:
            self._recorder.offloaded(self._index, self._memory.host.totals(until_ps))
        for session in sessions:
            if session.num_noted:
                self._recorder.emitted(session.serial, session.num_noted)
