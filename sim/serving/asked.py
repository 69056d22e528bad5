"""Gets steps of a replica's requests from a policy, groups equal ones, and passes back their outcomes.

`decoding.Loop` is what this must equal: the same steps, in the same order, with the same outcomes. It is separate code
because a served step takes microseconds: it keeps only sums, and makes no record, operation or result object that is
not read.

Waiting operations are in **slots**: two for each member, its drafts and then its verifications, lowest member first.
The first slot that is not empty runs next.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from ...base.errors import pass_interrupt
from ...decoding.legal_steps import Policy, breach, check_step, guard_progress, raised
from ...decoding.pool import Pool
from ...decoding.results import Drafted, Judged, made
from ...decoding.seen import ServerLoad
from ...decoding.steps import Commit, Draft, Outcome, Step, Verify
from ...decoding.world import check_known
from ...policies.about import check_runs, members_run_by
from .replica import ReplicaBooks
from .requests import ServedRequest, ServedView
from .world import EngineWorld

Slot: TypeAlias = tuple[int, bool, list[ServedRequest]]  # level, whether it drafts, requests
MOST_ROW = 64
MOST_STEPS = 4096  # known by identity; more are checked again
NO_STEP: tuple[object, int, int] = (object(), 0, 0)  # an object that no policy returns, while one may return None
COMMITS, UNSURE = -1, -2  # in place of tokens to draft (0: a verification): to be checked each time


class AskedPolicy:
    """One policy and the requests of one replica. Mutated by all its methods.

    Args:
        pool: the members.
        policy: decides every step; one object for all requests.
        name: of the policy, for errors.
        world: carries out steps; reads a drafter's signal of a pending token.
        decide_s: seconds that a decision takes, by the number of running requests; the clock `load.now_s` advances by
            them. None: none.

    Attributes:
        load: what the policy sees of the server. The replica sets `num_waiting`, `now_s` and `free_kv_share`.
        finished: requests that are done; the replica takes them out.
        committed: requests with a Commit since the replica last took them.
        num_modelled: decisions that were modelled rather than replayed.
        ready: requests that need a step, in this order.
        learn: of the policy.
        each_s: seconds of a decision at the last decisions.
        decided: requests of the decisions that took time since the replica last took them, once for each.
        idle: steps in a row that left a request as it was, by id.
        judged_sums: `[L]` rows, judged tokens, accepted and own ones of a member; without prefills.
    """

    def __init__(
        self, pool: Pool, policy: Policy, name: str, world: EngineWorld, decide_s: Callable[[int], float] | None
    ) -> None:
        self.load = ServerLoad(len(pool.members))
        self.finished: list[ServedRequest] = []
        self.committed: list[ServedRequest] = []
        self.num_modelled = 0
        self.judged_sums = [[0, 0, 0, 0] for _ in pool.members]
        self._policy = policy
        self._decide, self.learn = policy.decide, policy.learn
        self._name = name
        self._world = world
        self._runs = members_run_by(policy)
        self.each_s = 0.0
        self.decided: list[ServedRequest] = []
        self._decide_s = decide_s
        self._target = pool.target_level
        self.ready: list[ServedRequest] = []
        self._slots: list[list[ServedRequest]] = [[] for _ in range(2 * len(pool.members))]
        self._num_queued = 0  # in all of them
        self._steps: dict[int, tuple[Step, int, int]] = {}
        self._keeps = [not member.model_free for member in pool.members]
        self.idle: dict[str, int] = {}
        self._by_level = [[[level] * count for count in range(MOST_ROW + 1)] for level in range(len(pool.members))]

    @property
    def between_rounds(self) -> bool:
        """Whether no request has pending tokens or waits for an operation."""
        if self._num_queued:
            return False
        for request in self.ready:
            last = request.last
            if request.tokens or (last is not None and not last.num_emitted):
                return False
        return True

    def enter(self, request: ServedRequest) -> None:
        """A request enters the batch; no step is decided for it before `make_ready`."""
        load = self.load
        request.view, request.policy_name = ServedView(request, load, self._world.signal), self._name
        load.num_running += 1
        load.context_tokens += request.num_text

    def make_ready(self, request: ServedRequest) -> None:
        """A request whose text was read is ready, after all others that are."""
        self.ready.append(request)

    def withdraw(self, request: ServedRequest) -> None:
        """A request leaves the batch, without its pending tokens; the policy gets no outcome."""
        self.ready = [other for other in self.ready if other is not request]
        for place, rows in enumerate(self._slots):
            if request in rows:
                self._slots[place] = [other for other in rows if other is not request]
                self._num_queued -= 1
        request.drop_pending()
        request.last = None
        self._forget(request)

    def _forget(self, request: ServedRequest) -> None:
        self.idle.pop(request.request_id, None)
        self.load.num_running -= 1
        self.load.context_tokens -= request.num_text

    # -- asking

    def next_op(self, now_s: float) -> Slot | None:
        """Get steps for all ready requests; returns the operation that runs next, None where none is left.

        Raises:
            PolicyError: the policy raised, returned an illegal step or makes no progress.
        """
        load, slots = self.load, self._slots
        load.now_s = now_s
        ready = self.ready
        if ready:
            decide, steps = self._decide, self._steps
            if self._decide_s is not None:
                self.each_s = self._decide_s(load.num_running)
                self.decided = ready
            each_s = self.each_s
            # The usual case: all have the same step, and slots are empty.
            rows: list[ServedRequest] = []
            same = -1 if self._num_queued else -2
            latest, slot, tokens = NO_STEP
            for request in ready:  # grows by requests whose step is a Commit
                if each_s:
                    load.now_s += each_s
                try:
                    step = decide(request.view)
                except BaseException as error:  # foreign code: any error ends the run and names the policy
                    raise raised(self._name, request.request_id, None, "decide", error) from error
                if step is not latest:
                    latest, slot, tokens = steps.get(id(step)) or self._look_at(request, step)
                request.step, request.asked = step, tokens
                if tokens > 0:
                    # With nothing pending there is always room.
                    room = request.room if request.tokens else request.budget - len(request.emitted)
                    if tokens > room:
                        if room < 1:
                            self._check(request, step)
                        request.asked = room
                elif tokens == UNSURE:
                    request.asked = 0
                    request.first = first = request.first_unjudged(slot >> 1)
                    if first and first == len(request.tokens):
                        self._check(request, step)
                elif tokens:
                    self._check(request, step)
                    self._commit(request, step)
                    continue
                if slot == same:
                    rows.append(request)
                elif same == -2:
                    same = slot
                    rows.append(request)
                else:
                    slots[slot].append(request)
                    self._num_queued += 1
            self.ready = []
            if rows:
                if not self._num_queued:
                    return same >> 1, not same & 1, rows
                slots[same] = rows
                self._num_queued += len(rows)
        for slot, rows in enumerate(slots) if self._num_queued else ():
            if rows:
                slots[slot] = []
                self._num_queued -= len(rows)
                return slot >> 1, not slot & 1, rows
        return None

    def _look_at(self, request: ServedRequest, step: Step) -> tuple[Step, int, int]:
        """Classify a new step, and keep it as long as its id is used; steps are values, so its class never changes."""
        level = self._check(request, step)
        if isinstance(step, Commit):
            known: tuple[Step, int, int] = step, 0, COMMITS
        elif isinstance(step, Draft):
            known = step, 2 * level, step.tokens
        else:
            known = step, 2 * level + 1, 0 if level == self._target else UNSURE
        if len(self._steps) >= MOST_STEPS:
            self._steps.clear()
        self._steps[id(step)] = known
        return known

    def _check(self, request: ServedRequest, step: Step) -> int:
        try:
            level = check_step(request, step)
            check_known(self._world, step, level)
            check_runs(self._runs, step)
        except BaseException as error:  # a step may be foreign as well
            pass_interrupt(error)
            raise breach(self._policy, self._name, request.request_id, step, error) from error
        return level

    def _commit(self, request: ServedRequest, step: Step) -> None:
        assert isinstance(step, Commit)
        outcome = request.committed(step)
        self.load.context_tokens += outcome.num_emitted
        self.committed.append(request)
        try:
            self.learn(outcome)
        except BaseException as error:  # foreign code, as above
            raise raised(self._name, request.request_id, step, "learn", error) from error
        if outcome.done:
            self.end(request)
        else:
            self.idle.pop(request.request_id, None)
            self.ready.append(request)

    # -- telling

    def drafted(self, level: int, rows: list[ServedRequest], results: Sequence[Drafted], duration_s: float) -> None:
        """Pass on the results of a draft."""
        num_rows, keeps, learn, idle = len(rows), self._keeps[level], self.learn, self.idle
        many = self._by_level[level]
        for request, drafted in zip(rows, results):  # noqa: B905 - to be strict costs as much as the rest
            tokens, places, num_modelled, _ = drafted
            count = len(tokens)
            by_level = many[count] if count <= MOST_ROW else [level] * count
            if request.tokens:
                request.keep_pending()
                request.latest, request.latest_at = drafted, len(request.tokens)
                request.tokens += tokens
                request.places += places
                request.drafters += by_level
                request.judges += by_level
                if keeps and count:
                    request.cached[level] = request.num_text + len(request.tokens) - 1
            else:
                request.draft, request.tokens, request.places = drafted, tokens, places
                request.drafters = request.judges = by_level
                if keeps and count:
                    request.cached[level] = request.num_text + count - 1
            request.last = outcome = made(
                Outcome, (request.request_id, request.step, count, 0, 0, 0, 0, None, (), duration_s, num_rows, False, 0)
            )
            if num_modelled:
                self.num_modelled += num_modelled
            try:
                learn(outcome)
            except BaseException as error:  # foreign code, as above
                raise raised(self._name, request.request_id, outcome.step, "learn", error) from error
            if not count:
                guard_progress(self._policy, self._name, idle, outcome)
            elif idle:
                idle.pop(request.request_id, None)
        self.ready += rows

    def judged(self, level: int, rows: Sequence[ServedRequest], results: Sequence[Judged], duration_s: float) -> None:
        """Pass on the results of a verification by a member below the target."""
        sums, num_rows, idle = self.judged_sums[level], len(rows), self.idle
        sums[0] += num_rows
        for request, judged in zip(rows, results):  # noqa: B905 - as above
            outcome = request.endorsed(level, judged, duration_s, num_rows)
            num_judged, num_own = outcome[3], outcome[5]
            sums[1] += num_judged
            sums[2] += outcome[4]
            sums[3] += num_own
            self.num_modelled += judged[4]
            try:
                self.learn(outcome)
            except BaseException as error:  # foreign code, as above
                raise raised(self._name, request.request_id, outcome.step, "learn", error) from error
            if not (num_judged or num_own):
                guard_progress(self._policy, self._name, idle, outcome)
            elif idle:
                idle.pop(request.request_id, None)
        self.ready += rows

    def wrote(self, rows: Sequence[ServedRequest], results: Sequence[Judged], duration_s: float, num_rows: int,
              books: ReplicaBooks, at_ps: int) -> list[ServedRequest]:  # fmt: skip
        """Pass on verdicts of the target, in an operation of `num_rows` requests; each answer grows.

        Returns:
            Requests with as many tokens as others of their sessions wait for; `books` get all else.
        """
        learn, num_judged, num_accepted, num_own, written = self.learn, 0, 0, 0, 0
        reached: list[ServedRequest] = []
        ended: list[ServedRequest] = []
        if self.idle:
            for request in rows:
                self.idle.pop(request.request_id, None)
        noted_ps, count = at_ps, 0
        for request, judged in zip(rows, results):  # noqa: B905 - as above
            if request.noted_at_ps != noted_ps:
                if count:
                    books.recorder.gaps(at_ps - noted_ps, 0, 1, count)
                noted_ps, count = request.noted_at_ps, 0
            count += 1
            request.noted_at_ps = at_ps
            outcome = request.wrote(judged, duration_s, num_rows)
            if outcome[3]:
                num_judged += outcome[3]
                num_accepted += outcome[4]
            num_own += outcome[5]
            written += outcome[6]
            if judged[4]:
                self.num_modelled += judged[4]
            if request.depths and request.num_answer >= request.depths[0]:
                reached.append(request)
            try:
                learn(outcome)
            except BaseException as error:  # foreign code, as above
                raise raised(self._name, request.request_id, outcome.step, "learn", error) from error
            if outcome[11]:
                self.end(request)
                ended.append(request)
        if count:
            books.recorder.gaps(at_ps - noted_ps, 0, 1, count)
        self.load.context_tokens += written
        books.num_emitted += written
        books.noted_ps = at_ps
        sums = self.judged_sums[self._target]
        sums[0] += len(rows)
        sums[3] += num_own
        if num_judged:
            sums[1] += num_judged
            sums[2] += num_accepted
        self.ready += [request for request in rows if request not in ended] if ended else rows
        return reached

    def prefilled(self, rows: Sequence[ServedRequest], results: Sequence[Judged], duration_s: float,
                  num_rows: int) -> None:  # fmt: skip
        """Note prefills that ended in an operation of `num_rows` requests, each with its first token."""
        for request, judged in zip(rows, results):  # noqa: B905 - as above
            outcome = request.prefilled(cast(Verify, request.step), judged, duration_s=duration_s, num_rows=num_rows)
            self.load.context_tokens += outcome.num_emitted
            self.num_modelled += judged.num_modelled
            if outcome.done:
                self.end(request)
            else:
                self.ready.append(request)

    def end(self, request: ServedRequest) -> None:
        """Forget a request that is done."""
        self.finished.append(request)
        self._forget(request)
