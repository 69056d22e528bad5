"""`paceline pool check`: what a pool is, what it needs and whether it works, before weights are read."""

from dataclasses import asdict

import typer

from ...counted import counted
from ...installing import needs_torch
from ...reports.tables.grid import table
from ...runtime.pools.check_report import DeviceNeed, MemberCheck, PoolCheck
from ...shipped import shipped
from ..options.models import PoolArgument
from ..output import JsonOption, print_table, say, write_json

BROKEN = 1  # exit code: something does not work
_WORDS = ("model", "tokenizer", "end tokens", "dtype", "device", "works")


def check(
    pool: PoolArgument = None,
    json: JsonOption = None,
) -> None:
    """Say what a pool needs and whether all of it is supported, without reading weights. Exit 1 if something is not."""
    path = shipped("pools", "pico") if pool is None else pool
    with needs_torch():
        from ...runtime.pools.pool_check import check_pool
    found = check_pool(path)
    if json is None:
        _print(found)
    else:
        write_json({**asdict(found), "works": found.works}, json)
    if not found.works:
        raise typer.Exit(BROKEN)


def _print(found: PoolCheck) -> None:
    known = "unreadable" if found.num_tokens is None else counted(found.num_tokens, "token")
    title = f"pool {found.name}, context {counted(found.context_tokens, 'token')}, tokenizer of {known}"
    print_table(table(map(_cells, found.members), texts=_WORDS, title=title))
    for need in found.devices:
        say(_need(need))
    problems = [*found.problems, *(problem for member in found.members for problem in member.problems)]
    for problem in problems:
        typer.echo(problem)
    say(f"{counted(len(problems), 'problem')}: this pool does not work" if problems else _supported(found))


def _supported(found: PoolCheck) -> str:
    tried = [member.name for member in found.members if member.masks_tried_at_load]
    if not tried:
        return "everything is supported"
    return f"everything else is supported; attention masks of {', '.join(tried)} are tried when weights are loaded"


def _cells(member: MemberCheck) -> dict[str, str]:
    weights = None if member.weight_bytes is None else f"{member.weight_bytes / 1e6:,.1f}"
    ends = member.eos_token_ids
    return {
        "member": member.name,
        "model": member.architecture or (member.kind if member.kind == "ngram" else "-"),
        "tokenizer": "-" if member.kind == "ngram" else member.tokenizer,
        "end tokens": "-" if ends is None else ", ".join(map(str, ends)) or "none",
        "vocabulary": _count(member.vocab_size),
        "parameters": _count(member.num_parameters),
        "weights MB": "-" if weights is None else "shared" if member.kind == "submodel" else weights,
        "KV bytes /token": _count(member.kv_bytes_per_token),
        "dtype": member.dtype,
        "device": member.device,
        "works": "no" if member.problems else "yes",
    }


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _need(need: DeviceNeed) -> str:
    return (
        f"{need.device}: weights {need.weight_bytes / 1e6:,.1f} MB, keys and values of a request of full length "
        f"{need.kv_bytes / 1e6:,.1f} MB, of {need.total_bytes / 1e9:,.1f} GB"
    )
