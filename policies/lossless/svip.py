"""SVIP: drafting ends where the drafter's entropy is too high, by one fixed threshold.

Zhang et al. 2024 (arXiv:2411.18462): the total variation distance of drafter and target, and with it refusal, is
bounded through the square root of the drafter's entropy H; the draft goes on while sqrt(H) <= h. What h should be
depends on the pair of models; our default, 1.5 (H <= 2.25 nats), suits the small models we ship. The token that trips
the rule stays in the draft, as every stop here has it.
"""

from ...decoding.contract import Draft, Verify
from ...decoding.pool import Pool
from ...decoding.rules.stops import EntropyAbove
from ..about import About, Observable
from ..parts.counts import check_count
from ..parts.default_members import drafter_of
from ..parts.drafted_blocks import DraftedBlocks


class Svip(DraftedBlocks):
    """Two levels; a draft ends at the first token whose entropy bound on acceptance is too low.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        h: largest square root of the entropy in nats, > 0.
        most: longest draft, >= 1.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(
        paper="SVIP, arXiv:2411.18462",
        lossless=True,
        members="a drafter below the target",
        observes=frozenset({Observable.signals}),
    )

    def __init__(self, pool: Pool, *, draft: str | None = None, h: float = 1.5, most: int = 12) -> None:
        if not 0.0 < h < float("inf"):
            raise ValueError(f"h must be > 0 and finite, got {h!r}")
        check_count("most", most)
        super().__init__(Draft(drafter_of(pool, draft), most, EntropyAbove(h * h)), Verify(pool.target))
