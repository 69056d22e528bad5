"""What experiments with real models share: the pool, its prompts, and one greedy run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..policies.spec import make_policy
from ..runs.log import RunLog
from ..runtime.prompts import PROMPTS_FILE, Prompt, read_prompts
from ..studies.pool import load_pool
from ..studies.runtime_door import runtime_module
from ..traces.meta import Sampling
from .finding import Setting

if TYPE_CHECKING:
    from ..runtime.decode import Output
    from ..runtime.pools.pool import ModelPool


def pool_of(setting: Setting) -> "ModelPool":
    """The models; raises as `load_pool`."""
    return load_pool(setting.pool, threads=setting.threads, show_progress=False)


def prompts_of(setting: Setting, count: int, *, skip: int = 0) -> tuple[Prompt, ...]:
    """The first prompts beside the pool file behind `skip`: `count`, or fewer by the limit.

    Raises:
        ValueError: the pool has no prompts of its own, or not so many.
    """
    folder = setting.pool if setting.pool.is_dir() else setting.pool.parent
    path = folder / PROMPTS_FILE
    if not path.is_file():
        raise ValueError(f"--pool {setting.pool}: {PROMPTS_FILE} must lie beside the pool file, got none")
    prompts = read_prompts(path)[skip:][: min(count, setting.limit or count)]
    if not prompts:
        raise ValueError(f"{path}: must hold more than {skip} prompts, got {skip} or fewer")
    return prompts


def ran(
    pool: "ModelPool", policy: str, prompts: Sequence[Prompt], *, max_new_tokens: int
) -> "tuple[tuple[Output, ...], RunLog]":
    """Greedy answers, one request at a time, and the log; an interrupt ends the experiment."""
    members = runtime_module("pools.loaded_pool").loaded_pool(pool)
    outputs, log = runtime_module("decode").decode(
        pool,
        make_policy(policy, members),
        prompts,
        sampling=Sampling(mode="greedy"),
        max_new_tokens=max_new_tokens,
        name=policy,
        show_progress=False,
    )
    if log.meta["interrupted"]:
        raise KeyboardInterrupt
    return outputs, log


def ran_in_turns(
    pool: "ModelPool", policies: Sequence[str], prompts: Sequence[Prompt], *, runs: int, max_new_tokens: int
) -> "dict[str, list[tuple[Sequence[Output], RunLog]]]":
    """By policy its `runs` runs, all policies in turn, so that whatever else the machine does meets them alike."""
    found: dict[str, list[tuple[Sequence[Output], RunLog]]] = {policy: [] for policy in policies}
    for _ in range(runs):
        for policy, turns in found.items():
            turns.append(ran(pool, policy, prompts, max_new_tokens=max_new_tokens))
    return found
