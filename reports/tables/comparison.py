"""A comparison as tables for the terminal: the first screen, few columns and the fastest policy first.

`compare --detail` adds what the first table leaves out, by policy and by member.
"""

from collections.abc import Iterable, Mapping
from math import floor
from typing import Any

from ...counted import counted
from ..interval import Interval
from ..side_by_side import SideBySide
from ..summary import LevelSummary, Summary
from .grid import Grid, shown, table
from .printed import REMARKS
from .quality import tree_remarks

KINDS = {"synthetic": "SYNTHETIC trace", "imported": "IMPORTED trace"}
# How requests begin, by kind of recording; `prefill` for all others and for models.
DEFAULT_STARTS = {"imported": "recorded"}
# Of columns that are no means over seeds.
AT_FIRST_SEED = "accept. length and exact share are those of the first seed"


def comparison_table(comparison: SideBySide) -> Grid:
    """One row per policy and the target alone; the fastest is bold. Columns are defined in docs/glossary.md."""
    return table(
        [_cells(comparison, row) for row in comparison.ranked()],
        title=comparison_title(comparison.meta, comparison),
        remarks=shared_remarks(comparison.meta, [comparison], chance=f"; {AT_FIRST_SEED}"),
        bold={(0, 0), (0, 1)},
    )


def shown_interval(interval: Interval | None, style: str) -> str:
    """Half the width of an interval, to stand after its mean; empty for none."""
    return "" if interval is None else f" ± {interval.half_width:{style}}"


def _cells(comparison: SideBySide, row: Summary) -> dict[str, str]:
    mean_of_requests = comparison.speed_up_mean_of_requests(row)
    return {
        "policy": row.policy,
        "speed-up": _speed_up(comparison, row),
        "mean of requests": "unknown" if mean_of_requests is None else f"{mean_of_requests:.2f}x",
        "tokens/s": f"{comparison.output_tokens_per_s(row):,.1f}",
        "accept. length": f"{row.acceptance_length:.2f}",
        "exact share": _share(row.exact_share),
    }


def comparison_title(meta: dict[str, Any], comparison: SideBySide) -> str:
    """What was replayed and how, in a line.

    Args:
        meta: of the comparison, or of several at other batches.
        comparison: one of them, for what all have in common.
    """
    first = comparison.rows[0] if comparison.baseline is None else comparison.baseline
    kind = KINDS.get(meta["kind"], "trace")
    origin = f"from {meta['source']}" if meta["kind"] == "imported" else meta["sampling"]
    batch = ", ".join(f"{each:,}" for each in meta["batch"]) if isinstance(meta["batch"], list) else meta["batch"]
    deciding = f", {meta['decide_s']:g} s a decision" if meta["decide_s"] else ""
    trust = f"; {meta['trust']}" if meta.get("trust") else ""
    return (
        f"{kind} {meta['trace']} ({origin}), {counted(first.requests, 'request')}, "
        f"{counted(first.output_tokens, 'token')}{_what_if(meta)}; cost {meta['cost']}{_where(meta)}, batch {batch}, "
        f"seed {meta['seed']}{start_words(meta)}{prefix_words(meta)}{_devices(meta)}{deciding}{trust}"
    )


def start_words(meta: Mapping[str, Any]) -> str:
    """How requests began, to stand in a title, a comma before it; empty for the default.

    Args:
        meta: of a comparison or a run log, with `start`; with `kind` where a recording was replayed.
    """
    start = meta.get("start", "")
    return f", start {start}" if start and start != DEFAULT_STARTS.get(meta.get("kind", ""), "prefill") else ""


def prefix_words(meta: Mapping[str, Any]) -> str:
    """The prefix caches of a run, to stand in a title, a comma before it; empty without them.

    Args:
        meta: of a comparison or a run log.
    """
    size = meta.get("prefix_cache")
    return f", prefix caches of {size['num_blocks']} blocks of {size['block_tokens']} tokens" if size else ""


def _where(meta: dict[str, Any]) -> str:
    """The machine that measured the seconds; empty for published figures and for one's own."""
    return f" (measured on {meta['hardware']})" if meta.get("hardware") else ""


def _devices(meta: dict[str, Any]) -> str:
    """Which members may work at the same time; empty where all share a device."""
    devices = meta.get("devices", "one")
    return "" if devices == "one" else f", devices {devices}"


def _what_if(meta: dict[str, Any]) -> str:
    shifts = meta.get("what_if", {}).get("acceptance", {})
    changes = ", ".join(f"acceptance of {name} {delta:+g}" for name, delta in shifts.items())
    return f"; WHAT IF: {changes}" if changes else ""


def shared_remarks(meta: dict[str, Any], comparisons: Iterable[SideBySide], *, chance: str = "") -> list[str]:
    """What a reader of the figures has to know, a line each.

    Args:
        meta: of the comparisons together.
        comparisons: whose figures they are.
        chance: what else is to be said where figures have intervals.
    """
    remarks = [remark for key in REMARKS for remark in meta.get(key, ())]
    most_runs = max(len(comparison.runs(row)) for comparison in comparisons for row in comparison.rows)
    if most_runs > 1:
        seeds = f"{meta['seed']} to {meta['seed'] + most_runs - 1}"
        remarks.append(f"±: 95% interval of the mean over seeds {seeds}, where chance has a part{chance}")
    return remarks


def _speed_up(comparison: SideBySide, row: Summary) -> str:
    speed_up = comparison.speed_up(row)
    if speed_up is None:
        return "unknown"
    return f"{speed_up:.2f}x{shown_interval(comparison.speed_up_interval(row), '.2f')}"


def _share(share: float) -> str:
    """Rounded down: 1 is shown only where every decision was replayed."""
    return f"{floor(share * 1e4) / 1e4:.4f}" if share < 1 else "1"


def detail_tables(comparison: SideBySide) -> tuple[Grid, Grid]:
    """Further figures of every policy, and what each of its members did; the fastest policy first.

    Columns are defined in docs/glossary.md.
    """
    rows = comparison.ranked()
    by_policy = table([_detail_cells(comparison, row) for row in rows], title="further figures")
    return by_policy, _by_member(rows)


def _detail_cells(comparison: SideBySide, row: Summary) -> dict[str, str]:
    chance = shown_interval(comparison.output_tokens_per_s_interval(row), ",.1f")
    return {
        "policy": row.policy,
        "target calls /token": f"{row.target_calls_per_token:.3f}",
        "accepted share": shown(row.draft_acceptance_rate, ".1%", unknown="-"),
        "wasted tokens": f"{row.wasted_tokens:,}",
        "TTFT ms": f"{1e3 * row.ttft_s.mean:,.1f}",
        "TPOT ms": f"{1e3 * row.tpot_s.mean:,.2f}",
        "tokens/s": f"{comparison.output_tokens_per_s(row):,.1f}{chance}",
    }


def _by_member(rows: tuple[Summary, ...]) -> Grid:
    """A line for each policy, and one for each of its members that did something."""
    cells: list[dict[str, str]] = []
    ends: list[int] = []
    for row in rows:
        active = [level for level in row.levels if level.forwards or level.drafted or level.judged]
        cells += [{"policy, member": row.policy}, *map(_member_cells, active)]
        ends.append(len(cells) - 1)
    remarks = tree_remarks(level for row in rows for level in row.levels)
    return table(cells, title="what each member did", remarks=remarks, lines=ends)


def _member_cells(level: LevelSummary) -> dict[str, str]:
    return {
        "policy, member": f"  {level.name}",
        "share of seconds": f"{level.share_of_seconds:.0%}",
        "drafted": f"{level.drafted:,}" if level.drafted else "",
        "accepted / judged": f"{level.accepted:,}/{level.judged:,}" if level.judged else "",
        "refused": f"{level.refused:,}" if level.judged else "",
        "own tokens": f"{level.own:,}" if level.own else "",
        **({"found / asked": f"{level.hit_tokens:,}/{level.asked_tokens:,}"} if level.asked_tokens else {}),
    }
