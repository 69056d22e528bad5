"""What a recording keeps beside its tries: options, members, near ties, and finished requests until all are.

A near tie is a choice between two tokens that rounding may turn over: a forward over more rows or more tokens sums in
another order. What that does to the difference of a model's two best scores was measured as a share of the largest
logit of the context, on 150 contexts of each model of the shipped pool, fed token by token and in steps of 2, 5 and all
tokens: at most 8.9e-7 in float32, 1.3e-3 in float16 and 1.1e-2 in bfloat16. The bounds are the next power of two above
that, and four times as much for float32, which has room for it. Letters: Q contexts, V vocabulary.
"""

import re
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ...base.errors import ArgumentError
from ...base.files import whole_file, write_whole
from ...traces.contexts.columns import FURTHER
from ...traces.contexts.trie import FeatureViews, TreeRanks, Trie, arrays_of, names_of
from ...traces.errors import Experts
from ...traces.meta import Closure, ModelInfo, NgramInfo, Sampling
from ..pools.members import LoadedMember, LoadedMembers
from ..sampling import noise_of
from .branches import TreeSpec, text_logits
from .views import scores

_FINGERPRINT_FILE = "fingerprint"


class Ties(NamedTuple):
    """Near ties of one request: of all models anywhere, and of the target along the trunk."""

    anywhere: int
    on_trunk: int


class Parts:
    """A folder with one `.npz` (no pickle) per finished request and the fingerprint of what is being recorded.

    Every file is written beside its place and moved there, so that a part is whole or absent.
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
                f"remove the folder to start afresh), got {found[:12]!r}"
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
            ValueError: the file was damaged; the message says how to go on.
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
        """Remove the folder if no request is finished, so that there is nothing to go on from."""
        if not any(self.folder.glob("*.npz")):
            self.remove()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)


# By the dtype of a model's weights, as a share of the largest logit.
BOUNDS = {torch.float64: 2.0**-40, torch.float32: 2.0**-18, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}


def near_ties(logits: Tensor, sampling: Sampling, noise: NDArray[np.float32] | None) -> Tensor:
    """`[Q]` whether rounding may turn the choice of the next token over.

    Logits `[Q, V]` are in the dtype of the model's weights; noise is `[Q, V]` if coupled, None if greedy.
    """
    largest = logits.float().abs().amax(-1) / (sampling.temperature or 1.0)
    best = scores(logits, sampling, noise).topk(2, dim=-1).values
    found: Tensor = best[..., 0] - best[..., 1] < BOUNDS[logits.dtype] * largest
    return found


def near_ties_along(
    pool: LoadedMembers, request_id: str, prompt: tuple[int, ...], answer: list[int], *, first: int, sampling: Sampling
) -> list[tuple[str, int]]:
    """Members and output positions, from `first` on, of the near ties along an answer to a prompt.

    Members with a tokenizer of their own, or that read the target's states, are not asked.
    """
    text = [*prompt, *answer]
    count = len(answer) - first + 1
    found = []
    for member in pool.members:
        if member.model is None or member.tokenizer is not None or member.from_features:
            continue
        logits = text_logits(member.model, text, count)
        noise = noise_of(sampling, request_id, logits.shape[-1])
        rows = None if noise is None else noise.rows(range(first, len(answer) + 1))
        ties = near_ties(logits, sampling, rows).nonzero().flatten().tolist()
        found += [(member.name, first + place) for place in ties]
    return sorted(found, key=lambda tie: tie[1])


# Names by which configs tell how many experts a layer has, and how many of them a token goes through.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
_LAYER = re.compile(r"\.(\d+)\.")


def model_info(member: LoadedMember, *, submodel_of: str | None = None) -> ModelInfo:
    """Of a member with a model; `submodel_of` names the one whose weights it shares.

    Raises:
        ArgumentError: a mixture of experts of which it does not follow what they weigh.
    """
    assert member.model is not None
    return ModelInfo(
        name=member.name,
        parameters=member.num_parameters,
        layers=member.num_layers,
        hidden_size=member.hidden_size,
        kv_bytes_per_token=member.kv_bytes_per_token,
        dtype=member.dtype,
        submodel_of=submodel_of,
        experts=experts_of(member.model, member.name),
    )


def experts_of(model: PreTrainedModel, name: str) -> Experts | None:
    """The experts of a model, counted in its weights; None where every token goes through all of them.

    Raises:
        ArgumentError: weights of experts whose layers differ or that are not known, for a member of this name.
    """
    number, per_token = (_said(model.config, names) for names in (_EXPERTS, _PER_TOKEN))
    if number is None or number < 2:
        return None
    by_layer: Counter[str] = Counter()
    for layer, count in _of_experts(model, number):
        by_layer[layer] += count
    if not by_layer and not _has_router(model, number):
        return None  # a family that has mixtures too
    sizes = sorted({count / number for count in by_layer.values()})
    if len(sizes) != 1 or per_token is None or not sizes[0].is_integer():
        rule = f"must have experts of one known size in {name}, of whose {number} a token goes through a known number"
        raise ArgumentError(f"a pool to record {rule}, got sizes {sizes} and {per_token} for a token")
    return Experts(number=number, per_token=per_token, layers=len(by_layer), parameters=int(sizes[0]))


def _said(config: PreTrainedConfig, names: Iterable[str]) -> int | None:
    """The count that a config has under one of these names, or its part for feed-forward layers; None for none."""
    for values in (config, getattr(config, "ffn_config", None)):
        for name in names:
            found: Any = getattr(values, name, None)
            same = found[0] if isinstance(found, list) and len(set(found)) == 1 else found
            if isinstance(same, int) and not isinstance(same, bool):
                return same
    return None


def _of_experts(model: PreTrainedModel, number: int) -> Iterator[tuple[str, int]]:
    """Layer and parameters of each weight of experts, which holds all experts of a layer one after the other."""
    for name, weight in model.named_parameters():
        parts, layer = name.split("."), _LAYER.search(name)
        if layer is None or any("shared" in part for part in parts):
            continue
        rows, own = weight.shape[0], parts[-2] == "experts" and weight.dim() > 1
        stacked = weight.dim() == 3 and rows == number and "conv" not in name
        flat = weight.dim() == 2 and "experts" in parts and rows > number and rows % number == 0
        if (own and rows == number) or stacked or flat:
            yield name[: layer.end()], weight.numel()


def _has_router(model: PreTrainedModel, number: int) -> bool:
    return any(
        weight.dim() == 2 and weight.shape[0] == number and _LAYER.search(name)
        for name, weight in model.named_parameters()
    )


def ngram_info(members: Iterable[LoadedMember]) -> NgramInfo | None:
    """Of the prompt lookup among them; None if there is none."""
    for member in members:
        rule = member.lookup
        if rule is not None:
            return NgramInfo(
                name=member.name, max_match=rule.max_match, min_match=rule.min_match, occurrence=rule.occurrence
            )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieOptions:
    """What shapes a request's trie; the same for all requests of a recording."""

    sampling: Sampling  # how tokens are chosen
    closure: Closure  # which contexts off the trunk are kept
    max_new_tokens: int  # longest trunk, >= 1
    eos_token_ids: tuple[int, ...]  # each ends an answer; may be none
    trees: tuple[TreeSpec, ...] = ()  # that are recorded from every context of the trunk
    # Index among the models, and depths, of the one that reads the target's states; None if none does.
    features: tuple[int, int] | None = None
    # Most contexts of one forward off the trunk; the cache holds the trunk and at most reach times as many.
    max_rows: int = 128
