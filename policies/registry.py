"""The policies by name: ours, those of other packages, and a class in a file or module, as `my_policy.py:MyPolicy`."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import cast

from ..foreign_code import defined_at, pass_interrupt, told
from .combined.guarded import Guarded
from .combined.per_tag import PerTag
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
from .lossy.via_sd import ViaSD
from .options import PolicyClass
from .oracles.choices import OracleChain, OracleWindow
from .specrouter.policy import SpecRouter


class PolicySpecError(ValueError):
    """A policy text that names nothing, or options it does not take; one line."""


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


def policy_class(name: str) -> PolicyClass | None:
    """What a name stands for: a registered one, `path/to/file.py:Class` or `package.module:Class`; None if unknown.

    Raises:
        ValueError: a file or module that is not there or raises, or that has no such class.
    """
    if names_path(name):
        path, colon, attribute = name.rpartition(":")
        if not colon:
            raise ValueError(f"say which class of the file, as in {name}:MyPolicy")
        return _class_in(_load_file(Path(path)), attribute)
    if ":" in name:
        module, _, attribute = name.partition(":")
        return _class_in(_import(module), attribute)
    return known_policies().get(name)


def names_path(name: str) -> bool:
    """Whether a name reads as a file."""
    return ".py:" in name or name.endswith(".py")


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except BaseException as error:  # the user's module; whatever it raises is reported by name
        pass_interrupt(error)
        raise ValueError(f"importing {module!r} raised {told(error)}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"paceline_policy_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # the user's file; whatever it raises is reported by name
        pass_interrupt(error)
        raise ValueError(f"{path} raised {told(error)}") from error
    return module


def _class_in(module: ModuleType, attribute: str) -> PolicyClass:
    cls = getattr(module, attribute, None)
    if not inspect.isclass(cls) or not hasattr(cls, "decide") or not hasattr(cls, "learn"):
        raise ValueError(f"{attribute!r} is not a class with decide and learn{defined_at(cls)}")
    return cast(PolicyClass, cls)
