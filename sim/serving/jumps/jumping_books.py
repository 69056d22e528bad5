"""What a replica that jumps tells the recorder: of steps their sums, of requests what happens to them."""

from collections.abc import Sequence

from ....runs.serving.recorder import ServingRecorder
from ..engine.served_session import NEVER
from ..kv.member_kv import MemberKv
from .jump import Jump
from .jumping_request import JumpingRequest


class JumpingBooks:
    """Sums are kept here and told once, by `close`.

    Args:
        index: of the replica.
        recorder: of the run.
        members: memory of each level, None where there is none.
        target: level of the target.

    Attributes:
        num_emitted: tokens that came out.
        num_cycled: of these, those after the first pass of a recorded answer, of requests that are done or closed.
    """

    def __init__(self, index: int, recorder: ServingRecorder, members: Sequence[MemberKv | None], target: int) -> None:
        self._index = index
        self._recorder = recorder
        self._members = members
        self._target = target
        self._used = [0] * len(members)
        self._idle_lookups = [[0, 0] for _ in members]  # blocks, tokens: asked for, and never found
        self._cached = [0] * len(members)
        self._busy_ps = self._num_steps = self._num_judged = 0
        self._block_ps = self._most_blocks = 0  # as it was
        self._noted_block_ps = self._noted_ps = 0  # as the states that were noted say
        self.num_emitted = 0
        self.num_cycled = 0

    def admitted(self, request: JumpingRequest, hit: int, at_ps: int) -> None:
        """A request enters the batch with so many cached tokens; what is said of its first time is said then."""
        if request.scheduled:
            return
        request.scheduled = True
        self._cached[self._target] = hit
        self._recorder.scheduled(request.serial, at_ps, self._cached)
        for level, kv in enumerate(self._members):
            if level != self._target and kv is not None and kv.limits.prefix_cache:
                self._idle_lookups[level][0] += request.text // kv.limits.block_tokens
                self._idle_lookups[level][1] += request.text

    def ran(self, jump: Jump, steps: int, rows: int, used: int, grown_ps: int, most: int) -> None:
        """Steps of a jump have run.

        Args:
            jump: which.
            steps: of it.
            rows: that got a token in each.
            used: blocks in the first of the steps.
            grown_ps: picoseconds times blocks beyond these.
            most: blocks in the last of the steps.
        """
        lasted_ps = jump.lasts_ps(steps)
        self._busy_ps += lasted_ps
        self._num_steps += steps
        self._block_ps += used * lasted_ps + grown_ps
        if most > self._most_blocks:
            self._most_blocks = most
        if rows:
            self._num_judged += rows * steps
            self.num_emitted += rows * steps
            self._recorder.gaps(jump.first_ps, jump.increment_ps, steps, rows)

    def first_out(self, request: JumpingRequest, at_ps: int) -> None:
        """The token that a prefill writes: the first one, or one that was long in coming."""
        self.num_emitted += 1
        if request.out_at_ps == NEVER:
            self._recorder.first_token(request.serial, at_ps)
        else:
            self._recorder.gaps(at_ps - request.out_at_ps, 0, 1, 1)

    def ended(self, request: JumpingRequest) -> None:
        """A request has all of its tokens."""
        self.num_cycled += max(0, request.arrival.output_tokens - request.first_pass)

    def unfinished(self, request: JumpingRequest, num_emitted: int) -> None:
        """A request has only so many tokens when the run ends."""
        if num_emitted:
            self._recorder.emitted(request.serial, num_emitted)
            self.num_cycled += max(0, num_emitted - request.first_pass)

    def note_state(self, at_ps: int, running: int, waiting: int, used: int) -> None:
        """What the replica holds from now on."""
        self._noted_block_ps += self._used[self._target] * (at_ps - self._noted_ps)
        self._noted_ps = at_ps
        self._used[self._target] = used
        self._recorder.state(self._index, at_ps, running, waiting, self._used)

    def in_step(self, start_ps: int, running: int, waiting: int, used: int) -> None:
        """The run ends within a step that began then."""
        if start_ps > self._noted_ps:
            self.note_state(start_ps, running, waiting, used)
        self._block_ps += used * (self._noted_ps - start_ps)

    def close(self) -> None:
        """Tell the sums."""
        recorder, index, target = self._recorder, self._index, self._target
        recorder.grew(index, target, self._block_ps - self._noted_block_ps, self._most_blocks)
        recorder.busy(index, target, self._busy_ps, self._num_steps)
        recorder.judged(target, 0, 0, self._num_judged, self._num_judged)
        for level, kv in enumerate(self._members):
            if kv is not None:
                hits, (blocks, tokens) = kv.hits, self._idle_lookups[level]
                asked = hits.asked_blocks + blocks, hits.asked_tokens + tokens
                recorder.looked_up(index, level, asked, (hits.found_blocks, hits.found_tokens))
