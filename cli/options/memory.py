"""The options on keys and values of `run` and `agree`."""

from typing import Annotated, Literal

import typer

Cache = Literal["slots", "mask"]

CacheOption = Annotated[
    Cache, typer.Option("--cache", help="Of keys and values: a slot per position, or append-only with a mask.")
]
KVLimitOption = Annotated[
    float | None,
    typer.Option(
        "--kv-limit-mib",
        help="Memory of all caches together; where it is short, the youngest request waits and recomputes.",
    ),
]
DeadShareOption = Annotated[
    float | None,
    typer.Option("--dead-share", help="Of --cache mask: share of dead slots that are truncated, in (0, 1]; 0.5."),
]


def limit_bytes(mib: float | None) -> int | None:
    """Bytes of --kv-limit-mib; raises ValueError for what is no amount of memory."""
    if mib is None:
        return None
    if not 0 < mib < float("inf"):
        raise ValueError(f"--kv-limit-mib must be > 0 and finite, got {mib}")
    return max(1, int(mib * 2**20))


def dead_share_of(cache: Cache, share: float | None) -> float:
    """--dead-share; raises ValueError out of range, or for a cache that has no dead slots."""
    if share is None:
        return 0.5
    if cache != "mask":
        raise ValueError("--dead-share belongs to --cache mask")
    if not 0 < share <= 1:
        raise ValueError(f"--dead-share must be in (0, 1], got {share}")
    return share
