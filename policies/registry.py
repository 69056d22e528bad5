"""From what a user types to a policy.

`NAME`, `NAME,key=value,...`, a bare chain such as `draft:4/mid:8/target`, `my_policy.py:MyPolicy` and
`package.module:MyPolicy`; the last two take options behind a comma too. Options are read by `policy_options`.
"""

import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from ..decoding.contract import Policy
from ..decoding.foreign_code import at, defined_at, pass_interrupt, told
from ..decoding.pool import Pool
from .combined.guarded import Guarded
from .combined.per_tag import PerTag
from .lossless.adaedl import AdaEDL
from .lossless.adaptive import Adaptive
from .lossless.banditspec import BanditSpec
from .lossless.cas_spec import CasSpec
from .lossless.chain import Chain
from .lossless.confident import Confident
from .lossless.hedgespec import HedgeSpec
from .lossless.ngram import Ngram
from .lossless.ngram_model import NgramFront
from .lossless.plain import Plain
from .lossless.svip import Svip
from .lossless.two_level import TwoLevel
from .lossless.via_sd_lossless import ViaSDLossless
from .lossy.cascade import SpeculativeCascade
from .lossy.early_commit import EarlyCommit
from .lossy.entropy_patch import EntropyPatch
from .lossy.equilibrium import EquilibriumDecoding
from .lossy.pyramid_sd import PyramidSD
from .lossy.via_sd import ViaSD
from .oracles.chain import OracleChain
from .oracles.window import OracleWindow
from .policy_files import class_of_file, class_of_module, names_path
from .policy_options import PolicyClass, PolicySpecError, parse_options
from .specrouter.policy import SpecRouter


def own_policies() -> Mapping[str, PolicyClass]:
    """The policies of this package by name."""
    return {
        "plain": Plain,
        "chain": Chain,
        "two-level": TwoLevel,
        "adaptive": Adaptive,
        "confident": Confident,
        "adaedl": AdaEDL,
        "svip": Svip,
        "ngram": Ngram,
        "ngram-model": NgramFront,
        "banditspec": BanditSpec,
        "hedgespec": HedgeSpec,
        "cas-spec": CasSpec,
        "specrouter": SpecRouter,
        "via-sd": ViaSD,
        "via-sd-lossless": ViaSDLossless,
        "cascade": SpeculativeCascade,
        "pyramid-sd": PyramidSD,
        "early-commit": EarlyCommit,
        "entropy-patch": EntropyPatch,
        "equilibrium": EquilibriumDecoding,
        "oracle-window": OracleWindow,
        "oracle-chain": OracleChain,
        "per-tag": PerTag,
        "guarded": Guarded,
    }


def known_policies() -> Mapping[str, PolicyClass]:
    """Ours and those other packages register in the entry-point group `paceline.policies`.

    Raises:
        PolicySpecError: a package registers a name that is taken, or what cannot be loaded.
    """
    known = dict(own_policies())
    for entry in entry_points(group="paceline.policies"):
        if entry.name in known:
            raise PolicySpecError(f"policy name {entry.name!r} is registered twice (again by {entry.value})")
        known[entry.name] = _loaded(entry)
    return known


def _loaded(entry: EntryPoint) -> PolicyClass:
    """The class that a package registered."""
    try:
        return cast(PolicyClass, entry.load())
    except BaseException as error:  # foreign code
        pass_interrupt(error)
        raise PolicySpecError(f"policy {entry.name!r}: loading {entry.value} raised {told(error)}") from error


def make_policy(text: str, pool: Pool) -> Policy:
    """Build the policy that `text` names for `pool`.

    Raises:
        PolicySpecError: unknown name, file, class or option; an option's value out of range; a chain that is wrong.
    """
    name, *options = text.split(",")
    if not names_path(name) and _is_chain(name, pool):
        if options:
            raise PolicySpecError(f"policy {text!r}: a bare chain takes no options; use chain,spec={name},...")
        return _build(text, Chain, pool, {"spec": name})
    cls = _find(text, name)
    return _build(text, cls, pool, parse_options(text, cls, options, lambda part: make_policy(part, pool)))


def _is_chain(name: str, pool: Pool) -> bool:
    """Whether a text reads as a chain: `draft:4/target`, `target`, or `draft:4`, which lacks its end."""
    member, _, window = name.partition(":")
    return "/" in name or name == pool.target or (member in pool.names and window.isdigit())


def _find(text: str, name: str) -> PolicyClass:
    if names_path(name):
        return class_of_file(text, name)
    if ":" in name:
        return class_of_module(text, name)
    known = known_policies()
    if name not in known:
        raise PolicySpecError(
            f"unknown policy {name!r}: known are {', '.join(known)}, a chain such as draft:4/target, "
            "file.py:Class or package.module:Class"
        )
    return known[name]


def _build(text: str, cls: PolicyClass, pool: Pool, options: Mapping[str, Any]) -> Policy:
    try:
        inspect.signature(cls).bind(pool, **options)
    except TypeError as error:
        ours = cls in own_policies().values()
        needs = "" if ours else f" (its constructor must take the pool first, then options){defined_at(cls)}"
        raise PolicySpecError(f"policy {text!r}: {error}{needs}") from None
    try:
        return cls(pool, **options)
    except ValueError as error:
        raise PolicySpecError(f"policy {text!r}: {error}{at(error)}") from error
    except BaseException as error:  # the constructor may be foreign code
        pass_interrupt(error)
        raise PolicySpecError(f"policy {text!r}: its constructor raised {told(error)}") from error
