"""What is decoded while a profile's operations are watched: prompts, or on a forced pool a recording's requests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...arguments import ArgumentError
from ...runtime.forced.forced_pool import ForcedPool
from ...runtime.forced.forced_probe import ForcedProbedWorld
from ...runtime.forced.forced_recording import forced_recording
from ...runtime.pools.pool import ModelPool
from ...runtime.profiling.probe import ProbedWorld
from ...runtime.prompts import PROMPTS_FILE, Prompt, prompts_of
from ...shipped import pool_path
from ...sim.tries.tables import TrieTables
from ...traces.meta import Sampling
from ...traces.tries.store import read_trace
from ...traces.tries.trie import TrieRequest
from ..both_worlds import made_up_cost

GREEDY = Sampling(mode="greedy")
# Requests that run at a time while operations are watched are fewer.
_MOST_REQUESTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRequests:
    """What is decoded.

    Attributes:
        prompts: at least one.
        tags: that policies may name: of all requests there are, even where fewer are decoded.
        sampling: how tokens are chosen.
        world: to decode in; None for an ordinary one.
    """

    prompts: tuple[Prompt, ...]
    tags: frozenset[str]
    sampling: Sampling
    world: ProbedWorld | None = None


def watched_requests(
    models: ModelPool | ForcedPool,
    pool: ModelPool | ForcedPool | Path | str | None,
    prompts: Path | str | Sequence[Prompt | str] | None,
    recording: Path | str | None,
    sampling: Sampling | None,
) -> WatchedRequests:
    """What is decoded with these models.

    Args:
        models: of the pool.
        pool: the same, or where they are; None is the shipped pool.
        prompts: None takes those that lie beside the pool; None with a forced pool.
        recording: that decides on a forced pool, whose requests are taken in turn; None with all others.
        sampling: how tokens are chosen; None is greedy, or as the recording says, which no other may contradict.

    Raises:
        ArgumentError: no prompts, one that leaves no room for an answer, or no recording of as many models as a
            forced pool has; either where it plays no part, or other sampling than the recording's.
    """
    if isinstance(models, ForcedPool):
        return _recording(models, prompts, recording, sampling)
    if recording is not None:
        raise ArgumentError(f"`recording` is for a forced pool, whose models decide nothing, got {str(recording)!r}")
    found = _prompts(pool, prompts)
    _refuse_long(found, models)
    return WatchedRequests(prompts=found, tags=_tags(found), sampling=sampling or GREEDY)


def _refuse_long(prompts: Sequence[Prompt], models: ModelPool) -> None:
    """Raise ArgumentError for a prompt that leaves no room for an answer, or that has no token to go on from."""
    for prompt in prompts:
        count = len(models.encode(prompt.text))
        if not 1 <= count < models.context_tokens:
            raise ArgumentError(
                f"`prompts` must have 1 to {models.context_tokens - 1} tokens, as pool {models.name} has a context of "
                f"{models.context_tokens}, got request {prompt.request_id} of {count}"
            )


def _prompts(
    pool: ModelPool | ForcedPool | Path | str | None, prompts: Path | str | Sequence[Prompt | str] | None
) -> tuple[Prompt, ...]:
    """The prompts given, or those that lie beside the pool; raises ArgumentError if there are none."""
    if prompts is not None:
        return prompts_of(Path(prompts) if isinstance(prompts, str) else prompts)
    if isinstance(pool, ModelPool | ForcedPool):
        raise ArgumentError("`prompts` must be given with models that are loaded already")
    place = pool_path(pool)
    beside = (place if place.is_dir() else place.parent) / PROMPTS_FILE
    if not beside.is_file():
        raise ArgumentError(f"`prompts` must be given: {beside} does not exist")
    return prompts_of(beside)


def _recording(
    models: ForcedPool,
    prompts: Path | str | Sequence[Prompt | str] | None,
    recording: Path | str | None,
    sampling: Sampling | None,
) -> WatchedRequests:
    """A recording's requests in turn, sampled as they were recorded."""
    if prompts is not None:
        raise ArgumentError("`prompts` must be left out with a forced pool, whose requests are those of `recording`")
    if recording is None:
        raise ArgumentError(f"`recording` must be given with forced pool {models.name}: it decides what is accepted")
    forced = forced_recording(read_trace(Path(recording)), models)
    mode = forced.meta.sampling
    if sampling not in (None, mode):
        raise ArgumentError(
            f"`sampling` must be that of the recording, {mode.words_with_seed}, got {sampling.words_with_seed}"
        )
    again = [forced.requests[place % len(forced.requests)] for place in range(_MOST_REQUESTS)]
    requests = {str(place): replace(request, request_id=str(place)) for place, request in enumerate(again)}
    tables = TrieTables(replace(forced, requests=tuple(requests.values())))
    world = ForcedProbedWorld(pool=models, sampling=mode)
    world.follow(tables.world(made_up_cost(forced.meta.model_names), seed=0, strict=False))
    world.take(requests, eos=frozenset(forced.meta.eos_token_ids))
    texts = tuple(Prompt(request_id=name, tag=request.tag, text=name) for name, request in requests.items())
    return WatchedRequests(prompts=texts, tags=_tags(forced.requests), sampling=mode, world=world)


def _tags(requests: Iterable[Prompt | TrieRequest]) -> frozenset[str]:
    return frozenset(request.tag for request in requests)
