"""The ways to run models and to keep their caches, by name, without torch."""

from typing import Literal, get_args

ForwardKind = Literal[
    "auto",
    "fused",
    "modules",
    "fused:plain",
    "fused:plain-rows",
    "fused:onednn",
    "fused:onednn-rows",
    "fused:onednn-packed",
    "compiled",
]
# How members work at the same time where the policy lets them: `auto` tries both ways.
AheadKind = Literal["auto", "threads", "turns"]
AHEAD_KINDS: tuple[AheadKind, ...] = get_args(AheadKind)
# How keys and values are kept: a slot is a position, or append-only with a validity mask.
CacheKind = Literal["slots", "mask"]
CACHES: tuple[CacheKind, ...] = get_args(CacheKind)
# Whether attention over a prefix that rows share is computed once for all of them.
SharedKind = Literal["auto", "on", "off"]
SHARED_KINDS: tuple[SharedKind, ...] = get_args(SharedKind)
KINDS: tuple[ForwardKind, ...] = get_args(ForwardKind)


def replaced(name: str) -> str:
    """A hint for an unknown name that was valid in earlier versions."""
    return "; compiled is in its place" if name == "graphs" else ""
