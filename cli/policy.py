"""`paceline policy list | check`."""

import inspect
from typing import Annotated

import typer
from rich.table import Table

from ..policies.check import check_policy, check_pool
from ..policies.registry import known_policies, make_policy, policy_options
from .output import JsonOption, print_table, write_json


def policy_app() -> typer.Typer:
    """The `policy` group."""
    app = typer.Typer(help="What policies there are, and whether one keeps the contract.", no_args_is_help=True)
    app.command("list")(list_policies)
    app.command("check")(check)
    return app


def list_policies(json: JsonOption = None) -> None:
    """Every policy by name with its options and their defaults."""
    rows = [
        {"name": name, "summary": (inspect.getdoc(cls) or "").split("\n")[0], "options": _options(name)}
        for name, cls in known_policies().items()
    ]
    if json is not None:
        write_json({"policies": rows}, json)
        return
    table = Table("name", "what it does", "options", header_style="bold")
    for row in rows:
        table.add_row(row["name"], row["summary"], row["options"])
    print_table(table)


def _options(name: str) -> str:
    words = []
    for option in policy_options(known_policies()[name]).values():
        needed = option.default is inspect.Parameter.empty
        words.append(option.name if needed else f"{option.name}={option.default}")
    return ", ".join(words)


def check(
    policy: Annotated[str, typer.Argument(help="As --policy of compare; members: ngram, draft, mid, slim, target.")],
    seed: Annotated[int, typer.Option(help="Of the requests and the toy models.")] = 0,
    json: JsonOption = None,
) -> None:
    """Run a policy through toy models: legal steps, progress, end of text, budgets, batches. Exit 2 on a breach."""
    report = check_policy(lambda pool: make_policy(policy, pool), name=policy, pool=check_pool(), seed=seed)
    if json is not None:
        fields = ("num_requests", "num_steps", "num_tokens", "lossless")
        write_json({"policy": policy, **{field: getattr(report, field) for field in fields}}, json)
        return
    kind = "lossless: committed what the target alone writes" if report.lossless else "LOSSY: committed other text"
    typer.echo(
        f"{policy}: keeps the contract ({report.num_requests} requests, {report.num_steps} steps, "
        f"{report.num_tokens} tokens); {kind}"
    )
