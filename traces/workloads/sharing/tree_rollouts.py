"""`tree-rollouts`: answers to one prompt that branch at several depths."""

from dataclasses import dataclass
from itertools import count
from random import Random

from ....notations.branches import Branch, num_paths_of
from ..arrival import Arrival
from ..generated.lengths import Length
from ..graphs import Node, SessionGraph, Waits
from ..sessions import Turn, runs_of
from ..texts import Text
from .session_kind import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRollouts:
    """Rollouts of one prompt for reinforcement learning on groups of answers, grown as a tree.

    It imitates samplers such as TreePO (arXiv:2508.17445): with `branch=4@0/2@32/2@64` four answers begin at the
    prompt, and each path splits in two after 32 tokens of its answer, and again after 64. A path that goes on is one
    request; each new one is another, which arrives when its parent has written so many tokens, and whose prompt is its
    parent's text up to there. So 16 trajectories cost 4 x 32 + 8 x 32 + 16 x rest tokens, and for the tokens of
    independent answers one gets more trajectories that differ; `branch=16@0` are independent ones.
    Where samplers branch by a measure of doubt, the depths here are given; all paths of a prompt end at one length.

    Attributes:
        branches: where paths part.
        prompt: tokens of prompts.
        output: tokens of each whole trajectory, above the last depth.
    """

    branches: tuple[Branch, ...]
    prompt: Length
    output: Length

    @property
    def num_requests(self) -> int | None:
        """See `SessionKind`."""
        return num_paths_of(self.branches)

    def begin(self, place: Place, rng: Random) -> Arrival:
        """See `SessionKind`."""
        prompt_tokens, output_tokens = self.prompt.draw(rng), self.output.draw(rng)
        units = (prompt_tokens + output_tokens) // place.unit_tokens
        place.check_units(units * num_paths_of(self.branches))  # each path holds its text whole
        ids = count(place.first_id)
        prompt = Text(unit_tokens=place.unit_tokens).grown(prompt_tokens, ids)
        paths = [_Path(prompt, 0, prompt.grown(output_tokens, ids))]
        nodes = [_node(str(place.number), paths[0], ())]
        for num_paths, depth in self.branches:
            for number, path in enumerate(paths[:]):
                for _ in range(num_paths - 1):
                    head = path.whole.head(prompt_tokens + depth)
                    child = _Path(head, depth, head.grown(output_tokens - depth, ids))
                    nodes.append(_node(f"{place.number}.{len(nodes)}", child, (Waits(number, depth - path.depth),)))
                    paths.append(child)
        return SessionGraph(nodes=tuple(nodes), tag=place.tag, slo=place.slo).begin(place.arrives_ps)


@dataclass(frozen=True, slots=True)
class _Path:
    """What one request reads, the tokens of the answer in that, and all that it has in the end."""

    prompt: Text
    depth: int
    whole: Text


def _node(name: str, path: _Path, waits: tuple[Waits, ...]) -> Node:
    read, whole = path.prompt, path.whole
    turn = Turn(
        request_id=name,
        wait_ps=0,
        prompt_tokens=read.num_tokens,
        output_tokens=whole.num_tokens - read.num_tokens,
        new_blocks=runs_of(read.ids),
    )
    return Node(turn=turn, waits=waits, answer=whole.ids[len(read.ids) :])
