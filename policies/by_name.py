"""Policies by name: `PolicySpec.parse(text)` reads a text once, then `build(pool)` makes a policy for every run.

    NAME | NAME,key=value,... | NAME(key=value,...)
    draft:4/mid:8/target
    path/to/file.py:Class, package.module:Class (with options like a NAME)

A value that is a policy is written with parentheses: `guarded,policy=two-level(most=8)`. The older spelling,
`policy=two-level+most=8` with `+` for `,` and `++` for `+` inside, is read, too. The name of an existing file at the
beginning of a policy's text may have any of these characters.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TypeAlias, Union, cast

from ..base.by_name import (
    CLASS_OF_FILE,
    MOST_NESTED,
    TOO_DEEP,
    NamedKind,
    PlainValue,
    file_first,
    name_and_options,
    names_path,
    read_options,
)
from ..base.errors import known_are, said
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from .about import check_declared
from .chain_text import PolicyClass
from .fixed import Chain


class PolicySpecError(ValueError):
    """A policy text with an unknown name, or options that the policy does not have; one line."""


# By name: the module beside this one, and the class in it.
_PLACES = {
    "plain": "fixed:Plain",
    "chain": "fixed:Chain",
    "two-level": "windows:TwoLevel",
    "adaptive": "windows:Adaptive",
    "confident": "fixed:Confident",
    "adaedl": "windows:AdaEDL",
    "svip": "fixed:Svip",
    "specdec++": "learned:SpecDec",
    "tree": "trees_and_ahead:TreeByRanks",
    "tree-dynamic": "trees_and_ahead:TreeDynamic",
    "ngram": "fixed:Ngram",
    "ngram-model": "fixed:NgramFront",
    "suffix": "suffix:Suffix",
    "banditspec": "bandits:BanditSpec",
    "hedgespec": "bandits:HedgeSpec",
    "cas-spec": "cascades:CasSpec",
    "cs-drafting": "cascades:CsDrafting",
    "hispec": "fixed:HiSpec",
    "polybasic": "cascades:Polybasic",
    "consensus": "windows:Consensus",
    "pearl": "trees_and_ahead:Pearl",
    "dsi": "trees_and_ahead:Dsi",
    "pipespec": "trees_and_ahead:PipeSpec",
    "specrouter": "specrouter.policy:SpecRouter",
    "goodput": "under_load:Goodput",
    "slo": "under_load:Slo",
    "sglang-adaptive": "production:SglangAdaptive",
    "trtllm-gate": "production:TrtllmGate",
    "autotune": "under_load:Autotune",
    "via-sd": "lossy:ViaSD",
    "via-sd-lossless": "fixed:ViaSDLossless",
    "cascade": "lossy:SpeculativeCascade",
    "pyramid-sd": "lossy:PyramidSD",
    "early-commit": "lossy:EarlyCommit",
    "entropy-patch": "lossy:EntropyPatch",
    "ensemble": "lossy:EnsembleVerification",
    "equilibrium": "lossy:EquilibriumDecoding",
    "typical": "lossy:TypicalAcceptance",
    "oracle-window": "oracles:OracleWindow",
    "oracle-chain": "oracles:OracleChain",
    "per-tag": "combined:PerTag",
    "per-turn": "combined:PerTurn",
    "guarded": "combined:Guarded",
    "off-under-load": "under_load:OffUnderLoad",
}


class _OwnPolicies(Mapping[str, PolicyClass]):
    """The policies of this package by name; a policy's module is imported when it is read."""

    def __getitem__(self, name: str) -> PolicyClass:
        module, _, attribute = _PLACES[name].partition(":")
        return cast(PolicyClass, vars(import_module(f".{module}", __package__))[attribute])

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)

    def __contains__(self, name: object) -> bool:
        return name in _PLACES


_OWN = _OwnPolicies()


def own_policies() -> Mapping[str, PolicyClass]:
    """The policies of this package by name."""
    return _OWN


POLICIES: NamedKind[PolicyClass] = NamedKind(
    noun="policy",
    group="paceline.policies",
    methods=("decide", "learn"),
    example="MyPolicy",
    refused=PolicySpecError,
    own=own_policies,
    first="the pool",
)


def policy_class(name: str) -> PolicyClass | None:
    """What a name stands for: a registered one, `path/to/file.py:Class` or `package.module:Class`; None if unknown.

    Raises ValueError for a file or module that does not exist or raises, or that has no such class.
    """
    return POLICIES.called(name)


OptionValue: TypeAlias = Union[PlainValue, "PolicySpec"]
# Of a bare chain, such as `draft:4/target`, or `draft:4`, which lacks its end.
_CHAIN = re.compile(r".*/.*|[^:]+:[0-9]+", re.DOTALL)
_BARE = "a chain such as draft:4/target"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """A policy's name and options, not built."""

    name: str  # `chain` of a bare chain; else as in the text
    # by parameter of the constructor, with its types; a policy among them is a spec of its own
    options: Mapping[str, OptionValue]
    label: str  # the text, which tables print; of a bare chain, its windows without zeros before them
    # what builds it; None of a word that is not registered: a pool's target, or a mistake
    policy_class: PolicyClass | None

    @classmethod
    def parse(cls, text: str) -> "PolicySpec":
        """Read a text.

        Raises PolicySpecError for unknown file, module, class or option, or a value of another kind than the option.
        """
        try:
            name, options = name_and_options(text)
            if _CHAIN.fullmatch(name) and not names_path(name):
                if options:
                    raise ValueError(f"a bare chain takes no options; use chain,spec={name},...")
                label = re.sub(r":0+(?=[0-9])", ":", name)
                return cls(name="chain", options={"spec": name}, label=label, policy_class=Chain)
            found = policy_class(name)
            values = {} if found is None else read_options(found, options, Policy, cls._parse_part)
            if found is not None:
                POLICIES.check_signature(found, values)
        except PolicySpecError:  # of another package's class, whose error has its own name
            raise
        except ValueError as error:
            raise PolicySpecError(f"policy {said(text, repr)}: {error}") from error
        if found is None and options:
            raise unknown_policy(name, _BARE)
        return cls(name=name, options=values, label=text, policy_class=found)

    @classmethod
    def _parse_part(cls, text: str) -> "PolicySpec":
        """As `parse`, of a policy among options: a lone `+` is a comma, of several in a row one is removed."""
        file, rest = file_first(text)
        if "(" not in rest:
            if "+" * MOST_NESTED in rest:
                raise ValueError(TOO_DEEP)
            rest = re.sub(r"\++", lambda run: run[0][1:] or ",", rest)
        return cls.parse(file + rest)

    def build(self, pool: Pool) -> Policy:
        """A new policy for `pool`.

        Raises PolicySpecError for an unknown name, an option's value out of range, or a chain that is wrong.
        """
        if self.policy_class is None:
            if self.name != pool.target:
                raise unknown_policy(self.name, _BARE)
            return Chain(pool, self.name)
        options: dict[str, PlainValue | Policy] = {}
        for key, value in self.options.items():
            options[key] = self._build_part(key, value, pool) if isinstance(value, PolicySpec) else value
        policy = cast(Policy, POLICIES.made(self.label, self.policy_class, pool, options))
        check_declared(policy, self.label)
        return policy

    def _build_part(self, key: str, part: "PolicySpec", pool: Pool) -> Policy:
        try:
            return part.build(pool)
        except PolicySpecError as error:
            raise PolicySpecError(f"policy {self.label!r}: option {key!r}: {error}") from error


def make_policy(text: str, pool: Pool) -> Policy:
    """Build the policy that `text` names for `pool`; raises PolicySpecError if there is none."""
    return PolicySpec.parse(text).build(pool)


def unknown_policy(name: str, *other_forms: str) -> PolicySpecError:
    """The error for an unknown name; `other_forms` is what else could be named there, in words."""
    known = known_are(name, POLICIES.names(), *other_forms, CLASS_OF_FILE, where="paceline policy list")
    return PolicySpecError(f"unknown policy {name!r}: {known}")
