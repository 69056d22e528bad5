import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from paceline.reports.recordings import rounds_tables
from paceline.traces.importers import read_recording
from paceline.traces.rounds.check import acceptance_lengths
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.store import read_rounds
from rich.console import Console

from ...data_folder import data_folder
from .rounds_strategies import bernoulli_trace, rounds_traces, sequential
from .test_store import write
from .test_validate import META, a_request, a_round, ints

MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
PUBLISHED = {  # tokens per step, SpS and EAGLE
    "mt_bench": (2.62, 3.84),
    "translation": (1.51, 2.84),
    "summarization": (2.73, 3.31),
    "qa": (2.32, 3.11),
    "math_reasoning": (2.25, 3.92),
    "rag": (2.77, 3.21),
}


def test_counts_and_rates_of_a_recording_made_by_hand():
    tokens_only = a_round(start=ints(0, 2, 6), accepted=ints(4, 1, 3), drafted=ints(4, 4, 4))
    other = a_request(request_id="b", tag="u", rounds={}, prompt=(), prompt_tokens=0, num_tokens={"e": 5}, output=())
    requests = (a_request(rounds={"d": a_round(), "e": tokens_only}), replace(other, wall_s={"e": 2.0}, prefill_s={}))
    summary = RoundsRecording(meta=META, requests=requests).summary()
    total = summary.total
    assert (total.num_requests, total.num_prompt_tokens, total.num_output_tokens) == (2, 2, 14)
    assert list(total.methods) == ["d", "e", ""]
    d, e, alone = total.methods.values()
    # d: 3 + 4 + 1 tokens of 3 rounds, none of which kept its whole draft; they start at 3 of 8 positions.
    assert (d.num_requests, d.num_rounds, d.tokens_per_round, d.censored_share) == (1, 3, 8 / 3, 0.0)
    assert (d.known_share, d.token_s) == (3 / 8, 0.5 / 8)
    # e: 5 + 2 tokens, and 4 of which the end of the text cut the last; one round of three was kept whole, and the
    # rounds speak of positions 0 to 3 and 6 to 8.
    assert (e.num_requests, e.num_rounds, e.tokens_per_round, e.censored_share) == (2, 3, 11 / 3, 1 / 3)
    assert (e.known_share, e.token_s) == (7 / 9, 2.0 / 5)
    assert (alone.num_requests, alone.num_rounds, alone.tokens_per_round, alone.token_s) == (1, 0, None, 1.0 / 9)
    assert list(summary.by_tag) == ["t", "u"]
    assert summary.by_tag["u"].methods["d"].tokens_per_round is None
    assert (summary.num_texts, summary.size_bytes) == (1, None)


def test_seconds_of_rounds_are_averaged_where_they_are_known():
    timed = a_round(draft_s=np.array([0.1, np.nan, 0.3]))
    summary = RoundsRecording(meta=META, requests=(a_request(rounds={"d": timed}),)).summary()
    assert summary.total.methods["d"].draft_s == pytest.approx(0.2)
    assert summary.total.methods["d"].verify_s is None


@given(trace=rounds_traces())
def test_it_is_plain_json_with_shares_that_are_some(trace):
    summary = trace.summary()
    text = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert text["meta"]["kind"] == "imported"
    for group in [summary.total, *summary.by_tag.values()]:
        for method in group.methods.values():
            assert method.tokens_per_round is None or method.tokens_per_round >= 1
            for share in (method.censored_share, method.known_share):
                assert share is None or 0 <= share <= 1
    assert sum(group.num_requests for group in summary.by_tag.values()) == summary.total.num_requests
    console = Console(width=200, record=True)
    for table in rounds_tables(summary):
        console.print(table)
    assert "IMPORTED from hypothesis" in console.export_text()


@given(trace=rounds_traces(max_requests=2))
def test_positions_that_rounds_speak_of_are_counted_once(trace):
    for drafter in trace.meta.drafters:
        spoken, positions = 0, 0
        for request in trace.requests:
            if drafter.name not in request.rounds:
                continue
            rounds, length = request.rounds[drafter.name], request.length(drafter.name)
            known = set()
            columns = (rounds.start, rounds.accepted, rounds.censored(drafter.window), rounds.where_placed)
            for start, kept, whole, placed in zip(*columns, strict=True):
                if placed:
                    continue
                known.update([start] if drafter.by_start else range(start, min(start + kept + (not whole), length)))
            spoken, positions = spoken + len(known), positions + length
        share = trace.summary().total.methods[drafter.name].known_share
        assert share is None or share == spoken / positions


def test_the_rounds_of_one_log_emit_its_text():
    trace = bernoulli_trace(by_start=True)
    for request in trace.requests:
        length = request.length("d")
        assert acceptance_lengths(request.rounds["d"], length).sum() in (length, length + 1)
    all_kept = sequential(np.ones(20, bool), window=6)
    assert acceptance_lengths(all_kept, 20).tolist() == [7, 7, 7]


def test_bytes_are_those_of_the_files(tmp_path):
    path = tmp_path / "t.trace"
    write(bernoulli_trace(by_start=True), path)
    assert read_rounds(path).summary(path).size_bytes == sum(file.stat().st_size for file in path.iterdir())


@pytest.mark.skipif(data_folder() is None, reason="no folder of real data beside the checkout, nor in PACELINE_DATA")
def test_tokens_per_round_of_spec_bench_are_those_published():
    trace = read_recording("spec-bench", sorted((data_folder() / "specbench_yukiki").glob("*.jsonl.gz")))
    grouped = tuple(
        replace(request, tag="mt_bench" if request.tag in MT_BENCH else request.tag) for request in trace.requests
    )
    found = {
        tag: (group.methods["sps"].tokens_per_round, group.methods["eagle"].tokens_per_round)
        for tag, group in replace(trace, requests=grouped).summary().by_tag.items()
    }
    assert found == {tag: pytest.approx(rates, abs=0.01) for tag, rates in PUBLISHED.items()}
