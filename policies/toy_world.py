"""A world of toy models for checks: every next token is arithmetic on a checksum of the context.

It has no cache, no recording and no clock, so it is an oracle for the real worlds: slow to go wrong, easy to read.
"""

import struct
from collections.abc import Callable, Sequence
from math import log
from zlib import crc32

from ..decoding.contract import Draft, Verify
from ..decoding.overlap.turns import in_turns
from ..decoding.overlap.world import OverlapItem
from ..decoding.pool import Pool
from ..decoding.prompt_lookup import LookupRule, looked_up
from ..decoding.results import (
    Deferred,
    Drafted,
    DraftResults,
    Failed,
    Forward,
    Judged,
    OverlapResults,
    Row,
    VerifyResults,
)
from ..decoding.rules.acceptance import Ruling, ruling
from ..decoding.rules.draft_stops import token_factor
from ..decoding.rules.facts import Facts
from ..decoding.rules.signal import NO_SIGNAL, Signal
from ..decoding.session import Session
from ..decoding.trees.draft_tree import DraftTree
from ..decoding.trees.growth import Branches, Growth
from ..decoding.trees.world import TreeItem
from ..decoding.world import DraftItem, VerifyItem

_LOOKUP = LookupRule(max_match=3)
VOCABULARY = 40
EOS = 0
LEAST = 2.0**-10  # nats, of log-probabilities as trees add them


class ToyWorld:
    """Members that agree with the target the more often the larger they are.

    Args:
        pool: the members.
        seed: chooses another set of models.
        ends: chance, 0 to 1, that the target ends the text at a token.
        refuse: asked for every row before it runs: that it fails or is deferred, or None to run it.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        seed: int = 0,
        ends: float = 0.02,
        refuse: Callable[[Session], Failed | Deferred | None] | None = None,
    ) -> None:
        self._pool = pool
        self._seed = seed
        self._ends = ends
        self._refuse = refuse

    def next_token(self, level: int, context: list[int]) -> int:
        """What the member writes after `context`."""
        target_level = self._pool.target_level
        ends = self._unit(context, 0) < self._ends
        token = EOS if ends else 1 + int(self._unit(context, 1) * (VOCABULARY - 1))
        agrees = (level + 1) / (target_level + 1)
        if level == target_level or self._unit(context, 2 + level) < agrees:
            return token
        return 1 + (token + int(self._unit(context, 99) * (VOCABULARY - 2))) % (VOCABULARY - 1)

    def trunk(self, session: Session) -> list[int]:
        """What the target alone would write for this request."""
        tokens: list[int] = []
        while len(tokens) < session.budget and EOS not in tokens[-1:]:
            tokens.append(self.next_token(self._pool.target_level, [*session.prompt, *tokens]))
        return tokens

    def open(self, session: Session) -> None:
        """Nothing to prepare."""

    def close(self, session: Session) -> None:
        """Nothing to release."""

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Compute every draft from its whole context."""
        rows = [self._refused(session) or self._draft(session, step, level) for session, step in items]
        forward = _forward(level, rows)
        return DraftResults(rows, [forward], forward[3])

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Judge every request from its whole context."""
        rows = [self._refused(session) or self._judge(session, step, level) for session, step in items]
        forward = _forward(level, rows)
        return VerifyResults(rows, [forward], forward[3])

    def check_ahead(self) -> None:
        """Every member may."""

    def overlap(self, levels: tuple[int, ...], items: Sequence[OverlapItem]) -> OverlapResults:
        """Compute every part from its whole context."""
        return in_turns(self, levels, items)

    def _refused(self, session: Session) -> Failed | Deferred | None:
        return None if self._refuse is None else self._refuse(session)

    def check_tree(self, level: int) -> None:
        """Every member that may draft a tree does."""

    def draft_trees(self, level: int, items: Sequence[TreeItem]) -> DraftResults:
        """Let every tree grow from its whole context."""
        rows = [self._refused(session) or self._grow(session, step, level) for session, step in items]
        forward = _forward(level, rows)
        return DraftResults(rows, [forward], forward[3])

    def verify_trees(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Walk every tree by what the verifier writes itself."""
        rows = [self._refused(session) or self._walk(session, level) for session, _ in items]
        forward = _forward(level, rows)
        return VerifyResults(rows, [forward], forward[3])

    def signal(self, session: Session, index: int) -> Signal:
        """A made-up confidence; NaN for a model-free drafter."""
        level = session.drafters[index]
        if self._pool.members[level].model_free:
            return NO_SIGNAL
        before = range(index) if session.tree is None else session.tree.path_to(index)[:-1]
        tokens = [session.tokens[place] for place in before]
        return self._signal(level, [*session.prompt, *session.emitted, *tokens])

    def _signal(self, level: int, context: list[int]) -> Signal:
        prob = 0.05 + 0.95 * self._unit(context, 50 + level)
        return Signal(prob, 3.0 * (1.0 - prob), max(0.0, 2.0 * prob - 1.0))

    def _draft(self, session: Session, step: Draft, level: int) -> Drafted:
        context = [*session.prompt, *session.emitted, *session.tokens]
        start = len(context)
        wanted = min(step.tokens, session.room)
        if self._pool.members[level].model_free:
            tokens = looked_up(context, step=step, room=session.room, rule=_LOOKUP)
            tokens = tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens
            return Drafted(tokens, [0] * len(tokens))
        product, factor = 1.0, token_factor(step.stop)
        while len(context) < start + wanted:
            signal = self._signal(level, context)
            product *= factor(signal, len(context) - start)
            context.append(self.next_token(level, context))
            stopped = step.stop is not None and step.stop.holds(signal, product)
            if context[-1] == EOS or stopped:
                break
        return Drafted(context[start:], [0] * (len(context) - start))

    def _grow(self, session: Session, step: DraftTree, level: int) -> Drafted:
        context = [*session.prompt, *session.emitted]
        growth = Growth(step.shape, room=session.room, eos=session.eos)
        while growth.asks:
            growth.take(
                [
                    self._branches(level, [*context, *(growth.tokens[at] for at in growth.path_to(node))], width)
                    for node, width in growth.asks
                ]
            )
        kept = growth.kept()
        return Drafted([growth.tokens[node] for node in kept], [0] * len(kept), 0, growth.tree(kept))

    def _branches(self, level: int, context: list[int], width: int) -> Branches:
        """The member's own token, then those after it in the vocabulary, ever less probable."""
        own = self.next_token(level, context)
        tokens = [(own + rank) % VOCABULARY for rank in range(min(width, VOCABULARY))]
        sure = self._signal(level, context).prob
        return Branches(tokens, [LEAST * round(log(sure / (rank + 1)) / LEAST) for rank in range(len(tokens))])

    def _walk(self, session: Session, level: int) -> Judged:
        assert session.tree is not None
        context, path = [*session.prompt, *session.emitted], list[int]()
        while True:
            own_token = self.next_token(level, context)
            node = session.tree.child(path, own_token, session.tokens)
            if node is None:
                tvd = (0.1,) * len(path) + (0.9,) * (session.tree.beyond(path) is not None)
                return Judged(len(path), own_token, 0, tvd, path=tuple(path))
            path.append(node)
            context.append(own_token)

    def _judge(self, session: Session, step: Verify, level: int) -> Judged:
        first = session.first_unjudged(level)
        context = [*session.prompt, *session.emitted, *session.tokens[:first]]
        tvd: list[float] = []
        escalated: list[int] = []
        for index, token in enumerate(session.tokens[first:]):
            same = token == self.next_token(level, context)
            tvd.append(0.1 if same else 0.9)
            judge = session.judges[first + index]
            says = ruling(step.rule, self._facts(level, context, same=same, tvd=tvd[-1], judge=judge))
            if says is Ruling.refuse:
                break
            if says is Ruling.escalate:
                escalated.append(index)
            context.append(token)
        num_accepted = len(context) - session.num_prompt - len(session.emitted) - first
        own_token = self.next_token(level, context)
        return Judged(num_accepted, own_token, 0, tuple(tvd), escalated=tuple(escalated))

    def _facts(self, level: int, context: list[int], *, same: bool, tvd: float, judge: int) -> Facts:
        """Made-up probabilities; what is not the verifier's own token has anything up to the largest one."""
        target_prob = 0.9 if same else 0.9 * self._unit(context, 70 + level)
        return Facts(same, 0.5, target_prob, 0.9, 1.0, tvd, judge, 0.6, 0.2)

    def _unit(self, context: list[int], salt: int) -> float:
        """A number in [0, 1) from the context."""
        data = struct.pack(f"<{len(context) + 2}q", self._seed, salt, *context)
        # One CRC is linear in its input; mixing it with a multiplication breaks the correlation between salts.
        mixed = (crc32(data) * 0x9E3779B97F4A7C15 + salt * 0xBF58476D1CE4E5B9) % 2**64
        return ((mixed ^ (mixed >> 29)) * 0x94D049BB133111EB % 2**64) / 2.0**64


def _forward(level: int, rows: Sequence[Row | Failed | Deferred]) -> Forward:
    """One made-up forward of all rows that ran."""
    num_rows = sum(not isinstance(row, Deferred) for row in rows)
    return (num_rows, num_rows, 1, 1e-3 * (level + 1))
