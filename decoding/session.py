"""The decoding state of one request: what is committed, what is pending, what each model's cache holds.

The session enforces the legal steps and turns a world's results into the next state; both worlds share it.
`RequestText` defines where an answer ends. The **prefill** is the target's forward over the prompt that writes the
first token: the loop runs it, the session decides when it is due.
"""

from collections.abc import Sequence

from .overlap import levels_of, outcomes_of, settle, spans_of
from .pool import Pool
from .request_text import NOTHING, Ending, RequestText, ending_after
from .results import Drafted, Judged, Parted, PartRun, made
from .steps import Commit, Draft, Outcome, Overlap, Step, Verify
from .trees import DraftTree

READER = "which reads the target's states"


class Session(RequestText):
    """One request while it is decoded. Mutated by results of steps: `drafted`, `judged`, `overlapped` and the like.

    Its world mutates `place` as well, and `cached` through `forget_caches` and `hold_prefix`. Arguments, attributes and
    errors are those of `RequestText`, and:

    Args:
        tag: task or domain.
        prefill_before: `[L]` by level, whether a draft by that member comes after the target's prefill. All True, the
            default, is what engines do: the first token is written before any draft. All False: the first verification
            reads the prompt as well. Mixed: by the member that drafts first.

    Attributes:
        last: outcome of the previous step; None before the first (the prefill is no step of a policy), and after the
            request was preempted (`Loop.withdraw`).
        policy_name: of the policy that decides, which its loop sets, for errors.

    Raises:
        ValueError: `prefill_before` of another length than the pool, or a member that reads the target's states and may
            draft before there are any.
    """

    __slots__ = ("last", "policy_name", "prefill_before", "tag")

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
        super().__init__(pool=pool, request_id=request_id, prompt=prompt, budget=budget, eos=eos, ending=ending)
        levels = len(pool.members)
        if prefill_before is not None and len(prefill_before) != levels:
            raise ValueError(f"request {request_id}: prefill_before must have {levels} values, got {prefill_before}")
        self.tag = tag
        self.prefill_before = (True,) * levels if prefill_before is None else prefill_before
        if pool.feature_level is not None and not all(self.prefill_before):
            reader = pool.names[pool.feature_level]
            raise ValueError(f"{reader} reads the target's states, and no member drafts before the prefill beside it")
        self.last: Outcome | None = None
        self.policy_name = ""

    @property
    def prefills_first(self) -> bool:
        """Whether the prefill is due before any step of the policy: nothing is written yet, and every draft waits."""
        return not self.emitted and not self.tokens and all(self.prefill_before)

    def prefills_before(self, step: Step, level: int) -> bool:
        """Whether the prefill is due before `step` by `level`: a draft on the bare prompt by a member that waits."""
        if self.emitted or self.tokens:
            return False
        if isinstance(step, Overlap):
            return step.drafts and self.prefill_before[levels_of(self, step)[-1]]
        return isinstance(step, Draft | DraftTree) and self.prefill_before[level]

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

    def at_once(self, level: int, new: int, held: int) -> int:
        """Of `feed`: tokens that the member's first forward is fed; the others follow one a forward.

        All, but for a member that reads the target's states: beyond the token after the judged ones it needs a forward
        for each.
        """
        if level != self.pool.feature_level:
            return new
        return min(new, max(1, self.num_judged + 1 - held))

    def drafted(
        self, step: Draft | DraftTree, level: int, drafted: Drafted, *, duration_s: float, num_rows: int
    ) -> Outcome:
        """Append what was drafted."""
        tokens, places, _, tree = drafted
        count = len(tokens)
        by_level = [level] * count
        self.tokens += tokens
        self.places += places
        self.drafters += by_level
        self.judges += by_level
        if tree is not None:
            self.grow(tree, level)
        elif count and not self.pool.members[level].model_free:
            self.cached[level] = self.num_prompt + len(self.emitted) + len(self.tokens) - 1
        self.last = outcome = made(
            Outcome, (self.request_id, step, count, 0, 0, 0, 0, None, (), duration_s, num_rows, False, 0)
        )
        return outcome

    def judged(self, step: Verify, level: int, judged: Judged, *, duration_s: float, num_rows: int) -> Outcome:
        """Keep the accepted prefix, drop the rest, add the verifier's own token; by the target, commit."""
        num_accepted, own_token, own_place, tvd, _, escalated, path = judged
        if path is not None:
            return self._tree_judged(step, level, judged, path, duration_s=duration_s, num_rows=num_rows)
        if level == self._target:
            num_judged = len(self.tokens)
            num_own, num_emitted = self._commit_judged(num_accepted, own_token, own_place)
            done = num_emitted > 0 and self.done
        else:
            first = self.first_unjudged(level)
            num_judged = len(self.tokens) - first
            self._keep_judged(first, num_accepted, level, escalated)
            num_own, num_emitted, done = self._append_own(level, own_token, own_place), 0, False
        refused_at = num_accepted if num_accepted < num_judged else None
        # fmt: off
        self.last = outcome = made(Outcome, (
            self.request_id, step, 0, num_judged, num_accepted, num_own, num_emitted, refused_at, tvd,
            duration_s, num_rows, done, len(escalated),
        ))
        # fmt: on
        return outcome

    def _tree_judged(
        self, step: Verify, level: int, judged: Judged, path: tuple[int, ...], *, duration_s: float, num_rows: int
    ) -> Outcome:
        """Keep one path of a tree, then judge it as a draft of which all was accepted."""
        num_nodes, refused = len(self.tokens), self.follow(path)
        outcome = self.judged(step, level, judged._replace(path=None), duration_s=duration_s, num_rows=num_rows)
        refused_at = len(path) if refused else None
        self.last = outcome = outcome._replace(num_judged=num_nodes, refused_at=refused_at)
        return outcome

    def overlapped(self, step: Overlap, rows: Parted, parts: Sequence[PartRun], *, num_rows: int) -> list[Outcome]:
        """Apply the results of all parts; returns the outcome of each, the last of which becomes `last`."""
        levels = levels_of(self, step)
        spans = spans_of(self, step, levels)
        settled = settle(self, levels, spans, rows)
        own, num_emitted, done, top = list(settled.own), 0, False, rows[0]
        if levels[0] == self._target:
            assert isinstance(top, Judged)
            after = settled.pending.since(top.num_accepted + own[0])
            own[0], num_emitted = self._commit_judged(top.num_accepted, top.own_token, top.own_place)
            done = self.done
            self._stand(0, NOTHING if done else after, self.cached if done else settled.cached)
        else:
            self._stand(spans[0][0], settled.pending, settled.cached)
        outcomes = outcomes_of(self.request_id, step, spans, rows, own, parts, num_rows=num_rows)
        outcomes[0] = outcomes[0]._replace(num_emitted=num_emitted)
        self.last = outcomes[-1] = outcomes[-1]._replace(done=done)
        return outcomes

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

    def branch(self, request_id: str, shared: Sequence[int]) -> "Session":
        """A new request whose prompt is this one's with `shared` after it; its budget is smaller by these tokens.

        Raises ValueError if no budget is left, or for a member that reads the target's states.
        """
        if self.pool.feature_level is not None:
            raise ValueError(f"answers do not branch beside {self.pool.names[self.pool.feature_level]}, {READER}")
        ending = self._ending
        return Session(
            pool=self.pool,
            request_id=request_id,
            tag=self.tag,
            prompt=(*self.prompt, *shared),
            budget=self.budget - len(shared),
            eos=self.eos,
            ending=None if ending is None else ending_after(ending, shared),
            prefill_before=self.prefill_before,
        )
