"""Why one request of a batch fails while the others go on."""


class NonFiniteLogitsError(ValueError):
    """A model returned NaN or infinity; no token can be chosen from that."""

    def __init__(self, member: str, request_id: str, position: int) -> None:
        super().__init__(
            f"model {member}, request {request_id}: the logits at output position {position} or behind hold NaN or "
            "infinity; try dtype float32"
        )
