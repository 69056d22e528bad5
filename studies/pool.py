"""The models that a study runs: loaded from a pool's file, or in hand already."""

from pathlib import Path

from ..progress import Progress
from ..runtime.pools.pool import ModelPool
from ..shipped import shipped


def load_pool(pool: ModelPool | Path | str | None = None, *, threads: int = 1) -> ModelPool:
    """The models of a pool.

    Args:
        pool: a pool.toml or its folder, or models that are loaded already; None is the shipped pool.
        threads: CPU threads of torch from here on, >= 1; with loaded models they stay as they are.

    Raises:
        PoolFileError: as `ModelPool.load`.
    """
    if isinstance(pool, ModelPool):
        return pool
    path = shipped("pools", "pico") if pool is None else Path(pool)
    with Progress(f"loading {path}"):
        return ModelPool.load(path, threads=threads)
