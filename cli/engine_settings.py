"""`paceline settings`: a drafter and a schedule as an engine's own settings."""

from typing import Annotated

import typer

from ..studies.engine_settings import settings as settings_of_engine
from ..studies.options import SettingsOptions
from .output import JsonOption, check_json_path, show


def settings(
    *,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm, llamacpp or transformers.")],
    drafter: Annotated[
        list[str],
        typer.Option(
            metavar="KIND[=PATH]",
            help="model=PATH, eagle=PATH, eagle3=PATH, mtp, mtp=PATH, ngram, ngram=[SHORTEST..]LONGEST or suffix.",
        ),
    ],
    schedule: Annotated[
        str,
        typer.Option(
            metavar="REQUESTS:K,...",
            help="Tokens that are drafted, by running requests: 1:5,8:3,32:0 drafts 5 from one request on, 3 from "
            "eight, none from 32. 1:4 drafts 4 always.",
        ),
    ],
    asked: SettingsOptions,
    json: JsonOption = None,
) -> None:
    """Print what to paste into a serving engine so that it speculates as decided, and what to know of it.

    What the engine would clamp, drop or refuse is refused, with the best that it can.
    """
    check_json_path(json)
    show(json, settings_of_engine(engine, drafter, schedule=schedule, **vars(asked)))
