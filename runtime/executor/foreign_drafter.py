"""A drafter with a tokenizer of its own: it reads and writes text, of which whole target tokens count as drafted."""

from collections.abc import Sequence

from ...decoding.world import DraftItem
from ...traces.meta import Sampling
from ..state.state_manager import StateManager
from ..tokenizers.alignment import Alignment
from .sampler import SameToken
from .writing import Writing


class ForeignDrafter:
    """Turns drafts of one member into target tokens. Mutates its caches through the state manager only.

    It always drafts greedily: coupled noise is over the target's tokens, and rejection sampling takes its drafts for
    certain tokens (a point mass), which is lossless whatever they are.

    Args:
        level: of the member.
        manager: caches and requests.
        alignment: of the two tokenizers.
        eos: the member's end-of-sequence tokens; may be none.
        context_tokens: longest text the member can read, in its own tokens.

    Attributes:
        sampler: greedy.
    """

    def __init__(
        self, level: int, manager: StateManager, alignment: Alignment, *, eos: frozenset[int], context_tokens: int
    ) -> None:
        self.sampler = SameToken(Sampling(mode="greedy"))
        self._level = level
        self._manager = manager
        self._alignment = alignment
        self._eos = eos
        self._context_tokens = context_tokens

    def writings(self, items: Sequence[DraftItem]) -> list[Writing]:
        """What each request's draft has to read: its text in the member's tokens, after what the cache holds of it.

        `most` is below 1 where there is no text to read, or where it leaves the member no room to write.
        """
        return [self._writing(item) for item in items]

    def _writing(self, item: DraftItem) -> Writing:
        session, step = item
        state = self._manager.states[session.request_id]
        context = self._alignment.to_other(session.tail(0))
        fed = state.fed.get(self._level, [])
        # The last token is always read again: the draft starts from the logits after it.
        held = max(0, min(num_common(fed, context), len(context) - 1))
        self._manager.roll_back(state, self._level, held)
        room = self._context_tokens - len(context)
        return Writing(
            state=state,
            feed=context[held:],
            most=min(step.tokens, room) if context else 0,
            position=len(session.emitted) + len(session.tokens),
            eos=self._eos,
        )

    def drafted(self, item: DraftItem, writing: Writing) -> list[int]:
        """The target tokens that were drafted, as far as the request has room for them."""
        session, step = item
        tokens = self._alignment.drafted(session.tail(0), writing.tokens)[: min(step.tokens, session.room)]
        return session.until_end(tokens)


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens of the longest prefix that both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
