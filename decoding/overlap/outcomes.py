"""What a policy learns of each part of an `Overlap`.

Letters: P parts.
"""

from collections.abc import Sequence

from ..contract import Outcome, Overlap
from ..results import Drafted, Parted, PartRun
from .spans import Span


def outcomes_of(
    request_id: str,
    step: Overlap,
    spans: Sequence[Span],
    rows: Parted,
    own: Sequence[int],
    parts: Sequence[PartRun],
    *,
    num_rows: int,
) -> list[Outcome]:
    """`[P]` outcomes, with nothing emitted and not done.

    Args:
        request_id: whose step it was.
        step: the whole.
        spans: `[P]` the pending tokens of each part.
        rows: `[P]` what each said.
        own: `[P]` own tokens that had room.
        parts: `[P]` how each ran.
        num_rows: requests in the operation.
    """
    outcomes = []
    for part, (first, end), row, num_own, ran in zip(step.steps, spans, rows, own, parts, strict=True):
        num_drafted = num_judged = num_accepted = 0
        tvd: Sequence[float] = ()
        if isinstance(row, Drafted):
            num_drafted = len(row.tokens)
        else:
            num_judged, num_accepted, tvd = end - first, row.num_accepted, row.tvd
        outcomes.append(
            Outcome(
                request_id=request_id,
                step=part,
                num_drafted=num_drafted,
                num_judged=num_judged,
                num_accepted=num_accepted,
                num_own=num_own,
                num_emitted=0,
                refused_at=num_accepted if num_accepted < num_judged else None,
                tvd=tvd,
                duration_s=ran.duration_s,
                num_rows=num_rows,
                done=False,
            )
        )
    return outcomes
