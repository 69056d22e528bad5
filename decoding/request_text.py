"""The text of one request: prompt, answer and pending tokens, what caches hold of it, and how it is cut back.

Defined here alone are the copies of prompt lookup, and where an answer ends. The **budget** bounds committed plus
pending tokens: drafts and the verifier's own token stop at it. Nothing follows an **end-of-sequence token** (a model
may have several): a pending one leaves no room, and the request is done when it commits. An **ending** (a stop string)
is looked for in what was just committed; nothing after it stays. `place` is the world's own handle of a context, such
as a trie node; the text carries it along with the token that leads there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from .pool import Pool
from .steps import Draft
from .trees import Tree

Occurrence = Literal["first", "last", "longest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRule:
    """How a lookup finds what to copy."""

    max_match: int  # longest suffix to look for, >= 1; shorter ones are tried next
    min_match: int = 1  # shortest suffix to look for, 1 to `max_match`
    # which earlier occurrence of the longest suffix that has one is copied from: the `first` in the context, the
    # `last`, or the latest after which there is the `longest` stretch to copy
    occurrence: Occurrence = "last"

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match:
            raise ValueError(f"min_match must be in [1, max_match {self.max_match}], got {self.min_match}")
        if self.occurrence not in get_args(Occurrence):
            raise ValueError(f"occurrence must be one of {', '.join(get_args(Occurrence))}, got {self.occurrence!r}")


def prompt_lookup(context: Sequence[int], *, num_tokens: int, rule: LookupRule) -> list[int]:
    """Up to `num_tokens` >= 1 tokens that followed an earlier occurrence of the context's longest repeated suffix.

    After Saxena 2023, "Prompt Lookup Decoding"; docs/pools-and-recordings.md lists what engines take. The context is
    prompt and everything decoded or pending, oldest first. None come back when no suffix of `min_match` tokens or more
    occurred before. An occurrence may overlap the suffix; what follows it ends where the context does.
    """
    back = list(context)
    back.reverse()
    most, best, end, place = min(rule.max_match, len(back) - 1), rule.min_match - 1, 0, 0
    far_enough = {"last": 1, "longest": num_tokens, "first": len(back)}[rule.occurrence]  # from the end of the context
    for _ in range(back.count(back[0]) - 1 if most > best else 0):  # where the suffix may end earlier, the latest first
        place = back.index(back[0], place + 1)
        match = 1
        while match < most and place + match < len(back) and back[match] == back[place + match]:
            match += 1
        if match > best:
            best, end = match, place
        elif match == best and 0 < end < far_enough:
            end = place
        if best == most and end >= far_enough:
            break
    return back[max(0, end - num_tokens) : end][::-1]


def looked_up(context: Sequence[int], *, step: Draft, room: int, rule: LookupRule) -> list[int]:
    """What a model-free member drafts: what the step tells it to copy, or what it finds; no more than there is room."""
    if step.copy is not None:
        return list(step.copy[:room])
    return prompt_lookup(context, num_tokens=min(step.tokens, room), rule=rule)


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


# Called with the answer so far and how many of its tokens stood before the latest commit; returns how many tokens the
# answer keeps if it ends inside the new ones (more than before, at most all), else None.
Ending = Callable[[list[int], int], int | None]
FinishReason = Literal["stop", "eos", "length"]


def ending_after(ending: Ending, before: Sequence[int]) -> Ending:
    """The ending of a path whose prompt holds part of its answer: what ends the whole answer ends it."""
    known = list(before)

    def ends(emitted: list[int], num_before: int) -> int | None:
        kept = ending([*known, *emitted], len(known) + num_before)
        return None if kept is None else kept - len(known)

    return ends


class RequestText:
    """The tokens of one request and who stands for them; a `Session` lets them grow by legal steps.

    Args:
        pool: the members.
        request_id: unique in the run.
        prompt: at least one token.
        budget: tokens the answer may have, >= 1.
        eos: the end-of-sequence tokens; may be none.
        ending: ends the answer early, at stop strings for one.

    Attributes:
        emitted: tokens committed after the prompt.
        place: where the committed context stands in the world's record.
        tokens, places, drafters, judges: the pending tokens; per token the place after it, the level that wrote it and
            the highest level that endorses it (its drafter until a verifier accepted it).
        tree: how the pending tokens hang together; None where each follows the one before it.
        cached: per level, how many tokens of the context that member's KV cache holds, none of a pending tree.
        num_judged: tokens of the text that the target judged when it committed last; not its own one.

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
        """Tokens of the context from index `start` >= 0 on; empty beyond its end. As slow as these are many."""
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
        """The world dropped this request's KV memory: `feed` asks for the whole context from now on."""
        self.cached[:] = [0] * len(self.cached)

    def hold_prefix(self, level: int, num_tokens: int) -> None:
        """The world found the first tokens of the committed text in a member's prefix cache: `feed` leaves them out."""
        self.cached[level] = num_tokens

    def drop_pending(self) -> None:
        """Forget what was drafted and not committed; caches hold none of it, and not the token that is read next."""
        self._forget_pending(self.num_prompt + len(self.emitted) - 1)

    def grow(self, tree: Tree, level: int) -> None:
        """The pending tokens are a tree by the member at `level`; of the text its cache holds what came before them."""
        self.tree = tree
        self.cached[level] = self.num_prompt + len(self.emitted)

    def follow(self, path: Sequence[int]) -> bool:
        """Let one path of a pending tree stay, as far as its drafter was fed; returns whether nodes beyond it went."""
        tree = self.tree
        assert tree is not None
        limit = self.num_prompt + len(self.emitted)
        drafter = self.drafters[0]
        if self.cached[drafter] == limit:  # else its memory was taken in the meantime
            self.cached[drafter] = limit + tree.held(path)
        self.tokens = [self.tokens[node] for node in path]
        self.places = [self.places[node] for node in path]
        self.drafters, self.judges = [drafter] * len(path), [drafter] * len(path)
        self.tree = None
        return tree.beyond(path) is not None

    def _roll_back(self, level: int, limit: int) -> None:
        """Let no cache hold more than `limit` tokens of the context; that of the verifier at `level` holds them all."""
        cached = self.cached
        for member, held in enumerate(cached):
            if held > limit:
                cached[member] = limit
        cached[level] = limit

    def _keep_judged(self, first: int, num_accepted: int, level: int, escalated: tuple[int, ...]) -> None:
        """Let the pending tokens end with those that a verifier below the target accepted from index `first` on."""
        kept = first + num_accepted
        self._roll_back(level, self.num_prompt + len(self.emitted) + kept)
        left = [(first + index, self.judges[first + index]) for index in escalated]
        if kept < len(self.tokens):
            del self.tokens[kept:], self.places[kept:], self.drafters[kept:]
        # This verifier now endorses the accepted tokens; those it endorsed already may have a higher one.
        self.judges = [judge if judge > level else level for judge in self.judges[:kept]]
        for index, judge in left:  # whoever endorsed an escalated token still does, nobody else
            self.judges[index] = judge

    def _append_own(self, level: int, token: int, place: int) -> int:
        """Let a verifier's own token follow the pending ones; returns 1, or 0 where it has no room."""
        if self.room < 1:
            return 0
        self.tokens.append(token)
        self.places.append(place)
        self.drafters.append(level)
        self.judges.append(level)
        return 1

    def _commit_judged(self, num_accepted: int, own_token: int, own_place: int) -> tuple[int, int]:
        """Move what the target accepted to the answer, and its own token where that has room; nothing stays pending.

        Returns own tokens and all tokens that are new in the answer.
        """
        tokens, places = self.tokens, self.places
        del tokens[num_accepted:], places[num_accepted:]
        length = len(self.emitted) + num_accepted
        self._roll_back(self._target, self.num_prompt + length)
        reader = self.pool.feature_level
        if reader is not None:  # beyond the judged tokens, and the one after them, it read by its own states
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
        """Let `pending` stand from index `first` on, in place of all that is there, and caches hold so much."""
        for name, column in zip(PendingTokens._fields, pending, strict=True):
            setattr(self, name, getattr(self, name)[:first] + column)
        self.cached[:] = cached

    def _take(self, count: int) -> int:
        """Move the first `count` pending tokens to the answer; returns how many of them it kept."""
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
        # Nothing is read next: of what the target judged, caches hold the last token as well.
        self._forget_pending(self.num_prompt + kept)

    def _forget_pending(self, limit: int) -> None:
        for pending in (self.tokens, self.places, self.drafters, self.judges):
            pending.clear()
        self.tree = None
        self.cached[:] = [min(held, limit) for held in self.cached]
