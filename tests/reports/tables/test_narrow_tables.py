"""Every table of the command line at 80 columns: no cell is cut, and every figure stands in one piece."""

from dataclasses import replace
from io import StringIO

import pytest
from paceline.reports import summarise_run
from paceline.reports.comparison import regret_table, tag_table
from paceline.reports.recordings import agreement_table, rounds_tables, run_table, trace_tables
from paceline.reports.regret import Regret
from paceline.reports.summary import ByTag, TagShare
from paceline.runs.same_steps import Agreement
from paceline.traces import SyntheticSpec, make_trace
from paceline_laboratory.findings import Head, Rows
from rich.cells import cell_len
from rich.console import Console

from ...sim.rounds.small_rounds import one_request, recording_of, rounds_of
from ..test_summary import by_hand

TAGS = ("code", "dialogue", "edit", "mathematical reasoning", "prose", "summarization", "translation", "retrieval")
POLICIES = ("adaptive,draft=eagle,start=4,most=12", "draft:12/mid:16/slim:24/target", "plain")
DETAILED = {name: {tag: 12.345 + index for index, tag in enumerate(TAGS)} for name in POLICIES}


def run():
    summary = summarise_run(by_hand())
    levels = tuple(
        replace(
            level, name=f"{level.name}-of-a-family", duration_s=12345.678, forwards=1234567, judged=7654321, drafted=99
        )
        for level in summary.levels
    )
    return run_table(replace(summary, policy=POLICIES[1], levels=levels), ["a remark of many words " * 8])


def agreement():
    cached = {"num_asked_tokens": 7654321, "num_hit_tokens": 6543210, "num_evicted_blocks": 54321}
    counted = {"num_steps": 1234567, "num_ops": 1, "num_tokens": 7654321, "num_other_answers": 0, "num_replayed": 1}
    return agreement_table(
        Agreement(policy=name, num_requests=480, difference=None, num_left=0, left=None, ahead="", **counted, **cached)
        for name in POLICIES
    )


def by_tag():
    shares = {
        tag: TagShare(requests=1, output_tokens=100 + 7 * index, duration_s=3.0) for index, tag in enumerate(TAGS)
    }
    return tag_table(ByTag(baseline=shares, policies=dict.fromkeys(POLICIES, shares)))


def regret():
    best = dict.fromkeys(TAGS, "draft:12/target")
    found = Regret(
        reference="oracle-chain",
        over_reference=dict.fromkeys(POLICIES, 1.979),
        best_static=best,
        over_static=DETAILED,
    )
    return regret_table(found, by_tag=True)


def inspected():
    names = ("draft-0.5b-instruct", "mid-7b-instruct", "target-72b-instruct")
    spec = SyntheticSpec(requests=8, tokens=12, prompt_tokens=4, models=names, acceptance=(0.6, 0.8), tags=TAGS)
    return trace_tables(make_trace(spec).summary())


def experiment():
    columns = [Head(name="chain"), *(Head(name=f"tokens by {tag}", unit="per second", digits=1) for tag in TAGS)]
    rows = [(name, *(1000.5 * (1 + index) for index in range(len(TAGS)))) for name in POLICIES]
    return Rows(title="a title", columns=tuple(columns), rows=tuple(rows)).grid()


def imported():
    rounds = {"feature": rounds_of((0, 4, 2), (3, 4, 4)), "tokens": rounds_of((0, 4, 1), (2, 4, 3), (6, 4, 1))}
    return rounds_tables(recording_of(one_request({"feature": 8, "tokens": 8}, rounds)).summary())


TABLES = {
    "run": lambda: [run()],
    "agree": lambda: [agreement()],
    "by tag": lambda: [by_tag()],
    "regret": lambda: [regret()],
    "trace inspect": inspected,
    "trace inspect, imported": imported,
    "experiment": lambda: [experiment()],
}


@pytest.mark.parametrize("name", TABLES)
def test_it_fits_and_nothing_is_cut(name):
    for table in TABLES[name]():
        screen = StringIO()
        Console(file=screen, width=80, highlight=False).print(table, crop=False)
        text = screen.getvalue()
        assert "…" not in text
        assert all(cell_len(line) <= 80 for line in text.splitlines())
        cells = [cell.strip() for line in text.splitlines() for cell in line.strip("│").split("│")]
        for place, column in enumerate(table.columns):
            if column.number:
                assert all(row[place] in cells for row in table.rows)
