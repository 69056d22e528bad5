"""What a policy is, which steps a request may take now, and the error of a policy that breaks these rules.

A policy has two verbs, `decide` and `learn`. Both worlds (sim and runtime) call them through the same loop.
"""

from itertools import pairwise
from typing import Protocol

from ..base.errors import at, decides_at, pass_interrupt, said
from .overlap import spans_of
from .pool import Pool
from .rules import Exact, Facts, Ruling, Signal, ruling, token_factor
from .seen import Observation
from .session import READER, Session
from .steps import Commit, Draft, Outcome, Overlap, PolicyError, Step, UnavailableStepError, UnknownHereError, Verify
from .trees import DraftTree


def check_step(session: Session, step: Step) -> int:
    """The level that runs `step` (the target's for a Commit, an Overlap's highest); raises ValueError where illegal."""
    pool = session.pool
    if session.tree is not None:
        _check_on_tree(session, step)
    if isinstance(step, Draft):
        return _check_draft(session, step)
    if isinstance(step, Verify):
        level = _check_verifier(pool, step)
        if level != pool.target_level and session.judges and session.first_unjudged(level) == len(session.judges):
            raise ValueError("nothing left to judge: a model at or above this one endorses every pending token")
        return level
    if isinstance(step, Commit):
        if step.tokens > len(session.tokens):
            raise ValueError(f"commit beyond pending: num_pending is {len(session.tokens)}")
        return pool.target_level
    if isinstance(step, DraftTree | Overlap) and pool.feature_level is not None:
        what = "token trees are not drafted" if isinstance(step, DraftTree) else "no member works ahead"
        raise ValueError(f"{what} beside {pool.names[pool.feature_level]}, {READER}")
    if isinstance(step, DraftTree):
        return _check_tree(session, step)
    if isinstance(step, Overlap):
        return _check_overlap(session, step)
    nothing = "got None, " if step is None else ""
    raise ValueError(f"{nothing}not a step: return a Draft, a DraftTree, a Verify, a Commit or an Overlap")


def _drafter_of(pool: Pool, step: Draft | DraftTree) -> int:
    level = pool.level(step.model)
    if level == pool.target_level:
        raise ValueError("the target does not draft; verify with nothing pending is plain decoding")
    return level


def _check_draft(session: Session, step: Draft) -> int:
    pool = session.pool
    level = _drafter_of(pool, step)
    if step.copy is not None and not pool.members[level].model_free:
        raise ValueError(f"only a model-free member copies what it is given, and {pool.names[level]} is a model")
    if session.room < 1:
        raise ValueError("no room to draft: pending tokens fill the budget or end the text (see seen.room)")
    return level


def _check_verifier(pool: Pool, step: Verify) -> int:
    level = pool.level(step.model)
    if pool.members[level].model_free:
        raise ValueError(f"{pool.names[level]} is model-free and cannot verify")
    if pool.members[level].drafts_only:
        raise ValueError(
            f"{pool.names[level]} only drafts and cannot verify: it has a tokenizer of its own, or the "
            "recording holds no verdicts of it"
        )
    return level


def _check_tree(session: Session, step: DraftTree) -> int:
    pool = session.pool
    level = _drafter_of(pool, step)
    if not pool.members[level].verifies:
        raise ValueError(f"{pool.names[level]} drafts no tree: it has no distribution over the target's tokens")
    if session.tokens:
        raise ValueError(f"a tree is drafted with nothing pending, and {len(session.tokens)} tokens are")
    return level


def _check_on_tree(session: Session, step: object) -> None:
    rule = getattr(step, "rule", None)
    if rule is None:
        raise ValueError("a tree is pending, and the only step on it is a Verify")
    if not isinstance(rule, Exact):
        raise ValueError(f"a tree is verified by Exact(), got {rule!r}")


def _check_overlap(session: Session, step: Overlap) -> int:
    """Raise unless every part is legal and has something to do."""
    levels = [
        _check_draft(session, part) if isinstance(part, Draft) else _check_verifier(session.pool, part)
        for part in step.steps
    ]
    if any(upper <= lower for upper, lower in pairwise(levels)):
        names = ", ".join(part.model for part in step.steps)
        raise ValueError(f"overlap steps must be by members of strictly falling level, got {names}")
    for level, (first, end) in zip(levels, spans_of(session, step, tuple(levels)), strict=True):
        if first == end == len(session.tokens) and session.room < 1:
            raise ValueError(
                f"nothing for {session.pool.names[level]} to do: no token to judge and no room for its own"
            )
    return levels[0]


# Steps in a row that may leave a request as it was (a model-free drafter that finds nothing) before it is an error.
IDLE_STEPS = 8


class Policy(Protocol):
    """What a policy is. Built once per run as `MyPolicy(pool, **options)`; one object serves all requests."""

    def decide(self, seen: Observation) -> Step:
        """The next step of this request. `seen` is a live view, valid during the call only."""

    def learn(self, outcome: Outcome) -> None:
        """The outcome of a step, in the order the steps finished."""


def guard_progress(policy: Policy, name: str, idle: dict[str, int], outcome: Outcome) -> None:
    """Count one more step in a row that left its request as it was, by id; raises PolicyError for too many."""
    count = idle[outcome.request_id] = idle.get(outcome.request_id, 0) + 1
    if count >= IDLE_STEPS:
        rule = f"no progress in {count} steps: nothing was drafted or judged"
        raise breach(policy, name, outcome.request_id, outcome.step, rule)


def raised(name: str, request_id: str, step: Step | None, method: str, error: BaseException) -> PolicyError:
    """What a method of the policy raised, and where; Ctrl-C is raised on."""
    pass_interrupt(error)
    return PolicyError(name, request_id, step, f"{method} raised {said(error, repr)}{at(error)}")


def ruling_of(session: Session, step: Verify, facts: Facts) -> Ruling:
    """The verdict of the step's rule on one token, whose facts are scalars; raises PolicyError for what it raises."""
    try:
        return ruling(step.rule, facts)
    except BaseException as error:  # foreign code, as the rest of a policy
        raise raised(session.policy_name, session.request_id, step, "its rule", error) from error


def check_copy(session: Session, step: Draft, vocab_size: int) -> None:
    """Raise PolicyError for a copy with an id that the models do not know."""
    if step.copy is not None and max(step.copy) >= vocab_size:
        rule = f"draft copy must hold ids below {vocab_size:,}, got {max(step.copy)}"
        raise PolicyError(session.policy_name, session.request_id, step, rule)


class DraftEnd:
    """Whether a draft ends after a token by its stop rule, asked for one after the other. Mutated by every call."""

    __slots__ = ("_factor", "_index", "_product", "_session", "_step")

    def __init__(self, session: Session, step: Draft) -> None:
        self._session, self._step = session, step
        self._factor, self._index, self._product = token_factor(step.stop), 0, 1.0

    def __call__(self, signal: Signal) -> bool:
        """Whether it ends here; raises PolicyError for what the rule raises, a factor of NaN and None."""
        assert self._step.stop is not None
        try:
            factor = self._factor(signal, self._index)
            if factor != factor and signal.prob == signal.prob:
                raise ValueError(f"factor must be a number, got {factor}")
            self._product *= factor
            self._index += 1
            ends = self._step.stop.holds(signal, self._product)
            if ends is None:
                raise ValueError("holds must return whether the draft ends, got None")
            return bool(ends)
        except BaseException as error:  # foreign code
            raise raised(self._session.policy_name, self._session.request_id, self._step, "its stop", error) from error


def breach(policy: Policy, name: str, request_id: str, step: object, found: str | BaseException) -> PolicyError:
    """What is wrong with a step; nothing was raised in the policy, so it is named by where it decides."""
    place, rule = decides_at(policy), found if isinstance(found, str) else said(found)
    kind = UnavailableStepError if isinstance(found, UnknownHereError) else PolicyError
    return kind(name, request_id, step, rule if place is None else f"{rule} (decide: {place})")
