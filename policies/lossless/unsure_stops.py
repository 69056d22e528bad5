"""Two levels; the draft ends at the first token its drafter is unsure of, by one fixed threshold.

`confident` is the confidence threshold of transformers' assisted generation (`assistant_confidence_threshold`, default
0.4 there).

`svip` is Zhang et al. 2024 (arXiv:2411.18462): the total variation distance of drafter and target, and with it refusal,
is bounded through the square root of the drafter's entropy H; the draft goes on while sqrt(H) <= h. What h should be
depends on the pair of models; our default, 1.5 (H <= 2.25 nats), suits the small models we ship. The token that trips
the rule stays in the draft, as every stop here has it.
"""

from dataclasses import replace

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Draft, Verify
from ...decoding.pool import Pool
from ...decoding.rules.draft_stops import ConfidenceBelow, EntropyAbove
from ..about import SIGNALS, About
from ..parts.default_members import A_DRAFTER, drafter_of
from ..parts.drafted_blocks import FixedBlocks


class Confident(FixedBlocks):
    """Draft until the drafter's probability falls below a threshold, then verify.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        below: probability that ends a draft, 0 to 1; the token stays in the draft.
        most: longest draft, >= 1.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(
        paper="the assistant confidence of transformers",
        lossless=True,
        members=A_DRAFTER,
        observes=SIGNALS,
        by_pending=True,
    )

    def __init__(self, pool: Pool, *, draft: str | None = None, below: float = 0.4, most: int = 12) -> None:
        check_within("below", below, "[0, 1]")
        check_within("most", most, ONE_STEP)
        super().__init__(Draft(drafter_of(pool, draft), most, ConfidenceBelow(below)), Verify(pool.target))


class Svip(FixedBlocks):
    """Two levels; a draft ends at the first token whose entropy bound on acceptance is too low.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        h: largest square root of the entropy in nats, > 0.
        most: longest draft, >= 1.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = replace(Confident.about, paper="SVIP, arXiv:2411.18462")

    def __init__(self, pool: Pool, *, draft: str | None = None, h: float = 1.5, most: int = 12) -> None:
        check_within("h", h, "(0, inf)")
        check_within("most", most, ONE_STEP)
        super().__init__(Draft(drafter_of(pool, draft), most, EntropyAbove(h * h)), Verify(pool.target))
