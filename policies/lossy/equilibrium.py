"""Equilibrium decoding: drafter and target as generator and discriminator of the Consensus Game, token by token.

Jacob et al., The Consensus Game (arXiv:2310.09139); the update stands in `rules.Equilibrium`. The paper ranks whole
answers to a question; a game per token between the drafted token and the target's own is ours.
"""

from ...decoding.contract import Draft, Verify
from ...decoding.pool import Pool
from ...decoding.rules.equilibrium import Equilibrium
from ..about import VERDICT_PROBS, About
from ..parts.default_members import A_SURE_DRAFTER, sure_drafter
from ..parts.drafted_blocks import DraftedBlocks


class EquilibriumDecoding(DraftedBlocks):
    """Two levels; a drafted token stays where both models' equilibrium prefers it to the target's own.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model that has probabilities.
        tokens: block, >= 1.
        generator: lambda, 0.01 to 100: how strongly the drafter is held to its own probabilities.
        discriminator: lambda, 0.01 to 100: how strongly the target is.
        eta: learning rate, > 0.
        rounds: updates of the game, 1 to 100.

    Raises:
        ValueError: an option out of range, or a drafter without probabilities.
    """

    about = About(
        paper="The Consensus Game, arXiv:2310.09139", lossless=False, members=A_SURE_DRAFTER, observes=VERDICT_PROBS
    )

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        tokens: int = 5,
        generator: float = 0.1,
        discriminator: float = 0.2,
        eta: float = 1.0,
        rounds: int = 8,
    ) -> None:
        rule = Equilibrium(generator=generator, discriminator=discriminator, eta=eta, rounds=rounds)
        super().__init__(Draft(sure_drafter(pool, draft, "equilibrium"), tokens), Verify(pool.target, rule))
