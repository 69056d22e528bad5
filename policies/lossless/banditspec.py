"""BanditSpec: which chain to play is a bandit's question, asked anew every round.

Hou et al. 2025 (arXiv:2505.15141) choose among configurations of speculation by UCB or EXP3. Their measure is the
stopping-time regret: how many rounds more than the best single arm it takes to finish the answer. It counts a round as
one whatever the arm, so their reward is the round's tokens. Chains of different depth cost differently; here the
reward is tokens per second by default, and `reward=tokens` is theirs. What we chose where we could not follow the text:

- `kind=ucb`: index = value + explore x sqrt(2 ln t / plays), value the arm's tokens over the seconds (or the number) of
  all its rounds, in parts of the best arm's. UCB1 (Auer et al. 2002) has explore = 1.
- `kind=exp3`: weights w, chance (1 - explore) w / sum w + explore / K; the played arm's weight grows by
  exp(explore x reward / (chance x K)) (Auer et al. 2002). The reward is the round's tokens (per second) in parts of the
  largest seen. Per second this favours arms of short rounds a little: a mean of ratios is not a ratio of means.
"""

from math import exp, inf, log, sqrt
from random import Random
from typing import ClassVar

from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.member_seconds import MemberSeconds, counts_seconds
from .chain import Chain

EXPLORE = {"ucb": 1.0, "exp3": 0.3}


class BanditSpec:
    """Which chain to play each round, by UCB or EXP3.

    Args:
        pool: the members.
        kind: `ucb` or `exp3`.
        arms: chains, separated by `@`, as `target@draft:4/target`; default the target alone, every drafter with
            window 4, the smallest model under each larger one, and prompt lookup.
        reward: `speed` (tokens per second) or `tokens` (per round).
        explore: of `ucb` the factor on the radius, >= 0, default 1; of `exp3` the share of even draws, above 0 to 1,
            default 0.3.
        seed: of the draws of `exp3`, default 0; `ucb` draws nothing and takes none.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds; see `member_seconds`.

    Attributes:
        most_pending: tokens it may have pending, at most.
        plays: rounds begun with each arm, in the order of `arms`.
        arms: the chains.

    Raises:
        ValueError: an option out of range, that does not fit the kind or the reward, or an arm that is no chain.
    """

    about: ClassVar[About] = About(
        paper="BanditSpec, arXiv:2505.15141", lossless=True, members="those of the chains to choose among"
    )

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
        _check_explore(kind, explore)
        chains = [Chain(pool, text) for text in (default_arms(pool) if arms is None else arms.split("@"))]
        self.arms = tuple(str(chain.spec) for chain in chains)
        self.most_pending = max(chain.most_pending for chain in chains)
        if len(set(self.arms)) != len(self.arms):
            raise ValueError(f"arms must differ, got {arms!r}")
        self._learner: Ucb | Exp3 = Ucb(len(chains), explore)
        if kind == "exp3":
            self._learner = Exp3(len(chains), explore, Random(seed or 0))
        self._chains = chains
        self._seconds = MemberSeconds(pool, costs)
        self._playing: dict[str, int] = {}  # arm of every round that is under way, and what it took so far
        self._spent: dict[str, float] = {}
        self.plays = [0] * len(chains)

    def decide(self, seen: Observation) -> Step:
        """The next step of the round's chain; the learner picks one where a round begins."""
        arm = self._playing.get(seen.request_id)
        if arm is None:
            arm = self._playing[seen.request_id] = self._pick()
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

    def _pick(self) -> int:
        arm = self._learner.pick()
        self.plays[arm] += 1
        return arm


def default_arms(pool: Pool) -> list[str]:
    """Chains of one, two and three levels that stand for what any pool can do."""
    models = [member for member in pool.members[:-1] if not member.model_free]
    arms = [pool.target, *(f"{model.name}:4/{pool.target}" for model in models)]
    arms += [f"{models[0].name}:3/{model.name}:6/{pool.target}" for model in models[1:] if model.verifies]
    if pool.members[0].model_free:
        arms.append(f"{pool.names[0]}:6/{pool.target}")
    return arms


def _check_explore(kind: str, explore: float) -> None:
    if kind == "ucb" and not 0.0 <= explore < float("inf"):
        raise ValueError(f"explore must be >= 0 and finite with kind=ucb, got {explore!r}")
    if kind == "exp3" and not 0.0 < explore <= 1.0:
        raise ValueError(f"explore must be in (0, 1] with kind=exp3, got {explore!r}")


class Ucb:
    """Optimism: the arm of the largest upper bound (UCB1, Auer et al. 2002), each once to begin with.

    Args:
        num_arms: K arms.
        explore: factor on the radius sqrt(2 ln t / plays), >= 0.
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
        """What a round of the arm brought and took."""
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
    """Chance: arms are drawn by weights that grow with what they brought (Auer et al. 2002).

    Args:
        num_arms: K arms.
        explore: share of even draws, above 0 to 1; also the pace of the weights.
        rng: of the draws.
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
        """What a round of the arm brought and took; rewards are in parts of the largest so far.

        The chance is that of now, not of when the arm was drawn: with one request they are the same.
        """
        rate = tokens / seconds
        self._most = max(self._most, rate)
        count = len(self._arms)
        self._log_weights[arm] += self._explore * rate / (self._most * self._chances[arm] * count)
        top = max(self._log_weights)
        weights = [exp(weight - top) for weight in self._log_weights]
        total = sum(weights)
        even = self._explore / count
        self._chances = [(1.0 - self._explore) * weight / total + even for weight in weights]
