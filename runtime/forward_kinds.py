"""The ways to run models and to keep their caches, by name, for those who load no torch to name one."""

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
# How members that a policy lets work at the same time do so: `auto` tries both ways.
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
    """What is said behind a name that is none, of one that was."""
    return "; compiled is in its place" if name == "graphs" else ""
