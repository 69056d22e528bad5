"""All that selections go by: seconds, agreement, survival, and verdicts still to be taken in."""

from math import log, nan

import numpy as np

from ...decoding.pool import Pool
from ..parts.performance_profiler import PerformanceProfiler
from .constants import RouterConstants
from .estimates.confidence import Survival, doubt
from .estimates.evidence import JudgedRun, Verdict
from .estimates.similarity import PairAgreement
from .options import RouterOptions
from .search import Figures


class Knowledge:
    """Running estimates of members and pairs. Mutated by `digest`, through `verdicts` and through its parts.

    Args:
        pool: the members.
        options: the longest window, what agreement is made of, costs and what to do without among them.
        constants: of the policy.

    Attributes:
        profiler: seconds.
        agreement: of pairs.
        survival: of drafted tokens.
        verdicts: what is to be taken in by `digest`.
        runs: the same of tokens that were judged together.
    """

    def __init__(self, pool: Pool, options: RouterOptions, constants: RouterConstants) -> None:
        self.profiler = PerformanceProfiler(
            pool, options.costs, memory=constants.seconds_memory, moved=constants.seconds_moved
        )
        self.agreement = PairAgreement(
            len(pool.members), constants, similarity=options.similarity, eased=options.takes("ease")
        )
        self.survival = Survival(constants)
        self.verdicts: list[Verdict] = []
        self.runs: list[JudgedRun] = []
        self._constants = constants
        self._all_endorsers = options.takes("evidence")
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

    def optimistic(self, tag: str, figures: Figures) -> Figures:
        """The same with the rates of a tag raised to what they may be.

        By `optimism` times (V ln N / n)^(1/2): V / n the variance of a pair's rate by its n tokens, N those of the pair
        of the tag that is known best, after UCB1 (Auer, Cesa-Bianchi & Fischer 2002), which has arms' plays for tokens
        and an upper bound for V. Tokens count up to `pair_memory`; from there on N grows no more, and a pair that was
        left alone stays so. Full information makes the pairs of a chain in use known without being played alone.
        """
        rates, constants, tokens = figures.rates, self._constants, self.agreement.weight(tag) + 1.0
        variances = (rates * (1.0 - rates) + constants.least_variance) / tokens
        raised = rates + constants.optimism * np.sqrt(variances * log(float(tokens.max())))
        return figures._replace(rates=np.minimum(raised, 1.0 - constants.least_missed))

    def digest(self) -> None:
        """Take in the verdicts since the last time."""
        levels = self._levels
        agreement, survival = self.agreement.note, self.survival.note
        for tag, written, endorsers, verifier, kept, similar in self.verdicts:
            drafter, above, last = levels[written.drafter], levels[verifier], endorsers[-1]
            for name in endorsers if self._all_endorsers else endorsers[-1:]:
                judge = levels[name]
                if judge < above:  # a larger member's token says nothing of a chain, which goes from small to large
                    agreement(tag, judge, above, kept=kept, similar=similar if name is last else nan)
                    if name is not last:
                        survival(tag, (drafter, judge, above), doubt(written.signal.prob), kept=kept)
        self.verdicts.clear()
        for tag, tokens, judges, verifier, num_kept in self.runs:
            above = levels[verifier]
            self.survival.note_run(
                tag,
                [
                    ((levels[token.drafter], levels[judge], above), doubt(token.signal.prob))
                    for token, judge in zip(tokens, judges, strict=True)
                ],
                num_kept,
            )
        self.runs.clear()
