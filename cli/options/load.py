"""Options of the commands that serve a workload."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import typer

from ...arguments import ArgumentError
from .parsing import named_numbers
from .workload import WorkloadChanges

WORKLOAD = "A file of requests (docs/workloads.md), or a generator, as in poisson:rate=4,requests=1000."
SloOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[CLASS:]NAME=SECONDS,...",
        help="Longest times in seconds for goodput: ttft=2,tpot=0.05; also e2e and queue. Of one class of requests: "
        "chat:ttft=0.5,tpot=0.05; repeat it for others.",
    ),
]
CLUSTER = "A TOML file (docs/cluster.md), or a device of the sheet (h100, ...): one replica on it."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAsked(WorkloadChanges):
    """What is served and until when, as it is typed: each field is an option."""

    horizon_s: Annotated[
        float | None,
        typer.Option("--horizon-seconds", help="Stop the run then, whatever is unfinished; default: the cluster's."),
    ] = None
    slo: SloOption = None

    def options(self) -> dict[str, Any]:
        """As keywords; raises ValueError for an SLO that is none."""
        return asdict(self) | {"slo": promised(self.slo)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAsked(LoadAsked):
    """What `compare` serves, if it is to serve anything."""

    workload: Annotated[
        str | None, typer.Option(metavar="FILE|SPEC", help=f"Serve these requests on --cluster. {WORKLOAD}")
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(metavar="R,R,...", help="Of --workload: mean arrivals per second; default: the workload's own."),
    ] = None
    cluster: Annotated[str | None, typer.Option(metavar="FILE|DEVICE", help=f"Of --workload. {CLUSTER}")] = None

    def options(self) -> dict[str, Any]:
        """Those of `LoadAsked`, as keywords."""
        given = LoadAsked.options(self)
        for name in ("workload", "rate", "cluster"):
            del given[name]
        return given

    def refuse_without_workload(self) -> None:
        """Refuse options that only --workload takes; raises ArgumentError for the first that was given."""
        given = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        if given:
            raise ArgumentError(f"`{given[0]}` goes with `workload`")


def promised(slo: list[str] | None) -> Mapping[str, float | Mapping[str, float]]:
    """Seconds by name, and by class and name; raises ValueError for a text of another form."""
    parts: dict[str, list[str]] = {}
    for text in slo or ():
        name, colon, _ = text.partition("=")[0].rpartition(":")
        if colon and not name:
            raise ValueError(f"--slo must be [CLASS:]NAME=SECONDS,..., got {text!r}")
        parts.setdefault(name, []).extend(text[len(name + colon) :].split(","))
    of_all = named_numbers("--slo", "SECONDS", parts.pop("", None))
    if both := sorted(of_all.keys() & parts):
        raise ValueError(f"--slo cannot promise {both[0]} to all where a class has that name, got {both[0]} as both")
    return {
        **of_all,
        **{name: named_numbers(f"--slo {name}:", "SECONDS", of_class) for name, of_class in parts.items()},
    }
