"""What a replica of fixed rounds tells the recorder once: sums."""

from collections import Counter
from collections.abc import Iterable, Sequence

from ....runs.serving.recorder import ServingRecorder
from ..engine.served_session import NEVER
from ..kv.member_kv import MemberKv
from .superposed.round_shapes import RoundShapes
from .tabled_request import TabledRequest


class TabledBooks:
    """Letter: L levels.

    Args:
        index: of the replica.
        recorder: of the run.
        members: `[L]` memory, None where there is none.

    Attributes:
        num_emitted, num_cycled: tokens that came out, and those after the first pass of a recorded answer.
        num_modelled: decisions that were modelled rather than replayed.
    """

    def __init__(self, index: int, recorder: ServingRecorder, members: Sequence[MemberKv | None]) -> None:
        self._index = index
        self._recorder = recorder
        self._members = members
        self._busy = [[0, 0] for _ in members]
        self._judged = [[0, 0, 0, 0] for _ in members]
        self._grown_ps = [0] * len(members)
        self._most = [0] * len(members)
        self._played: Counter[int] = Counter()
        self.num_emitted = self.num_cycled = self.num_modelled = 0

    def ran(self, level: int, duration_ps: int, forwards: int) -> None:
        """A member ran."""
        if forwards:
            sums = self._busy[level]
            sums[0] += duration_ps
            sums[1] += forwards

    def cut(self, level: int, start_ps: int, end_ps: int) -> None:
        """A member runs when the run ends, and has from `start_ps` on until `end_ps`; none of its forwards is over."""
        self._busy[level][0] += max(end_ps - start_ps, 0)

    def judged(self, level: int, drafted: int, accepted: int, own: int, rows: int) -> None:
        """A member judged."""
        sums = self._judged[level]
        sums[0] += drafted
        sums[1] += accepted
        sums[2] += own
        sums[3] += rows

    def played(self, shapes: Iterable[int]) -> None:
        """Rounds of these shapes are over."""
        self._played.update(shapes)

    def grew(self, level: int, block_ps: int, most_blocks: int) -> None:
        """Used blocks rose between states; see `ReplicaStates.grew`."""
        self._grown_ps[level] += block_ps
        self._most[level] = max(self._most[level], most_blocks)

    def single_gaps(self, gaps_ps: Sequence[int], rows: int) -> None:
        """See `ServingRecorder.single_gaps`."""
        self._recorder.single_gaps(gaps_ps, rows)

    def came_out(self, requests: Iterable[TabledRequest], at_ps: int) -> None:
        """Tokens of requests are out."""
        recorder = self._recorder
        gaps: Counter[int] = Counter()
        for request in requests:
            if request.out_at_ps == NEVER:
                recorder.first_token(request.serial, at_ps)
            else:
                gaps[at_ps - request.out_at_ps] += 1
            request.out_at_ps = at_ps
            self.note_tokens(request)
        for gap_ps, rows in gaps.items():
            recorder.gaps(gap_ps, 0, 1, rows)

    def note_tokens(self, request: TabledRequest) -> None:
        """Count the tokens of a request that are new."""
        noted, tokens = request.num_noted, request.num_answer
        request.num_noted = tokens
        self.num_emitted += tokens - noted
        if tokens > request.answer_tokens:
            self.num_cycled += tokens - max(noted, request.answer_tokens)

    def close(self, shapes: RoundShapes, requests: Iterable[TabledRequest]) -> None:
        """Tell the sums, and the answers of requests that have not ended."""
        recorder, index = self._recorder, self._index
        for number, times in self._played.items():
            for op in shapes.shapes[number].round.ops:
                self.num_modelled += times * op.modelled
                if not op.drafts:
                    self.judged(op.level, times * op.judged, times * op.accepted, times * op.own, times)
        self._played.clear()
        for level, kv in enumerate(self._members):
            if any(self._busy[level]):
                recorder.busy(index, level, *self._busy[level])
            if self._judged[level][3]:
                recorder.judged(level, *self._judged[level])
            if kv is not None:
                hits = kv.hits
                asked, found = (hits.asked_blocks, hits.asked_tokens), (hits.found_blocks, hits.found_tokens)
                recorder.looked_up(index, level, asked, found)
                recorder.states_of(index).grew(level, self._grown_ps[level], self._most[level])
        for request in requests:
            if request.num_answer:
                recorder.emitted(request.serial, request.num_answer)
