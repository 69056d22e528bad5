"""Policies as they were given, each with the name that tables show, built anew for every run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import ref

from ..arguments import ArgumentError
from ..decoding.policy import Policy
from ..decoding.pool import Pool
from ..policies.about import about_of
from ..policies.combined.only_lossless import OnlyLossless
from ..policies.registry import own_policies
from ..policies.spec import PolicySpec

PolicyGiven = str | PolicySpec | Callable[[Pool], Policy]
PoliciesGiven = PolicyGiven | Sequence[PolicyGiven] | Mapping[str, PolicyGiven]


@dataclass(slots=True, kw_only=True)
class NamedPolicy:
    """A policy to be built anew for every run. `build` mutates it: it knows again what it made and somebody still has.

    Attributes:
        name: that tables show.
        make: makes it for a pool.
        made_by: its class, or a function; None of a text that names a pool's target.
    """

    name: str
    make: Callable[[Pool], Policy]
    made_by: object
    _made: list[Callable[[], Policy | None]] = field(default_factory=list, init=False, repr=False, compare=False)

    def build(self, pool: Pool) -> Policy:
        """A new policy; raises ValueError if it cannot be made, or is one made before."""
        policy = self.make(pool)
        self._made = [one for one in self._made if one() is not None]
        if any(one() is policy for one in self._made):
            raise ArgumentError(
                f"`policies` {self.name} must make a new policy for every run, or what one learnt goes into the next; "
                "it returned the same one twice"
            )
        self._made.append(_reference(policy))
        return policy

    def admitted(self, pool: Pool, *, lossless: bool) -> Policy:
        """The policy for a run, if it may run.

        One of ours is known by what it says of itself; any other is looked at step by step as well.

        Args:
            pool: it is built for.
            lossless: whether only policies were asked for that commit what the target alone would write.

        Raises:
            ArgumentError: they were, and it is not.
            ValueError: it cannot be built.
        """
        policy = self.build(pool)
        if not lossless:
            return policy
        about = about_of(policy)
        if about is not None and not about.lossless:
            raise ArgumentError(f"policy {self.name} is lossy, and `lossless` was asked for")
        if about is not None and type(policy) in own_policies().values():
            return policy
        return OnlyLossless(policy, about)


def _reference(policy: Policy) -> Callable[[], Policy | None]:
    """What returns the policy as long as there is one: who can return it again has kept it."""
    try:
        return ref(policy)
    except TypeError:  # of a class with slots, which nothing but itself refers to
        return lambda: policy


def named_policy(given: PolicyGiven) -> NamedPolicy:
    """A text or what was read from one, or a class or function that makes the policy for a pool.

    Raises:
        PolicySpecError: a text that names no policy.
        ArgumentError: anything else, such as a policy that is built already and so would learn from run to run.
    """
    spec = PolicySpec.parse(given) if isinstance(given, str) else given
    if isinstance(spec, PolicySpec):
        return NamedPolicy(name=spec.label, make=spec.build, made_by=spec.policy_class)
    if not callable(spec):
        raise ArgumentError(f"`policies` must be texts, or classes and functions that take a pool, got {spec!r}")
    return NamedPolicy(name=getattr(spec, "__name__", repr(spec)), make=spec, made_by=spec)


def named_policies(given: PoliciesGiven) -> list[NamedPolicy]:
    """One or several policies in their order, a mapping's by the names it gives them.

    Raises:
        ArgumentError: none at all, a name given twice, or the name of one of ours for another policy.
    """
    if isinstance(given, str | PolicySpec) or callable(given):
        found = [named_policy(given)]
    elif isinstance(given, Mapping):
        found = [replace(named_policy(one), name=_checked_name(name)) for name, one in given.items()]
    elif isinstance(given, Sequence):
        found = [named_policy(one) for one in given]
    else:
        raise ArgumentError(f"`policies` must be a policy, a list of them or a mapping by name, got {given!r}")
    if not found:
        raise ArgumentError("`policies` must hold at least one, got none")
    for policy in found:
        ours = own_policies().get(policy.name)
        if ours is not None and policy.made_by is not ours:  # the baseline and oracles are known by their names
            raise ArgumentError(f"`policies` must leave the name {policy.name} to paceline's own policy of that name")
    twice = [name for name, count in Counter(policy.name for policy in found).items() if count > 1]
    if twice:
        raise ArgumentError(f"`policies` {twice[0]} is given twice")
    return found


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"`policies` must have names that are texts, got {name!r}")
    return name
