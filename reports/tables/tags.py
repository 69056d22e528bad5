"""A comparison by tag, and regrets, as tables for the terminal."""

from collections.abc import Mapping, Sequence
from operator import itemgetter

from ..regret import Regret
from ..tags import ByTag
from .grid import Column, Grid


def tag_table(by_tag: ByTag) -> Grid:
    """One row per policy, one column per tag: the speed-up over the target alone; the best of each tag is bold."""
    figures = {policy: by_tag.speed_ups(policy) for policy in by_tag.policies}
    known = [speed_ups for speed_ups in figures.values() if speed_ups is not None]
    best = {tag: max(row[tag] for row in known) for tag in by_tag.tags} if known else {}
    bold = {
        (row, column)
        for row, speed_ups in enumerate(figures.values())
        if speed_ups is not None
        for column, tag in enumerate(by_tag.tags, start=1)
        if speed_ups[tag] == best[tag]
    }
    return Grid(
        title="speed-up by tag",
        columns=_columns(by_tag.tags),
        rows=tuple((policy, *_speed_ups(by_tag, speed_ups)) for policy, speed_ups in figures.items()),
        remarks=("against the target alone on the same requests, at the first seed",),
        bold=frozenset(bold),
    )


def _speed_ups(by_tag: ByTag, speed_ups: Mapping[str, float] | None) -> list[str]:
    return ["unknown" if speed_ups is None else f"{speed_ups[tag]:.2f}x" for tag in by_tag.tags]


def regret_table(regret: Regret, *, by_tag: bool) -> Grid:
    """One row per policy: seconds per token over those of the reference, and by tag over the best static policy.

    The least regret comes first.
    """
    tags = list(regret.best_static) if by_tag else []
    best = "; ".join(f"{tag}: {policy}" for tag, policy in regret.best_static.items())
    remark = f"by tag over the best policy given that does the same in every round ({best})"
    return Grid(
        title=f"regret over {regret.reference}",
        columns=_columns(["all", *tags]),
        rows=tuple(
            (policy, _percent(over), *(_percent(regret.over_static[policy][tag]) for tag in tags))
            for policy, over in sorted(regret.over_reference.items(), key=itemgetter(1))
        ),
        remarks=(remark,) if tags else (),
    )


def _columns(headings: Sequence[str]) -> tuple[Column, ...]:
    return (Column(heading="policy", number=False), *(Column(heading=heading or "no tag") for heading in headings))


def _percent(share: float) -> str:
    return f"{share:+.1%}" if abs(share) >= 5e-4 else "0.0%"
