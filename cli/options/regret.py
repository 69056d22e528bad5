"""`--by-tag` and `--regret` of `paceline compare`: which policies they add, and what they print behind the table."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from ...decoding.pool import Pool
from ...policies.about import about_of
from ...policies.spec import PolicySpec
from ...reports.comparison import Comparison
from ...reports.regret import REFERENCE, regret_of
from ...reports.tables.grid import Grid
from ...reports.tables.tags import regret_table, tag_table
from ...reports.tags import ByTag, TagShares

ORACLES = ("oracle-window", REFERENCE)
ByTagOption = Annotated[bool, typer.Option("--by-tag", help="Also the speed-up of each tag's own requests.")]
RegretOption = Annotated[
    bool,
    typer.Option("--regret", help="Also the oracles, and what each policy loses against the best chain per round."),
]


def with_oracles(names: list[str]) -> list[str]:
    """The policies to compare and the oracles that are not among them, whatever their options."""
    return [*names, *(oracle for oracle in ORACLES if not any(_names(name, oracle) for name in names))]


def further_views(
    comparison: Comparison, shares: Mapping[str, TagShares], pool: Pool, *, baseline: str, by_tag: bool, regret: bool
) -> tuple[list[Grid], dict[str, Any]]:
    """(tables, JSON keys) that the options ask for.

    Args:
        comparison: what was compared.
        shares: by policy, its run at the first seed by tag; the baseline's too if it ran.
        pool: that the policies were built for.
        baseline: name of the target alone.
        by_tag: whether `--by-tag` was given.
        regret: whether `--regret` was given.
    """
    names = [row.policy for row in comparison.rows]
    tags = ByTag(baseline=shares.get(baseline), policies={name: shares[name] for name in names})
    tables: list[Grid] = []
    keys: dict[str, Any] = {}
    if by_tag:
        fastest_first = [row.policy for row in comparison.ranked() if row.policy in names]
        ranked = ByTag(baseline=tags.baseline, policies={name: shares[name] for name in fastest_first})
        tables.append(tag_table(ranked))
        keys["by_tag"] = tags.to_json()
    if regret:
        reference = next(name for name in names if _names(name, REFERENCE))
        found = regret_of(comparison, tags, static=_static(names, pool), reference=reference)
        tables.append(regret_table(found, by_tag=by_tag))
        keys["regret"] = found.to_json()
    return tables, keys


def is_oracle(name: str, pool: Pool) -> bool:
    """Whether a policy sees ahead, so that nobody can run it."""
    about = about_of(PolicySpec.parse(name).build(pool))
    return about is not None and about.oracle


def _names(text: str, policy: str) -> bool:
    return PolicySpec.parse(text).name == policy


def _static(names: Sequence[str], pool: Pool) -> list[str]:
    """Policies that do the same in every round."""
    return [name for name in names if PolicySpec.parse(name).name in {"chain", "plain", pool.target}]
