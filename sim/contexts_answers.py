"""Answers of a recording of contexts to drafts and verifications.

Answers are walks in a request's trie. A token whose context is recorded is *replayed*. Beyond the recorded closure
tokens are `UNKNOWN`, verdicts come from a fitted fallback, and each such decision is counted as modelled. The target's
verdict on a draft that starts on the trunk never needs the fallback: where the draft leaves the trunk is recorded, and
there the target rejects it. A token tree that needs a branch beyond the record is an error, with or without a fallback.
"""

from collections.abc import Callable
from copy import copy
from functools import cache, partial
from hashlib import blake2b
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.legal_steps import DraftEnd, check_copy, ruling_of
from ..decoding.prompt_lookup import looked_up
from ..decoding.results import Drafted, Judged, made
from ..decoding.rules import NO_SIGNAL, Ruling, Signal, unknown_facts
from ..decoding.session import Session
from ..decoding.steps import Draft, Verify
from ..traces.contexts.recording import TrieRecording
from .context_tables import RequestTables, TablesByRequest, lacks, recorded_facts
from .recorded import Replayed, UnrecordedContextError, recorded_rule


def _distance_from_trunk(parent: NDArray[np.int32], on_trunk: NDArray[np.bool_]) -> NDArray[np.int32]:
    distance = np.zeros(len(parent), dtype=np.int32)
    astray = np.flatnonzero(~on_trunk)
    above: NDArray[np.integer[Any]] = astray  # of each of these, the context `distance` tokens before it
    while len(astray):
        distance[astray] += 1
        above = parent[above]
        off = ~on_trunk[above]
        astray, above = astray[off], above[off]
    return distance


def _rates(trace: TrieRecording) -> NDArray[np.float64]:
    count = len(trace.meta.models)
    equal, total = np.zeros((count, count)), 0
    for record in trace.requests:
        trie = record.trie
        distance = _distance_from_trunk(trie.parent, trie.on_trunk)
        outer = distance > distance.max(initial=0) // 2
        if not outer.any():
            outer = np.ones(trie.num_nodes, dtype=bool)
        views = trie.next_token[:, outer]
        equal += (views[:, None, :] == views[None, :, :]).sum(axis=2)
        total += int(outer.sum())
    return equal / max(total, 1)


class Fallback:
    """Agreement of each pair of models beyond the recording.

    Agreement falls with the distance of a draft from the trunk, so rates are fitted at the contexts most like those
    beyond: the outer half of the recorded distances of each request from the trunk, or all of a request's contexts
    where none is off the trunk. Draws are keyed by (seed, request, position, drafter, verifier): two policies that
    reach the same unknown get the same draw (common random numbers).

    Attributes:
        draws: those made, by their key without the seed, and how they fell.
    """

    def __init__(self, trace: TrieRecording, *, seed: int = 0) -> None:
        self._seed = seed
        self._fitted = cache(partial(_rates, trace))  # an exact run never needs them; shared by copies
        self.draws: dict[tuple[str, int, int, int], bool] = {}

    def reseeded(self, seed: int) -> "Fallback":
        """The same rates, fitted once for both, with draws of another seed."""
        other = copy(self)
        other._seed, other.draws = seed, {}
        return other

    def falls_alike(self, seed: int) -> bool:
        """Whether all draws so far fall alike at another seed, so that it would have given the same run."""
        other = self.reseeded(seed)
        return all(other.accepts(*key) == kept for key, kept in self.draws.items())

    @property
    def rates(self) -> NDArray[np.float64]:
        """`[M, M]` rates of equal next tokens, fitted at first use, which reads the whole recording."""
        return self._fitted()

    def accepts(self, request_id: str, position: int, drafter: int, verifier: int) -> bool:
        """Whether `verifier` would write what `drafter` wrote at `position` (indices into `meta.models`)."""
        key = f"{self._seed}/{request_id}/{position}/{drafter}/{verifier}".encode()
        draw = int.from_bytes(blake2b(key, digest_size=8).digest(), "big") / 2.0**64
        kept = self.draws[request_id, position, drafter, verifier] = draw < float(self.rates[drafter, verifier])
        return kept


UNKNOWN = -1


class TrieAnswers:
    """Answers for sessions, each of which replays a request; see `RecordedAnswers`.

    `fallback` answers beyond the record; None makes the first unknown an error.

    Attributes:
        num_free: model-free members, which come first in the pool.
        num_reanchored: per session, times replay resumed on the trunk after it had left the record.
    """

    def __init__(self, *, tables: TablesByRequest, fallback: Fallback | None) -> None:
        self._tables = tables
        self.num_free = tables.num_free
        self._top = tables.num_free + len(tables.trace.meta.models) - 1
        self._eos = frozenset(tables.trace.meta.eos_token_ids)
        ngram = tables.trace.meta.ngram
        self._vocab_size = tables.trace.meta.vocab_size
        self._lookup = None if ngram is None else recorded_rule(ngram)
        self._fallback = fallback
        features = tables.trace.meta.features
        self._reader = -1 if features is None else self.num_free + tables.trace.meta.model_names.index(features.model)
        self._open: dict[str, RequestTables] = {}
        self._replayed: dict[str, Replayed] = {}
        self.num_reanchored: dict[str, int] = {}
        self._anchors: dict[str, dict[int, int]] = {}

    @property
    def falls_alike(self) -> Callable[[int], bool] | None:
        """See `Fallback`; None where there is none."""
        return None if self._fallback is None else self._fallback.falls_alike

    def replay(self, session_id: str, request_id: str) -> Replayed:
        replayed = self._replayed.get(request_id)
        if replayed is None:
            replayed = self._replayed[request_id] = self.start(request_id)
        self._open[session_id] = self._tables.of(request_id)
        return replayed

    def start(self, request_id: str) -> Replayed:
        """The start of a request, at the root of its trie; raises KeyError for an unknown one."""
        record = self._tables.record(request_id)
        return Replayed(record.tag, record.prompt, record.max_new_tokens, self._eos, None, 0)

    def release(self, session_id: str) -> None:
        self._open.pop(session_id)
        self._anchors.pop(session_id, None)
        self.num_reanchored.pop(session_id, None)

    def recorded(self, session_id: str) -> RequestTables:
        """The request that a session replays; raises KeyError for one that replays nothing."""
        return self._open[session_id]

    def signal(self, session: Session, index: int) -> Signal:
        """The drafter's recorded view at the context of pending token `index`; NaN if none is recorded."""
        tables, level, tree = self._open[session.request_id], session.drafters[index], session.tree
        before = index - 1 if tree is None else tree.parents[index]
        node = session.place if before < 0 else session.places[before]
        view = self._view(session, tables, level, index)
        if node < 0 or level < self.num_free or view >= tables.num_views:
            return NO_SIGNAL
        said = tables.signal(view, node)
        token, place = session.tokens[index], session.places[index]
        if tables.next_token[view][node] == token:
            return said
        # It is of a branch of a tree, or an unknown token after a step back to the trunk.
        return NO_SIGNAL if place < 0 else said._replace(prob=tables.prob(view, node, token, place))

    def _view(self, session: Session, tables: RequestTables, level: int, index: int) -> int:
        """The view of a member where pending tokens up to `index` are the context."""
        if level != self._reader:
            return level
        return tables.view(level, session.num_prompt + len(session.emitted) + index - session.num_judged)

    def drafted(self, session: Session, step: Draft, level: int) -> Drafted:
        if step.stop is not None or level == self._reader:
            return self._draft_slowly(session, step, level)
        tables, places = self._open[session.request_id], session.places
        node = places[-1] if places else session.place
        if node < 0 and not places:
            node = self._anchored(session, tables)
        asked, room = step.tokens, session.budget - len(session.emitted) - len(places)
        if asked > room:  # >= 1, else there is no draft
            asked = room
        chain = tables.chains[level].get(node)
        if chain is not None:
            found = chain.drafts.get(asked)
            if found is not None:
                return found
        chain = tables.chain(level, node, asked)
        return self._draft_slowly(session, step, level) if chain is None else tables.drafted(chain, node, asked)

    def _draft_slowly(self, session: Session, step: Draft, level: int) -> Drafted:
        """Draft with a stop rule, from the target's states, or where some context is not recorded."""
        tables = self._open[session.request_id]
        node = session.places[-1] if session.places else self._anchored(session, tables)
        ends = None if step.stop is None else DraftEnd(session, step)
        reads, view, num_views = level == self._reader, level, tables.num_views
        writes, follows, signal_at = tables.next_token[view], tables.child[view], tables.signal
        tokens: list[int] = []
        places: list[int] = []
        num_modelled = 0
        for _ in range(min(step.tokens, session.room)):
            if reads:
                view = self._view(session, tables, level, len(session.tokens) + len(tokens))
            if node < 0 or view >= num_views:
                num_modelled += 1
                self._need_fallback(session, "draft")
                tokens.append(UNKNOWN)
                node = -1
                places.append(node)
                continue
            if reads:
                writes, follows = tables.next_token[view], tables.child[view]
            context = node
            token, node = writes[node], follows[node]
            tokens.append(token)
            places.append(node)
            if token in self._eos:
                break
            if ends is not None and ends(signal_at(view, context)):
                break
        return Drafted(tokens, places, num_modelled)

    def looked_up(self, session: Session, step: Draft) -> Drafted:
        """See `RecordedAnswers`; replay has the same tokens as the runtime."""
        tables = self._open[session.request_id]
        node = session.places[-1] if session.places else self._anchored(session, tables)
        assert self._lookup is not None
        check_copy(session, step, self._vocab_size)
        context: list[int] = []  # not needed for a step with its own copy
        if step.copy is None:
            answer = [*session.emitted, *session.tokens]
            if UNKNOWN in answer:
                # Unknown tokens have no identity: that it finds nothing is modelled.
                self._need_fallback(session, "draft")
                return Drafted([], [], 1)
            context = [*session.prompt, *answer]
        tokens = session.until_end(looked_up(context, step=step, room=session.room, rule=self._lookup))
        places = []
        for token in tokens:
            node = tables.find_child(node, token) if node >= 0 else -1
            places.append(node)
        return Drafted(tokens, places)

    def judged(self, session: Session, step: Verify, level: int) -> Judged:
        tables, tokens = self._open[session.request_id], session.tokens
        first, count, judges = 0, len(tokens), session.judges
        if level != self._top:
            first = session.first_unjudged(level)
            node = session.places[first - 1] if first else self._anchored(session, tables)
        else:
            node = session.place
            if node < 0:
                node = self._anchored(session, tables)
            if tokens and step.rule.lossless and self._reader < 0 and judges.count(judges[0]) == count:
                chain = tables.chains[judges[0]].get(node)
                if chain is not None and chain.tokens[:count] == tokens:  # one member wrote all pending tokens
                    found = chain.verdicts.get(count) or tables.verdict(chain, node, count)
                    if found is not None:
                        return found
        if node < 0 or not step.rule.lossless or self._reader >= 0:
            return self._judge_slowly(session, step, level, first)
        next_token = tables.next_token[level]
        if not count:
            if level == self._top:
                return tables.writes_alone(node)
            return made(Judged, (0, next_token[node], tables.child[level][node], (), 0, (), None))
        distances, places = tables.tvd[level], session.places
        if first:
            tokens, judges, places = tokens[first:], judges[first:], places[first:]
        num_accepted = 0
        tvd: list[float] = []
        for token, judge, place in zip(tokens, judges, places):  # noqa: B905 - to be strict costs as much as the rest
            tvd.append(distances[judge][node])
            if next_token[node] != token:
                if token == UNKNOWN:  # drafted before the committed context was re-anchored
                    return self._judge_slowly(session, step, level, first)
                break
            num_accepted += 1
            node = place
            if node < 0:
                return self._judge_slowly(session, step, level, first)
        return made(Judged, (num_accepted, next_token[node], tables.child[level][node], tuple(tvd), 0, (), None))

    def _judge_slowly(self, session: Session, step: Verify, level: int, first: int) -> Judged:
        """Judge with a lossy rule, with a drafter from the target's states, or where some context is not recorded."""
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
        view = self._view(session, tables, level, index)
        if node < 0 or view >= tables.num_views:
            own_token, own_place = UNKNOWN, -1
            if index < len(tokens) or session.room > 0:  # else there is no room for it
                num_modelled += 1
                self._need_fallback(session, "verify")
        else:
            own_token, own_place = tables.next_token[view][node], tables.child[view][node]
        return Judged(index - first, own_token, own_place, tuple(tvd), num_modelled, tuple(escalated))

    def _verdict(
        self, session: Session, tables: RequestTables, step: Verify, level: int, index: int, node: int
    ) -> tuple[Ruling, bool, float]:
        """(ruling, modelled, distance) for pending token `index` in the context `node`."""
        proposer = session.judges[index]
        rule = step.rule
        verifier, endorser = (self._view(session, tables, one, index) for one in (level, proposer))
        if node < 0 or session.tokens[index] == UNKNOWN or verifier >= tables.num_views:
            # Accepted for any facts?
            if not rule.lossless and ruling_of(session, step, unknown_facts(proposer)) is Ruling.keep:
                return Ruling.keep, False, nan
            return self._modelled_verdict(session, tables, level, index, proposer), True, nan
        distance = tables.tvd[verifier][endorser][node]
        if rule.lossless:
            same = tables.next_token[verifier][node] == session.tokens[index]
            return Ruling.keep if same else Ruling.refuse, False, distance
        drafter = session.drafters[index]
        said = None if drafter < self.num_free else self._view(session, tables, drafter, index)
        facts = recorded_facts(tables, session, verifier, said, index, node, tvd=distance)
        if lacks(rule, facts) and ruling_of(session, step, unknown_facts(proposer)) is not Ruling.keep:
            self._need_fallback(session, "verify")
            return Ruling.refuse, True, distance
        return ruling_of(session, step, facts), False, distance

    def _modelled_verdict(
        self, session: Session, tables: RequestTables, level: int, index: int, proposer: int
    ) -> Ruling:
        """The fallback's ruling on a token outside the record: whether the two members agree on it."""
        self._need_fallback(session, "verify")
        if proposer < self.num_free:
            return Ruling.refuse
        assert self._fallback is not None
        position = len(session.emitted) + index
        free = self.num_free
        agrees = self._fallback.accepts(tables.request_id, position, proposer - free, level - free)
        return Ruling.keep if agrees else Ruling.refuse

    def _anchored(self, session: Session, tables: RequestTables) -> int:
        """The committed context; one that lossy steps led off the record is re-anchored on the trunk at its length."""
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
