"""The recording that `agree` replays: one that is there, or one made now and as deep as the policies need.

One that is there has to be of the very requests that are to be run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..decoding.policy import Policy
from ..runtime.pools.loaded_members import LoadedMember
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt
from ..runtime.recording.recorder import record
from ..traces.errors import TraceFormatError
from ..traces.meta import Closure, Sampling, TreeClosure
from ..traces.tries.meta import TrieMeta
from ..traces.tries.recording import TrieRecording
from ..traces.tries.store import read_trace
from ..traces.tries.trie import TrieRequest
from .record import ClosureKind, closure_of

LEAST_REACH = 16  # enough for a policy that does not say how many tokens it may have pending


def recording_made_now(
    pool: ModelPool, prompts: Sequence[Prompt], sampling: Sampling, closure: Closure, max_new_tokens: int
) -> TrieRecording:
    """A recording that is not kept on disk, without seconds; raises as `record`."""
    with TemporaryDirectory(prefix="paceline-agree-") as folder:
        return record(
            pool,
            prompts,
            sampling=sampling,
            closure=closure,
            max_new_tokens=max_new_tokens,
            out=Path(folder) / "agree.trace",
            name="made now",
        )


def closure_for(policies: Iterable[Policy], kind: ClosureKind | None, reach: int | None, run: int | None) -> Closure:
    """The closure asked for; by default as deep as the most tokens that any policy says it may have pending.

    The trees that policies say they draft are recorded in any case.
    """
    deciders = list(policies)
    trees = dict.fromkeys(tree for policy in deciders for tree in getattr(policy, "trees", ()))
    if reach is None:
        reach = max([LEAST_REACH, *(_most_off_trunk(policy) for policy in deciders)])
    closure = closure_of(kind, reach, reach if run is None else run)
    recorded = tuple(TreeClosure(model=tree.model, shape=tree.shape.text) for tree in trees)
    return closure.model_copy(update={"trees": recorded})


def _most_off_trunk(policy: Policy) -> int:
    """Tokens of a run that a policy may have pending; of a tree those of its longest path."""
    most: int = getattr(policy, "most_off_trunk", getattr(policy, "most_pending", 0))
    return most


def matching_trace(
    path: Path, pool: ModelPool, prompts: Sequence[Prompt], *, sampling: Sampling, max_new_tokens: int
) -> TrieRecording:
    """The recording at `path`, its requests cut down to `prompts` and in their order.

    Raises:
        TraceFormatError: not a recording of this pool with this sampling, or one that lacks a prompt or holds it with
            other tokens or another budget; one line.
    """
    trace = read_trace(path)
    _check_pool(path, trace.meta, pool)
    if trace.meta.sampling != sampling:
        wanted, found = (_named(one.model_dump(exclude_none=True)) for one in (sampling, trace.meta.sampling))
        raise TraceFormatError(path, "sampling", f"must be the one asked for, {wanted}", found)
    records = {one.request_id: one for one in trace.requests}
    requests = tuple(_matching(path, records, prompt, pool, max_new_tokens) for prompt in prompts)
    return replace(trace, requests=requests)


def _check_pool(path: Path, meta: TrieMeta, pool: ModelPool) -> None:
    if meta.tokenizer_sha256 != pool.tokenizer_sha256:
        rule = f"must be that of pool {pool.name}, {pool.tokenizer_sha256[:12]}"
        raise TraceFormatError(path, "tokenizer_sha256", rule, meta.tokenizer_sha256[:12])
    recorded: dict[str, Any] = {model.name: (model.parameters, model.layers, model.dtype) for model in meta.models}
    if meta.ngram is not None:
        ngram = meta.ngram
        recorded = {ngram.name: _words(ngram.max_match, ngram.min_match, ngram.occurrence), **recorded}
    loaded = {member.name: _recorded_as(member) for member in pool.members}
    if list(recorded.items()) != list(loaded.items()):
        raise TraceFormatError(path, "models", f"must be those of pool {pool.name}, {_named(loaded)}", _named(recorded))
    reader = "" if pool.feature_level is None else pool.members[pool.feature_level].name
    recorded_reader = "" if meta.features is None else meta.features.model
    if recorded_reader != reader:
        raise TraceFormatError(path, "features.model", f"must be that of pool {pool.name}, {reader!r}", recorded_reader)
    recorded_eos, eos = sorted(meta.eos_token_ids), sorted(pool.eos_token_ids)
    if recorded_eos != eos:
        raise TraceFormatError(path, "eos_token_ids", f"must be {eos}", recorded_eos)


def _recorded_as(member: LoadedMember) -> object:
    rule = member.lookup
    if rule is None:
        return (member.num_parameters, member.num_layers, member.dtype)
    return _words(rule.max_match, rule.min_match, rule.occurrence)


def _words(max_match: int, min_match: int, occurrence: str) -> str:
    """A prompt lookup in words, the same for recordings and for pools."""
    return f"matches of {min_match} to {max_match}, {occurrence}"


def _named(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _matching(
    path: Path, records: dict[str, TrieRequest], prompt: Prompt, pool: ModelPool, max_new_tokens: int
) -> TrieRequest:
    recorded = records.get(prompt.request_id)
    field = f"requests, {prompt.request_id}"
    if recorded is None:
        raise TraceFormatError(path, field, "must be recorded for every prompt", None)
    if list(recorded.prompt) != pool.encode(prompt.text):
        put = "as it stands, without --chat" if pool.chat is None else "as the chat template puts it"
        raise TraceFormatError(path, f"{field}, prompt", f"must be the tokens of the prompt {put}", recorded.prompt)
    if recorded.max_new_tokens != max_new_tokens:
        rule = f"must be the one asked for, {max_new_tokens}"
        raise TraceFormatError(path, f"{field}, max_new_tokens", rule, recorded.max_new_tokens)
    return recorded
