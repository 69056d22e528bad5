"""The drafters of a pool beside a model that a program holds already, for `generate()`."""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from ...arguments import ArgumentError
from ...shipped import pool_path
from ..pools.configs.member_config import read_member_config
from ..pools.configs.pool_rules import give_head
from ..pools.loading.model_loading import load_model
from ..pools.pool_file import MemberEntry, PoolFile, read_pool_file


def load_assistants(
    pool: Path | str, model: PreTrainedModel, *, names: Sequence[str] | None = None
) -> dict[str, PreTrainedModel]:
    """Load what drafts in a pool, to be the `assistant_models` of a model that is the pool's target.

    Args:
        pool: a pool file, its folder, or the name of a pool that comes with the package.
        model: in place of the target: what uses the target's embeddings uses the model's, and all are of its dtype and
            on its device. Not changed.
        names: of the drafters; None for all that `generate()` can take: models with the pool's tokenizer that read
            tokens alone.

    Returns:
        By name, smallest first as in the pool file.

    Raises:
        ArgumentError: a name that is none of these, or a model that is not like the pool's target.
        PoolFileError: as of `ModelPool.load`.
    """
    if not isinstance(pool, str | Path):
        raise ArgumentError(f"`pool` must be a path or a name, got {type(pool).__name__}")
    if not isinstance(model, PreTrainedModel):
        raise ArgumentError(f"`model` must be one of transformers, got {type(model).__name__}")
    file, content = read_pool_file(pool_path(pool))
    fitting = {row: entry for row, entry in enumerate(content.members[:-1]) if _fits(entry, content)}
    known = [entry.name for entry in fitting.values()]
    if isinstance(names, str):
        raise ArgumentError(f"`names` must be a list of names, got {names!r}")
    for name in () if names is None else names:
        if name not in known:
            raise ArgumentError(
                f"`names` must be drafters of {file} ({', '.join(known) or 'there are none'}), got {name!r}"
            )
    _check_target(file, content, model)
    return {
        entry.name: _loaded(file, row, entry, content.context_tokens, model)
        for row, entry in fitting.items()
        if names is None or entry.name in names
    }


def _fits(entry: MemberEntry, content: PoolFile) -> bool:
    """A whole model that reads tokens alone, by embeddings of its own or the target's."""
    foreign = entry.tokenizer is not None or entry.tp_plan is not None or entry.features_of is not None
    return entry.path is not None and not foreign and entry.embeddings_of in (None, content.members[-1].name)


def _check_target(file: Path, content: PoolFile, model: PreTrainedModel) -> None:
    target = content.members[-1]
    assert target.path is not None  # a target is a model
    config = read_member_config(
        file, f"members[{len(content.members) - 1}].path", target.path, context_tokens=content.context_tokens
    ).config
    for size in ("vocab_size", "hidden_size", "num_hidden_layers"):
        expected, found = getattr(config, size), getattr(model.config, size, None)
        if found != expected:
            raise ArgumentError(f"`model` must have the {size} of the target of {file}, {expected}, got {found}")


def _loaded(file: Path, row: int, entry: MemberEntry, context_tokens: int, model: PreTrainedModel) -> PreTrainedModel:
    assert entry.path is not None
    field, dtype = f"members[{row}]", str(model.dtype).removeprefix("torch.")
    placed = entry.model_copy(update={"dtype": dtype, "device": str(model.device)})
    config = read_member_config(file, f"{field}.path", entry.path, context_tokens=context_tokens)
    drafter = load_model(file, field, placed, config)
    give_head(file, row, placed, drafter, None if entry.embeddings_of is None else model)
    return drafter
