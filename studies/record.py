"""Record what every model of a pool says of a list of prompts: what `paceline record` does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt, prompts_of
from ..runtime.recording import recorder
from ..runtime.timing.forward_seconds import measure_costs
from ..traces.meta import Closure, Sampling, check_title
from ..traces.tries.recording import TrieRecording
from .pool import load_pool

# It takes a minute, and those who only want the contexts need not wait for it.
MEASURING = "measuring seconds (--no-costs to skip)"


def record(
    pool: ModelPool | Path | str | None,
    prompts: Path | Sequence[Prompt | str],
    out: str | Path,
    *,
    sampling: Sampling | None = None,
    max_new_tokens: int = 64,
    closure: Closure | None = None,
    name: str | None = None,
    costs: bool = True,
    threads: int = 1,
) -> TrieRecording:
    """Record what every model says at every context that a policy may ask about; a killed recording continues.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_pool`).
        prompts: a JSONL file, or texts.
        out: the .trace folder to write; what is finished is kept in `OUT.part` beside it.
        sampling: greedy or coupled; greedy if None.
        max_new_tokens: longest trunk, >= 1.
        closure: which contexts off the trunk are kept; if None those of Exact chains, up to 16 tokens off it.
        name: of the recording; the name of `out` without its suffix if None.
        costs: also measure seconds per forward on this machine.
        threads: CPU threads of torch, where a pool is loaded.

    Raises:
        ValueError: prompts or a pool that cannot be recorded, or a name that cannot be; nothing is written then.
        FileExistsError: `out` exists.
    """
    requests = prompts_of(prompts)
    folder = Path(out)
    check_title(folder.stem if name is None else name)
    models = load_pool(pool, threads=threads)
    target: Any = models.target.model
    return recorder.record(
        models,
        requests,
        sampling=Sampling(mode="greedy") if sampling is None else sampling,
        closure=Closure(kind="monotone", reach=16, run=8) if closure is None else closure,
        max_new_tokens=max_new_tokens,
        out=folder,
        name=name,
        costs={target.device.type: measure_costs(models, stage=MEASURING)} if costs else {},
    )
