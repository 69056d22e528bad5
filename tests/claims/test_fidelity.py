"""What docs/fidelity.md says of the terms of engines, against the measured rows where they lie beside the checkout."""

from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
from paceline.benchmarks.engines.fidelity import errors, lengths, said, written_medians
from paceline.benchmarks.engines.rows import costs_of, kept_rows, rows_in
from paceline.sim.cost.engines import engines

from ..traces.test_real_data import DATA

ROOT = Path(__file__).parents[2]
ROWS = None if DATA is None else DATA / "engine_rows"
pytestmark = pytest.mark.skipif(ROWS is None or not ROWS.is_dir(), reason="no engine_rows in PACELINE_DATA")


@pytest.fixture(scope="module")
def terms():
    return costs_of(lambda row: engines()[row.engine][row.device])


@pytest.fixture(scope="module")
def fitted(terms):
    return said(rows_in(ROWS), terms)


def middles(found, wanted):
    """The median error of each group of rows, and the median of these."""
    by_group = errors(one for one in found if wanted(one.row))
    return median(median(map(abs, group)) for group in by_group.values())


def test_plain_decoding_is_foretold(fitted):
    assert middles(fitted, lambda row: not row.drafted and row.target.experts is None) <= 0.07
    assert middles(fitted, lambda row: not row.drafted and row.target.experts is not None) <= 0.15


def test_speed_ups_of_chains_are_foretold(fitted):
    dense = [one for one in fitted if one.row.drafted and one.row.wide == 1 and one.row.target.experts is None]
    by_engine = defaultdict(list)
    for one in dense:
        by_engine[one.row.engine].append(abs(one.error))
    assert {
        engine: median(found) <= most
        for (engine, most), found in zip(
            {"sglang": 0.04, "vllm": 0.14}.items(), (by_engine["sglang"], by_engine["vllm"]), strict=True
        )
    } == {"sglang": True, "vllm": True}


def test_the_best_draft_length_is_foretold(fitted, terms):
    found = lengths([*fitted, *said(kept_rows(), terms)])
    regrets = [float(row[-1].rstrip("%")) for row in found]
    assert len(regrets) >= 15
    assert sum(regret <= 3 for regret in regrets) >= 0.9 * len(regrets)


def test_the_page_is_of_these_terms(fitted):
    """Of each group of plain rows, the page's median error is the one that the terms have now."""
    page = written_medians((ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8"))
    for (kind, engine, model, device, _), found in errors(fitted).items():
        if kind == "plain":
            assert page[f"{engine} {model} {device} {len(found)}"] == pytest.approx(median(map(abs, found)), abs=6e-4)
