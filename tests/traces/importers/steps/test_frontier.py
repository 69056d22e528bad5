import json

import pytest

from ..foreign_files import frontier, write_lines


def test_iterations(read, tmp_path):
    path = write_lines(
        tmp_path / "x.json", frontier({"7": [0, 3, 1, 2], "8": [1, 1]}, {"7": [2, 2, 0, 3], "8": [1, 1]})
    )
    trace = read("frontier", path)
    first = trace.requests[0]
    assert (first.request_id, first.num_tokens) == ("7", {"drafter": 6})
    rounds = first.rounds["drafter"]
    assert rounds.start.tolist() == [0, 3, 4]
    assert rounds.accepted.tolist() == [2, 0, 1]
    assert rounds.drafted.tolist() == [2, 0, 3]
    assert trace.meta.notes[-1] == "1 iterations committed nothing and were left out"


def test_without_scheduled_drafts_and_over_many_lines(read, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(frontier({"7": [3, 1]}), indent=2))
    trace = read("auto", path, names={"x.json": "mtp"})
    assert trace.meta.source == "frontier"
    assert trace.meta.drafters[0].model_dump(exclude_none=True) == {
        "name": "mtp",
        "by_start": True,
        "window": 2,
        "prefilled": False,
    }
    assert trace.requests[0].rounds["mtp"].drafted.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"committed_tokens_per_iteration": [1, 2]}, "per_request_committed_tokens_per_iteration: must be there"),
        (frontier({"7": [3]}, {"7": [1]}), "accepted, step 0: must be at most the 1 drafted, got 2"),
        (
            frontier({"7": [3]}, {"8": [1]}),
            "must name the requests of per_request_committed_tokens_per_iteration, got '7'",
        ),
        (
            frontier({"7": [3]}, {"7": [2, 2]}),
            ".7: must hold as many iterations as were scheduled, 2, got '1 iterations'",
        ),
        (frontier({"7": [0]}), ".7: must commit at least one token"),
        (frontier({"7": []}), ".7: must commit at least one token"),
        (frontier({"": [1]}), "must not be empty"),
        (frontier({"7": [2**31 - 1, 5]}), "drafter: must add up to at most 2147483647 tokens, got 2147483652"),
        (frontier({"\ud800": [1]}), "must be whole Unicode"),
    ],
)
def test_what_does_not_fit_is_refused(refusal, tmp_path, found, told):
    assert told in refusal("frontier", write_lines(tmp_path / "x.json", found))


def test_a_prefill_before_the_first_iteration(read, tmp_path):
    path = write_lines(tmp_path / "x.json", frontier({"7": [3, 1]}, {"7": [2, 2]}))
    trace = read("frontier", path, prefilled={"drafter": True})
    assert trace.meta.drafters[0].prefilled
    assert trace.requests[0].num_tokens == {"drafter": 5}
    assert trace.requests[0].rounds["drafter"].start.tolist() == [1, 4]
