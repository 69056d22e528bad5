"""SpecDec++: a draft ends where a learned head says that the target has likely refused a token of it by now.

Huang et al. 2024 (arXiv:2405.19715) cast the length of drafts as a Markov decision process. Where it is worth while to
go on depends on the chance that at least one token was refused already, and stopping when that exceeds a threshold,

    1 - prod_i P(token i is kept | those before it are) > h

is optimal if the threshold is right. P is an acceptance head: there a network on the drafter's hidden states, trained
on weighted losses. Here it sees what a policy may see (the drafter's probability, entropy and gap of the token, its
place in the draft, and how well the request went so far), is logistic in it, is fitted to a recording beforehand by
`paceline policy fit`, and every token has the same weight, so that its chances are those that happen. The token that
trips the rule stays in the draft, as there.
"""

from ...arguments import check_within
from ...decoding.contract import ONE_STEP, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import SIGNALS, About
from ..parts.drafted_blocks import DraftedBlocks
from .acceptance_head import moved, read_head

FIT = "paceline policy fit specdec++ --trace TRACE --out FILE"


class SpecDec(DraftedBlocks):
    """Two levels; a draft ends where a fitted head gives a refusal in it more than a chance of `h`.

    Args:
        pool: the members; the head's drafter and target among them.
        head: file of the acceptance head, which `paceline policy fit` writes.
        h: chance of a refusal that ends a draft, 0 to 1.
        most: longest draft, >= 1.

    Attributes:
        head: as read.

    Raises:
        ValueError: no head, one that is not sound or was fitted to other members, or an option out of range.
    """

    about = About(
        paper="SpecDec++, arXiv:2405.19715",
        lossless=True,
        members="a drafter and a target that its head was fitted to",
        observes=SIGNALS,
    )

    def __init__(self, pool: Pool, *, head: str | None = None, h: float = 0.7, most: int = 16) -> None:
        if head is None:
            raise ValueError(f"head must name the file of an acceptance head, which `{FIT}` makes")
        check_within("h", h, "[0, 1]")
        check_within("most", most, ONE_STEP)
        self.head = read_head(head)
        self._h = h
        self._agreement: dict[str, float] = {}  # of requests that have had a round
        draft = Draft(self.head.drafter_in(pool), most, self.head.stop(h, self.head.start))
        super().__init__(draft, Verify(pool.target))

    def block(self, seen: Observation) -> Step:
        """As long as the head is confident of this request."""
        agreement = self._agreement.get(seen.request_id)
        if agreement is None:
            return self._draft
        return Draft(self._draft.model, self._draft.tokens, self.head.stop(self._h, agreement))

    def learn(self, outcome: Outcome) -> None:
        """How much of the round stayed."""
        request_id = outcome.request_id
        if outcome.done:
            self._agreement.pop(request_id, None)
        elif outcome.num_judged:
            before, num_seen = self._agreement.get(request_id, self.head.start), outcome.num_accepted
            num_seen += outcome.refused_at is not None
            self._agreement[request_id] = moved(before, outcome.num_accepted, num_seen)
