"""What a policy returns and learns from: the kinds of step, and the outcome of one.

Steps are values: build them once and return them again, as a policy is called tens of thousands of times a second.
Rules and stops of users are checked when a step is made, so that an error names a line of their file.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..base.errors import defined_at, is_foreign, said
from .rules import Exact, Rule, Stop
from .trees import DraftTree, whole


def check_rule(rule: object) -> None:
    """Raises ValueError, which names the class and where it is defined, if a verifier's rule cannot be called."""
    if is_foreign(type(rule)):
        _check_method(rule, "accepts", "facts")
        if getattr(rule, "escalates", None) is not None:
            _check_method(rule, "escalates", "facts")


def check_stop(stop: object) -> None:
    """Raises as `check_rule` if a draft's stop cannot be called."""
    if is_foreign(type(stop)):
        _check_method(stop, "holds", "signal", "product")
        if getattr(stop, "factor", None) is not None:
            _check_method(stop, "factor", "signal", "index")


def _check_method(rule: object, name: str, *arguments: str) -> None:
    method, cls = getattr(rule, name), type(rule)
    expected = f"{cls.__name__}.{name} must be a method that takes ({', '.join(arguments)})"
    if not callable(method):
        raise ValueError(f"{expected}, got {said(method, repr)}{defined_at(cls)}")
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # not written in Python: its parameters are not known
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{expected}, got {signature}: {error}{defined_at(cls)}") from None


class PolicyError(Exception):
    """A policy raised, broke the contract or made no progress.

    The message names policy, request and, if there is one, step. `finished` is set by comparisons that have rows of
    other policies: the `Comparison` or `LoadComparison` without this one.
    """

    finished: Any = None

    def __init__(self, policy: str, request_id: str, step: object, reason: str) -> None:
        # All four are args, since SimPy builds the error of a process again from its args.
        super().__init__(policy, request_id, step, reason)
        self.policy = policy
        self.request_id = request_id
        self.step = step
        self.reason = reason

    def __str__(self) -> str:
        step = "" if self.step is None else f", step {said(self.step)}"
        return f"policy {self.policy}, request {self.request_id}{step}: {self.reason}"


class UnknownHereError(ValueError):
    """Why a world does not carry out a legal step."""


class UnavailableStepError(PolicyError):
    """A legal step that this world does not carry out, such as a token tree under load."""


RULE_NAMES = ("accepts", "lossless", "needs_target_prob")
MOST_TOKENS = 1_000_000  # of one step; far beyond any context, so that logs hold it exactly
MOST_ID = 2**31 - 1  # of a token: logs and recordings hold 32 bits
ONE_STEP = f"[1, {MOST_TOKENS:,}]"  # tokens, for `check_within`


def _check_tokens(step: "Draft | Commit", kind: str) -> None:
    """Raises ValueError for tokens out of range; integers of other kinds become Python's."""
    tokens = step.tokens
    if type(tokens) is not int:
        tokens = whole(f"{kind} tokens", tokens)
        object.__setattr__(step, "tokens", tokens)
    if tokens < 1:
        raise ValueError(f"{kind} tokens must be >= 1, got {tokens}")
    if tokens > MOST_TOKENS:
        raise ValueError(f"{kind} tokens must be <= {MOST_TOKENS:,}, got {tokens}")


@dataclass(frozen=True, slots=True)
class Draft:
    """Append up to `tokens` tokens written by `model`, one forward each.

    The draft is shorter when `stop` holds (that token is kept), after an end-of-sequence token, when pending tokens
    fill the budget, and when a model-free drafter finds nothing. Raises ValueError for `tokens` out of range or not
    whole, a stop that is no rule or cannot be called as one, or a copy of another length, with a stop, or of what are
    no ids.
    """

    model: str  # a pool member below the target
    tokens: int  # window, 1 to 1,000,000
    stop: Stop | None = None  # ends the draft early; None drafts the whole window
    # `[tokens]` ids that a model-free member appends in place of its own lookup's, for a policy that looks up by
    # itself; None is its own lookup
    copy: tuple[int, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_tokens(self, "draft")
        if self.copy is not None:
            self._check_copy(self.copy)
        if self.stop is None:
            return
        if isinstance(self.stop, type) or not hasattr(self.stop, "holds"):
            raise ValueError(f"draft stop must be a rule such as ConfidenceBelow(0.4), got {self.stop!r}")
        check_stop(self.stop)

    def _check_copy(self, copy: tuple[int, ...]) -> None:
        if len(copy) != self.tokens or self.stop is not None:
            raise ValueError(
                f"draft copy must have {self.tokens} ids and no stop, got {len(copy)} and stop {self.stop!r}"
            )
        if not all(type(token) is int for token in copy):  # integers of other kinds become Python's
            copy = tuple(whole("an id of a draft's copy", token) for token in copy)
            object.__setattr__(self, "copy", copy)
        if not all(0 <= token <= MOST_ID for token in copy):
            raise ValueError(f"draft copy must hold ids in [0, {MOST_ID:,}], got {said(copy, repr)}")


@dataclass(frozen=True, slots=True)
class Verify:
    """One forward of `model` over the pending tokens from the first one it has not judged.

    The accepted prefix is kept, the first rejected token and all after it are dropped, and the verifier adds its own
    token (correction, or bonus if it accepted all) where the budget has room for it. By the target it commits. With
    nothing pending it is plain decoding. Raises ValueError for a rule that is none, or cannot be called as one.
    """

    model: str
    rule: Rule = field(default_factory=Exact)

    def __post_init__(self) -> None:
        lacks = [name for name in RULE_NAMES if not hasattr(self.rule, name)]
        if isinstance(self.rule, type) or lacks:
            without = f" without {', '.join(lacks)}" if lacks else ""
            raise ValueError(f"verify rule must be a rule such as Exact(), got {self.rule!r}{without}")
        check_rule(self.rule)


@dataclass(frozen=True, slots=True)
class Commit:
    """Take the first `tokens` pending tokens as they are, without (further) verification. Lossy, and counted."""

    tokens: int

    def __post_init__(self) -> None:
        _check_tokens(self, "commit")


@dataclass(frozen=True, slots=True)
class Overlap:
    """Several steps of one request at once, by different members, the largest first: working ahead.

    Every Verify judges what the next part's member, or one above it, has endorsed; the last one all the rest. Each
    further part works on the tokens after these: it judges them, or, a Draft, appends to them. All parts begin from the
    same pending tokens; none sees the result of another one.

    Their answers are put together from the last part to the first, so that no race decides anything. Where a verifier
    accepted all that it was given, and its own token equals the first token after them, what follows that one is kept
    as pending; in all other cases it is dropped. So the text is what the verdicts alone would make it (PEARL,
    arXiv:2408.11850; DSI, arXiv:2405.14105; PipeSpec, arXiv:2505.01572).

    Under rejection sampling the text follows the target's distribution as long as which member judges a token does not
    depend on the token: a member whose span is empty while tokens are pending writes past them, which is another way to
    the same distribution than to judge them. Where a text has ended, leave out the Draft and let the others do the
    same.

    A policy learns one Outcome for each part, in the order of `steps`: its own step, what it drafted, judged, accepted
    and wrote before any of that was dropped, and its own seconds. `done` is set in the last one, and `Observation.last`
    is that one. What was kept is pending. Raises ValueError for fewer than two, a Draft before the last, or a lossy
    rule.
    """

    # two or more, by members of strictly falling level; each a Verify by a lossless rule, except the last, which may be
    # a Draft
    steps: tuple[Verify | Draft, ...]

    def __post_init__(self) -> None:
        steps = self.steps
        if not isinstance(steps, tuple) or len(steps) < 2:
            raise ValueError(f"overlap steps must be a tuple of two or more, got {said(steps, repr)}")
        for number, step in enumerate(steps):
            if not isinstance(step, Verify) and not (isinstance(step, Draft) and number == len(steps) - 1):
                raise ValueError(f"overlap steps must be Verify, the last one may be a Draft, got {said(step, repr)}")
            if isinstance(step, Verify) and not step.rule.lossless:
                raise ValueError(f"overlap verify rule must be lossless, got {step.rule!r}")

    @property
    def drafts(self) -> bool:
        """Whether the last part is a Draft."""
        return isinstance(self.steps[-1], Draft)


SingleStep = Draft | Verify | Commit | DraftTree
Step = SingleStep | Overlap


class Outcome(NamedTuple):
    """The result of one step of one request (a NamedTuple: one is made per step, and a frozen dataclass costs 5x)."""

    request_id: str  # the request the step was for
    step: SingleStep  # the step as the policy gave it; of an `Overlap`, the part that this is the outcome of
    num_drafted: int  # tokens a Draft appended, nodes of a DraftTree
    num_judged: int  # pending tokens a Verify looked at, all nodes of a tree
    # of those, how many were accepted (of a tree the length of the path that was kept); without the verifier's own
    # token
    num_accepted: int
    num_own: int  # 1 if the verifier's own token (correction or bonus) was added, else 0
    num_emitted: int  # tokens committed to the answer by this step, the target's own token included
    # index among the judged tokens of the first one rejected, of a tree the depth at which all nodes beyond the path
    # were; None if none was
    refused_at: int | None
    # total variation distance drafter to verifier per judged token up to and including the first rejected one, 0 to 1,
    # of a tree along its path; NaN where the drafter is model-free or the recording does not say. Real models compute
    # them when they are first read.
    tvd: Sequence[float]
    duration_s: float  # seconds of the batched operation this step was part of
    num_rows: int  # requests in that operation
    done: bool  # whether the request is finished
    num_escalated: int = 0  # of the accepted tokens, how many the verifier left to the next one (`rules.Band`)
