"""A profile comes back as it was written, or is refused; it says what a forward takes, alone and in decoding; fits."""

import json
from dataclasses import replace
from datetime import datetime
from math import inf
from os import utime
from random import Random
from statistics import fmean

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.files import FOLDER_VARIABLE
from paceline.decoding.results import DRAFT
from paceline.runtime.profiling.forwards import fit_smooth, reload_of
from paceline.runtime.profiling.probe import ProbedOp, fit_beside
from paceline.traces.errors import TraceFormatError
from paceline.traces.profile import (
    AfterAway,
    BatchShape,
    DecideSeconds,
    ForwardsInDecoding,
    InDecoding,
    Longer,
    MeasuredForward,
    ProfiledForwards,
    Reload,
    UnevenRows,
    WeightsRead,
    mean_to_decide,
    profiles_here,
    read_profile,
    write_profile,
)
from pydantic import ValidationError

from ..traces.making import with_cell
from .profiles import ADAPTIVE, CHAIN, CONTEXTS, NEW_TOKENS, NO_RELOAD, ROWS, made_member, made_profile, seconds_of

PROFILE = made_profile()


def table_of(batches, seconds):
    return {"batches": batches, "seconds": seconds}


def test_a_profile_comes_back(tmp_path):
    path = tmp_path / "new" / "a.profile"
    write_profile(made_profile(), path)
    assert read_profile(path) == made_profile()
    assert list(path.parent.iterdir()) == [path]


def header_of(table, **changes):
    header = json.loads(table.schema.metadata[b"paceline"]) | changes
    return table.replace_schema_metadata({"paceline": json.dumps(header)})


def test_a_file_of_version_1_has_the_seconds_of_one_request_for_any_number(tmp_path):
    path = tmp_path / "a.profile"
    write_profile(made_profile(), path)
    pq.write_table(header_of(pq.read_table(path), version=1, decide_s={"Chain": 1e-5, "Adaptive": 3e-5}), path)
    found = read_profile(path)
    assert found.meta.decide_s == {"Chain": CHAIN, "Adaptive": DecideSeconds.of_step(3e-5)}
    assert found == made_profile(decide_s=found.meta.decide_s)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 3}, "version: Input should be 2, got 3"),
        ({"version": True}, "version: Value error, must be a whole number, got True"),
        ({"version": 1}, "decide_s.Chain.seconds.0: Input should be a valid number"),
        ({"version": 1, "decide_s": {"Chain": -1.0}}, "decide_s.Chain.seconds.0: Input should be greater than or"),
        ({"decide_s": {}}, "decide_s: Dictionary should have at least 1 item"),
        ({"decide_s": {"Chain": 1e-5}}, "decide_s.Chain: Input should be an object, got 1e-05"),
        ({"decide_s": {"Chain": table_of((2, 4), (1.0, 2.0))}}, "decide_s.Chain: Value error, batches must begin with"),
        ({"decide_s": {"Chain": table_of((1, 4, 4), (1.0, 2.0, 3.0))}}, "decide_s.Chain: Value error, batches must"),
        ({"decide_s": {"Chain": table_of((1, 4), (1.0,))}}, "decide_s.Chain: Value error, must have seconds for each"),
        ({"decide_s": {"Chain": table_of((1, 2.5), (1.0, 2.0))}}, "decide_s.Chain.batches.1: Input should be a valid"),
        ({"decide_s": {"Chain": table_of((1, 4), (1.0, -2.0))}}, "decide_s.Chain.seconds.1: Input should be greater"),
    ],
)
def test_seconds_to_decide_that_break_the_format(tmp_path, changes, says):
    path = tmp_path / "a.profile"
    write_profile(made_profile(), path)
    pq.write_table(header_of(pq.read_table(path), **changes), path)
    with pytest.raises(TraceFormatError) as caught:
        read_profile(path)
    assert str(caught.value).startswith(f"{path}: {says}")


BATCHES = st.sets(st.integers(2, 64), max_size=4).map(lambda more: (1, *sorted(more)))


@given(BATCHES, st.floats(0, 1), st.floats(0, 1), st.integers(1, 200))
def test_a_part_for_the_step_and_a_part_for_the_request_come_out_between_batches(batches, once, each, num_running):
    table = DecideSeconds(batches=batches, seconds=tuple(once + each * batch for batch in batches))
    most = min(num_running, batches[-1])  # beyond, a step of all of them grows in proportion
    assert table.each_s(num_running) == pytest.approx(once / most + each)
    assert table.is_free == (once + each == 0)


@given(st.floats(0, 1), st.integers(1, 200))
def test_what_is_constant_is_so_to_the_bit(seconds, num_running):
    assert DecideSeconds.of_step(seconds).each_s(num_running) == seconds
    assert DecideSeconds.of_step(seconds).is_constant


@given(st.integers(1, 9))
def test_the_mean_is_that_of_each_batch(num_running):
    expected = (CHAIN.each_s(num_running) + ADAPTIVE.each_s(num_running)) / 2
    assert mean_to_decide([CHAIN, ADAPTIVE]).each_s(num_running) == pytest.approx(expected)


def first_row(name, value):
    return lambda table: with_cell(table, name, 0, value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table.replace_schema_metadata({}), "profile: must have the header of a profile, got 'none'"),
        (lambda table: table.drop(["spread"]), "columns: must be member, rows"),
        (lambda table: table.replace_schema_metadata({"paceline": b'{"threads": 0}'}), "pool: Field required"),
        (first_row("member", "slim"), "member: must be one of draft, target, got 'slim'"),
        (first_row("rows", 0), "shape: must have rows, tokens and seconds that can be"),
        (first_row("seconds", float("nan")), "shape: must have rows, tokens and seconds that can be"),
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


FIRST, LATER = (1, 0.0), (1, 0.001)


@pytest.mark.parametrize(
    "cells", [[], [FIRST], [LATER, (1, 0.002)], [FIRST, LATER, (2, 0.0)], [FIRST, LATER, LATER, (2, 0.0)]]
)
def test_forwards_after_times_away_are_a_whole_table(cells):
    """A number of new tokens without one right after another, or without some time away, says nothing of reloads."""
    made = [AfterAway(new_tokens=count, away_s=away_s, seconds=1e-3, spread=0.0) for count, away_s in cells]
    with pytest.raises(ValueError, match="right after another and after each time away"):
        made_member("draft", after_away=made)


def test_files_that_are_no_profile(tmp_path):
    path = tmp_path / "a.profile"
    with pytest.raises(TraceFormatError, match=r"must be a file, got '.*a\.profile'"):
        read_profile(path)
    path.write_text("seconds")
    with pytest.raises(TraceFormatError, match="must be a Parquet file"):
        read_profile(path)
    # Without a time zone nobody knows how old it is, or which of two is newer.
    meta = made_profile().meta.model_copy(update={"measured_at": datetime(2026, 5, 1)})
    write_profile(replace(made_profile(), meta=meta), path)
    with pytest.raises(TraceFormatError, match="measured_at"):
        read_profile(path)


def test_profiles_of_this_machine_are_found_newest_first_and_what_cannot_be_read_by_when_it_was_written(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert list(profiles_here("a processor")) == []
    folder = tmp_path / "profiles"
    older, newer = made_profile(), made_profile(measured_at="2026-02-01T00:00:00Z")
    for name, profile in (("b", older), ("a", newer), ("c", made_profile(processor="another"))):
        write_profile(profile, folder / f"{name}.profile")
    found = [(path.name, said) for path, said in profiles_here("a processor")]
    assert found == [("a.profile", newer.meta), ("b.profile", older.meta)]
    (folder / "d.profile").write_text("none")
    for then, names in ((0, "abd"), (2e9, "dab")):
        utime(folder / "d.profile", (then, then))
        found = dict(profiles_here("a processor"))
        assert "".join(path.stem for path in found) == names
        assert str(found[folder / "d.profile"]).startswith(f"{folder / 'd.profile'}: profile: must be a Parquet file")


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


def test_beyond_the_shapes_the_smooth_model_answers_or_nobody():
    for rows, new_tokens, context in ((5, 5, 0), (1, 10, 0), (1, 1, 201), (3, 30, 0), (3, 3, 3 * 201)):
        found = alone()
        assert found.measured(rows, new_tokens, context) is None
        assert found.seconds(rows, new_tokens, context) == 7.0
        assert found.beyond
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


def test_reloads_are_linear_between_what_was_measured_and_constant_beyond():
    found = forwards(reload=RELOAD)
    for new_tokens, away, longer_s in (
        (1, [0.0, 0.5, 1.0, 2.0, inf], [0.0, 0.05, 0.1, 0.2, 0.3]),
        (3, [1.0], [0.3]),
        (5, [9.0], [0.7]),
        (99, [3.0], [0.7]),
    ):
        assert [found.reload_s(new_tokens, away_s) for away_s in away] == pytest.approx(longer_s)
    # Parts of the weights are away for as long as they are.
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


def test_shared_weights_were_read_by_whoever_came_last():
    assert WeightsRead({}).away("draft", 5.0) == [(1.0, inf)]  # what was never read
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


SECONDS = st.floats(1e-6, 1e-2)


def op(num_rows, num_tokens, beside_s):
    return ProbedOp(DRAFT, 0, num_rows, num_tokens, (), beside_s, 1, 0.0, num_rows, stops=False)


@given(per_op=SECONDS, per_row=SECONDS, per_token=SECONDS)
def test_what_operations_cost_comes_out(per_op, per_row, per_token):
    ops = [
        op(rows, rows * tokens, per_op + rows * per_row + rows * tokens * per_token)
        for rows in (1, 2, 6, 12)
        for tokens in (1, 2, 4)
    ]
    found = fit_beside(ops)
    for one in ops:
        assert found.seconds(0, one.num_rows, one.num_tokens) == pytest.approx(one.beside_s, rel=1e-6)
    # One that was interrupted is left out.
    ops = [op(rows, rows, 1e-3 * rows) for rows in (1, 2, 4) for _ in range(9)]
    assert fit_beside([*ops, op(1, 1, 1.0)]).seconds(0, 1, 1) == pytest.approx(1e-3)


@given(terms=st.tuples(*[st.floats(1e-9, 1e-5)] * 4), once=st.floats(1e-5, 1e-3))
def test_a_forward_shaped_like_the_model_is_fitted(terms, once):
    per_row, per_new, per_context, per_pair = terms
    shapes = [
        MeasuredForward(
            "m", rows, new, held, once + rows * (per_row + per_new * new + (per_context + per_pair * new) * held), 0.0
        )
        for rows in (1, 3, 8) for new in (1, 4, 20) for held in (0, 50, 300)
    ]  # fmt: skip
    found = fit_smooth(shapes)
    assert found.held_out_error < 1e-4
    for shape in shapes:
        new_tokens, held = shape.rows * shape.new_tokens, shape.rows * shape.context_tokens
        assert found.seconds(shape.rows, new_tokens, held) == pytest.approx(shape.seconds, rel=1e-4)


def test_of_too_few_shapes_to_leave_any_out_no_error_is_known():
    for num_shapes in (1, 3, 4):
        shapes = [MeasuredForward("m", 1, new, 10, 1e-3 + 1e-4 * new, 0.0) for new in range(1, num_shapes + 1)]
        assert (fit_smooth(shapes).held_out_error is not None) == (num_shapes == 4)


SECONDS_AWAY = st.lists(st.floats(1e-5, 1e-2), min_size=3, max_size=3)


@given(lines=st.lists(SECONDS_AWAY, min_size=1, max_size=4))
def test_weights_that_were_away_for_longer_come_back_no_sooner(lines):
    cells = [
        AfterAway(new_tokens=1 + place, away_s=away_s, seconds=seconds, spread=0.0)
        for place, line in enumerate(lines)
        for away_s, seconds in zip((0.0, 1e-3, 4e-3), line, strict=True)
    ]
    found = reload_of(cells)
    assert (found.new_tokens, found.away_s) == (tuple(range(1, len(lines) + 1)), (1e-3, 4e-3))
    for (at_once, soon, late), (first, last) in zip(lines, found.longer_s, strict=True):
        assert 0.0 <= first <= last
        if at_once <= soon <= late:
            assert (first, last) == pytest.approx((soon - at_once, late - at_once), abs=1e-15)
        if at_once >= soon >= late:
            assert last == 0.0


def test_noise_is_hardly_taken_for_a_reload():
    drawn, times = Random(0), (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.02)
    lines = [[drawn.gauss(1.0, 0.1) for _ in times] for _ in range(200)]
    found, running_maximum = [], []
    for line in lines:
        cells = [
            AfterAway(new_tokens=5, away_s=away, seconds=one, spread=0.0) for away, one in zip(times, line, strict=True)
        ]
        found.append(reload_of(cells).longer_s[0][2])
        running_maximum.append(max(line[:4]) - line[0])
    assert fmean(found) < 0.6 * fmean(running_maximum)
