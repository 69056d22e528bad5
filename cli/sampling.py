"""The sampling options of `record` and `run`."""

from enum import StrEnum

from ..traces.meta import LOWEST_TEMPERATURE, Sampling


class SamplingMode(StrEnum):
    """How tokens are chosen."""

    greedy = "greedy"
    coupled = "coupled"


def sampling_of(mode: SamplingMode, temperature: float | None, seed: int | None) -> Sampling:
    """The sampling asked for; raises ValueError for options that do not belong together."""
    if mode is SamplingMode.greedy:
        if temperature is not None or seed is not None:
            raise ValueError("--temperature and --seed belong to --sampling coupled; greedy takes neither")
        return Sampling(mode="greedy")
    if temperature is None or seed is None:
        raise ValueError("--sampling coupled needs --temperature and --seed")
    if not LOWEST_TEMPERATURE <= temperature < float("inf"):
        raise ValueError(f"--temperature must be >= {LOWEST_TEMPERATURE:g} and finite, got {temperature}")
    return Sampling(mode="coupled", temperature=temperature, seed=seed)
