"""What a policy loses against an oracle, and by tag against the best fixed chain."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from .seconds_by_tag import ByTag, tag_columns
from .side_by_side import SideBySide
from .tables import Grid

REFERENCE = "oracle-chain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Seconds per token of each policy over the reference's, less 1: 0.25 is a quarter slower, below 0 is faster."""

    reference: str  # the policy that regret is relative to
    over_reference: dict[str, float]  # by policy
    # by tag, the policy of fewest seconds per token among static ones, which do the same in every round; empty without
    # one
    best_static: dict[str, str]
    over_static: dict[str, dict[str, float]]  # by policy and tag, over that policy

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/compare.md)."""
        rows = [
            {"policy": policy, "over_reference": regret, "over_static": self.over_static.get(policy, {})}
            for policy, regret in self.over_reference.items()
        ]
        return {"reference": self.reference, "best_static": self.best_static, "policies": rows}


def regret_of(comparison: SideBySide, by_tag: ByTag, *, static: Sequence[str], reference: str) -> Regret:
    """Regret of every policy of a comparison against `reference`, the name of one of its rows.

    `by_tag` holds the same runs by tag. `static` are policies that do the same in every round, such as chains with
    fixed windows.
    """
    speed = {row.policy: comparison.output_tokens_per_s(row) for row in comparison.rows}

    def on(tag: str, policy: str) -> float:
        return by_tag.policies[policy][tag].output_tokens_per_s

    best_static = {tag: max(static, key=partial(on, tag)) for tag in by_tag.tags} if static else {}
    return Regret(
        reference=reference,
        over_reference={policy: speed[reference] / own - 1.0 for policy, own in speed.items()},
        best_static=best_static,
        over_static={
            policy: {tag: on(tag, best) / on(tag, policy) - 1.0 for tag, best in best_static.items()}
            for policy in speed
        },
    )


def regret_table(regret: Regret, *, by_tag: bool) -> Grid:
    """One row per policy: seconds per token over those of the reference, and by tag over the best static policy.

    The least regret comes first.
    """
    tags = list(regret.best_static) if by_tag else []
    best = "; ".join(f"{tag}: {policy}" for tag, policy in regret.best_static.items())
    remark = f"by tag over the best policy given that does the same in every round ({best})"
    return Grid(
        title=f"regret over {regret.reference}",
        columns=tag_columns(["all", *tags]),
        rows=tuple(
            (policy, _percent(over), *(_percent(regret.over_static[policy][tag]) for tag in tags))
            for policy, over in sorted(regret.over_reference.items(), key=itemgetter(1))
        ),
        remarks=(remark,) if tags else (),
    )


def _percent(share: float) -> str:
    return f"{share:+.1%}" if abs(share) >= 5e-4 else "0.0%"
