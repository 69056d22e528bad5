"""The contenders of benchmarks/decoding.py and real_models/tasks.py: transformers, a hand-written loop, and `decode`.

All are greedy and answer the same prompts. Seconds are those of decoding: models are loaded, and the runtime's worlds
made, before the clock starts.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import paceline
import torch
from paceline.decoding.results import VERIFY
from paceline.policies import make_policy
from paceline.runs.log import RunLog
from paceline.runtime.decode import decode
from paceline.runtime.forward_kinds import CacheKind, ForwardKind
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prepare import Prepared
from paceline.runtime.prompts import Prompt
from paceline.runtime.threads import Memory
from paceline_laboratory.shared import GREEDY
from shared.hand_written import speculate

Texts = list[list[int]]


class Answered(NamedTuple):
    """One run: committed tokens of every prompt, seconds, the log where the runtime decoded, and seconds by prompt."""

    texts: Texts
    seconds: float
    log: RunLog | None = None
    each_s: tuple[float, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        """Rate over all prompts."""
        return sum(map(len, self.texts)) / self.seconds


class Task(NamedTuple):
    """The prompts and limits of decoding."""

    prompts: list[Prompt]
    max_new_tokens: int


Job = Callable[[], Answered]


def one_by_one(pool: ModelPool, task: Task, answer: Callable[[list[int]], list[int]]) -> Job:
    """A contender at batch 1."""

    def job() -> Answered:
        prompts = [pool.encode(prompt.text) for prompt in task.prompts]
        texts, instants_s = [], [time.perf_counter()]
        for prompt in prompts:
            texts.append(answer(prompt))
            instants_s.append(time.perf_counter())
        each_s = tuple(end_s - start_s for start_s, end_s in pairwise(instants_s))
        return Answered(texts, instants_s[-1] - instants_s[0], each_s=each_s)

    return job


def _generated(pool: ModelPool, task: Task, prompt: list[int], **options: object) -> list[int]:
    """What `generate()` of the target writes after a prompt."""
    ids = torch.tensor([prompt])
    answered = pool.target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=task.max_new_tokens,
        pad_token_id=pool.eos_token_ids[0],
        **options,
    )
    return answered[0, len(prompt) :].tolist()


def generating(pool: ModelPool, task: Task, *, assistant: str | None = None, window: int = 0) -> Job:
    """Stock `generate()`, with assisted generation if there is an assistant."""
    model = None if assistant is None else pool.member(assistant).model
    options = {} if model is None else {"assistant_model": model}

    def answer(prompt: list[int]) -> list[int]:
        if model is not None:  # transformers reads the assistant's own config, and jobs share the assistant
            config = model.generation_config
            config.num_assistant_tokens = window
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0
        return _generated(pool, task, prompt, **options)

    return one_by_one(pool, task, answer)


def drop_in(pool: ModelPool, task: Task, drafter: str, window: int, *, prepared: Prepared | None = None) -> Job:
    """`generate()` with two more lines, whose models were prepared before or are for each call."""
    options = {"policy": f"{drafter}:{window}/target", "custom_generate": prepared or paceline.generate}
    if prepared is None:
        options |= {"assistant_models": [pool.member(drafter).model], "assistant_names": [drafter]}
    return one_by_one(pool, task, lambda prompt: _generated(pool, task, prompt, **options))


def by_hand(pool: ModelPool, task: Task, drafter: str, window: int) -> Job:
    """The loop in hand_written.py."""
    draft, target = pool.member(drafter).model, pool.target.model
    budget, eos = task.max_new_tokens, frozenset(pool.eos_token_ids)
    return one_by_one(
        pool, task, lambda prompt: speculate(draft, target, prompt, window=window, max_new_tokens=budget, eos=eos)
    )


def runtime(
    pool: ModelPool,
    task: Task,
    policy: str,
    *,
    batch: int = 1,
    cache: CacheKind = "slots",
    forward: ForwardKind = "auto",
) -> Job:
    """`decode` under a policy."""

    def job() -> Answered:
        outputs, log = decode(
            pool,
            make_policy(policy, loaded_pool(pool)),
            task.prompts,
            sampling=GREEDY,
            max_new_tokens=task.max_new_tokens,
            name=policy,
            batch=batch,
            memory=Memory(cache=cache),
            forward=forward,
        )
        finished, admitted = log.requests["finished_at_s"], log.requests["admitted_at_s"]
        texts = [list(output.tokens) for output in outputs]
        return Answered(texts, float(finished.max() - admitted.min()), log, tuple((finished - admitted).tolist()))

    return job


class RoundSeconds(NamedTuple):
    """Mean seconds of a round by kind; a round ends with an operation of the target at any batch."""

    forward_s: float
    placing_s: float
    sampling_s: float
    policy_s: float
    bookkeeping_s: float

    @property
    def outside_s(self) -> float:
        """Seconds outside forwards, including clock readings (0.1 microseconds each, about forty per round)."""
        return sum(self) - self.forward_s


def mean_round(answered: Answered) -> RoundSeconds:
    """The mean round of a run of the runtime."""
    log = answered.log
    assert log is not None
    target = len(log.meta["members"]) - 1
    rounds = int(((log.ops["kind"] == VERIFY) & (log.ops["level"] == target)).sum())
    phases = log.meta["phases"]
    known = (phases["forward_s"], phases["placing_s"], phases["sampling_s"], log.meta["policy_s"])
    return RoundSeconds(*(seconds / rounds for seconds in (*known, answered.seconds - sum(known))))
