"""The decoding state of one request: what is committed, what is pending, what each model's cache holds.

The session enforces the legal steps and turns what a world did into the next state; both worlds share it. Where a
round ends is defined here, once:

- The **budget** bounds committed plus pending tokens. Drafts and the verifier's own token stop at it.
- Nothing follows an **end-of-sequence token**, of which a model may have several: a pending one leaves no room, and the
  request is done when it commits.
- An **ending** (a stop string) is looked for in what was just committed; nothing after it stays.

The **prefill** is the target's forward over the prompt that writes the first token. Who runs it is the loop, not the
policy; the session says when it is due.

`place` is the world's own handle of a context (a trie node in the simulator, anything in the runtime); the session
only carries it along with the token that leads there.
"""

from collections.abc import Callable
from typing import Literal

from .contract import Commit, Draft, Outcome, Step, Verify
from .pool import Pool
from .verdicts import Drafted, Judged

# Called with the answer so far and how many of its tokens stood before the latest commit; returns how many tokens the
# answer keeps if it ends inside the new ones (more than before, at most all), else None.
Ending = Callable[[list[int], int], int | None]
FinishReason = Literal["stop", "eos", "length"]


class Session:
    """One request while it is decoded. Mutated by `drafted`, `judged`, `prefilled` and `committed`.

    Its world mutates `place` as well, and `cached` through `forget_caches`.

    Args:
        pool: the members.
        request_id: unique in the run.
        tag: task or domain.
        prompt: at least one token.
        budget: tokens the answer may have, >= 1.
        eos: the end-of-sequence tokens; may be none.
        ending: ends the answer early, at stop strings for one.
        prefill_before: `[L]` by level, whether a draft by that member comes after the target's prefill. All True, the
            default, is what engines do: the first token is there before anyone is asked. All False: the first
            verification reads the prompt as well. Mixed: as the member that drafts first says.

    Attributes:
        emitted: tokens committed behind the prompt.
        place: where the committed context stands in the world's record.
        tokens, places, drafters, judges: the pending tokens; per token the place behind it, the level that wrote it
            and the highest level that stands behind it (its drafter until a verifier accepted it).
        cached: per level, how many tokens of the context that member's KV cache holds.
        last: what came of the previous step, None before the first; the prefill is no step of a policy.

    Raises:
        ValueError: an empty prompt, a budget below 1, or `prefill_before` of another length than the pool.
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
        "last",
        "num_prompt",
        "place",
        "places",
        "pool",
        "prefill_before",
        "prompt",
        "request_id",
        "tag",
        "tokens",
    )

    def __init__(
        self,
        *,
        pool: Pool,
        request_id: str,
        tag: str,
        prompt: tuple[int, ...],
        budget: int,
        eos: frozenset[int],
        ending: Ending | None = None,
        prefill_before: tuple[bool, ...] | None = None,
    ) -> None:
        if not prompt:
            raise ValueError(f"request {request_id}: prompt must hold at least one token")
        if budget < 1:
            raise ValueError(f"request {request_id}: max_new_tokens must be >= 1, got {budget}")
        levels = len(pool.members)
        if prefill_before is not None and len(prefill_before) != levels:
            raise ValueError(f"request {request_id}: prefill_before must have {levels} values, got {prefill_before}")
        self.pool = pool
        self.request_id = request_id
        self.tag = tag
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
        self.cached = [0] * levels
        self.prefill_before = (True,) * levels if prefill_before is None else prefill_before
        self.last: Outcome | None = None
        self._target = pool.target_level
        self._ending = ending
        self._ended = False

    @property
    def context_tokens(self) -> int:
        """Prompt, committed and pending tokens."""
        return self.num_prompt + len(self.emitted) + len(self.tokens)

    @property
    def room(self) -> int:
        """Tokens that may still be appended: 0 behind a pending end of sequence or when pending fills the budget."""
        tokens = self.tokens
        if tokens and tokens[-1] in self.eos:
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

    @property
    def prefills_first(self) -> bool:
        """Whether the prefill is due whatever the policy would do: nothing is written yet, and every draft waits."""
        return not self.emitted and not self.tokens and all(self.prefill_before)

    def prefills_before(self, step: Step, level: int) -> bool:
        """Whether the prefill is due before `step` by `level`: a draft on the bare prompt by a member that waits."""
        return not self.emitted and not self.tokens and step.__class__ is Draft and self.prefill_before[level]

    def tail(self, start: int) -> list[int]:
        """Tokens of the context (prompt, committed, pending) from index `start` >= 0 on; empty behind its end.

        As slow as what it returns is long, not as the context: a world asks for what is new in every step.
        """
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
        """Index of the first pending token that no member at `level` or above stands behind; the count if none."""
        if level == self._target:
            return 0
        for index, judge in enumerate(self.judges):
            if judge < level:
                return index
        return len(self.judges)

    def check(self, step: Step) -> int:
        """The level that executes `step` (the target's for a Commit); raises ValueError with the rule it breaks."""
        kind = step.__class__
        if kind is Draft:
            level = self.pool.level(step.model)  # type: ignore[union-attr]
            if level == self._target:
                raise ValueError("the target does not draft; verify with nothing pending is plain decoding")
            if self.room < 1:
                raise ValueError("no room to draft: pending tokens fill the budget or end the text (see seen.room)")
            return level
        if kind is Verify:
            level = self.pool.level(step.model)  # type: ignore[union-attr]
            if level == self._target:
                return level
            if self.pool.members[level].model_free:
                raise ValueError(f"{self.pool.names[level]} is model-free and cannot verify")
            if self.pool.members[level].drafts_only:
                raise ValueError(
                    f"{self.pool.names[level]} only drafts and cannot verify: it has a tokenizer of its own, or the "
                    "recording holds no verdicts of it"
                )
            if self.judges and self.first_unjudged(level) == len(self.judges):
                raise ValueError(
                    "nothing left to judge: a model at or above this one stands behind every pending token"
                )
            return level
        if kind is Commit:
            if step.tokens > len(self.tokens):  # type: ignore[union-attr]
                raise ValueError(f"commit beyond pending: num_pending is {len(self.tokens)}")
            return self._target
        raise ValueError("not a step: return a Draft, a Verify or a Commit")

    def feed(self, level: int, *, verify: bool) -> tuple[int, int]:
        """(new, held): tokens the member's next forward is fed, catch-up included, and tokens its cache keeps.

        A verifier also needs the position before the first token it judges, so it may drop some of what it holds.
        """
        committed = self.num_prompt + len(self.emitted)
        held = self.cached[level]
        if verify:
            before = committed - 1 if level == self._target else committed + self.first_unjudged(level) - 1
            if held > before:
                held = before
        return committed + len(self.tokens) - held, held

    def forget_caches(self) -> None:
        """The world dropped this request's KV memory: `feed` asks for the whole context from now on."""
        self.cached[:] = [0] * len(self.cached)

    def drafted(self, step: Draft, level: int, drafted: Drafted, *, duration_s: float, num_rows: int) -> Outcome:
        """Append what was drafted."""
        count = len(drafted.tokens)
        if count and not self.pool.members[level].model_free:
            self.cached[level] = self.context_tokens + count - 1
        self.tokens += drafted.tokens
        self.places += drafted.places
        self.drafters += [level] * count
        self.judges += [level] * count
        self.last = outcome = Outcome(self.request_id, step, count, 0, 0, 0, 0, None, (), duration_s, num_rows, False)  # noqa: FBT003 - a keyword costs as much as the rest
        return outcome

    def judged(self, step: Verify, level: int, judged: Judged, *, duration_s: float, num_rows: int) -> Outcome:
        """Keep the accepted prefix, drop the rest, add the verifier's own token; by the target, commit."""
        by_target = level == self._target
        first = 0 if by_target else self.first_unjudged(level)
        num_judged = len(self.tokens) - first
        kept = first + judged.num_accepted
        refused = judged.num_accepted < num_judged
        self._truncate(kept, level, first, judged.escalated)
        num_own = 0
        if self.room > 0:
            num_own = 1
            self.tokens.append(judged.own_token)
            self.places.append(judged.own_place)
            self.drafters.append(level)
            self.judges.append(level)
        num_emitted = 0
        if by_target:
            num_written = len(self.tokens)
            num_emitted = self._take(num_written)
            if num_emitted < num_written:  # an ending; the last token it drops is the verifier's own
                num_own = 0
        self.last = outcome = Outcome(
            self.request_id,
            step,
            0,
            num_judged,
            judged.num_accepted,
            num_own,
            num_emitted,
            judged.num_accepted if refused else None,
            judged.tvd,
            duration_s,
            num_rows,
            num_emitted > 0 and self.done,
            len(judged.escalated),
        )
        return outcome

    def prefilled(self, step: Verify, judged: Judged, *, duration_s: float, num_rows: int) -> Outcome:
        """Commit the first token, which the target wrote with nothing pending; no policy's step, so `last` stays."""
        outcome = self.judged(step, self._target, judged, duration_s=duration_s, num_rows=num_rows)
        self.last = None
        return outcome

    def committed(self, step: Commit) -> Outcome:
        """Take pending tokens as they are."""
        num_emitted = self._take(step.tokens)
        self.last = outcome = Outcome(self.request_id, step, 0, 0, 0, 0, num_emitted, None, (), 0.0, 1, self.done)
        return outcome

    def _truncate(self, kept: int, level: int, first: int, escalated: tuple[int, ...]) -> None:
        """Roll every cache back to the kept context; the verifier's own now holds exactly that."""
        left = [(first + index, self.judges[first + index]) for index in escalated]
        limit = self.num_prompt + len(self.emitted) + kept
        cached = self.cached
        for member, held in enumerate(cached):
            if held > limit:
                cached[member] = limit
        cached[level] = limit
        if kept < len(self.tokens):
            del self.tokens[kept:], self.places[kept:], self.drafters[kept:]
        # Accepted tokens now have this verifier behind them; those it stood behind already may have a higher one.
        if level == self._target:
            self.judges = [level] * kept
        else:
            self.judges = [judge if judge > level else level for judge in self.judges[:kept]]
        for index, judge in left:  # whoever stood behind an escalated token still does, nobody else
            self.judges[index] = judge

    def _take(self, count: int) -> int:
        """Move the first `count` pending tokens to the answer; returns how many of them it kept."""
        emitted = self.emitted
        emitted += self.tokens[:count]
        if self._ending is not None:
            num_before = len(emitted) - count
            kept = self._ending(emitted, num_before)
            if kept is not None:
                return self._end(kept, num_before)
        self.place = self.places[count - 1]
        del self.tokens[:count], self.places[:count], self.drafters[:count], self.judges[:count]
        return count

    def _end(self, kept: int, num_before: int) -> int:
        """Cut the answer to `kept` tokens and drop all that is pending; returns how many of the new tokens stay."""
        if not num_before < kept <= len(self.emitted):
            most = len(self.emitted)
            raise ValueError(
                f"request {self.request_id}: ending must keep {num_before + 1} to {most} tokens, got {kept}"
            )
        self._ended = True
        self.place = self.places[kept - num_before - 1]
        del self.emitted[kept:]
        for pending in (self.tokens, self.places, self.drafters, self.judges):
            pending.clear()
        limit = self.num_prompt + kept
        self.cached[:] = [min(held, limit) for held in self.cached]
        return kept - num_before
