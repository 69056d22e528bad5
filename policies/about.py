"""What a policy declares (`About`), what its steps may have done to the text, and expected tokens of rounds.

The closed forms take acceptance as independent and constant: a verifier accepts each token with the same probability.
Letters: a acceptance, n window.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import FunctionType

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ArgumentError, check_least, check_within, defined_at, pass_interrupt, said, told
from ..decoding.legal_steps import Policy
from ..decoding.seen import Observation
from ..decoding.steps import Commit, Outcome, Overlap, Step, Verify
from ..decoding.trees import DraftTree


class Observable(StrEnum):
    """What only some worlds have of a token. All have counts, seconds and caches."""

    signals = "signals"  # prob, entropy and gap of drafted tokens; rules that stop a draft read them too
    distances = "distances"  # total variation distance of drafter and verifier, per judged token
    verdict_probs = "verdict probabilities"  # the verifier's, of a judged token; lossy rules read them
    text = "text"  # the ids of committed tokens
    branches = "branches"  # a drafter's further tokens at a context, of which token trees are made
    # verdicts that may decide which member judges the same tokens next: not where tokens are drawn, as this bends texts
    votes = "votes"


# What the runtime has, and a recording of tries with trees: everything.
ALL_OBSERVABLES = frozenset(Observable)
# What a policy observes, where it is one of them.
SIGNALS = frozenset({Observable.signals})
VERDICT_PROBS = frozenset({Observable.verdict_probs})
BRANCHES = frozenset({Observable.branches})
VOTES = frozenset({Observable.votes})
OWN = "paceline's own"  # begins `About.paper` of a policy without a paper; then what it does
MOST_SHOWN = 8  # tags in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Of a policy; it carries one as the class attribute `about`, which an object may override by its own.

    Raises ArgumentError for a value that is not of its field's type.
    """

    # name and identifier, such as "SpecRouter, arXiv:2505.07680"; ours without one begin with `OWN`, yours may be empty
    paper: str = ""
    lossless: bool  # whether it commits what the target alone would write, whatever its options
    members: str = "a target"  # required of a pool, in words, such as "a model below the target"
    observes: frozenset[Observable] = frozenset()  # what it does not work without
    oracle: bool = False  # whether it sees ahead, which only a recording allows
    # whether its every step is one of the target with nothing drafted, whatever it sees, and nothing is learnt: so its
    # `decide` need not be called
    target_alone: bool = False
    # whether only the request's pending tokens decide, and nothing is learnt. Each step follows from
    # `seen.num_pending`, `seen.waiting`, `seen.has_room`, `seen.found_nothing` and the pool; drafts are all by one
    # member, verifications all by a lossless rule, and there is no Commit. So a round that begins at the same place of
    # the same text is the same.
    by_pending: bool = False
    works_ahead: bool = False  # whether its steps may be `Overlap`, whose parts take their seconds at the same time
    # the members that its steps may name, the target included; the others of a pool take no memory under load. None:
    # any of the pool's
    runs: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), field.type
            if field.name == "observes":
                if not isinstance(value, frozenset) or not all(isinstance(one, Observable) for one in value):
                    raise ArgumentError(f"`About.observes` must be a frozenset of Observable, got {value!r}")
            elif field.name == "runs":
                if value is not None and not (
                    isinstance(value, frozenset) and value and all(isinstance(one, str) for one in value)
                ):
                    raise ArgumentError(f"`About.runs` must be a frozenset of members' names or None, got {value!r}")
            elif isinstance(kind, type) and not isinstance(value, kind):
                raise ArgumentError(f"`About.{field.name}` must be a {kind.__name__}, got {value!r}")


def about_of(policy: object) -> About | None:
    """The `about` of a policy, or of its class; None if it has none (yours need not), or a class has a property.

    Raises ArgumentError for an `about` that is no `About`.
    """
    about = getattr(policy, "about", None)
    if isinstance(policy, type) and hasattr(about, "__get__"):  # a property, which only an object has
        return None
    if about is not None and not isinstance(about, About):
        cls = policy if isinstance(policy, type) else type(policy)
        raise ArgumentError(
            f"about of policy {cls.__name__} must be an About, got {said(about, repr)}{defined_at(cls)}"
        )
    return about


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__")


def _are_trees(value: object) -> bool:
    """A table or set that is empty holds none."""
    if isinstance(value, tuple | list):
        return all(isinstance(one, DraftTree) for one in value)
    return isinstance(value, Mapping | Set) and not value


def _is_run(value: object) -> bool:
    """Whether a call runs it; a call of an async function, or of one with a yield, only makes an object."""
    return callable(value) and not (
        iscoroutinefunction(value) or isgeneratorfunction(value) or isasyncgenfunction(value)
    )


# What worlds read of a policy beside `about`: the value of one that lacks it, whether a value is sound, and the rule.
_A_VERB = (None, _is_run, "a plain method, without async or yield")
_READ: dict[str, tuple[object, Callable[[object], bool], str]] = {
    "decide": _A_VERB,
    "learn": _A_VERB,
    "most_pending": (0, _is_whole, "a whole number"),
    "most_off_trunk": (0, _is_whole, "a whole number"),
    "trees": ((), _are_trees, "a tuple of DraftTree"),
    "named_tags": (frozenset(), lambda value: isinstance(value, Set), "a set"),
}
# Those that are no methods: a wrapper of a policy hands them on.
DECLARED = tuple(name for name, read in _READ.items() if read is not _A_VERB)


def check_declared(policy: object, name: str) -> None:
    """Raise ArgumentError for what worlds read of a policy, called `name`, if it fails when read or is of another kind.

    Checked when it is built, since each world reads another part, and some in the middle of a run.
    """
    try:
        about_of(policy)
        values = {key: getattr(policy, key, default) for key, (default, _, _) in _READ.items()}
    except BaseException as error:
        pass_interrupt(error)
        raise ArgumentError(
            f"policy {name}: {said(error) if isinstance(error, ArgumentError) else told(error)}"
        ) from error
    for key, value in values.items():
        _, is_sound, rule = _READ[key]
        if not is_sound(value):
            got = f"{key} must be {rule}, got {said(value, repr)}"
            raise ArgumentError(f"policy {name}: {got}{defined_at(type(policy))}")


def may_work_ahead(policy: object) -> bool:
    """Whether steps of a policy may be `Overlap`: by its `about`; without one they may."""
    about = about_of(policy)
    return about is None or about.works_ahead


def runs_target_alone(policy: object) -> bool:
    """Whether a policy declares it; the `about` of a class does not count for a subclass that adds methods."""
    about = about_of(policy)
    return about is not None and about.target_alone and _about_holds(policy)


def decides_by_pending(policy: object) -> bool:
    """Whether a policy declares it (`About.by_pending`), on the terms of `runs_target_alone`."""
    about = about_of(policy)
    return about is not None and about.by_pending and _about_holds(policy)


def members_run_by(policy: object) -> frozenset[str] | None:
    """The members that a policy's steps may name (`About.runs`), on the terms of `runs_target_alone`; None: any."""
    about = about_of(policy)
    return about.runs if about is not None and _about_holds(policy) else None


def say_runs(policy: object, members: Iterable[str]) -> None:
    """Set `About.runs` of one policy; does nothing if its class has no `about`."""
    about = about_of(policy)
    if about is not None:
        vars(policy)["about"] = replace(about, runs=frozenset(members))


def check_runs(runs: frozenset[str] | None, step: object) -> None:
    """Raise ValueError for a step by a member that is not in `runs`, the policy's `About.runs`; None: any is."""
    if runs is None:
        return
    for part in step.steps if isinstance(step, Overlap) else (step,):
        model = getattr(part, "model", None)  # a Commit has none
        if model is not None and model not in runs:
            raise ValueError(f"{model} is not among the members that `About.runs` names: {', '.join(sorted(runs))}")


def _about_holds(policy: object) -> bool:
    """Whether no subclass of the class with `about`, nor the object, adds a method, which might decide otherwise."""
    kinds = type(policy).__mro__
    if any(isinstance(getattr(kinds[0], name, None), FunctionType) for name in getattr(policy, "__dict__", {})):
        return False
    said_by = next((kind for kind in kinds if "about" in vars(kind) or _methods(kind)), object)
    return "about" in vars(said_by)


def _methods(kind: type) -> list[str]:
    return [name for name, value in vars(kind).items() if hasattr(value, "__get__") and not name.startswith("__")]


def observed_by(policy: object) -> frozenset[Observable]:
    """What a policy's `about` requires to be seen; nothing without an `about`."""
    about = about_of(policy)
    return frozenset() if about is None else about.observes


def check_observes(policy: Policy, name: str, offered: Iterable[Observable], where: str) -> None:
    """Raise ValueError for a policy, called `name`, that must see what `where` ("recording served") has not offered."""
    missing = sorted(observed_by(policy) - set(offered))
    if missing:
        raise ValueError(f"policy {name} needs {', '.join(missing)} of tokens, which {where} does not hold")


def check_tags(policy: Policy, name: str, tags: Iterable[str], where: str) -> None:
    """Raise ArgumentError for a policy, called `name`, with a policy of its own for a tag that no request has.

    `where` is as in "recording served"; `tags`, of the requests, are read only if the policy names any.
    """
    named: Set[str] = getattr(policy, "named_tags", frozenset())
    held = set(tags) if named else set()
    missing = sorted(named - held)
    if missing:
        there = ", ".join(sorted(held)[:MOST_SHOWN]) + (", ..." if len(held) > MOST_SHOWN else "")
        raise ArgumentError(
            f"policy {name} names the tag {missing[0]}, which no request of {where} has; there are {there}"
        )


Floats = NDArray[np.float64]


def round_tokens(acceptance: float, window: int) -> float:
    """Expected tokens of a two-level round, (1 - a^(n+1)) / (1 - a), and n + 1 at a = 1; n = 0 is plain decoding.

    Leviathan et al. 2023 (arXiv:2211.17192, equation 1), summed as 1 + a + ... + a^n, which needs no limit. Raises
    ValueError unless a is 0 to 1 and n >= 0.
    """
    check_within("acceptance", acceptance, "[0, 1]")
    check_least("window", window, 0)
    return sum(acceptance**accepted for accepted in range(window + 1))


class StepWatch:
    """What the steps so far may have done to the text; `target` is the target's name.

    Attributes:
        inexact: a Commit was among them, or a verification by a lossy rule at any level.
        lossy: a Commit was among them, or a verification by the target by a lossy rule. Text is then no longer what the
            target would write; below the target a lossy rule changes what is proposed to it.
        lossy_drawn: the same under rejection sampling, where lossy rules at two members below the target are lossy too.
            Above one such member the target gets the distribution of its tokens; above two that may not suffice, since
            some rules (such as `Vouched`) depend on which member endorses a token.
    """

    __slots__ = ("_below", "_target", "inexact", "lossy", "lossy_drawn")

    def __init__(self, target: str) -> None:
        self._target = target
        self.inexact = False
        self.lossy = False
        self.lossy_drawn = False
        self._below: set[str] = set()

    def note(self, step: Step) -> None:
        """Count a step."""
        if isinstance(step, Commit):
            self.inexact = self.lossy = self.lossy_drawn = True
        elif isinstance(step, Verify) and not step.rule.lossless:
            self.inexact = True
            if step.model == self._target:
                self.lossy = self.lossy_drawn = True
            else:
                self._below.add(step.model)
                self.lossy_drawn |= len(self._below) > 1


class WatchedPolicy:
    """Passes all calls on to a policy, and notes every step in `watch`."""

    def __init__(self, policy: Policy, watch: StepWatch) -> None:
        self.wrapped = policy
        self.watch = watch

    def decide(self, seen: Observation) -> Step:
        """The policy's step."""
        step = self.wrapped.decide(seen)
        self.watch.note(step)
        return step

    def learn(self, outcome: Outcome) -> None:
        """Pass on the outcome."""
        self.wrapped.learn(outcome)
