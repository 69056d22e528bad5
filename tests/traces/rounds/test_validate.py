from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from paceline.traces import TraceFormatError
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest
from paceline.traces.rounds.store import write_rounds

from ..tries.test_store import edit_table
from .test_store import refusal


def ints(*values):
    return np.array(values, np.int32)


def a_round(**changes):
    fields = {"start": ints(0, 3, 7), "accepted": ints(2, 3, 0), "drafted": ints(4, -1, 4)}
    return Rounds(**(fields | changes))


def a_request(**changes):
    fields = {
        "request_id": "a",
        "tag": "t",
        "prompt_tokens": 2,
        "num_tokens": {"": 9, "d": 8},
        "rounds": {"d": a_round()},
        "wall_s": {"": 1.0, "d": 0.5},
        "prefill_s": {"d": 0.1},
        "prompt": (5, 6),
        "output": tuple(range(9)),
    }
    return RoundsRequest(**(fields | changes))


META = RoundsMeta(
    name="hand",
    source="test",
    drafters=(DrafterInfo(name="d", by_start=True, window=4), DrafterInfo(name="e", by_start=False)),
)


def write(path, *requests, meta=META):
    return write_rounds(iter(requests), lambda: meta, path)


def test_the_request_made_by_hand_is_sound(tmp_path):
    write(tmp_path / "t.trace", a_request())


BREACHES = [
    ({"request_id": ""}, "id", "must not be empty"),
    ({"prompt_tokens": -1, "prompt": ()}, "prompt_tokens", "must be integers in"),
    ({"prompt_tokens": 3}, "prompt", "must hold prompt_tokens tokens or none"),
    ({"prompt": (5, -6)}, "prompt", "must be integers in"),
    ({"prompt": (5, 2**31)}, "prompt", "must be integers in"),
    ({"prompt": (5, True)}, "prompt", "must be integers in"),
    ({"output": tuple(range(8))}, "output", "must hold 9 tokens"),
    ({"num_tokens": {}, "wall_s": {}, "prefill_s": {}}, "num_tokens", "must name at least one method"),
    ({"num_tokens": {"": 0, "d": 8}}, "num_tokens", "must be >= 1"),
    ({"num_tokens": {"": 9.0, "d": 8}}, "num_tokens", "must be integers in"),
    ({"num_tokens": {"": 9, "d": 10**30}}, "num_tokens", "must be integers in"),
    ({"num_tokens": {"": 9, "d": 8, "f": 1}}, "drafters", "must be a drafter of meta.json"),
    ({"rounds": {"f": a_round()}}, "drafters", "must be a drafter of meta.json"),
    ({"rounds": {"": a_round()}}, "drafters", "must have names"),
    ({"wall_s": {"e": 1.0}}, "wall_s", "must name methods of num_tokens"),
    ({"wall_s": {"d": 0.0}, "prefill_s": {}}, "wall_s", "must be > 0 and finite"),
    ({"wall_s": {"d": float("nan")}, "prefill_s": {}}, "wall_s", "must be > 0 and finite"),
    ({"wall_s": {"d": float("inf")}, "prefill_s": {}}, "wall_s", "must be > 0 and finite"),
    ({"prefill_s": {"d": 0.6}}, "prefill_s of 'd'", "must be at most wall_s"),
]


@pytest.mark.parametrize(("changes", "field", "rule"), BREACHES)
def test_a_request_that_breaks_a_rule(tmp_path, changes, field, rule):
    with pytest.raises(TraceFormatError) as caught:
        write(tmp_path / "t.trace", a_request(request_id="first"), a_request(**changes))
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert field == "id" or "(request 'a'" in str(caught.value)
    assert not list(tmp_path.iterdir())


ROUND_BREACHES = [
    ({"start": ints(0, 3, 8)}, "start", "must lie in the output, 0 to num_tokens - 1", 8),
    ({"start": ints(-1, 3, 7)}, "start", "must lie in the output", -1),
    ({"start": ints(0, 3, 3)}, "start", "must ascend strictly", 3),
    ({"start": ints(3, 0, 7)}, "start", "must ascend strictly", 0),
    ({"accepted": ints(2, -1, 0)}, "accepted", "must be >= 0", -1),
    ({"accepted": ints(2, 3, 2)}, "accepted", "must end within the output", 2),
    ({"drafted": ints(1, -1, 4)}, "drafted", "must be >= accepted, or -1", 1),
    ({"drafted": ints(4, -3, 4)}, "drafted", "must be >= accepted, or -1 or -2 for unknown", -3),
    ({"drafted": ints(4, 5, 4)}, "drafted", "must be at most the window 4 of drafter 'd'", 5),
    ({"start": ints(0, 1, 7), "accepted": ints(2, 5, 0)}, "accepted", "must be at most the window 4", 5),
    ({"draft_s": np.array([0.1, np.inf, 0.1])}, "draft_s", "must be > 0 and finite", np.inf),
    ({"draft_s": np.array([0.1, 0.0, 0.1])}, "draft_s", "must be > 0 and finite", 0.0),
    ({"verify_s": np.array([0.1, -1.0, np.nan])}, "verify_s", "must be > 0 and finite", -1.0),
]


@pytest.mark.parametrize(("changes", "field", "rule", "value"), ROUND_BREACHES)
def test_a_round_that_breaks_a_rule(tmp_path, changes, field, rule, value):
    others = {"e": a_round(), "d": a_round(**changes)}
    with pytest.raises(TraceFormatError) as caught:
        write(tmp_path / "t.trace", a_request(request_id="first"), a_request(rounds=others))
    error = caught.value
    assert (error.field, error.value) == (field, value)
    assert rule in error.rule
    assert "request 'a'" in error.rule
    assert "window" in rule or "drafter 'd', round " in error.rule


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"accepted": np.array([2, 3, 0])}, "int64 of shape (3,)"),
        ({"accepted": ints(2, 3)}, "int32 of shape (2,)"),
        ({"drafted": ints(4, -1, 4)[:, None]}, "int32 of shape (3, 1)"),
        ({"draft_s": np.zeros(3, np.float32)}, "float32 of shape (3,)"),
        ({"verify_s": np.ones(2)}, "float64 of shape (2,)"),
    ],
)
def test_arrays_of_another_kind(tmp_path, changes, found):
    with pytest.raises(TraceFormatError) as caught:
        write(tmp_path / "t.trace", a_request(rounds={"d": a_round(**changes)}))
    assert caught.value.value == found
    assert caught.value.field == next(iter(changes))


def test_a_window_counts_where_it_is_known(tmp_path):
    """The same rounds, longer than the window of `d`, are sound for `e`, whose window nobody knows."""
    long = a_round(start=ints(0, 1, 7), accepted=ints(2, 5, 0), drafted=ints(7, 7, -1))
    write(tmp_path / "t.trace", a_request(rounds={"e": long}))


def with_column(table, name, values):
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, pa.array(values, table.schema.field(name).type))


@pytest.mark.parametrize(
    ("file", "column", "values", "field", "rule"),
    [
        ("requests", "id", [""], "id", "must not be empty"),
        ("requests", "prompt_tokens", [-1], "prompt_tokens", "must be >= 0"),
        ("requests", "prompt_tokens", [7], "prompt", "must hold prompt_tokens tokens"),
        ("requests", "prompt", [[5, -6]], "prompt", "must be >= 0"),
        ("requests", "output", [[1] * 8], "output", "must hold 9 tokens"),
        ("requests", "output", [[-1] * 9], "output", "must be >= 0"),
        ("requests", "methods", [["d", "d"]], "methods", "must be unique"),
        ("requests", "methods", [["d", "f"]], "drafters", "must be a drafter"),
        ("requests", "num_tokens", [[9, 0]], "num_tokens", "must be >= 1"),
        ("requests", "wall_s", [[-1.0, 0.5]], "wall_s of ''", "must be > 0 and finite"),
        ("requests", "prefill_s", [[None, float("inf")]], "prefill_s of 'd'", "must be > 0 and finite"),
        ("requests", "drafters", [[""]], "drafters", "must have names"),
        ("requests", "num_rounds", [[-3]], "num_rounds", "must be >= 0"),
        ("requests", "num_rounds", [[2]], "num_rounds", "add up to the 3 rows"),
        ("rounds", "start", [0, 3, 3], "start", "must ascend strictly"),
        ("rounds", "accepted", [2, -3, 0], "accepted", "must be >= 0"),
        ("rounds", "accepted", [2, 2**31 - 1, 0], "accepted", "must end within the output"),
        ("rounds", "drafted", [1, -1, 4], "drafted", "must be >= accepted"),
        ("rounds", "draft_s", [None, -1.0, None], "draft_s", "must be > 0 and finite"),
    ],
)
def test_a_signed_file_is_checked_as_a_writer_is(tmp_path, file, column, values, field, rule):
    write(tmp_path / "t.trace", a_request())
    edit_table(tmp_path / "t.trace", f"{file}.parquet", lambda table: with_column(table, column, values))
    error = refusal(tmp_path / "t.trace")
    assert error.field == field
    assert rule in error.rule


def test_no_request_and_one_identifier_twice(tmp_path):
    with pytest.raises(TraceFormatError, match="must name at least one request"):
        write(tmp_path / "t.trace")
    with pytest.raises(TraceFormatError, match="id: must be unique, got 'a'"):
        write(tmp_path / "t.trace", a_request(), a_request())


def test_the_first_of_several_breaches_is_named(tmp_path):
    bad = replace(a_request(), request_id="b", rounds={"d": a_round(accepted=ints(-1, 3, -2))})
    with pytest.raises(TraceFormatError, match=r"accepted: must be >= 0 \(request 'b', drafter 'd', round 0\), got -1"):
        write(
            tmp_path / "t.trace",
            a_request(),
            bad,
            a_request(request_id="c", rounds={"d": a_round(accepted=ints(-5, 0, 0))}),
        )
