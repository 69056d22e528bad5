"""A comparison by tag, and regrets, as tables for the terminal."""

from rich.table import Table
from rich.text import Text

from .regret import Regret
from .tags import ByTag


def tag_table(by_tag: ByTag) -> Table:
    """One row per policy, one column per tag: the speed-up over the target alone; the best of each tag is bold."""
    table = _table("speed-up by tag", by_tag.tags)
    table.caption = "against the target alone on the same requests, at the first seed"
    figures = {policy: by_tag.speed_ups(policy) for policy in by_tag.policies}
    known = [speed_ups for speed_ups in figures.values() if speed_ups is not None]
    best = {tag: max(row[tag] for row in known) for tag in by_tag.tags} if known else {}
    for policy, speed_ups in figures.items():
        if speed_ups is None:
            table.add_row(policy, *["unknown"] * len(by_tag.tags))
            continue
        styles = {tag: "bold" if speed_up == best[tag] else "" for tag, speed_up in speed_ups.items()}
        table.add_row(policy, *(Text(f"{speed_ups[tag]:.2f}x", style=style) for tag, style in styles.items()))
    return table


def regret_table(regret: Regret, *, by_tag: bool) -> Table:
    """One row per policy: seconds per token over those of the reference, and by tag over the best static policy."""
    tags = list(regret.best_static) if by_tag else []
    table = _table(f"regret over {regret.reference}", ["all", *tags])
    if tags:
        best = "; ".join(f"{tag}: {policy}" for tag, policy in regret.best_static.items())
        table.caption = f"by tag over the best policy given that does the same in every round ({best})"
    for policy, over in regret.over_reference.items():
        table.add_row(policy, _percent(over), *(_percent(regret.over_static[policy][tag]) for tag in tags))
    return table


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", pad_edge=False, header_style="bold")
    table.add_column("policy", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _percent(share: float) -> str:
    return f"{share:+.1%}" if abs(share) >= 5e-4 else "0.0%"
