"""What docs/fidelity.md says of the terms of engines, against the measured rows where they lie beside the checkout."""

from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.benchmarks.engines.fidelity import by_group, lengths, range_of, terms_of, written_medians
from paceline.benchmarks.engines.rows import MARGIN, Row, decoding, kept_rows, marked, predicted, rows_in
from paceline.traces.shapes import presets

from ..traces.test_real_data import DATA

ROOT = Path(__file__).parents[2]
ROWS = None if DATA is None else DATA / "engine_rows"


@pytest.fixture(scope="module")
def fitted():
    if ROWS is None or not ROWS.is_dir():
        pytest.skip("no engine_rows in PACELINE_DATA")
    return predicted(rows_in(ROWS), terms_of)


def middles(found, wanted):
    """The median error of each group of rows, and the median of these."""
    groups = by_group(one for one in found if wanted(one.row))
    return median(median(abs(one.error) for one in group) for group in groups.values())


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


def test_the_best_draft_length_is_foretold(fitted):
    found = lengths([*fitted, *predicted(kept_rows(), terms_of)])
    regrets = [float(row[-1].rstrip("%")) for row in found]
    assert len(regrets) >= 15
    assert sum(regret <= 3 for regret in regrets) >= 0.9 * len(regrets)


def test_the_page_is_of_these_terms(fitted):
    """Of each group of plain rows, the page's median error is the one that the terms have now."""
    page = written_medians((ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8"))
    for (kind, engine, model, device, _), found in by_group(fitted).items():
        if kind == "plain":
            now = median(abs(one.error) for one in found)
            assert page[f"{engine} {model} {device} {len(found)}"] == pytest.approx(now, abs=6e-4)


def row(requests, held, prompt, seconds):
    """A plain row of one group."""
    return Row(
        engine="e",
        version="1",
        device="h100-sxm",
        num_devices=1,
        target=presets()["llama-3-8b"].info("m"),
        num_rows=requests,
        held=held,
        prompt=prompt,
        answer=100,
        seconds=seconds,
        source="s",
    )


LOADS = st.tuples(st.sampled_from([1, 4, 16]), st.sampled_from([500, 900]), st.sampled_from([0, 300]))


@given(st.lists(st.tuples(LOADS, st.floats(1e-3, 1e-2)), max_size=8), st.randoms(use_true_random=False))
def test_marked_rows_are_those_that_others_contradict(rows, chance):
    """What is left contradicts nothing; neither order nor the unit of time matters."""
    made = [row(*load, seconds) for load, seconds in rows]
    found = marked(made)
    left = [one for one in found if not one.contradicted]
    assert marked(left) == left
    for one in left:
        more = [other for other in left if (other.num_rows, other.held, other.prompt) == (16, 900, 300)]
        assert all(one.seconds < MARGIN * other.seconds for other in more)
    mixed = chance.sample(range(len(made)), len(made))
    assert [one.contradicted for one in marked([made[place] for place in mixed])] == [
        found[place].contradicted for place in mixed
    ]


def test_a_row_that_two_contradict_is_taken_out_before_either():
    light, heavy, odd = row(4, 500, 0, 0.010), row(16, 900, 300, 0.030), row(16, 900, 300, 0.005)
    assert [one.contradicted for one in marked([light, heavy, odd])] == [False, False, True]


@given(st.integers(1, 512), st.floats(0, 100), st.floats(1e-3, 100))
def test_requests_that_decode_are_those_that_do_not_wait(requests, first_s, rest_s):
    assert 1 <= decoding(requests, first_s, rest_s) <= requests
    assert decoding(requests, 0.0, rest_s) == requests
    assert decoding(2 * requests, rest_s, rest_s) == requests


def test_nine_in_ten_rows_lie_in_the_range_of_their_group(fitted):
    """As the terms say them; what a fit to the others says is on the page."""
    inside = [range_of(one.row).low <= one.factor <= range_of(one.row).high for one in fitted]
    assert sum(inside) >= 0.9 * len(inside)
