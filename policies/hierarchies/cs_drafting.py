"""CS-Drafting: the first tokens of a draft by a larger model, later ones by ever smaller ones, the lowest a lookup.

Chen et al. 2023 (arXiv:2312.11462). Vertical cascade: no model writes token by token; each reviews what smaller
members draft for it, down to a statistical one. Horizontal cascade: later tokens of a draft are less often kept, so
they are left to smaller members. Letters: member 0 is the target, members 1 to n its drafters by falling size, n the
lookup; k_ij are tokens that member j drafts for member i.

    iteration(i): for j = i + 1 to n: while fewer than k_i,i+1 + ... + k_ij tokens are there, iteration(j);
                  then member i reviews them all and adds one of its own

The matrices are those of the released code, k_0 = (5, 14, 10), k_1 = (1, 10), k_2 = (10) for two models and a lookup,
(13, 10) and (10) for one; its k_02 is counted from k_01 on. Three things differ. Its lowest member (MaG) copies behind
the longest match and goes on with bigrams; ours is the pool's prompt lookup, which may come back short or empty, and is
asked once an iteration: where it finds nothing, who would have reviewed writes one token. Between drafters the paper
reviews with lenience, ours exactly. An iteration that has no room left goes to the target as it is.
"""

from itertools import accumulate

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About
from ..parts.default_members import lookup_member, next_verifier, sure_drafter, verifiers_between

FIRST = {1: 13, 2: 5}  # k_01, by the number of drafting models


class CsDrafting:
    """Vertical and horizontal cascade of one or two models over prompt lookup.

    Args:
        pool: must hold a model-free member.
        draft: the smaller drafting model; default the smallest.
        middle: the larger one, which reviews the other's drafts; default the smallest verifier above `draft`.
        models: drafting models, 1 or 2; default 2 where the pool has them.
        first: tokens endorsed by the largest drafting model, 1 to 1,000,000; default 5, of one model 13.
        second: of two models, tokens of the smaller one that follow them, 1 to 1,000,000.
        inner: of two models, tokens that the smaller drafts for the larger at a time, 1 to 1,000,000.
        copy: longest copy, at every place where the lookup is asked, 1 to 1,000,000.

    Attributes:
        most_pending: tokens it may have pending, at most.

    Raises:
        ValueError: an option out of range or of another number of models, or a pool without the members.
    """

    about = About(
        paper="CS-Drafting, arXiv:2312.11462",
        lossless=True,
        members="a model-free member and a drafter that can verify, better two",
    )

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        middle: str | None = None,
        models: int | None = None,
        first: int | None = None,
        second: int = 14,
        inner: int = 1,
        copy: int = 10,
    ) -> None:
        lookup, drafter = lookup_member(pool, "cs-drafting"), sure_drafter(pool, draft, "cs-drafting")
        if models is None:
            models = 2 if middle is not None or verifiers_between(pool, drafter) else 1
        check_within("models", models, "[1, 2]")
        first = FIRST[models] if first is None else first
        for name, tokens in (("first", first), ("second", second), ("inner", inner), ("copy", copy)):
            check_within(name, tokens, ONE_STEP)
        rows: tuple[tuple[int, ...], ...] = ((first, copy), (copy,))
        drafters: tuple[str, ...] = (drafter,)
        if models == 2:
            drafters = (next_verifier(pool, middle, drafter, "cs-drafting"), drafter)
            rows = ((first, second, copy), (inner, copy), (copy,))
        elif middle is not None:
            raise ValueError(f"middle is for models=2, got {middle!r} with models=1")
        self._names = (pool.target, *drafters, lookup)
        self._upto = [tuple(accumulate(row)) for row in rows]
        self._reviews = [Verify(name) for name in self._names[:-1]]
        self._writes_one = [Draft(name, 1) for name in self._names[1:-1]]
        self._copies = Draft(lookup, copy)
        self.most_pending = _most_before_review(self._upto, copy)

    def decide(self, seen: Observation) -> Step:
        """The next step of the innermost iteration that is under way."""
        if not seen.has_room:
            return self._reviews[0]
        reviewer = 0
        while True:
            drafter = self._next_drafter(seen, reviewer)
            if drafter is None:
                break
            if drafter == len(self._reviews):
                return self._copies
            reviewer = drafter
        if reviewer == 0 or seen.waiting(self._names[reviewer]):
            return self._reviews[reviewer]
        return self._writes_one[reviewer - 1]

    def learn(self, outcome: Outcome) -> None:
        """A fixed cascade learns nothing."""

    def _next_drafter(self, seen: Observation, reviewer: int) -> int | None:
        """Index of the member that goes on in the iteration which `reviewer` ends; None if that is due."""
        written = seen.waiting(self._names[reviewer])
        for drafter, upto in enumerate(self._upto[reviewer], reviewer + 1):
            if written - seen.waiting(self._names[drafter]) < upto:
                asked = drafter == len(self._reviews) and seen.last is not None and seen.last.step is self._copies
                return None if asked else drafter
        return None


def _most_before_review(upto: list[tuple[int, ...]], copy: int) -> int:
    """Most tokens that the outermost iteration has pending, from the innermost outwards.

    A member's iterations follow each other until its sum is reached, so the last begins just below it at most; the
    lookup is asked once.
    """
    most = copy
    gains: list[int] = []  # of one iteration of each drafting model, the largest first: its review adds a token
    for sums in reversed(upto):
        *models, last = sums
        most = max((total - 1 + gain for total, gain in zip(models, gains, strict=True)), default=0)
        most = max(most, min(most, last - 1) + copy)
        gains.insert(0, most + 1)
    return most
