"""Which steps a request may take now, by the contract."""

from .contract import Commit, Draft, Step, Verify
from .session import Session
from .trees.draft_tree import DraftTree
from .trees.legal import check_on_tree, check_tree


def check_step(session: Session, step: Step) -> int:
    """The level that executes `step` (the target's for a Commit); raises ValueError with the rule it breaks."""
    pool = session.pool
    target = pool.target_level
    if session.tree is not None:
        check_on_tree(session, step)
    if isinstance(step, Draft):
        level = pool.level(step.model)
        if level == target:
            raise ValueError("the target does not draft; verify with nothing pending is plain decoding")
        if step.copy is not None and not pool.members[level].model_free:
            raise ValueError(f"only a model-free member copies what it is given, and {pool.names[level]} is a model")
        if session.room < 1:
            raise ValueError("no room to draft: pending tokens fill the budget or end the text (see seen.room)")
        return level
    if isinstance(step, Verify):
        level = pool.level(step.model)
        if level == target:
            return level
        if pool.members[level].model_free:
            raise ValueError(f"{pool.names[level]} is model-free and cannot verify")
        if pool.members[level].drafts_only:
            raise ValueError(
                f"{pool.names[level]} only drafts and cannot verify: it has a tokenizer of its own, or the "
                "recording holds no verdicts of it"
            )
        if session.judges and session.first_unjudged(level) == len(session.judges):
            raise ValueError("nothing left to judge: a model at or above this one endorses every pending token")
        return level
    if isinstance(step, Commit):
        if step.tokens > len(session.tokens):
            raise ValueError(f"commit beyond pending: num_pending is {len(session.tokens)}")
        return target
    if isinstance(step, DraftTree):
        return check_tree(session, step)
    raise ValueError("not a step: return a Draft, a DraftTree, a Verify or a Commit")
