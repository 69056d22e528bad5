"""What a replica does of a request: all of it, its prefill, or what comes after; and how keys and values get there."""

from dataclasses import dataclass
from enum import StrEnum

from ...arguments import check_within


class Role(StrEnum):
    """Of a replica; docs/disaggregation.md."""

    both = "both"
    prefill = "prefill"
    decode = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How keys and values get from where a prompt was read to where its answer is decoded.

    Attributes:
        bytes_per_s: of the link, in [1, 1e18].
        latency_s: after the last byte has left, in [0, 1e6]; others may send meanwhile.
        token_bytes: keys and values of one token of the target, >= 0.

    Raises:
        ArgumentError: a number out of range.
    """

    bytes_per_s: float
    latency_s: float
    token_bytes: int

    def __post_init__(self) -> None:
        check_within("`bytes_per_s`", self.bytes_per_s, "[1, 1e18]")
        check_within("`latency_s`", self.latency_s, "[0, 1e6]")
        check_within("`token_bytes`", self.token_bytes, "[0, inf)")
