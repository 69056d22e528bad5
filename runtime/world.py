"""The world of real models: operations are forwards of transformers models, one request after another.

One KV cache per request and member. It batches nothing: B requests of an operation cost B times one, and the seconds
it reports say so. Letters: B requests, K judged tokens, V vocabulary.
"""

from math import exp, nan
from typing import NamedTuple

import torch
from torch import Tensor

from ..policies.contract import Draft, Verify
from ..policies.lookup import prompt_lookup
from ..policies.loop import Forward, Item, Op, Results
from ..policies.rules import Facts
from ..policies.session import Drafted, Judged, Session
from ..policies.signal import Signal
from ..traces.meta import Sampling
from ..traces.resolution import ENTROPIES, LOG_PROBS, UNITS
from .clock import Clock
from .member_cache import MemberCache
from .noise import RequestNoise
from .pending_view import PendingView
from .pool import ModelPool
from .request_state import RequestState
from .views import entropies, scaled, scores, total_variation


class NonFiniteLogitsError(ValueError):
    """A model returned NaN or infinity; no token can be chosen from that."""

    def __init__(self, member: str, request_id: str, position: int) -> None:
        super().__init__(
            f"model {member}, request {request_id}: the logits at output position {position} or behind hold NaN or "
            "infinity; try dtype float32"
        )


class Row(NamedTuple):
    """One request's part in an operation under way.

    Attributes:
        session: read only.
        state: its caches and views.
        level: the member that runs.
        forwards: of the operation so far; each forward appends itself.
    """

    session: Session
    state: RequestState
    level: int
    forwards: list[Forward]


class TransformersWorld:
    """Carries out operations with the models of a pool.

    Args:
        pool: a member's index is its level.
        sampling: greedy, or coupled at one temperature and seed.
        clock: measures.
        debug: assert before each step that every cache holds what the session says.
    """

    def __init__(self, *, pool: ModelPool, sampling: Sampling, clock: Clock, debug: bool = False) -> None:
        self._members = pool.members
        self._sampling = sampling
        self._clock = clock
        self._debug = debug
        self._states: dict[str, RequestState] = {}

    def open(self, session: Session) -> None:
        """Make room for a request; its prompt is read by each member's first forward."""
        session.place = 0
        self._states[session.request_id] = RequestState(self._noise(session.request_id))

    def close(self, session: Session) -> None:
        """Free the request's caches."""
        state = self._states.pop(session.request_id)
        if self._debug:
            state.check(session)

    def execute(self, op: Op) -> Results:
        """Run every item on its own.

        Raises:
            NonFiniteLogitsError: a model returned NaN or infinity.
        """
        start_s = self._clock.now_s()
        forwards: list[Forward] = []
        rows: list[Drafted | Judged] = []
        for item in op.items:
            row = self._row(item, op.level, forwards)
            if isinstance(item.step, Verify):
                rows.append(self._judge(row, item.step))
            elif self._members[op.level].model is None:
                rows.append(self._look_up(row, item.step))
            else:
                rows.append(self._draft(row, item.step))
        return Results(rows, forwards, self._clock.now_s() - start_s)

    def signal(self, session: Session, index: int) -> Signal:
        """What the drafter said of the pending token at `index`."""
        return self._states[session.request_id].views[session.places[index]].signal()

    def _noise(self, request_id: str) -> RequestNoise | None:
        seed = self._sampling.seed
        if seed is None:
            return None
        target = self._members[-1].model
        assert target is not None
        return RequestNoise(seed=seed, request_id=request_id, vocab_size=int(target.config.vocab_size))

    def _row(self, item: Item, level: int, forwards: list[Forward]) -> Row:
        state = self._states[item.session.request_id]
        state.forget_all_but(item.session.places)
        if self._debug:
            state.check(item.session)
        state.last_level = level
        return Row(item.session, state, level, forwards)

    # -- drafting

    def _draft(self, row: Row, step: Draft) -> Drafted:
        """One forward per token; the first one also catches up."""
        session = row.session
        cache, feed = self._caught_up(row, verify=False)
        position = len(session.emitted) + len(session.tokens)
        wanted = min(step.tokens, session.room)
        tokens: list[int] = []
        places: list[int] = []
        product = 1.0
        while len(tokens) < wanted:
            written, log_probs = self._forward(row, cache, feed, position + len(tokens), count=1)
            view = PendingView(token=written[0], drafter_log_probs=log_probs[0], judge_log_probs=log_probs[0])
            tokens.append(view.token)
            places.append(row.state.add(view))
            feed = [view.token]
            if view.token == session.eos:
                break
            if step.stop is not None:
                signal = view.signal()
                product *= signal.prob
                if step.stop.holds(signal, product):
                    break
        return Drafted(tokens, places)

    def _look_up(self, row: Row, step: Draft) -> Drafted:
        """Copy what followed the newest tokens where they stood before; no forward."""
        session = row.session
        max_match = self._members[row.level].max_match
        assert max_match is not None
        context = [*session.prompt, *session.emitted, *session.tokens]
        tokens = prompt_lookup(context, num_tokens=min(step.tokens, session.room), max_match=max_match)
        if session.eos in tokens:
            tokens = tokens[: tokens.index(session.eos) + 1]
        views = [PendingView(token=token, drafter_log_probs=None, judge_log_probs=None) for token in tokens]
        return Drafted(tokens, [row.state.add(view) for view in views])

    # -- judging

    def _judge(self, row: Row, step: Verify) -> Judged:
        """One forward over the K pending tokens not judged yet and the position before them."""
        session = row.session
        first = session.first_unjudged(row.level)
        position = len(session.emitted) + first
        judged = [row.state.views[place] for place in session.places[first:]]
        cache, feed = self._caught_up(row, verify=True)
        written, log_probs = self._forward(row, cache, feed, position, count=len(judged) + 1)
        distances = self._distances(row, judged, log_probs)
        accepted = 0
        for view, token, theirs, distance in zip(judged, written, log_probs, distances, strict=False):
            if not _accepts(step, view, token, theirs, distance):
                break
            # A larger member that stands behind the token goes on doing so.
            if session.judges[first + accepted] <= row.level:
                view.judge_log_probs = theirs
            accepted += 1
        cache.roll_back(session.num_prompt + position + accepted)
        own = PendingView(
            token=written[accepted], drafter_log_probs=log_probs[accepted], judge_log_probs=log_probs[accepted]
        )
        return Judged(accepted, own.token, row.state.add(own), tuple(distances[: accepted + 1]))

    def _distances(self, row: Row, judged: list[PendingView], log_probs: Tensor) -> list[float]:
        """`[K]` total variation distance of whoever stands behind each token to the verifier; NaN if model-free."""
        distances = [nan] * len(judged)
        indices: list[int] = []
        theirs: list[Tensor] = []
        judges = row.session.judges[len(row.session.judges) - len(judged) :]
        for index, (view, judge) in enumerate(zip(judged, judges, strict=True)):
            if judge == row.level:
                distances[index] = 0.0
            elif view.judge_log_probs is not None:
                indices.append(index)
                theirs.append(view.judge_log_probs.to(log_probs.device))
        if indices:
            values = total_variation(torch.stack(theirs).exp(), log_probs[indices].exp())
            for index, value in zip(indices, UNITS.round(values.cpu().numpy()).tolist(), strict=True):
                distances[index] = value
        return distances

    # -- running a model

    def _caught_up(self, row: Row, *, verify: bool) -> tuple[MemberCache, list[int]]:
        """The member's cache, rolled back to what the step may use of it, and the tokens its forward must read."""
        session = row.session
        cache = row.state.caches.get(row.level)
        if cache is None:
            cache = row.state.caches[row.level] = MemberCache(self._members[row.level].model)
        context = [*session.prompt, *session.emitted, *session.tokens]
        _, held = session.feed(row.level, verify=verify)
        cache.roll_back(held)
        return cache, context[held:]

    def _forward(
        self, row: Row, cache: MemberCache, tokens: list[int], position: int, *, count: int
    ) -> tuple[list[int], Tensor]:
        """Feed tokens; for `count` output positions from `position` on, the token the member writes and `[V]` of it.

        The written token is the argmax or the coupled sample; distributions are at temperature 1 for greedy decoding,
        else at the sampling temperature.
        """
        start_s = self._clock.now_s()
        logits = cache.forward(tokens, num_logits=count)
        row.forwards.append((1, len(tokens), 1, self._clock.now_s() - start_s))
        if not bool(torch.isfinite(logits).all()):
            raise NonFiniteLogitsError(self._members[row.level].name, row.session.request_id, position)
        noise = None if row.state.noise is None else row.state.noise.rows(range(position, position + count))
        written: list[int] = scores(logits, self._sampling, noise).argmax(dim=-1).tolist()
        return written, torch.log_softmax(scaled(logits, self._sampling.temperature), dim=-1)


def _accepts(step: Verify, view: PendingView, written: int, log_probs: Tensor, distance: float) -> bool:
    """The rule's verdict on one token, from the verifier's distribution `[V]` at the context before it."""
    same = written == view.token
    if step.rule.lossless:
        return same
    facts = torch.stack([log_probs[view.token], log_probs.max()]).cpu().numpy()
    target_log_prob, top_log_prob = LOG_PROBS.round(facts).tolist()
    entropy = ENTROPIES.round(entropies(log_probs.exp()).cpu().numpy())
    seen = Facts(
        same=same,
        draft_prob=view.signal().prob,
        target_prob=exp(target_log_prob),
        top_prob=exp(top_log_prob),
        entropy=float(entropy),
        tvd=distance,
    )
    return bool(step.rule.accepts(seen))
