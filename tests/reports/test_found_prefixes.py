"""What prefix caches found, in the figures of a run and in both tables."""

from paceline.decoding.results import VERIFY, OpRecord, StepRecord
from paceline.reports import SideBySide, summarise_run
from paceline.reports.comparison import detail_tables
from paceline.reports.run_table import prefix_lines
from paceline.runs.log import RunLedger


def test_members_tell_what_their_prefix_caches_found():
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="", num_prompt=30, arrived_at_s=0.0, now_s=0.0)
    for now_s, found in ((0.0, (30, 16, 1, 2)), (1.0, (10, 3, 0, 1))):
        ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 14, now_s, 1.0, *found))
        ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, now_s + 1.0))
    summary = summarise_run(ledger.finish({"policy": "p", "members": ["d", "t"]}, reanchored={}, divergent={}))
    found_by_member = [(level.asked_tokens, level.hit_tokens, level.evicted_blocks) for level in summary.levels]
    assert found_by_member == [(0, 0, 0), (40, 19, 3)]
    assert prefix_lines(summary) == ["prefix cache of t: 47.5% of 40 tokens found, 3 blocks evicted"]
    _, by_member = detail_tables(SideBySide(meta={"seed": 0}, baseline=summary, rows=(summary,)))
    assert by_member.columns[-1].heading == "found / asked"
    assert by_member.rows[-1][-1] == "19/40"
