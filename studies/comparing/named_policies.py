"""Policies as they were given, each with the name that tables show."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...arguments import ArgumentError
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ...policies.spec import PolicySpec

PolicyGiven = str | PolicySpec | Callable[[Pool], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicy:
    """A policy to be built anew for every run.

    Attributes:
        name: that tables show.
        build: makes it for a pool.
    """

    name: str
    build: Callable[[Pool], Policy]


def named_policy(given: PolicyGiven) -> NamedPolicy:
    """A text or what was read from one, or a class or function that makes the policy for a pool.

    Raises:
        PolicySpecError: a text that names no policy.
        ArgumentError: anything else, such as a policy that is built already and so would learn from run to run.
    """
    spec = PolicySpec.parse(given) if isinstance(given, str) else given
    if isinstance(spec, PolicySpec):
        return NamedPolicy(name=spec.label, build=spec.build)
    if not callable(given):
        raise ArgumentError(f"`policies` must be texts, or classes and functions that take a pool, got {given!r}")
    return NamedPolicy(name=getattr(given, "__name__", repr(given)), build=given)


def named_policies(given: Sequence[PolicyGiven] | Mapping[str, PolicyGiven]) -> list[NamedPolicy]:
    """Policies in their order, a mapping's by the names it gives them.

    Raises:
        ArgumentError: none at all, or a name given twice.
    """
    if not given:
        raise ArgumentError("`policies` must hold at least one, got none")
    if isinstance(given, Mapping):
        return [NamedPolicy(name=name, build=named_policy(one).build) for name, one in given.items()]
    found = [named_policy(one) for one in given]
    twice = [name for name, count in Counter(policy.name for policy in found).items() if count > 1]
    if twice:
        raise ArgumentError(f"`policies` {twice[0]} is given twice")
    return found
