"""Options that say what a workload is, shared by the commands that take one."""

from dataclasses import dataclass
from typing import Annotated

import typer

from ...traces.workloads.options import ZERO_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChanges:
    """Scaling and truncation as they are typed: each field is an option, and one of `WorkloadOptions`."""

    time_scale: Annotated[float | None, typer.Option(help="Multiply all times by this; not beside --rate.")] = None
    limit: Annotated[int | None, typer.Option(help="Keep the first so many arrivals.")] = None
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Cut longer prompts to this.")] = None
    max_output_tokens: Annotated[int | None, typer.Option(help="Cut longer outputs to this.")] = None
    zero_tokens: Annotated[
        str, typer.Option(metavar="|".join(ZERO_TOKENS), help="What becomes of requests without a token.")
    ] = "refuse"
    tag: Annotated[str | None, typer.Option(help="Give this tag to all requests.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAsked(WorkloadChanges):
    """Further options of what is only looked at."""

    horizon_s: Annotated[
        float | None, typer.Option("--horizon-seconds", help="Leave out what would arrive at this time or later.")
    ] = None
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0
