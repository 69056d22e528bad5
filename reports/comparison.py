"""The result of a comparison of policies, as tables, in words, in a notebook and as rows.

The first screen has few columns and the fastest policy first; `compare --detail` adds the rest, by policy and by
member. Then follow windows by batch, tags, regrets, quality if a policy is lossy, and the last line: which policy is
best, whether that is certain, and where another one loses its seconds per token, by the target or below it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from math import floor
from typing import Any

from ..base.errors import counted
from .intervals import ONE_SEED, Interval, enough_in_words
from .page import Pictured
from .panels import (
    HeatMap,
    Ranking,
    Section,
    SweptFigures,
    acceptance_by_level,
    kept_by_position,
    quality_against_speed,
    ranking,
    regrets,
    speed_ups_by_tag,
    waterfalls,
)
from .quality import Quality
from .regret import Regret, regret_table
from .resampled import LEAST_UNITS
from .run_table import quality_table, tree_remarks
from .seconds_by_tag import ByTag, tag_table
from .side_by_side import SideBySide, has_chance
from .summary import LevelSummary, Summary
from .tables import REMARKS, Grid, between, flat_rows, shown, table
from .waterfall import Why, why_table

CLOSE = 0.1  # shares closer than this explain nothing
LEANS = 0.1  # share of seconds by which a policy uses a member more than twice as much as the best does


def conclusion(comparison: SideBySide, *, ruled_out: Collection[str] = ()) -> str:
    """One line, of a comparison with at least one row that is not among the policies `ruled_out`, such as oracles."""
    best, tied, slower = _standing(comparison, ruled_out)
    clauses = [best_in_words(comparison, ruled_out=ruled_out)]
    if _is_lossy(best):
        ranked = (row for row in comparison.ranked() if row.policy not in ruled_out and not _is_lossy(row))
        clauses += [f"best of the lossless: {_named(comparison, row)}" for row in islice(ranked, 1)]
    return "; ".join([*clauses, *_reason(comparison, best, tied, slower)])


def best_in_words(comparison: SideBySide, *, ruled_out: Collection[str] = ()) -> str:
    """Which policy is best, and which cannot be told apart from it; arguments as of `conclusion`."""
    best, tied, _ = _standing(comparison, ruled_out)
    lossy = ""
    if best.quality is not None and best.quality.lossy:
        known = best.quality.divergences_per_1000
        lossy = " (lossy)" if known is None else f" (lossy, {known:.1f} divergences per 1,000 tokens)"
    named = f"best: {_named(comparison, best)}{lossy}"
    return "; ".join([named, *_too_few(comparison), *_ties(comparison, best, tied)])


def _too_few(comparison: SideBySide) -> Iterator[str]:
    """Where no interval is known, which of several policies is best is open too."""
    resampled = comparison.resampled
    if resampled is not None and not resampled.is_known and len(comparison.ranked()) > 1:
        yield f"{resampled.drawn_from} cannot tell for certain"


def _standing(comparison: SideBySide, ruled_out: Collection[str]) -> tuple[Summary, list[Summary], list[Summary]]:
    """(the fastest row, those that cannot be told apart from it, the slower ones), each fastest first."""
    best, *others = [row for row in comparison.ranked() if row.policy not in ruled_out]
    tied = [row for row in others if not told_apart(comparison, best, row)]
    return best, tied, [row for row in others if row not in tied]


def told_apart(comparison: SideBySide, best: Summary, other: Summary) -> bool:
    """Whether `other` is slower for certain: by the requests, and at both ends of the cost's range."""
    return _apart_by_requests(comparison, best, other) and comparison.ranks_alike(best, other)


def _apart_by_requests(comparison: SideBySide, best: Summary, other: Summary) -> bool:
    """Whether the 95% interval of their ratio does not contain 1."""
    over = comparison.over(best, other)
    if over is None:
        return comparison.output_tokens_per_s(other) < comparison.output_tokens_per_s(best)
    return over.low > 1


def _named(comparison: SideBySide, row: Summary, *, before: str = ", ", after: str = "") -> str:
    speed_up = comparison.speed_up(row)
    speed = f"{comparison.output_tokens_per_s(row):,.1f} tokens/s" if speed_up is None else f"{speed_up:.2f}x"
    return f"{row.policy}{before}{speed}{after}"


def _is_lossy(row: Summary) -> bool:
    return row.quality is not None and row.quality.lossy


def _ties(comparison: SideBySide, best: Summary, tied: Sequence[Summary]) -> Iterator[str]:
    by_requests = [row for row in tied if not _apart_by_requests(comparison, best, row)]
    by_cost = [row for row in tied if row not in by_requests]
    if by_requests:
        yield _tied_by_requests(comparison, best, by_requests)
    if by_cost:
        yield f"{_all_named(comparison, by_cost)} cannot be told apart from it by this cost"


def _tied_by_requests(comparison: SideBySide, best: Summary, tied: Sequence[Summary]) -> str:
    names = _all_named(comparison, tied)
    resampled = comparison.resampled
    enough = [] if resampled is None else [resampled.enough_units(best.policy, row.policy) for row in tied]
    known = [number for number in enough if number is not None]
    if resampled is None or not known:
        return f"{names} cannot be told apart from it: equally fast"
    enough_said = enough_in_words(min(known), resampled.units, len(tied))
    return f"{names} cannot be told apart from it on these {resampled.drawn_from}; {enough_said}"


def _all_named(comparison: SideBySide, rows: Iterable[Summary]) -> str:
    return ", ".join(_named(comparison, row, before=" (", after=")") for row in rows)


def _reason(comparison: SideBySide, best: Summary, tied: Sequence[Summary], slower: Sequence[Summary]) -> Iterator[str]:
    """Why others lose: all where the target alone is best, those that use a member more than the best, or the next."""
    if not slower:
        return
    if not tied and not _drafts(best) and _drafts(slower[0]):
        said = "drafting does not pay here: in {}, the fastest of the others, "
        reasons = [(slower[0], said)]
    else:
        reasons = [*_spared_members(best, tied, slower), (slower[0], "next is {}: ")]
    for loser, said in reasons:
        why = _why(best, loser)
        if why:
            yield said.format(_named(comparison, loser, before=" (", after=")")) + why
            return


def _drafts(row: Summary) -> bool:
    return any(level.drafted for level in row.levels)


def _spared_members(best: Summary, tied: Sequence[Summary], slower: Sequence[Summary]) -> Iterator[tuple[Summary, str]]:
    """(policy, clause to begin with) of the fastest policy that uses a member much more than the best does.

    At most one: the slowest of them, if it loses because of that member.
    """
    found = []
    for place, member in enumerate(best.levels[:-1]):
        own = member.share_of_seconds
        leaning = [row for row in slower if row.levels[place].share_of_seconds > 2 * own + LEANS]
        if leaning and _culprit(best, leaning[0]) == place:
            users = [row for row in (best, *tied, *slower) if row.levels[place].duration_s]
            found.append((leaning[0], _begun(member.name, users, spared=users == leaning)))
    yield from sorted(found, key=lambda one: one[0].output_tokens_per_s)[:1]


def _begun(member: str, users: Sequence[Summary], *, spared: bool) -> str:
    """How a clause on a member begins; `spared`: only losing policies use it, all those of `users`."""
    if not spared:
        return f"more of {member} does not pay: in {{}} "
    kind = "chains" if all("/" in row.policy for row in users) else "policies"
    several = f"{kind} with {member} lose here because in the fastest of them, {{}}, "
    return several if len(users) > 1 else "{} loses here because "


def _why(best: Summary, loser: Summary) -> str:
    """Where the loser takes longer; empty if that is unknown."""
    place = _culprit(best, loser)
    if place is None:
        return ""
    if place == len(loser.levels) - 1:
        return _target_is_why(best, loser)
    return _member_is_why(best, loser, place)


def _culprit(best: Summary, loser: Summary) -> int | None:
    """The level that explains the loser's seconds per token: the target, or of those below it the one that adds most.

    Members below the target replace each other, so they are compared with it together. None where nothing is added,
    where the loser is the faster one at the first seed, of which these seconds are, or where members ran at the same
    time: then one's seconds may have cost nothing.
    """
    if _side_by_side(best) or _side_by_side(loser):
        return None
    *below, target = _more_seconds(best, loser)
    if loser.output_tokens_per_s >= best.output_tokens_per_s or max(sum(below), target) <= 0:
        return None
    return len(below) if target >= sum(below) else below.index(max(below))


def _side_by_side(row: Summary) -> bool:
    """Whether members took more seconds than the run, apart from rounding."""
    return sum(level.duration_s for level in row.levels) > row.duration_s * (1 + 1e-9)


def _more_seconds(best: Summary, loser: Summary) -> list[float]:
    """By level, seconds per token of the loser over those of the best."""
    return [
        level.duration_s / loser.output_tokens - other.duration_s / best.output_tokens
        for level, other in zip(loser.levels, best.levels, strict=True)
    ]


def _target_is_why(best: Summary, loser: Summary) -> str:
    calls, fewer = (f"{row.target_calls_per_token:.3f}" for row in (loser, best))
    if loser.target_calls_per_token > best.target_calls_per_token and calls != fewer:
        return f"the target is called {calls} times a token, in {best.policy} {fewer} times"
    own, other = (f"{1e3 * _per_call(row):.2f}" for row in (loser, best))
    return "" if own == other else f"a call of the target takes {own} ms, in {best.policy} {other} ms"


def _per_call(row: Summary) -> float:
    calls = row.target_calls_per_token * row.output_tokens
    return row.levels[-1].duration_s / calls if calls else 0.0


def _member_is_why(best: Summary, loser: Summary, place: int) -> str:
    """What a member's seconds save: calls of the target, or where those do not explain it, seconds."""
    share = loser.levels[place].share_of_seconds
    takes = f"{loser.levels[place].name} takes {share:.0%} of the seconds"
    saved = 1 - loser.target_calls_per_token / best.target_calls_per_token if best.target_calls_per_token else 0.0
    if saved >= share - CLOSE:
        why = _seconds_bought(best, loser, place)
    elif saved > 0:
        shown = f"only {saved:.0%}" if saved >= 0.005 else "less than 1%"
        why = f"{takes} and saves {shown} of {best.policy}'s target calls"
    else:
        why = f"{takes} and the target is called no less often than in {best.policy}"
    if not why:
        return ""
    kept = loser.draft_acceptance_rate
    told = kept is not None and loser.levels[-1].judged and kept < 0.5
    return f"{why}; the target keeps {kept:.0%} of what it is given" if told else why


def _seconds_bought(best: Summary, loser: Summary, place: int) -> str:
    """Milliseconds per token that the members below the target take more, and that the target takes less."""
    *below, target = (1e3 * more for more in _more_seconds(best, loser))
    name = loser.levels[place].name
    alone = all(more <= 0 for level, more in enumerate(below) if level != place)
    who = f"{name} takes" if alone else f"{name} and the others below the target take"
    more_ms, saved_ms = below[place] if alone else sum(below), round(-target, 2)
    if not round(more_ms, 2):
        return ""
    takes = f"{who} {more_ms:.2f} ms a token of the answer more than in {best.policy}"
    saves, calls = ("saves" if alone else "save"), f"{loser.target_calls_per_token:.3f}"
    if saved_ms > 0:
        return f"{takes} and {saves} the target {saved_ms:.2f} ms"
    wider = f"the target {target:.2f} ms more" if saved_ms else "the target no less"
    fewer = loser.target_calls_per_token < best.target_calls_per_token
    though = f", though called {calls} times a token, not {best.target_calls_per_token:.3f}" if fewer else ""
    return f"{takes} and {wider}{though}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRange:
    """The same policies under the two outer readings of a measurement."""

    measured_on: str  # device of the sheet
    device: str  # the other one
    # by reading ("all": all seconds scale; "memory": their memory term does), its policies; at least one
    readings: Mapping[str, SideBySide]
    left_out: tuple[str, ...] = ()  # policies whose seconds are unknown under a reading, and why, a line each

    def speed_up(self, reading: str, policy: str) -> float | None:
        """Speed-up over the target alone under the same reading, mean over seeds; None where that is unknown."""
        return self.readings[reading].speed_up(self._row(reading, policy))

    def tokens_per_s(self, reading: str, policy: str) -> float:
        """Output tokens per second, mean over seeds."""
        return self.readings[reading].output_tokens_per_s(self._row(reading, policy))

    def _row(self, reading: str, policy: str) -> Summary:
        return next(row for row in self.readings[reading].rows if row.policy == policy)

    @property
    def policies(self) -> Sequence[str]:
        """Policies that ran under both readings, in order."""
        first, *others = ([row.policy for row in comparison.rows] for comparison in self.readings.values())
        return [policy for policy in first if all(policy in other for other in others)]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/costs.md)."""
        return {
            "measured_on": self.measured_on,
            "device": self.device,
            "policies": {
                policy: {
                    reading: {
                        "output_tokens_per_s": self.tokens_per_s(reading, policy),
                        "speed_up": self.speed_up(reading, policy),
                    }
                    for reading in self.readings
                }
                for policy in self.policies
            },
            "left_out": list(self.left_out),
        }


def device_range_table(found: DeviceRange) -> Grid:
    """A row per policy: its figures if all seconds scale with the device, and if only their memory term does."""
    title = f"{found.measured_on} to {found.device}, range"
    return table([_cells_by_device(found, policy) for policy in found.policies], title=title, remarks=found.left_out)


def _cells_by_device(found: DeviceRange, policy: str) -> dict[str, str]:
    cells = {"policy": policy}
    for reading in found.readings:
        speed_up = found.speed_up(reading, policy)
        cells[f"speed-up, {reading} scales"] = "unknown" if speed_up is None else f"{speed_up:.2f}x"
    for reading in found.readings:
        cells[f"tokens/s, {reading} scales"] = f"{found.tokens_per_s(reading, policy):,.1f}"
    return cells


KINDS = {"synthetic": "SYNTHETIC trace", "imported": "IMPORTED trace"}
# How requests begin, by kind of recording; `prefill` for all others and for models.
DEFAULT_STARTS = {"imported": "recorded"}
# A remark on columns that are not means over seeds.
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
    """Half the width of an interval, shown after its mean; empty without one."""
    return "" if interval is None else f" ± {interval.half_width:{style}}"


def _cells(comparison: SideBySide, row: Summary) -> dict[str, str]:
    mean_of_requests = comparison.speed_up_mean_of_requests(row)
    return {
        "policy": row.policy,
        "speed-up": _speed_up(comparison, row),
        **_cost_range(comparison, row),
        "mean of requests": "unknown" if mean_of_requests is None else f"{mean_of_requests:.2f}x",
        "tokens/s": f"{comparison.output_tokens_per_s(row):,.1f}",
        "accept. length": f"{row.acceptance_length:.2f}",
        "exact share": _share(row.exact_share),
    }


def comparison_title(meta: dict[str, Any], comparison: SideBySide) -> str:
    """What was replayed and how, in a line; `meta` may be of several comparisons, `comparison` is one of them."""
    first = comparison.rows[0] if comparison.baseline is None else comparison.baseline
    kind = KINDS.get(meta["kind"], "trace")
    origin = f"from {meta['source']}" if meta["kind"] == "imported" else meta["sampling"]
    batch = ", ".join(f"{each:,}" for each in meta["batch"]) if isinstance(meta["batch"], list) else meta["batch"]
    deciding = f", {meta['decide_s']:g} s a decision" if meta["decide_s"] else ""
    trust = f"; {meta['trust']}" if meta.get("trust") else ""
    # Published figures and the user's own were measured on no machine that is known.
    where = f" (measured on {meta['hardware']})" if meta.get("hardware") else ""
    devices = f", devices {meta['devices']}" if meta.get("devices", "one") != "one" else ""
    return (
        f"{kind} {meta['trace']} ({origin}), {counted(first.requests, 'request')}, "
        f"{counted(first.output_tokens, 'token')}{_what_if(meta)}; cost {meta['cost']}{where}, batch {batch}, "
        f"seed {meta['seed']}{start_words(meta)}{prefix_words(meta)}{devices}{deciding}{trust}"
    )


def start_words(meta: Mapping[str, Any]) -> str:
    """How requests began, for a title, after a comma; empty for the default.

    `meta` is of a comparison or a run log, with `start`; with `kind` where a recording was replayed.
    """
    start = meta.get("start", "")
    return f", start {start}" if start and start != DEFAULT_STARTS.get(meta.get("kind", ""), "prefill") else ""


def prefix_words(meta: Mapping[str, Any]) -> str:
    """The prefix caches of a comparison or a run log, for a title, after a comma; empty without them."""
    size = meta.get("prefix_cache")
    if not size:
        return ""
    return f", prefix caches of {counted(size['num_blocks'], 'block')} of {counted(size['block_tokens'], 'token')}"


def _what_if(meta: dict[str, Any]) -> str:
    shifts = meta.get("what_if", {}).get("acceptance", {})
    changes = ", ".join(f"acceptance of {name} {delta:+g}" for name, delta in shifts.items())
    return f"; WHAT IF: {changes}" if changes else ""


def labels_of(meta: Mapping[str, Any]) -> list[str]:
    """What of a comparison's title is not as any model ran, a line each: a made or imported recording, and what-ifs."""
    what_if = _what_if(dict(meta)).removeprefix("; ")
    return [*kind_of(meta["kind"], meta["trace"], meta.get("trust")), *([what_if] if what_if else [])]


def kind_of(kind: str, trace: str, trust: str | None) -> list[str]:
    """A line that names a recording which is made or imported, and how far to trust it; none for one of models."""
    return [f"{KINDS[kind]} {trace}" + (f"; {trust}" if trust else "")] if kind in KINDS else []


def shared_remarks(
    meta: dict[str, Any], comparisons: Iterable[SideBySide], *, intervals: bool = True, chance: str = ""
) -> list[str]:
    """Remarks that readers of the figures of `comparisons` need, a line each.

    `meta` is of them together; `intervals`: whether figures are shown with theirs; `chance` is a further remark where
    results are random.
    """
    remarks = [remark for key in REMARKS for remark in meta.get(key, ())]
    found = list(comparisons)
    rows = [(comparison, row) for comparison in found for row in comparison.rows]
    shifted = bool(meta.get("what_if", {}).get("acceptance"))
    by_chance = [len(comparison.runs(row)) for comparison, row in rows if has_chance(row, shifted=shifted)]
    most_runs = min(max(by_chance, default=1), meta.get("seeds", 1))
    parts = []
    if (orders := meta.get("orders", 1)) > 1:
        depend = {row.policy: row for comparison, row in rows if len(comparison.runs(row)) > 1}
        names = "all policies" if len(depend) == len(rows) > 1 else ", ".join(depend)
        # Runs of a policy with chance differ by their seeds, too.
        unsure = any(has_chance(row, shifted=shifted) for row in depend.values())
        verb = "may depend" if unsure else "depend" if len(depend) > 1 else "depends"
        parts.append(f"over {orders} orders of the requests, on which {names or 'no policy'} {verb}")
    if most_runs > 1:
        last = meta["seed"] + most_runs - 1
        parts.append(f"over seeds {meta['seed']} to {last} where chance has a part{chance}")
    drawn = next((one.resampled for one in found if one.resampled is not None), None)
    if intervals and drawn is not None and any(_is_sure(comparison, row) for comparison, row in rows):
        units = drawn.units if drawn.units == "requests" else f"{drawn.num_units:,} {drawn.units}"
        over = f"±: 95% interval over {units}" + (" of the same mix of tags" if meta.get("fixed_mix") else "")
        remarks.append(", and ".join([over, *parts]))
    elif parts:
        remarks.append(f"means {', and '.join(parts)}")
    if drawn is not None and not drawn.is_known:
        remarks.append(f"fewer than {LEAST_UNITS} {drawn.units}: how much others would differ is not known")
    if meta.get("seeds") == 1 and any(has_chance(row, shifted=shifted) for _, row in rows):
        remarks.append(ONE_SEED.format(meta["seed"]))
    return remarks


def _is_sure(comparison: SideBySide, row: Summary) -> bool:
    """Whether a speed-up is shown with its interval; the target alone is the baseline."""
    is_alone = comparison.baseline is not None and row.policy == comparison.baseline.policy
    return not is_alone and comparison.speed_up_interval(row) is not None


def _speed_up(comparison: SideBySide, row: Summary) -> str:
    speed_up = comparison.speed_up(row)
    if speed_up is None:
        return "unknown"
    ends = comparison.speed_up_interval(row) if _is_sure(comparison, row) else None
    return f"{speed_up:.2f}x{shown_interval(ends, '.2f')}"


def _cost_range(comparison: SideBySide, row: Summary) -> dict[str, str]:
    """The range over the cost's ends, where the cost gives them."""
    if not comparison.ends:
        return {}
    alone = comparison.baseline is not None and row.policy == comparison.baseline.policy
    return {"range of cost": "" if alone else between(comparison.speed_up_range(row))}


def _share(share: float) -> str:
    """Rounded down: 1 is shown only if every decision was replayed."""
    return f"{floor(share * 1e4) / 1e4:.4f}" if share < 1 else "1"


def detail_tables(comparison: SideBySide) -> tuple[Grid, Grid]:
    """Figures (docs/glossary.md) of every policy and of each of its members, the fastest policy first."""
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


BEST, TIED = "*", "~"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(Pictured):
    """Chains compared at one or more batches; prints as `paceline compare --sweep` does."""

    meta: dict[str, Any]  # as of a comparison; `batch` is a list
    # names of all requested chains, each with the window of every member except the target
    chains: Mapping[str, Mapping[str, int]]
    # by batch; chains whose seconds are unknown are not among the rows
    comparisons: Mapping[int, SideBySide]

    def best(self, batch: int) -> str:
        """Name of the fastest chain at a batch."""
        comparison = self.comparisons[batch]
        return max(comparison.rows, key=comparison.output_tokens_per_s).policy

    def tables(self) -> Sequence[Grid]:
        return [sweep_table(self)]

    def lines(self) -> Sequence[str]:
        return [f"batch {batch:,}: {best_in_words(comparison)}" for batch, comparison in self.comparisons.items()]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/compare.md): `meta`, and one object per chain and batch."""
        return {"meta": self.meta, "sweep": self._cells()}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each chain and batch; columns as in docs/compare.md, `sweep[]`, and `windows_MEMBER`."""
        return flat_rows(self._cells())

    def sections(self) -> Sequence[Section]:
        """Speed-up by windows and batch; tokens per second where that of the target alone is unknown."""
        knows = all(comparison.baseline is not None for comparison in self.comparisons.values())
        rows = {batch: {row.policy: row for row in one.rows} for batch, one in self.comparisons.items()}

        def figure(chain: str, batch: int) -> tuple[float, Interval | None] | None:
            comparison, row = self.comparisons[batch], rows[batch].get(chain)
            if row is None:
                return None
            speed_up = comparison.speed_up(row)
            if speed_up is None:
                return comparison.output_tokens_per_s(row), comparison.output_tokens_per_s_interval(row)
            return speed_up, comparison.speed_up_interval(row)

        best = {batch: self.best(batch) for batch in self.comparisons}
        unit, least = ("speed-up over the target alone", 1.0) if knows else ("output tokens/s", None)
        chains = {name: windows for name, windows in self.chains.items() if any(name in one for one in rows.values())}
        swept = SweptFigures(
            chains=chains,
            batches=list(self.comparisons),
            figure=figure,
            best=best,
            unit=unit,
            least=least,
            bars=_bars(next(iter(self.comparisons.values()))),
        )
        return [Section(topic="policies", tables=tuple(self.tables()), panels=tuple(swept.panels()))]

    def configuration(self) -> Mapping[str, Any]:
        return self.meta

    def headline(self) -> str:
        """What was replayed; how cells are marked."""
        title = comparison_title(self.meta, next(iter(self.comparisons.values())))
        maps = any(isinstance(panel, HeatMap) for panel in self.panels())
        marks = "; framed: the fastest of all chains at a batch, hatched: slower than the target alone"
        return title + marks * maps

    def _cells(self) -> list[dict[str, Any]]:
        return [
            self._cell_to_json(batch, comparison, row)
            for batch, comparison in self.comparisons.items()
            for row in comparison.rows
        ]

    def _cell_to_json(self, batch: int, comparison: SideBySide, row: Summary) -> dict[str, Any]:
        kept = (
            "policy",
            "speed_up",
            "speed_up_ci",
            "speed_up_mean_of_requests",
            "output_tokens_per_s",
            "acceptance_length",
            "target_calls_per_token",
            "exact_share",
            "seeds",
        )
        figures = comparison.row_to_json(row)
        return {
            "batch": batch,
            "windows": dict(self.chains[row.policy]),
            "best": row.policy == self.best(batch),
            **{name: figures[name] for name in kept},
        }


def _bars(comparison: SideBySide) -> str:
    units = "requests" if comparison.resampled is None else comparison.resampled.units
    return f"bars: 95% interval over {units}"


def sweep_table(sweep: Sweep) -> Grid:
    """A row for each chain, a column for each batch; the fastest chain of a batch is marked."""
    batches = list(sweep.comparisons)
    best = [sweep.best(batch) for batch in batches]
    knows = [comparison.baseline is not None for comparison in sweep.comparisons.values()]
    speed_up = "speed-up over the target alone at the same batch" + ", where that is known" * (not all(knows))
    marks = f"{BEST} the fastest chain of a batch, {TIED} those that cannot be told apart from it"
    said = f"{speed_up}; {marks}" if any(knows) else marks
    return table(
        [
            {"chain": chain, **{f"batch {batch:,}": _cell(sweep, chain, batch) for batch in batches}}
            for chain in sweep.chains
        ],
        title=comparison_title(sweep.meta, next(iter(sweep.comparisons.values()))),
        remarks=[said, *_modelled(sweep), *shared_remarks(sweep.meta, sweep.comparisons.values(), intervals=False)],
        bold={
            (row, column)
            for row, chain in enumerate(sweep.chains)
            for column, name in enumerate(best, start=1)
            if chain == name
        },
    )


def _modelled(sweep: Sweep) -> Iterator[str]:
    """What no cell shows: how much of the chains' decisions was modelled."""
    rows = [row for comparison in sweep.comparisons.values() for row in comparison.rows if row.exact_share < 1]
    if rows:
        least = min(rows, key=lambda row: row.exact_share)
        chains = counted(len({row.policy for row in rows}), "chain")
        yield f"part of {chains} was modelled; the least exact share is {_share(least.exact_share)} ({least.policy})"


def _cell(sweep: Sweep, chain: str, batch: int) -> str:
    comparison = sweep.comparisons[batch]
    row = next((row for row in comparison.rows if row.policy == chain), None)
    if row is None:
        return "- "
    speed_up = comparison.speed_up(row)
    best = next(one for one in comparison.rows if one.policy == sweep.best(batch))
    apart = told_apart(comparison, best, row) and not any(_too_few(comparison))
    mark = BEST if row is best else " " if apart else TIED
    if speed_up is None:
        return f"{comparison.output_tokens_per_s(row):,.1f} tokens/s{mark}"
    return f"{speed_up:.2f}x{mark}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Pictured):
    """Policies compared on one recording; prints as `paceline compare` does."""

    runs: SideBySide  # the policies side by side
    oracles: tuple[str, ...] = ()  # policies that see ahead, which cannot be run; none of them is named best
    by_tag: ByTag | None = None  # the same by tag, in the order of the policies; None: not requested
    why: Why | None = None  # where each policy's gain goes; None: not requested
    regret: Regret | None = None  # what each policy loses against the oracle; None: not requested
    # bounds of the figures on another device; None: not requested
    on_device: DeviceRange | None = None

    @property
    def meta(self) -> dict[str, Any]:
        """What was compared on: recording, cost, batch, seeds, what-ifs."""
        return self.runs.meta

    @property
    def best(self) -> str:
        """Name of the fastest policy that can be run."""
        return next(row.policy for row in self.runs.ranked() if row.policy not in self.oracles)

    def tables(self, *, detail: bool = False) -> Sequence[Grid]:
        """The fastest policy comes first; `detail`: also further figures, and by member."""
        found = [comparison_table(self.runs)]
        quality = quality_table(self.runs.ranked())
        found += [] if quality is None else [quality]
        found += detail_tables(self.runs) if detail else ()
        found += [] if self.on_device is None else [device_range_table(self.on_device)]
        found += [] if self.by_tag is None else [tag_table(self._ranked(self.by_tag))]
        found += [] if self.why is None else [why_table(self.why)]
        found += [] if self.regret is None else [regret_table(self.regret, by_tag=self.by_tag is not None)]
        return found

    def lines(self) -> Sequence[str]:
        return [conclusion(self.runs, ruled_out=self.oracles)]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/compare.md)."""
        views = {"by_tag": self.by_tag, "why": self.why, "regret": self.regret, "on": self.on_device}
        return {**self.runs.to_json(), **{key: view.to_json() for key, view in views.items() if view is not None}}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each policy and the target alone, the fastest first; columns as in docs/compare.md, `policies[]`.

        An object becomes a column for each of its keys: `ttft_s_mean`.
        """
        rows = [self.runs.row_to_json(row) for row in self.runs.ranked()]
        unknown = {field.name: None for field in fields(Quality)}
        return flat_rows([{**row, "quality": row["quality"] or unknown} for row in rows])

    def sections(self) -> Sequence[Section]:
        ranked = self.runs.ranked()
        runnable = [row for row in ranked if row.policy not in self.oracles]
        speeds, unit = self._speeds()
        quality = quality_table(ranked)
        further, by_member = detail_tables(self.runs)
        tags = None if self.by_tag is None else self._ranked(self.by_tag)
        found = [
            Section(topic="policies", tables=(comparison_table(self.runs), further), panels=(self._ranking(),)),
            Section(
                topic="acceptance",
                tables=(by_member,),
                panels=(*kept_by_position(runnable), *acceptance_by_level(runnable)),
            ),
        ]
        if tags is not None:
            found.append(Section(topic="tags", tables=(tag_table(tags),), panels=tuple(speed_ups_by_tag(tags))))
        if self.why is not None:
            drawn = waterfalls({name: one for name, one in self.why.policies.items() if name not in self.oracles})
            found.append(Section(topic="waterfall", tables=(why_table(self.why),), panels=tuple(drawn)))
        if quality is not None:
            drawn = quality_against_speed(ranked, speeds, unit)
            found.append(Section(topic="quality", tables=(quality,), panels=tuple(drawn)))
        if self.regret is not None:
            losses = regret_table(self.regret, by_tag=self.by_tag is not None)
            found.append(Section(topic="regret", tables=(losses,), panels=(regrets(self.regret),)))
        if self.on_device is not None:
            found.append(Section(topic="device", tables=(device_range_table(self.on_device),)))
        return found

    def configuration(self) -> Mapping[str, Any]:
        return self.meta

    def _speeds(self) -> tuple[dict[str, float], str]:
        """(speed-up by policy, its label); tokens per second where that of the target alone is unknown."""
        known = {row.policy: speed for row in self.runs.ranked() if (speed := self.runs.speed_up(row)) is not None}
        if known:
            return known, "speed-up over the target alone"
        return {row.policy: self.runs.output_tokens_per_s(row) for row in self.runs.ranked()}, "output tokens/s"

    def _ranking(self) -> Ranking:
        ranked = self.runs.ranked()
        knows = self.runs.baseline is not None
        _, tied, _ = _standing(self.runs, self.oracles)
        speeds, unit = self._speeds()
        figures = {}
        for row in ranked:
            sure = self.runs.speed_up_interval(row) if knows else self.runs.output_tokens_per_s_interval(row)
            known = sure is not None and (not knows or _is_sure(self.runs, row))
            figures[self._called(row)] = (speeds[row.policy], sure.bounds if known and sure is not None else None)
        best = [self._called(row) for row in ranked if row.policy == self.best or row in tied]
        told = "filled: the best, and what cannot be told apart from it" if tied else "filled: the best"
        shown: dict[str, Any] = {"reference": 1.0, "unit": "x"} if knows else {"style": ",.1f"}
        bars = _bars(self.runs)
        return ranking(f"{unit[:1].upper()}{unit[1:]}", figures, filled=best, told=told, bars=bars, **shown)

    def headline(self) -> str:
        return comparison_title(self.meta, self.runs)

    def _called(self, row: Summary) -> str:
        kind = "oracle" if row.policy in self.oracles else "lossy" if _is_lossy(row) else ""
        return f"{row.policy} ({kind})" if kind else row.policy

    def _ranked(self, by_tag: ByTag) -> ByTag:
        names = [row.policy for row in self.runs.ranked() if row.policy in by_tag.policies]
        return replace(by_tag, policies={name: by_tag.policies[name] for name in names})
