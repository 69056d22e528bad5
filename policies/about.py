"""What a policy says of itself: where it comes from, whether its text is the target's, and what it has to see."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import FunctionType

from ..arguments import ArgumentError
from ..decoding.policy import Policy


class Observable(StrEnum):
    """What only some worlds know of a token. Counts, seconds and caches are known to all."""

    signals = "signals"  # prob, entropy and gap of drafted tokens; rules that stop a draft read them too
    distances = "distances"  # total variation distance of drafter and verifier, per judged token
    verdict_probs = "verdict probabilities"  # what the verifier gives a judged token; lossy rules read them
    text = "text"  # the ids of committed tokens
    branches = "branches"  # a drafter's further tokens at a context, of which token trees are made


# What the runtime knows, and a recording of tries with trees: everything.
ALL_OBSERVABLES = frozenset(Observable)
# What a policy observes, where it is one of them.
SIGNALS = frozenset({Observable.signals})
VERDICT_PROBS = frozenset({Observable.verdict_probs})
BRANCHES = frozenset({Observable.branches})
MOST_SHOWN = 8  # tags in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Of a policy; it carries one as the class attribute `about`, which an object may override by its own.

    Attributes:
        paper: name and identifier, such as "SpecRouter, arXiv:2505.07680"; empty for one without.
        lossless: whether it commits what the target alone would write, whatever its options.
        members: what it needs of a pool, in words, such as "a model below the target".
        observes: what it does not work without.
        oracle: whether it sees ahead, which only a recording can grant.
        target_alone: whether every step of it is one of the target with nothing drafted, whatever it sees, and nothing
            is learnt: so nobody needs to ask it.
        by_pending: whether nothing but the request's pending tokens decides, and nothing is learnt. Each step follows
            from `seen.num_pending`, `seen.waiting`, `seen.has_room`, `seen.found_nothing` and the pool; drafts are all
            by one member, verifications all by a lossless rule, and there is no Commit. So a round is the same wherever
            it begins at the same place of the same text.
        works_ahead: whether its steps may be `Overlap`, whose parts take their seconds at the same time.
    """

    paper: str = ""
    lossless: bool
    members: str = "a target"
    observes: frozenset[Observable] = frozenset()
    oracle: bool = False
    target_alone: bool = False
    by_pending: bool = False
    works_ahead: bool = False


def about_of(policy: object) -> About | None:
    """What a policy, or its class, says of itself; None if it says nothing (yours need not)."""
    about = getattr(policy, "about", None)
    return about if isinstance(about, About) else None


def may_work_ahead(policy: object) -> bool:
    """Whether steps of a policy may be `Overlap`: of one that says nothing of itself they may."""
    about = about_of(policy)
    return about is None or about.works_ahead


def runs_target_alone(policy: object) -> bool:
    """Whether a policy says so of itself; what a class says does not bind one made of it that decides otherwise."""
    about = about_of(policy)
    return about is not None and about.target_alone and _speaks_for_itself(policy)


def decides_by_pending(policy: object) -> bool:
    """Whether a policy says so of itself (`About.by_pending`); whom that binds, see `runs_target_alone`."""
    about = about_of(policy)
    return about is not None and about.by_pending and _speaks_for_itself(policy)


def _speaks_for_itself(policy: object) -> bool:
    """Whether no method was written after what is said in `about`: any of them may have a part in what it decides."""
    kinds = type(policy).__mro__
    if any(isinstance(getattr(kinds[0], name, None), FunctionType) for name in getattr(policy, "__dict__", {})):
        return False
    said_by = next((kind for kind in kinds if "about" in vars(kind) or _methods(kind)), object)
    return "about" in vars(said_by)


def _methods(kind: type) -> list[str]:
    """Methods and properties of a class itself, but for those that Python calls."""
    return [name for name, value in vars(kind).items() if hasattr(value, "__get__") and not name.startswith("__")]


def observed_by(policy: object) -> frozenset[Observable]:
    """What a policy says that it does not work without; nothing of one that says nothing."""
    about = about_of(policy)
    return frozenset() if about is None else about.observes


def check_observes(policy: Policy, name: str, offered: Iterable[Observable], where: str) -> None:
    """Refuse a policy that has to see what a world does not know.

    Args:
        policy: as built.
        name: of the policy, for the message.
        offered: what the world knows.
        where: the world, as in "recording served".

    Raises:
        ValueError: something is missing.
    """
    missing = sorted(observed_by(policy) - set(offered))
    if missing:
        raise ValueError(f"policy {name} needs {', '.join(missing)} of tokens, which {where} does not hold")


def check_tags(policy: Policy, name: str, tags: Iterable[str], where: str) -> None:
    """Refuse a policy that has a part for a tag which no request has.

    Args:
        policy: as built.
        name: of the policy, for the message.
        tags: of the requests; asked for only if the policy names any.
        where: the requests, as in "recording served".

    Raises:
        ArgumentError: there is such a tag.
    """
    named: frozenset[str] = getattr(policy, "named_tags", frozenset())
    held = set(tags) if named else set()
    missing = sorted(named - held)
    if missing:
        there = ", ".join(sorted(held)[:MOST_SHOWN]) + (", ..." if len(held) > MOST_SHOWN else "")
        raise ArgumentError(
            f"policy {name} names the tag {missing[0]}, which no request of {where} has; there are {there}"
        )
