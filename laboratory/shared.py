"""Code shared by experiments with real models: pool and prompts, runs, watched caches, and models near a pool's target.

The last are perturbed copies, submodels without a file, and newly trained small drafters. Letters: T tokens of a text,
V vocabulary.
"""

import copy
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from paceline.policies.by_name import make_policy
from paceline.runs.log import RunLog
from paceline.runtime.caches import MemberKV
from paceline.runtime.decode import Output, Run, decode, sessions_of, whole
from paceline.runtime.draft import num_common
from paceline.runtime.forward_kinds import CacheKind
from paceline.runtime.pools.members import LoadedMember, describe_model, loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.prompts import PROMPTS_FILE, Prompt, read_prompts
from paceline.runtime.slim import Calibration, Mask, next_token_probs
from paceline.runtime.threads import Memory
from paceline.runtime.tokenizers import Alignment
from paceline.runtime.world import TorchWorld
from paceline.studies.agree import matching_trace
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.meta import GREEDY as GREEDY
from paceline.traces.meta import Sampling
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from .findings import ExperimentSetting
from .replays import in_turns
from .training.recipe import read_recipe
from .training.texts import build_corpus, pack_corpus, train_tokenizer
from .training.training import train_target


def pool_of(setting: ExperimentSetting) -> ModelPool:
    """The models; raises as `ModelPool.load`."""
    return ModelPool.load(setting.pool, threads=setting.threads)


def prompts_of(setting: ExperimentSetting, count: int, *, skip: int = 0) -> tuple[Prompt, ...]:
    """Prompts beside the pool file after `skip`: `count`, or fewer by the limit; raises ValueError if there is none."""
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

    Raises TraceFormatError unless the recording is of this pool and its prompts.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Caches of all members after one operation."""

    # with memory
    held_slots: int
    # of these, those whose token belongs to a text
    live_slots: int
    held_bytes: int
    live_bytes: int

    @property
    def dead_share(self) -> float:
        """Share of the held bytes, 0 to 1; 0 if none are held."""
        return 1 - self.live_bytes / self.held_bytes if self.held_bytes else 0.0


def watch_caches(
    pool: ModelPool, policy: str, prompts: Sequence[Prompt], *, max_new_tokens: int, batch: int, cache: CacheKind
) -> tuple[tuple[Held, ...], int]:
    """Decode once; returns the caches' state after every operation, and how often live slots were moved together."""
    world = TorchWorld(pool=pool, sampling=GREEDY, memory=Memory(cache=cache))
    run = Run(world, make_policy(policy, loaded_pool(pool)), name=policy)
    sessions = sessions_of(pool, prompts, max_new_tokens)
    held = tuple(_look(world.manager.caches.values()) for _ in run.driver.run(sessions, batch))
    return held, sum(getattr(one, "num_truncations", 0) for one in world.manager.caches.values())


def _look(caches: Collection[MemberKV]) -> Held:
    return Held(
        held_slots=sum(cache.held_slots for cache in caches),
        live_slots=sum(cache.live_slots for cache in caches),
        held_bytes=sum(cache.held_bytes for cache in caches),
        live_bytes=sum(cache.live_slots * cache.shape.bytes_per_slot for cache in caches),
    )


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of the drafts of one pair of tokenizers."""

    counted: list[int] = field(default_factory=list)  # target tokens that counted as drafted, of each draft
    spelled: int = 0  # how many of these are tokenized as by the target
    # seconds of reading the context in the other's tokens, of each draft
    reading_s: list[float] = field(default_factory=list)
    # seconds of encoding the draft in the target's tokens, of each draft
    spelling_s: list[float] = field(default_factory=list)

    @property
    def counted_a_draft(self) -> float:
        """Mean counted tokens per draft."""
        return fmean(self.counted)

    @property
    def typical_s(self) -> tuple[float, float]:
        """Median seconds of reading a context and of encoding a draft."""
        return median(self.reading_s), median(self.spelling_s)

    @property
    def spelled_share(self) -> float:
        """Share of counted tokens that are tokenized as by the target; 0 to 1, 0 without any."""
        return self.spelled / sum(self.counted) if any(self.counted) else 0.0


def add_drafts(tally: Tally, alignment: Alignment, text: Sequence[int], cuts: Iterable[int], num_tokens: int) -> None:
    """Draft `num_tokens` tokens of the other vocabulary at each cut of a text of the target's tokens."""
    written = alignment.to_other(text)
    for cut in cuts:
        begin_s = time.perf_counter()
        before = alignment.to_other(text[:cut])
        read_s = time.perf_counter()
        draft = written[len(before) : len(before) + num_tokens]
        if written[: len(before)] != before or not draft:  # the cut splits a token of the other vocabulary
            continue
        spelling_s = time.perf_counter()
        tokens = alignment.drafted(text[:cut], draft)
        tally.spelling_s.append(time.perf_counter() - spelling_s)
        tally.reading_s.append(read_s - begin_s)
        tally.counted.append(len(tokens))
        tally.spelled += num_common(tokens, text[cut:])


@torch.no_grad()
def perturbed(model: PreTrainedModel, noise: float, *, seed: int) -> PreTrainedModel:
    """A copy of `model` in which every matrix is off by `noise` times its own spread, drawn the same on every machine.

    Raises ValueError for noise below 0.
    """
    if not noise >= 0.0:
        raise ValueError(f"noise must be >= 0, got {noise}")
    other: PreTrainedModel = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for weight in other.parameters():
        if weight.dim() >= 2:
            drawn = torch.randn(weight.shape, generator=generator).to(weight.device, weight.dtype)
            weight.add_(drawn, alpha=noise * float(weight.std()))
    return other


def with_slims(pool: ModelPool, masks: Mapping[str, Mask]) -> ModelPool:
    """The pool, which is not changed, with a submodel of the target for each mask by name, in order of size.

    Raises ValueError for a name that is taken, a mask that does not fit, or a target without a model.
    """
    target = pool.target.model
    if target is None:
        raise ValueError(f"target must be a model with layers, got {pool.target.name} without any")
    taken = [member.name for member in pool.members if member.name in masks]
    if taken:
        raise ValueError(f"name must not be that of a member, got {taken[0]!r}")
    slims = [describe_model(name, "submodel", make_submodel(target, mask), None) for name, mask in masks.items()]
    others = sorted((*pool.members[:-1], *slims), key=lambda member: member.num_parameters)
    return replace(pool, members=(*others, pool.target))


def shared_noise_agreement(first: Tensor, second: Tensor) -> Tensor:
    """`[T]` probability that two models write the same token with the same noise, from `[T, V]` each, in float64.

    With one Gumbel variable per token, added to the log-probabilities of both, token i is the argmax of both with
    probability 1 / sum_j max(p_j / p_i, q_j / q_i): an exponential race of all tokens at once (Daliri et al. 2024,
    arXiv:2408.07978, who show that the sum over i is at least (1 - TVD) / (1 + TVD)). At most it is 1 - TVD. Ordered by
    p / q, the j with p_j / p_i > q_j / q_i are those before i, so two running sums are enough.
    """
    p, q = first.double(), second.double()
    order = (p.log() - q.log()).nan_to_num(nan=0.0).sort(dim=-1, descending=True).indices
    p, q = p.gather(-1, order), q.gather(-1, order)
    before = p.cumsum(dim=-1)
    after = q.flip(-1).cumsum(dim=-1).flip(-1) - q
    races = before / p + after / q
    return torch.where((p > 0) & (q > 0), 1 / races, 0.0).sum(dim=-1)


def measure_agreement(model: PreTrainedModel, calibration: Calibration) -> float:
    """Mean over the calibration's tokens: the acceptance of coupled sampling, 0 to 1."""
    total = 0.0
    for text in calibration.texts:
        probs = next_token_probs(model, text.prompt, text.tokens, calibration.sampling)
        total += float(shared_noise_agreement(probs, text.target_probs).sum())
    return total / calibration.num_tokens


MOST_TOKENS = 2**15  # packed texts are 16-bit


class DrafterTraining:
    """Trains drafters for a pool's target, deterministically for a seed, on some of the texts of the shipped pool."""

    def __init__(self, pool: ModelPool, *, seed: int) -> None:
        self._pool = pool
        recipe = read_recipe("drafter")
        self._recipe = replace(recipe, seed=recipe.seed + seed, context_tokens=pool.context_tokens)
        # With the plain seed, the held-out prompts of the shipped pool are held out here too.
        self._corpus = build_corpus(recipe)

    def same_vocabulary(self, name: str) -> LoadedMember:
        """A drafter in the pool's own tokens; raises ValueError for too large a vocabulary."""
        target: Any = self._pool.target.model
        size = int(target.config.vocab_size)
        if size > MOST_TOKENS:
            raise ValueError(f"pool {self._pool.name}: vocabulary must be <= {MOST_TOKENS} tokens, got {size}")
        return self._trained(name, self._pool.tokenizer, size, foreign=False)

    def foreign(self, name: str, vocabulary_size: int) -> LoadedMember:
        """A drafter with a byte-level tokenizer of its own, trained on the same texts."""
        recipe = replace(self._recipe, vocabulary_size=vocabulary_size)
        tokenizer = train_tokenizer(self._corpus, recipe)
        return self._trained(name, tokenizer, vocabulary_size, foreign=True)

    def _trained(self, name: str, tokenizer: Tokenizer, vocabulary_size: int, *, foreign: bool) -> LoadedMember:
        recipe = replace(self._recipe, vocabulary_size=vocabulary_size)
        sequences = pack_corpus(self._corpus, tokenizer, recipe)
        with TemporaryDirectory(prefix="paceline-drafter-") as folder:
            model, _ = train_target(sequences, recipe, Path(folder) / "state")
        model.requires_grad_(requires_grad=False)
        return describe_model(name, "model", model, tokenizer if foreign else None)
