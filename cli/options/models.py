"""The options of `run`, `record` and `agree` on models: what they read, how tokens are chosen, keys and values."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ...traces.meta import Sampling

PromptsOption = Annotated[
    Path, typer.Option("--prompts", help='JSONL, a line {"id": ..., "tag": ..., "prompt": ...} a request.')
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first so many prompts.", min=1)]
MaxNewTokensOption = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer.", min=1)]
PoolOption = Annotated[
    Path | None, typer.Option("--pool", help="A pool.toml or its folder; default: the shipped pool.")
]
PoolArgument = Annotated[Path | None, typer.Argument(help="A pool.toml or its folder; default: the shipped pool.")]
ThreadsOption = Annotated[int, typer.Option("--threads", help="CPU threads of torch.", min=1, max=1024)]
# Only a log can have begun in a way of its own.
LiveStartOption = Annotated[
    Literal["prefill", "draft"],
    typer.Option("--start", help="How requests begin: the target's prefill writes the first token, or a draft does."),
]

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

Cache = Literal["slots", "mask"]

CacheOption = Annotated[
    Cache, typer.Option("--cache", help="Of keys and values: a slot per position, or append-only with a mask.")
]
KVLimitOption = Annotated[
    float | None,
    typer.Option(
        "--kv-limit-mib",
        help="Memory of all caches together; where it is short, the youngest request waits and recomputes.",
    ),
]
DeadShareOption = Annotated[
    float | None,
    typer.Option("--dead-share", help="Of --cache mask: share of dead slots that are truncated, in (0, 1]; 0.5."),
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
        ValueError: options that do not belong together, or (of pydantic) out of range.
    """
    if mode == "greedy":
        if any(option is not None for option in (temperature, seed, top_p, top_k)):
            raise ValueError(
                f"--temperature, --seed, --top-p, --top-k belong to --sampling {others}; greedy takes none"
            )
        return Sampling(mode="greedy")
    if temperature is None or seed is None:
        raise ValueError(f"--sampling {mode} needs --temperature and --seed")
    return Sampling(mode=mode, temperature=temperature, seed=seed, top_p=top_p, top_k=top_k)


def limit_bytes(mib: float | None) -> int | None:
    """Bytes of --kv-limit-mib; raises ValueError for what is no amount of memory."""
    if mib is None:
        return None
    if not 0 < mib < float("inf"):
        raise ValueError(f"--kv-limit-mib must be > 0 and finite, got {mib}")
    return max(1, int(mib * 2**20))


def dead_share_of(cache: Cache, share: float | None) -> float:
    """--dead-share; raises ValueError for a cache that has no dead slots."""
    if share is None:
        return 0.5
    if cache != "mask":
        raise ValueError("--dead-share belongs to --cache mask")
    return share
