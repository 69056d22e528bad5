"""A profile comes back as it was written, or is refused, and says what a forward takes, alone and in decoding."""

from dataclasses import replace
from datetime import datetime
from math import inf
from os import utime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.files import FOLDER_VARIABLE
from paceline.traces.errors import TraceFormatError
from paceline.traces.profile import (
    AfterAway,
    BatchShape,
    ForwardsInDecoding,
    InDecoding,
    Longer,
    ProfiledForwards,
    Reload,
    UnevenRows,
    WeightsRead,
    profiles_here,
    read_profile,
    write_profile,
)
from pydantic import ValidationError

from .profiles import CONTEXTS, NEW_TOKENS, NO_RELOAD, ROWS, made_member, made_profile, seconds_of

PROFILE = made_profile()


def test_a_profile_comes_back(tmp_path):
    path = tmp_path / "new" / "a.profile"
    write_profile(made_profile(), path)
    assert read_profile(path) == made_profile()
    assert list(path.parent.iterdir()) == [path]


def first_row(**values):
    def change(table):
        rows = table.to_pylist()
        rows[0] |= values
        return pa.Table.from_pylist(rows, schema=table.schema)

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table.replace_schema_metadata({}), "profile: must have the header of a profile, got 'none'"),
        (lambda table: table.drop(["spread"]), "columns: must be member, rows"),
        (lambda table: table.replace_schema_metadata({"paceline": b'{"threads": 0}'}), "pool: Field required"),
        (first_row(member="slim"), "member: must be one of draft, target, got 'slim'"),
        (first_row(rows=0), "shape: must have rows, tokens and seconds that can be"),
        (first_row(seconds=float("nan")), "shape: must have rows, tokens and seconds that can be"),
        (lambda table: pa.concat_tables([table, table.slice(0, 1)]), "shape: must be there once"),
        (lambda table: table.slice(len(table) // 2), "member: must have measured shapes, got 'draft'"),
    ],
)
def test_a_file_that_breaks_the_format(tmp_path, change, says):
    path = tmp_path / "a.profile"
    write_profile(made_profile(), path)
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(TraceFormatError) as caught:
        read_profile(path)
    assert str(caught.value).startswith(f"{path}: {says}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "cells",
    [
        [],
        [(1, 0.0)],
        [(1, 0.001), (1, 0.002)],
        [(1, 0.0), (1, 0.001), (2, 0.0)],
        [(1, 0.0), (1, 0.001), (1, 0.001), (2, 0.0)],
    ],
)
def test_forwards_after_times_away_are_a_whole_table(cells):
    """A number of new tokens without one right after another, or without some time away, says nothing of reloads."""
    made = [AfterAway(new_tokens=count, away_s=away_s, seconds=1e-3, spread=0.0) for count, away_s in cells]
    with pytest.raises(ValueError, match="right after another and after each time away"):
        made_member("draft", after_away=made)


def test_files_that_are_no_profile(tmp_path):
    path = tmp_path / "a.profile"
    with pytest.raises(TraceFormatError, match="must be a file, got 'nothing there'"):
        read_profile(path)
    path.write_text("seconds")
    with pytest.raises(TraceFormatError, match="must be a Parquet file"):
        read_profile(path)
    # Without a time zone nobody knows how old it is, or which of two is newer.
    meta = made_profile().meta.model_copy(update={"measured_at": datetime(2026, 5, 1)})
    write_profile(replace(made_profile(), meta=meta), path)
    with pytest.raises(TraceFormatError, match="measured_at"):
        read_profile(path)


def test_profiles_of_this_machine_are_found_newest_first(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert list(profiles_here("a processor")) == []
    folder = tmp_path / "profiles"
    older, newer = made_profile(), made_profile(measured_at="2026-02-01T00:00:00Z")
    write_profile(older, folder / "b.profile")
    write_profile(newer, folder / "a.profile")
    write_profile(made_profile(processor="another"), folder / "c.profile")
    assert [(path.name, said) for path, said in profiles_here("a processor")] == [
        ("a.profile", newer.meta),
        ("b.profile", older.meta),
    ]


def test_a_file_that_cannot_be_read_says_why_in_its_place_by_when_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    folder = tmp_path / "profiles"
    write_profile(made_profile(), folder / "a.profile")
    (folder / "b.profile").write_text("none")
    for then, names in ((0, ["a.profile", "b.profile"]), (2e9, ["b.profile", "a.profile"])):
        utime(folder / "b.profile", (then, then))
        found = dict(profiles_here("a processor"))
        assert [path.name for path in found] == names
        assert str(found[folder / "b.profile"]).startswith(f"{folder / 'b.profile'}: profile: must be a Parquet file")


# Between measured shapes, and beyond them.


def alone():
    return ProfiledForwards(PROFILE.of("draft"), PROFILE.meta.members[0].smooth)


@given(
    rows=st.integers(1, ROWS[-1]),
    each=st.integers(1, NEW_TOKENS[-1]),
    context=st.integers(0, CONTEXTS[-1]),
)
def test_between_shapes_it_is_linear(rows, each, context):
    found = alone()
    seconds = found.seconds(rows, rows * each, rows * context)
    assert seconds == pytest.approx(seconds_of(rows, each, context))
    assert not found.beyond


def test_fewer_rows_than_were_measured_are_beyond_too():
    found = ProfiledForwards([shape for shape in PROFILE.of("draft") if shape.rows == 4], None)
    assert found.measured(1, 3, 50) is None
    assert found.measured(4, 12, 200) == pytest.approx(seconds_of(4, 3, 50))


@pytest.mark.parametrize(
    ("rows", "new_tokens", "context"), [(5, 5, 0), (1, 10, 0), (1, 1, 201), (3, 30, 0), (3, 3, 3 * 201)]
)
def test_beyond_the_shapes_the_smooth_model_answers(rows, new_tokens, context):
    found = alone()
    assert found.measured(rows, new_tokens, context) is None
    assert found.seconds(rows, new_tokens, context) == 7.0
    assert found.beyond


def test_without_a_smooth_model_there_is_no_answer():
    with pytest.raises(ValueError, match="no shape near 9 rows of 9 tokens after 0 was measured"):
        ProfiledForwards(PROFILE.of("draft"), None).seconds(9, 9, 0)


# Among the forwards of others.

SHAPE = BatchShape(2, 6, 3, 53)
RELOAD = Reload(new_tokens=(1, 5), away_s=(1.0, 3.0), longer_s=((0.1, 0.3), (0.5, 0.7)))


def forwards(*, uneven=None, reload=NO_RELOAD, in_decoding=None):
    return ForwardsInDecoding(alone(), uneven or UnevenRows(), reload, in_decoding or InDecoding())


@given(rows=st.integers(1, 4), each=st.integers(1, 9), held=st.integers(0, 100))
def test_even_rows_cost_what_was_measured(rows, each, held):
    shape = BatchShape(rows, rows * each, each, held + each)
    assert shape.padding == 0
    assert forwards().seconds(shape, first=True) == pytest.approx(seconds_of(rows, each, held))


def test_padding_and_rows_apart_cost_extra():
    uneven = UnevenRows(per_padding_s=1.0, per_padding_pair_s=0.1, apart_s=100.0, per_gathered_slot_s=10.0)
    assert uneven.seconds(BatchShape(2, 6, 3, 50)) == 0
    assert uneven.seconds(BatchShape(2, 4, 3, 50)) == pytest.approx(2 * (1.0 + 0.1 * 50))
    assert uneven.seconds(BatchShape(2, 6, 3, 50, apart=True)) == 100.0 + 10.0 * 2 * 50
    shape = BatchShape(2, 4, 3, 50)
    assert forwards(uneven=uneven).seconds(shape, first=True) == pytest.approx(
        seconds_of(2, 2, 48) + uneven.seconds(shape)
    )


@pytest.mark.parametrize(
    ("new_tokens", "away_s", "longer_s"),
    [
        (1, 0.0, 0.0),
        (1, 0.5, 0.05),
        (1, 1.0, 0.1),
        (1, 2.0, 0.2),
        (1, float("inf"), 0.3),
        (3, 1.0, 0.3),
        (5, 9.0, 0.7),
        (99, 3.0, 0.7),
    ],
)
def test_reloads_are_linear_between_what_was_measured_and_constant_beyond(new_tokens, away_s, longer_s):
    assert forwards(reload=RELOAD).reload_s(new_tokens, away_s) == pytest.approx(longer_s)


def test_parts_of_the_weights_are_away_for_as_long_as_they_are():
    found = forwards(reload=RELOAD)
    assert found.reloads_s(1, [(0.25, 1.0), (0.75, 3.0)]) == pytest.approx(0.25 * 0.1 + 0.75 * 0.3)


def test_what_was_seen_in_decoding_is_added_and_never_more_than_half_taken_off():
    first = Longer(new_tokens=(2, 6, 10), longer_s=(1e-4, 5e-4, -1e-4))
    found, shape = forwards(in_decoding=InDecoding(first=first, later=Longer(new_tokens=(1,), longer_s=(-1.0,)))), SHAPE
    alone_s = seconds_of(2, 3, 50)
    assert found.seconds(shape, first=True) == pytest.approx(alone_s + 5e-4)
    assert found.seconds(shape, first=False) == pytest.approx(alone_s / 2)
    prompt = BatchShape(1, 40, 40, 40)
    assert found.seconds(prompt, first=True) == forwards().seconds(prompt, first=True)
    assert [first.seconds(BatchShape(1, count, count, 50)) for count in (1, 2, 4, 8, 10, 20)] == pytest.approx(
        [1e-4, 1e-4, 3e-4, 2e-4, -1e-4, -1e-4]
    )


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (Longer(), {"new_tokens": (1, 1), "longer_s": (0, 0)}),
        (Longer(), {"new_tokens": (1,)}),
        (Longer(), {"new_tokens": (1,), "longer_s": (inf,)}),
        (RELOAD, {"longer_s": ((0.1, 0.3),)}),
        (RELOAD, {"longer_s": ((0.1,), (0.5,))}),
        (RELOAD, {"away_s": (3.0, 1.0)}),
        (RELOAD, {"new_tokens": (0, 5)}),
        (RELOAD, {"longer_s": ((0.1, -0.3), (0.5, 0.7))}),
    ],
)
def test_what_cannot_have_been_seen(record, changes):
    with pytest.raises(ValidationError):
        type(record)(**(record.model_dump() | changes))


# When weights were read last.

SHARES = {"target": {"slim": 0.6, "slimmer": 0.4}, "slim": {"target": 1.0}, "slimmer": {"target": 1.0}}


def test_what_was_never_read_is_away_for_ever():
    assert WeightsRead({}).away("draft", 5.0) == [(1.0, inf)]


def test_shared_weights_were_read_by_whoever_came_last():
    read = WeightsRead(SHARES)
    read.note("target", 1.0)
    read.note("slim", 4.0)
    assert read.away("target", 6.0) == [(0.6, 2.0), (pytest.approx(0.4), 5.0)]
    assert read.away("slim", 6.0) == [(1.0, 2.0)]
    read.note("slimmer", 5.0)
    assert read.away("target", 6.0) == [(0.4, 1.0), (pytest.approx(0.2), 2.0), (pytest.approx(0.4), 5.0)]
    read.note("target", 5.5)
    assert read.away("target", 6.0) == [(1.0, 0.5)]
    assert read.away("slim", 6.0) == [(1.0, 0.5), (0.0, 2.0)]


@given(st.lists(st.sampled_from(["target", "slim", "slimmer", "draft"])))
def test_shares_come_to_one(order):
    read = WeightsRead(SHARES)
    for now_s, member in enumerate(order):
        read.note(member, float(now_s))
    for member in ("target", "slim", "slimmer", "draft"):
        assert sum(share for share, _ in read.away(member, 100.0)) == pytest.approx(1.0)
