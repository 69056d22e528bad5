"""The ways to run a model, by name, for those who load no torch to name one."""

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
KINDS: tuple[ForwardKind, ...] = get_args(ForwardKind)


def replaced(name: str) -> str:
    """What is said behind a name that is none, of one that was."""
    return "; compiled is in its place" if name == "graphs" else ""
