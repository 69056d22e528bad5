"""All that selections go by: seconds, agreement, survival, and verdicts still to be taken in."""

from math import nan

import numpy as np

from ...decoding.pool import Pool
from ..parts.performance_profiler import PerformanceProfiler
from .confidence import Survival, doubt
from .evidence import Verdict
from .options import RouterOptions
from .search import Figures
from .similarity import PairAgreement


class Knowledge:
    """Running estimates of members and pairs. Mutated by `digest`, through `verdicts` and through its parts.

    Args:
        pool: the members.
        options: the longest window, what agreement is made of, and costs among them.

    Attributes:
        profiler: seconds.
        agreement: of pairs.
        survival: of drafted tokens.
        verdicts: what is to be taken in by `digest`.
    """

    def __init__(self, pool: Pool, options: RouterOptions) -> None:
        self.profiler = PerformanceProfiler(pool, options.costs)
        self.agreement = PairAgreement(len(pool.members), options.similarity)
        self.survival = Survival()
        self.verdicts: list[Verdict] = []
        self._widths = options.most + 1
        self._levels = {name: level for level, name in enumerate(pool.names)}
        self._models = [level for level, member in enumerate(pool.members) if not member.model_free]

    def models(self) -> list[int]:
        """Members with weights of which seconds are known."""
        return [level for level in self._models if self.profiler.known(level)]

    def figures(self, key: str | None, num_rows: int) -> Figures:
        """What is known now for requests of one tag, or of all (None), in operations of `num_rows` requests."""
        return Figures(
            rates=self.agreement.rates(key),
            seconds=self.profiler.table(self._widths, num_rows=num_rows),
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
        for tag, written, endorsers, verifier, kept, similar in self.verdicts:
            drafter, above, last = levels[written.drafter], levels[verifier], endorsers[-1]
            doubted = doubt(written.signal.prob)
            for name in endorsers:
                judge = levels[name]
                if judge < above:  # a larger member's token says nothing of a chain, which goes from small to large
                    agreement(tag, judge, above, kept=kept, similar=similar if name is last else nan)
                    survival(tag, (drafter, judge, above), doubted, kept=kept)
        self.verdicts.clear()
