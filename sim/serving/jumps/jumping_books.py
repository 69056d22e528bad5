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
        num_cycled: tokens that came out after the first pass of a recorded answer, of requests that are done or closed.
    """

    def __init__(self, index: int, recorder: ServingRecorder, members: Sequence[MemberKv | None], target: int) -> None:
        self._index = index
        self._recorder = recorder
        self._states = recorder.states_of(index)
        self._gaps = recorder.gaps
        self._members = members
        self._target = target
        # Those below the target are asked for each text as well, and never have it.
        self._idle = [kv for kv in members[:target] if kv is not None and kv.limits.prefix_cache]
        self._idle_lookups = {id(kv): [0, 0] for kv in self._idle}  # blocks, tokens: asked for
        self._busy_ps = self._num_steps = self._num_judged = self._num_states = 0
        self._running_ps = self._waiting_ps = self._block_ps = 0
        self._most_running = self._most_waiting = self._most_blocks = 0
        self._num_read = 0
        self.num_cycled = 0

    @property
    def num_emitted(self) -> int:
        """Tokens that came out, of steps and of prefills."""
        return self._num_judged + self._num_read

    # -- requests

    def wait(self, waiting: int) -> None:
        """So many requests wait now."""
        if waiting > self._most_waiting:
            self._most_waiting = waiting

    def admitted(self, request: JumpingRequest, at_ps: int) -> None:
        """A request enters the batch, with its cached tokens read; what is said of its first time is said then."""
        self._waiting_ps += at_ps - request.since_ps
        request.since_ps = at_ps
        if request.first_pass:
            return
        hit = request.read
        self._recorder.scheduled(request.serial, at_ps, [0] * self._target + [hit] if hit else ())
        for kv in self._idle:
            asked = self._idle_lookups[id(kv)]
            asked[0] += request.text // kv.limits.block_tokens
            asked[1] += request.text

    def put_back(self, request: JumpingRequest, at_ps: int, waiting: int) -> None:
        """A request left the batch; so many wait now."""
        self._running_ps += at_ps - request.since_ps
        request.since_ps = at_ps
        self.wait(waiting)
        self._recorder.preempted(request.serial, at_ps)

    def first_out(self, request: JumpingRequest, at_ps: int) -> None:
        """The token that a prefill writes: the first one, or one that was long in coming."""
        self._num_read += 1
        if request.out_at_ps == NEVER:
            self._recorder.first_token(request.serial, at_ps)
        else:
            self._gaps(at_ps - request.out_at_ps, 0, 1, 1)

    def ended(self, request: JumpingRequest, at_ps: int) -> None:
        """A request has all of its tokens."""
        self._running_ps += at_ps - request.since_ps
        cycled = request.arrival.output_tokens - request.first_pass
        if cycled > 0:
            self.num_cycled += cycled
        self._recorder.finished(request.serial, at_ps)

    def unfinished(self, request: JumpingRequest, num_emitted: int, at_ps: int) -> None:
        """A request has only so many tokens when the run ends."""
        if request.order == NEVER:
            self._waiting_ps += at_ps - request.since_ps
        else:
            self._running_ps += at_ps - request.since_ps
        if num_emitted:
            self._recorder.emitted(request.serial, num_emitted)
            self.num_cycled += max(0, num_emitted - request.first_pass)

    # -- steps

    def planned(self, at_ps: int, running: int, waiting: int, used: int) -> None:
        """What the replica holds from now on, until something is planned again or a request comes."""
        if running > self._most_running:
            self._most_running = running
        if used > self._most_blocks:
            self._most_blocks = used
        self._num_states += 1
        if self._num_states == self._states.next_sample:
            self._states.sample(at_ps, running, waiting, self._target, used)

    def ran(self, jump: Jump, steps: int, rows: int, later: int, later_ps: int) -> None:
        """Steps of a jump have run.

        Args:
            jump: which.
            steps: of it.
            rows: that got a token in each.
            later: blocks that came after the first of the steps.
            later_ps: how long these were used, added up.
        """
        lasted_ps = jump.end_ps - jump.start_ps if steps == jump.num_steps else jump.lasts_ps(steps)
        used = jump.used_blocks
        self._busy_ps += lasted_ps
        self._num_steps += steps
        self._block_ps += used * lasted_ps + later_ps
        if used + later > self._most_blocks:
            self._most_blocks = used + later
        if rows:
            self._num_judged += rows * steps
            self._gaps(jump.first_ps, jump.increment_ps, steps, rows)

    def in_step(self, jump: Jump, at_ps: int) -> None:
        """The run ends within the first step of a jump."""
        self._busy_ps += at_ps - jump.start_ps
        self._block_ps += jump.used_blocks * (at_ps - jump.start_ps)
        self._most_blocks = max(self._most_blocks, jump.used_blocks)

    def close(self) -> None:
        """Tell the sums."""
        recorder, index, target = self._recorder, self._index, self._target
        below = [0] * target
        self._states.held(
            [self._running_ps, self._waiting_ps, *below, self._block_ps],
            [self._most_running, self._most_waiting, *below, self._most_blocks],
            self._num_states,
        )
        recorder.busy(index, target, self._busy_ps, self._num_steps)
        recorder.judged(target, 0, 0, self._num_judged, self._num_judged)
        for level, kv in enumerate(self._members):
            if kv is not None:
                hits, (blocks, tokens) = kv.hits, self._idle_lookups.get(id(kv), (0, 0))
                asked = hits.asked_blocks + blocks, hits.asked_tokens + tokens
                recorder.looked_up(index, level, asked, (hits.found_blocks, hits.found_tokens))
