"""`paceline policy list | show | check | fit`."""

import inspect
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.by_name import names_path
from ..base.errors import counted
from ..base.files import recording_path, write_whole
from ..base.options import opt
from ..policies.about import OWN, about_of
from ..policies.by_name import POLICIES, PolicySpec, PolicySpecError, own_policies, policy_class, unknown_policy
from ..policies.chain_text import PolicyClass, any_key, policy_options, takes_policies
from ..policies.check import CheckReport, check_policy, check_pool
from ..reports.tables import Column, Grid, table
from ..studies.fit import fit_head
from .options import TraceOption
from .output import JsonOption, check_file_path, check_json_path, print_table, say, show, show_table, write_json

CONTRADICTED = 1  # exit code: a policy that says it is lossless was not


def list_policies(json: JsonOption = None) -> None:
    """List every policy by name: what it does, its paper, whether it is lossless, what it needs, and its options.

    Those of other packages are loaded for it; one that cannot be used stands last, with the reason.
    """
    theirs = POLICIES.of_packages()
    usable = {name: found for name, found in theirs.items() if not isinstance(found, ValueError)}
    unusable = {name: str(found) for name, found in theirs.items() if isinstance(found, ValueError)}
    rows = [_row(name, cls) for name, cls in {**own_policies(), **usable}.items()]
    cells = [{"name": row["name"], "text": _text_kind(row), "what it does": _about(row)} for row in rows]
    cells += [{"name": name, "text": "cannot be\nused", "what it does": why} for name, why in unusable.items()]
    grid = table(cells, texts=("text", "what it does"), lines=range(len(cells)))
    show_table(json, {"policies": rows, "unusable": unusable}, grid)


def show_policy(
    name: Annotated[str, typer.Argument(help="A name of `policy list`, FILE.py:Class or package.module:Class.")],
    json: JsonOption = None,
) -> None:
    """Show one policy: what it does, and each option with its meaning, type and default."""
    if "/" in name and not names_path(name):
        raise PolicySpecError(f"{name!r} is a chain of models, not the name of a policy: paceline policy show chain")
    cls = policy_class(name)
    if cls is None:
        raise unknown_policy(name)
    row, options = _row(name, cls), policy_options(cls).values()
    if json is not None:
        listed = [{"name": one.name, "type": _type_of(one), "default": _default_of(one)} for one in options]
        write_json({**row, "about": inspect.getdoc(cls) or "", "options": listed}, json)
        return
    needs = f"; needs {_needs(row)}" if _needs(row) else ""
    say(f"{name}: {_text_kind(row).replace(chr(10), ' ')}; {_paper(row) or 'no paper'}{needs}")
    typer.echo(f"\n{inspect.getdoc(cls) or ''}\n")
    columns = tuple(Column(heading=heading, number=False) for heading in ("option", "type", "default"))
    cells = tuple((one.name, _type_of(one), _default_of(one) or "must be given") for one in options)
    print_table(Grid(columns=columns, rows=cells))


def _is_needed(option: inspect.Parameter) -> bool:
    return option.default is inspect.Parameter.empty


def _default_of(option: inspect.Parameter) -> str | None:
    return None if _is_needed(option) else repr(option.default)


def _type_of(option: inspect.Parameter) -> str:
    return re.sub(r"(?:\w+\.)+(\w+)", r"\1", str(getattr(option.annotation, "__name__", option.annotation)))


def _row(name: str, cls: PolicyClass) -> dict[str, Any]:
    """A policy's `about`; `lossless` is None without one, and for policies made of others."""
    about = about_of(cls)
    return {
        "name": name,
        "summary": (inspect.getdoc(cls) or "").split("\n")[0],
        "paper": "" if about is None else about.paper,
        "lossless": None if about is None or takes_policies(cls) else about.lossless,
        "members": "" if about is None else about.members,
        "observes": [] if about is None else sorted(about.observes),
        "oracle": about is not None and about.oracle,
        "options": _options(cls),
    }


def _about(row: dict[str, Any]) -> str:
    """What a policy does, and on separate lines its paper, its needs and its options."""
    parts = {"needs": _needs(row), "options": row["options"]}
    lines = [row["summary"], _paper(row), *(f"{name}: {text}" for name, text in parts.items() if text)]
    return "\n".join(filter(None, lines))


def _paper(row: dict[str, Any]) -> str:
    """The paper of a policy; empty if it names none."""
    paper = str(row["paper"])
    return f"paper: {paper}" if paper and not paper.startswith(OWN) else paper


def _text_kind(row: dict[str, Any]) -> str:
    kind = {True: "lossless", False: "LOSSY", None: "depends"}[row["lossless"]]
    return f"{kind},\nsimulator only" if row["oracle"] else kind


def _needs(row: dict[str, Any]) -> str:
    return "; ".join(need for need in (row["members"], *row["observes"]) if need)


def _options(cls: PolicyClass) -> str:
    options = policy_options(cls).values()
    words = [option.name if _is_needed(option) else f"{option.name}={option.default}" for option in options]
    free = any_key(cls)
    return ", ".join(words if free is None else [*words, f"any of {free}"])


def check(
    policy: Annotated[str, typer.Argument(help="As --policy of compare; members: ngram, draft, mid, slim, target.")],
    seed: int = opt(0, "Seed of the requests and the toy models."),
    json: JsonOption = None,
) -> None:
    """Run a policy through toy models: legal steps, progress, end of text, budgets, batches.

    Exit 1 if it says it is lossless and was not, 2 on a breach of the contract.
    """
    report = check_policy(PolicySpec.parse(policy).build, name=policy, pool=check_pool(), seed=seed)
    if json is not None:
        fields = ("num_requests", "num_steps", "num_tokens", "lossless", "says_lossless", "contradicted", "repeats")
        write_json({"policy": policy, **{field: getattr(report, field) for field in fields}}, json)
    else:
        typer.echo(_told(policy, report))
    if report.contradicted:
        raise typer.Exit(CONTRADICTED)


def _told(policy: str, report: CheckReport) -> str:
    kind = "lossless: committed what the target alone writes" if report.lossless else "LOSSY: committed other text"
    if report.lossless and report.says_lossless is False:
        kind = "LOSSY by what it says of itself, though it committed what the target alone writes here"
    if report.contradicted:
        kind += ", though it says of itself that it is lossless"
    if not report.repeats:
        kind += "; NOT REPEATABLE: a second run took other steps (chance without a seed, a clock, state of the class)"
    return (
        f"{policy}: keeps the contract ({counted(report.num_requests, 'request')}, "
        f"{counted(report.num_steps, 'step')}, {counted(report.num_tokens, 'token')}); {kind}"
    )


FITTED = "specdec++"


def fit(
    name: Annotated[str, typer.Argument(help=f"The policy: {FITTED}.")],
    *,
    out: Annotated[Path, typer.Option(help="The file to write, which the policy takes as head=FILE.")],
    trace: TraceOption = None,
    drafter: str | None = opt(None, "Drafter whose tokens the head judges; default: the smallest model."),
    window: int = opt(16, "Longest draft of the rounds that are fitted to.", least=1),
    json: JsonOption = None,
) -> None:
    """Fit what a policy has to know in advance to a recording, and judge it on the quarter that was held out."""
    if name != FITTED:
        raise ValueError(f"NAME must be a policy that is fitted in advance, {FITTED}, got {name!r}")
    path = recording_path(trace)
    check_file_path("--out", out)
    if out.exists():
        raise ValueError(f"{out}: exists already; what was fitted is never overwritten")
    check_json_path(json, out)
    found = fit_head(path, drafter=drafter, window=window)
    write_whole(out, found.head.to_json())
    show(json, found)
