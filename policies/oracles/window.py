"""The best window in every round, known in advance: the bound for all that choose windows of one drafter.

No published policy: the least total seconds over the answer among all sequences of rounds of the target alone and of
`draft:n/target` with n up to a limit. A round is worth what it makes of the next ones, too: see `least_seconds`.
"""

from typing import ClassVar

from ...decoding.pool import Pool
from ..about import About
from ..lossless.chain import Chain
from ..parts.counts import check_count
from ..parts.default_members import drafter_of
from .foresight import Foresight
from .oracle import LONGEST, Oracle
from .rounds import Round, answered


class OracleWindow(Oracle):
    """The window of each round that makes the answer cheapest, seen in the recording.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model.
        most: longest window, 1 to 1,000; the target alone is always among the choices.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about: ClassVar[About] = About(lossless=True, members="a member below the target", oracle=True)

    def __init__(self, pool: Pool, *, draft: str | None = None, most: int = 16) -> None:
        check_count("most", most, most=LONGEST)
        drafter = drafter_of(pool, draft)
        super().__init__(pool)
        self._chains = [Chain(pool, f"{drafter}:{window}/{pool.target}") for window in range(1, most + 1)]

    def rounds(self, foresight: Foresight, request_id: str, position: int) -> list[Round]:
        """The target alone and every window."""
        chains = (self._alone, *self._chains)
        return answered(*[foresight.round_of(request_id, position, chain) for chain in chains])
