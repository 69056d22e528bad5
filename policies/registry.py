"""The policies by name: ours, those of other packages, and a class in a file or module, as `my_policy.py:MyPolicy`."""

from collections.abc import Mapping

from ..named_classes import ClassKind
from .ahead.dsi import Dsi
from .ahead.pearl import Pearl
from .ahead.pipespec import PipeSpec
from .combined.guarded import Guarded
from .combined.per_tag import PerTag
from .combined.per_turn import PerTurn
from .hierarchies.consensus import Consensus
from .hierarchies.cs_drafting import CsDrafting
from .hierarchies.hispec import HiSpec
from .hierarchies.polybasic import Polybasic
from .learned.specdec import SpecDec
from .load_aware.autotune import Autotune
from .load_aware.goodput import Goodput
from .load_aware.off_under_load import OffUnderLoad
from .load_aware.slo import Slo
from .lossless.adaedl import AdaEDL
from .lossless.adaptive import Adaptive
from .lossless.banditspec import BanditSpec
from .lossless.cas_spec import CasSpec
from .lossless.chain import Chain
from .lossless.hedgespec import HedgeSpec
from .lossless.ngram import Ngram
from .lossless.ngram_model import NgramFront
from .lossless.plain import Plain
from .lossless.two_level import TwoLevel
from .lossless.unsure_stops import Confident, Svip
from .lossless.via_sd_lossless import ViaSDLossless
from .lossy.cascade import SpeculativeCascade
from .lossy.early_commit import EarlyCommit
from .lossy.entropy_patch import EntropyPatch
from .lossy.equilibrium import EquilibriumDecoding
from .lossy.pyramid_sd import PyramidSD
from .lossy.typical import TypicalAcceptance
from .lossy.via_sd import ViaSD
from .options import PolicyClass
from .oracles.choices import OracleChain, OracleWindow
from .specrouter.policy import SpecRouter
from .suffix.policy import Suffix
from .trees.dynamic import TreeDynamic
from .trees.fixed import Tree


class PolicySpecError(ValueError):
    """A policy text that names nothing, or options it does not take; one line."""


_POLICIES: ClassKind[PolicyClass] = ClassKind(
    noun="policy",
    group="paceline.policies",
    methods=("decide", "learn"),
    example="MyPolicy",
    refused=PolicySpecError,
)

_OWN: Mapping[str, PolicyClass] = {
    "plain": Plain,
    "chain": Chain,
    "two-level": TwoLevel,
    "adaptive": Adaptive,
    "confident": Confident,
    "adaedl": AdaEDL,
    "svip": Svip,
    "specdec++": SpecDec,
    "tree": Tree,
    "tree-dynamic": TreeDynamic,
    "ngram": Ngram,
    "ngram-model": NgramFront,
    "suffix": Suffix,
    "banditspec": BanditSpec,
    "hedgespec": HedgeSpec,
    "cas-spec": CasSpec,
    "cs-drafting": CsDrafting,
    "hispec": HiSpec,
    "polybasic": Polybasic,
    "consensus": Consensus,
    "pearl": Pearl,
    "dsi": Dsi,
    "pipespec": PipeSpec,
    "specrouter": SpecRouter,
    "goodput": Goodput,
    "slo": Slo,
    "autotune": Autotune,
    "via-sd": ViaSD,
    "via-sd-lossless": ViaSDLossless,
    "cascade": SpeculativeCascade,
    "pyramid-sd": PyramidSD,
    "early-commit": EarlyCommit,
    "entropy-patch": EntropyPatch,
    "equilibrium": EquilibriumDecoding,
    "typical": TypicalAcceptance,
    "oracle-window": OracleWindow,
    "oracle-chain": OracleChain,
    "per-tag": PerTag,
    "per-turn": PerTurn,
    "guarded": Guarded,
    "off-under-load": OffUnderLoad,
}


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

    Raises:
        ValueError: a file or module that is not there or raises, or that has no such class.
    """
    return _POLICIES.called(name, own_policies())
