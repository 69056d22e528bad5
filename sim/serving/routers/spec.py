"""Routers as a user names them: `RouterSpec.parse(text)`, then `build(setting)` for every run.

    NAME | NAME,key=value,... | NAME(key=value,...) | path/to/file.py:Class,... | package.module:Class,...

Other packages register theirs in the entry-point group `paceline.routers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from ....arguments import known_are
from ....foreign_code import at, pass_interrupt, said, told
from ....named_classes import ClassKind
from ....policies.options import PlainValue, read_options
from ....policies.spec import check_signature, name_and_options
from .least_loaded import LeastLoaded
from .prefix_affinity import PrefixAffinity
from .round_robin import RoundRobin
from .router import Router, RouterSetting
from .two_choices import TwoChoices

RouterClass = Callable[..., Router]


class RouterSpecError(ValueError):
    """A router's text that names nothing, or options it does not take; one line."""


_ROUTERS: ClassKind[RouterClass] = ClassKind(
    noun="router", group="paceline.routers", methods=("pick",), example="MyRouter", refused=RouterSpecError
)


def own_routers() -> Mapping[str, RouterClass]:
    """The routers of this package by name."""
    return {
        "round-robin": RoundRobin,
        "least-loaded": LeastLoaded,
        "prefix-affinity": PrefixAffinity,
        "two-choices": TwoChoices,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """A router that is named but not built.

    Attributes:
        label: the text, which tables print.
        options: by parameter of the constructor, as it wants them.
        router_class: what builds it.
    """

    label: str
    options: Mapping[str, PlainValue]
    router_class: RouterClass

    @classmethod
    def parse(cls, text: str) -> "RouterSpec":
        """Read a text.

        Raises:
            RouterSpecError: unknown name, file, module, class or option, or a value of another kind than the option.
        """
        try:
            name, options = name_and_options(text)
            found = _ROUTERS.called(name, own_routers())
            if found is None:
                known = _ROUTERS.names(own_routers())
                raise ValueError(known_are(name, known, "file.py:Class or package.module:Class"))
            values = read_options(found, options, _no_policy)
            check_signature(found, values, first="a RouterSetting")
        except RouterSpecError:  # of what another package registered, which tells its own name
            raise
        except ValueError as error:
            raise RouterSpecError(f"router {said(text, repr)}: {error}") from error
        return cls(label=text, options=values, router_class=found)

    def build(self, setting: RouterSetting) -> Router:
        """A new router; raises RouterSpecError for an option's value out of range."""
        try:
            return self.router_class(setting, **self.options)
        except ValueError as error:
            raise RouterSpecError(f"router {self.label!r}: {error}{at(error)}") from error
        except BaseException as error:  # the constructor may be foreign code
            pass_interrupt(error)
            raise RouterSpecError(f"router {self.label!r}: its constructor raised {told(error)}") from error


def _no_policy(text: str) -> NoReturn:
    raise ValueError(f"a router takes no policy, got {text!r}")
