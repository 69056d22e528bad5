"""Operations that run at the same time move a run on once, and their kinds are told apart."""

import pytest
from paceline.decoding.results import DRAFT, TREE, VERIFY, OpRecord, StepRecord
from paceline.reports.summary import request_seconds
from paceline.runs.log import RunLedger, added_seconds, seconds_per_token


def log_of(*ops):
    """A run of one request by these operations, (kind, level, start_s, duration_s, part, emitted)."""
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="a", num_prompt=3, arrived_at_s=0.0, now_s=0.0)
    end_s = max(start_s + duration_s for _, _, start_s, duration_s, _, _ in ops)
    for kind, level, start_s, duration_s, part, emitted in ops:
        ledger.note_op(OpRecord(kind, level, 1, 1, 1, start_s, duration_s))
        ledger.note_step(StepRecord("r0", kind, level, 0, 0, 0, 0, 0, emitted, 0, end_s, 0, 0, part))
    meta = {"policy": "by hand", "members": ["draft", "mid", "target"]}
    return ledger.finish(meta, reanchored={}, divergent={})


@pytest.mark.parametrize(
    ("parts", "added"),
    [
        ([(0.0, 4.0), (0.0, 3.0)], [4.0, 0.0]),  # two devices, the first is the longest
        ([(0.0, 3.0), (0.0, 4.0)], [3.0, 1.0]),
        ([(0.0, 3.0), (3.0, 4.0)], [3.0, 4.0]),  # one device
        ([(0.0, 2.0), (2.0, 1.0), (0.0, 4.0)], [2.0, 1.0, 1.0]),
    ],
)
def test_parts_of_an_overlap_add_up_to_its_seconds(parts, added):
    before = (VERIFY, 2, 0.0, 1.0, 0, 1)
    ahead = [
        (VERIFY, 2 - part, 1.0 + after_s, duration_s, part, 1 - min(part, 1))
        for part, (after_s, duration_s) in enumerate(parts)
    ]
    log = log_of(before, *ahead)
    assert added_seconds(log).tolist() == [1.0, *added]
    whole_s = max(after_s + duration_s for after_s, duration_s in parts)
    assert request_seconds(log).tolist() == [pytest.approx(1.0 + whole_s)]
    assert seconds_per_token(log) == {"r0": pytest.approx(whole_s)}


def test_a_tree_is_no_verification_of_the_next_member():
    ops = [
        (VERIFY, 2, 0.0, 9.0, 0, 1),  # reads the prompt
        (TREE, 1, 9.0, 5.0, 0, 0),  # likewise, by the drafter: as long as other trees
        (VERIFY, 2, 14.0, 1.0, 0, 1),
        (TREE, 1, 15.0, 2.0, 0, 0),
        (VERIFY, 2, 17.0, 1.0, 0, 1),
        (DRAFT, 1, 18.0, 1.5, 0, 0),
        (VERIFY, 2, 19.5, 1.0, 0, 1),
    ]
    assert seconds_per_token(log_of(*ops)) == {"r0": pytest.approx((2.0 + 1.0 + 2.0 + 1.0 + 1.5 + 1.0) / 3)}
