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
        # Those below the target are asked for each text as well, and never have it.
        self._idle = [kv for kv in members[:target] if kv is not None and kv.limits.prefix_cache]
        self._idle_lookups = {id(kv): [0, 0] for kv in self._idle}  # blocks, tokens: asked for
        self._busy_ps = self._num_steps = self._num_judged = 0
        self._running_ps = self._waiting_ps = self._block_ps = 0
        self._most_running = self._most_waiting = self._most_blocks = 0
        self.num_emitted = 0
        self.num_cycled = 0

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
        self.num_emitted += 1
        if request.out_at_ps == NEVER:
            self._recorder.first_token(request.serial, at_ps)
        else:
            self._recorder.gaps(at_ps - request.out_at_ps, 0, 1, 1)

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
        self._recorder.sample(self._index, at_ps, running, waiting, self._target, used)

    def ran(self, jump: Jump, steps: int, rows: int, lasted_ps: int) -> None:
        """So many steps of a jump have run, each of which gave `rows` requests a token."""
        self._busy_ps += lasted_ps
        self._num_steps += steps
        if rows:
            tokens = rows * steps
            self._num_judged += tokens
            self.num_emitted += tokens
            self._recorder.gaps(jump.first_ps, jump.increment_ps, steps, rows)

    def held(self, block_ps: int, most: int) -> None:
        """Blocks were used so long, added up, and so many at once."""
        self._block_ps += block_ps
        if most > self._most_blocks:
            self._most_blocks = most

    def close(self) -> None:
        """Tell the sums."""
        recorder, index, target = self._recorder, self._index, self._target
        below = [0] * target
        recorder.held(
            index,
            [self._running_ps, self._waiting_ps, *below, self._block_ps],
            [self._most_running, self._most_waiting, *below, self._most_blocks],
        )
        recorder.busy(index, target, self._busy_ps, self._num_steps)
        recorder.judged(target, 0, 0, self._num_judged, self._num_judged)
        for level, kv in enumerate(self._members):
            if kv is not None:
                hits, (blocks, tokens) = kv.hits, self._idle_lookups.get(id(kv), (0, 0))
                asked = hits.asked_blocks + blocks, hits.asked_tokens + tokens
                recorder.looked_up(index, level, asked, (hits.found_blocks, hits.found_tokens))
