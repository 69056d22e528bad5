"""What is counted of a workload is what is in it."""

import numpy as np
import pytest
from paceline.traces import TraceFormatError
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.summary import summary_of

from .files import AGENTS, AZURE, MOONCAKE, SOUND, all_of, lines, write


@pytest.mark.parametrize("name", SOUND)
def test_counts_are_those_of_the_requests(tmp_path, name):
    workload = open_workload(write(tmp_path, SOUND[name]))
    found, summary = all_of(workload), summary_of(workload)
    assert summary.num_requests == len(found)
    assert summary.num_arrivals == len(list(workload))
    prompts = [one.prompt_tokens for one in found]
    assert (summary.total_prompt_tokens, summary.prompt_tokens.max) == (sum(prompts), max(prompts))
    assert summary.prompt_tokens.p90 == pytest.approx(np.percentile(prompts, 90))
    assert summary.output_tokens.mean == pytest.approx(np.mean([one.output_tokens for one in found]))


def test_rate_and_burstiness_are_of_the_gaps(tmp_path):
    summary = summary_of(open_workload(write(tmp_path, AZURE)))
    assert summary.span_s == pytest.approx(0.052)
    assert summary.rate == pytest.approx(2 / 0.052)
    assert summary.gap_cv == pytest.approx(1)  # of 0.052 and 0


def test_shared_prefixes_are_leading_blocks_that_were_there(tmp_path):
    summary = summary_of(open_workload(write(tmp_path, MOONCAKE)))
    assert (summary.asked_blocks, summary.shared_blocks, summary.shared_tokens) == (7, 3, 512 + 1024)
    assert summary.shared_share == pytest.approx((512 + 1024) / (1025 + 512 + 1500))


def test_sessions_and_waits(tmp_path):
    summary = summary_of(open_workload(write(tmp_path, AGENTS)))
    assert (summary.num_arrivals, summary.num_sessions, summary.session_requests) == (2, 1, 5)
    assert summary.rate is None
    assert summary.wait_s.max == 13.5


def test_an_id_that_two_requests_have_is_told(tmp_path):
    row = {"request_id": "same", "arrives_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    workload = open_workload(write(tmp_path, lines(row, row | {"request_id": "other"}, row)))
    with pytest.raises(
        TraceFormatError,
        match=r"load: line 3: request_id: must be unique in the workload, and is that of .*load: line 1, got 'same'",
    ):
        summary_of(workload)


def test_ids_of_turns_and_of_other_sessions_are_told_with_their_lines(tmp_path):
    row = {"arrives_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    turns = [{"wait_s": 1, "prompt_tokens": 2, "output_tokens": 1, "request_id": "b"}]
    path = write(tmp_path, lines(row | {"request_id": "b"}, row | {"request_id": "a", "turns": turns}))
    with pytest.raises(TraceFormatError, match=r"load: line 2: request_id: .*, and is that of .*load: line 1, got 'b'"):
        summary_of(open_workload(path))


def test_turns_whose_prompts_are_cut_to_one_text_are_told(tmp_path):
    turns = [{"wait_s": 1, "prompt_tokens": tokens, "output_tokens": 1} for tokens in (30, 60)]
    row = {"arrives_s": 0, "prompt_tokens": 20, "output_tokens": 1, "turns": turns}
    workload = open_workload(write(tmp_path, lines(row)), max_prompt_tokens=25)
    summary_of(workload)
    assert (
        "prompts of later turns cut to 25 tokens: turns of a session then have one text, which a prefix cache finds: 2"
        in (workload.about.notes)
    )
    summary_of(whole := open_workload(write(tmp_path, lines(row)), max_prompt_tokens=60))
    assert not any("later turns" in note for note in whole.about.notes)
