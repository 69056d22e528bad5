"""Slim verifiers written into the text of a pool file, which keeps its comments, its order and its spelling."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ...strict_toml import decode_toml
from ..pools.pool_file import MemberEntry, PoolFile, PoolFileError
from .frontier import SlimFound
from .masks import Mask

# Comments right above a header are about what follows.
_MEMBER = re.compile(r"(?:^[ \t]*#[^\n]*\n)*^[ \t]*\[\[[ \t]*members[ \t]*\]\]", re.MULTILINE)
_SKIPPED = re.compile(r"^([ \t]*skip_layers[ \t]*=[ \t]*)\[[^\]]*\]", re.MULTILINE)


class _Block(NamedTuple):
    """A member, its size, and its part of the text with the comments above it and what stands after it."""

    entry: MemberEntry
    num_parameters: int
    text: str


def masks_of(content: PoolFile) -> dict[str, Mask]:
    """Layers that submodels of the target leave out, by name; without those whose weights are not the target's."""
    target = content.members[-1].name
    submodels = [entry for entry in content.members if entry.submodel_of == target and entry.low_rank is None]
    return {entry.name: entry.skip_layers for entry in submodels}


def check_names(file: Path, content: PoolFile, names: Sequence[str], *, replace: bool) -> None:
    """Refuse names of slim verifiers to come that are taken.

    Args:
        file: of the pool, for the message.
        content: of the file.
        names: to be.
        replace: whether a submodel of the target may be replaced.

    Raises:
        PoolFileError: a name that is taken; if `replace`, by another kind of member.
    """
    target = content.members[-1].name
    for row, member in enumerate(content.members):
        if member.name not in names:
            continue
        if not replace:
            rule = "must not be that of a member to be (`replace` puts another in its place)"
            raise PoolFileError(file, f"members[{row}].name", rule, member.name)
        if member.submodel_of != target:
            raise PoolFileError(file, f"members[{row}]", f"must be a submodel of {target} to be replaced", member.name)
        if member.low_rank is not None:
            rule = "must be absent where the submodel is to be replaced, as it fits the old layers only"
            raise PoolFileError(file, f"members[{row}].low_rank", rule, member.low_rank)


def add_slims(
    file: Path, content: PoolFile, slims: Sequence[SlimFound], sizes: Mapping[str, int], *, folder: Path
) -> str:
    """The text of a pool file with slim verifiers of its target, each after the members that are no larger.

    Args:
        file: the pool file; not changed.
        content: of it.
        slims: members to add; one takes the place of a member of its name.
        sizes: parameters by member.
        folder: where the text will be kept; relative locations are rewritten for another folder than the file's.

    Raises:
        PoolFileError: a file that lists its members in another way than as `[[members]]` with plain keys.
    """
    text = file.read_bytes().decode("utf-8")
    newline = "\r\n" if "\r\n" in text else "\n"
    head, parts = _split(text)
    if len(parts) != len(content.members):
        raise _unfit(file, len(parts))
    tokenizer = content.tokenizer
    blocks = [_Block(entry, sizes[entry.name], part) for entry, part in zip(content.members, parts, strict=True)]
    if folder.resolve() != file.parent.resolve():
        tokenizer = moved(file, tokenizer, folder)
        head = _with_value(head, "tokenizer", tokenizer)
        blocks = [_relocated(file, block, folder) for block in blocks]
    for slim in slims:
        blocks = _placed(blocks, slim, newline)
    edited = head + _joined(blocks, newline)
    members = tuple(block.entry for block in blocks)
    _check(file, edited, content.model_copy(update={"tokenizer": tokenizer, "members": members}))
    return edited


def _split(text: str) -> tuple[str, list[str]]:
    """What stands before the first member, and a part for each."""
    starts = [found.start() for found in _MEMBER.finditer(text)]
    cuts = [0, *starts, len(text)]
    head, *parts = [text[start:end] for start, end in pairwise(cuts)]
    return head, parts


def _placed(blocks: Sequence[_Block], slim: SlimFound, newline: str) -> list[_Block]:
    """The blocks with a slim verifier in order of size; the target, last, is larger than any."""
    others = [block for block in blocks if block.entry.name != slim.name]
    old = next((block.text for block in blocks if block.entry.name == slim.name), None)
    layers = str(list(slim.skip_layers))
    entry = MemberEntry(name=slim.name, submodel_of=blocks[-1].entry.name, skip_layers=slim.skip_layers)
    if old is None:
        lines = ("[[members]]", f'name = "{entry.name}"', f'submodel_of = "{entry.submodel_of}"')
        text = newline.join((*lines, f"skip_layers = {layers}", "", ""))
    else:
        text = _SKIPPED.sub(lambda found: found[1] + layers, old, count=1)
    place = next(place for place, block in enumerate(others) if block.num_parameters > slim.num_parameters)
    return [*others[:place], _Block(entry, slim.num_parameters, text), *others[place:]]


def _joined(blocks: Sequence[_Block], newline: str) -> str:
    """The parts one after another, every header on a line of its own."""
    ended = [block.text if block.text.endswith("\n") else block.text + newline for block in blocks[:-1]]
    return "".join([*ended, blocks[-1].text])


def _relocated(file: Path, block: _Block, folder: Path) -> _Block:
    """Its locations as seen from `folder`."""
    entry, text = block.entry, block.text
    for field in ("path", "tokenizer", "vocabulary", "low_rank"):
        value = getattr(entry, field)
        if value is not None:
            there = moved(file, value, folder)
            entry, text = entry.model_copy(update={field: there}), _with_value(text, field, there)
    return _Block(entry, block.num_parameters, text)


def moved(file: Path, location: str, folder: Path) -> str:
    """A location of a pool file relative to `folder` instead; hub ids and absolute ones stay as they are."""
    here = file.parent / location
    if Path(location).is_absolute() or not here.exists():
        return location
    return Path(os.path.relpath(here.resolve(), folder.resolve())).as_posix()


def _with_value(text: str, field: str, value: str) -> str:
    """The text with another string for the first `field = "..."`."""
    written = json.dumps(value, ensure_ascii=False)
    pattern = re.compile(rf"^([ \t]*{field}[ \t]*=[ \t]*)(?:\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*')", re.MULTILINE)
    return pattern.sub(lambda found: found[1] + written, text, count=1)


def _check(file: Path, edited: str, expected: PoolFile) -> None:
    """Text was edited, so whether the result says what it should is not taken for granted."""
    try:
        content = PoolFile.model_validate(decode_toml(edited))
    except ValueError as error:
        raise _unfit(file, str(error)) from error
    if content != expected:
        raise _unfit(file, "another form")


def _unfit(file: Path, found: object) -> PoolFileError:
    rule = "must be a [[members]] table with plain keys for each member, to have one added"
    return PoolFileError(file, "members", rule, found)
