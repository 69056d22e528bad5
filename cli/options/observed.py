"""Options of `paceline validate --observed`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from ...arguments import ArgumentError
from ...studies.observed.validate_observed import ObservedValidation, validate_observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What observed requests are served on in the simulator: options that `validate` has for others as well.

    Attributes:
        cluster: a TOML file, or a device; None: it was not given.
        policy: as it was given, each time.
        trace: that acceptance is drawn from; None: the shipped one.
        cost: of all replicas; None: the cluster's own.
        seed: of all that is drawn.
    """

    cluster: str | None
    policy: list[str] | None
    trace: Path | None
    cost: str | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedAsked:
    """What of a running server is judged, as it is typed: each field is an option."""

    observed: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Judge the simulator, on --cluster, by what paceline observe saw of a server, or by the detailed "
            "result of a benchmark.",
        ),
    ] = None
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Of --observed: fit the seconds of forwards to this other run first."),
    ] = None
    mean_bound: Annotated[
        float, typer.Option(help="Of --observed: error of means, medians, throughput and total time that passes.")
    ] = 0.1
    tail_bound: Annotated[float, typer.Option(help="Of --observed: error of p90 and p99 that passes.")] = 0.2

    def validated(self, asked: Replayed, unused: Mapping[str, object]) -> ObservedValidation:
        """What comes of it; raises ValueError for what is missing, or for one of `unused` that was given."""
        assert self.observed is not None
        for name, given in unused.items():
            if given:
                raise ArgumentError(f"`{name}` has no part in `observed`, whose requests are those of the run")
        if asked.cluster is None:
            raise ArgumentError("`observed` goes with `cluster` FILE or `cluster` DEVICE")
        if asked.policy is not None and len(asked.policy) > 1:
            raise ValueError(f"--policy must be given once beside --observed, got {', '.join(asked.policy)}")
        return validate_observed(
            self.observed,
            cluster=asked.cluster,
            calibrate_on=self.calibrate,
            policy=None if asked.policy is None else asked.policy[0],
            recording=asked.trace,
            cost=asked.cost,
            mean_bound=self.mean_bound,
            tail_bound=self.tail_bound,
            seed=asked.seed,
        )

    def needed_without(self, trace: Path | None) -> Path:
        """The recording that all else needs; raises ArgumentError without it, or for what only --observed takes."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise ArgumentError(f"`{field.name}` goes with `observed`")
        if trace is None:
            raise ArgumentError("`trace` must be given, but with `observed`")
        return trace
