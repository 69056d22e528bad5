"""The models that a study runs: loaded from a pool's file, or in hand already."""

from collections.abc import Mapping
from pathlib import Path

from ..arguments import ArgumentError
from ..progress import Progress, tell
from ..runtime.forward.forward_choice import ForwardKind
from ..runtime.pools.pool import ModelPool
from ..shipped import shipped


def load_pool(
    pool: ModelPool | Path | str | None = None,
    *,
    threads: int = 1,
    devices: Mapping[str, str] | None = None,
    debug: bool = False,
    forward: ForwardKind = "auto",
) -> ModelPool:
    """The models of a pool.

    Args:
        pool: a pool.toml or its folder, or models that are loaded already; None is the shipped pool.
        threads: CPU threads of torch from here on, >= 1; with loaded models they stay as they are.
        devices: of members by name, in place of those of the file; none with loaded models.
        debug: say how the models will run, and which product multiplies which weight.
        forward: how that is, see `forward.choose_forward`.

    Raises:
        PoolFileError, ArgumentError: as `ModelPool.load`; ArgumentError also for devices of loaded models.
    """
    if isinstance(pool, ModelPool) and devices:
        raise ArgumentError("`devices` is for a pool that is loaded, and these models are on their devices already")
    models = pool if isinstance(pool, ModelPool) else _loaded(pool, threads, devices)
    if debug:
        runs = (f"{name}: {runs}" for name, runs in models.forward_names(forward).items())
        tell(f"forwards of {', '.join(runs)}")
        for line in models.product_lines(forward):
            tell(f"product of {line} tokens")
    return models


def _loaded(pool: Path | str | None, threads: int, devices: Mapping[str, str] | None) -> ModelPool:
    path = shipped("pools", "pico") if pool is None else Path(pool)
    with Progress(f"loading {path}"):
        return ModelPool.load(path, threads=threads, devices=devices)
