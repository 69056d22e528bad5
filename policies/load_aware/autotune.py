"""Windows tuned while requests run: a bandit whose reward is tokens per second.

ik_llama.cpp ships this as `--spec-autotune` (#1595): for every draft one of the windows 1 to 16 is drawn at random with
probability 0.15, else the one of the best mean tokens per second is played, and all means are dropped when 30 drafts in
a row stay 30% below the running average. SGLang proposed such bandits with means by the size of the batch (#4732). So
here: epsilon-greedy, and what is known is dropped where preferred arms bring other than they did. Three things differ.
Arms are chains, so that no speculation is one of them, and each is played for a few rounds before any is preferred.
What a round brings and works is learnt at all sizes of batch together and priced at the present one, by seconds that
leave out prompts which others read in the same operations. And one request explores for all that run.
"""

from dataclasses import dataclass
from math import inf
from random import Random

from ...arguments import check_least, check_within
from ...decoding.contract import Outcome, Step
from ...decoding.observation import Load, Observation
from ...decoding.pool import Pool
from ..about import About
from ..chain_ranges import chains_in
from ..lossless.chain import Chain
from ..parts.acceptance_rate import RunningRatio
from ..parts.batch_turns import BatchTurns
from ..parts.default_members import smallest_model
from ..parts.round_work import RoundWork, WorkPrices

MOST_ARMS = 64
RECENT = 32  # rounds of preferred arms by which a change is told


class Autotune:
    """One chain for all that run, by what chains have brought; chosen anew every turn of the batch.

    Args:
        pool: the members.
        arms: chains, separated by `@`, windows also as ranges, as `target@draft:1..8/target`, at most 64; default the
            target alone and the smallest model with windows 1 to 8.
        explore: probability that the first round of a turn plays an arm at random, 0 to 1.
        trial: rounds of each arm before one is preferred, >= 1.
        change: share, > 0, by which tokens of the latest 32 rounds of preferred arms must differ from their means for
            all arms to be tried anew.
        memory: rounds that an arm's means reach back, >= 1.
        seed: of the draws.
        costs: of forwards, as `draft:1/target:10`, at any batch, instead of measured seconds; see `member_seconds`.

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
        self._explore, self._trial, self._change = explore, trial, change
        self._rng = Random(seed)
        self._pool = pool
        self._prices = WorkPrices(pool, {name for chain in self._chains for name in chain.spec.members[:-1]}, costs)
        self._turns = BatchTurns()
        self._kept = 1.0 - 1.0 / memory
        self._begin_anew()
        self._rounds: dict[str, _Round] = {}
        self.plays = [0] * len(self._chains)
        self.resets = 0

    def _begin_anew(self) -> None:
        """Nothing is known of any arm."""
        members = len(self._pool.members)
        self._values = [RoundWork(members) for _ in self._chains]
        self._begun = [0] * len(self._chains)
        self._preferred = 0
        self._lately = RunningRatio(memory=RECENT)

    def decide(self, seen: Observation) -> Step:
        """The next step of the round's chain; an arm is picked where a round begins."""
        playing = self._rounds.get(seen.request_id)
        if playing is None:
            self._prices.see(seen)
            arm = self._pick(seen.load)
            playing = self._rounds[seen.request_id] = _Round(arm, self._values[arm], RoundWork(len(self._pool.members)))
            self._begun[arm] += 1
            self.plays[arm] += 1
        return self._chains[playing.arm].decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Reward the arm when the target has committed."""
        playing = self._rounds[outcome.request_id]
        playing.work.note(outcome, self._pool)
        if outcome.num_emitted:
            self._reward(playing)
            del self._rounds[outcome.request_id]
        if outcome.done:
            self._prices.end(outcome)

    def _reward(self, playing: "_Round") -> None:
        value, arm = playing.value, playing.arm
        if value is not self._values[arm]:
            return  # it began before all arms were tried anew
        rounds = value.verifies[-1]
        if arm == self._preferred and rounds:
            self._lately.note(playing.work.tokens, value.tokens / rounds)
        value.add(playing.work, kept=self._kept)
        if self._lately.num_rounds >= 2 * RECENT and abs(self._lately.rate - 1.0) > self._change:
            self._begin_anew()
            self.resets += 1

    def _pick(self, load: Load) -> int:
        """The arm of a round: one to try, now and then one by chance, else that of the turn."""
        untried = next((arm for arm, begun in enumerate(self._begun) if begun < self._trial), None)
        if untried is not None:
            return untried
        if self._turns.begins(load.num_running):
            rates = [self._rate(value, load) for value in self._values]
            self._preferred = rates.index(max(rates))
            # One request explores for all: to draft, each would have to be read to the drafter first.
            if self._rng.random() < self._explore:
                return self._rng.randrange(len(self._begun))
        return self._preferred

    def _rate(self, value: RoundWork, load: Load) -> float:
        """Tokens per second if all that run played an arm; none as long as no round of it has ended."""
        if not value.tokens:
            return 0.0
        seconds = self._prices.seconds(value, num_rows=load.num_running, held_tokens=load.context_tokens)
        return value.tokens / seconds if seconds else inf


@dataclass(slots=True)
class _Round:
    """A round under way: its arm, whom it rewards, and its work so far."""

    arm: int
    value: RoundWork
    work: RoundWork
