"""The sampling options of `record`, `run` and `agree`."""

from typing import Annotated, Literal

import typer

from ...traces.meta import LOWEST_TEMPERATURE, Sampling

# Rejection sampling draws again for every chain, so that no recording holds it.
RecordedMode = Literal["greedy", "coupled"]
Mode = Literal["greedy", "coupled", "rejection"]

SamplingOption = Annotated[Mode, typer.Option("--sampling", help="How tokens are chosen.")]
TemperatureOption = Annotated[
    float | None, typer.Option("--temperature", help="Of coupled and rejection sampling, >= 0.001.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Of coupled and rejection sampling.")]
RecordedSamplingOption = Annotated[RecordedMode, typer.Option("--sampling", help="How tokens are chosen.")]
RecordedTemperatureOption = Annotated[
    float | None, typer.Option("--temperature", help="Of coupled sampling, >= 0.001.")
]
RecordedSeedOption = Annotated[int | None, typer.Option("--seed", help="Of coupled sampling.")]
TopPOption = Annotated[
    float | None, typer.Option("--top-p", help="Sample from the most probable tokens that hold this share, in (0, 1].")
]
TopKOption = Annotated[
    int | None, typer.Option("--top-k", help="Sample from so many of the most probable tokens, >= 1; before --top-p.")
]


def sampling_of(
    mode: Mode,
    temperature: float | None,
    seed: int | None,
    top_p: float | None = None,
    top_k: int | None = None,
    *,
    others: str = "coupled",
) -> Sampling:
    """The sampling asked for; `others` are the modes of the command beside greedy, in words.

    Raises:
        ValueError: options that do not belong together, or out of range.
    """
    if mode == "greedy":
        if any(option is not None for option in (temperature, seed, top_p, top_k)):
            raise ValueError(
                f"--temperature, --seed, --top-p, --top-k belong to --sampling {others}; greedy takes none"
            )
        return Sampling(mode="greedy")
    if temperature is None or seed is None:
        raise ValueError(f"--sampling {mode} needs --temperature and --seed")
    if not LOWEST_TEMPERATURE <= temperature < float("inf"):
        raise ValueError(f"--temperature must be >= {LOWEST_TEMPERATURE:g} and finite, got {temperature}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"--top-p must be in (0, 1], got {top_p}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"--top-k must be >= 1, got {top_k}")
    return Sampling(mode=mode, temperature=temperature, seed=seed, top_p=top_p, top_k=top_k)
