"""Lines that are skipped: whole, and blamed on their own file."""

import pytest

from .foreign_files import plain_response, response, sglang, write_lines

BAD = {"id": "bad", "metrics": {}}
CUT = sglang("bad", 5, 4, histogram=[1, 1, 1, 2])  # drawn, and then found to emit more than the answer has


def test_the_file_without_a_sound_line_is_blamed(refusal, tmp_path):
    fine = write_lines(tmp_path / "fine.jsonl", response("a", [1], [2]), BAD, response("b", [1], [2]))
    bad = write_lines(tmp_path / "bad.jsonl", BAD, BAD)
    for files in ((fine, bad), (bad, fine)):
        told = refusal("vllm-detailed", *files, skip_bad_lines=True)
        assert told.startswith(f"{bad}: line 1: speculative_decoding: ")
        assert "(all lines are bad)" in told


def test_the_first_bad_line_of_several_files_is_told(read, tmp_path):
    files = [
        write_lines(
            tmp_path / f"{name}.jsonl",
            response(name, [1], [2]),
            BAD,
            BAD if name == "b" else response(f"{name}2", [1], [2]),
        )
        for name in ("a", "b")
    ]
    notes = read("vllm-detailed", *files, skip_bad_lines=True).meta.notes
    assert notes[-1].startswith(f"3 bad lines were skipped (--skip-bad-lines); the first: {files[0]}: line 2: ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seed": 3}, "`seed` must be left out: nothing of this log is drawn"),
        ({"names": {"drafter": "mine"}}, "`names` must name a file or a method of the files"),
        ({"windows": {"drafter": 3}}, "`windows` must name a drafter of none"),
    ],
)
def test_a_skipped_line_leaves_nothing_that_an_option_could_mean(read, tmp_path, options, told):
    path = write_lines(tmp_path / "x.jsonl", CUT, sglang("plain", 0, 5))
    with pytest.raises(ValueError, match=told):
        read("sglang-meta", path, skip_bad_lines=True, **options)


def test_a_skipped_line_leaves_no_drafter_and_its_name_free(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", CUT, sglang("bad", 0, 5))
    trace = read("sglang-meta", path, skip_bad_lines=True)
    assert trace.meta.drafters == ()
    assert [request.request_id for request in trace.requests] == ["bad"]
    path = write_lines(tmp_path / "y.jsonl", plain_response("p"), response("a", [3], [2]), response("a", [1], [2]))
    assert len(read("vllm-detailed", path, skip_bad_lines=True).requests) == 2
