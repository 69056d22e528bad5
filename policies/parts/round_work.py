"""What a round of a request works, and what that takes in a batch of any size.

An operation of a server also reads prompts of requests that come in while others decode. Its seconds in equal shares
say more of who came in than of the round. So rounds are counted as work (drafted tokens, verifications and their
positions, by member) and priced by a profile that all operations tell: what they would take if nobody came in. What
a member below the target has to read before it can take part is priced by token of the answers to come, and not in the
round in which it is read.
"""

from collections.abc import Iterable
from math import inf

from ...decoding.contract import Draft, Outcome, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from .forward_watch import ForwardWatch
from .performance_profiler import PerformanceProfiler
from .text_to_read import TextToRead


class RoundWork:
    """Work of rounds, added up; older rounds may count less. Mutated by `note` and `add`. Letter: L members.

    Args:
        num_members: L.

    Attributes:
        tokens: emitted.
        drafted, verifies, positions: `[L]` by level, drafted tokens, verifications, and positions of these: judged
            tokens and the verifier's own.
    """

    __slots__ = ("drafted", "positions", "tokens", "verifies")

    def __init__(self, num_members: int) -> None:
        self.tokens = 0.0
        self.drafted = [0.0] * num_members
        self.verifies = [0.0] * num_members
        self.positions = [0.0] * num_members

    def note(self, outcome: Outcome, pool: Pool) -> None:
        """Take in a step."""
        step = outcome.step
        self.tokens += outcome.num_emitted
        if isinstance(step, Draft):
            self.drafted[pool.level(step.model)] += outcome.num_drafted
        elif isinstance(step, Verify):
            level = pool.level(step.model)
            self.verifies[level] += 1.0
            self.positions[level] += outcome.num_judged + 1.0

    def add(self, other: "RoundWork", *, kept: float) -> None:
        """Take in a round, after what is there was cut to a share `kept`, 0 to 1."""
        self.tokens = kept * self.tokens + other.tokens
        for mine, theirs in (
            (self.drafted, other.drafted),
            (self.verifies, other.verifies),
            (self.positions, other.positions),
        ):
            for level, amount in enumerate(theirs):
                mine[level] = kept * mine[level] + amount


class WorkPrices:
    """Prices work by what operations took. Mutated by `see` and `end`.

    Args:
        pool: the members.
        below: names of members below the target that may run; each has to read what it has not read.
        costs: of forwards, as `MemberSeconds` takes them, in place of measured ones; then nothing is read.
    """

    def __init__(self, pool: Pool, below: Iterable[str], costs: str | None = None) -> None:
        self._profiler = PerformanceProfiler(pool, costs)
        self._models = [level for level, member in enumerate(pool.members) if not member.model_free]
        self._watch = ForwardWatch(self._profiler, self._models)
        self._to_read = {pool.level(name): TextToRead() for name in below if not pool.is_model_free(name)}
        self._names = pool.names

    def see(self, seen: Observation) -> None:
        """A round of a request begins: take in what operations took, and what members have yet to read."""
        if self._profiler.stated is None:
            self._watch.look(seen.load)
            for level, to_read in self._to_read.items():
                lacking = seen.context_tokens - seen.cached(self._names[level])
                to_read.see(seen.request_id, lacking, seen.remaining)

    def end(self, outcome: Outcome) -> None:
        """A request is done, by this step."""
        if self._profiler.stated is None:
            for to_read in self._to_read.values():
                to_read.end(outcome.request_id, outcome.num_emitted)

    def seconds(self, work: RoundWork, *, num_rows: int, held_tokens: int) -> float:
        """Of a request's work in a batch of `num_rows` that hold so many tokens; infinite for members never seen.

        Some request has been seen and is not done.
        """
        widths = 2 + max(
            int(positions / count) for positions, count in zip(work.positions, work.verifies, strict=True) if count
        )
        table = self._profiler.table(widths, num_rows=num_rows, held_tokens=held_tokens)
        total = 0.0
        for level in self._models:
            drafted, verifies = work.drafted[level], work.verifies[level]
            if not (drafted or verifies):
                continue
            forwards: list[float] = table[level].tolist()
            if forwards[0] == inf:
                return inf
            total += drafted * forwards[0]
            if verifies:
                width = work.positions[level] / verifies
                whole = int(width)
                share = width - whole
                total += verifies * ((1.0 - share) * forwards[whole - 1] + share * forwards[whole])
            if level in self._to_read and self._profiler.stated is None:
                token_s = max(forwards[-1] - forwards[0], 0.0) / (widths - 1)
                total += token_s * self._to_read[level].by_answer_token * work.tokens
        return total / num_rows
