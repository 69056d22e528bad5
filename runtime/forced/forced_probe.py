"""A forced world whose operations are watched, for profiles."""

from collections.abc import Mapping, Sequence

from ...decoding.session import Session
from ...traces.tries.trie import TrieRequest
from ..pools.loaded_members import loaded_pool
from ..profiling.probe import ProbedWorld
from ..prompts import Prompt
from .forced_world import ForcedWorld


class ForcedProbedWorld(ProbedWorld, ForcedWorld):
    """Notes the operations of recorded requests; `follow` and `take` before anything is watched."""

    def take(self, requests: Mapping[str, TrieRequest], *, eos: frozenset[int]) -> None:
        """Let recorded requests stand for prompts.

        Args:
            requests: by the id of the prompt.
            eos: tokens that end an answer.
        """
        self._requests = requests
        self._eos = eos

    def sessions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Session]:
        """The recorded requests that stand for prompts, whose texts play no part."""
        members = loaded_pool(self.pool)
        taken = [(prompt.request_id, self._requests[prompt.request_id]) for prompt in prompts]
        return [
            Session(
                pool=members,
                request_id=name,
                tag=request.tag,
                prompt=request.prompt,
                budget=min(max_new_tokens, request.max_new_tokens),
                eos=self._eos,
            )
            for name, request in taken
        ]
