"""A served request, which recorded request it replays, and the queues of a replica in which it waits and runs.

A **segment** is one recorded answer. A request that wants more tokens than that starts it anew; drafts stop at a
segment's end as at an answer's end, and an end-of-sequence token ends a segment, not the request. What came before
the segment counts as prompt, so that all lengths stay right.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from math import floor
from typing import NamedTuple

from ...base.errors import ArgumentError, counted
from ...decoding.pool import Pool
from ...decoding.results import Drafted, Judged, made
from ...decoding.seen import Observation
from ...decoding.session import Session
from ...decoding.steps import Commit, Outcome, Step, Verify
from ...traces.recording import Request
from ...traces.workloads.arrival import Arrival
from ..context_tables import TargetVerdict
from ..contexts_answers import TrieAnswers
from ..recorded import RecordedAnswers, Replayed


class AnswerLengths:
    """Plays each request once, when it is first asked for."""

    def __init__(self, pool: Pool, answers: RecordedAnswers) -> None:
        self._pool = pool
        self._answers = answers
        self._lengths: dict[str, int] = {}

    def of(self, request_id: str) -> int:
        """Tokens that the target alone writes, >= 1; raises KeyError for a request that the recording does not hold."""
        length = self._lengths.get(request_id)
        if length is None:
            length = self._lengths[request_id] = self._played(request_id)
        return length

    def _played(self, request_id: str) -> int:
        answers, level, step = self._answers, self._pool.target_level, Verify(self._pool.target)
        name = f"\0{request_id}"  # unlike that of any served request
        replayed = answers.replay(name, request_id)
        session = Session(
            pool=self._pool,
            request_id=name,
            tag=replayed.tag,
            prompt=replayed.prompt,
            budget=replayed.budget,
            eos=replayed.eos,
            ending=replayed.ending,
        )
        session.place = replayed.place
        while not session.done:
            judged = answers.judged(session, step, level)
            assert not judged.num_modelled, "a recorded answer is recorded to its end"
            session.judged(step, level, judged, duration_s=0.0, num_rows=1)
        answers.release(name)
        return len(session.emitted)


MOST_SHOWN = 8  # tags in an error


class DrawnRequests:
    """Draws requests of a recording.

    Args:
        requests: of the recording, at least one.
        seed: of the draws; another one draws others.
    """

    def __init__(self, requests: Iterable[Request], *, seed: int) -> None:
        self._seeded = blake2b(f"{seed}\0".encode(), digest_size=8)
        self._by_tag: dict[str, list[str]] = {"": []}
        for request in requests:
            self._by_tag[""].append(request.request_id)
            if request.tag:
                self._by_tag.setdefault(request.tag, []).append(request.request_id)

    def check(self, request_id: str, tag: str) -> None:
        """Raises ArgumentError for a tag that no recorded request has."""
        if tag not in self._by_tag:
            raise self._unknown(request_id, tag)

    def of(self, request_id: str, tag: str) -> str:
        """Id of the recorded request that stands for a served one: any of its tag, of all if `tag` is "".

        The same on any machine, whatever else is drawn.

        Raises:
            ArgumentError: a tag that no recorded request has.
        """
        ids = self._by_tag.get(tag)
        if ids is None:
            raise self._unknown(request_id, tag)
        drawn = self._seeded.copy()
        drawn.update(request_id.encode())
        return ids[int.from_bytes(drawn.digest()) % len(ids)]

    def _unknown(self, request_id: str, tag: str) -> ArgumentError:
        return ArgumentError(f"request {request_id}: no request of the recording has the tag {tag!r}; {self._tags()}")

    def _tags(self) -> str:
        tags = sorted(tag for tag in self._by_tag if tag)
        if not tags:
            return "they have none"
        shown = ", ".join(tags[:MOST_SHOWN]) + (", ..." if len(tags) > MOST_SHOWN else "")
        return f"it has {counted(len(tags), 'tag')}: {shown}"


NEVER = -1
NO_DRAFT = Drafted([], [])  # of which nothing is pending
READS = Verify("")  # in place of a step, of a request whose text is read


class Deadline(NamedTuple):
    """When a class of service levels wants tokens, seconds."""

    first_token_s: float  # after the arrival
    token_s: float  # for each token after the first

    def after(self, arrived_at_s: float) -> "Deadline":
        """The same of a request that arrived then, its first one on the clock of the run."""
        return Deadline(arrived_at_s + self.first_token_s, self.token_s)


class ServedRequest(Session):
    """One request while it is served.

    Args:
        pool: the members.
        arrival: what is wanted.
        serial: of the request in its run.
        answers: of the recording.
        recorded_id: the request of the recording that it replays.
        due: when tokens are due, on the clock of the run: the first one, and seconds for each further; None: never.

    Attributes (and those of `Session`; `emitted` is that of the segment, `num_prompt` all that stands before it):
        arrival, serial, recorded_id, due: see above.
        earlier: tokens of the segments before.
        depths: tokens of the answer that others of its session wait for, and that are not written yet.
        num_text: tokens of prompt and answer so far.
        step: that it waits for or that runs; `READS` while its text is read.
        tables: what it replays, of a recording of contexts; None of others.
        asked: tokens that a draft of it asks for and has room for; else 0.
        first: index of the first pending token that a verification below the target judges.
        latest, latest_at: what its latest draft wrote after other pending tokens, and how many these were; NO_DRAFT
            where something else came since.
        draft: what one draft wrote, where that is all that is pending, NO_DRAFT where nothing is. The columns of
            pending tokens are its own then, and many requests may have them, so `keep_pending` copies them before a
            change; None once they are this request's own.
        view: what its policy sees, once it was admitted.
        order: number of its latest admission, which grows with every one; NEVER while it waits.
        chunk: tokens that the next forward of the member at `chunk_level` is fed, if not all that it lacks; else 0.
        scheduled: whether it was ever admitted.
        most_tokens: that its text ever has, prompt and answer.
        room_held: `[L]` tokens that the blocks of each member have room for, while it runs.
        full_at: `[L]` tokens from which on a further block of each member may enter the prefix cache.
        num_first: tokens of the first segment, once it is over.
        was_put_back: whether it ever left the batch for lack of memory.
        whole_budget: tokens of a segment that nothing cuts.
        num_fresh: tokens of the answer that are not written down yet; all others were, the last of them at
            `noted_at_ps`.
    """

    __slots__ = (
        "_answers", "arrival", "asked", "chunk", "chunk_level", "depths", "draft", "due", "earlier", "first", "full_at",
        "latest", "latest_at",
        "most_tokens", "noted_at_ps", "num_first", "num_fresh", "num_text", "order", "recorded_id",
        "room_held", "scheduled", "serial", "step", "tables", "view", "was_put_back", "whole_budget",
    )  # fmt: skip

    view: "ServedView"

    def __init__(
        self,
        *,
        pool: Pool,
        arrival: Arrival,
        serial: int,
        answers: RecordedAnswers,
        recorded_id: str,
        due: Deadline | None = None,
    ) -> None:
        replayed = answers.replay(arrival.request_id, recorded_id)
        super().__init__(
            pool=pool,
            request_id=arrival.request_id,
            tag=replayed.tag,
            prompt=replayed.prompt,
            budget=replayed.budget,
            eos=replayed.eos,
        )
        self._answers = answers
        self.recorded_id = recorded_id
        self.arrival = arrival
        self.serial = serial
        self.due = due
        self.depths = arrival.depths
        self.num_prompt = self.num_text = arrival.prompt_tokens
        self.most_tokens = arrival.prompt_tokens + arrival.output_tokens
        self.room_held = [0] * len(pool.members)
        self.full_at = [0] * len(pool.members)
        self.earlier: list[int] = []
        self.order = NEVER
        self.scheduled = self.was_put_back = False
        self.step: Step = READS
        self.asked = 0
        self.draft: Drafted | None = None
        self.first = self.latest_at = 0
        self.latest = NO_DRAFT
        self.chunk = 0
        self.chunk_level = pool.target_level
        self.num_first = 0
        self.num_fresh = 0
        self.noted_at_ps = NEVER
        self._begin(replayed)

    @property
    def num_answer(self) -> int:
        """Tokens of the answer so far."""
        return self.num_text - self.arrival.prompt_tokens

    @property
    def num_cycled(self) -> int:
        """Of these, how many came after the first segment."""
        return max(self.num_answer - self.num_first, 0) if self.earlier else 0

    @property
    def prefill_left(self) -> int:
        """Tokens of the text that the target has not read."""
        return self.num_text - self.cached[self._target]

    def feed(self, level: int, *, verify: bool) -> tuple[int, int]:
        """See `Session`; a chunk, if one is planned for the member."""
        held, text = self.cached[level], self.num_text
        if self.chunk and level == self.chunk_level:
            return self.chunk, held
        if verify:
            before = text - 1 if level == self._target else text + self.first_unjudged(level) - 1
            if held > before:
                held = before
        return text + len(self.tokens) - held, held

    def judged(self, step: Verify, level: int, judged: Judged, *, duration_s: float, num_rows: int) -> Outcome:
        """See `Session`; the end of a segment is not that of the request."""
        self.keep_pending()
        outcome = super().judged(step, level, judged, duration_s=duration_s, num_rows=num_rows)
        self.num_text += outcome.num_emitted
        self.num_fresh += outcome.num_emitted
        return self.going_on(outcome) if outcome.done else outcome

    def endorsed(self, level: int, judged: Judged, duration_s: float, num_rows: int) -> Outcome:
        """As `judged` by a member below the target, which looks at what is pending from `first` on."""
        self.keep_pending()
        num_accepted, own_token, own_place, tvd, _, escalated, _ = judged
        num_judged = len(self.tokens) - self.first
        self._keep_judged(self.first, num_accepted, level, escalated)
        num_own = self._append_own(level, own_token, own_place)
        refused_at = num_accepted if num_accepted < num_judged else None
        # fmt: off
        self.last = outcome = made(Outcome, (
            self.request_id, self.step, 0, num_judged, num_accepted, num_own, 0, refused_at, tvd, duration_s, num_rows,
            False, len(escalated),
        ))
        # fmt: on
        return outcome

    def keep_pending(self) -> None:
        """What is pending changes otherwise than by a commit of the target: from now on it is the request's own."""
        self.latest = NO_DRAFT
        if self.draft is not None:
            self.draft = None
            self.tokens, self.places = self.tokens.copy(), self.places.copy()
            self.drafters, self.judges = self.drafters.copy(), self.judges.copy()

    def drop_pending(self) -> None:
        """See `RequestText`."""
        self.keep_pending()
        super().drop_pending()

    def wrote(self, judged: Judged, duration_s: float, num_rows: int) -> Outcome:
        """As `judged` by the target, of a run of pending tokens; the part of a served step that runs most often.

        Whoever asks writes down what came of it.
        """
        num_accepted, _, place, tvd, _, escalated, _ = judged
        emitted, judges, read, refused_at = self.emitted, self.judges, self.num_text + num_accepted, None
        num_judged, num_before = len(judges), len(emitted)
        if judged.__class__ is TargetVerdict:
            written, ends = judged.written, judged.ends
        else:
            written, ends = self._written(judged)
        if len(written) >= self.budget - num_before:
            written, ends = written[: self.budget - num_before], True
        num_emitted = len(written)
        num_own = num_emitted - num_accepted
        emitted += written
        self.place = place if num_own else self.places[num_accepted - 1]
        cached, places = self.cached, self.places
        if num_judged:
            if num_accepted < num_judged:
                refused_at = num_accepted
                if self.draft is None:
                    cached[:] = [held if held < read else read for held in cached]
                elif cached[judges[0]] > read:  # nobody else has read any of it
                    cached[judges[0]] = read
            self.draft = NO_DRAFT
            self.tokens = self.places = self.drafters = self.judges = NO_DRAFT.tokens
        cached[self._target] = read
        if self._ending is not None:
            kept = self._ending(emitted, num_before)
            if kept is not None:
                ends = True
                self._end(kept, num_before)
                if kept - num_before < num_emitted:  # what is cut begins with the target's own token, at the latest
                    num_emitted, num_own = kept - num_before, 0
                    self.place = places[num_emitted - 1]
        self.num_text += num_emitted
        ends = ends and not self._begins_anew()
        # fmt: off
        self.last = outcome = made(Outcome, (
            self.request_id, self.step, 0, num_judged, num_accepted, num_own, num_emitted, refused_at, tvd, duration_s,
            num_rows, ends, len(escalated),
        ))
        # fmt: on
        return outcome

    def _written(self, judged: Judged) -> tuple[list[int], bool]:
        """Tokens that the target commits where there is room, and whether the last one ends the text."""
        written = self.tokens[: judged.num_accepted]
        if not (written and written[-1] in self.eos):
            written.append(judged.own_token)
        return written, written[-1] in self.eos

    def committed(self, step: Commit) -> Outcome:
        """See `Session`, and `judged`."""
        self.keep_pending()
        outcome = super().committed(step)
        self.num_text += outcome.num_emitted
        self.num_fresh += outcome.num_emitted
        return self.going_on(outcome) if outcome.done else outcome

    def going_on(self, outcome: Outcome) -> Outcome:
        """What came of a step at a segment's end: the next segment begins, unless the request is done."""
        if self._begins_anew():
            self.last = outcome = outcome._replace(done=False)
        return outcome

    def _begins_anew(self) -> bool:
        """At a segment's end, whether the next one begins; else the request is done."""
        if self.num_answer >= self.arrival.output_tokens:
            return False
        self.num_prompt += len(self.emitted)
        self.num_first = self.num_first or len(self.emitted)
        self.earlier += self.emitted
        self.emitted = []
        self._begin(self._answers.replay(self.request_id, self.recorded_id))
        return True

    def flew(self, ended: list[int], num_ends: int, length: int, tokens: list[int], place: int) -> None:
        """Whole rounds have written more of the recorded answer.

        Args:
            ended: tokens up to the end of the last segment that ended, and after which another one began.
            num_ends: such segments.
            length: tokens of each.
            tokens: behind these.
            place: after all of them.
        """
        if num_ends:
            self.earlier += self.emitted
            self.earlier += ended
            self.num_prompt += num_ends * length
            self.num_first = self.num_first or length
            self.emitted = tokens
            self._begin(self._answers.replay(self.request_id, self.recorded_id))
        else:
            self.emitted += tokens
        self.place = place
        self.num_text = self.arrival.prompt_tokens + len(self.earlier) + len(self.emitted)
        self.num_judged = self.num_text - 1
        self.last = None

    def _begin(self, replayed: Replayed) -> None:
        """Stand at the start of a segment, which the request's own end may cut."""
        self.place = replayed.place
        self.whole_budget = replayed.budget
        self.budget = min(replayed.budget, self.arrival.output_tokens - len(self.earlier))
        self._ending = replayed.ending
        self._ended = False
        self.tables = self._answers.recorded(self.request_id) if isinstance(self._answers, TrieAnswers) else None


class ServedView(Observation):
    """What a policy sees of a served request: its whole answer, not the segment."""

    __slots__ = ()

    _session: ServedRequest

    @property
    def slo(self) -> str:
        """See `Observation`."""
        return self._session.arrival.slo

    @property
    def deadline_s(self) -> float | None:
        """See `Observation`."""
        session = self._session
        due = session.due
        return None if due is None else due.first_token_s + due.token_s * session.num_answer

    @property
    def num_prompt(self) -> int:
        """See `Observation`."""
        return self._session.arrival.prompt_tokens

    @property
    def num_emitted(self) -> int:
        """See `Observation`."""
        return self._session.num_answer

    def emitted_from(self, start: int) -> list[int]:
        """See `Observation`."""
        session = self._session
        index = start - len(session.earlier)
        return session.emitted[index:] if index >= 0 else session.earlier[start:] + session.emitted

    @property
    def remaining(self) -> int:
        """See `Observation`."""
        session = self._session
        return session.arrival.output_tokens - session.num_answer


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits."""

    arrival: Arrival  # what is wanted
    serial: int  # of the request in its run
    request: ServedRequest | None = None  # None until memory is first asked for


def retracted_last(session: ServedRequest) -> tuple[int, int, int]:
    """Sorts requests that run so that the last one is retracted first: it has the fewest tokens of an answer.

    Of equal ones it has the longest prompt, then it is the latest. So SGLang sorts a batch without speculation
    (`ScheduleBatch.retract_decode`).
    """
    return -session.num_answer, session.arrival.prompt_tokens, session.order


class Batch:
    """The queues of a replica: first come, first served; who was put back stands at the front, who was retracted last.

    Attributes:
        waiting: in the order in which they are admitted.
        running: in the order in which they were admitted, `[-1]` the latest.
        prefilling: those of them whose text the target has not read to its end, in the same order.
        waiting_tokens: of the texts of those that wait.
        elsewhere: how many others wait for blocks, or for keys and values that are sent.
    """

    __slots__ = ("_admissions", "elsewhere", "prefilling", "running", "waiting", "waiting_tokens")

    def __init__(self) -> None:
        self.waiting: deque[Waiting] = deque()
        self.running: list[ServedRequest] = []
        self.prefilling: dict[ServedRequest, None] = {}
        self.waiting_tokens = self.elsewhere = 0
        self._admissions = 0

    @property
    def queued_tokens(self) -> int:
        """Tokens of texts that the target has still to read."""
        return self.waiting_tokens + sum(session.prefill_left for session in self.prefilling)

    def arrived(self, request: Waiting) -> None:
        """A request waits, after all others."""
        self.waiting.append(request)
        self.waiting_tokens += request.arrival.prompt_tokens

    def admitted(self, request: ServedRequest) -> None:
        """The first that waits runs now."""
        self.waiting.popleft()
        self.waiting_tokens -= request.num_text
        self.joined(request)
        self.prefilling[request] = None

    def joined(self, session: ServedRequest) -> None:
        """One runs whose text the target has read."""
        session.order = self._admissions
        self._admissions += 1
        self.running.append(session)

    def put_back(self) -> ServedRequest:
        """The latest that was admitted waits again, before all others."""
        session = self.running.pop()
        self.waiting.appendleft(self._waits_again(session))
        return session

    def retract(self, asking: ServedRequest) -> ServedRequest:
        """One that runs waits again, after all others; which, is said by `retracted_last`.

        A prefill that asks for memory is not worth the tokens of others, and goes itself. Before the last one that
        decodes goes the prefill that has begun; where there is none, others than the batch hold the blocks.
        """
        session = asking
        if asking not in self.prefilling:
            decoding = [one for one in self.running if one not in self.prefilling]
            session = max(decoding, key=retracted_last) if len(decoding) > 1 else next(iter(self.prefilling), asking)
        self.running.remove(session)
        self.waiting.append(self._waits_again(session))
        return session

    def _waits_again(self, session: ServedRequest) -> Waiting:
        session.order, session.was_put_back = NEVER, True
        session.chunk = 0
        self.prefilling.pop(session, None)
        self.waiting_tokens += session.num_text
        return Waiting(session.arrival, session.serial, session)

    def withdrawn(self, request_id: str) -> Waiting | None:
        """Take out one that waits and will not be served; None: it does not wait."""
        for waiting in self.waiting:
            if waiting.arrival.request_id == request_id:
                self.waiting.remove(waiting)
                request = waiting.request
                self.waiting_tokens -= waiting.arrival.prompt_tokens if request is None else request.num_text
                return waiting
        return None

    def read(self, session: ServedRequest) -> None:
        """The target has read the whole text of a request."""
        del self.prefilling[session]

    def ended(self, session: ServedRequest) -> None:
        """A request is done."""
        self.running.remove(session)
        session.order = NEVER


# Of SGLang 0.5: `SGLANG_INIT_NEW_TOKEN_RATIO`, `SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR`,
# `SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`, `CLIP_MAX_NEW_TOKENS`, `SGLANG_RETRACT_DECODE_STEPS`.
FIRST_RATIO, LEAST_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
MOST_TOKENS, RETRACT_STEPS = 4096, 20


class Written(NamedTuple):
    """How far an answer is."""

    tokens: int  # that are out, >= 0
    wanted: int  # in all, >= `tokens`

    @property
    def left(self) -> int:
        """That may still come, as far as they are looked at."""
        return min(self.wanted - self.tokens, MOST_TOKENS)


class AdmissionEstimate:
    """`ratio` is the share of what may still come that is kept free for those who decode (`new_token_ratio`)."""

    def __init__(self) -> None:
        self.ratio = FIRST_RATIO

    def stepped(self, running: Iterable[Written], *, decoded: bool, was_short: bool) -> None:
        """A step is filled.

        Args:
            running: of all who run now.
            decoded: whether somebody decodes.
            was_short: whether somebody was put back.
        """
        answers = list(running)
        if not answers:
            self.ratio = FIRST_RATIO
        elif was_short:
            written = sum(answer.tokens for answer in answers) + RETRACT_STEPS * len(answers)
            self.ratio = min(1.0, written / (sum(answer.wanted for answer in answers) + 1))
        elif decoded:
            least = FIRST_RATIO * LEAST_FACTOR
            self.ratio = max(self.ratio - (FIRST_RATIO - least) / DECAY_STEPS, least)

    def tokens_for(self, entering: Written, decoding: Iterable[Written], reading: Iterable[Written]) -> int:
        """Beside its text, tokens that must be free for a request that may enter: for itself, and for others.

        Args:
            entering: of the request.
            decoding: of those that decode.
            reading: of those whose prefill ends with this step; as of the request itself, all of theirs counts.
        """
        kept = sum(answer.left * self.ratio for answer in decoding)
        return entering.left + floor(kept) + sum(answer.left for answer in reading) + 1
