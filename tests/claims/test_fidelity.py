"""What docs/fidelity.md says of the terms of engines, against the measured rows where they lie beside the checkout."""

import tomllib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.benchmarks.engines import fidelity, fit, kernels
from paceline.benchmarks.engines.fidelity import by_group, lengths, range_of, terms_of, written_medians
from paceline.benchmarks.engines.fit import heads_or_plain, sources_of_rounds
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
    found = {engine: median(errors) for engine, errors in by_engine.items()}
    assert found.keys() == {"sglang", "vllm", "vllm-0.12", "vllm-0.9"}
    assert max(found["sglang"], found["vllm"], found["vllm-0.12"]) <= 0.04
    assert found["vllm-0.9"] <= 0.14


def test_the_best_draft_length_is_predicted(fitted):
    found = lengths(heads_or_plain([*fitted, *predicted(kept_rows(), terms_of)]))
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


def test_the_page_of_costs_has_the_terms_of_some_rounds_only():
    page = " ".join((ROOT / "docs" / "costs.md").read_text(encoding="utf-8").split())
    vllm, sglang, ampere = (
        fidelity.engines()[name][on] for name, on in (("vllm", "h100"), ("sglang", "h100"), ("vllm", "a100"))
    )
    assert f"{vllm.draft_layer_s * 1e6:.0f} microseconds a layer and token" in page
    told = f"{vllm.lookup_layer_s * 1e6:.0f} microseconds a layer of the target and {vllm.lookup_row_s * 1e6:.0f} a row"
    assert f"{told}; under SGLang {sglang.lookup_layer_s * 1e6:.0f} and {sglang.lookup_row_s * 1e6:.0f}" in page
    assert f"again for {ampere.rereads:.2f} of the heads of queries" in page


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
    head = target.model_copy(update={"layers": 1})
    return replace(plain, drafter=head, drafted=steps, judged=steps, wide=wide, plain_s=0.007, seconds=0.01)


def test_rounds_are_left_out_by_source_or_by_model_of_the_only_one(monkeypatch):
    """A fit sees nothing of what is left out, plain rows neither, and all kept rows that are not; mixtures stay in."""
    alone, tree = a_round("s", engine="alone"), a_round("t", engine="alone", wide=3)  # trees tell a fit nothing
    mixture = replace(a_round("k"), target=presets()["qwen-3-30b-a3b"].info("mixed"))
    rows = [row(1, 500, 0, 0.007), a_round("s"), a_round("s", model="other"), alone, tree, a_round("v", engine="one")]
    kept = [a_round("k"), mixture, a_round("v", engine="one", model="M"), a_round("v", engine="one", model="other")]
    assert sources_of_rounds([*rows, *kept]) == {"e": True, "one": False}
    seen = []
    monkeypatch.setattr(fit, "fit", lambda others: seen.append(others))
    monkeypatch.setattr(fit, "terms_by", lambda _: None)
    monkeypatch.setattr(fit, "predicted", lambda apart, _: apart)
    found = [rows[1], rows[2], rows[5], kept[2], kept[0], kept[3]]
    assert list(fit.unseen_rounds(rows, kept)) == found
    others = [[rows[3], rows[4], rows[5], *kept], [*rows[:5], kept[0], kept[1], kept[3]], rows, rows]
    assert seen == others


def test_threads_of_one_author_are_one_source():
    """Builds of vLLM 0.8 measured them."""
    found = {(one.source, one.version) for one in kept_rows() if one.engine == "vllm-0.9"}
    assert found == {("vllm issue 20780", "0.8")}


def test_kernels_of_a_model_are_left_out_whatever_it_is_called(monkeypatch):
    one, other = (kernels.Kernels(a_round("s", model=name), 0.01, 0.007) for name in ("m", "M-8B"))
    seen = []
    monkeypatch.setattr(kernels, "fit", lambda others: seen.append(others) or {"e": kernels.Beside(0.0, 0.0, 0.0, 0.0)})
    assert [each.row for each in kernels.unseen([one, other])] == [one.row, other.row]
    assert seen == [[]]


NEW = "new sources of e at one request"


def guessed(source, off, **named):
    """A round that took `off` times of what was predicted of its engine's own seconds."""
    return Predicted(a_round(source, **named), 0.005 + 0.005 / off, 0.007, 0.005)


def sure_of_rounds(own, kept, found=(), **classes):
    plain = Predicted(row(1, 500, 0, 0.007), 0.007, 0.007, 0.0)
    return tomllib.loads("\n".join(fit.sure_lines([plain, *found], kept, own, classes or {"hopper": ("h100-sxm",)})))


@pytest.mark.parametrize(("number", "engines"), [(fit.ENOUGH - 1, []), (fit.ENOUGH, ["e"])])
def test_few_rounds_make_no_range_of_their_engines(number, engines):
    """Rows of another engine do not count for it."""
    own = [guessed("s" if step else "t", 1.0) for step in range(number)] + [guessed("v", 1.0, engine="few")]
    kept = [guessed("k", 1.0)]
    sure = sure_of_rounds(own, kept)["sure"]["dense"]["hopper"]
    assert list(sure.get("own", {})) == engines
    assert sure["gains"] == 1
    assert all((each["gains"], each["new"]) == (number, NEW) for each in sure.get("own", {}).values())


@pytest.mark.parametrize("models", [fit.FEW - 1, fit.FEW])
def test_a_class_with_few_models_is_no_surer_than_all(models):
    """`FEW` models on an A100, each as predicted, beside one on an H100 that took twice as long."""
    plain = row(1, 500, 0, 0.007)
    shape = plain.target.model_copy
    other = [replace(plain, device="a100", target=shape(update={"layers": 1 + place})) for place in range(models)]
    found = [Predicted(each, 0.007, 0.007, 0.0) for each in other]
    slow = Predicted(plain, 0.0035, 0.0035, 0.0)
    sure = sure_of_rounds([], [guessed("k", 1.0), slow], found, hopper=("h100-sxm",), ampere=("a100",))["sure"]
    told = sure["dense"]["ampere"]["of"], sure["dense"]["ampere"]["plain"]["high"]
    few = ("dense models on Hopper and dense models on Ampere", 2.0)
    assert told == (few if models < fit.FEW else ("dense models on Ampere", 1.0))


def test_an_engines_own_range_lies_in_that_of_engines_without_rounds():
    """However few rows it has of all."""
    exact = [guessed("s" if step else "t", 1.0) for step in range(30 * fit.ENOUGH)]
    one = [guessed("v", 2.0, engine="v", model="m" if step else "other") for step in range(fit.ENOUGH)]
    sure = sure_of_rounds([*exact, *one], [guessed("k", 0.5)])["sure"]["dense"]["hopper"]
    own = sure["own"]
    assert [own[engine]["rounds"] for engine in "ev"] == [{"low": 1.0, "high": 1.0}, {"low": 1.0, "high": 2.0}]
    assert sure["rounds"] == {"low": 0.5, "high": 2.0}
    assert [own[engine]["new"] for engine in "ev"] == [NEW, "v's new models at one request"]
    many = [each._replace(row=replace(each.row, num_rows=8)) for each in one[:1]]
    sure = sure_of_rounds([*exact, *one, *many], [guessed("k", 0.5)])["sure"]["dense"]["hopper"]
    assert sure["own"]["v"]["new"] == "v's new models"


def test_the_wide_range_is_known_where_rounds_of_all_engines_are(monkeypatch):
    one = a_round("s", engine="sglang")
    wide = fidelity.engines()["trtllm"]["h100-sxm"].dense.rounds
    measured = {name: by_device for name, by_device in fidelity.engines().items() if name != "trtllm"}
    monkeypatch.setattr(fidelity, "engines", lambda: measured)
    assert range_of(one, elsewhere=True) == wide != range_of(one)


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
