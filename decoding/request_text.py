"""The text of one request: prompt, answer and pending tokens, what caches hold of it, and how it is cut back.

Where an answer ends is defined here alone. The **budget** bounds committed plus
pending tokens: drafts and the verifier's own token stop at it. Nothing follows an **end-of-sequence token** (a model
may have several): a pending one leaves no room, and the request is done when it commits. An **ending** (a stop string)
is looked for in what was just committed; nothing after it is kept. `place` is the world's own handle of a context, such
as a trie node; the text carries it along with the token that leads there.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from .pool import Pool
from .trees import Tree


class PendingTokens(NamedTuple):
    """Pending tokens, with the columns of `RequestText`."""

    tokens: list[int]
    places: list[int]
    drafters: list[int]
    judges: list[int]

    def since(self, start: int) -> "PendingTokens":
        """Those from index `start` on."""
        return PendingTokens(*[column[start:] for column in self])


NOTHING = PendingTokens([], [], [], [])


# Called with the answer so far and how many of its tokens there were before the latest commit; returns how many tokens
# the answer keeps if it ends inside the new ones (more than before, at most all), else None.
Ending = Callable[[list[int], int], int | None]
FinishReason = Literal["stop", "eos", "length"]


def ending_after(ending: Ending, before: Sequence[int]) -> Ending:
    """The ending of a path whose prompt holds part of its answer: `ending` of the whole answer."""
    known = list(before)

    def ends(emitted: list[int], num_before: int) -> int | None:
        kept = ending([*known, *emitted], len(known) + num_before)
        return None if kept is None else kept - len(known)

    return ends


class RequestText:
    """The tokens of one request and which members wrote and endorse them; a `Session` extends them by legal steps.

    Args:
        pool: the members.
        request_id: unique in the run.
        prompt: at least one token.
        budget: tokens the answer may have, >= 1.
        eos: the end-of-sequence tokens; may be none.
        ending: ends the answer early, for example at stop strings.

    Attributes:
        emitted: tokens committed after the prompt.
        place: of the committed context in the world's record.
        tokens, places, drafters, judges: the pending tokens; per token the place after it, the level that wrote it and
            the highest level that endorses it (its drafter until a verifier accepted it).
        tree: parents of the pending tokens; None where each follows the one before it.
        cached: per level, tokens of the context in that member's KV cache, none of a pending tree.
        num_judged: tokens of the text that the target judged when it last committed, without its own token.

    Raises:
        ValueError: an empty prompt, or a budget below 1.
    """

    __slots__ = (
        "_ended",
        "_ending",
        "_target",
        "budget",
        "cached",
        "drafters",
        "emitted",
        "eos",
        "judges",
        "num_judged",
        "num_prompt",
        "place",
        "places",
        "pool",
        "prompt",
        "request_id",
        "tokens",
        "tree",
    )

    def __init__(
        self,
        *,
        pool: Pool,
        request_id: str,
        prompt: tuple[int, ...],
        budget: int,
        eos: frozenset[int],
        ending: Ending | None,
    ) -> None:
        if not prompt:
            raise ValueError(f"request {request_id}: prompt must hold at least one token")
        if budget < 1:
            raise ValueError(f"request {request_id}: max_new_tokens must be >= 1, got {budget}")
        self.pool = pool
        self.request_id = request_id
        self.prompt = prompt
        self.num_prompt = len(prompt)
        self.budget = budget
        self.eos = eos
        self.emitted: list[int] = []
        self.place = 0
        self.tokens: list[int] = []
        self.places: list[int] = []
        self.drafters: list[int] = []
        self.judges: list[int] = []
        self.tree: Tree | None = None
        self.cached = [0] * len(pool.members)
        self.num_judged = 0
        self._target = pool.target_level
        self._ending = ending
        self._ended = False

    @property
    def context_tokens(self) -> int:
        """Prompt, committed and pending tokens."""
        return self.num_prompt + len(self.emitted) + len(self.tokens)

    @property
    def room(self) -> int:
        """Tokens that may still be appended: 0 after a pending end or tree, or when pending fills the budget."""
        tokens = self.tokens
        if tokens and (tokens[-1] in self.eos or self.tree is not None):
            return 0
        return self.budget - len(self.emitted) - len(tokens)

    @property
    def done(self) -> bool:
        """Whether the answer is complete: the budget is spent, or it ends in an end-of-sequence token or an ending."""
        emitted = self.emitted
        return len(emitted) >= self.budget or (bool(emitted) and emitted[-1] in self.eos) or self._ended

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer is complete: "stop" (its `ending`), else "eos", else "length"; None while it is not."""
        if self._ended:
            return "stop"
        if self.emitted and self.emitted[-1] in self.eos:
            return "eos"
        return "length" if len(self.emitted) >= self.budget else None

    def tail(self, start: int) -> list[int]:
        """Tokens of the context from index `start` >= 0 on; empty beyond its end. Linear in their number."""
        emitted = self.emitted
        index = start - self.num_prompt
        if index >= len(emitted):
            return self.tokens[index - len(emitted) :]
        if index >= 0:
            return emitted[index:] + self.tokens
        if start < 0:
            raise ValueError(f"start must be >= 0, got {start}")
        return [*self.prompt[start:], *emitted, *self.tokens]

    def until_end(self, tokens: list[int]) -> list[int]:
        """`tokens` up to and with the first that ends the text; all of them if none does."""
        eos = self.eos
        for index, token in enumerate(tokens):
            if token in eos:
                return tokens[: index + 1]
        return tokens

    def first_unjudged(self, level: int) -> int:
        """Index of the first pending token that no member at `level` or above endorses; the count if none."""
        if level == self._target:
            return 0
        for index, judge in enumerate(self.judges):
            if judge < level:
                return index
        return len(self.judges)

    def forget_caches(self) -> None:
        """The world dropped this request's KV memory: `feed` returns the whole context from now on."""
        self.cached[:] = [0] * len(self.cached)

    def hold_prefix(self, level: int, num_tokens: int) -> None:
        """The world found the first tokens of the committed text in a member's prefix cache: `feed` leaves them out."""
        self.cached[level] = num_tokens

    def drop_pending(self) -> None:
        """Drop the pending tokens; caches then hold none of them, nor the last committed token, which is read next."""
        self._forget_pending(self.num_prompt + len(self.emitted) - 1)

    def grow(self, tree: Tree, level: int) -> None:
        """The pending tokens are a tree by the member at `level`, whose cache holds the committed text."""
        self.tree = tree
        self.cached[level] = self.num_prompt + len(self.emitted)

    def follow(self, path: Sequence[int]) -> bool:
        """Keep a path of a pending tree, cached as far as its drafter was fed; returns whether its end had children."""
        tree = self.tree
        assert tree is not None
        limit = self.num_prompt + len(self.emitted)
        drafter = self.drafters[0]
        if self.cached[drafter] == limit:  # else its memory was dropped meanwhile
            self.cached[drafter] = limit + tree.held(path)
        self.tokens = [self.tokens[node] for node in path]
        self.places = [self.places[node] for node in path]
        self.drafters, self.judges = [drafter] * len(path), [drafter] * len(path)
        self.tree = None
        return tree.beyond(path) is not None

    def _roll_back(self, level: int, limit: int) -> None:
        """Cut all caches to `limit` tokens of the context; that of the verifier at `level` then holds exactly these."""
        cached = self.cached
        for member, held in enumerate(cached):
            if held > limit:
                cached[member] = limit
        cached[level] = limit

    def _keep_judged(self, first: int, num_accepted: int, level: int, escalated: tuple[int, ...]) -> None:
        """Cut the pending tokens after those that a verifier below the target accepted from index `first` on."""
        kept = first + num_accepted
        self._roll_back(level, self.num_prompt + len(self.emitted) + kept)
        left = [(first + index, self.judges[first + index]) for index in escalated]
        if kept < len(self.tokens):
            del self.tokens[kept:], self.places[kept:], self.drafters[kept:]
        # This verifier now endorses the accepted tokens; those it endorsed already may have a higher one.
        self.judges = [judge if judge > level else level for judge in self.judges[:kept]]
        for index, judge in left:  # an escalated token keeps its endorser
            self.judges[index] = judge

    def _append_own(self, level: int, token: int, place: int) -> int:
        """Append a verifier's own token to the pending ones; returns 1, or 0 where there is no room."""
        if self.room < 1:
            return 0
        self.tokens.append(token)
        self.places.append(place)
        self.drafters.append(level)
        self.judges.append(level)
        return 1

    def _commit_judged(self, num_accepted: int, own_token: int, own_place: int) -> tuple[int, int]:
        """Commit what the target accepted, and its own token where there is room; nothing is pending after it.

        Returns how many own tokens, and how many tokens in all, are new in the answer.
        """
        tokens, places = self.tokens, self.places
        del tokens[num_accepted:], places[num_accepted:]
        length = len(self.emitted) + num_accepted
        self._roll_back(self._target, self.num_prompt + length)
        reader = self.pool.feature_level
        if reader is not None:  # beyond the judged tokens and the one after them it read its own states
            self.cached[reader] = min(self.cached[reader], self.num_judged + 1)
        self.num_judged = self.num_prompt + length
        num_own = 0
        if length < self.budget and not (tokens and tokens[-1] in self.eos):
            tokens.append(own_token)
            places.append(own_place)
            num_own = 1
        self.tokens, self.places, self.drafters, self.judges = [], [], [], []
        num_written = len(tokens)
        num_emitted = self._commit(tokens, places)
        # Where an ending cuts, the last token it drops is the target's own.
        return num_own if num_emitted == num_written else 0, num_emitted

    def _stand(self, first: int, pending: PendingTokens, cached: list[int]) -> None:
        """Replace all pending tokens from index `first` on, and the numbers of cached tokens."""
        for name, column in zip(PendingTokens._fields, pending, strict=True):
            setattr(self, name, getattr(self, name)[:first] + column)
        self.cached[:] = cached

    def _take(self, count: int) -> int:
        """Commit the first `count` pending tokens; returns how many of them the answer keeps."""
        tokens, places = self.tokens[:count], self.places[:count]
        del self.tokens[:count], self.places[:count], self.drafters[:count], self.judges[:count]
        return self._commit(tokens, places)

    def _commit(self, tokens: list[int], places: list[int]) -> int:
        """Append to the answer, up to where an ending cuts it; returns how many tokens that was."""
        emitted = self.emitted
        num_before, count = len(emitted), len(tokens)
        emitted += tokens
        if self._ending is not None:
            kept = self._ending(emitted, num_before)
            if kept is not None:
                self._end(kept, num_before)
                count = kept - num_before
        self.place = places[count - 1]
        return count

    def _end(self, kept: int, num_before: int) -> None:
        if not num_before < kept <= len(self.emitted):
            most = len(self.emitted)
            raise ValueError(
                f"request {self.request_id}: ending must keep {num_before + 1} to {most} tokens, got {kept}"
            )
        self._ended = True
        del self.emitted[kept:]
        # Nothing is read next, so caches may hold the answer's last token as well.
        self._forget_pending(self.num_prompt + kept)

    def _forget_pending(self, limit: int) -> None:
        for pending in (self.tokens, self.places, self.drafters, self.judges):
            pending.clear()
        self.tree = None
        self.cached[:] = [min(held, limit) for held in self.cached]
