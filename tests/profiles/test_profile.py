"""A profile comes back as it was written, and a file that is none is refused in one line."""

from dataclasses import replace
from datetime import datetime
from os import utime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from paceline.base.files import FOLDER_VARIABLE
from paceline.traces.errors import TraceFormatError
from paceline.traces.profile import AfterAway, profiles_here, read_profile, write_profile

from .profiles import made_member, made_profile


def test_a_profile_comes_back(tmp_path):
    path = tmp_path / "new" / "a.profile"
    write_profile(made_profile(), path)
    assert read_profile(path) == made_profile()
    assert list(path.parent.iterdir()) == [path]


def changed(path, change):
    write_profile(made_profile(), path)
    pq.write_table(change(pq.read_table(path)), path)


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
    changed(path, change)
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


def test_when_it_was_measured_says_in_which_time_zone(tmp_path):
    """Else nobody knows how old it is, or which of two is newer."""
    path = tmp_path / "a.profile"
    meta = made_profile().meta.model_copy(update={"measured_at": datetime(2026, 5, 1)})
    write_profile(replace(made_profile(), meta=meta), path)
    with pytest.raises(TraceFormatError, match="measured_at"):
        read_profile(path)


def test_no_parquet_and_no_file(tmp_path):
    path = tmp_path / "a.profile"
    with pytest.raises(TraceFormatError, match="must be a file, got 'nothing there'"):
        read_profile(path)
    path.write_text("seconds")
    with pytest.raises(TraceFormatError, match="must be a Parquet file"):
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
