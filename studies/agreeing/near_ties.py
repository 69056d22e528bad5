"""Whether a difference of the two worlds stands at a near tie, which rounding may turn over."""

from ...reports.agreement import Agreement
from ...runtime.pools.pool import ModelPool
from ...runtime.recording.near_ties import near_ties_along
from ...traces.tries.recording import TrieRecording

# Choices after a step: its drafts, and what a verifier adds.
LOOKED_AT = 16


def near_ties_at(agreement: Agreement, recording: TrieRecording, pool: ModelPool) -> list[tuple[str, int]]:
    """Members and output positions of near ties among the next choices along the trunk; none without a difference."""
    difference = agreement.difference
    if difference is None:
        return []
    record = next(record for record in recording.requests if record.request_id == difference.request_id)
    trunk = record.trie.token[record.trie.trunk[1:]].tolist()
    first = min(difference.num_committed, len(trunk))
    answer = trunk[: first + LOOKED_AT]
    return near_ties_along(
        pool, record.request_id, record.prompt, answer, first=first, sampling=recording.meta.sampling
    )


def near_tie_line(ties: list[tuple[str, int]], dtype: str) -> str:
    """What near ties at a difference say of it."""
    if not ties:
        return f"  no near tie in {dtype} among the next {LOOKED_AT} choices: rounding is hardly the cause"
    member, position = ties[0]
    return (
        f"  a near tie: {member}'s choice at output position {position} differs by less than rounding in {dtype} moves "
        "it, so that another width of forward may choose the other token"
    )
