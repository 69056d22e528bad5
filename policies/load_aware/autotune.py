"""Windows tuned while requests run: a bandit whose reward is tokens per second.

ik_llama.cpp ships this as `--spec-autotune` (#1595): for every draft one of the windows 1 to 16 is drawn at random with
probability 0.15, else the one of the best mean tokens per second is played, and all means are dropped when 30 drafts in
a row stay 30% below the running average. SGLang proposed such bandits with means by the size of the batch (#4732). So
here: epsilon-greedy, means by the number of running requests in powers of two, dropped where what preferred arms bring
has changed. Arms are chains, so that no speculation is one of them; each is played for a few rounds before
any is preferred, and a value is all tokens over all seconds, which favours no short rounds.
"""

from dataclasses import dataclass
from random import Random

from ...arguments import check_least, check_within
from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..chain_ranges import chains_in
from ..lossless.chain import Chain
from ..parts.acceptance_rate import RunningRatio
from ..parts.batch_turns import BatchTurns
from ..parts.default_members import smallest_model
from ..parts.member_seconds import MemberSeconds

MOST_ARMS = 64
RECENT = 32  # turns of preferred arms by which a change is told


class Autotune:
    """One chain for all that run, by what chains have brought; chosen anew every turn of the batch.

    Args:
        pool: the members.
        arms: chains, separated by `@`, windows also as ranges, as `target@draft:1..8/target`, at most 64; default the
            target alone and the smallest model with windows 1 to 8.
        explore: probability that a turn plays an arm at random, 0 to 1.
        trial: rounds of each arm before one is preferred, >= 1.
        change: share, > 0, by which tokens per second over the latest 32 turns of preferred arms must differ from those
            over `memory` turns for all arms to be tried anew.
        memory: turns that an arm's tokens per second reach back, >= 1.
        seed: of the draws.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds; see `member_seconds`.

    Attributes:
        arms: the chains.
        most_pending: tokens it may have pending, at most.
        plays: rounds begun with each arm, in the order of `arms`.
        resets: how often all arms were tried anew.

    Raises:
        ValueError: an option out of range, or an arm that is no chain of this pool.
    """

    about = About(paper="the autotuning of ik_llama.cpp", lossless=True, members="those of the chains to choose among")

    def __init__(
        self,
        pool: Pool,
        *,
        arms: str | None = None,
        explore: float = 0.05,
        trial: int = 8,
        change: float = 0.3,
        memory: int = 256,
        seed: int = 0,
        costs: str | None = None,
    ) -> None:
        check_within("explore", explore, "[0, 1]")
        check_least("trial", trial, 1)
        check_within("change", change, "(0, inf)")
        check_least("memory", memory, 1)
        texts = [pool.target, f"{smallest_model(pool)}:1..8/{pool.target}"] if arms is None else arms.split("@")
        self._chains = [Chain(pool, str(chain)) for chain in chains_in(texts, pool, most=MOST_ARMS)]
        self.arms = tuple(str(chain.spec) for chain in self._chains)
        self.most_pending = max(chain.most_pending for chain in self._chains)
        self._explore, self._trial, self._change, self._memory = explore, trial, change, memory
        self._rng = Random(seed)
        self._seconds = MemberSeconds(pool, costs)
        self._turns = BatchTurns()
        self._values: dict[int, _Values] = {}
        self._arm = 0
        self._rounds: dict[str, _Round] = {}
        self.plays = [0] * len(self._chains)
        self.resets = 0

    def decide(self, seen: Observation) -> Step:
        """The next step of the round's chain; an arm is picked where a turn of the batch begins."""
        playing = self._rounds.get(seen.request_id)
        if playing is None:
            num_running = seen.load.num_running
            values = self._values_at(num_running)
            if self._turns.begins(num_running):
                self._arm = values.pick(self._rng, explore=self._explore, trial=self._trial)
            playing = self._rounds[seen.request_id] = _Round(self._arm, values)
            values.begun[self._arm] += 1
            self.plays[self._arm] += 1
        return self._chains[playing.arm].decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Reward the arm when the target has committed."""
        playing = self._rounds[outcome.request_id]
        playing.seconds += self._seconds.charge(outcome)
        if outcome.num_emitted:
            playing.values.note(playing.arm, outcome.num_emitted, playing.seconds)
            del self._rounds[outcome.request_id]

    def _values_at(self, num_running: int) -> "_Values":
        """Of batches of about this size; new ones where those there are no longer hold."""
        size = num_running.bit_length()
        values = self._values.get(size)
        if values is None or values.changed(self._change):
            self.resets += values is not None
            values = self._values[size] = _Values(len(self._chains), self._memory)
        return values


@dataclass(slots=True)
class _Round:
    """A round under way: its arm, whom it rewards, and what it took so far."""

    arm: int
    values: "_Values"
    seconds: float = 0.0


class _Values:
    """What arms have brought at one size of batch. Mutated by `note` and `pick`, and `begun` by who plays.

    Attributes:
        begun: `[K]` rounds begun with each of K arms.
    """

    __slots__ = ("_lately", "_open", "_preferred", "_rates", "_so_far", "begun")

    def __init__(self, num_arms: int, memory: int) -> None:
        self.begun = [0] * num_arms
        self._rates = [RunningRatio(memory=memory) for _ in range(num_arms)]
        self._open: dict[int, tuple[float, float]] = {}  # tokens and seconds since the last turn, by arm
        self._preferred = -1  # arm of the turn, if it was not played to learn
        self._lately, self._so_far = RunningRatio(memory=RECENT), RunningRatio(memory=memory)

    def note(self, arm: int, tokens: int, seconds: float) -> None:
        """Take in a round of an arm."""
        tokens_before, seconds_before = self._open.get(arm, (0.0, 0.0))
        self._open[arm] = (tokens_before + tokens, seconds_before + seconds)

    def pick(self, rng: Random, *, explore: float, trial: int) -> int:
        """The arm of the next turn."""
        self._settle()
        self._preferred = -1
        untried = next((arm for arm, begun in enumerate(self.begun) if begun < trial), None)
        if untried is not None:
            return untried
        if rng.random() < explore:
            return rng.randrange(len(self.begun))
        self._preferred = max(range(len(self.begun)), key=self._rate)
        return self._preferred

    def changed(self, share: float) -> bool:
        """Whether preferred arms now bring so much more or less than they did."""
        if self._lately.num_rounds < 2 * RECENT:
            return False
        return abs(self._lately.rate / self._so_far.rate - 1.0) > share

    def _settle(self) -> None:
        """The rounds of a turn count as one."""
        for arm, (tokens, seconds) in self._open.items():
            self._rates[arm].note(tokens, seconds)
            if arm == self._preferred:
                self._lately.note(tokens, seconds)
                self._so_far.note(tokens, seconds)
        self._open.clear()

    def _rate(self, arm: int) -> float:
        """Tokens per second; none as long as no round of the arm has ended."""
        rate = self._rates[arm]
        return rate.rate if rate.num_rounds else 0.0
