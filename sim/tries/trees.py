"""What a recording answers to token trees: the drafter's recorded branches, and a walk by the verifier's own tokens.

A tree that needs a branch beyond the record is an error, whatever the run says of fallbacks: there is no telling what
it would be.
"""

from ...decoding.results import Drafted, Judged
from ...decoding.session import Session
from ...decoding.trees.draft_tree import DraftTree
from ...decoding.trees.growth import ROOT, Branches, Growth
from ..unrecorded_error import UnrecordedTreeError
from .request_tables import RequestTables


def drafted_tree(tables: RequestTables, session: Session, step: DraftTree, level: int) -> Drafted:
    """Grow a tree from the committed context.

    Raises:
        UnrecordedTreeError: it needs branches that are not recorded.
    """
    growth = Growth(step.shape, room=session.room, eos=session.eos)
    branches = tables.branches[level]

    def answer(node: int, width: int) -> Branches:
        found = branches.get(session.place if node == ROOT else growth.places[node])
        if found is None or found[0] < width:
            depth = len(growth.path_to(node))
            raise UnrecordedTreeError(session.request_id, len(session.emitted) + depth, "tree")
        tokens, log_probs, places = found[1]
        return Branches(tokens[:width], log_probs[:width], places[:width])

    while growth.asks:
        growth.take([answer(node, width) for node, width in growth.asks])
    kept = growth.kept()
    tokens, places = ([column[node] for node in kept] for column in (growth.tokens, growth.places))
    return Drafted(tokens, places, 0, growth.tree(kept))


def judged_tree(tables: RequestTables, session: Session, level: int) -> Judged:
    """Walk down the pending tree, as long as the verifier's own token is a node of it."""
    tree, node = session.tree, session.place
    assert tree is not None
    next_token, distances = tables.next_token[level], tables.tvd[level][session.drafters[0]]
    path: list[int] = []
    tvd: list[float] = []
    while True:
        if tree.beyond(path) is not None:
            tvd.append(distances[node])
        own_token = next_token[node]
        child = tree.child(path, own_token, session.tokens)
        if child is None:
            return Judged(len(path), own_token, tables.child[level][node], tuple(tvd), path=tuple(path))
        path.append(child)
        node = session.places[child]
