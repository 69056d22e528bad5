"""HedgeSpec: one verified trajectory scores all drafters, so that choosing among them needs no exploration.

Liu et al. 2025 (arXiv:2510.20064). Feedback there is complete: once the target has judged a text, every drafter is
asked, by one forward over it, how well it would have done, and an online learner weighs them; ours is NormalHedge
(arXiv:0903.2851). A policy here cannot run a forward that neither drafts nor judges, so one round in `every` is an
*evaluation*: prompt lookup copies, or the smallest model drafts where it finds nothing, then each larger drafter judges
what is left (one forward over the text, as in the paper, and its cache catches up), then the target. What each wrote is
compared with what the target committed. Differences to the paper:

- a larger drafter sees a text only as far as the smaller ones and it agree, so that its score is censored there;
- these forwards are part of the answer, and charged to it; the first evaluation of a request is not free either;
- what is scored is the chance that a drafter's next token is right, as a running rate, since an evaluation has few
  tokens; its gain is what that rate makes of a round: tokens, or tokens per second;
- a drafter that cannot judge cannot be scored, and is refused.
"""

from dataclasses import dataclass, field
from math import e, exp, log
from random import Random
from typing import ClassVar

from ...arguments import check_least
from ...decoding.contract import Commit, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About, Observable
from ..parts.acceptance_rate import acceptance_rate, judged
from ..parts.member_seconds import MemberSeconds, counts_seconds
from ..speed import round_tokens

EVALUATION = -1  # in place of the drafter of a round
HALVINGS = 40  # of the interval that holds the scale of NormalHedge; what remains is below rounding


class HedgeSpec:
    """The drafter of each round by hedging over scores that every drafter gets from the same text.

    Args:
        pool: the members; all drafters must be able to judge, but for prompt lookup.
        window: tokens of a draft, >= 1.
        every: one round in so many is an evaluation, >= 2.
        memory: rounds that the rates reach back, >= 1.
        reward: `speed` (tokens per second) or `tokens` (per round).
        seed: of the draws.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds; see `member_seconds`.

    Attributes:
        most_pending: tokens it may have pending, at most.
        drafters: names, smallest first.

    Raises:
        ValueError: an option out of range, no drafter, or one that cannot judge.
    """

    about: ClassVar[About] = About(
        paper="HedgeSpec, arXiv:2510.20064",
        lossless=True,
        members="a drafter below the target; models below it must be able to judge",
        observes=frozenset({Observable.text}),
    )

    def __init__(
        self,
        pool: Pool,
        *,
        window: int = 6,
        every: int = 16,
        memory: int = 128,
        reward: str = "speed",
        seed: int = 0,
        costs: str | None = None,
    ) -> None:
        check_least("every", every, 2)
        self._per_second = counts_seconds(reward, costs)
        below = pool.members[:-1]
        _check_drafters(pool)
        self.drafters = tuple(member.name for member in below)
        self.most_pending = window + len(below)
        self._levels = {name: level for level, name in enumerate(self.drafters)}
        self._target, self._window, self._every = pool.target, window, every
        self._drafts = [Draft(name, window) for name in self.drafters]
        self._verifies = [(member.name, Verify(member.name)) for member in pool.members if member.verifies]
        # Lookups first, if there are any, then the smallest model, if there is one.
        self._num_writers = min(sum(member.model_free for member in below) + 1, len(below))
        self._rates = [acceptance_rate(memory=memory) for _ in below]
        self._seconds = MemberSeconds(pool, costs)
        self._learner = NormalHedge(len(below))
        self._rng = Random(seed)
        self._rounds = 0
        self._playing: dict[str, int] = {}
        self._evaluations: dict[str, _Evaluation] = {}

    @property
    def chances(self) -> tuple[float, ...]:
        """Of each drafter to be drawn for a round, 0 to 1."""
        return tuple(self._learner.chances)

    def decide(self, seen: Observation) -> Step:
        """Where a round begins, draw its drafter; draft, then verify."""
        playing = self._playing.get(seen.request_id)
        if playing is None:
            playing = self._begin(seen)
        if playing == EVALUATION:
            return self._evaluate(seen)
        if seen.num_pending or seen.found_nothing:
            return self._verifies[-1][1]
        return self._drafts[playing]

    def learn(self, outcome: Outcome) -> None:
        """Score the drafter of the round; a round ends where the target commits."""
        self._seconds.charge(outcome)
        request_id = outcome.request_id
        playing = self._playing[request_id]
        if isinstance(outcome.step, Draft):
            if not outcome.num_drafted:
                self._rates[self._levels[outcome.step.model]].note(0, 1)
        elif outcome.num_judged and playing != EVALUATION:
            self._rates[playing].note(*judged(outcome))
        if outcome.num_emitted:
            del self._playing[request_id]
        if outcome.done:  # there will be no further look at what was committed
            self._evaluations.pop(request_id, None)

    def _begin(self, seen: Observation) -> int:
        request_id = seen.request_id
        evaluation = self._evaluations.pop(request_id, None)
        if evaluation is not None:
            self._score(evaluation, seen.emitted_from(evaluation.start))
        playing = EVALUATION
        if self._rounds % self._every:
            playing = self._rng.choices(range(len(self.drafters)), self._learner.chances)[0]
        else:
            self._evaluations[request_id] = _Evaluation(seen.num_emitted)
        self._rounds += 1
        self._playing[request_id] = playing
        return playing

    def _evaluate(self, seen: Observation) -> Step:
        """Copy or draft, then let every member judge, the target last."""
        evaluation = self._evaluations[seen.request_id]
        if not seen.num_pending:
            if evaluation.num_drafts < self._num_writers:
                evaluation.num_drafts += 1
                return self._drafts[evaluation.num_drafts - 1]
            return self._verifies[-1][1]
        assert seen.last is not None
        assert not isinstance(seen.last.step, Commit)
        writer = self._levels[seen.last.step.model]
        evaluation.written.append((writer, [token.token for token in seen.pending]))
        for name, verify in self._verifies:
            if seen.waiting(name):
                return verify
        raise AssertionError("the target judges whatever is pending")

    def _score(self, evaluation: "_Evaluation", committed: list[int]) -> None:
        """Compare what was written with what the target committed, then weigh the drafters anew."""
        for level, tokens in evaluation.written:
            same = 0
            asked = min(len(tokens), len(committed))
            while same < asked and tokens[same] == committed[same]:
                same += 1
            self._rates[level].note(same, min(same + 1, asked))
        gains = [self._gain(level) for level in range(len(self.drafters))]
        top = max(gains)
        self._learner.learn([gain / top for gain in gains])

    def _gain(self, level: int) -> float:
        """Tokens of a round of this drafter, or tokens per second."""
        tokens = round_tokens(self._rates[level].rate, self._window)
        if not self._per_second:
            return tokens
        name = self.drafters[level]
        draft_s = self._seconds.draft_s(name, self._window)
        if draft_s is None:  # it has only judged so far, or looked up in vain
            draft_s = self._window * (self._seconds.verify_s(name, 1) or 0.0)
        verify_s = self._seconds.verify_s(self._target, self._window + 1)
        assert verify_s is not None  # the target has judged, else there would be nothing to score
        return tokens / (draft_s + verify_s)


@dataclass(slots=True)
class _Evaluation:
    """One request's evaluation round."""

    start: int  # committed tokens before it
    num_drafts: int = 0  # that were asked for
    written: list[tuple[int, list[int]]] = field(default_factory=list)  # by level of a drafter, what it had endorsed


def _check_drafters(pool: Pool) -> None:
    if len(pool.members) < 2:
        raise ValueError("policy hedgespec needs a drafter below the target")
    for member in pool.members[:-1]:
        if member.drafts_only:
            raise ValueError(
                f"policy hedgespec scores drafters by a forward over text of others, and {member.name} only drafts"
            )


class NormalHedge:
    """A choice among N experts of whom all gains are told, without a parameter to tune.

    Chaudhuri, Freund and Hsu 2009 (arXiv:0903.2851).

    R_i is the regret of not having followed expert i. With [x]+ = max(x, 0) and c such that the mean of
    exp([R_i]+^2 / 2c) is e, chances are proportional to [R_i]+ / c exp([R_i]+^2 / 2c), and even where nothing is
    regretted.

    Args:
        num_experts: N, >= 1.

    Attributes:
        chances: `[N]`, 0 to 1, sum 1.
    """

    def __init__(self, num_experts: int) -> None:
        self._regrets = [0.0] * num_experts
        self.chances = [1.0 / num_experts] * num_experts

    def learn(self, gains: list[float]) -> None:
        """Take in what every expert gained, `[N]`, 0 to 1 each."""
        mean = sum(chance * gain for chance, gain in zip(self.chances, gains, strict=True))
        self._regrets = [regret + gain - mean for regret, gain in zip(self._regrets, gains, strict=True)]
        count = len(gains)
        halves = [max(regret, 0.0) ** 2 / 2.0 for regret in self._regrets]
        if max(halves) <= 0.0:
            self.chances = [1.0 / count] * count
            return
        scale = _scale(halves)
        top = max(halves)
        weights = [half**0.5 * exp((half - top) / scale) for half in halves]
        total = sum(weights)
        self.chances = [weight / total for weight in weights]


def _scale(halves: list[float]) -> float:
    """c, by halving: the largest term alone bounds it from both sides."""
    high = max(halves)
    low = high / (1.0 + log(len(halves)))
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if sum(exp(half / middle) for half in halves) > e * len(halves):
            low = middle
        else:
            high = middle
    return high
