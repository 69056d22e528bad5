"""The world that answers from a recording: drafts and verdicts are walks in a request's trie.

A token whose context is recorded is *replayed*. Beyond the record, tokens are `UNKNOWN`, verdicts come from the
fitted fallback, and each such decision is counted as modelled. The target's verdict on a draft that starts on the
trunk never needs the fallback: where the draft leaves the trunk is recorded, and there the target refuses it.
"""

from collections.abc import Callable, Iterator, Sequence
from math import exp, nan

from ...decoding.contract import Draft, Verify
from ...decoding.pool import Pool
from ...decoding.prompt_lookup import prompt_lookup
from ...decoding.results import Drafted, DraftResults, Judged, VerifyResults, made
from ...decoding.rules.acceptance import Ruling, ruling
from ...decoding.rules.facts import unknown_facts
from ...decoding.rules.signal import NO_SIGNAL, Signal
from ...decoding.session import Session
from ...decoding.world import DraftItem, VerifyItem
from ...runs.text_quality import TextQuality
from ..charges import draft_forwards, total_s, verify_forward
from ..cost.base import CostModel, OperationCost
from ..operation_charges import OperationCharges
from ..recorded_pool import recorded_rule
from ..unrecorded_error import UnrecordedContextError
from .agreement_rates import Fallback
from .recorded_facts import lacks, recorded_facts
from .recorded_quality import recorded_quality
from .request_tables import RequestTables, TablesByRequest

UNKNOWN = -1


class ReplayWorld:
    """Answers operations from a trace and charges seconds from a cost model.

    Args:
        tables: the recording.
        pool: its members in level order.
        cost: seconds of forwards.
        fallback: answers beyond the record; None makes the first unknown an error.
        now_s: reads the run's clock; None outside a run, where nothing takes time but the operations themselves.
    """

    def __init__(
        self,
        *,
        tables: TablesByRequest,
        pool: Pool,
        cost: CostModel,
        fallback: Fallback | None,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._tables = tables
        self._num_free = tables.num_free
        self._eos = frozenset(tables.trace.meta.eos_token_ids)
        ngram = tables.trace.meta.ngram
        self._lookup = None if ngram is None else recorded_rule(ngram)
        self._pool = pool
        self._cost = cost
        self._charges = OperationCharges(cost, pool, now_s) if isinstance(cost, OperationCost) else None
        self._fallback = fallback
        self._open: dict[str, RequestTables] = {}
        self.num_reanchored: dict[str, int] = {}
        self.num_divergent: dict[str, int] = {}
        self.quality: dict[str, TextQuality] = {}
        self._anchors: dict[str, dict[int, int]] = {}

    def sessions(self, prefill_before: tuple[bool, ...]) -> Iterator[Session]:
        """The requests in file order, each made when it is asked for; `prefill_before` as in `Session`."""
        for record in self._tables.trace.requests:
            yield Session(
                pool=self._pool,
                request_id=record.request_id,
                tag=record.tag,
                prompt=record.prompt,
                budget=record.max_new_tokens,
                eos=self._eos,
                prefill_before=prefill_before,
            )

    def open(self, session: Session) -> None:
        """Start at the root of the request's trie."""
        self._open[session.request_id] = self._tables.of(session.request_id)
        session.place = 0

    def close(self, session: Session) -> None:
        """Forget the request, but for how its text compares with the trunk."""
        request_id = session.request_id
        if self._charges is not None:
            self._charges.close(request_id)
        recorded = self._open.pop(request_id)
        anchors = self._anchors.pop(request_id, {})
        quality = recorded_quality(recorded, self._pool.target_level, session.emitted, anchors)
        self.quality[request_id] = quality
        self.num_divergent[request_id] = max(len(session.emitted), quality.trunk_tokens) - quality.same_tokens

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Walk every request's trie, then charge the operation."""
        if level < self._num_free:
            looked_up = [self._look_up(session, step) for session, step in items]
            if self._charges is not None:
                return DraftResults(looked_up, [], self._charges.lookup_s(len(items)))
            return DraftResults(looked_up, [], self._cost.lookup_s * len(items))
        drafted = [self._draft(session, step, level) for session, step in items]
        if self._charges is not None:
            forwards, seconds = self._charges.draft(level, items, drafted)
        else:
            forwards = draft_forwards(self._cost, self._pool.names[level], items, drafted, level)
            seconds = total_s(forwards)
        return made(DraftResults, (drafted, forwards, seconds, 1.0))

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Walk every request's trie, then charge the operation."""
        judged = [self._judge(session, step, level) for session, step in items]
        if self._charges is not None:
            forward, seconds = self._charges.verify(level, items)
        else:
            forward = verify_forward(self._cost, self._pool.names[level], items, level)
            seconds = forward[3]
        return made(VerifyResults, (judged, [forward], seconds, 1.0))

    def signal(self, session: Session, index: int) -> Signal:
        """The drafter's recorded view at the context of pending token `index`; NaN if none is recorded."""
        node = session.places[index - 1] if index else session.place
        return self._signal_at(self._open[session.request_id], session.drafters[index], node)

    def _signal_at(self, tables: RequestTables, level: int, node: int) -> Signal:
        if node < 0 or level < self._num_free:
            return NO_SIGNAL
        return Signal(exp(tables.next_log_prob[level][node]), tables.entropy[level][node], tables.gap[level][node])

    def _draft(self, session: Session, step: Draft, level: int) -> Drafted:
        if step.stop is not None:
            return self._draft_slowly(session, step, level)
        tables = self._open[session.request_id]
        node = session.places[-1] if session.places else self._anchored(session, tables)
        next_token, child, eos = tables.next_token[level], tables.child[level], self._eos
        tokens: list[int] = []
        places: list[int] = []
        for _ in range(min(step.tokens, session.room)):
            if node < 0:
                return self._draft_slowly(session, step, level)
            token = next_token[node]
            node = child[node]
            tokens.append(token)
            places.append(node)
            if token in eos:
                break
        return made(Drafted, (tokens, places, 0))

    def _draft_slowly(self, session: Session, step: Draft, level: int) -> Drafted:
        """Draft with a stop rule, or where some context is not recorded."""
        tables = self._open[session.request_id]
        node = session.places[-1] if session.places else self._anchored(session, tables)
        product = 1.0
        tokens: list[int] = []
        places: list[int] = []
        num_modelled = 0
        for _ in range(min(step.tokens, session.room)):
            if node < 0:
                num_modelled += 1
                self._need_fallback(session, "draft")
                tokens.append(UNKNOWN)
                places.append(-1)
                continue
            context, token = node, tables.next_token[level][node]
            node = tables.child[level][node]
            tokens.append(token)
            places.append(node)
            if token in self._eos:
                break
            if step.stop is not None:
                signal = self._signal_at(tables, level, context)
                product *= signal.prob
                if step.stop.holds(signal, product):
                    break
        return Drafted(tokens, places, num_modelled)

    def _look_up(self, session: Session, step: Draft) -> Drafted:
        """Prompt lookup over the real tokens, which replay knows as well as the runtime does."""
        tables = self._open[session.request_id]
        node = session.places[-1] if session.places else self._anchored(session, tables)
        assert self._lookup is not None
        answer = [*session.emitted, *session.tokens]
        if UNKNOWN in answer:
            # Unknown tokens equal each other by accident only: whether the lookup finds anything is modelled, as no.
            self._need_fallback(session, "draft")
            return Drafted([], [], 1)
        context = [*session.prompt, *answer]
        wanted = min(step.tokens, session.room)
        tokens = session.until_end(prompt_lookup(context, num_tokens=wanted, rule=self._lookup))
        places = []
        for token in tokens:
            node = tables.find_child(node, token) if node >= 0 else -1
            places.append(node)
        return Drafted(tokens, places)

    def _judge(self, session: Session, step: Verify, level: int) -> Judged:
        tables = self._open[session.request_id]
        first = session.first_unjudged(level)
        node = session.places[first - 1] if first else self._anchored(session, tables)
        if node < 0 or not step.rule.lossless:
            return self._judge_slowly(session, step, level, first)
        next_token, distances = tables.next_token[level], tables.tvd[level]
        tokens, judges, places = session.tokens, session.judges, session.places
        if first:
            tokens, judges, places = tokens[first:], judges[first:], places[first:]
        num_accepted = 0
        tvd: list[float] = []
        for token, judge, place in zip(tokens, judges, places):  # noqa: B905 - to be strict costs as much as the rest
            tvd.append(distances[judge][node])
            if next_token[node] != token:
                if token == UNKNOWN:  # drafted before the committed context came back to the trunk
                    return self._judge_slowly(session, step, level, first)
                break
            num_accepted += 1
            node = place
            if node < 0:
                return self._judge_slowly(session, step, level, first)
        return made(Judged, (num_accepted, next_token[node], tables.child[level][node], tuple(tvd), 0, ()))

    def _judge_slowly(self, session: Session, step: Verify, level: int, first: int) -> Judged:
        """Judge with a lossy rule, or where some context is not recorded."""
        tables = self._open[session.request_id]
        node = session.places[first - 1] if first else session.place
        tvd: list[float] = []
        escalated: list[int] = []
        num_modelled = 0
        tokens = session.tokens
        index = first
        while index < len(tokens):
            says, modelled, distance = self._verdict(session, tables, step, level, index, node)
            tvd.append(distance)
            num_modelled += modelled
            if says is Ruling.refuse:
                break
            if says is Ruling.escalate:
                escalated.append(index - first)
            node = session.places[index]
            index += 1
        if node < 0:
            own_token, own_place = UNKNOWN, -1
            if index < len(tokens) or session.room > 0:  # else the session has no room for it
                num_modelled += 1
                self._need_fallback(session, "verify")
        else:
            own_token, own_place = tables.next_token[level][node], tables.child[level][node]
        return Judged(index - first, own_token, own_place, tuple(tvd), num_modelled, tuple(escalated))

    def _verdict(
        self, session: Session, tables: RequestTables, step: Verify, level: int, index: int, node: int
    ) -> tuple[Ruling, bool, float]:
        """(ruling, modelled, distance) for pending token `index` in the context `node`."""
        proposer = session.judges[index]
        rule = step.rule
        if node < 0 or session.tokens[index] == UNKNOWN:
            if not rule.lossless and rule.accepts(unknown_facts(proposer)):  # it would, whatever the record said
                return Ruling.keep, False, nan
            return self._modelled_verdict(session, level, index, proposer), True, nan
        distance = tables.tvd[level][proposer][node]
        same = tables.next_token[level][node] == session.tokens[index]
        if rule.lossless:
            return Ruling.keep if same else Ruling.refuse, False, distance
        facts = recorded_facts(session, tables, self._num_free, level, index, node, same=same, tvd=distance)
        if lacks(rule, facts) and not rule.accepts(unknown_facts(proposer)):
            self._need_fallback(session, "verify")
            return Ruling.refuse, True, distance
        return ruling(rule, facts), False, distance

    def _modelled_verdict(self, session: Session, level: int, index: int, proposer: int) -> Ruling:
        """What the fallback says of a token outside the record: the two members agree on it, or they do not."""
        self._need_fallback(session, "verify")
        if proposer < self._num_free:
            return Ruling.refuse
        assert self._fallback is not None
        position = len(session.emitted) + index
        free = self._num_free
        agrees = self._fallback.accepts(session.request_id, position, proposer - free, level - free)
        return Ruling.keep if agrees else Ruling.refuse

    def _anchored(self, session: Session, tables: RequestTables) -> int:
        """The committed context; one that lossy steps took out of the record resumes on the trunk at its length."""
        if session.place < 0:
            self._need_fallback(session, "re-anchor")
            trunk = tables.trunk
            ends = tables.token[trunk[-1]] in self._eos
            session.place = trunk[min(len(session.emitted), len(trunk) - (2 if ends else 1))]
            count = self.num_reanchored.get(session.request_id, 0)
            self.num_reanchored[session.request_id] = count + 1
            self._anchors.setdefault(session.request_id, {})[len(session.emitted)] = session.place
        return session.place

    def _need_fallback(self, session: Session, what: str) -> None:
        if self._fallback is None:
            position = len(session.emitted) + len(session.tokens)
            raise UnrecordedContextError(session.request_id, position, what)
