"""What a verification tells of every member that wrote at the contexts it judged, not of the adjacent pair alone.

Where the target commits, whatever any member wrote in that context is right or wrong at once, whether the chain handed
it to the target or a level between refused it (full information, as HedgeSpec has it for drafters,
arXiv:2510.20064). So a chain in use also scores the chains that leave one of its levels out, and needs no exploration
for them. What a level kept is scored for every level that kept it, or only its corrections, its hardest tokens, would
count, and it would look worse than it is.
"""

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

from ....decoding.contract import Outcome
from ....decoding.observation import Observation, PendingToken


class Verdict(NamedTuple):
    """One token and what a member thinks of it.

    Attributes:
        tag: of its request.
        written: the token and its drafter.
        endorsers: its drafter first, then every verifier that kept it.
        verifier: who judged it, or would have.
        kept: whether it was right.
        similar: 1 - TVD of the verifier and the last endorser; NaN if nobody knows.
    """

    tag: str
    written: PendingToken
    endorsers: tuple[str, ...]
    verifier: str
    kept: bool
    similar: float


class JudgedRun(NamedTuple):
    """The tokens of one verification. Letters: J of them.

    Attributes:
        tag: of the request.
        tokens: `[J]`, oldest first.
        judges: `[J]` the highest member that endorsed each before.
        verifier: who judged them.
        num_kept: how many were kept.
    """

    tag: str
    tokens: tuple[PendingToken, ...]
    judges: tuple[str, ...]
    verifier: str
    num_kept: int


class _Refused(NamedTuple):
    """A token that a level below the target refused, `at` an index among the pending ones, where the context stands."""

    at: int
    written: PendingToken
    endorsers: tuple[str, ...]


class RoundEvidence:
    """The tokens of one request's round. Mutated by its methods; appends to `verdicts` and `runs`.

    Args:
        tag: of the request.
        verdicts: where to put what is known of tokens.
        runs: where to put what was judged together.
    """

    __slots__ = ("_endorsers", "_first", "_judged", "_open", "_refused", "_runs", "_tag", "_verdicts", "_verifier")

    def __init__(self, tag: str, verdicts: list[Verdict], runs: list[JudgedRun]) -> None:
        self._tag = tag
        self._verdicts = verdicts
        self._runs = runs
        self._verifier = ""
        self._first = 0
        self._judged: tuple[PendingToken, ...] = ()
        self._endorsers: list[tuple[str, ...]] = []  # of every pending token
        self._refused: list[_Refused] = []
        self._open: list[_Refused] = []

    @property
    def num_endorsed(self) -> int:
        """Pending tokens whose endorsers are known."""
        return len(self._endorsers)

    def restart(self) -> None:
        """Nothing is pending any more, and the target has not committed."""
        self._refused.clear()
        self._endorsers.clear()

    def note_written(self, tokens: Sequence[PendingToken]) -> None:
        """Pending tokens from `num_endorsed` on that `before` will not tell of: their drafter judges later ones."""
        self._endorsers.extend((token.drafter,) for token in tokens)

    def before(self, verifier: str, judged: tuple[PendingToken, ...], first: int) -> None:
        """`verifier` is about to judge these tokens, the first of which has index `first` among the pending ones."""
        self._verifier, self._judged, self._first = verifier, judged, first
        endorsers = self._endorsers
        for written in judged[len(endorsers) - first :]:
            endorsers.append((written.drafter,))

    def after(self, outcome: Outcome) -> None:
        """What it said."""
        kept, refused = outcome.num_accepted, outcome.refused_at is not None
        self._score_judged(kept, kept + refused, outcome.tvd)
        if self._refused:
            self._score_refused(kept, commits=outcome.num_emitted > 0)
        if outcome.num_emitted:
            self._refused.clear()
            self._endorsers.clear()
            return
        endorsers, first, verifier = self._endorsers, self._first, self._verifier
        end = first + kept
        if refused:
            self._refused = [claim for claim in self._refused if claim.at <= end]
            self._refused.append(_Refused(end, self._judged[kept], endorsers[end]))
        endorsers[first:] = [(*names, verifier) for names in endorsers[first:end]]
        if outcome.num_own:
            endorsers.append((verifier,))

    def settle(self, seen: Observation) -> None:
        """The target's own token of the round before is known now; call where nothing is pending."""
        if self._open:
            own = seen.emitted_from(seen.num_emitted - 1)[0]
            for claim in self._open:
                self._add(claim, seen.pool.target, kept=claim.written.token == own)
            self._open.clear()

    def _score_judged(self, kept: int, looked_at: int, tvd: Sequence[float]) -> None:
        tag, verifier, first, known = self._tag, self._verifier, self._first, len(tvd)
        judged, endorsers, verdicts = self._judged, self._endorsers, self._verdicts
        if judged:
            judges = tuple([names[-1] for names in endorsers[first : first + len(judged)]])
            self._runs.append(JudgedRun(tag, judged, judges, verifier, kept))
        for index in range(looked_at):
            similar = 1.0 - tvd[index] if index < known else nan
            verdicts.append(Verdict(tag, judged[index], endorsers[first + index], verifier, index < kept, similar))

    def _score_refused(self, kept: int, *, commits: bool) -> None:
        """Tokens that a level between refused: wrong where this verifier kept another one in their place."""
        judged, verifier = self._judged, self._verifier
        for claim in self._refused:
            index = claim.at - self._first
            if 0 <= index < kept or (index == kept < len(judged) and claim.written.token == judged[index].token):
                self._add(claim, verifier, kept=False)
            elif commits and index == kept < len(judged):
                self._open.append(claim)

    def _add(self, claim: _Refused, verifier: str, *, kept: bool) -> None:
        self._verdicts.append(Verdict(self._tag, claim.written, claim.endorsers, verifier, kept, nan))
