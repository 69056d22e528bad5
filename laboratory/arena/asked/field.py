"""The policies of an arena: those of this package that need not be told anything, or a user's choice."""

from collections.abc import Sequence
from inspect import Parameter, signature

from ....arguments import ArgumentError, repeated
from ....policies.about import BRANCHES, about_of
from ....policies.check import check_pool
from ....policies.options import PolicyClass
from ....policies.registry import own_policies
from ....policies.spec import PolicySpec


def default_field() -> tuple[str, ...]:
    """Every policy of this package, with its defaults, in the order of the registry.

    Not among them are oracles, which see ahead, those of token trees, which few recordings hold, and those that must be
    given something: a chain, or another policy.
    """
    return tuple(name for name, kind in own_policies().items() if not _left_out(kind) and not _must_be_told(kind))


def asked_field(policies: Sequence[str] | None, added: Sequence[str] | None) -> tuple[PolicySpec, ...]:
    """The policies that are to be played.

    Args:
        policies: texts, as `compare` takes them; None: the default field.
        added: further ones.

    Raises:
        PolicySpecError: a text that names nothing, or options it does not take; one line.
        ArgumentError: one of them twice.
    """
    specs = [PolicySpec.parse(text) for text in (*(policies or default_field()), *(added or ()))]
    for spec in specs:
        if spec.policy_class is None:  # a target's name, or nobody's: told now, and not cell by cell
            spec.build(check_pool())
    twice = repeated(spec.label for spec in specs)
    if twice:
        raise ArgumentError(f"`policies` must differ, got {twice[0]} twice")
    return tuple(specs)


def _left_out(kind: PolicyClass) -> bool:
    about = about_of(kind)
    return about is not None and (about.oracle or about.observes >= BRANCHES)


def _must_be_told(kind: PolicyClass) -> bool:
    _, *options = signature(kind).parameters.values()  # the pool comes first
    return any(one.default is Parameter.empty and one.kind is not Parameter.VAR_KEYWORD for one in options)
