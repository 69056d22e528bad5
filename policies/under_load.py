"""Policies that see load: `autotune`, `goodput`, `off-under-load` and `slo`; docs/policies-load.md describes them.

`autotune`: SGLang proposed means by the size of the batch (#4732); here rounds of all sizes are learnt together and
priced at the present one (`WorkPrices`). Each arm is played for a few rounds before any is preferred, and one request
explores for all that run.

`goodput` is SmartSpec (Liu et al. 2024, arXiv:2406.14066). Seconds are linear in held tokens as in the paper, but
measured, and of any shape in new ones (`PerformanceProfiler`). Acceptance is a running average of each request, which
starts from that of all. A window holds for a turn of the batch.
"""

from dataclasses import dataclass
from math import inf
from random import Random

import numpy as np

from ..base.errors import check_least, check_within
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.seen import Observation, ServerLoad
from ..decoding.steps import Draft, Outcome, Step, Verify
from .about import About, say_runs
from .blocks import (
    A_DRAFTER,
    BatchTurns,
    DepthAcceptance,
    DraftedBlocks,
    RunningRatio,
    TextToRead,
    WindowSchedule,
    acceptance_rate,
    drafter_of,
    judged,
    smallest_model,
)
from .chain_text import chains_in
from .combined import MadeOf
from .estimates import DraftSeconds, ForwardWatch, PerformanceProfiler, RoundWork, WorkPrices
from .fixed import Chain

MOST_ARMS = 64
RECENT = 32  # rounds of preferred arms in which a change is detected


class Autotune:
    """One chain for all running requests, the one that brought most tokens per second; chosen every turn of the batch.

    Args:
        arms: chains, separated by `@`, windows also as ranges, as `target@draft:1..8/target`, at most 64; default the
            target alone and the smallest model with windows 1 to 8.
        explore: probability that the first round of a turn plays an arm at random, 0 to 1.
        trial: rounds of each arm before one is preferred, >= 1.
        change: share, > 0, by which tokens of the latest 32 rounds of preferred arms must differ from their means for
            all arms to be tried again.
        memory: rounds that an arm's means reach back, >= 1.
        seed: of the draws.
        costs: of forwards, as `draft:1/target:10`, at any batch, instead of measured seconds.

    Attributes:
        arms: the chains.
        most_pending: tokens it may have pending, at most.
        plays: rounds begun with each arm, in the order of `arms`.
        resets: how often all arms were tried again.

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
        say_runs(self, [name for chain in self._chains for name in chain.spec.members])
        self.most_pending = max(chain.most_pending for chain in self._chains)
        self._explore, self._trial, self._change = explore, trial, change
        self._rng = Random(seed)
        self._pool = pool
        self._prices = WorkPrices(pool, {name for chain in self._chains for name in chain.spec.members[:-1]}, costs)
        self._turns = BatchTurns()
        self._kept = 1.0 - 1.0 / memory
        self._reset()
        self._rounds: dict[str, _Round] = {}
        self.plays = [0] * len(self._chains)
        self.resets = 0

    def _reset(self) -> None:
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
            return  # it began before all arms were reset
        rounds = value.verifies[-1]
        if arm == self._preferred and rounds:
            self._lately.note(playing.work.tokens, value.tokens / rounds)
        value.add(playing.work, kept=self._kept)
        if self._lately.num_rounds >= 2 * RECENT and abs(self._lately.rate - 1.0) > self._change:
            self._reset()
            self.resets += 1

    def _pick(self, load: ServerLoad) -> int:
        """The arm of a round: one to try, sometimes a random one, else that of the turn."""
        untried = next((arm for arm, begun in enumerate(self._begun) if begun < self._trial), None)
        if untried is not None:
            return untried
        if self._turns.begins(load.num_running):
            rates = [self._rate(value, load) for value in self._values]
            self._preferred = rates.index(max(rates))
            # One request explores for all: before it drafts, the drafter must read its text.
            if self._rng.random() < self._explore:
                return self._rng.randrange(len(self._begun))
        return self._preferred

    def _rate(self, value: RoundWork, load: ServerLoad) -> float:
        """Tokens per second if all running requests played an arm; 0 until a round of it has ended."""
        if not value.tokens:
            return 0.0
        seconds = self._prices.seconds(value, num_rows=load.num_running, held_tokens=load.context_tokens)
        return value.tokens / seconds if seconds else inf


@dataclass(slots=True)
class _Round:
    arm: int
    value: RoundWork
    work: RoundWork


MOST = 1_000  # tokens of the longest window; all windows are compared every turn
REQUEST_MEMORY = 32  # rounds that a request's own acceptance reaches back
STEADIER = 8  # times slower than acceptance: depths depend on the drafter, not on the text
PRIOR_TOKENS = 8.0  # weight, in judged tokens, of the acceptance of all in a new request


class Goodput(DraftedBlocks):
    """Two levels with the window of most expected tokens per second of the batch, down to none.

    A draft takes what drafts took, a part for the round and one for each token; a window leaves what tokens of its
    depths are kept. SmartSpec takes a drafted token's seconds and its acceptance to be the same at every depth.

    Once in `explore` turns of the batch its neighbour is played, so that seconds and acceptance stay known; where none
    is best, by one request, since all of them would have to be read to the drafter first.

    Args:
        draft: the drafter; default the smallest model. Prompt lookup counts as free.
        start: window as long as seconds are not known, 1 to `most`.
        most: longest window, 1 to 1,000.
        explore: turns, >= 2, one of which plays a neighbour of the best window.
        memory: rounds that acceptance reaches back, >= 1.

    Attributes:
        window: of the turn, 0 to `most`.
        best: window of most goodput when it was last computed.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="SmartSpec, arXiv:2406.14066", lossless=True, members=A_DRAFTER)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        start: int = 4,
        most: int = 8,
        explore: int = 32,
        memory: int = 256,
    ) -> None:
        check_within("most", most, f"[1, {MOST:,}]")
        check_within("start", start, f"[1, most={most}]")
        check_least("explore", explore, 2)
        super().__init__(Draft(drafter_of(pool, draft), most), Verify(pool.target), others=())
        self._drafter, self._target = pool.level(self._draft.model), pool.target_level
        self._free = pool.members[self._drafter].model_free
        self._windows = np.arange(most + 1)
        self._profiler = PerformanceProfiler(pool)
        self._watch = ForwardWatch(self._profiler, (self._drafter, self._target))
        self._drafts = DraftSeconds()
        self._acceptance = acceptance_rate(memory=memory)
        self._by_depth = DepthAcceptance(most, memory=STEADIER * memory)
        self._own: dict[str, RunningRatio] = {}
        self._to_read = TextToRead()
        self._turns = BatchTurns()
        self._explore = explore
        self._latest = (0, 0.0)  # tokens fed and seconds of the last draft noted
        self.window = self.best = self._asked = start

    def block(self, seen: Observation) -> Step:
        """A draft of the batch's window, or plain decoding."""
        load = seen.load
        if seen.request_id not in self._own:
            above = PRIOR_TOKENS * self._acceptance.rate
            self._own[seen.request_id] = RunningRatio(memory=REQUEST_MEMORY, above=above, below=PRIOR_TOKENS)
        if not self._free:
            lacking = seen.context_tokens - seen.cached(self._draft.model)
            self._to_read.see(seen.request_id, lacking, seen.remaining)
        window = self.window
        if self._turns.begins(load.num_running):
            self._watch.look(load)
            window = self._choose(load)
        return self.block_of(window)

    def learn(self, outcome: Outcome) -> None:
        """Note acceptance, of all and of the request."""
        if outcome.num_judged:
            self._acceptance.note(*judged(outcome))
            self._by_depth.note(outcome, self._own[outcome.request_id].rate)
            self._own[outcome.request_id].note(*judged(outcome))
        if outcome.done:
            del self._own[outcome.request_id]
            if not self._free:
                self._to_read.end(outcome.request_id, outcome.num_emitted)

    def _choose(self, load: ServerLoad) -> int:
        """Set the window of the turn; returns that of the request that begins it."""
        most = self._draft.tokens
        fed, draft_s = load.new_tokens[self._drafter], load.duration_s[self._drafter]
        # The latest draft of the turn before is noted unless much else was read in it.
        if self._asked and draft_s and fed <= (self._asked + 2) * load.num_running and (fed, draft_s) != self._latest:
            self._latest = fed, draft_s
            self._drafts.note(load.num_running, self._asked, draft_s)
        seconds = self._profiler.table(most + 1, num_rows=load.num_running, held_tokens=load.context_tokens)
        drafts_s = np.zeros(most + 1) if self._free else self._drafts.of(load.num_running, most)
        if drafts_s is not None and np.isfinite(seconds[self._target, 0]):
            rates = np.array([own.rate for own in self._own.values()])
            tokens = self._by_depth.tokens(rates)
            batch_s = drafts_s + seconds[self._target]
            if not self._free:
                forward_s = seconds[self._drafter]
                read_s = max(float(forward_s[-1] - forward_s[0]) / (load.num_running * most), 0.0)
                batch_s[1:] += tokens[1:] * read_s * self._to_read.by_answer_token
            self.best = int(np.argmax(tokens / batch_s))
        self.window = self.best
        turn = self._turns.num_turns
        if turn % self._explore:
            self._asked = self.window
            return self.window
        if not self.best:
            return 1
        below = self.best == most or turn // self._explore % 2 == 0
        self.window = self._asked = self.best - 1 if below else self.best + 1
        return self.window


WINDOW = 4  # tokens drafted if neither a policy nor a table is given
AT = 32  # default: running requests from which on the target decodes alone


class OffUnderLoad(MadeOf):
    """Another policy below a number of running requests, the target alone from it on; or a window by that number.

    A round ends as it began: thresholds are looked at when nothing is pending. Each policy learns from its own steps
    only, so it does not see the end of a request that ends under another one.

    Args:
        policy: below the threshold; default a chain of `draft` with window 4 and the target.
        at: running requests from which on the target decodes alone, >= 1; default 32.
        table: window of `draft` by running requests, in place of both, as `1:5/16:2/64:0`: 5 tokens from 1 request on,
            2 from 16 on, none from 64 on. It begins at 1 and goes up.
        draft: the drafter; default the smallest model.

    Attributes:
        steps: (running requests, policy from there on), ascending from 1. `MadeOf` has the others.

    Raises:
        ValueError: an option out of range, options that exclude each other, or a drafter that is not below the target.
    """

    about: About | None = About(paper="the batch thresholds of vLLM", lossless=True, members="what its policy needs")

    def __init__(
        self,
        pool: Pool,
        *,
        policy: Policy | None = None,
        at: int | None = None,
        table: str | None = None,
        draft: str | None = None,
    ) -> None:
        if table is not None and (policy is not None or at is not None):
            raise ValueError("table goes without policy and at: its last window may be 0")
        if policy is not None and draft is not None:
            raise ValueError("draft goes without policy, which has drafters of its own")
        if table is not None:
            windows = _parse(table)
        else:
            at = AT if at is None else at
            check_least("at", at, 1)
            windows = [(1, WINDOW), (at, 0)] if at > 1 else [(1, 0)]
        built = {0: Chain(pool, pool.target)} | {
            window: Chain(pool, f"{drafter_of(pool, draft)}:{window}/{pool.target}") if policy is None else policy
            for _, window in windows
            if window
        }
        self.steps = tuple((first, built[window]) for first, window in windows)
        self._playing: dict[str, Policy] = {}
        super().__init__(tuple(dict.fromkeys(part for _, part in self.steps)))

    def decide(self, seen: Observation) -> Step:
        """The step of the policy for the load at which the round began."""
        policy, last = self._playing.get(seen.request_id), seen.last
        if policy is None or (not seen.num_pending and (last is None or last.num_emitted)):
            running = seen.load.num_running
            policy = next(part for first, part in reversed(self.steps) if running >= first)
            self._playing[seen.request_id] = policy
        return policy.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """The policy that decided learns."""
        self._playing[outcome.request_id].learn(outcome)
        if outcome.done:
            del self._playing[outcome.request_id]


def _parse(table: str) -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []
    for part in table.split("/"):
        first, colon, window = part.partition(":")
        if not colon or not all(number.isascii() and number.isdigit() for number in (first, window)):
            raise ValueError(f"table must read REQUESTS:WINDOW/..., as in 1:5/16:2/64:0, got {part!r} in {table!r}")
        steps.append((int(first), int(window)))
        if steps[0][0] != 1 or (len(steps) > 1 and steps[-2][0] >= int(first)):
            raise ValueError(f"table must begin at 1 request and go up, got {part!r} in {table!r}")
    return steps


class Slo(DraftedBlocks):
    """A window by acceptance for the urgent, less of it for those with slack in a loaded batch.

    A round's seconds are those of the latest draft and the latest verification. A request without a deadline never has
    slack: nothing says that it may wait.

    Args:
        draft: the drafter; default the smallest model.
        loaded: running requests from which on a batch is loaded, >= 1.
        margin: rounds before its next token is due in which a request is urgent, > 0.
        start: first window of a request, 1 to `most`.
        up: added after a round in which every drafted token stayed, >= 0.
        down: taken off otherwise (the window never falls below 1), >= 0.
        most: longest window, 1 to 1,000,000.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="AdaServe, arXiv:2501.12162", lossless=True, members=A_DRAFTER)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        loaded: int = 8,
        margin: float = 2.0,
        start: int = 4,
        up: int = 2,
        down: int = 1,
        most: int = 8,
    ) -> None:
        check_least("loaded", loaded, 1)
        check_within("margin", margin, "(0, inf)")
        self._schedule = WindowSchedule(start=start, up=up, down=down, most=most)
        super().__init__(Draft(drafter_of(pool, draft), most), Verify(pool.target), others=())
        self._levels = (pool.level(self._draft.model), pool.target_level)
        self._loaded, self._margin = loaded, margin

    def block(self, seen: Observation) -> Step:
        """A draft of what its urgency leaves of the request's window, or plain decoding."""
        window, load, due_s = self._schedule.window(seen.request_id), seen.load, seen.deadline_s
        if due_s is not None and load.num_running >= self._loaded:
            soon_s = self._margin * sum(load.duration_s[level] for level in self._levels)
            slack_s = due_s - load.now_s
            window = window if slack_s <= soon_s else int(window * soon_s / slack_s)
        return self.block_of(window)

    def learn(self, outcome: Outcome) -> None:
        """Move the request's window after each verification that judged something."""
        self._schedule.note(outcome)
