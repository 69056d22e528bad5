"""Write pool files: those of forced pools, and those of targets with the slim verifiers that a search found."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..base.errors import ArgumentError, counted
from ..base.files import is_shipped, place_of, pool_path, write_whole
from ..reports.tables import Grid, Printed, table
from ..runtime.forced import named_config, preset_config, shapes_of
from ..runtime.pools.members import LoadedMember
from ..runtime.pools.pool_file import CONFIG, POOL_FILE_NAME, ForcedPoolFile, checked_forced_pool, read_pool_file
from ..runtime.prompts import PROMPTS_FILE, Prompt, prompts_of, read_prompts
from ..runtime.slim import (
    VERIFIED_TOKENS,
    Budget,
    Frontier,
    SlimFound,
    add_slims,
    check_names,
    find_slims,
    masks_of,
    slim_name,
    tries_all,
)
from ..runtime.timing import hardware
from .decode import load_pool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SlimsFound(Printed):
    """Slim verifiers that were found and written; prints as `paceline pool search-slim` does."""

    out: Path  # pool file that holds them now
    frontier: Frontier
    meta: dict[str, Any]  # the options, and where it was measured
    pool: str
    target: str

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/slim.md): the options, every mask of the frontier, and the target."""
        figures = asdict(self.frontier)
        target = {"name": self.target, "num_layers": self.frontier.num_layers, "seconds": figures.pop("target_s")}
        verified = {"verified_tokens": VERIFIED_TOKENS}
        return {"pool": self.pool, "out": str(self.out), **self.meta, **figures, "target": target, **verified}

    def tables(self) -> Sequence[Grid]:
        frontier = self.frontier
        title = (
            f"pool {self.pool}: {counted(frontier.num_trials, 'mask')} tried on "
            f"{counted(frontier.num_tokens, 'token')} of {counted(self.meta['prompts'], 'prompt')}; "
            f"ms of a forward of {VERIFIED_TOKENS} tokens"
        )
        target = {
            "member": self.target,
            "layers left out": "none",
            "share": "0%",
            "TVD": "0.0000",
            "unequal argmax": "0.0%",
            "ms": f"{1000 * frontier.target_s:.3f}",
            "of target": "100%",
        }
        rows = [*map(_cells, self._fastest_first()), target]
        return [table(rows, texts=("layers left out", "found by", "dominated"), title=title)]

    def lines(self) -> Sequence[str]:
        return [f"{self.out}: {', '.join(each.name for each in self.frontier.found)} written"]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each mask from the fastest on; columns as in docs/slim.md, `found[]`."""
        return [asdict(row) for row in self._fastest_first()]

    def _fastest_first(self) -> list[SlimFound]:
        return sorted((*self.frontier.found, *self.frontier.baselines), key=lambda row: (row.seconds, row.tvd))


def find_slim(
    pool: Path | str | None,
    prompts: str | Path | Sequence[Prompt | str] | None = None,
    *,
    shares: Sequence[float] = (0.45,),
    trials: int = 60,
    random_trials: int | None = None,
    max_new_tokens: int = 64,
    limit: int | None = 48,
    seed: int = 0,
    threads: int = 1,
    chat: bool = False,
    out: Path | None = None,
    replace: bool = False,
) -> SlimsFound:
    """Search masks of layers that keep the target's distributions, and write the best of each share as a member.

    Random search, then Bayesian (which needs the extra `search`); all masks where they are no more than `trials`.

    Args:
        pool: a pool.toml or its folder; None is the shipped pool, whose file is not written to.
        prompts: distances are measured on the target's continuations of them; None takes those beside the pool file.
        shares: of the target's layers to leave out, each in (0, 1).
        trials: masks to try for each share, >= 1.
        random_trials: of these drawn uniformly, before the Bayesian search; a third if None.
        max_new_tokens: longest continuation, >= 1.
        limit: only this many prompts, the first ones, >= 1; all if None.
        seed: of the draws, >= 0.
        threads: CPU threads of torch, >= 1.
        chat: render prompts as questions of a dialogue, by the chat template of the pool's tokenizer.
        out: pool file to write; None: the one that was read.
        replace: replace slim verifiers of the same names.

    Raises:
        PoolFileError: a broken pool file, or a name that is taken.
        ValueError: a file that cannot be written, or shares, trials or prompts that cannot be used.
        ModuleNotFoundError: Bayesian search without the extra `search`.
    """
    file, content = read_pool_file(pool_path(pool))
    target_file = _writable(file if out is None else out, file, shipped_pool=is_shipped(file))
    check_names(file, content, [slim_name(share) for share in shares], replace=replace)
    requests = (_own_prompts(file) if prompts is None else prompts_of(prompts))[:limit]
    drawn = max(1, trials // 3) if random_trials is None else random_trials
    budget = Budget(trials=trials, random_trials=drawn, seed=seed)
    models = load_pool(file, threads=threads, chat=chat)
    for name, value in {"random_trials": random_trials, "seed": seed or None}.items():
        if value is not None and tries_all(models, shares, budget):
            raise ArgumentError(
                f"`{name}` must be left out where all masks are tried, since none is drawn, got {value}"
            )
    baselines = masks_of(content)
    frontier = find_slims(models, requests, shares, budget, max_new_tokens=max_new_tokens, baselines=baselines)
    sizes = {member.name: member.num_parameters for member in models.members}
    write_whole(target_file, add_slims(file, content, frontier.found, sizes, folder=target_file.parent))
    asked = {"prompts": len(requests), "max_new_tokens": max_new_tokens, "threads": threads, "chat": chat}
    measured = hardware(None if models.target.model is None else models.target.model.device)
    meta = {**asked, **asdict(budget), "hardware": measured}
    return SlimsFound(out=target_file, frontier=frontier, meta=meta, pool=models.name, target=models.target.name)


def _own_prompts(file: Path) -> tuple[Prompt, ...]:
    path = file.parent / PROMPTS_FILE
    if not path.is_file():
        raise ArgumentError(f"`prompts` must be given for a pool without {PROMPTS_FILE} beside its file, got none")
    return read_prompts(path)


def _writable(out: Path, file: Path, *, shipped_pool: bool) -> Path:
    """The file to write; raises, before a long search, if it could not be written after it."""
    if out.is_dir():
        raise ArgumentError(f"`out` must name a file, got the folder {out}")
    if not out.parent.is_dir():
        raise ArgumentError(f"`out` {out}: no folder {out.parent}")
    own = out.exists() and out.samefile(file)
    if own and shipped_pool:
        raise ArgumentError(f"`out` must name another file than the shipped pool's, got {out}")
    if out.exists() and not own:
        raise ArgumentError(f"`out` {out}: exists already, and is not the pool file")
    if not os.access(place_of(out).parent, os.W_OK):
        raise ArgumentError(f"`out` {out}: cannot be written")
    return out


def _cells(row: SlimFound) -> dict[str, str]:
    return {
        "member": row.name,
        "layers left out": " ".join(map(str, row.skip_layers)),
        "share": f"{row.share:.0%}",
        "TVD": f"{row.tvd:.4f}",
        "unequal argmax": f"{row.disagreement:.1%}",
        "ms": f"{1000 * row.seconds:.3f}",
        "of target": f"{row.seconds_share:.0%}",
        "found by": row.how,
        "dominated": "yes" if row.dominated else "no",
    }


LOOKUP = "ngram"
_SLIM = re.compile(r"(.+)-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ForcedPoolMade(Printed):
    """The pool file that was written; prints as `paceline pool forced` does."""

    file: Path
    content: ForcedPoolFile
    members: tuple[LoadedMember, ...]  # as they will be loaded, without weights

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/validation.md)."""
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
    """Write the pool file of models with these shapes into the folder `out`; no weights are made.

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
        PoolFileError: a member that is not allowed.
        ArgumentError: a text of another form, or the pool file exists.
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
    """A config's absolute path; a preset as it is."""
    preset = preset_config(text, context_tokens=1) is not None
    return text if preset or not Path(text).exists() else str(Path(text).resolve())


def _weight_bytes(member: LoadedMember) -> int:
    return member.num_parameters * getattr(torch, member.dtype).itemsize if member.kind == "model" else 0


def _text_of(values: Mapping[str, Any]) -> str:
    """The values as TOML; JSON texts and numbers are TOML."""
    head = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items() if key != "members")
    blocks = []
    for member in values["members"]:
        lines = [f"{key} = {_inline(value)}" for key, value in member.items()]
        blocks.append("\n[[members]]\n" + "".join(f"{line}\n" for line in lines))
    return "# Random weights: decisions come from a recording (docs/validation.md).\n" + head + "".join(blocks)


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(part)}" for key, part in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
