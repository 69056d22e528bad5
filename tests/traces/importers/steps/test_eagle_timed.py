import pytest

from ..foreign_files import timed_answer, timing, write_lines

FIRST, SECOND = [[6, 0, 2], [3]], [[1, 1]]


@pytest.fixture
def two(tmp_path):
    """Two methods over the same two questions, the first of two turns: timings and answers, in any order."""
    return [
        write_lines(tmp_path / "toy_ea_hsd.jsonl", timed_answer(1, *FIRST), timed_answer(2, *SECOND)),
        write_lines(tmp_path / "toy_ea_info.jsonl", timing([5, 1], [3]), timing([0, 2])),
        write_lines(tmp_path / "toy_ea_hsd_info.jsonl", timing(*FIRST, second=0.02), timing(*SECOND)),
        write_lines(tmp_path / "toy_ea.jsonl", timed_answer(1, [5, 1], [3]), timed_answer(2, [0, 2])),
    ]


def test_steps_and_their_seconds(read, two):
    trace = read("eagle-timed", *two)
    assert [(d.name, d.window, d.by_start) for d in trace.meta.drafters] == [("eagle", 6, True), ("hsd", 6, True)]
    assert [request.request_id for request in trace.requests] == ["1/1", "1/2", "2/1"]
    first = trace.requests[0]
    assert first.num_tokens == {"eagle": 8, "hsd": 11}
    assert first.wall_s == {"eagle": pytest.approx(0.2), "hsd": pytest.approx(0.6)}
    assert first.prefill_s["hsd"] == pytest.approx(0.02 * 1.011)
    rounds = first.rounds["hsd"]
    assert rounds.start.tolist() == [1, 8, 9]  # after the prefill's token
    assert rounds.accepted.tolist() == [6, 0, 2]
    assert rounds.drafted.tolist() == [6, 6, 6]
    assert rounds.censored(6).tolist() == [True, False, False]
    assert rounds.draft_s == pytest.approx([0.01] * 3)
    assert rounds.verify_s == pytest.approx([0.022, 0.024, 0.026])


def test_the_root_of_the_tree_is_no_draft(read, tmp_path):
    files = [
        write_lines(tmp_path / "x_info.jsonl", timing([2, 0], depth=3)),
        write_lines(tmp_path / "x.jsonl", timed_answer(1, [2, 0])),
    ]
    trace = read("eagle-timed", *files, names={"x.jsonl": "tree"})
    assert trace.meta.drafters[0].model_dump(exclude_none=True) == {
        "name": "tree",
        "by_start": True,
        "window": 2,
        "prefilled": True,
    }
    assert trace.requests[0].rounds["tree"].drafted.tolist() == [2, 2]


def test_names_by_either_file(read, two):
    named = read("eagle-timed", *two, names={"toy_ea_info.jsonl": "one", "toy_ea_hsd.jsonl": "two"})
    assert [drafter.name for drafter in named.meta.drafters] == ["one", "two"]


def test_files_that_belong_to_no_pair(refusal, two, tmp_path):
    assert "accept_length: must fit one answer file" in refusal("eagle-timed", two[1])
    assert "accept_length: must be in one of the files" in refusal("eagle-timed", two[0])
    spare = write_lines(tmp_path / "spare.jsonl", timed_answer(1, [9]))
    assert "spare.jsonl: file: must be an answer file that a file of timings fits" in refusal(
        "eagle-timed", *two, spare
    )
    assert "(`names` FILE=NAME)" in refusal("eagle-timed", *two, names={"hsd": "one", "eagle": "one"})


def broken(change):
    line = timing([6, 0, 2])
    change(line)
    return line


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            broken(lambda line: line["accept_length"][0].__setitem__(0, 7)),
            "accept_length.0[0]: must be below draft_length, 7",
        ),
        (
            broken(lambda line: line["accept_length"][0].__setitem__(0, -1)),
            "accept_length.0[0]: must be a whole number",
        ),
        (broken(lambda line: line["tree_time"][0].pop()), "tree_time.0: must hold 3 steps, got '2 steps'"),
        (broken(lambda line: line["tree_time"].pop()), "tree_time: must hold 1 turns"),
        (broken(lambda line: line["update_time"][0].__setitem__(1, 0.0)), "update_time.0[1]: must be seconds"),
        (timing(), "accept_length: must hold a turn, got 'none'"),
        (broken(lambda line: line.pop("eval_time")), "eval_time: must be there"),
        (
            broken(lambda line: line["generate_time"].__setitem__(0, 1e999)),
            "generate_time.0: must be seconds in [1e-12, 1e+09], got inf",
        ),
    ],
)
def test_timings_that_do_not_fit(refusal, tmp_path, line, told):
    info = write_lines(tmp_path / "x_info.jsonl", timing([1]), line)
    answers = write_lines(tmp_path / "x.jsonl", timed_answer(1, [1]), timed_answer(2, [6, 0, 2]))
    found = refusal("eagle-timed", answers, info)
    assert "x_info.jsonl: line 2: " in found
    assert told in found
