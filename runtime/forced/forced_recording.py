"""A recording as one of a forced pool: its models are called and sized as the pool's, level by level."""

from dataclasses import replace
from typing import Any

from ...arguments import ArgumentError
from ...counted import counted
from ...traces.meta import NgramInfo
from ...traces.tries.recording import TrieRecording
from ..recording.recorded_members import model_info, ngram_info
from .forced_pool import ForcedPool


def forced_recording(recording: TrieRecording, pool: ForcedPool) -> TrieRecording:
    """The same contexts, said of the pool's members; its measured seconds go, which are of the recorded models.

    A prompt lookup that the pool does not have is left out.

    Raises:
        ArgumentError: not as many models as the pool has, another prompt lookup than the pool's, or requests that do
            not fit into the pool's context.
    """
    meta = recording.meta
    models = [member for member in pool.members if member.model is not None]
    if len(models) != len(meta.models):
        theirs, ours = ", ".join(meta.model_names), ", ".join(member.name for member in models)
        raise ArgumentError(
            f"`recording` must hold as many models as pool {pool.name} has, {len(models)} ({ours}), got "
            f"{len(meta.models)} ({theirs})"
        )
    for request in recording.requests:
        if len(request.prompt) + request.max_new_tokens > pool.context_tokens:
            raise ArgumentError(
                f"`recording` must fit into the context of pool {pool.name}, {counted(pool.context_tokens, 'token')}, "
                f"got request {request.request_id} of {len(request.prompt)} and {request.max_new_tokens} new ones"
            )
    update: dict[str, Any] = {
        "models": tuple(model_info(member) for member in models),
        "ngram": _lookup(recording, pool),
        "costs": {},
        "profile": None,
        "origin": f"forced: {meta.name} on pool {pool.name}",
    }
    return replace(recording, meta=meta.model_copy(update=update))


def _lookup(recording: TrieRecording, pool: ForcedPool) -> NgramInfo | None:
    """The recorded prompt lookup under the pool's name for it; None where the pool has none."""
    asked, known = ngram_info(pool.members), recording.meta.ngram
    if asked is None:
        return None
    if known is None or known.model_copy(update={"name": asked.name}) != asked:
        raise ArgumentError(
            f"`recording` must hold the prompt lookup of pool {pool.name}, {asked.model_dump()}, got "
            f"{None if known is None else known.model_dump()}"
        )
    return asked
