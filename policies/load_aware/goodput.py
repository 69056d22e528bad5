"""The window of most goodput: expected tokens over the seconds of the batch that runs now.

SmartSpec (Liu et al. 2024, arXiv:2406.14066). Letters: B requests that run, k window, a_i acceptance of request i.

    goodput(k) = sum_i l(a_i, k) / T(k),    l(a, k) = (1 - a^(k+1)) / (1 - a)
    T(k) = k d + v(B (k + 1)) + [k > 0] r sum_i l(a_i, k)

d is a forward of the drafter over B tokens, v(n) one of the target over n, both at the tokens that the batch holds. r
is what the drafter reads before it drafts, seconds by token of the answers: prompts, and after a while without drafts
what was written since (`TextToRead`). It is not in SmartSpec; in a large batch it may outweigh all that drafts bring.
SmartSpec fits its seconds beforehand as held tokens, new tokens and a constant, each times a factor. Here they are
measured while it runs (`PerformanceProfiler`): linear in held tokens as there, of any shape in new ones, since a large
batch is where verification stops being free. Acceptance is a running average of each request, which begins at that of
all. One window holds for the whole batch and is chosen anew every turn of it.
"""

from dataclasses import replace

import numpy as np

from ...arguments import check_least, check_within
from ...decoding.contract import Draft, Outcome, Step, Verify
from ...decoding.observation import Load, Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.acceptance_rate import RunningRatio, acceptance_rate, judged
from ..parts.batch_turns import BatchTurns
from ..parts.default_members import A_DRAFTER, drafter_of
from ..parts.drafted_blocks import DraftedBlocks
from ..parts.forward_watch import ForwardWatch
from ..parts.performance_profiler import PerformanceProfiler
from ..parts.text_to_read import TextToRead

MOST = 1_000  # tokens of the longest window, all of which are weighed every turn
REQUEST_MEMORY = 32  # rounds that a request's own acceptance reaches back
PRIOR_TOKENS = 8.0  # judged tokens of its own that the acceptance of all counts for where a request begins


class Goodput(DraftedBlocks):
    """Two levels with the window of most expected tokens per second of the batch, down to none.

    Once in `explore` turns of the batch its neighbour is played, so that seconds and acceptance stay known; where none
    is best, by one request, since all of them would have to be read to the drafter first.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model. Prompt lookup counts as free.
        start: window as long as seconds are not known, 1 to `most`.
        most: longest window, 1 to 1,000.
        explore: turns, >= 2, one of which plays a neighbour of the best window.
        memory: rounds that acceptance reaches back, >= 1.

    Attributes:
        window: of the turn, 0 to `most`.
        best: window of most goodput when it was last worked out.

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
        super().__init__(Draft(drafter_of(pool, draft), most), Verify(pool.target))
        self._drafts = [replace(self._draft, tokens=window) for window in range(1, most + 1)]
        self._drafter, self._target = pool.level(self._draft.model), pool.target_level
        self._free = pool.members[self._drafter].model_free
        self._windows = np.arange(most + 1)
        self._profiler = PerformanceProfiler(pool)
        self._watch = ForwardWatch(self._profiler, (self._drafter, self._target))
        self._acceptance = acceptance_rate(memory=memory)
        self._own: dict[str, RunningRatio] = {}
        self._to_read = TextToRead()
        self._turns = BatchTurns()
        self._explore = explore
        self.window = self.best = start

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
        return self._drafts[window - 1] if window else self._verify

    def learn(self, outcome: Outcome) -> None:
        """Follow acceptance, of all and of the request."""
        if outcome.num_judged:
            self._acceptance.note(*judged(outcome))
            self._own[outcome.request_id].note(*judged(outcome))
        if outcome.done:
            del self._own[outcome.request_id]
            if not self._free:
                self._to_read.end(outcome.request_id, outcome.num_emitted)

    def _choose(self, load: Load) -> int:
        """Set the window of the turn; the one of the request that begins it."""
        most = len(self._drafts)
        seconds = self._profiler.table(most + 1, num_rows=load.num_running, held_tokens=load.context_tokens)
        draft_s = np.zeros(most + 1) if self._free else seconds[self._drafter]
        if np.isfinite(draft_s[0]) and np.isfinite(seconds[self._target, 0]):
            rates = np.array([own.rate for own in self._own.values()])
            tokens = np.cumsum((rates[:, None] ** self._windows).sum(axis=0))  # [most + 1] of [B, most + 1]
            batch_s = self._windows * draft_s[0] + seconds[self._target]
            if not self._free:
                read_s = max(float(draft_s[-1] - draft_s[0]) / (load.num_running * most), 0.0)
                batch_s[1:] += tokens[1:] * read_s * self._to_read.by_answer_token
            self.best = int(np.argmax(tokens / batch_s))
        self.window = self.best
        turn = self._turns.num_turns
        if turn % self._explore:
            return self.window
        if not self.best:
            return 1
        below = self.best == most or turn // self._explore % 2 == 0
        self.window = self.best - 1 if below else self.best + 1
        return self.window
