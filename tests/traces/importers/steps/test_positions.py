import pytest

from ..foreign_files import positions, write_lines


def test_every_position_is_a_round(read, tmp_path):
    path = write_lines(
        tmp_path / "x.jsonl", positions("a", draft=[3, 1, 2, 1], tree=[4, 3, 2, 1]), positions("b", tree=[1, 1])
    )
    trace = read("positions", path)
    assert [(d.name, d.by_start, d.window) for d in trace.meta.drafters] == [("draft", True, 2), ("tree", True, 3)]
    first, second = trace.requests
    assert (first.request_id, first.tag, first.prompt_tokens, first.num_tokens) == ("a", "code", 3, {"": 4})
    assert first.rounds["draft"].start.tolist() == [0, 1, 2, 3]
    assert first.rounds["draft"].accepted.tolist() == [2, 0, 1, 0]
    assert first.rounds["draft"].drafted.tolist() == [-1] * 4
    assert set(second.rounds) == {"tree"}


def test_token_ids(read, tmp_path):
    line = {"id": 5, "prompt_token_ids": [7, 8], "output_token_ids": [1, 2], "drafters": {"draft": [2, 1]}}
    request = read("positions", write_lines(tmp_path / "x.jsonl", line)).requests[0]
    assert (request.request_id, request.tag, request.prompt, request.output) == ("5", "", (7, 8), (1, 2))
    assert request.prompt_tokens == 2


def test_windows(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", positions("a", draft=[3, 1, 1, 1]))
    rounds = read("positions", path, windows={"draft": 4}).requests[0].rounds["draft"]
    assert rounds.drafted.tolist() == [4] * 4
    assert read("positions", path, names={"draft": "small"}).meta.drafters[0].name == "small"


def test_a_round_beyond_the_end_is_cut_and_said(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", positions("a", draft=[2, 4, 2]))
    trace = read("positions", path)
    rounds = trace.requests[0].rounds["draft"]
    assert rounds.accepted.tolist() == [1, 2, 1]
    assert rounds.drafted.tolist() == [-1, 2, -1]
    assert trace.meta.notes[-1].startswith("1 rounds reached beyond the end")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            positions("a", draft=[1, 2], tree=[1]),
            "drafters.tree: must hold one entry per output position, 2, got '1 entries'",
        ),
        (positions("a", draft=[]), "drafters.draft: must hold one entry per output position, 1, got '0 entries'"),
        (positions("a"), "drafters: must name a drafter"),
        (positions("a", draft=[1, 0]), "drafters.draft[1]: must be a whole number in [1, 2147483647], got 0"),
        (positions("a", draft=[1, None]), "drafters.draft[1]: must be a whole number"),
        (
            {**positions("a", draft=[1]), "output_token_ids": [1, 2]},
            "drafters.draft: must hold one entry per output position, 2",
        ),
        (
            {**positions("a", draft=[1]), "prompt_token_ids": [1, 2]},
            "prompt_tokens: must be the number of prompt_token_ids, 2",
        ),
        ({**positions("a", draft=[1]), "output_token_ids": [-1]}, "output_token_ids[0]: must be a whole number in [0,"),
        ({"id": "a", "drafters": [1]}, "drafters: must be an object, got 'a list of 1'"),
        (positions("a", **{"a:b": [1]}), "drafters: must have names that match"),
        (positions("first", draft=[1]), "id: must be unique, got 'first'"),
    ],
)
def test_what_does_not_fit_is_refused(refusal, tmp_path, line, told):
    path = write_lines(tmp_path / "x.jsonl", positions("first", draft=[1]), line)
    found = refusal("positions", path)
    assert "x.jsonl: line 2: " in found
    assert told in found


def test_the_user_says_how_answers_began(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", positions("a", draft=[2, 1, 1], tree=[1, 2, 1]))
    trace = read("positions", path, prefilled={"tree": True})
    assert [info.prefilled for info in trace.meta.drafters] == [False, True]
    assert trace.requests[0].rounds["tree"].start.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="`prefilled` must name a drafter of draft, tree, got 'other'"):
        read("positions", path, prefilled={"other": True})
