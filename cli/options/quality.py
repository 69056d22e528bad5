"""`--no-quality`: whether a lossy policy's texts are measured behind a run."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...runs.log import RunLog
from ...runs.text_quality import with_quality
from ...runtime.prompts import Prompt
from ...studies.runtime_door import runtime_module

if TYPE_CHECKING:
    from ...runtime.decode import Output
    from ...runtime.pools.pool import ModelPool

QualityOption = Annotated[
    bool,
    typer.Option(
        "--quality/--no-quality",
        help="Behind the run of a lossy policy, let the target answer alone and judge the texts.",
    ),
]


def measured(
    log: RunLog, pool: "ModelPool", prompts: Sequence[Prompt], outputs: Sequence["Output"], alone: Mapping[str, Any]
) -> RunLog:
    """The log of a run with the quality of its texts; as it is if the policy was lossless or the run cut short.

    Args:
        log: of the run; none of its seconds change.
        pool: the models.
        prompts: of the run.
        outputs: of the run.
        alone: fields of `runtime.quality.Alone`.
    """
    lossy = log.meta["lossy_steps"] or log.meta["lossless"] is False
    if not lossy or log.meta["interrupted"]:
        return log
    quality = runtime_module("quality")
    try:
        return with_quality(log, quality.text_qualities(pool, prompts, outputs, quality.Alone(**alone)))
    except KeyboardInterrupt:  # every request is answered; only this measure is missing
        typer.echo("paceline: interrupted: the answers are kept, their quality is not measured", err=True)
        return log
