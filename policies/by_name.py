"""Policies by name: `PolicySpec.parse(text)` reads a text once, then `build(pool)` makes a policy for every run.

    NAME | NAME,key=value,... | NAME(key=value,...)
    draft:4/mid:8/target
    path/to/file.py:Class, package.module:Class (with options like a NAME)

A value that is a policy is written with parentheses: `guarded,policy=two-level(most=8)`. The older spelling,
`policy=two-level+most=8` with `+` for `,` and `++` for `+` inside, is read, too. The name of a file that is there, at
the beginning of a policy's text, may have any of these characters.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from os.path import isfile
from typing import TypeAlias, Union, cast

from ..base.errors import at, defined_at, is_foreign, known_are, pass_interrupt, said, told
from ..base.names import ClassKind, names_path
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from .chain_text import PlainValue, PolicyClass, read_options
from .fixed import Chain


class PolicySpecError(ValueError):
    """A policy text that names nothing, or options it does not take; one line."""


_POLICIES: ClassKind[PolicyClass] = ClassKind(
    noun="policy",
    group="paceline.policies",
    methods=("decide", "learn"),
    example="MyPolicy",
    refused=PolicySpecError,
)

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
    """The policies of this package by name; the module of one is imported when it is asked for."""

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


def policy_names() -> list[str]:
    """Ours, and those other packages register in the entry-point group `paceline.policies`; none is loaded for it."""
    return _POLICIES.names(own_policies())


def policies_of_packages() -> dict[str, PolicyClass | PolicySpecError]:
    """What other packages register, by name: the policy, or why it cannot be used."""
    found = dict[str, PolicyClass | PolicySpecError]()
    for name, entries in _POLICIES.registered().items():
        try:
            if name in own_policies():
                places = " and ".join(entry.value for entry in entries)
                raise PolicySpecError(f"policy {name!r} is paceline's own: name {places} as module:Class")
            found[name] = _POLICIES.loaded(entries)
        except PolicySpecError as error:
            found[name] = error
    return found


def policy_class(name: str) -> PolicyClass | None:
    """What a name stands for: a registered one, `path/to/file.py:Class` or `package.module:Class`; None if unknown.

    Raises ValueError for a file or module that is not there or raises, or that has no such class.
    """
    return _POLICIES.called(name, own_policies())


OptionValue: TypeAlias = Union[PlainValue, "PolicySpec"]
# Of a bare chain, such as `draft:4/target`, or `draft:4`, which lacks its end.
_CHAIN = re.compile(r".*/.*|[^:]+:[0-9]+", re.DOTALL)
_BARE, _CLASS = "a chain such as draft:4/target", "file.py:Class or package.module:Class"
MOST_NESTED = 32  # policies in one another; far beyond any that helps, and reading and building go as deep
TOO_DEEP = f"policies can stand in one another {MOST_NESTED} deep at most"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """A policy that is named but not built."""

    name: str  # `chain` of a bare chain; else as in the text
    # by parameter of the constructor, as it wants them; a policy among them is a spec of its own
    options: Mapping[str, OptionValue]
    label: str  # the text, which tables print; of a bare chain, its windows without zeros before them
    # what builds it; None of a word that nobody has registered: a pool's target, or a mistake
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
            values = {} if found is None else read_options(found, options, cls._parse_part)
            if found is not None:
                check_signature(found, values, first="the pool")
        except PolicySpecError:  # of what another package registered, which tells its own name
            raise
        except ValueError as error:
            raise PolicySpecError(f"policy {said(text, repr)}: {error}") from error
        if found is None and options:
            raise unknown_policy(name, _BARE)
        return cls(name=name, options=values, label=text, policy_class=found)

    @classmethod
    def _parse_part(cls, text: str) -> "PolicySpec":
        """As `parse`, of a policy among options, where a lone `+` is a comma, and one is taken off several in a row."""
        file, rest = _file_first(text)
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
        try:
            return self.policy_class(pool, **options)
        except ValueError as error:
            raise PolicySpecError(f"policy {self.label!r}: {error}{at(error)}") from error
        except BaseException as error:  # the constructor may be foreign code
            pass_interrupt(error)
            raise PolicySpecError(f"policy {self.label!r}: its constructor raised {told(error)}") from error

    def _build_part(self, key: str, part: "PolicySpec", pool: Pool) -> Policy:
        try:
            return part.build(pool)
        except PolicySpecError as error:
            raise PolicySpecError(f"policy {self.label!r}: option {key!r}: {error}") from error


def make_policy(text: str, pool: Pool) -> Policy:
    """Build the policy that `text` names for `pool`; raises PolicySpecError if there is none."""
    return PolicySpec.parse(text).build(pool)


def name_and_options(text: str) -> tuple[str, list[str]]:
    """(name, options as `key=value`) of a text; raises ValueError for parentheses that do not pair."""
    file, rest = _file_first(text)
    name, *options = _parts(rest)
    if name.endswith(")"):
        name, _, inside = name[:-1].partition("(")
        options = [*(_parts(inside) if inside else ()), *options]
    return file + name, options


def _file_first(text: str) -> tuple[str, str]:
    """A file that is there, by whatever name, and the rest of a text that begins with it; no file, and the text."""
    path, ends, _ = text.partition(".py")
    file = path + ends
    # Path.is_file raises where a name is too long.
    return (file, text[len(file) :]) if ends and isfile(file) else ("", text)  # noqa: PTH113


def _parts(text: str) -> list[str]:
    parts, opened, start = list[str](), list[int](), 0
    for place, char in enumerate(text):
        if char == "(":
            opened.append(place)
        elif char == ")" and not opened:
            raise ValueError(f"the ) after {text[max(0, place - 20) : place]!r} closes nothing")
        elif char == ")":
            opened.pop()
        if char == "," and not opened:
            parts.append(text[start:place])
            start = place + 1
        if len(opened) > MOST_NESTED:
            raise ValueError(TOO_DEEP)
    if opened:
        raise ValueError(f"the ( after {text[max(0, opened[-1] - 20) : opened[-1]]!r} is never closed")
    return [*parts, text[start:]]


def check_signature(cls: Callable[..., object], options: Mapping[str, object], *, first: str) -> None:
    """Raise ValueError where a constructor does not take these options after its first argument, which is `first`."""
    try:
        inspect.signature(cls).bind(None, **options)
    except TypeError as error:
        told_first = f" (its constructor must take {first} first, then options){defined_at(cls)}"
        raise ValueError(f"{error}{told_first if is_foreign(cast(type, cls)) else ''}") from None


def unknown_policy(name: str, *other_forms: str) -> PolicySpecError:
    """What to raise of a name that stands for nothing; `other_forms` of what could be named there, in words."""
    known = known_are(name, policy_names(), *other_forms, _CLASS, where="paceline policy list")
    return PolicySpecError(f"unknown policy {name!r}: {known}")
