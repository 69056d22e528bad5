"""Tables, grids, lines and terms by the round, the file that holds them, and which cost a name is."""

import json
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostRangeError
from paceline.sim.cost.by_name import OnDevice, default_cost, make_cost
from paceline.sim.cost.files import CostGrid, CostLine, FiguresByRows, FileCost, StepTable, TableCost
from paceline.sim.cost.measured import TimedCost
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.traces import CostTable

from .shapes import META, RECORDING, recording_that_says, seconds
from .timed_recordings import recording_of, request_of, shapes

GRID = CostGrid(new_tokens=(1, 4), context_tokens=(0, 100, 300), seconds=((1.0, 2.0, 3.0), (4.0, 6.0, 6.0)))
LINE = CostLine(intercept_s=0.5, per_new_token_s=0.25, per_kv_token_s=0.125)
TABLE = {"new_tokens": [1, 3], "seconds": [1, 2]}
BENT = CostTable(new_tokens=(1, 2, 8, 16), seconds=(1.0, 1.5, 3.0, 2.0))
RISING = CostTable(new_tokens=(2, 4, 8), seconds=(1.0, 2.0, 3.0))
ONE = CostTable(new_tokens=(4,), seconds=(1.5,))
TARGET = {"intercept_s": 1.0}


def cost_of(tmp_path, figures, **options):
    file = tmp_path / "mine.json"
    file.write_bytes((figures if isinstance(figures, str) else json.dumps(figures)).encode("latin-1"))
    return make_cost(str(file), RECORDING, **options)


def test_a_file_may_mix_its_forms(tmp_path):
    cost = cost_of(tmp_path, {"draft": LINE.model_dump(), "target": GRID.model_dump(), "spare": TABLE})
    assert cost.name == str(tmp_path / "mine.json")
    assert seconds(cost, 4, model="draft", rows=2, held=8) == 0.5 + 4 * 0.25 + 8 * 0.125
    assert seconds(cost, 1, model="target", rows=2, held=50) == 1.5
    assert seconds(cost, 3, model="spare", held=10**9) == 2.0
    assert cost.notes() == ("measured by new tokens only, a longer context costs no more: spare",)
    with pytest.raises(CostRangeError, match="no table for model 'ngram'; it has draft, target, spare"):
        seconds(cost, 1, model="ngram")


WITHIN = [
    *[(GRID, new, held, wanted) for new, held, wanted in ((1, 0, 1.0), (4, 300, 6.0), (1, 200, 2.5), (3, 300, 5.0))],
    *[(GRID, 2, 0, 2.0), (GRID, 2, 50, (2.0 + 10 / 3) / 2)],
    *[(BENT, new, 10**6, wanted) for new, wanted in ((1, 1.0), (2, 1.5), (5, 2.25), (8, 3.0), (12, 2.5))],
]
BEYOND = [
    (GRID, 1, 500, 4.0),
    (GRID, 4, 500, 6.0),  # flat, and so it goes on
    (GRID, 7, 0, 7.0),
    (GRID, 7, 300, 9.0),
    (RISING, 1, 0, 1.0),  # fewer tokens than measured cost what the fewest did
    (RISING, 16, 0, 3.0 + 8 * 0.25),  # the last segment goes on
    (BENT, 100, 0, 2.0),  # but never down
    (ONE, 1, 0, 1.5),
    (ONE, 99, 0, 1.5),
]


@pytest.mark.parametrize(("figures", "new", "held", "wanted"), WITHIN)
def test_what_was_measured_is_interpolated(figures, new, held, wanted):
    assert seconds(FileCost("f", {"m": figures}), new, rows=7, held=held) == pytest.approx(wanted)


@pytest.mark.parametrize(("figures", "new", "held", "wanted"), BEYOND)
def test_beyond_it_goes_on_where_it_is_told_to_and_says_so(figures, new, held, wanted):
    with pytest.raises(CostRangeError, match=rf"cost f: m was measured .* asked for ({new}|{held})"):
        seconds(FileCost("f", {"m": figures}), new, held=held)
    cost = FileCost("f", {"m": figures, "n": figures, "o": LINE}, extrapolate=True)
    seconds(cost, figures.new_tokens[-1], model="n")
    seconds(cost, 2, model="o", held=10**9)
    assert not any("beyond" in note for note in cost.notes())
    assert [seconds(cost, new, held=held) for _ in range(2)] == pytest.approx([wanted] * 2)
    assert cost.notes()[0] == "seconds beyond what was measured: m"


def test_a_recorded_table_says_in_one_note_that_it_knows_no_context():
    assert TableCost("cpu", {"m": BENT}).notes() == ("measured by new tokens only: a longer context costs no more",)


@pytest.mark.parametrize(
    ("draft", "terms"),
    [
        ({"per_round_s": 0.5}, (0.5, 0.0, 0.0, 0.0)),
        ({"per_token_s": 0.25}, (0.0, 0.25, 0.0, 0.0)),
        ({"per_round_s": 0.5, "per_token_s": 0.25}, (0.5, 0.25, 0.0, 0.0)),
        ({"per_round_s": 0.5, "per_round_row_s": 2.0}, (0.5, 0.0, 2.0, 0.0)),
        ({"per_round_row_s": 2.0, "intercept_s": 0.125}, (0.0, None, 2.0, 0.0)),
        ({"per_round_s": 0.5, "intercept_s": 0.125}, (0.5, None, 0.0, 0.0)),
        ({"per_round_s": 0.5, "new_tokens": [1, 2], "seconds": [1, 2]}, (0.5, None, 0.0, 0.0)),
        ({"per_round_s": 0.5, "new_tokens": [1], "context_tokens": [0], "seconds": [[1]]}, (0.5, None, 0.0, 0.0)),
        ({"per_token_s": 0.25, "stop_s": 1.5}, (0.0, 0.25, 0.0, 1.5)),
        ({"stop_s": 1.5, "intercept_s": 0.125}, (0.0, None, 0.0, 1.5)),
        ({"intercept_s": 0.125}, None),
    ],
)
def test_every_form_takes_seconds_by_the_round(tmp_path, draft, terms):
    cost = cost_of(tmp_path, {"draft": draft, "target": TARGET}, scale={"draft": 2.0})
    once, each, row, stop = terms or (None,) * 4
    doubled = terms and (2 * once, each and 2 * each, None, 2 * row, 2 * stop)
    assert (cost.draft_terms("draft"), cost.draft_terms("target")) == (doubled, None)


def test_what_stands_beside_the_round_is_the_cost_of_forwards_and_without_it_nobody_judges(tmp_path):
    both = {"per_round_s": 0.5, "new_tokens": [1, 3], "seconds": [1, 3]}
    cost = cost_of(tmp_path, {"draft": both, "target": TARGET}, extrapolate=True)
    assert [seconds(cost, new, model="draft") for new in (2, 4)] == [2.0, 4.0]
    assert "seconds beyond what was measured: draft" in cost.notes()
    cost = cost_of(tmp_path, {"draft": {"per_round_s": 0.5, "per_token_s": 0.25}, "target": TARGET})
    with pytest.raises(CostRangeError, match=r"draft has per_round_s and per_token_s only.*asked to judge"):
        seconds(cost, 2, model="draft")
    assert cost.notes() == ("drafts cost by the round, whatever they read and for how many rows: draft",)


def test_figures_of_drafts_of_one_length_say_that_others_are_a_guess(tmp_path):
    each = {"per_token_s": 0.25}
    one, several = (
        cost_of(tmp_path, {"draft": each | {"draft_lengths": lengths}, "target": TARGET}) for lengths in ([3], [1, 3])
    )
    assert one.draft_terms("draft") == several.draft_terms("draft")
    (*alike, told) = one.notes()
    assert (*alike,) == several.notes()
    assert told == (
        "draft was fitted to drafts of 3 tokens alone: seconds of other lengths are a guess; calibrate by a run with "
        "another length, too"
    )


FIT = {"runs": ["plain", "k3"], "observed": "again", "within": False, "verdict": "1 of 2 figures are ..."}


@pytest.mark.parametrize("within", [False, True])
def test_a_fit_that_missed_its_bounds_is_reported_wherever_its_file_is_used(tmp_path, within):
    named = {"drafter": {"per_token_s": 0.25, "draft_lengths": [1, 3]}, "target": TARGET}
    notes = cost_of(tmp_path, named | {"fit": FIT | {"within": within}}, scale={"target": 2.0}).notes()
    missed = f"{tmp_path / 'mine.json'} was fitted to plain, k3 and missed again: 1 of 2 figures are ..."
    assert (missed in notes) is not within
    assert [note for note in notes if note != missed] == [*cost_of(tmp_path, named).notes()]


SWITCH = {"new_tokens": [1, 8, 9], "seconds": [1.0, 4.0, 2.0]}
SWITCH_TABLE = StepTable(new_tokens=(1, 8, 9), seconds=(1.0, 4.0, 2.0), between="step")
BY_ROWS = {"rows": [1, 8], "by_rows": [SWITCH, {"intercept_s": 1.0, "per_new_token_s": 0.5}]}


@pytest.mark.parametrize(("between", "wanted"), [("line", 2.5), ("step", 4.0)])
def test_a_wider_forward_may_cost_less_and_lie_on_steps(tmp_path, between, wanted):
    cost = cost_of(tmp_path, draft(**SWITCH, between=between))
    assert [seconds(cost, new, model="draft") for new in (1, 8, 9)] == [1.0, 4.0, 2.0]
    assert seconds(cost, 4.5, model="draft") == wanted
    assert seconds(cost, 4.5, model="draft", rows=5, held=10**6) == wanted


def test_rows_are_not_tokens(tmp_path):
    cost = cost_of(tmp_path, {"draft": BY_ROWS, "target": TARGET})
    assert seconds(cost, 8, model="draft", rows=1) == 4.0
    assert seconds(cost, 8, model="draft", rows=8) == 5.0
    # Three of seven steps from 1 row of one token to 8 of one.
    assert seconds(cost, 4, model="draft", rows=4) == pytest.approx(1.0 + 3 / 7 * (5.0 - 1.0))
    for rows in (0.5, 9):
        with pytest.raises(CostRangeError, match=rf"cost .*: draft was measured for 1 to 8 rows, asked for {rows}"):
            seconds(cost, 9, model="draft", rows=rows)
    beyond = cost_of(tmp_path, {"draft": BY_ROWS, "target": TARGET}, extrapolate=True)
    assert seconds(beyond, 15, model="draft", rows=15) == pytest.approx(1.0 + 2 * (5.0 - 1.0))
    assert "seconds beyond what was measured: draft" in beyond.notes()


FALLS = CostGrid(
    new_tokens=(1, 40), context_tokens=(0, 40, 90), seconds=((3.0, 2.0, 2.5), (4.0, 6.0, 5.0)), between="step"
)
RISES = CostLine(intercept_s=1.0, per_row_s=0.25, per_new_token_s=0.125, per_kv_token_s=0.03)
FORMS = {
    "sum": (FALLS, RISES, RISES.model_copy(update={"per_kv_token_s": 0.0}), SWITCH_TABLE),
    "longest": (FALLS.model_copy(update={"context": "longest"}), RISES.model_copy(update={"context": "longest"})),
}


@given(
    measured=st.lists(st.integers(1, 70), min_size=1, max_size=3, unique=True).map(sorted),
    rows=st.integers(1, 90),
    width=st.integers(1, 9),
    more=st.sampled_from([0, 0, 1]),
    each=st.tuples(st.integers(0, 95), st.integers(0, 95)),
    context=st.sampled_from(["sum", "longest"]),
    extrapolate=st.booleans(),
    data=st.data(),
)
def test_seconds_by_rows_lie_on_the_line_that_is_told(measured, rows, width, more, each, context, extrapolate, data):
    """Between numbers of rows and beyond them; and a line ends where seconds are refused."""
    forms = tuple(of_rows(count, data.draw(st.sampled_from(FORMS[context]))) for count in measured)
    cost = FileCost("f", {"m": FiguresByRows(rows=tuple(measured), forms=forms)}, extrapolate=extrapolate)
    held, other = (tokens * rows for tokens in each)
    asked = {"num_rows": rows, "new_tokens": rows * width + more}
    try:
        wanted = cost.forward_s("m", **asked, context_tokens=held)
    except CostRangeError:
        with pytest.raises(CostRangeError):
            cost.context_line("m", **asked, context_tokens=held)
        return
    line = cost.context_line("m", **asked, context_tokens=held)
    assert line.start <= held < line.end
    last = ceil(min(line.end, line.start + 10**4)) - 1
    for tokens in (held, line.start, last, *([other] if line.start <= other < line.end else [])):
        wanted = cost.forward_s("m", **asked, context_tokens=tokens)
        assert line.start_s + line.slope_s * (tokens - line.start) == pytest.approx(wanted)


def of_rows(count, form):
    """The same form with so many rows, each with as many tokens as the one of a single row."""
    if isinstance(form, CostLine):
        return form
    new = {"new_tokens": tuple(count * tokens for tokens in form.new_tokens)}
    if isinstance(form, CostGrid):
        new["context_tokens"] = tuple(count * tokens for tokens in form.context_tokens)
    return form.model_copy(update=new)


def draft(**figures):
    return {"draft": figures, "target": TARGET}


def grid(context, new, taken):
    return draft(context_tokens=context, new_tokens=new, seconds=taken)


NO_FORM = (
    "must be an object with new_tokens and seconds, with intercept_s, with rows and by_rows, or with per_round_s and "
    "per_token_s, got"
)
WRONG = [
    ("{", "content: must be JSON, got"),
    ("\xff", "content: must be JSON, got"),
    ("[" * 100_000, "content: must be JSON, got"),
    ('{"draft": %s}' % ("9" * 5000), "content: must be JSON, got"),
    ('{"draft": {"intercept_s": 1}, "draft": {"intercept_s": 2}}', "must be JSON, got \"key 'draft' twice\""),
    ('{"draft": {"new_tokens": [1, 2], "seconds": [1, NaN]}}', "must be JSON, got 'NaN, which is no JSON'"),
    ('{"draft": {"intercept_s": 1e999}}', "draft.intercept_s: input should be less than or equal to 1000000000"),
    ([], "content: must be an object of models, got 'a list'"),
    ({"draft": TABLE}, "no table for model 'target' of the recording"),
    ({"draft": 3}, f"draft: {NO_FORM} 'a number'"),
    (draft(), f"draft: {NO_FORM} 'an object'"),
    (draft(intercept=1), f"draft: {NO_FORM} 'keys intercept'"),
    (draft(per_round_s=1, per_round=1), f"draft: {NO_FORM} 'keys per_round'"),
    (draft(new_tokens=[1]), "draft.seconds: field required"),
    (draft(intercept_s="1"), "draft.intercept_s: .*got '1'"),
    (draft(intercept_s=True), "draft.intercept_s: .*got True"),
    (draft(intercept_s=-1), "draft.intercept_s: .*got -1"),
    (draft(intercept_s=0), "draft: intercept_s, per_row_s or per_new_token_s must be at least 1e-12"),
    (draft(per_new_token_s=1), "draft.intercept_s: field required"),
    (draft(intercept_s=1, new_tokens=[1]), "draft.new_tokens: extra inputs"),
    (draft(new_tokens=[1, 2], seconds=[1]), "draft: new_tokens must be strictly increasing"),
    (draft(new_tokens=[2, 1], seconds=[1, 2]), "draft: new_tokens must be strictly increasing"),
    (draft(new_tokens=[1] * 5000, seconds=[1] * 5000), "draft: new_tokens must be strictly increasing"),
    (draft(new_tokens=[0, 1], seconds=[1, 2]), "draft: new_tokens must be strictly increasing"),
    (draft(new_tokens=[1, 2], seconds=[1, 0]), r"draft: seconds must be in \[1e-12, 1e\+09\]"),
    (draft(new_tokens=[1, 2], seconds=[1, 1e10]), r"draft: seconds must be in \["),
    (draft(new_tokens=[1.5], seconds=[1]), r"draft.new_tokens.0: .*got 1.5"),
    (draft(new_tokens=[1], seconds=["x"]), r"draft.seconds.0: .*got 'x'"),
    (grid([], [1], [[]]), "draft.context_tokens: "),
    (grid([1], [1], [1]), "draft.seconds.0: "),
    (grid([-1], [1], [[1]]), "draft: context_tokens must be strictly increasing from >= 0"),
    (grid([1], [0], [[1]]), "draft: new_tokens must be strictly increasing from >= 1"),
    (grid([1], [1], [[1], [2]]), "draft: seconds must have one"),
    (grid([1], [1], [[1, 2]]), "draft: each row of seconds"),
    (grid([1], [1], [[0]]), r"draft: seconds must be in \["),
    (draft(per_round_s=0), "draft: per_round_s, per_token_s or per_round_row_s must be at least 1e-12"),
    (draft(per_token_s=0, stop_s=1), "draft: per_round_s, per_token_s or per_round_row_s must be at least 1e-12"),
    (draft(draft_lengths=[1]), "draft: draft_lengths must stand beside per_round_s or per_round_row_s, or per_token_s"),
    (draft(draft_lengths=[1], intercept_s=1), "draft: draft_lengths must stand beside per_round_s or"),
    (draft(draft_lengths=[1], stop_s=1, intercept_s=1), "draft: draft_lengths must stand beside per_round_s or"),
    (draft(stop_s=1), f"draft: {NO_FORM} 'an object'"),
    (draft(stop_s=-1, intercept_s=1), "draft.stop_s: .*got -1"),
    (draft(per_round_s=-1), "draft.per_round_s: .*got -1"),
    (draft(per_round_s=1, intercept_s=-1), "draft.intercept_s: .*got -1"),
    (draft(per_round_s=1, per_token_s=1, intercept_s=1), "draft.intercept_s: extra inputs"),
    (draft(rows=[1]), "draft.by_rows: field required"),
    (draft(rows=[2, 1], by_rows=[TABLE, TABLE]), "draft: rows must be strictly increasing from >= 1"),
    (draft(rows=[1, 2], by_rows=[TABLE]), "draft: by_rows must have one object for each entry of rows"),
    (draft(rows=[1], by_rows=[{}]), f"draft.by_rows.0: {NO_FORM} 'an object'"),
    (draft(rows=[1], by_rows=[TABLE], seconds=[1]), "draft.seconds: extra inputs"),
    (draft(rows=[1], by_rows=[{"rows": [1], "by_rows": [TABLE]}]), "draft.by_rows.0: must be a table, a grid"),
    (draft(rows=[1], by_rows=[{"new_tokens": [1], "seconds": [0]}]), r"draft.by_rows.0: seconds must be in \["),
    (
        draft(rows=[1, 2], by_rows=[TARGET, {"intercept_s": 1.0, "context": "longest"}]),
        r"draft.by_rows: must have one context in all objects, got \['longest', 'sum'\]",
    ),
    (draft(intercept_s=1, context="mean"), "draft.context: .*got 'mean'"),
    (draft(**TABLE, between="spline"), "draft.between: .*got 'spline'"),
    (draft(per_round_s=True), "draft.per_round_s: .*got True"),
    (draft(per_round_s=1, draft_lengths=[3, 3]), "draft: draft_lengths must be strictly increasing from >= 1"),
    (draft(per_round_s=1, draft_lengths=3), "draft.draft_lengths: .*got 3"),
    ({"draft": TARGET, "target": TARGET, "fit": FIT | {"within": "no"}}, "fit.within: .*got 'no'"),
    ({"draft": TARGET, "target": TARGET, "fit": FIT | {"by": "me"}}, "fit.by: extra inputs"),
    ({"draft": TARGET, "target": {"per_round_s": 1, "intercept_s": 1}}, "target: must be without per_round_s, per_"),
]


@pytest.mark.parametrize(("content", "told"), WRONG)
def test_a_cost_file_that_is_wrong(tmp_path, content, told):
    with pytest.raises(ValueError, match=told) as caught:
        cost_of(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path / 'mine.json'}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


NUMBERS = st.integers(-2, 10) | st.just(10**400) | st.floats() | st.booleans() | st.none() | st.text(max_size=3)
FIELDS = [*CostGrid.model_fields, *CostLine.model_fields, "rows", "by_rows", "per_round_s", "draft_lengths", "extra"]
VALUES = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(figures=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4) | VALUES, extrapolate=st.booleans())
def test_any_file_costs_something_or_is_refused_in_one_line(tmp_path_factory, figures, extrapolate):
    told = ""
    try:
        cost = cost_of(tmp_path_factory.mktemp("costs"), {"draft": figures, "target": TABLE}, extrapolate=extrapolate)
        asked = [seconds(cost, new, model="draft", held=held) for new, held in ((1, 0), (2, 5), (9, 10**6))]
    except ValueError as error:
        asked, told = [1.0], str(error)
    assert min(asked) > 0
    assert "\n" not in told


@pytest.mark.parametrize("name", ["missing.json", "folder.json"])
def test_a_file_that_cannot_be_read(tmp_path, name):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match=f"{name}: file: must be a readable file, got "):
        make_cost(str(tmp_path / name), RECORDING)


TIMED = recording_of(request_of("a", wall_s={"": 2.0}))
SHAPED = recording_of(request_of("a", wall_s={"": 2.0}), models=shapes("eagle", "target"))


def test_a_cost_by_name(tmp_path):
    assert isinstance(make_cost("cpu", RECORDING), TableCost)
    assert seconds(make_cost("cpu", RECORDING), 5, model="target") == pytest.approx(0.02 * 1.04)
    single = recording_that_says(models=tuple(model.model_copy(update={"dtype": "float32"}) for model in META.models))
    for name in device_sheet():
        slow = name == "cpu-roofline"
        cost = make_cost(name, single if slow else RECORDING)
        assert isinstance(cost, RooflineCost)
        assert cost.name.partition(" ")[0] == name
        assert all(0 < seconds(cost, 1, model=model) < (1.0 if slow else 0.01) for model in ("draft", "target"))
        bare = make_cost(name, single if slow else RECORDING, engine="bare")
        assert seconds(bare, 1, model="draft") < seconds(bare, 1, model="target")
    measured = recording_that_says(costs={"h100": dict.fromkeys(META.model_names, BENT)})
    assert seconds(make_cost("h100", measured), 5, model="draft") == 2.25, "measured goes before the sheet"
    assert isinstance(make_cost("timed", TIMED), TimedCost)
    file = tmp_path / "mine.json"
    file.write_text('{"eagle": {"intercept_s": 1}, "target": {"intercept_s": 3}}')
    assert seconds(make_cost(str(file), TIMED), 9, model="target") == 3.0


def test_options_reach_the_cost():
    cost = make_cost("h100", RECORDING, tensor_parallel=2, scale={"draft": 0.5})
    assert cost.name == "h100 x2 tensor parallel (vllm), draft x0.5"
    cost = make_cost("cpu", RECORDING, extrapolate=True)
    assert seconds(cost, 10**6, model="target") > META.costs["cpu"]["target"].seconds[-1]
    told, engine, _ = make_cost("h200", SHAPED).notes()
    assert "`cost` timed `on` h200 `measured_on` DEVICE takes" in told
    on_h100 = replace(SHAPED, meta=SHAPED.meta.model_copy(update={"hardware": "NVIDIA H100 80GB HBM3"}))
    told, *_ = make_cost("h200", on_h100).notes()
    assert "`cost` timed `on` h200 takes" in told
    make_cost("timed", on_h100, on=OnDevice(device="h200"))
    told, *_ = make_cost("h100", on_h100).notes()
    assert told == "the recording holds seconds measured on this device: `cost` timed"
    assert engine.startswith("seconds fitted to vllm")
    made, same, _ = make_cost("h100", RECORDING).notes()  # measured on a processor of which no sheet knows
    assert made.startswith("synthetic is made")
    assert same == engine


@pytest.mark.parametrize(
    ("recording", "default"),
    [
        (RECORDING, "cpu"),
        (recording_that_says(costs={}), "h100"),
        (TIMED, "timed"),
        (recording_of(request_of("a"), models=shapes("eagle", "target")), "h100"),
    ],
)
def test_the_default_is_what_was_measured(recording, default):
    assert default_cost(recording) == default


FROM_H100 = {"on": OnDevice(device="h200", measured_on="h100")}


@pytest.mark.parametrize(
    ("name", "recording", "options", "told"),
    [
        ("cpu", RECORDING, {"tensor_parallel": 2}, "`tensor_parallel` goes with a device as `cost`, got `cost` cpu"),
        ("none.json", RECORDING, {"tensor_parallel": 2}, "`tensor_parallel` goes with a device as `cost`"),
        ("h100", RECORDING, {"tensor_parallel": 10**400}, r"must be in \[1, \d+\], the least hidden size, got 1000"),
        ("h100", RECORDING, {"extrapolate": True}, "`extrapolate` is for measured costs; h100 has no range to leave"),
        ("h100", RECORDING, {"scale": {"ngram": 2.0}}, r"`scale` must name a model .* \(draft, target\), got 'n"),
        *(
            ("cpu", RECORDING, {"scale": {"draft": factor}}, r"`scale` of draft must be in \[1e-06, 1e\+06\], got")
            for factor in (0.0, -1.0, float("nan"), float("inf"), 1e308)
        ),
        ("cpu", RECORDING, {"allow_foreign_profile": True}, "`allow_foreign_profile` is for profiles; cpu is none"),
        ("timed", RECORDING, {}, "cost timed: this recording holds no seconds of rounds or answers; known are"),
        (
            "v100",
            RECORDING,
            {},
            "unknown cost 'v100': known are a10, a100, .*, or a FILE.json; a device of your own: ",
        ),
        ("h100", TIMED, {}, "cost h100: no shape for target, eagle: give `models` target=PRESET"),
        ("timed", TIMED, FROM_H100, "cost timed `on` h200: no shape for target, eagle: give `models`"),
        ("timed", SHAPED, {"on": OnDevice(device="h200")}, "needs the device of the sheet that timed .*'nothing'"),
        ("timed", SHAPED, {"on": OnDevice(device="moon", measured_on="h100")}, "`on` must be a device .*got 'moon'"),
        ("timed", SHAPED, {"on": OnDevice(device="h200", measured_on="sun")}, "`measured_on` must be .*got 'sun'"),
        (
            "timed",
            SHAPED,
            {"on": OnDevice(device="h100", measured_on="h100-sxm")},
            "must name another device.*got h100",
        ),
        ("h200", SHAPED, FROM_H100, r"`on` is for seconds measured .*\(timed\), got `cost` h200"),
    ],
)
def test_what_does_not_apply_is_refused_in_one_line(name, recording, options, told):
    with pytest.raises(ValueError, match=told) as caught:
        make_cost(name, recording, **options)
    assert "\n" not in str(caught.value)


def test_without_seconds_or_all_shapes_there_is_no_default():
    with pytest.raises(ValueError, match=r"holds no seconds: give `cost` FILE.json, or `cost` DEVICE and `models`"):
        default_cost(recording_of(request_of("a"), models=shapes("target")))


def test_the_one_drafter_of_a_file_is_that_of_the_recording_and_a_note_says_so(tmp_path):
    file = tmp_path / "mine.json"
    fitted = {"per_token_s": 0.5}
    file.write_text(json.dumps({"target": TARGET, "draft": fitted}))
    cost = make_cost(str(file), SHAPED)
    assert cost.draft_terms("eagle").per_token_s == 0.5
    assert cost.notes()[0] == f"{file} has one drafter, draft: taken for eagle, the one of the recording"
    told = {"draft": fitted, "mid": fitted, "target": TARGET}, {"draft": TARGET, "target": TARGET}, {"target": TARGET}
    for figures in told:
        file.write_text(json.dumps(figures))
        with pytest.raises(ValueError, match="no table for model 'eagle' of the recording"):
            make_cost(str(file), SHAPED)
