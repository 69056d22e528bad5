"""A served request, the recorded request that it replays, and the queues of a replica in which it waits and runs.

A **segment** is one recorded answer. A request that wants more tokens starts it again; drafts stop at a segment's end
as at an answer's end, and an end-of-sequence token ends a segment, not the request. Text before the segment counts as
prompt, so that all lengths are right.
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

MOST_SHOWN = 8  # tags in an error


class DrawnRequests:
    """Draws requests of a recording, of which there is at least one."""

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
        """Id of the recorded request for a served one: any of its tag, of all if `tag` is ""; raises as `check`.

        The same on any machine, independent of other draws.
        """
        ids = self._by_tag.get(tag)
        if ids is None:
            raise self._unknown(request_id, tag)
        drawn = self._seeded.copy()
        drawn.update(request_id.encode())
        return ids[int.from_bytes(drawn.digest()) % len(ids)]

    def _unknown(self, request_id: str, tag: str) -> ArgumentError:
        tags = sorted(tag for tag in self._by_tag if tag)
        shown = ", ".join(tags[:MOST_SHOWN]) + (", ..." if len(tags) > MOST_SHOWN else "")
        have = f"it has {counted(len(tags), 'tag')}: {shown}" if tags else "they have none"
        return ArgumentError(
            f"request {request_id}: no request of the recording has the tag {tag!r}; {have}; `tag` '' is for any"
        )


NEVER = -1
NO_DRAFT = Drafted([], [])  # nothing pending
READS = Verify("")  # in place of a step, of a request in prefill


class Deadline(NamedTuple):
    """When tokens are due by a class of service levels, seconds."""

    first_token_s: float  # after the arrival
    token_s: float  # for each token after the first

    def after(self, arrived_at_s: float) -> "Deadline":
        """The same for a request that arrived then, its first token on the clock of the run."""
        return Deadline(arrived_at_s + self.first_token_s, self.token_s)


class ServedRequest(Session):
    """One request while it is served.

    Args:
        arrival: the request of the workload.
        serial: of the request in its run.
        answers: of the recording.
        recorded_id: the request of the recording that it replays.
        due: when tokens are due: the first one on the clock of the run, then seconds for each further one; None: never.

    Attributes (and those of `Session`; `emitted` is that of the segment, `num_prompt` all that stands before it):
        arrival, serial, recorded_id, due: see above.
        earlier: tokens of the segments before.
        depths: tokens of the answer that others of its session wait for, not reached yet. num_text: tokens of prompt
        and answer so far. step: waiting or running; `READS` during prefill. tables: that it replays, for a recording of
        contexts; None for others. asked: requested tokens of its draft, within its room; else 0. first: index of the
        first pending token that a verification below the target judges. latest, latest_at: its latest draft after other
        pending tokens, and the number of these; NO_DRAFT where something else came since. draft: the one draft that is
        all pending tokens, NO_DRAFT where there are none. The columns of pending tokens are then the draft's, perhaps
        shared by many requests, so `keep_pending` copies them before a change; None once they are this request's own.
        view: for its policy, once admitted. order: number of its latest admission, ascending; NEVER while it waits.
        chunk: tokens fed to the next forward of the member at `chunk_level`, if not all that it lacks; else 0.
        scheduled: whether it was ever admitted. most_tokens: final length of its text, prompt and answer. room_held:
        `[L]` tokens for which the blocks of each member have room, while it runs. full_at: `[L]` length of text at
        which another block of each member may enter the prefix cache. num_first: tokens of the first segment, once it
        has ended. was_preempted: whether it ever left the batch for lack of memory. whole_budget: tokens of an uncut
        segment. num_fresh: tokens of the answer that are not noted yet; of the others the last was at `noted_at_ps`.
    """

    __slots__ = (
        "_answers", "arrival", "asked", "chunk", "chunk_level", "depths", "draft", "due", "earlier", "first", "full_at",
        "latest", "latest_at",
        "most_tokens", "noted_at_ps", "num_first", "num_fresh", "num_text", "order", "recorded_id",
        "room_held", "scheduled", "serial", "step", "tables", "view", "was_preempted", "whole_budget",
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
        self.scheduled = self.was_preempted = False
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
        """Of these, tokens after the first segment."""
        return max(self.num_answer - self.num_first, 0) if self.earlier else 0

    @property
    def prefill_left(self) -> int:
        """Tokens of the text that the target has not read."""
        return self.num_text - self.cached[self._target]

    def feed(self, level: int, *, verify: bool) -> tuple[int, int]:
        """See `Session`; a chunk, if one is planned for the member.

        A member that judged all of a segment may draft the next one's first token: it reads the last one again.
        """
        held, text, context = self.cached[level], self.num_text, self.num_text + len(self.tokens)
        if self.chunk and level == self.chunk_level:
            return self.chunk, held
        before = context - 1
        if verify:
            before = text - 1 if level == self._target else text + self.first_unjudged(level) - 1
        if held > before:
            held = before
        return context - held, held

    def judged(self, step: Verify, level: int, judged: Judged, *, duration_s: float, num_rows: int) -> Outcome:
        """See `Session`; the end of a segment does not end the request."""
        self.keep_pending()
        outcome = super().judged(step, level, judged, duration_s=duration_s, num_rows=num_rows)
        self.num_text += outcome.num_emitted
        self.num_fresh += outcome.num_emitted
        return self.at_segment_end(outcome) if outcome.done else outcome

    def endorsed(self, level: int, judged: Judged, duration_s: float, num_rows: int) -> Outcome:
        """As `judged` by a member below the target, which judges pending tokens from `first` on."""
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
        """Make pending tokens the request's own before a change other than a commit of the target."""
        self.latest = NO_DRAFT
        if self.draft is not None:
            self.draft = None
            self.tokens, self.places = self.tokens.copy(), self.places.copy()
            self.drafters, self.judges = self.drafters.copy(), self.judges.copy()

    def drop_pending(self) -> None:
        self.keep_pending()
        super().drop_pending()

    def wrote(self, judged: Judged, duration_s: float, num_rows: int) -> Outcome:
        """As `judged` by the target, for a run of pending tokens; the hottest part of a served step.

        The caller notes the output.
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
                elif cached[judges[0]] > read:  # no other cache holds any of it
                    cached[judges[0]] = read
            self.draft = NO_DRAFT
            self.tokens = self.places = self.drafters = self.judges = NO_DRAFT.tokens
        cached[self._target] = read
        if self._ending is not None:
            kept = self._ending(emitted, num_before)
            if kept is not None:
                ends = True
                self._end(kept, num_before)
                if kept - num_before < num_emitted:  # the cut includes at least the target's own token
                    num_emitted, num_own = kept - num_before, 0
                    self.place = places[num_emitted - 1]
        self.num_text += num_emitted
        ends = ends and not self._begins_segment()
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
        return self.at_segment_end(outcome) if outcome.done else outcome

    def at_segment_end(self, outcome: Outcome) -> Outcome:
        """The outcome of a step at a segment's end: begins the next segment, unless the request is done."""
        if self._begins_segment():
            self.last = outcome = outcome._replace(done=False)
        return outcome

    def _begins_segment(self) -> bool:
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
        """Apply whole rounds, which have written more of the recorded answer.

        They ended `num_ends` segments of `length` tokens that were followed by another, by `ended` tokens, then wrote
        `tokens`, up to `place`.
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
        """Go to the start of a segment, which the request's own end may cut."""
        self.place = replayed.place
        self.whole_budget = replayed.budget
        self.budget = min(replayed.budget, self.arrival.output_tokens - len(self.earlier))
        self._ending = replayed.ending
        self._ended = False
        self.tables = self._answers.recorded(self.request_id) if isinstance(self._answers, TrieAnswers) else None


class ServedView(Observation):
    """A policy's view of a served request: its whole answer, not the segment."""

    __slots__ = ()

    _session: ServedRequest

    @property
    def slo(self) -> str:
        return self._session.arrival.slo

    @property
    def deadline_s(self) -> float | None:
        session = self._session
        due = session.due
        return None if due is None else due.first_token_s + due.token_s * session.num_answer

    @property
    def num_prompt(self) -> int:
        return self._session.arrival.prompt_tokens

    @property
    def num_emitted(self) -> int:
        return self._session.num_answer

    def emitted_from(self, start: int) -> list[int]:
        session = self._session
        earlier = session.earlier
        if start < 0:  # counted from the end of both
            start = max(0, len(earlier) + len(session.emitted) + start)
        index = start - len(earlier)
        return session.emitted[index:] if index >= 0 else earlier[start:] + session.emitted

    @property
    def remaining(self) -> int:
        session = self._session
        return session.arrival.output_tokens - session.num_answer


@dataclass(slots=True, eq=False)
class Waiting:
    """A waiting request."""

    arrival: Arrival  # of the workload
    serial: int  # of the request in its run
    request: ServedRequest | None = None  # None until its first look-up in memory
    from_step: int = 0  # index of the first step of the target that it may join beside others


def retracted_last(session: ServedRequest) -> tuple[int, int, int]:
    """Sort key of running requests, whose largest is retracted first: it has the fewest tokens of an answer.

    Of equal ones it has the longest prompt, then it is the latest, as in SGLang for a batch without speculation
    (`ScheduleBatch.retract_decode`).
    """
    return -session.num_answer, session.arrival.prompt_tokens, session.order


class Batch:
    """The queues of a replica: first come, first served; preempted requests wait in front, retracted ones at the end.

    Attributes:
        waiting: in order of admission.
        running: in order of admission, `[-1]` the latest.
        prefilling: running ones in prefill, in the same order.
        waiting_tokens: of texts of waiting requests.
        elsewhere: number of others that wait for blocks, or for keys and values that are sent.
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
        """Tokens of texts that the target has yet to read."""
        return self.waiting_tokens + sum(session.prefill_left for session in self.prefilling)

    def arrived(self, request: Waiting) -> None:
        """Add a waiting request, after all others."""
        self.waiting.append(request)
        self.waiting_tokens += request.arrival.prompt_tokens

    def admitted(self, request: ServedRequest) -> None:
        """Let the first waiting request run."""
        self.waiting.popleft()
        self.waiting_tokens -= request.num_text
        self.joined(request)
        self.prefilling[request] = None

    def joined(self, session: ServedRequest) -> None:
        """Add a running request whose text the target has read."""
        session.order = self._admissions
        self._admissions += 1
        self.running.append(session)

    def preempt(self) -> ServedRequest:
        """Let the latest admitted request wait again, before all others."""
        session = self.running.pop()
        self.waiting.appendleft(self._waits_again(session))
        return session

    def retract(self, asking: ServedRequest) -> ServedRequest:
        """Let a running request wait again, after all others; chosen by `retracted_last`.

        A prefill that needs memory does not retract others, but itself. A begun prefill is retracted before the last
        decoding request; where there is none, blocks are held outside the batch.
        """
        session = asking
        if asking not in self.prefilling:
            decoding = [one for one in self.running if one not in self.prefilling]
            session = max(decoding, key=retracted_last) if len(decoding) > 1 else next(iter(self.prefilling), asking)
        self.running.remove(session)
        self.waiting.append(self._waits_again(session))
        return session

    def _waits_again(self, session: ServedRequest) -> Waiting:
        session.order, session.was_preempted = NEVER, True
        session.chunk = 0
        self.prefilling.pop(session, None)
        self.waiting_tokens += session.num_text
        return Waiting(session.arrival, session.serial, session)

    def withdrawn(self, request_id: str) -> Waiting | None:
        """Take out a waiting request that will not be served; None: it does not wait."""
        for waiting in self.waiting:
            if waiting.arrival.request_id == request_id:
                self.waiting.remove(waiting)
                request = waiting.request
                self.waiting_tokens -= waiting.arrival.prompt_tokens if request is None else request.num_text
                return waiting
        return None

    def ended(self, session: ServedRequest) -> None:
        """Remove a request that is done."""
        self.running.remove(session)
        session.order = NEVER


# Of SGLang 0.5: `SGLANG_INIT_NEW_TOKEN_RATIO`, `SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR`,
# `SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`, `CLIP_MAX_NEW_TOKENS`, `SGLANG_RETRACT_DECODE_STEPS`.
FIRST_RATIO, LEAST_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
MOST_TOKENS, RETRACT_STEPS = 4096, 20


class Written(NamedTuple):
    """Progress of an answer."""

    tokens: int  # written, >= 0
    wanted: int  # in total, >= `tokens`

    @property
    def left(self) -> int:
        """Tokens yet to come, up to the limit of the estimate."""
        return min(self.wanted - self.tokens, MOST_TOKENS)


class AdmissionEstimate:
    """`ratio` is the share of tokens yet to come that is kept free for decoding requests (`new_token_ratio`)."""

    def __init__(self) -> None:
        self.ratio = FIRST_RATIO

    def stepped(self, running: Iterable[Written], *, decoded: bool, was_short: bool) -> None:
        """Update the ratio after a step; `decoded`: a request decodes, `was_short`: one was preempted."""
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
        """Tokens that must be free to admit a request, in addition to its text: for itself, and for others.

        Of those whose prefill ends with this step (`reading`) all tokens count, as for the request itself.
        """
        kept = sum(answer.left * self.ratio for answer in decoding)
        return entering.left + floor(kept) + sum(answer.left for answer in reading) + 1
