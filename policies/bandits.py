"""Which chain or drafter to play each round: `banditspec` explores, `hedgespec` scores all drafters by one text.

docs/policies.md has the formulas. BanditSpec (Hou et al. 2025, arXiv:2505.15141) measures rounds beyond those of the
best arm; per second that favours arms of short rounds a little, as a mean of ratios is not a ratio of means. UCB1 and
EXP3 are those of Auer et al. 2002, `exp3` with the reward in parts of the largest seen.

HedgeSpec (Liu et al. 2025, arXiv:2510.20064; the learner is NormalHedge, arXiv:0903.2851) scores every drafter by one
forward over a judged text, which a policy cannot run here: so one round in `every` is an *evaluation*. A larger
drafter's score is censored where it and smaller ones differ, its forwards are charged to the answer, and a drafter that
cannot judge is an error.
"""

from dataclasses import dataclass, field
from math import e, exp, inf, log, sqrt
from random import Random
from typing import ClassVar

from ..base.errors import check_least
from ..decoding.pool import Pool
from ..decoding.seen import Observation
from ..decoding.steps import Commit, Draft, Outcome, Step, Verify
from .about import About, Observable, round_tokens, say_runs
from .blocks import acceptance_rate, judged
from .estimates import MemberSeconds, counts_seconds
from .fixed import Chain

EXPLORE = {"ucb": 1.0, "exp3": 0.3}


class BanditSpec:
    """Which chain to play each round, by UCB or EXP3.

    Args:
        kind: `ucb` or `exp3`.
        arms: chains, separated by `@`, as `target@draft:4/target`; default the target alone, every drafter with
            window 4, the smallest model under each larger one, and prompt lookup.
        reward: `speed` (tokens per second) or `tokens` (per round).
        explore: of `ucb` the factor on the radius, >= 0, default 1; of `exp3` the share of even draws, above 0 to 1,
            default 0.3.
        seed: of the draws of `exp3`, default 0; `ucb` draws nothing and takes none.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds.

    Attributes:
        most_pending: tokens it may have pending, at most.
        plays: rounds begun with each arm, in the order of `arms`.
        arms: the chains.

    Raises:
        ValueError: an option out of range, that does not fit the kind or the reward, or an arm that is no chain.
    """

    about = About(paper="BanditSpec, arXiv:2505.15141", lossless=True, members="those of the chains to choose among")

    def __init__(
        self,
        pool: Pool,
        *,
        kind: str = "ucb",
        arms: str | None = None,
        reward: str = "speed",
        explore: float | None = None,
        seed: int | None = None,
        costs: str | None = None,
    ) -> None:
        if kind not in EXPLORE:
            raise ValueError(f"kind must be ucb or exp3, got {kind!r}")
        self._per_second = counts_seconds(reward, costs)
        if kind == "ucb" and seed is not None:
            raise ValueError(f"seed is for kind=exp3, since ucb draws nothing, got {seed}")
        explore = EXPLORE[kind] if explore is None else explore
        if kind == "ucb" and not 0.0 <= explore < inf:
            raise ValueError(f"explore must be >= 0 and finite with kind=ucb, got {explore!r}")
        if kind == "exp3" and not 0.0 < explore <= 1.0:
            raise ValueError(f"explore must be in (0, 1] with kind=exp3, got {explore!r}")
        chains = [Chain(pool, text) for text in (default_arms(pool) if arms is None else arms.split("@"))]
        self.arms = tuple(str(chain.spec) for chain in chains)
        say_runs(self, [name for chain in chains for name in chain.spec.members])
        self.most_pending = max(chain.most_pending for chain in chains)
        if len(set(self.arms)) != len(self.arms):
            raise ValueError(f"arms must differ, got {arms!r}")
        self._learner: Ucb | Exp3 = Ucb(len(chains), explore)
        if kind == "exp3":
            self._learner = Exp3(len(chains), explore, Random(seed or 0))
        self._chains = chains
        self._seconds = MemberSeconds(pool, costs)
        self._playing: dict[str, int] = {}  # arm of every unfinished round, and its seconds so far
        self._spent: dict[str, float] = {}
        self.plays = [0] * len(chains)

    def decide(self, seen: Observation) -> Step:
        """The next step of the round's chain; the learner picks one where a round begins."""
        arm = self._playing.get(seen.request_id)
        if arm is None:
            arm = self._playing[seen.request_id] = self._learner.pick()
            self.plays[arm] += 1
        return self._chains[arm].decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Reward the arm when the target has committed."""
        request_id = outcome.request_id
        seconds = self._spent.get(request_id, 0.0) + self._seconds.charge(outcome)
        if not outcome.num_emitted:
            self._spent[request_id] = seconds
            return
        self._spent.pop(request_id, None)
        arm = self._playing.pop(request_id)
        self._learner.reward(arm, outcome.num_emitted, seconds if self._per_second else 1.0)


def default_arms(pool: Pool) -> list[str]:
    """Typical chains of one, two and three levels for any pool."""
    models = [member for member in pool.members[:-1] if not member.model_free]
    arms = [pool.target, *(f"{model.name}:4/{pool.target}" for model in models)]
    arms += [f"{models[0].name}:3/{model.name}:6/{pool.target}" for model in models[1:] if model.verifies]
    if pool.members[0].model_free:
        arms.append(f"{pool.names[0]}:6/{pool.target}")
    return arms


class Ucb:
    """Optimism: the arm of the largest upper bound (UCB1, Auer et al. 2002), each of K once to begin with.

    `explore` is the factor on the radius sqrt(2 ln t / plays), >= 0.
    """

    def __init__(self, num_arms: int, explore: float) -> None:
        self._explore = explore
        self._plays = [0] * num_arms
        self._tokens = [0.0] * num_arms
        self._seconds = [0.0] * num_arms
        self._picks = 0

    def pick(self) -> int:
        """The next arm; counted as played at once, since others may pick before its round ends."""
        arm = self._plays.index(0) if 0 in self._plays else self._best()
        self._plays[arm] += 1
        self._picks += 1
        return arm

    def reward(self, arm: int, tokens: float, seconds: float) -> None:
        """Note tokens and seconds of a round of the arm."""
        self._tokens[arm] += tokens
        self._seconds[arm] += seconds

    def _best(self) -> int:
        # An arm whose first round has not ended is as good as the best.
        rates = [t / s if s > 0.0 else inf for t, s in zip(self._tokens, self._seconds, strict=True)]
        known = [rate for rate in rates if rate < inf]
        best = max(known, default=1.0)
        spread = 2.0 * log(self._picks)
        bounds = [
            min(rate / best, 1.0) + self._explore * sqrt(spread / plays)
            for rate, plays in zip(rates, self._plays, strict=True)
        ]
        return bounds.index(max(bounds))


class Exp3:
    """Chance: `rng` draws one of K arms by weights that grow with rewards (Auer et al. 2002).

    `explore` is the share of even draws, above 0 to 1, and the pace of the weights.
    """

    def __init__(self, num_arms: int, explore: float, rng: Random) -> None:
        self._explore = explore
        self._rng = rng
        self._arms = range(num_arms)
        self._log_weights = [0.0] * num_arms
        self._chances = [1.0 / num_arms] * num_arms
        self._most = 0.0

    def pick(self) -> int:
        """Draw the next arm."""
        return self._rng.choices(self._arms, self._chances)[0]

    def reward(self, arm: int, tokens: float, seconds: float) -> None:
        """Note a round of the arm, its reward in parts of the largest so far, over the arm's chance now."""
        rate = tokens / seconds
        self._most = max(self._most, rate)
        count = len(self._arms)
        self._log_weights[arm] += self._explore * rate / (self._most * self._chances[arm] * count)
        top = max(self._log_weights)
        weights = [exp(weight - top) for weight in self._log_weights]
        total = sum(weights)
        even = self._explore / count
        self._chances = [(1.0 - self._explore) * weight / total + even for weight in weights]


EVALUATION = -1  # in place of the drafter of a round
HALVINGS = 40  # of the interval that holds the scale of NormalHedge; what remains is below rounding


class HedgeSpec:
    """The drafter of each round by hedging over scores that every drafter gets from the same text.

    Args:
        pool: the members; all drafters must be able to judge, but for prompt lookup.
        window: tokens of a draft, >= 1.
        every: one round in this many is an evaluation, >= 2.
        memory: rounds that the rates reach back, >= 1.
        reward: `speed` (tokens per second) or `tokens` (per round).
        seed: of the draws.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds.

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
        if not below:
            raise ValueError("policy hedgespec needs a drafter below the target")
        for mute in (member.name for member in below if member.drafts_only):
            rule = f"scores drafters by a forward over text of others, and {mute} only drafts"
            raise ValueError(f"policy hedgespec {rule}")
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
        if outcome.done:  # what was committed will not be seen again
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
        """Compare what was written with what the target committed, then reweigh the drafters."""
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
        if draft_s is None:  # it has only judged so far, or looked up without a match
            draft_s = self._window * (self._seconds.verify_s(name, 1) or 0.0)
        verify_s = self._seconds.verify_s(self._target, self._window + 1)
        assert verify_s is not None  # the target has judged, else nothing would be scored
        return tokens / (draft_s + verify_s)


@dataclass(slots=True)
class _Evaluation:
    start: int  # committed tokens before it
    num_drafts: int = 0  # that were asked for
    written: list[tuple[int, list[int]]] = field(default_factory=list)  # by drafter's level, what it endorsed


class NormalHedge:
    """A choice among N >= 1 experts, all of whose gains are given, without a parameter to tune.

    Chaudhuri, Freund and Hsu 2009 (arXiv:0903.2851). R_i is the regret of not having followed expert i. With [x]+ =
    max(x, 0) and c such that the mean of exp([R_i]+^2 / 2c) is e, `chances` (`[N]`, sum 1) are proportional to [R_i]+ /
    c exp([R_i]+^2 / 2c), and uniform where no regret is positive.
    """

    def __init__(self, num_experts: int) -> None:
        self._regrets = [0.0] * num_experts
        self.chances = [1.0 / num_experts] * num_experts

    def learn(self, gains: list[float]) -> None:
        """Note the gain of every expert, `[N]`, 0 to 1 each."""
        mean = sum(chance * gain for chance, gain in zip(self.chances, gains, strict=True))
        self._regrets = [regret + gain - mean for regret, gain in zip(self._regrets, gains, strict=True)]
        count = len(gains)
        halves = [max(regret, 0.0) ** 2 / 2.0 for regret in self._regrets]
        if max(halves) <= 0.0:
            self.chances = [1.0 / count] * count
            return
        top = max(halves)
        low, high = top / (1.0 + log(count)), top  # the largest term alone bounds c from both sides
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            above = sum(exp(half / middle) for half in halves) > e * count
            low, high = (middle, high) if above else (low, middle)
        scale = high
        weights = [half**0.5 * exp((half - top) / scale) for half in halves]
        total = sum(weights)
        self.chances = [weight / total for weight in weights]
