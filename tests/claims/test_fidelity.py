"""What docs/fidelity.md says of the terms of engines, against the measured rows where they lie beside the checkout."""

import tomllib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.benchmarks.engines import fit
from paceline.benchmarks.engines.fidelity import by_group, lengths, range_of, terms_of, written_medians
from paceline.benchmarks.engines.fit import sources_of_rounds
from paceline.benchmarks.engines.rows import MARGIN, Predicted, Row, decoding, kept_rows, marked, predicted, rows_in
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


def test_plain_decoding_is_predicted(fitted):
    assert middles(fitted, lambda row: not row.drafted and row.target.experts is None) <= 0.07
    assert middles(fitted, lambda row: not row.drafted and row.target.experts is not None) <= 0.15


def test_speed_ups_of_chains_are_predicted(fitted):
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


def test_the_best_draft_length_is_predicted(fitted):
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


def a_round(source, *, engine="e", model="m", wide=1, steps=2):
    """A row of a round of one group."""
    target = presets()["llama-3-8b"].info(model)
    plain = replace(row(1, 500, 0, 0.007), engine=engine, source=source, target=target)
    return replace(plain, drafter=target, drafted=steps, judged=steps, wide=wide, plain_s=0.007, seconds=0.01)


def test_rounds_are_left_out_by_source_where_others_tell_of_their_engine(monkeypatch):
    """A fit sees nothing of the source and model that is left out, plain rows neither, and all of the kept rows."""
    alone, tree = a_round("s", engine="alone"), a_round("t", engine="alone", wide=3)  # trees tell a fit nothing
    rows, kept = [row(1, 500, 0, 0.007), a_round("s"), a_round("s", model="other"), alone, tree], [a_round("k")]
    assert sources_of_rounds([*rows, *kept]) == [("e", "s", "m"), ("e", "s", "other"), ("e", "k", "m")]
    seen = []
    monkeypatch.setattr(fit, "fit", lambda others: seen.append(others))
    monkeypatch.setattr(fit, "terms_by", lambda _: None)
    monkeypatch.setattr(fit, "predicted", lambda apart, _: apart)
    assert list(fit.unseen_rounds(rows, kept)) == rows[1:3]
    assert seen == [[rows[2], alone, tree, *kept], [rows[0], rows[1], alone, tree, *kept]]


@pytest.mark.parametrize(("number", "engines"), [(fit.ENOUGH - 2, None), (fit.ENOUGH - 1, ["e"])])
def test_few_rounds_make_no_range_of_their_engines(number, engines):
    """Kept rows count where rows of the fit tell of their engine as well; those of other engines do not."""
    own = [Predicted(a_round("s", steps=1 + step), 0.01, 0.007, 0.005) for step in range(number)]
    kept = [Predicted(a_round("k", engine=engine), 0.01, 0.007, 0.005) for engine in ("e", "other")]
    plain = Predicted(row(1, 500, 0, 0.007), 0.007, 0.007, 0.0)
    lines = fit.sure_lines([plain, *own], kept, own, {"hopper": ("h100-sxm",)})
    sure = tomllib.loads("\n".join(lines))["sure"]["dense"]["hopper"]
    assert sure.get("own", {}).get("engines") == engines
    assert sure["gains"] == number + 2
    assert engines is None or sure["own"]["gains"] == number + 1


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
