"""Why one request of a batch fails or waits while the others go on."""

from ...decoding.results import Deferred, Failed
from ..state.errors import KVMemoryError


class NonFiniteLogitsError(ValueError):
    """A model returned NaN or infinity; no token can be chosen from that."""

    def __init__(self, member: str, request_id: str, position: int) -> None:
        super().__init__(
            f"model {member}, request {request_id}: the logits at output position {position} or after it hold NaN or "
            "infinity; try dtype float32"
        )


def without_room(error: KVMemoryError | None) -> Failed | Deferred:
    """What becomes of a request that `StateManager.reserve` refused: it fails with the error, or waits without one."""
    return Deferred("KV memory is short") if error is None else Failed(error)
