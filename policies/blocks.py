"""Parts of policies: drafted blocks, default members, acceptance rates, windows, turns of a batch.

Also what a drafter must read before it can draft (`TextToRead`).
"""

from abc import ABC
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..base.errors import check_least, check_within
from ..decoding.pool import Pool
from ..decoding.seen import Observation
from ..decoding.steps import ONE_STEP, Draft, Outcome, Step, Verify
from .about import About, Floats, say_runs


class RunningRatio:
    """One sum over another, recent rounds with more weight.

    Args:
        memory: rounds that it reaches back, >= 1, else ValueError.
        above, below: the sums before anything is noted; at 0 there is no rate until then.

    Attributes:
        num_rounds: noted so far.
    """

    __slots__ = ("_above", "_below", "_kept", "num_rounds")

    def __init__(self, *, memory: int, above: float = 0.0, below: float = 0.0) -> None:
        check_least("memory", memory, 1)
        self._kept = 1.0 - 1.0 / memory
        self._above, self._below = above, below
        self.num_rounds = 0

    def note(self, above: float, below: float) -> None:
        """Add one round to both sums."""
        self._above = self._kept * self._above + above
        self._below = self._kept * self._below + below
        self.num_rounds += 1

    @property
    def rate(self) -> float:
        """The ratio now."""
        return self._above / self._below


def acceptance_rate(*, memory: int) -> RunningRatio:
    """Tokens kept over tokens judged up to and including the first rejected one, 0 to 1, as a `RunningRatio`.

    It starts at one half, with the weight of two tokens.
    """
    return RunningRatio(memory=memory, above=1.0, below=2.0)


def judged(outcome: Outcome) -> tuple[int, int]:
    """What a verification adds to both sums of such a rate."""
    return outcome.num_accepted, outcome.num_accepted + (outcome.refused_at is not None)


class DepthAcceptance:
    """How much less often a drafted token at each depth is kept than its request keeps tokens at any depth.

    Drafts that reach a depth are at an easy place: each request is compared with its own acceptance, and a depth at
    which more is kept counts as any. Recent rounds have more weight. Mutated by `note`.

    Args:
        most: deepest token, >= 1.
        memory: rounds that it reaches back, >= 1.
    """

    def __init__(self, most: int, *, memory: int) -> None:
        check_least("memory", memory, 1)
        self._remembers = 1.0 - 1.0 / memory
        # As many tokens as predicted, with a prior weight.
        self._kept: Floats = np.full(most, PRIOR_DEPTH)
        self._predicted: Floats = np.full(most, PRIOR_DEPTH)

    def note(self, outcome: Outcome, own: float) -> None:
        """Note a verification that judged something, of a request that keeps a share `own` of its tokens."""
        kept, reached = judged(outcome)
        self._kept[:reached] *= self._remembers
        self._predicted[:reached] *= self._remembers
        self._kept[:kept] += 1.0
        self._predicted[:reached] += own

    def tokens(self, own: Floats) -> Floats:
        """`[most + 1]` tokens that a round of each window yields, over all requests; `own` is each one's acceptance."""
        less = np.minimum(self._kept / self._predicted, 1.0)
        drafted = np.cumprod(own[:, None] * less, axis=1).sum(axis=0)
        return np.concatenate([[float(len(own))], len(own) + np.cumsum(drafted)])


PRIOR_DEPTH = 32.0  # tokens


class BatchTurns:
    """Counts rounds as they begin, and the turns (`num_turns`) that have begun. Mutated by `begins`."""

    __slots__ = ("_left", "num_turns")

    def __init__(self) -> None:
        self._left = 0
        self.num_turns = 0

    def begins(self, num_running: int) -> bool:
        """Count a round; whether it is the first of a turn, which has `num_running` rounds."""
        first = self._left <= 0
        if first:
            self._left = num_running
            self.num_turns += 1
        self._left -= 1
        return first


# Members that policies need, in words.
A_DRAFTER = "a drafter below the target"
A_SURE_DRAFTER = "a drafter below the target that has probabilities"
A_VERIFIER_BETWEEN = "a drafter, and a verifier between it and the target"


def smallest_model(pool: Pool) -> str:
    """Name of the smallest member that has weights; raises ValueError if that is the target."""
    for member in pool.members[:-1]:
        if not member.model_free:
            return member.name
    raise ValueError("the pool has no model below its target to draft with")


def drafter_of(pool: Pool, draft: str | None) -> str:
    """The drafter a user named, or the smallest model; raises ValueError if it is unknown or not below the target."""
    drafter = smallest_model(pool) if draft is None else draft
    if pool.level(drafter) == pool.target_level:
        raise ValueError(f"draft must be a member below the target, got {drafter!r}")
    return drafter


def lookup_member(pool: Pool, policy: str) -> str:
    """Name of the smallest model-free member; raises ValueError, naming `policy`, if the pool has none."""
    if not pool.members[0].model_free:
        raise ValueError(f"policy {policy} needs a model-free member in the pool; it has {', '.join(pool.names)}")
    return pool.names[0]


def sure_drafter(pool: Pool, draft: str | None, policy: str) -> str:
    """The drafter a user named, or the smallest model that reads the target's tokens.

    Raises ValueError, naming `policy`, for one that is not below the target, or has no probabilities.
    """
    if draft is None:
        draft = next((member.name for member in pool.members[:-1] if member.verifies), None)
        if draft is None:
            have = ", ".join(pool.names)
            raise ValueError(f"policy {policy} needs a drafter with probabilities of its own; the pool has {have}")
    drafter = drafter_of(pool, draft)
    if not pool.members[pool.level(drafter)].verifies:
        raise ValueError(f"policy {policy} needs a drafter with probabilities of its own, {drafter!r} has none")
    return drafter


def verifiers_between(pool: Pool, draft: str) -> list[str]:
    """Names of the members between a drafter and the target that can verify, smallest first."""
    return [member.name for member in pool.members[pool.level(draft) + 1 : pool.target_level] if member.verifies]


def middle_verifier(pool: Pool, verifier: str | None, draft: str, policy: str) -> str:
    """The middle member a user named, or the largest one below the target that can verify.

    Raises ValueError, naming `policy`, if there is none, it cannot verify, or it is not between drafter and target.
    """
    return _between(pool, verifier, draft, policy)[-1]


def next_verifier(pool: Pool, verifier: str | None, draft: str, policy: str) -> str:
    """The middle member a user named, or the smallest one above the drafter that can verify; raises as above."""
    return _between(pool, verifier, draft, policy)[0]


def _between(pool: Pool, verifier: str | None, draft: str, policy: str) -> list[str]:
    low, high = pool.level(draft), pool.target_level
    if verifier is None:
        between = verifiers_between(pool, draft)
        if not between:
            have = ", ".join(pool.names)
            raise ValueError(f"policy {policy} needs a verifier between {draft!r} and the target; the pool has {have}")
        return between
    if not low < pool.level(verifier) < high:
        raise ValueError(f"policy {policy} needs a verifier between {draft!r} and {pool.target!r}, got {verifier!r}")
    if not pool.members[pool.level(verifier)].verifies:
        raise ValueError(f"policy {policy} needs a middle member that can verify, {verifier!r} cannot")
    return [verifier]


class DraftedBlocks(ABC):
    """Draft and judge in turns; a drafter that finds nothing makes it plain decoding.

    A subclass defines `block` or `judge`; one that always drafts and judges alike is a `FixedBlocks`.

    Args:
        draft: the block.
        verify: how the target judges it.
        others: further members that its steps may name; None: not declared (`About.runs`).

    Attributes:
        most_pending: tokens it may have pending, at most.
    """

    about: About

    def __init__(self, draft: Draft, verify: Verify, *, others: Iterable[str] | None = None) -> None:
        self._draft = draft
        self._verify = verify
        if others is not None:
            say_runs(self, (draft.model, verify.model, *others))
        self._by_window: dict[int, Draft | Verify] = {0: verify}
        self.most_pending = draft.tokens

    def decide(self, seen: Observation) -> Step:
        """After a commit the next block, else its judgement."""
        last = seen.last
        return self.block(seen) if last is None or last.num_emitted else self.judge(seen, last)

    def learn(self, outcome: Outcome) -> None:  # noqa: B027 - a policy that learns nothing is whole
        """Nothing to learn."""

    def block(self, seen: Observation) -> Step:
        """The next draft."""
        return self._draft

    def judge(self, seen: Observation, last: Outcome) -> Step:
        """The step for the pending tokens, after the one whose outcome is `last`."""
        return self._verify

    def block_of(self, window: int) -> Draft | Verify:
        """The draft of `window` tokens, made once; 0 is plain decoding. `_draft` must not change meanwhile."""
        step = self._by_window.get(window)
        if step is None:
            step = self._by_window[window] = replace(self._draft, tokens=window)
        return step


class FixedBlocks(DraftedBlocks):
    """One and the same draft and its judgement in turns, whatever the outcomes (`About.by_pending`)."""

    def __init__(self, draft: Draft, verify: Verify) -> None:
        super().__init__(draft, verify, others=())

    def decide(self, seen: Observation) -> Step:
        """The block where nothing is pending, unless the draft found nothing; else its judgement."""
        return self._verify if seen.num_pending or seen.found_nothing else self._draft


MEMORY = 8  # requests that means reach back


class _Request(NamedTuple):
    """Tokens that the drafter's cache lacks, those that may still come, and as many when it was first seen."""

    lacking: int
    remaining: int
    most: int


class TextToRead:
    """Tokens that a drafter's cache lacks, by token of the answers to come. Mutated by `see` and `end`.

    Answers are taken to use the same share of their budgets as those that are done; half before any is.
    """

    __slots__ = ("_lacking", "_new", "_open", "_remaining", "_used")

    def __init__(self) -> None:
        self._open: dict[str, _Request] = {}
        self._new = RunningRatio(memory=MEMORY)
        self._used = RunningRatio(memory=MEMORY, above=0.5, below=1.0)
        self._lacking = self._remaining = 0

    def see(self, request_id: str, lacking: int, remaining: int) -> None:
        """Note a running request, whose answer may get `remaining` more tokens, >= 1."""
        before = self._open.get(request_id)
        if before is None:
            self._new.note(lacking, remaining)
            before = _Request(0, 0, remaining)
        self._open[request_id] = _Request(lacking, remaining, before.most)
        self._lacking += lacking - before.lacking
        self._remaining += remaining - before.remaining

    def end(self, request_id: str, num_emitted: int) -> None:
        """Note a request that is done, with `num_emitted` tokens since it was last seen."""
        lacking, remaining, most = self._open.pop(request_id)
        self._lacking -= lacking
        self._remaining -= remaining
        self._used.note(most - remaining + num_emitted, most)

    @property
    def by_answer_token(self) -> float:
        """Tokens by answer token, of requests as they arrive, or of running ones (at least one) if these lack more."""
        return max(self._new.rate, self._lacking / self._remaining) / self._used.rate


class WindowSchedule:
    """Windows by request. Mutated by `note`.

    Args:
        start: first window of a request, 1 to `most`.
        up: added after a round in which every drafted token was accepted, >= 0.
        down: subtracted otherwise (the window never falls below 1), >= 0.
        most: longest window, 1 to 1,000,000; ValueError for an argument out of range.
    """

    __slots__ = ("_down", "_most", "_start", "_up", "_windows")

    def __init__(self, *, start: int, up: int, down: int, most: int) -> None:
        check_within("most", most, ONE_STEP)
        check_within("start", start, f"[1, most={most}]")
        if up < 0 or down < 0:
            raise ValueError(f"up and down must be >= 0, got up={up}, down={down}")
        self._start, self._up, self._down, self._most = start, up, down, most
        self._windows: dict[str, int] = {}

    def window(self, request_id: str) -> int:
        """Of the request's next round, 1 to `most`."""
        return self._windows.get(request_id, self._start)

    def note(self, outcome: Outcome) -> None:
        """Move the request's window after a verification that judged something; forget a request that is done."""
        if outcome.done:
            self._windows.pop(outcome.request_id, None)
        elif outcome.num_judged:
            window = self.window(outcome.request_id)
            longer = outcome.refused_at is None
            window = min(window + self._up, self._most) if longer else max(window - self._down, 1)
            self._windows[outcome.request_id] = window
