"""What is read in memory is what a written recording holds; nothing is left behind by an import that fails."""

import numpy as np
import pytest
from paceline.traces import TraceFormatError
from paceline.traces.importers import ImportOptions, format_names, import_recording, read_recording
from paceline.traces.rounds.store import read_rounds

from .foreign_files import STATED, one_file_each, positions, write_lines


@pytest.fixture(params=format_names())
def files(request, tmp_path):
    return request.param, one_file_each(tmp_path)[request.param]


def same(one, other):
    return one is other is None or np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def test_written_and_read_again(files, tmp_path):
    name, paths = files
    options = ImportOptions(**STATED.get(name, {}))
    wanted = read_recording(name, paths, options)
    meta = import_recording(name, paths, tmp_path / "t.trace", options)
    found = read_rounds(tmp_path / "t.trace")
    assert found.meta == wanted.meta == meta
    assert len(found.requests) == len(wanted.requests)
    for one, other in zip(found.requests, wanted.requests, strict=True):
        for field in ("request_id", "tag", "prompt_tokens", "prompt", "output"):
            assert getattr(one, field) == getattr(other, field)
        for field in ("num_tokens", "wall_s", "prefill_s"):
            assert dict(getattr(one, field)) == dict(getattr(other, field))
        for drafter, rounds in other.rounds.items():
            if not len(rounds.start):
                continue
            for column in ("start", "accepted", "drafted", "draft_s", "verify_s", "placed"):
                assert same(getattr(one.rounds[drafter], column), getattr(rounds, column))


def test_a_failed_import_leaves_nothing(tmp_path):
    (tmp_path / "out").mkdir()
    lines = [positions(str(number), draft=[1, 2, 1]) for number in range(50)]
    path = write_lines(tmp_path / "x.jsonl", *lines, positions("0", draft=[1]))
    with pytest.raises(TraceFormatError, match="line 51: id: must be unique, got '0'"):
        import_recording("positions", [path], tmp_path / "out" / "t.trace")
    assert list((tmp_path / "out").iterdir()) == []


def test_requests_pass_by_one_at_a_time(tmp_path):
    seen = []

    def watch(requests):
        for request in requests:
            seen.append(request.request_id)
            yield request

    path = write_lines(tmp_path / "x.jsonl", positions("a", draft=[1]), positions("b", draft=[2, 1]))
    import_recording("positions", [path], tmp_path / "t.trace", watch=watch)
    assert seen == ["a", "b"]
