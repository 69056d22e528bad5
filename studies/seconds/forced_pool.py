"""Write the file of a forced pool: what `paceline pool forced` does."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...arguments import ArgumentError
from ...reports.tables.grid import Grid, table
from ...reports.tables.printed import Printed
from ...runtime.forced.forced_pool import named_config, shapes_of
from ...runtime.forced.presets import preset_config
from ...runtime.pools.loaded_members import LoadedMember
from ...runtime.pools.pool_file import CONFIG, POOL_FILE_NAME, ForcedPoolFile, checked_forced_pool
from ...whole_files import write_whole

LOOKUP = "ngram"
_SLIM = re.compile(r"(.+)-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ForcedPoolMade(Printed):
    """The pool file that was written; prints as `paceline pool forced` does.

    Attributes:
        file: that was written.
        content: of it.
        members: as they will be loaded, without weights.
    """

    file: Path
    content: ForcedPoolFile
    members: tuple[LoadedMember, ...]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/forced.md)."""
        return {"pool": self.content.name, "forced": True, "out": str(self.file), "members": self.to_dicts()}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each member."""
        return [
            {
                "name": member.name,
                "kind": member.kind,
                "config": entry.config,
                "parameters": member.num_parameters,
                "layers": member.num_layers,
                "hidden_size": member.hidden_size,
                "weight_bytes": _weight_bytes(member),
                "kv_bytes_per_token": member.kv_bytes_per_token,
                "dtype": member.dtype,
            }
            for entry, member in zip(self.content.members, self.members, strict=True)
        ]

    def tables(self) -> Sequence[Grid]:
        """The members."""
        rows = [
            {
                "member": row["name"],
                "shape": row["config"] or row["kind"],
                "parameters": f"{row['parameters']:,}",
                "layers": f"{row['layers']}",
                "hidden size": f"{row['hidden_size']:,}",
                "weights MB": "shared" if row["kind"] == "submodel" else f"{row['weight_bytes'] / 1e6:,.1f}",
                "KV bytes /token": f"{row['kv_bytes_per_token']:,}",
                "dtype": row["dtype"],
            }
            for row in self.to_dicts()
        ]
        return [table(rows, texts=("shape", "dtype"), title=f"forced pool {self.content.name}")]

    def lines(self) -> Sequence[str]:
        """What it needs, and what can be done with it."""
        weights = sum(_weight_bytes(member) for member in self.members)
        return [
            f"{weights / 1e6:,.1f} MB of random weights are made whenever it is loaded",
            f"{self.file} written; profile and validate run it, with a recording to decide what is accepted",
        ]


def write_forced_pool(
    members: Sequence[str],
    out: Path | str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    context_tokens: int = 2048,
    vocab_size: int | None = None,
    seed: int = 0,
) -> ForcedPoolMade:
    """Write the pool file of models with these shapes; no weights are made.

    Args:
        members: smallest first, each `[NAME=]PRESET`, `NAME=PATH` of a config.json or its folder, `NAME=MEMBER-N` for
            another member with N layers left out, spread evenly, or `ngram`, a prompt lookup.
        out: folder that gets the file.
        dtype: number format of the weights.
        device: a torch device.
        context_tokens: longest context.
        vocab_size: of all members; None: as their shapes say.
        seed: of the weights.

    Raises:
        PoolFileError: a member that the file must not have.
        ArgumentError: a text of another form, or a pool file that is there already.
    """
    folder = Path(out)
    file = folder / POOL_FILE_NAME
    if file.exists():
        raise ArgumentError(f"`out` must not hold a {POOL_FILE_NAME} already, got {str(out)!r}")
    values: dict[str, Any] = {"name": folder.resolve().name, "context_tokens": context_tokens, "seed": seed}
    if vocab_size is not None:
        values["vocab_size"] = vocab_size
    texts = dict(_named(text) for text in members)
    if len(texts) < len(members):
        raise ArgumentError(f"`members` must have names of their own, got {', '.join(members)}")
    values["members"] = [_member(file, row, name, texts, context_tokens) for row, name in enumerate(texts)]
    for member in values["members"]:
        if CONFIG in member:
            member |= {"dtype": dtype, "device": device}
    content = checked_forced_pool(file, values)
    shapes = shapes_of(file, content)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, _text_of(values))
    return ForcedPoolMade(file=file, content=content, members=shapes)


def _named(text: str) -> tuple[str, str]:
    name, equals, shape = text.partition("=")
    if equals and not (name and shape):
        raise ArgumentError(f"`members` must be SHAPE or NAME=SHAPE, got {text!r}")
    return name, shape if equals else name


def _member(file: Path, row: int, name: str, texts: Mapping[str, str], context_tokens: int) -> dict[str, Any]:
    """What the file says of a member."""
    text = texts[name]
    if text == LOOKUP:
        return {"name": name, LOOKUP: {"max_match": 3}}
    slim = _SLIM.fullmatch(text)
    if slim is not None and slim[1] in texts and slim[1] != name:
        config, *_ = named_config(file, f"members[{row}]", _place(texts[slim[1]]), context_tokens)
        layers, left_out = int(config.num_hidden_layers), int(slim[2])
        if not 0 < left_out < layers:
            raise ArgumentError(
                f"`members` {name} must leave out 1 to {layers - 1} layers of {slim[1]}, got {left_out}"
            )
        skipped = [(2 * index + 1) * layers // (2 * left_out) for index in range(left_out)]
        return {"name": name, "submodel_of": slim[1], "skip_layers": skipped}
    return {"name": name, CONFIG: _place(text)}


def _place(text: str) -> str:
    """A config's own path, which leads there from any folder; a preset as it is."""
    preset = preset_config(text, context_tokens=1) is not None
    return text if preset or not Path(text).exists() else str(Path(text).resolve())


def _weight_bytes(member: LoadedMember) -> int:
    """Of its own."""
    return member.num_parameters * getattr(torch, member.dtype).itemsize if member.kind == "model" else 0


def _text_of(values: Mapping[str, Any]) -> str:
    """As TOML; a JSON text or number is one."""
    head = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items() if key != "members")
    blocks = []
    for member in values["members"]:
        lines = [f"{key} = {_inline(value)}" for key, value in member.items()]
        blocks.append("\n[[members]]\n" + "".join(f"{line}\n" for line in lines))
    return "# Random weights: decisions come from a recording (docs/forced.md).\n" + head + "".join(blocks)


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(part)}" for key, part in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
