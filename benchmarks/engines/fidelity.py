"""How well the terms of engines foretell measured rows: seconds, speed-ups, and which draft length is best.

Exits with 1 if the median error of a group has grown by more than two points over what docs/fidelity.md says of it.

python -m benchmarks.engines.fidelity ROWS [--write]     (ROWS: the folder engine_rows; --write: the page, anew)
"""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from paceline.sim.cost.engines import engines

from ..shared.report import parser_of
from .fit import unseen
from .rows import Costs, Row, costs_of, foretold_s, kept_rows, plain_step_s, rows_in

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
BEGIN, END = "<!-- made by `make fidelity WRITE=--write` -->", "<!-- end -->"
GROWTH = 0.02
KEPT = "kept apart"

Errors = dict[tuple[str, ...], list[float]]


class Says(NamedTuple):
    """What a cost says of a row."""

    row: Row
    seconds: float
    plain_s: float  # of the target's own step for the same rows

    @property
    def error(self) -> float:
        """Of seconds (plain) or of the speed-up (a round), relative."""
        if not self.row.drafted:
            return self.seconds / self.row.seconds - 1
        return (self.plain_s / self.seconds) / (self.row.plain_s / self.row.seconds) - 1


def said(rows: Iterable[Row], cost: Costs) -> list[Says]:
    return [Says(row, foretold_s(row, cost(row)), plain_step_s(row, cost(row))) for row in rows]


def group_of(row: Row) -> tuple[str, ...]:
    """Rows of one line of a table: trees and chains are told apart."""
    kind, engine, model, device = row.group
    shape = (
        ""
        if kind == "plain"
        else f"{row.drafter.name if row.drafter else ''}, " + ("chains" if row.wide == 1 else "trees")
    )
    return kind, engine, model, device, shape


def errors(found: Iterable[Says], group: Callable[[Row], tuple[str, ...]] = group_of) -> Errors:
    by_group: Errors = defaultdict(list)
    for one in found:
        by_group[group(one.row)].append(one.error)
    return by_group


def middle(values: Sequence[float]) -> str:
    return f"{median(map(abs, values)):.1%}" if values else ""


def worst(values: Sequence[float]) -> str:
    return f"{max(values, key=abs):+.0%}" if values else ""


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def seconds_table(kind: str, by_source: dict[str, Errors]) -> list[str]:
    """A line a group: the bare roofline, the terms, and what a fit says that has not seen the model."""
    bare, fitted, apart = (by_source[name] for name in ("bare", "terms", "unseen"))
    rows = []
    for group in sorted(one for one in fitted if one[0] == kind):
        _, engine, model, device, shape = group
        names = [engine, model, device] + ([shape] if kind == "round" else [])
        figures = [middle(bare[group]), middle(fitted[group]), worst(fitted[group])]
        rows.append(
            [*names, str(len(fitted[group])), *figures, middle(apart.get(group, ())), worst(apart.get(group, ()))]
        )
    drafts = ["drafts"] if kind == "round" else []
    head = ["engine", "model", "device", *drafts, "rows", "bare", "terms", "worst", "not seen", "worst"]
    return markdown(head, rows)


def lengths(found: Iterable[Says]) -> list[tuple[str, ...]]:
    """Of every setting of which several lengths of chains were measured: the best, the one foretold, and its regret."""
    by_setting: dict[tuple[str, ...], list[Says]] = defaultdict(list)
    for one in found:
        if one.row.drafted and one.row.wide == 1:
            row = one.row
            by_setting[row.engine, row.target.name, row.device, row.note.partition(",")[0], str(row.num_rows)].append(
                one
            )
    rows = []
    for (engine, model, device, task, num_rows), several in by_setting.items():
        measured = {0: 1.0} | {one.row.drafted: one.row.accepted * one.row.plain_s / one.row.seconds for one in several}
        foretold = {0: 1.0} | {one.row.drafted: one.row.accepted * one.plain_s / one.seconds for one in several}
        if len(measured) < 3:
            continue
        best, chosen = (max(of, key=lambda length: of[length]) for of in (measured, foretold))
        regret = 1 - measured[chosen] / measured[best]
        rows.append((engine, model, device, task, num_rows, str(best), str(chosen), f"{regret:.1%}"))
    return rows


def page(rows: Sequence[Row]) -> tuple[list[str], Errors]:
    """The tables, and the errors of the terms by group."""
    terms = costs_of(lambda row: engines()[row.engine][row.device])
    bare = costs_of(lambda _: None)
    fitted, apart = said(rows, terms), [Says(*one) for one in unseen(rows)]
    by_source = {"bare": errors(said(rows, bare)), "terms": errors(fitted), "unseen": errors(apart)}
    kept = kept_rows()
    of_kept = {"bare": errors(said(kept, bare)), "terms": errors(said(kept, terms)), "unseen": {}}
    found = lengths([*fitted, *said(kept, terms)])
    within = sum(float(one[-1].rstrip("%")) <= 3 for one in found)
    lines = [
        "### Seconds of a token, plain decoding",
        "",
        *seconds_table("plain", by_source),
        "### Speed-ups of rounds",
        "",
        *seconds_table("round", by_source),
        "Rows typed off public threads, to which nothing was fitted:",
        "",
        *seconds_table("round", of_kept),
        "### The best draft length",
        "",
        f"Of {len(found)} settings with several lengths of chains, the predicted one is the best or loses at most 3% "
        f"in {within}.",
        "",
        *markdown(["engine", "model", "device", "text", "rows", "best", "predicted", "regret"], found),
    ]
    return lines, by_source["terms"] | {(KEPT, *group): each for group, each in of_kept["terms"].items()}


def written_medians(text: str) -> dict[str, float]:
    """By the first cells of a line, the median error of the terms that the page holds for it."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        figures = [place for place, cell in enumerate(cells) if re.fullmatch(r"\d+\.\d%", cell)]
        if len(figures) >= 2:
            found[" ".join(cells[: figures[0]])] = float(cells[figures[1]].rstrip("%")) / 100
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines, _ = page(rows_in(given.rows))
    before = PAGE.read_text(encoding="utf-8")
    start, _, rest = before.partition(BEGIN)
    old, _, after = rest.partition(END)
    print("\n".join(lines))
    if given.write:
        PAGE.write_text("\n".join([f"{start}{BEGIN}", "", *lines, f"{END}{after}"]), encoding="utf-8")
        return
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
