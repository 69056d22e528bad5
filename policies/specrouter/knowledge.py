"""All that a scheduler goes by: seconds, agreement, survival, what chains took, and verdicts still to be taken in."""

from math import nan
from typing import NamedTuple

import numpy as np

from ...decoding.pool import Pool
from .confidence import Survival, doubt
from .evidence import Verdict
from .profile import PerformanceProfiler
from .realised import Realised
from .search import Floats, FoundChain, best_windows
from .similarity import PairAgreement, Similarity


class Figures(NamedTuple):
    """What a selection goes by; see `search`. Letters: L members, N the longest window.

    Attributes:
        rates: `[L, L]`.
        seconds: `[L, N + 1]`.
        entry_s: `[L]`.
    """

    rates: Floats
    seconds: Floats
    entry_s: Floats

    def windows(self, levels: tuple[int, ...]) -> FoundChain:
        """A chain of these members with its best windows."""
        return best_windows(levels, self.rates, self.seconds, entry_s=self.entry_s)


class Knowledge:
    """Running estimates of members and pairs. Mutated by `digest`, through `verdicts` and through its parts.

    Args:
        pool: the members.
        most: longest window, >= 1.
        similarity: what agreement is made of; see `similarity`.
        costs: of a forward by member, as `draft:1/target:10`; None measures.

    Attributes:
        profiler: seconds.
        agreement: of pairs.
        survival: of drafted tokens.
        realised: what chains took against what was predicted.
        verdicts: what is to be taken in by `digest`.
    """

    def __init__(self, pool: Pool, *, most: int, similarity: Similarity, costs: str | None) -> None:
        self.profiler = PerformanceProfiler(pool, costs)
        self.agreement = PairAgreement(len(pool.members), similarity)
        self.survival = Survival()
        self.realised = Realised()
        self.verdicts: list[Verdict] = []
        self._pool = pool
        self._most = most
        self._levels = {name: level for level, name in enumerate(pool.names)}
        self._models = [level for level, member in enumerate(pool.members) if not member.model_free]

    def models(self) -> list[int]:
        """Members with weights of which seconds are known."""
        return [level for level in self._models if self.profiler.known(level)]

    def figures(self, key: str | None, num_rows: int) -> Figures:
        """What is known now for requests of one tag, or of all (None), in operations of `num_rows` requests."""
        return Figures(
            rates=self.agreement.rates(key),
            seconds=self.profiler.table(self._most + 1, num_rows=num_rows),
            entry_s=self.profiler.entry_s(num_rows=num_rows),
        )

    def hopeful(self, key: str | None, figures: Figures, hope: float) -> Figures:
        """The same with the rates of a tag, or of all (None), raised by `hope` where evidence is thin or old."""
        raised = self.agreement.rates(key) + hope / np.sqrt(self.agreement.freshness(key) + 1.0)
        return figures._replace(rates=np.minimum(raised, 1.0))

    def digest(self) -> None:
        """Take in the verdicts since the last time."""
        levels = self._levels
        agreement, survival = self.agreement.note, self.survival.note
        for tag, written, behind, verifier, kept, similar in self.verdicts:
            drafter, above, last = levels[written.drafter], levels[verifier], behind[-1]
            doubted = doubt(written.signal.prob)
            for name in behind:
                judge = levels[name]
                if judge < above:  # a larger member's token says nothing of a chain, which goes from small to large
                    agreement(tag, judge, above, kept=kept, similar=similar if name is last else nan)
                    survival(tag, (drafter, judge, above), doubted, kept=kept)
        self.verdicts.clear()
