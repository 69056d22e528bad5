"""The models that a study runs: loaded from a pool's file, or in hand already."""

from collections.abc import Mapping
from pathlib import Path

from ..arguments import ArgumentError
from ..progress import Progress, tell
from ..runtime.forced.forced_pool import ForcedPool
from ..runtime.forward.forward_choice import ForwardKind
from ..runtime.pools.loaded_members import LoadedMembers
from ..runtime.pools.pool import ModelPool
from ..runtime.pools.pool_file import is_forced_pool
from ..shipped import pool_path


def load_pool(
    pool: ModelPool | Path | str | None = None,
    *,
    threads: int = 1,
    devices: Mapping[str, str] | None = None,
    debug: bool = False,
    forward: ForwardKind = "auto",
    chat: bool = False,
) -> ModelPool:
    """The models of a pool.

    Args:
        pool: a pool.toml or its folder, or models that are loaded already; None is the shipped pool.
        threads: CPU threads of torch from here on, >= 1; with loaded models they stay as they are.
        devices: of members by name, in place of those of the file; none with loaded models.
        debug: say how the models will run, and which product multiplies which weight.
        forward: how that is, see `forward.choose_forward`.
        chat: put prompts as questions of a dialogue, by the tokenizer's chat template; models that are loaded already
            do so or not.

    Raises:
        PoolFileError, ArgumentError: as `ModelPool.load`; ArgumentError also for devices or a chat of loaded models.
    """
    if isinstance(pool, ModelPool) and devices:
        raise ArgumentError("`devices` is for a pool that is loaded, and these models are on their devices already")
    if isinstance(pool, ModelPool) and chat and pool.chat is None:
        raise ArgumentError("`chat` is for a pool that is loaded, and these models were loaded without a chat template")
    models = pool if isinstance(pool, ModelPool) else _loaded(pool, threads, devices, chat)
    if models.ranks is not None:
        tell(f"{models.ranks.num_ranks} processes run the pool together, all models by their own modules")
    if debug:
        _tell_how_they_run(models, forward)
    return models


def is_forced(pool: ModelPool | ForcedPool | Path | str | None) -> bool:
    """Whether the models are, or will be, those of a forced pool; raises PoolFileError for a file that is no pool's."""
    return isinstance(pool, ForcedPool) or (isinstance(pool, Path | str) and is_forced_pool(pool_path(pool)))


def load_models(
    pool: ModelPool | ForcedPool | Path | str | None = None,
    *,
    threads: int = 1,
    debug: bool = False,
    chat: bool = False,
) -> ModelPool | ForcedPool:
    """As `load_pool`, for those who can do with a forced pool as well; its models are made, and it has no chat."""
    if chat and is_forced(pool):
        raise ArgumentError("`chat` must be left out with a forced pool, which reads no text")
    if isinstance(pool, ForcedPool):
        models = pool
    elif isinstance(pool, Path | str) and is_forced(pool):
        with Progress(f"making the models of {pool}"):
            models = ForcedPool.load(pool_path(pool), threads=threads)
    else:
        return load_pool(pool, threads=threads, debug=debug, chat=chat)
    if debug:
        _tell_how_they_run(models, "auto")
    return models


def _tell_how_they_run(models: LoadedMembers, forward: ForwardKind) -> None:
    runs = (f"{name}: {runs}" for name, runs in models.forward_names(forward).items())
    tell(f"forwards of {', '.join(runs)}")
    for line in models.product_lines(forward):
        tell(f"product of {line} tokens")


def _loaded(pool: Path | str | None, threads: int, devices: Mapping[str, str] | None, chat: bool) -> ModelPool:
    path = pool_path(pool)
    with Progress(f"loading {path}"):
        return ModelPool.load(path, threads=threads, devices=devices, chat=chat)
