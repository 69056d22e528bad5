"""Tables, grids, lines and terms by the round: what they say, and the file that holds them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostRangeError
from paceline.sim.cost.files import CostGrid, CostLine, FileCost, TableCost
from paceline.sim.cost.make import make_cost
from paceline.traces import CostTable, TraceFormatError

from .shapes import RECORDING, seconds

GRID = CostGrid(new_tokens=(1, 4), context_tokens=(0, 100, 300), seconds=((1.0, 2.0, 3.0), (4.0, 6.0, 6.0)))
LINE = CostLine(intercept_s=0.5, per_new_token_s=0.25, per_kv_token_s=0.125)
TABLE = {"new_tokens": [1, 3], "seconds": [1, 2]}


def test_a_cost_from_a_file(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"draft": TABLE, "target": TABLE, "spare": TABLE}))
    cost = make_cost(str(file), RECORDING)
    assert cost.name == str(file)
    assert seconds(cost, 2, model="target") == 1.5
    with pytest.raises(CostRangeError, match="draft was measured for 1 to 3 new tokens a forward, asked for 4"):
        seconds(cost, 4, model="draft")
    assert seconds(make_cost(str(file), RECORDING, extrapolate=True), 4, model="draft") == 2.5


def test_a_file_may_mix_its_forms(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"draft": LINE.model_dump(), "target": GRID.model_dump(), "spare": TABLE}))
    cost = make_cost(str(file), RECORDING)
    assert seconds(cost, 4, model="draft", rows=2, held=8) == 0.5 + 4 * 0.25 + 8 * 0.125
    assert seconds(cost, 1, model="target", rows=2, held=50) == 1.5
    assert seconds(cost, 3, model="spare", held=10**9) == 2.0
    with pytest.raises(CostRangeError, match="no table for model 'ngram'; it has draft, target, spare"):
        seconds(cost, 1, model="ngram")


@pytest.mark.parametrize(
    ("new", "held", "wanted"),
    [(1, 0, 1.0), (4, 300, 6.0), (1, 200, 2.5), (2, 0, 2.0), (2, 50, (2.0 + 10 / 3) / 2), (3, 300, 5.0)],
)
def test_a_grid_is_interpolated_both_ways(new, held, wanted):
    assert seconds(FileCost("f", {"m": GRID}), new, held=held) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("new", "held", "told"),
    [
        (5, 0, "cost f: m was measured for 1 to 4 new tokens a forward, asked for 5"),
        (1, 301, "cost f: m was measured with 0 to 300 tokens held, asked for 301"),
    ],
)
def test_a_grid_is_not_extrapolated(new, held, told):
    with pytest.raises(CostRangeError, match=told):
        seconds(FileCost("f", {"m": GRID}), new, held=held)


@pytest.mark.parametrize(
    ("new", "held", "wanted"),
    [(1, 500, 4.0), (4, 500, 6.0), (7, 0, 7.0), (7, 300, 9.0), (7, 500, 9.0 + 200 * (9.0 - 10.0) / 200 * 0)],
)
def test_a_grid_that_is_told_to_goes_on_and_says_so(new, held, wanted):
    cost = FileCost("f", {"m": GRID, "n": GRID, "o": LINE}, extrapolate=True)
    seconds(cost, 2, model="n", held=7)
    seconds(cost, 2, model="o", held=10**9)
    assert cost.notes() == ()
    assert seconds(cost, new, held=held) == pytest.approx(wanted)
    assert cost.notes() == ("seconds beyond what was measured: m",)


def test_a_file_of_tables_says_which_know_no_context():
    cost = FileCost("f", {"m": CostTable(new_tokens=(1,), seconds=(1.0,)), "n": GRID, "o": LINE})
    assert cost.notes() == ("measured by new tokens only, a longer context costs no more: m",)


GOOD = {"new_tokens": [1, 2], "seconds": [1, 2]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "content: must be JSON, got"),
        ("\xff", "content: must be JSON, got"),
        ("[" * 100_000, "content: must be JSON, got"),
        ('{"draft": %s}' % ("9" * 5000), "content: must be JSON, got"),
        ("[]", "content: must be an object of models, got 'a list'"),
        (
            '{"draft": 3}',
            "draft: must be an object with new_tokens and seconds, with intercept_s, or with .*, got 'a number'",
        ),
        ('{"draft": {"new_tokens": [1]}}', "draft.seconds: field required"),
        ('{"draft": {"intercept": 1}}', "draft: must be an object with .*, got 'keys intercept'"),
        ('{"draft": {}}', "draft: must be an object with .*, got 'an object'"),
        ('{"draft": {"intercept_s": "1"}}', "draft.intercept_s: .*got '1'"),
        ('{"draft": {"intercept_s": true}}', "draft.intercept_s: .*got True"),
        ('{"draft": {"new_tokens": [1, 2], "seconds": [1, 1e10]}}', r"draft: seconds must be in \["),
        ('{"draft": {"intercept_s": 1}, "draft": {"intercept_s": 2}}', "must be JSON, got \"key 'draft' twice\""),
        ('{"draft": {"new_tokens": [1, 2], "seconds": [1]}}', "draft: new_tokens must be strictly increasing"),
        ('{"draft": {"new_tokens": [2, 1], "seconds": [1, 2]}}', "draft: new_tokens must be strictly increasing"),
        ('{"draft": {"new_tokens": [0, 1], "seconds": [1, 2]}}', "draft: new_tokens must be strictly increasing"),
        ('{"draft": {"new_tokens": [1, 2], "seconds": [1, NaN]}}', "must be JSON, got 'NaN, which is no JSON'"),
        ('{"draft": {"new_tokens": [1, 2], "seconds": [1, 0]}}', r"draft: seconds must be in \[1e-12, 1e\+09\]"),
        ('{"draft": {"new_tokens": [1.5], "seconds": [1]}}', r"draft.new_tokens.0: .*got 1.5"),
        ('{"draft": {"new_tokens": [1], "seconds": ["x"]}}', r"draft.seconds.0: .*got 'x'"),
        ('{"draft": {"new_tokens": [1], "seconds": [1], "extra": 1}}', "draft.extra: extra inputs"),
        (json.dumps({"draft": GOOD}), "no table for model 'target' of the recording"),
        ('{"draft": {"intercept_s": -1}}', "draft.intercept_s: .*got -1"),
        ('{"draft": {"per_new_token_s": 1}}', "draft.intercept_s: field required"),
        ('{"draft": {"intercept_s": 0}}', "draft: intercept_s or per_new_token_s must be at least 1e-12"),
        ('{"draft": {"intercept_s": 1e999}}', "draft.intercept_s: input should be less than or equal to 1000000000"),
        ('{"draft": {"intercept_s": 1, "new_tokens": [1]}}', "draft.new_tokens: extra inputs"),
        ('{"draft": {"context_tokens": [], "new_tokens": [1], "seconds": [[]]}}', "draft.context_tokens: "),
        ('{"draft": {"context_tokens": [1], "new_tokens": [1], "seconds": [1]}}', "draft.seconds.0: "),
        (
            '{"draft": {"context_tokens": [-1], "new_tokens": [1], "seconds": [[1]]}}',
            "draft: context_tokens must be strictly increasing from >= 0",
        ),
        (
            '{"draft": {"context_tokens": [1], "new_tokens": [0], "seconds": [[1]]}}',
            "draft: new_tokens must be strictly increasing from >= 1",
        ),
        (
            '{"draft": {"context_tokens": [1], "new_tokens": [1], "seconds": [[1], [2]]}}',
            "draft: seconds must have one",
        ),
        ('{"draft": {"context_tokens": [1], "new_tokens": [1], "seconds": [[1, 2]]}}', "draft: each row of seconds"),
        ('{"draft": {"context_tokens": [1], "new_tokens": [1], "seconds": [[0]]}}', r"draft: seconds must be in \["),
    ],
)
def test_a_cost_file_that_is_wrong(tmp_path, content, told):
    file = tmp_path / "mine.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=told) as caught:
        make_cost(str(file), RECORDING)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


NUMBERS = st.integers(-2, 10) | st.just(10**400) | st.floats() | st.booleans() | st.none() | st.text(max_size=3)
FIELDS = [
    "new_tokens",
    "context_tokens",
    "seconds",
    "intercept_s",
    "per_new_token_s",
    "per_kv_token_s",
    "per_round_s",
    "extra",
]
VALUES = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(figures=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4) | VALUES, extrapolate=st.booleans())
def test_any_file_costs_something_or_is_refused_in_one_line(tmp_path_factory, figures, extrapolate):
    file = tmp_path_factory.mktemp("costs") / "mine.json"
    file.write_text(json.dumps({"draft": figures, "target": TABLE}))
    told = ""
    try:
        cost = make_cost(str(file), RECORDING, extrapolate=extrapolate)
        asked = [seconds(cost, new, model="draft", held=held) for new, held in ((1, 0), (2, 5), (9, 10**6))]
    except ValueError as error:
        asked, told = [1.0], str(error)
    assert min(asked) > 0
    assert "\n" not in told


def test_a_long_value_is_cut(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"draft": {"new_tokens": [1] * 5000, "seconds": [1] * 5000}}))
    with pytest.raises(TraceFormatError) as caught:
        make_cost(str(file), RECORDING)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["missing.json", "folder.json"])
def test_a_cost_file_that_is_none(tmp_path, name):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match=f"{name}: file: must be a readable file, got "):
        make_cost(str(tmp_path / name), RECORDING)


BENT = CostTable(new_tokens=(1, 2, 8, 16), seconds=(1.0, 1.5, 3.0, 2.0))
RISING = CostTable(new_tokens=(2, 4, 8), seconds=(1.0, 2.0, 3.0))


@pytest.mark.parametrize(("new", "wanted"), [(1, 1.0), (2, 1.5), (5, 2.25), (8, 3.0), (12, 2.5), (16, 2.0)])
def test_a_table_is_interpolated(new, wanted):
    cost = TableCost("cpu", {"m": BENT})
    assert seconds(cost, new) == wanted
    assert seconds(cost, new, rows=7, held=10**6) == wanted  # a table knows new tokens only


@pytest.mark.parametrize("new", [0, 17, 10**9])
def test_a_table_is_not_extrapolated(new):
    cost = TableCost("cpu", {"m": BENT})
    with pytest.raises(CostRangeError, match=f"cost cpu: m was measured for 1 to 16 new tokens.*asked for {new}"):
        seconds(cost, new)


@pytest.mark.parametrize(
    ("table", "new", "wanted"),
    [
        (RISING, 1, 1.0),  # fewer tokens than measured cost what the fewest did
        (RISING, 16, 3.0 + 8 * 0.25),  # the last segment goes on
        (BENT, 100, 2.0),  # but never down
        (CostTable(new_tokens=(4,), seconds=(1.5,)), 1, 1.5),
        (CostTable(new_tokens=(4,), seconds=(1.5,)), 99, 1.5),
    ],
)
def test_a_table_that_is_told_to_goes_on_and_says_so(table, new, wanted):
    cost = TableCost("cpu", {"m": table, "other": table}, extrapolate=True)
    assert seconds(cost, table.new_tokens[-1]) == table.seconds[-1]
    before = cost.notes()
    assert not any("beyond" in note for note in before)
    for _ in range(2):
        assert seconds(cost, new) == wanted
    assert cost.notes() == ("seconds beyond what was measured: m", *before)


TARGET = {"intercept_s": 1.0}


def cost_of(tmp_path, draft, **options):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"draft": draft, "target": TARGET}))
    return make_cost(str(file), RECORDING, **options)


@pytest.mark.parametrize(
    ("draft", "terms"),
    [
        ({"per_round_s": 0.5}, (0.5, 0.0, None)),
        ({"per_token_s": 0.25}, (0.0, 0.25, None)),
        ({"per_round_s": 0.5, "per_token_s": 0.25}, (0.5, 0.25, None)),
        ({"per_round_s": 0.5, "intercept_s": 0.125}, (0.5, None, None)),
        ({"per_round_s": 0.5, "new_tokens": [1, 2], "seconds": [1, 2]}, (0.5, None, None)),
        ({"per_round_s": 0.5, "new_tokens": [1], "context_tokens": [0], "seconds": [[1]]}, (0.5, None, None)),
        ({"intercept_s": 0.125}, None),
    ],
)
def test_every_form_takes_seconds_by_the_round(tmp_path, draft, terms):
    cost = cost_of(tmp_path, draft)
    assert cost.draft_terms("draft") == terms
    assert cost.draft_terms("target") is None


def test_what_stands_beside_per_round_is_the_cost_of_forwards(tmp_path):
    cost = cost_of(tmp_path, {"per_round_s": 0.5, "new_tokens": [1, 3], "seconds": [1, 3]}, extrapolate=True)
    assert seconds(cost, 2, model="draft") == 2.0
    assert seconds(cost, 4, model="draft") == 4.0
    assert "seconds beyond what was measured: draft" in cost.notes()


def test_terms_of_drafting_do_not_say_what_judging_takes(tmp_path):
    cost = cost_of(tmp_path, {"per_round_s": 0.5, "per_token_s": 0.25})
    with pytest.raises(CostRangeError, match=r"draft has per_round_s and per_token_s only.*asked to judge"):
        seconds(cost, 2, model="draft")
    assert cost.notes() == ("drafts cost by the round, whatever they read and for how many rows: draft",)


def test_scale_goes_with_the_terms(tmp_path):
    draft = {"per_round_s": 0.5, "per_token_s": 0.25}
    cost = cost_of(tmp_path, draft, scale={"draft": 4.0})
    assert cost.draft_terms("draft") == (2.0, 1.0, None)
    assert cost_of(tmp_path, {"per_round_s": 0.5, **TARGET}, scale={"draft": 4.0}).draft_terms("draft") == (
        2.0,
        None,
        None,
    )
    assert cost_of(tmp_path, draft, scale={"target": 4.0}).draft_terms("draft") == (0.5, 0.25, None)


@pytest.mark.parametrize(
    ("draft", "told"),
    [
        ({"per_round_s": 0}, "draft: per_round_s or per_token_s must be at least 1e-12"),
        ({"per_round_s": -1}, "draft.per_round_s: .*got -1"),
        ({"per_round_s": "1", "intercept_s": 1}, "draft.per_round_s: .*got '1'"),
        ({"per_round_s": 1, "intercept_s": -1}, "draft.intercept_s: .*got -1"),
        ({"per_round_s": 1, "per_token_s": 1, "intercept_s": 1}, "draft.intercept_s: extra inputs"),
        ({"per_round_s": 1, "per_round": 1}, "draft: must be an object with .*per_round_s.*got 'keys per_round'"),
        ({"per_round_s": True}, "draft.per_round_s: .*got True"),
    ],
)
def test_terms_that_are_wrong_are_told_in_one_line(tmp_path, draft, told):
    with pytest.raises(ValueError, match=told) as caught:
        cost_of(tmp_path, draft)
    assert "\n" not in str(caught.value)


def test_the_target_drafts_nothing(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"draft": TARGET, "target": {"per_round_s": 1, "intercept_s": 1}}))
    with pytest.raises(ValueError, match=r"target: must be without per_round_s and per_token_s.*got 'keys per_round_s"):
        make_cost(str(file), RECORDING)
