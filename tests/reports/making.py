"""Runs small enough to do in the head: two requests by hand, and the four of docs/glossary.md."""

from io import StringIO

from paceline.decoding.results import DRAFT, VERIFY, OpRecord, StepRecord
from paceline.runs.log import RunLedger, RunLog, with_times_plain
from paceline.runs.recorder import ServingRecorder
from paceline.runs.serving import Lookups, ServingAbout
from paceline.traces.workloads.arrival import Arrival
from rich.console import Console


def text_of(renderable, width=160):
    """What is printed of it, each run of spaces and line breaks as one space."""
    console = Console(file=StringIO(), width=width)
    console.print(renderable)
    return " ".join(console.file.getvalue().split())


def by_hand() -> RunLog:
    """What `by_hand_ledger` wrote down."""
    meta = {"policy": "by hand", "members": ["draft", "target"]}
    return by_hand_ledger().finish(meta, reanchored={"r0": 1}, divergent={"r0": 2})


def by_hand_ledger() -> RunLedger:
    """Two requests, `draft` and `target`, one at a time; seconds in eighths.

    r0: draft 3, keep 2 and add one; draft 2, keep both and add one: 6 tokens. r1: one token by the target alone.
    """
    ledger = RunLedger()
    ledger.note_admitted("r0", tag="a", num_prompt=5, arrived_at_s=0.0, now_s=0.0)
    # verify, level, rows, forwards, new tokens, start, duration
    ledger.note_op(OpRecord(DRAFT, 0, 1, 3, 7, 0.0, 0.5))
    # request, verify, level, asked, drafted, judged, accepted, own, emitted, modelled, end
    ledger.note_step(StepRecord("r0", DRAFT, 0, 3, 3, 0, 0, 0, 0, 0, 0.5))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 8, 0.5, 1.5))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 3, 2, 1, 3, 0, 2.0, refused=1))
    ledger.note_op(OpRecord(DRAFT, 0, 1, 2, 2, 2.0, 0.25))
    ledger.note_step(StepRecord("r0", DRAFT, 0, 2, 2, 0, 0, 0, 0, 1, 2.25))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 3, 2.25, 1.0))
    ledger.note_step(StepRecord("r0", VERIFY, 1, 0, 0, 2, 2, 1, 3, 0, 3.25))
    ledger.note_admitted("r1", tag="b", num_prompt=4, arrived_at_s=3.25, now_s=3.25)
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 4, 3.25, 0.75))
    ledger.note_step(StepRecord("r1", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 4.0))
    return ledger


def by_hand_with_failures() -> RunLog:
    """As `by_hand`, with two more that fail: r2 at once, r3 after a first token; seconds of deciding were measured."""
    ledger = by_hand_ledger()
    ledger.note_admitted("r2", tag="b", num_prompt=4, arrived_at_s=4.0, now_s=4.0)
    ledger.note_admitted("r3", tag="b", num_prompt=4, arrived_at_s=4.0, now_s=4.0)
    for request_id in ("r1", "r3", "r3"):
        ledger.note_preempted(request_id)
    ledger.note_op(OpRecord(VERIFY, 1, 2, 1, 8, 4.0, 1.0))
    ledger.note_failed("r2", "logits are not finite", 5.0)
    ledger.note_step(StepRecord("r3", VERIFY, 1, 0, 0, 0, 0, 1, 1, 0, 5.0))
    ledger.note_op(OpRecord(VERIFY, 1, 1, 1, 1, 5.0, 3.0))
    ledger.note_failed("r3", "logits are not finite", 8.0)
    meta = {"policy": "by hand", "members": ["draft", "target"], "policy_s": 0.5}
    return with_times_plain(ledger.finish(meta, reanchored={}, divergent={}), 1 / 3)  # r0 takes 1.25 times as long


S = 10**12
ABOUT = ServingAbout(policy="draft:2/target", workload="four requests", cluster="one replica")


def worked_log(about=ABOUT):
    """Four requests, one replica, six seconds."""
    recorder = ServingRecorder(["draft", "target"], {"r0": [None, 8]})
    recorder.arrived(Arrival("a", 0, 10, 4), 0)
    recorder.arrived(Arrival("b", 3 * S // 2, 20, 2), 0)
    recorder.arrived(Arrival("c", 2 * S, 999, 1), 0)
    recorder.arrived(Arrival("d", 3 * S, 40, 8), 0)
    recorder.scheduled(0, 0, [0, 0])
    recorder.first_token(0, 2 * S)
    recorder.finished(0, 9 * S // 2)
    recorder.scheduled(1, 2 * S, [0, 0])
    recorder.first_token(1, 3 * S)
    recorder.finished(1, 9 * S // 2)
    recorder.rejected(2, 2 * S, "longer than the memory")
    recorder.scheduled(3, 9 * S // 2, [0, 16])
    recorder.first_token(3, 5 * S)
    recorder.emitted(3, 2)
    recorder.stopped(6 * S, "horizon")
    recorder.gaps(S, 0, 1, 1)  # a
    recorder.gaps(3 * S // 2, 0, 1, 2)  # a and b
    recorder.gaps(S, 0, 1, 1)  # d
    recorder.judged(1, drafted=2, accepted=1, own=1, rows=1)  # a
    recorder.judged(1, drafted=1, accepted=1, own=1, rows=2)  # a and b
    recorder.judged(1, drafted=2, accepted=0, own=1, rows=1)  # d
    for at, running, waiting, blocks in [(0, 1, 0, 1), (3, 1, 1, 1), (4, 2, 0, 3), (6, 2, 1, 3), (9, 1, 0, 3)]:
        recorder.state(0, at * S // 2, running, waiting, [0, blocks])
    recorder.busy(0, 0, 9 * S // 10, forwards=5)
    recorder.busy(0, 1, 5 * S, forwards=5)
    recorder.looked_up(0, 1, Lookups(asked_blocks=3, found_blocks=1, asked_tokens=70, found_tokens=16))
    return recorder.log(about)
