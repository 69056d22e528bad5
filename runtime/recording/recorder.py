"""Record what every model of a pool says at every context a policy may ask about.

A recording is made request by request. Finished requests are kept beside the output (`OUT.part`), so that a killed
recording goes on where it was; the part is removed at the end.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from ...base.errors import ArgumentError
from ...base.terminal import Progress
from ...decoding.trees import tree_shape
from ...traces.contexts.meta import FeatureDepths, TrieMeta
from ...traces.contexts.recording import TrieRecording
from ...traces.contexts.store import write_trace
from ...traces.contexts.trie import TrieRequest
from ...traces.meta import Closure, CostTable, NearTies, ProfileTaken, Sampling, check_title
from ..pools.members import LoadedMember
from ..pools.pool import ModelPool
from ..prompts import Prompt
from ..sampling import noise_of
from ..timing import hardware
from .branches import TreeSpec
from .finished import BOUNDS, Parts, Ties, TrieOptions, model_info, ngram_info
from .request_trie import RequestRecorder

_SOFTWARE = ("paceline", "torch", "transformers", "tokenizers", "numpy")
_SAMPLED_WEIGHTS = 256
# Of what a part holds: parts of another form are not gone on from.
PART_FORM = 4

# Prompts with their tokens, in the order in which they are recorded.
Requests = Sequence[tuple[Prompt, tuple[int, ...]]]


class SecondsKept(NamedTuple):
    """Seconds of forwards that a recording keeps."""

    costs: dict[str, dict[str, CostTable]]  # by device and model (`timing.measure_costs`)
    profile: ProfileTaken | None = None  # that they were taken from, if any


def no_seconds() -> SecondsKept:
    """Of a recording that keeps none."""
    return SecondsKept({})


def record(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    *,
    sampling: Sampling,
    closure: Closure,
    max_new_tokens: int,
    out: Path,
    name: str | None = None,
    seconds: Callable[[], SecondsKept] = no_seconds,
) -> TrieRecording:
    """Record the tries of all prompts, write them to `out` and return them.

    Args:
        pool: the models; all but model-free ones are recorded.
        prompts: at least one, ids unique.
        sampling: greedy or coupled.
        closure: which contexts off the trunk are kept.
        max_new_tokens: longest trunk, >= 1.
        out: directory to write; `OUT.part` beside it holds what is finished so far.
        name: of the trace, one line that is not empty; the name of `out` without its suffix if None.
        seconds: measures those to keep in the meta; called once everything else is known to be in order.

    Raises:
        ArgumentError: prompts or a pool that cannot be recorded, or a name that cannot be; nothing is written then.
        ValueError: a part of another recording; nothing is written then.
        FileExistsError: `out` exists.
    """
    title = out.stem if name is None else name
    check_title(title)
    if out.exists():
        raise FileExistsError(f"{out}: must not exist yet")
    _check_recordable(pool)
    if not prompts:
        raise ArgumentError("`prompts` must hold at least one, got none")
    requests = list(zip(prompts, pool.tokens_of(prompts, max_new_tokens), strict=True))
    options = TrieOptions(
        sampling=sampling,
        closure=closure,
        max_new_tokens=max_new_tokens,
        eos_token_ids=pool.eos_token_ids,
        trees=_tree_specs(pool, closure),
        features=_features(pool, closure),
    )
    meta = _meta(pool, options, title)
    parts = Parts(out.with_name(f"{out.name}.part"), _fingerprint(pool, requests, options))
    try:
        meta = meta.model_copy(update=seconds()._asdict())
        _record_missing(pool, requests, options, parts)
    except BaseException:
        parts.remove_if_empty()
        raise
    ties, recorded = _finished(requests, options, parts)
    trace = TrieRecording(meta=_with_ties(meta, ties, recorded), requests=recorded)
    write_trace(trace, out)
    parts.remove()
    return trace


def _check_recordable(pool: ModelPool) -> None:
    """Raises ArgumentError for a pool with a foreign member: its view of a context is over other tokens."""
    for member in pool.members:
        if member.tokenizer is not None:
            raise ArgumentError(
                f"a pool to record must share one tokenizer, got member {member.name!r} with its own "
                "(leave it out of the pool file to record the others)"
            )


def _tree_specs(pool: ModelPool, closure: Closure) -> tuple[TreeSpec, ...]:
    """The trees that are asked for; raises ArgumentError for one that no model of the pool drafts."""
    names = [member.name for member in _recorded(pool)]
    for tree in closure.trees:
        if tree.model not in names[:-1]:
            raise ArgumentError(
                f"`trees` must be of a model below the target ({', '.join(names[:-1])}), got {tree.model!r}"
            )
    drafters = sorted({names.index(tree.model) for tree in closure.trees})
    return tuple(
        TreeSpec(model, drafters.index(model), tree_shape(tree.shape))
        for tree in closure.trees
        for model in [names.index(tree.model)]
    )


def _features(pool: ModelPool, closure: Closure) -> tuple[int, int] | None:
    """Which model reads the target's states, and at how many depths it is asked: none is beyond the reach."""
    readers = [index for index, member in enumerate(_recorded(pool)) if member.from_features]
    if not readers:
        return None
    if closure.trees:
        name = _recorded(pool)[readers[0]].name
        raise ArgumentError(f"`trees` do not go with {name}, which reads the target's states")
    return readers[0], max(1, closure.reach)


def _record_missing(pool: ModelPool, requests: Requests, options: TrieOptions, parts: Parts) -> None:
    models = [member.model for member in _recorded(pool)]
    rows = [pool.rows(level) for level, member in enumerate(pool.members) if member.model is not None]
    there = sum(parts.has(number) for number in range(len(requests)))
    with Progress("recording", len(requests), unit="requests", done=there) as progress:
        for number, (prompt, tokens) in enumerate(requests):
            if not parts.has(number):
                noise = noise_of(options.sampling, prompt.request_id, _vocab_size(pool))
                recorder = RequestRecorder(models, tokens, options, noise, rows)
                trie = recorder.record()
                parts.keep(number, trie, Ties(recorder.near_ties, recorder.trunk_near_ties))
                progress.advance()


def _finished(requests: Requests, options: TrieOptions, parts: Parts) -> tuple[Ties, tuple[TrieRequest, ...]]:
    found, recorded = [], []
    for number, (prompt, tokens) in enumerate(requests):
        trie, ties = parts.read(number)
        found.append(ties)
        recorded.append(
            TrieRequest(
                request_id=prompt.request_id,
                tag=prompt.tag,
                prompt=tokens,
                max_new_tokens=options.max_new_tokens,
                trie=trie,
            )
        )
    anywhere, on_trunk = (sum(counts) for counts in zip(*found, strict=True))
    return Ties(anywhere, on_trunk), tuple(recorded)


def _recorded(pool: ModelPool) -> list[LoadedMember]:
    return [member for member in pool.members if member.model is not None]


def _vocab_size(pool: ModelPool) -> int:
    target: Any = pool.target.model
    return int(target.config.vocab_size)


def _meta(pool: ModelPool, options: TrieOptions, name: str) -> TrieMeta:
    """All but seconds and near ties, which are known later; raises ValueError for what cannot be."""
    target: Any = pool.target.model
    reader = options.features
    return TrieMeta(
        name=name,
        kind="recorded",
        models=tuple(model_info(member, submodel_of=_owner(pool, member)) for member in _recorded(pool)),
        ngram=ngram_info(pool.members),
        features=reader and FeatureDepths(model=_recorded(pool)[reader[0]].name, depths=reader[1]),
        vocab_size=_vocab_size(pool),
        eos_token_ids=pool.eos_token_ids,
        tokenizer_sha256=pool.tokenizer_sha256,
        sampling=options.sampling,
        closure=options.closure,
        software=_software(),
        hardware=hardware(target.device),
        origin=_origin(pool),
    )


def _origin(pool: ModelPool) -> str:
    """What was recorded, and how prompts were put, in words."""
    chat = ", prompts put by its chat template" if pool.chat is not None else ""
    weights = "".join(f"; fetched weights of {name}: {origin}" for name, origin in pool.fetched.items())
    off = "".join(f"; {option} {value!r} of its generation config left off" for option, value in pool.left_off.items())
    return f"recorded from pool {pool.name}{chat}{off}{weights}"


def _with_ties(meta: TrieMeta, ties: Ties, requests: Sequence[TrieRequest]) -> TrieMeta:
    tokens = sum(len(request.trie.trunk) - 1 for request in requests)
    on_trunk = NearTies(count=ties.on_trunk, tokens=tokens, bound=BOUNDS[getattr(torch, meta.dtype)])
    return meta.model_copy(update={"near_ties": ties.anywhere, "trunk_near_ties": on_trunk})


def _owner(pool: ModelPool, member: LoadedMember) -> str | None:
    """The model a submodel shares all of its weights with; None for one that has weights of its own."""
    if member.kind != "submodel" or member.model is None:
        return None
    own = set(member.model.parameters())
    for other in pool.members:
        if other.kind == "model" and other.model is not None and own <= set(other.model.parameters()):
            return other.name
    return None


def _software() -> dict[str, str]:
    return {"python": platform.python_version()} | {package: version(package) for package in _SOFTWARE}


def _fingerprint(pool: ModelPool, requests: Requests, options: TrieOptions) -> str:
    """Hash of all that decides what is recorded: a sample of every weight, prompts, options, versions."""
    digest = hashlib.sha256()
    said = {
        "form": PART_FORM,
        "software": _software(),
        "pool": pool.name,
        "tokenizer": pool.tokenizer_sha256,
        "eos": options.eos_token_ids,
        "sampling": options.sampling.model_dump(),
        "closure": options.closure.model_dump(),
        "max_new_tokens": options.max_new_tokens,
        "prompts": [(prompt.request_id, prompt.tag, tokens) for prompt, tokens in requests],
    }
    digest.update(json.dumps(said, sort_keys=True).encode())
    for member in _recorded(pool):
        digest.update(f"{member.name} {member.kind} {member.dtype}".encode())
        for said_of_weight in _weight_samples(member.model):
            digest.update(said_of_weight)
    return digest.hexdigest()


def _weight_samples(model: PreTrainedModel) -> Iterator[bytes]:
    """Name, shape and evenly spaced values of every weight."""
    for name, weight in model.named_parameters():
        yield f"{name} {tuple(weight.shape)}".encode()
        flat = weight.detach().flatten()
        yield flat[:: max(1, flat.numel() // _SAMPLED_WEIGHTS)].to("cpu", torch.float32).numpy().tobytes()
