"""Which steps begin a token tree, and which a pending one allows."""

from ..rules.acceptance import Exact
from ..session import Session
from .draft_tree import DraftTree


def check_tree(session: Session, step: DraftTree) -> int:
    """The level that drafts a tree; raises ValueError with the rule that the step breaks."""
    pool = session.pool
    level = pool.level(step.model)
    if level == pool.target_level:
        raise ValueError("the target does not draft; verify with nothing pending is plain decoding")
    if not pool.members[level].verifies:
        raise ValueError(f"{pool.names[level]} drafts no tree: it has no distribution over the target's tokens")
    if session.tokens:
        raise ValueError(f"a tree is drafted with nothing pending, and {len(session.tokens)} tokens are")
    return level


def check_on_tree(session: Session, step: object) -> None:
    """Refuse what a pending tree does not allow; raises ValueError with the rule that the step breaks."""
    rule = getattr(step, "rule", None)
    if rule is None:
        raise ValueError("a tree is pending, and the only step on it is a Verify")
    if not isinstance(rule, Exact):
        raise ValueError(f"a tree is verified by Exact(), got {rule!r}")
