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
    str | None, typer.Option(help="Longest times in seconds for goodput: ttft=2,tpot=0.05; also e2e and queue.")
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


def promised(slo: str | None) -> Mapping[str, float]:
    """Seconds by name; raises ValueError for a text of another form."""
    return {} if slo is None else named_numbers("--slo", "SECONDS", slo.split(","))
