"""HiSpec: an intermediate verifier that costs little judges every draft, the target what it has gathered.

Kumar et al. 2025 (arXiv:2510.01336) draft with an early exit of the target, at about 1/8 of its depth, verify with a
later one, at about 1/4, and ask the whole model only once a few tokens are tentatively accepted; the text stays the
target's. What our contract can say of it is a chain of three levels, and step by step it is one,
`draft:4/mid:8/target`. The paper's further point is that the three are one model and share caches and hidden states.
Here every member has a cache of its own, and what sharing saves has to stand in the costs. We read the abstract and
summaries of the paper: how many tokens it drafts and gathers we do not know, so 4 and 8 are ours, as is that members
may be models of any kind.
"""

from ...arguments import check_within
from ...decoding.contract import ONE_STEP
from ...decoding.pool import Pool
from ..about import About
from ..lossless.chain import Chain
from ..parts.default_members import A_VERIFIER_BETWEEN, drafter_of, next_verifier


class HiSpec(Chain):
    """Three levels: each draft is judged by a verifier that costs little, what it gathers by the target.

    Args:
        pool: the members.
        draft: the drafter, an early exit in the paper; default the smallest model.
        middle: the intermediate verifier, a later exit in the paper; default the smallest above the drafter.
        tokens: drafted before the intermediate verifier judges, 1 to 1,000,000.
        gather: tokens that it has accepted, its own among them, before the target judges, 1 to 1,000,000.

    Raises:
        ValueError: an option out of range, or a pool without a verifier between drafter and target.
    """

    about = About(paper="HiSpec, arXiv:2510.01336", lossless=True, members=A_VERIFIER_BETWEEN, by_pending=True)

    def __init__(
        self, pool: Pool, *, draft: str | None = None, middle: str | None = None, tokens: int = 4, gather: int = 8
    ) -> None:
        check_within("tokens", tokens, ONE_STEP)
        check_within("gather", gather, ONE_STEP)
        drafter = drafter_of(pool, draft)
        verifier = next_verifier(pool, middle, drafter, "hispec")
        super().__init__(pool, f"{drafter}:{tokens}/{verifier}:{gather}/{pool.target}")
