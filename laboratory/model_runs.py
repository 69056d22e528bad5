"""What experiments with real models share: the pool, its prompts, and greedy runs, alone or in turns."""

from collections.abc import Sequence
from functools import partial

from ..policies.spec import make_policy
from ..runs.log import RunLog
from ..runtime.decode import Output, decode, whole
from ..runtime.memory import Memory
from ..runtime.pools.loaded_members import loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import PROMPTS_FILE, Prompt, read_prompts
from ..studies.recording_to_agree import matching_trace
from ..traces.meta import Sampling
from ..traces.tries.recording import TrieRecording
from .findings.finding import ExperimentSetting
from .timing import in_turns

GREEDY = Sampling(mode="greedy")


def pool_of(setting: ExperimentSetting) -> ModelPool:
    """The models; raises as `ModelPool.load`."""
    return ModelPool.load(setting.pool, threads=setting.threads)


def prompts_of(setting: ExperimentSetting, count: int, *, skip: int = 0) -> tuple[Prompt, ...]:
    """The first prompts beside the pool file after `skip`: `count`, or fewer by the limit.

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


def models_of(setting: ExperimentSetting, trace: TrieRecording, count: int) -> tuple[ModelPool, tuple[Prompt, ...]]:
    """The pool of the setting's recording, and the first of its prompts: `count`, or as many as `trace` holds.

    Raises:
        TraceFormatError: the recording is not one of this pool and its prompts.
        ValueError: as `prompts_of`.
    """
    pool = pool_of(setting)
    prompts = prompts_of(setting, min(count, len(trace.requests)))
    budget = trace.requests[0].max_new_tokens
    matching_trace(setting.trace, pool, prompts, sampling=GREEDY, max_new_tokens=budget)
    return pool, prompts


def ran(
    pool: ModelPool,
    policy: str,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    batch: int = 1,
    memory: Memory | None = None,
) -> tuple[tuple[Output, ...], RunLog]:
    """Answers and the log; an interrupt ends the experiment."""
    made = make_policy(policy, loaded_pool(pool))
    return whole(
        decode(
            pool,
            made,
            prompts,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            name=policy,
            batch=batch,
            memory=memory,
        )
    )


def ran_in_turns(
    pool: ModelPool, policies: Sequence[str], prompts: Sequence[Prompt], *, runs: int, max_new_tokens: int
) -> dict[str, list[tuple[tuple[Output, ...], RunLog]]]:
    """By policy its `runs` runs, all policies in turn."""
    jobs = {policy: partial(ran, pool, policy, prompts, max_new_tokens=max_new_tokens) for policy in policies}
    return in_turns(jobs, runs=runs)
