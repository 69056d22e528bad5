"""Record every pool model's view of every context that a policy may reach.

A recording is made some requests at a time (`group_size`). Finished ones are kept beside the output (`OUT.part`), so
that a killed recording continues where it was; the part is removed at the end.
"""

import hashlib
import json
import platform
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from transformers import PreTrainedModel

from ...base.errors import ArgumentError
from ...base.files import whole_file, write_whole
from ...base.terminal import Progress
from ...decoding.trees import tree_shape
from ...traces.contexts.columns import FURTHER
from ...traces.contexts.meta import FeatureDepths, TrieMeta
from ...traces.contexts.on_disk import write_trace
from ...traces.contexts.recording import TrieRecording
from ...traces.contexts.trie import FeatureViews, TreeRanks, Trie, TrieRequest, arrays_of, names_of
from ...traces.meta import Closure, CostTable, NearTies, ProfileTaken, Sampling, check_title
from ..coupled_noise import noise_of
from ..pools.members import LoadedMember
from ..pools.pool import ModelPool
from ..prompts import Prompt
from ..timing import hardware
from .branches import TreeSpec
from .model_info import model_info, ngram_info
from .near_ties import BOUNDS, Ties
from .request_trie import RequestRecorder, TrieOptions
from .together import TreeForward, run_together

_SOFTWARE = ("paceline", "torch", "transformers", "tokenizers", "numpy")
_SAMPLED_WEIGHTS = 256
# The format of parts: those of another format are not continued.
PART_FORM = 5

# Requests that are recorded together, and most bytes of the target's logits along their trunks, as float32.
_TOGETHER, _TRUNK_BYTES = 8, 2**30
# Rows in which trees grow at a time, at most and at least, and bytes for their keys and values: the third, or the
# weights' bytes over the fourth if that is more.
_MOST_ROWS, _LEAST_ROWS, _ROWS_BYTES, _SHARE_OF_WEIGHTS = 16, 4, 2**29, 4

# Prompts with their tokens, in the order in which they are recorded.
Requests = Sequence[tuple[Prompt, tuple[int, ...]]]


_FINGERPRINT_FILE = "fingerprint"


class Parts:
    """A folder with one `.npz` (no pickle) per finished request and the fingerprint of the recording.

    Every file is written under another name and moved to its place, so that a part is whole or absent.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """Open the folder, or make it.

        Raises:
            ValueError: the folder holds parts of another recording.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / _FINGERPRINT_FILE
        if not file.is_file():
            write_whole(file, fingerprint)
            return
        found = file.read_text(encoding="utf-8", errors="replace")
        if found != fingerprint:
            raise ValueError(
                f"{folder}: fingerprint must be that of this pool, these prompts and options ({fingerprint[:12]}; "
                f"remove the folder to start again), got {found[:12]!r}"
            )

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"

    def has(self, number: int) -> bool:
        """Whether request `number` (from 0, in file order) is finished."""
        return self._file(number).is_file()

    def keep(self, number: int, trie: Trie, ties: Ties) -> None:
        """Write a finished request."""
        columns = arrays_of(trie)
        if trie.ranks is not None:
            columns |= arrays_of(trie.ranks)
        if trie.features is not None:
            columns |= {f"{FURTHER}{name}": array for name, array in arrays_of(trie.features).items()}
        with whole_file(self._file(number)) as part, part.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, ties=np.array(ties, dtype=np.int64), **columns)

    def read(self, number: int) -> tuple[Trie, Ties]:
        """A finished request's trie and its near ties.

        Raises:
            ValueError: the file was damaged; the message says how to continue.
        """
        file = self._file(number)
        try:
            with np.load(file, allow_pickle=False) as columns:
                features = ranks = None
                if f"{FURTHER}next_token" in columns:
                    features = FeatureViews(**{name: columns[f"{FURTHER}{name}"] for name in names_of(FeatureViews)})
                if "rank" in columns:
                    ranks = TreeRanks(**{name: columns[name] for name in names_of(TreeRanks)})
                arrays = {name: columns[name] for name in names_of(Trie)}
                return Trie(**arrays, ranks=ranks, features=features), Ties(*columns["ties"].tolist())
        except (BadZipFile, KeyError, ValueError, TypeError, EOFError, zlib.error) as error:
            raise ValueError(f"{file}: cannot be read ({error}); remove it to record this request again") from None

    def remove_if_empty(self) -> None:
        """Remove the folder if no request is finished, so that there is nothing to continue from."""
        if not any(self.folder.glob("*.npz")):
            self.remove()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)


class SecondsKept(NamedTuple):
    """Seconds of forwards that a recording keeps."""

    costs: dict[str, dict[str, CostTable]]  # by device and model (`profiling.costs.measure_costs`)
    profile: ProfileTaken | None = None  # that they were taken from, if any
    costs_doubt: str = ""  # why they should not be trusted; "" if they can be


# Called once everything else is checked. Its result is called once all contexts are recorded.
Seconds = Callable[[], Callable[[], SecondsKept]]


def no_seconds() -> Callable[[], SecondsKept]:
    """For a recording that keeps none."""
    return lambda: SecondsKept({})


def record(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    *,
    sampling: Sampling,
    closure: Closure,
    max_new_tokens: int,
    out: Path,
    name: str | None = None,
    seconds: Seconds = no_seconds,
) -> TrieRecording:
    """Record the tries of all prompts, write them to `out` and return them.

    Seconds are measured last, so that if they fail the contexts are still in `OUT.part`.

    Args:
        pool: the models; all except model-free ones are recorded.
        prompts: at least one, ids unique.
        sampling: greedy or coupled.
        closure: which contexts off the trunk are kept.
        max_new_tokens: longest trunk, >= 1.
        out: directory to write; `OUT.part` beside it holds what is finished so far.
        name: of the trace, one line that is not empty; the name of `out` without its suffix if None.
        seconds: those to keep in the meta.

    Raises:
        ArgumentError: prompts or a pool that cannot be recorded, or a bad name; nothing is written then.
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
        measured = seconds()
        _record_missing(pool, requests, options, parts)
        meta = meta.model_copy(update=measured()._asdict())
    except BaseException:
        parts.remove_if_empty()
        raise
    ties, recorded = _finished(requests, options, parts)
    tokens = sum(len(request.trie.trunk) - 1 for request in recorded)
    on_trunk = NearTies(count=ties.on_trunk, tokens=tokens, bound=BOUNDS[getattr(torch, meta.dtype)])
    meta = meta.model_copy(update={"near_ties": ties.anywhere, "trunk_near_ties": on_trunk})
    trace = TrieRecording(meta=meta, requests=recorded)
    write_trace(trace, out)
    parts.remove()
    return trace


def _check_recordable(pool: ModelPool) -> None:
    for member in pool.members:
        if member.tokenizer is not None:
            raise ArgumentError(
                f"a pool to record must share one tokenizer, got member {member.name!r} with its own "
                "(leave it out of the pool file to record the others)"
            )


def _tree_specs(pool: ModelPool, closure: Closure) -> tuple[TreeSpec, ...]:
    """The requested trees; raises ArgumentError for one that no model of the pool drafts."""
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
    """(the model that reads the target's states, number of recorded depths, none beyond the reach)."""
    for index, member in enumerate(_recorded(pool)):
        if member.from_features and closure.trees:
            raise ArgumentError(f"`trees` do not go with {member.name}, which reads the target's states")
        if member.from_features:
            return index, max(1, closure.reach)
    return None


def _record_missing(pool: ModelPool, requests: Requests, options: TrieOptions, parts: Parts) -> None:
    there = list(map(parts.has, range(len(requests))))
    if all(there):
        return
    forwards = _forwards(pool, options)
    room = max(len(tokens) for _, tokens in requests) + options.room
    row_bytes = room * sum(forward.bytes_per_context for forward in forwards)
    num_rows = max(_LEAST_ROWS, max(_ROWS_BYTES, pool.weight_bytes // _SHARE_OF_WEIGHTS) // row_bytes)
    size = group_size(pool.vocab_size, options.max_new_tokens, num_rows)
    groups = [range(start, min(start + size, len(requests))) for start in range(0, len(requests), size)]
    missing = [group for group in groups if not all(there[number] for number in group)]
    done = len(requests) - sum(map(len, missing))
    # In a full closure some contexts have far more below them than others: no group tells how long another takes.
    alike = options.closure.kind != "full"
    with Progress("recording", len(requests), unit="requests", done=done, alike=alike) as progress:
        told = GroupProgress(progress, options)
        for group in missing:
            # The whole group, even if some requests are finished: rounding depends on what runs together.
            noises = [noise_of(options.sampling, requests[number][0].request_id, pool.vocab_size) for number in group]
            recorders = [
                RequestRecorder(len(forwards), requests[number][1], options, noise)
                for number, noise in zip(group, noises, strict=True)
            ]
            for forward in forwards:
                forward.reserve(len(group) + min(num_rows, _MOST_ROWS), room)
            tries = _record_group(forwards, recorders, min(num_rows, _MOST_ROWS), told)
            for number, recorder, trie in zip(group, recorders, tries, strict=True):
                if not there[number]:
                    parts.keep(number, trie, Ties(recorder.near_ties, recorder.trunk_near_ties))


def group_size(vocab_size: int, max_new_tokens: int, num_rows: int) -> int:
    """Requests that are recorded together: some, or as many as rows and their trunks' scores allow."""
    return max(1, min(_TOGETHER, num_rows, _TRUNK_BYTES // (4 * vocab_size * (max_new_tokens + 1))))


def _forwards(pool: ModelPool, options: TrieOptions) -> list[TreeForward]:
    """Forwards of the recorded members, the same as in decoding."""
    reader, depths = options.features or (None, 1)
    return [
        TreeForward(
            pool.forward(level, "auto", share_weights=True),
            states=member is pool.target and reader is not None,
            slots_of_context=depths if member.from_features else 1,
        )
        for level, member in enumerate(pool.members)
        if member.model is not None
    ]


def _record_group(
    forwards: Sequence[TreeForward], recorders: Sequence[RequestRecorder], most: int, told: "GroupProgress"
) -> list[Trie]:
    """The tries of some requests, with common forwards; `most` parts off the trunks grow at a time."""
    told.begin(recorders)
    trunks = run_together(forwards, [recorder.write_trunk() for recorder in recorders], on_round=told.trunks)
    told.end_trunks()
    viewed = [recorder.view_trunk(trunk) for recorder, trunk in zip(recorders, trunks, strict=True)]
    parts = run_together(forwards, viewed)
    growing = [recorder.grow(part, row) for row, recorder in enumerate(recorders) for part in parts[row]]
    run_together(forwards, growing, first_row=len(recorders), most=most, on_round=told.branches)
    tries = run_together(forwards, [recorder.finish() for recorder in recorders])
    for forward in forwards:
        for row in range(len(recorders)):
            forward.free(row)
    told.end()
    return tries


class GroupProgress:
    """Progress of a recording, within a group of requests too: its trunks, then contexts off them."""

    def __init__(self, progress: Progress, options: TrieOptions) -> None:
        self._progress, self._max_new_tokens = progress, options.max_new_tokens
        self._recorders: Sequence[RequestRecorder] = ()
        # The trunks' share of a group's seconds: first a guess, then the share so far.
        self._share = 1 / (1 + options.closure.reach)
        self._trunk_s = self._all_s = self._began_at_s = 0.0
        self._done = progress.done
        # In a full closure the share of contexts that are done says nothing of the time.
        self._is_even = options.closure.kind != "full"

    def begin(self, recorders: Sequence[RequestRecorder]) -> None:
        """A group begins."""
        self._recorders, self._began_at_s = recorders, time.monotonic()

    def trunks(self) -> None:
        """Some of the trunks are written."""
        longest = max(recorder.num_written for recorder in self._recorders)
        self._tell(self._share * longest / self._max_new_tokens)

    def end_trunks(self) -> None:
        """All of the trunks are written."""
        self._trunk_s += time.monotonic() - self._began_at_s
        self._tell(self._share)

    def branches(self) -> None:
        """Some contexts off the trunks are recorded."""
        grown = sum(recorder.fraction for recorder in self._recorders) / len(self._recorders)
        self._tell(self._share + (1 - self._share) * grown)

    def end(self) -> None:
        """The group is recorded."""
        self._all_s += time.monotonic() - self._began_at_s
        self._share = self._trunk_s / self._all_s
        self._done += len(self._recorders)
        self._progress.advance_to(self._done)

    def _tell(self, share: float) -> None:
        if self._is_even:
            self._progress.advance_to(self._done + min(share, 0.999) * len(self._recorders))


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
                session=prompt.session,
            )
        )
    anywhere, on_trunk = (sum(counts) for counts in zip(*found, strict=True))
    return Ties(anywhere, on_trunk), tuple(recorded)


def _recorded(pool: ModelPool) -> list[LoadedMember]:
    return [member for member in pool.members if member.model is not None]


def _meta(pool: ModelPool, options: TrieOptions, name: str) -> TrieMeta:
    """The metadata except seconds and near ties, which are known later; raises ValueError for bad values."""
    target: Any = pool.target.model
    reader = options.features
    return TrieMeta(
        name=name,
        kind="recorded",
        models=tuple(model_info(member, submodel_of=_owner(pool, member)) for member in _recorded(pool)),
        ngram=ngram_info(pool.members),
        features=reader and FeatureDepths(model=_recorded(pool)[reader[0]].name, depths=reader[1]),
        vocab_size=pool.vocab_size,
        eos_token_ids=pool.eos_token_ids,
        tokenizer_sha256=pool.tokenizer_sha256,
        sampling=options.sampling,
        closure=options.closure,
        software=_software(),
        hardware=hardware(target.device),
        origin=_origin(pool),
    )


def _origin(pool: ModelPool) -> str:
    """What was recorded, and how prompts were rendered, in words."""
    chat = ", prompts put by its chat template" if pool.chat is not None else ""
    weights = "".join(f"; fetched weights of {name}: {origin}" for name, origin in pool.fetched.items())
    off = "".join(f"; {option} {value!r} of its generation config left off" for option, value in pool.left_off.items())
    return f"recorded from pool {pool.name}{chat}{off}{weights}"


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
    """Hash of everything that determines the recording: a sample of every weight, prompts, options, versions."""
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
        "prompts": [(prompt.request_id, prompt.tag, prompt.session, tokens) for prompt, tokens in requests],
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
        places = torch.arange(0, weight.numel(), max(1, weight.numel() // _SAMPLED_WEIGHTS), device=weight.device)
        # A weight in another layout would be copied whole by flatten.
        sample = weight.detach()[torch.unravel_index(places, weight.shape)]
        yield sample.to("cpu", torch.float32).numpy().tobytes()
