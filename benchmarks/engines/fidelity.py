"""Errors of the terms of engines against measured rows: seconds, speed-ups, ranges, and the best draft length.

Exits with 1 if the median error of a group exceeds that in docs/fidelity.md by more than two points.

python -m benchmarks.engines.fidelity ROWS [--write] (ROWS: the folder engine_rows; --write: rewrites the page)
"""

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

from paceline.sim.cost.engines import EngineTerms, Residuals, engines, for_class, sure_of

from ..shared.report import parser_of
from .fit import TABLE, class_of, group_of_target, heads_or_plain, sources_of_rounds, unseen, unseen_rounds
from .rows import MARGIN, Predicted, Row, kept_rows, predicted, rows_in

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
BEGIN, END = "<!-- made by `make fidelity WRITE=--write` -->", "<!-- end -->"
GROWTH = 0.02
TYPED = "Rows typed off public sources, to which nothing was fitted:"

Group = tuple[str, ...]
ByGroup = dict[Group, list[Predicted]]


def terms_of(row: Row) -> EngineTerms:
    """The package's terms of a row's engine on its device."""
    return engines()[row.engine][row.device]


def bare(_: Row) -> None:
    """The terms of no engine."""


def group_of(row: Row) -> Group:
    """The group of a row, one line of a table; trees and chains are separate."""
    drafts = f"{row.drafter_name}, {'chains' if row.wide == 1 else 'trees'}" if row.drafted else ""
    return (*row.group, drafts)


def by_group(found: Iterable[Predicted], group: Callable[[Row], Group] = group_of) -> ByGroup:
    """The rows of each group, in their order."""
    groups: ByGroup = defaultdict(list)
    for one in found:
        groups[group(one.row)].append(one)
    return groups


def middle(found: Sequence[Predicted]) -> str:
    """The median absolute error; "" without rows."""
    return f"{median(abs(one.error) for one in found):.1%}" if found else ""


def worst(found: Sequence[Predicted]) -> str:
    """The largest error; "" without rows."""
    return f"{max((one.error for one in found), key=abs):+.0%}" if found else ""


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table and an empty line."""
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def errors_table(kind: str, by_source: dict[str, ByGroup]) -> list[str]:
    """A line per group: errors of the bare roofline, of the terms, and of a fit that has not seen the model."""
    rows = []
    for group in sorted(one for one in by_source["terms"] if one[0] == kind):
        at_peaks, fitted, apart = (by_source[name].get(group, []) for name in ("bare", "terms", "unseen"))
        cells = [*filter(None, group[1:]), str(len(fitted)), middle(at_peaks)]
        cells += [text for found in (fitted, apart) for text in (middle(found), worst(found))]
        if kind == "plain":
            others = [one for one in fitted if not one.row.contradicted]
            cells += ["", ""] if len(others) == len(fitted) else [str(len(fitted) - len(others)), worst(others)]
        rows.append(cells)
    drafts, out = (["drafts"], []) if kind == "round" else ([], ["contradicted", "worst of others"])
    head = ["engine", "model", "device", *drafts, "rows", "bare", "terms", "worst", "not seen", "worst", *out]
    return markdown(head, rows)


def sources_table(fitted: Iterable[Predicted], kept: Iterable[Predicted]) -> list[str]:
    """A line per engine and source: errors of speed-ups by chains of heads."""
    groups: dict[Group, list[Predicted]] = defaultdict(list)
    for found, seen in ((fitted, "fitted"), (kept, "kept")):
        for one in found:
            row = one.row
            if row.wide == 1 and row.drafts_by == "head":
                source = re.split("/(?:blob|tree)/", row.source.removeprefix("github.com/"))[0]
                groups[row.engine, source, seen].append(one)
    rows = ([*names, str(len(each)), middle(each), worst(each)] for names, each in sorted(groups.items()))
    return markdown(["engine", "source", "rows are", "rows", "terms", "worst"], rows)


def batches_table(found: Iterable[Predicted]) -> list[str]:
    """Speed-ups by number of rows, for sources with several."""
    sources: dict[Group, list[Predicted]] = defaultdict(list)
    for one in found:
        row = one.row
        if row.drafted:
            sources[row.source, *row.group[1:3], row.drafter_name, f"{row.drafted}"].append(one)
    rows = []
    for names, several in sources.items():
        if len({one.row.num_rows for one in several}) < 3:
            continue
        for one in sorted(several, key=lambda one: one.row.num_rows):
            measured, said = one.speed_ups
            rows.append([*names[1:], str(one.row.num_rows), f"{measured:.2f}x", f"{said:.2f}x", f"{one.error:+.0%}"])
    return markdown(["engine", "model", "drafter", "K", "rows at a time", "measured", "predicted", "error"], rows)


def range_of(row: Row, *, elsewhere: bool = False) -> Residuals:
    """The range of a row; `elsewhere`: as of an engine of which no rounds were measured there."""
    sure = terms_of(row).sure(row.target)
    if elsewhere:
        table = tomllib.loads(TABLE.read_text(encoding="utf-8"))["sure"]
        sure = for_class(sure_of(table, "")[group_of_target(row)], class_of(row.device))
    return sure.rounds if row.drafted else sure.plain


def ranges_table(apart: Sequence[Predicted], kept: Sequence[Predicted], own: Sequence[Predicted]) -> list[str]:
    """The share of rows inside the printed range of their group."""
    groups: dict[Group, list[bool]] = defaultdict(list)
    by_source = sources_of_rounds(one.row for one in own)
    for source, found in (
        ("model not seen", heads_or_plain(apart)),
        ("typed off", heads_or_plain(kept)),
        ("", own),
    ):
        for one in found:
            row = one.row
            ends = range_of(row, elsewhere=found is not own)
            rows_are = source or ("source not seen" if by_source[row.engine] else "model not seen, source seen")
            weights = "" if row.target.quantised is None else f", {row.target.quantised.format}"
            of = f"{terms_of(row).sure(row.target).of}{weights}"
            shape = "chains" if row.wide == 1 else "trees"
            what = f"rounds of {row.engine}, {shape}" if row.drafted else "a token"
            groups[of, what, str(ends), rows_are].append(ends.low <= one.factor <= ends.high)
    rows = [[*names, str(len(found)), f"{sum(found) / len(found):.0%}"] for names, found in sorted(groups.items())]
    return markdown(["group", "what", "range", "rows are", "rows", "inside"], rows)


def lengths(found: Iterable[Predicted]) -> list[Group]:
    """For settings with several measured chain lengths: the best, the predicted one, and its regret."""
    by_setting: dict[Group, list[Predicted]] = defaultdict(list)
    for one in found:
        row, drafter = one.row, one.row.drafter
        if drafter is not None and row.wide == 1:
            setting = *row.group[1:], drafter.name, row.note.partition(",")[0], str(row.num_rows)
            by_setting[row.source, *setting].append(one)
    rows = []
    for (_, *setting), several in by_setting.items():
        measured, said = ({0: 1.0} | {one.row.drafted: one.speed_ups[of] for one in several} for of in (0, 1))
        if len(measured) < 3:
            continue
        best, chosen = (max(of, key=lambda length: of[length]) for of in (measured, said))
        rows.append((*setting, str(best), str(chosen), f"{1 - measured[chosen] / measured[best]:.1%}"))
    return rows


def page(rows: Sequence[Row]) -> list[str]:
    """The tables of the page."""
    fitted, apart, kept = predicted(rows, terms_of), list(unseen(rows)), kept_rows()
    kept_fitted, own = predicted(kept, terms_of), list(unseen_rounds(rows, kept))
    by_source = {"bare": by_group(predicted(rows, bare)), "terms": by_group(fitted), "unseen": by_group(apart)}
    of_kept = {"bare": by_group(predicted(kept, bare)), "terms": by_group(kept_fitted), "unseen": {}}
    every = [*fitted, *kept_fitted]
    heads = lengths(heads_or_plain(every))
    within = sum(float(one[-1].rstrip("%")) <= 3 for one in heads)
    contradicted = sum(row.contradicted for row in rows)
    return [
        "### Seconds of a token, plain decoding",
        "",
        f"Rows that contradict their neighbours by more than {MARGIN - 1:.0%}: {contradicted}.",
        "",
        *errors_table("plain", by_source),
        TYPED,
        "",
        *errors_table("plain", of_kept),
        "### Speed-ups of rounds",
        "",
        *errors_table("round", by_source),
        TYPED,
        "",
        *errors_table("round", of_kept),
        "### Speed-ups of chains by source",
        "",
        *sources_table(fitted, kept_fitted),
        "### Speed-ups by batch",
        "",
        *batches_table(kept_fitted),
        "### Ranges",
        "",
        *ranges_table(apart, kept_fitted, own),
        "### The best draft length",
        "",
        f"Of {len(heads)} settings with several lengths of chains by heads, the predicted one is the best or loses at "
        f"most 3% in {within}.",
        "",
        *markdown(
            ["engine", "model", "device", "drafter", "text", "rows", "best", "predicted", "regret"], lengths(every)
        ),
    ]


def rewrite(begin: str, end: str, lines: Iterable[str]) -> None:
    """Put lines between two marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    PAGE.write_text("\n".join([f"{before}{begin}", "", *lines, f"{end}{rest.partition(end)[2]}"]), encoding="utf-8")


def written_medians(text: str) -> dict[str, float]:
    """The median error of the terms by the first cells of a line; of fitted rows where kept ones have as many."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        figures = [place for place, cell in enumerate(cells) if re.fullmatch(r"\d+\.\d%", cell)]
        if len(figures) >= 2:
            found.setdefault(" ".join(cells[: figures[0]]), float(cells[figures[1]].rstrip("%")) / 100)
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines = page(rows_in(given.rows))
    print("\n".join(lines))
    if given.write:
        rewrite(BEGIN, END, lines)
        return
    old = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    known = written_medians(old)
    grown = {
        name: (known[name], now)
        for name, now in written_medians("\n".join(lines)).items()
        if name in known and now > known[name] + GROWTH
    }
    for name, (then, now) in grown.items():
        print(f"fidelity: {name}: median error was {then:.1%}, is {now:.1%}", file=sys.stderr)
    sys.exit(1 if grown else 0)


if __name__ == "__main__":
    main()
