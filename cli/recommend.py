"""`paceline recommend`: from a recording to a draft length by running requests, and the setting to paste."""

from typing import Annotated

import typer

from ..studies.options import DraftLengthOptions, MixOptions, ReplayOptions, SeedsOptions
from ..studies.recommend import recommend as recommended
from .options import TraceOption
from .output import JsonOption, check_json_path, show


def recommend(
    *,
    trace: TraceOption = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Running requests, each with every K; repeatable. Default: 1, 2, 4, ... up to the requests of a half.",
            min=1,
        ),
    ] = None,
    lengths: DraftLengthOptions,
    mix: MixOptions,
    replay: ReplayOptions,
    repeats: SeedsOptions,
    json: JsonOption = None,
) -> None:
    """Find the best draft length at each number of running requests, and print the setting to paste.

    Speculation switched off is always a candidate. The choice is made on one half of the requests and its gain is that
    of the other half. Where requests or cost do not tell drafting from none, no setting is named, but what to measure.
    """
    check_json_path(json, trace)
    options = {name: value for record in (lengths, mix, replay, repeats) for name, value in vars(record).items()}
    show(json, recommended(trace, batches=batch, **options))
