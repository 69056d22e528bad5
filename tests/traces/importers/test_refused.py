"""What is refused: one line each, with file, field, rule and value; nothing is left behind."""

import copy
import gzip
import json
import os
import re
import shutil

import pytest
from paceline.traces import TraceFormatError
from paceline.traces.importers import ImportOptions, Load, format_names, import_recording
from paceline.traces.importers.reading import half_of_last_digit
from paceline.traces.rounds.store import read_rounds

from ...cli.command_line import paceline, refused
from .foreign_files import (
    STATED,
    aiperf,
    answer,
    counters,
    decode_batch,
    frontier,
    guidellm,
    iteration,
    llamacpp_lines,
    metrics_line,
    new_llamacpp_lines,
    one_file_each,
    positions,
    response,
    sglang,
    sglang_bench,
    sglang_counters,
    statistics,
    summary,
    timed_answer,
    timing,
    timings,
    trtllm,
    trtllm_counters,
    vllm_bench,
    write,
    write_lines,
    write_text,
)

META = {"completion_tokens": 9, "spec_verify_ct": 3, "spec_num_proposed_drafts": 9,
        "spec_correct_drafts_histogram": [0, 1, 1, 1]}  # fmt: skip


def of_sglang(*indices, tokens, **more):
    choices = [{"index": index, "meta_info": META} for index in indices]
    return {"id": "n", "choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": tokens}, **more}


def less(found, *path):
    """An object without what a path of keys leads to."""
    found = copy.deepcopy(found)
    around = found
    for key in path[:-1]:
        around = around[key]
    del around[path[-1]]
    return found


def adaptive(kept, proposed):
    """A response of SGLang whose depth was adapted: what its other counts say is as if it had been the greatest."""
    steps, tokens = sum(kept), sum((more + 1) * times for more, times in enumerate(kept)) + 1
    return sglang("a", steps, tokens, histogram=kept, window=None, spec_num_proposed_drafts=7 * steps,
                  spec_proposed_drafts_histogram=proposed)  # fmt: skip


TWO = [{"index": 0}, {"index": 1}]
TOGETHER = "must stand beside one choice (n = 1): it is of the request as a whole"
ODD_NAME = positions("a", **{"a:b": [1]})
FIVE = [0.9, 0.8, 0.7, 0.6, 0.5]
ARGS = (
    "[2026-05-02] server_args=ServerArgs(model_path='m', speculative_algorithm='{}', speculative_num_steps={}, "
    "speculative_eagle_topk={}, speculative_num_draft_tokens={})"
)
YAML = ["# golden", "_metadata:", "  draft-model: some/drafter", "some-model:", "  thinking_on:"]
PER_POS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
FIGURES = "line: must be a known line: this one gives figures of drafts or acceptance"
# A sound line before each bad one of these formats.
FIRST = {"positions": positions("first", draft=[1]), "vllm-detailed": response("first", [1], [2]),
         "spec-bench": answer(0, [2])}  # fmt: skip
W = {"windows": {"drafter": 4}}
STATISTICS = iteration(1, 8, 24, 12)["specDecodingStats"]

# Format, lines, what is said, options where they are not those that the format needs.
ROWS = [
    ("positions", [positions("a", draft=[1, 2], tree=[1])], "tree: must hold one entry per output position, 2, got '1"),
    ("positions", [positions("a", draft=[])], "draft: must hold one entry per output position, 1, got '0 entries'"),
    ("positions", [positions("a")], "drafters: must name a drafter"),
    ("positions", [positions("a", draft=[1, 0])], "drafters.draft[1]: must be a whole number in [1, 2147483647], got"),
    ("positions", [{**positions("a", draft=[1]), "output_token_ids": [1, 2]}], "one entry per output position, 2"),
    ("positions", [{**positions("a", draft=[1]), "prompt_token_ids": [1, 2]}], "must be the number of prompt_token_id"),
    ("positions", [{**positions("a", draft=[1]), "output_token_ids": [-1]}], "output_token_ids[0]: must be a whole"),
    ("positions", [{"id": "a", "drafters": [1]}], "drafters: must be an object, got 'a list of 1'"),
    ("positions", [ODD_NAME], "drafters: must have names that match"),
    ("positions", [positions("first", draft=[1])], "id: must be unique, got 'first'"),
    ("vllm-detailed", [less(response("a", [1], [2]), "metrics", "speculative_decoding", "per_step_accepted")],
     "per_step_accepted: must be there (`detailed`): a histogram does not say in which order"),
    ("vllm-detailed", [{"id": "a", "metrics": {}}], "speculative_decoding: must be there, under metrics.speculative_d"),
    ("vllm-detailed", [response("a", [3], [2])], "accepted, step 0: must be at most the 2 drafted, got 3"),
    ("vllm-detailed", [response("a", [3], [2, 1])], "drafted: must hold one entry for each of the 1 steps, got 2"),
    ("vllm-detailed", [response("a", [1], [2], tokens=2**25)], "must be at most 16777216 more than what its"),
    ("vllm-detailed", [response("a", [2, 3], [4, 4], tokens=4)], "completion_tokens: must be at least what its steps"),
    ("vllm-detailed", [response("a", [-1], [2])], "per_step_accepted[0]: must be a whole number"),
    ("vllm-detailed", [response("first", [1], [2])], "id: must be unique, got 'first'"),
    ("vllm-detailed", [response("", [1], [2])], "id: must not be empty, got ''"),
    ("vllm-detailed", [summary("a", [1, 1])], "in which order steps came (take vllm-summary)"),
    ("auto", [response("a", [1, 0], [2, 2]), summary("b", [1, 1])], "line 2: metrics.speculative_decoding.per_step_ac"),
    ("vllm-detailed", [{"id": "a", "choices": TWO, "speculative_decoding": {"per_step_accepted": [1]}}], TOGETHER),
    ("spec-bench", [answer(1, [3, 1], new_tokens=[5])], "accept_lengths: must add up to the 5 new_tokens of turn 1, b"),
    ("spec-bench", [answer(1, [3, 1], new_tokens=[3])], "got 4"),
    ("spec-bench", [answer(1, [3, 1], decoding_steps=[3])], "must hold one entry for each of the 3 steps"),
    ("spec-bench", [answer(1, [3, 1], new_tokens=[2, 2])], "new_tokens: must hold 1 turns"),
    ("spec-bench", [answer(1, [3, 1], wall_time=[1.0, 1.0])], "wall_time: must hold 1 turns"),
    ("spec-bench", [answer(1, [3, 1], wall_time=[0])], "wall_time[0]: must be seconds in [1e-12, 1e+09], got 0"),
    ("spec-bench", [answer(1, [3, 1], accept_lengths=[4, 0])], "accept_lengths[1]: must be a whole number in [1, 2147"),
    ("spec-bench", [answer(1, [3, 1], accept_lengths=[3, True])], "accept_lengths[1]: must be a whole number"),
    ("spec-bench", [answer(1, [3, 1], accept_lengths=[3, 1.0])], "accept_lengths[1]: must be a whole number"),
    ("spec-bench", [answer(1, [3, 1], accept_lengths="31")], "accept_lengths: must be a list, got '31'"),
    ("spec-bench", [answer(1, [3, 1], accept_lengths=None)], "choices[0].window: must be stated, the log does not say"),
    ("spec-bench", [answer(1, [3, 1], decoding_steps=[10**30])], "decoding_steps[0]: must be a whole number"),
    ("spec-bench", [answer(1)], "new_tokens: must hold a turn, got 'none'"),
    ("spec-bench", [{"question_id": 1, "choices": []}], "choices: must hold an answer"),
    ("spec-bench", [{"question_id": 1, "choices": [3]}], "choices[0]: must be an object, got 3"),
    ("spec-bench", [{"choices": []}], "question_id: must be there, got 'nothing'"),
    ("spec-bench", [{**answer(1, [3, 1]), "category": "\ud800"}], "category: must be whole Unicode"),
    ("spec-bench", [answer(0, [2])], "question_id: must be unique in the file, got '0'"),
    ("frontier", [{"committed_tokens_per_iteration": [1, 2]}], "per_request_committed_tokens_per_iteration: must be t"),
    ("frontier", [frontier({"7": [3]}, {"7": [1]})], "accepted, step 0: must be at most the 1 drafted, got 2"),
    ("frontier", [frontier({"7": [3]}, {"8": [1]})], "must name the requests of per_request_committed_tokens_per_iter"),
    ("frontier", [frontier({"7": [3]}, {"7": [2, 2]})], ".7: must hold as many iterations as were scheduled, 2, got '"),
    ("frontier", [frontier({"7": [0]})], ".7: must commit at least one token"),
    ("frontier", [frontier({"7": []})], ".7: must commit at least one token"),
    ("frontier", [frontier({"": [1]})], "must not be empty"),
    ("frontier", [frontier({"7": [2**31 - 1, 5]})], "drafter: must add up to at most 2147483647 tokens, got 214748365"),
    ("frontier", [frontier({"\ud800": [1]})], "must be whole Unicode"),
    ("vllm-summary", [{"id": "a", "metrics": {}}], "speculative_decoding: must be there, under metrics.speculative"),
    ("vllm-summary", [{"id": "a", "metrics": {"speculative_decoding": None}}], "usage.completion_tokens: must be"),
    ("vllm-summary", [summary("a", [1, -1])], "acceptance_histogram[1]: must be a whole number in [0, 2147483647]"),
    ("vllm-summary", [summary("a", [2**30, 0])], "steps: must be at most 1000000, with the tokens"),
    ("vllm-summary", [summary("a", [4, 2, 0, 2], drafted=25)], "drafted: must lie between the 8 accepted and 8 steps"),
    ("vllm-summary", [{**summary("a", [3, 2]), "choices": TWO}], "metrics.speculative_decoding: " + TOGETHER),
    ("vllm-summary", [{"id": "a", "choices": TWO, "spec_decode_metrics": {}}], "spec_decode_metrics: " + TOGETHER),
    ("vllm-summary", [summary("b", [1, 2]), {"id": "a", "choices": TWO, "metrics": {"speculative_decoding": None}}],
     "line 2: choices: must be of one answer (n = 1): vLLM says nothing of the drafts of several"),
    ("sglang-meta", [sglang("a", 3, 13, histogram=[3, 1])], "must count each of the 3 steps of spec_verify_ct once, b"),
    ("sglang-meta", [sglang("a", 9, 5)], "meta_info.spec_verify_ct: must be less than the 5 tokens of the answer"),
    ("sglang-meta", [{"id": "a"}], "meta_info: must be there, it holds spec_verify_ct"),
    ("sglang-meta", [sglang("a", 12, 31, window=None)], "line 1: meta_info.window: must be stated, the log does not s"),
    ("sglang-meta", [sglang("a", 6, 13, histogram=[3, 1, 1, 0, 1])],
     "spec_accept_histogram[4]: must be 0: no step keeps 4 tokens where drafts have at most 3"),
    ("sglang-meta", [adaptive([2, 3], [0, 4])], "spec_proposed_drafts_histogram: must add up to the 5 steps of"),
    ("sglang-meta", [adaptive([3, 0, 2], [0, 4, 1])], "spec_proposed_drafts_histogram: must hold the 2 steps of"),
    ("sglang-meta", [adaptive([2, 3], [0, -5])], "drafts_histogram[1]: must be a whole number in [0, 2147483647], got"),
    ("sglang-meta", [of_sglang(0, 1, tokens=17)], "must be 18, by meta_info.completion_tokens of its 2 ch"),
    ("sglang-meta", [of_sglang(0, tokens=10)], "must be 9, by meta_info.completion_tokens of its choice"),
    ("sglang-meta", [of_sglang(0, 0, tokens=18)], "choices[1].index: must differ from that of the other choices: choi"),
    ("sglang-meta", [of_sglang(0, 1, 1, tokens=27)], "choices[2].index: must differ from that of the other choices: c"),
    ("sglang-meta", [less(of_sglang(0, 1, tokens=18), "choices", 1, "meta_info")], "choices[1].meta_info: must be the"),
    ("sglang-meta", [{"id": "a", "choices": [{"meta_info": {"spec_verify_ct": 1}}, 7], "usage": {}}],
     "choices[1]: must be an object, got 7"),
    ("sglang-meta", [{"id": "n", "choices": [{"index": 0, "meta_info": {"spec_verify_ct": 3}},
                                             {"index": 1, "meta_info": META}], "usage": {"completion_tokens": 9}}],
     "usage.completion_tokens: must be there, got 'nothing'"),
    ("trtllm", [{"id": "a", "choices": []}], "choices: must have speculative_decoding or avg_decoded_tokens_per_iter"),
    ("trtllm", [trtllm("a", mean=0.5, tokens=9)], "must lie between 1 and the 9 tokens of the answer, got 0.5"),
    ("trtllm", [trtllm("a", mean=2.5, tokens=50)], "choices[0].window: must be stated"),
    ("trtllm", [{**trtllm("n", mean=2.5, tokens=50),
                "choices": [{"avg_decoded_tokens_per_iter": 2.5, "index": n} for n in (0, 1)]}],
     "completion_tokens: must be there beside avg_decoded_tokens_per_iter, and of one answer alone", W),
    ("trtllm", [{**trtllm("n", histogram=[1, 0, 3]), "choices": [*trtllm("n", histogram=[1, 0, 3])["choices"],
                                                               {"index": 1}]}],
     "choices[1]: must have speculative_decoding or avg_decoded_tokens_per_iter, got 'neither'"),
    ("llamacpp-timings", [timings(30, 60, 12)], "timings.window: must be stated, the log does not say", {}),
    ("llamacpp-timings", [timings(30, 10, 12)], "timings.draft_n_accepted: must be at most draft_n, 10, got 12"),
    ("llamacpp-timings", [timings(30, -1, 0)], "timings.draft_n: must be a whole number in [0, 2147483647], got -1"),
    ("llamacpp-timings", [timings(30, 12, 12, prompt_ms="x")], "timings.prompt_ms: must be a number in [0, 1e+12], go"),
    ("llamacpp-timings", [timings(30, draft_n=12)], "timings.draft_n_accepted: must be there, got 'nothing'"),
    ("llamacpp-timings", [timings(30, draft_n=12, draft_n_accept=6)], "timings.draft_n_accepted: must be there"),
    ("llamacpp-timings", [timings(30, draft_n_accepted=6)], "draft_n_accepted: must stand beside draft_n and draft_n_"),
    ("llamacpp-timings", [timings(30, draft_total=12, n_accept=6)], "timings.draft_total: must stand beside draft_n"),
    ("llamacpp-timings", [timings(30, spec_tokens=12)], "timings.spec_tokens: must stand beside draft_n"),
    ("llamacpp-timings", [timings(2_000_000, 12, 6)], "timings.steps: must be at most 1000000, with the tokens"),
    ("llamacpp-timings", [{**timings(9, 9, 3), "choices": TWO}], "timings: " + TOGETHER),
    ("aiperf", [{**aiperf("a", [1], [2]), "spec_decode_acceptance": None}], "acceptance: must stand in some request"),
    ("aiperf", [aiperf("a", [2, 3], [2, 2])], "spec_decode_acceptance.accepted, step 1: must be at most the 2 drafted"),
    ("aiperf", [aiperf("a", [2, 1], [2, 2], tokens=3)], "spec_decode_acceptance.completion_tokens: must be at least"),
    ("guidellm", [guidellm({**response("a", [1], [2]), "metrics": None})], "speculative_decoding: must stand in some"),
    ("guidellm", [guidellm(response("a", [1], [2]), response("a", [1], [2]))], "request_id: must be unique, got 'a'"),
    ("guidellm", [guidellm(response("a", [3], [2]))], "must be at most the 2 drafted, got 3"),
    ("vllm-bench", [vllm_bench([0.5, 1.5])], "[1]: must be a number in [0, 1], got 1.5"),
    ("vllm-bench", [vllm_bench([0.5], lens=(0,))], "an answer of at least one token"),
    ("vllm-bench", [vllm_bench([0.7, 0.5])], "window: must be that of `windows` drafter=5, got 2",
     {"windows": {"drafter": 5}}),
    ("vllm-bench", [vllm_bench([0.7, 0.5], input_lens=[1])], "input_lens: must hold one entry for each of the 2 answe"),
    ("vllm-bench", ["Accept: nothing", "a line"], "file: must hold a result, got 'nothing'"),
    ("sglang-bench", [sglang_bench(2), sglang_bench(3)], "the file holds 2 results: `line` N, one of 1, 2, got 'nothi"),
    ("sglang-bench", [sglang_bench(2), sglang_bench(3)], "line: must be one where a result begins (1, 2), got 3",
     W | {"line": 3}),
    ("sglang-bench", [[sglang_bench(2), sglang_bench(3)]], "must hold one result, got 'several on line 1'",
     W | {"line": 1}),
    ("sglang-bench", [sglang_bench(2)], "window: must be stated", {}),
    ("sglang-bench", [sglang_bench(4)], "accept_length: must lie between 1 and the window and one, 3 (`windows`)",
     {"windows": {"drafter": 2}}),
    ("vllm-metrics", counters(100, [50, 60]), "[1]: must not exceed the rate before it"),
    ("vllm-metrics", counters(100, [150]), "must be at most the 100 drafts, got 150.0"),
    ("vllm-metrics", counters(0, [0]), "must count a draft, got 0.0"),
    ("vllm-metrics", counters("x", [1]), "line 2: vllm:spec_decode_num_drafts: must be of the form name{labels} value"),
    ("vllm-metrics", ["# nothing"], "must count a draft"),
    ("vllm-metrics", ["vllm:spec_decode_efficiency 0.4"], "must count a draft, got 'vllm:spec_decode_efficiency'"),
    ("vllm-metrics", ["vllm:num_requests_running 0"], "_drafts_total: must count a draft, got 0.0"),
    ("vllm-metrics", counters(100, [50, 20]), "requests: must be stated, the log does not know them: `requests` N `ou"),
    ("vllm-metrics", [*counters(9, [5])[:-1], PER_POS + '{position="x"} 5'], "must be a whole number below 1024, got"),
    ("vllm-metrics", counters(9, [5, 4])[:-1], "per_pos_total: must add up to the 9 of vllm:spec_decode"),
    ("vllm-metrics", [f"{DRAFTS} -4"], "must be a finite number >= 0, got -4.0"),
    ("vllm-metrics", [f"{DRAFTS} NaN"], "must be a finite number >= 0, got nan"),
    ("vllm-metrics", [DRAFTS + "{" + "a" * 20_000], "must be a line of at most 10000 characters"),
    ("vllm-metrics", [one.replace("{", f'{{pod="{pod}",') for pod in "xy" for one in counters(9, [5], requests=2)],
     "request_success.pod: must be series that differ in engine, finished_reason, model_name only"),
    ("llamacpp-metrics", ["llamacpp:tokens_predicted_total 4"], "spec_decode_num_drafts_total: must count a draft"),
    ("sglang-metrics", ["sglang:spec_num_steps 3", "sglang:spec_accept_rate 0.4"], "got 'sglang:spec_accept_rate'"),
    ("sglang-metrics", sglang_counters(0.0), "must tell of speculative decoding, by sglang:"),
    ("sglang-metrics", [*sglang_counters(2.5, depth=0), "sglang:spec_num_steps 1e30"], "must be at most 1024"),
    ("sglang-metrics", sglang_counters(2.5, 2.7), "spec_accept_length: must be one gauge, got 'two gauges, 2.5 and 2."),
    ("sglang-metrics", sglang_counters(2.5, depth=0), "window: must be stated"),
    ("trtllm-metrics", ["trtllm_prompt_tokens_total 4"], "window: must be stated"),
    ("trtllm-metrics", trtllm_counters(400, 200), "window: must be stated"),
    ("vllm-log", ["SpecDecoding metrics: ?"], "line 1: SpecDecoding metrics:: must have Acc"),
    ("vllm-log", [metrics_line([0.5], 1, 2), metrics_line([0.5, 0.1], 1, 2)], "1 positions"),
    ("vllm-log", [f"{'x' * 5000} {metrics_line([0.9, 0.6], 450, 300)}"], "no more accepted than drafted, got '"),
    ("vllm-log", [metrics_line(FIVE, 350, 500, depth=0)], "depth: must lie between 1 and the 5 positions of a line th"),
    ("vllm-log", [metrics_line(FIVE, 350, 500, depth=6)], "depth: must lie between 1 and the 5 positions of a line th"),
    ("auto", ["INFO Engine 000: Avg prompt throughput: 9.1 tokens/s, Avg generation throughput: 2.1"],
     "must have a line `SpecDecoding metrics:` with drafts: speculative decoding is off"),
    ("sglang-log", [decode_batch(2.9, None)], "window: must be stated"),
    ("sglang-log", [decode_batch(2.9, 0.48), decode_batch(3.1, 0.53)], "must be at most the 4 tokens",
     STATED["sglang-log"] | {"windows": {"drafter": 6}}),
    ("sglang-log", [decode_batch(None, None)], "1 Decode batch lines without one: the server ran without speculation"),
    ("sglang-log", [decode_batch(2.9, 0.63), decode_batch(None, None)], "line 2: accept len: must stand in each line"),
    ("sglang-log", [decode_batch(2.9, 0.63, more="avg accepted drafts: 2, ")], "avg accepted drafts: 2"),
    ("sglang-log", [decode_batch(2.9, 0.63).replace("accept len", "accept length")], "accept length: 2.90"),
    ("sglang-log", [decode_batch(2.9, 0.63).replace("2.90", "nan")], "accept len: nan"),
    ("sglang-log", [decode_batch(2.9, 0.63, more="cap len: 2.50, ")], "cap len: must not be there"),
    ("sglang-log", [decode_batch(2.9, 0.63), decode_batch(2.9, 0.27)], "must fit one number of tokens proposed in a s"),
    ("sglang-log", [decode_batch(0.5, 0.1)], "must be at least 1"),
    ("sglang-log", [decode_batch(2.9, 0.63, running=0)], "#running-req: must be at least 1"),
    ("sglang-log", [ARGS.format("EAGLE3", 3, 1, 4)[:-1] + ", speculative_adaptive=True)", decode_batch(2.9, 0.63)],
     "speculative_adaptive: must be off"),
    ("trtllm-iterations", [iteration(1, 0, None, 0)], "must tell of a draft in some iteration"),
    ("trtllm-iterations", [iteration(1, 8, 24, 25)], "numAcceptedTokens: must be at most the 24 drafted, got 25"),
    ("trtllm-iterations", [iteration(1, 8, 7, 1)], "numDraftTokens: must be at least 8, one a request, got 7"),
    ("trtllm-iterations", [iteration(1, 8, 24, 12, rank=0)], "rank: must be left out"),
    ("trtllm-iterations", [{"iter": 1, "specDecodingStats": {"numDraftTokens": 3}}], "numAcceptedTokens: must be ther"),
    ("trtllm-iterations", [iteration(1, 8, 24, 12), {"other": 1}], "line 2: specDecodingStats: must be there"),
    ("trtllm-iterations", [{"specDecodingStats": STATISTICS | {"acceptanceLength": 3.5}}],
     "must be (accepted + requests) / requests, 2.5000, got 3.5"),
    ("auto", [str(iteration(1, 8, 24, 12))], "trtllm-iterations is told by specDecodingStats"),
    ("acceptance-by-k", [*YAML, "    1: 1.8", "  thinking_off:", "    1: 1.9"],
     "got 'some-model/thinking_on, some-model/thinking_off'"),
    ("acceptance-by-k", [{"1": 2.5}], "K = 1: must have a length in [1, 2], got 2.5"),
    ("acceptance-by-k", [{"1": 1.8, "2": 2.0, "3": 2.9}], "K = 2: must be near 2.35: drafts cannot keep later tokens"),
    ("acceptance-by-k", [{"0": 1.0, "1": 1.5}], "0: must be a K in [1, 1024], got 0"),
    ("acceptance-by-k", ["k,al", "1,1.5", "1,1.6"], "line 3: k: must be there once"),
    ("acceptance-by-k", ["k,al", "1,x"], "line 2: al: must be a number"),
    ("acceptance-by-k", ["k,al,model", "1,1.5,m"], "model: must be one of k, num_speculative_tokens"),
    ("acceptance-by-k", [*YAML, "    1: 1.8", "    note: good"], "must map each K to a length"),
    ("acceptance-by-k", [*YAML, "    1: 1.8", "    - 2"], "line 7: line: must be NAME: or K: LENGTH"),
    ("llamacpp-log", new_llamacpp_lines(516, 564, 374), "window: must be stated", {}),
    ("llamacpp-log", ["draft acceptance rate = 0.5 ( 3 accepted / 6 generated)"], "must follow the eval time of its r"),
    ("llamacpp-log", [*llamacpp_lines(30, 40, 12)[:-1], "draft acceptance rate = 0.5 ( 3 accepted / 6 generated)"],
     "line 6: draft acceptance: must follow the eval time of its request"),
    ("llamacpp-log", ["nothing of that kind"], "content: must hold eval time = ... ms / N tokens, got 'no such line'"),
    ("llamacpp-log", new_llamacpp_lines(30)[1:2], "content: must hold eval time = ... ms / N tokens, got 'no such lin"),
    ("llamacpp-log", [*new_llamacpp_lines(60, 30, 30, slot=0, task=0, more=[statistics(2, 20, 90, 60)]),
                      *new_llamacpp_lines(70, 35, 35, slot=1, task=1, more=[statistics(3, 30, 140, 75)]),
                      *new_llamacpp_lines(70, 35, 35, slot=0, task=2, more=[statistics(3, 45, 190, 100)])],
     "draft acceptance: must not be all that was drafted where statistics know of refusals"),
    *(("llamacpp-log", [*new_llamacpp_lines(60, 40, 30), line], "x.jsonl: line 8: " + FIGURES) for line in (
        "slot print_timing: id  0 | task 0 | draft acceptance = 66% (374 of 564)",
        "slot print_timing: id  0 | task 0 | draft acceptance = 0.66 (  374 accepted /   564 generated), depth = 3",
        "slot print_timing: id  0 | task 0 | accepted drafts = 12, rejected drafts = 4",
        "slot print_timing: id  0 | task 0 | drafted 564 tokens",
        "slot print_timing: id  0 | task 0 | acceptance length = 3.6",
        "statistics concat: k1 = 2, rounds = 30, mtp_accepted = 44/60",
        "llama_decode: statistics ngram_map_k: #draft tokens = 21, #gen tokens = 18, #acc tokens = 12, #res tokens = 6",
        "I srv  spec: draft hit rate: 0.71",
        "draft tokens: 30",
    )),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[2]}"[:70])
def test_what_does_not_fit_is_refused_by_its_field(read, refusal, tmp_path, row):
    name, lines, told, *options = row
    stated = options[0] if options else {} if "must be stated, the log does not know" in told else STATED.get(name, {})
    if name == "auto":
        stated = {"load": Load(requests=3, output_tokens=20)}
    first = [FIRST[name]] if name in FIRST else []
    found = refusal(name, write(tmp_path / "x.jsonl", *first, *lines), **stated)
    assert told in found
    assert found.startswith(f"{tmp_path / 'x.jsonl'}: {'line 2: ' if first else ''}")
    assert len(found.replace(str(tmp_path), "")) <= 300


def broken(*path, value=None):
    line = timing([6, 0, 2])
    around = line
    for key in path[:-1]:
        around = around[key]
    if value is None:
        around.pop(path[-1])
    else:
        around[path[-1]] = value
    return line


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (broken("accept_length", 0, 0, value=7), "accept_length.0[0]: must be below draft_length, 7"),
        (broken("accept_length", 0, 0, value=-1), "accept_length.0[0]: must be a whole number"),
        (broken("tree_time", 0, 2), "tree_time.0: must hold 3 steps, got '2 steps'"),
        (broken("tree_time", 0), "tree_time: must hold 1 turns"),
        (broken("update_time", 0, 1, value=0.0), "update_time.0[1]: must be seconds"),
        (timing(), "accept_length: must hold a turn, got 'none'"),
        (broken("eval_time"), "eval_time: must be there"),
        (broken("generate_time", 0, value=1e999), "generate_time.0: must be seconds in [1e-12, 1e+09], got inf"),
    ],
)
def test_timings_that_do_not_fit(refusal, tmp_path, line, told):
    info = write_lines(tmp_path / "x_info.jsonl", timing([1]), line)
    answers = write_lines(tmp_path / "x.jsonl", timed_answer(1, [1]), timed_answer(2, [6, 0, 2]))
    assert f"x_info.jsonl: line 2: {told}" in refusal("eagle-timed", answers, info)


THREE = [[answer(1, [1] * 8, method="vanilla")], [answer(1, [3, 1, 4])], [answer(1, [5, 4], method="eagle")]]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"names": {"nobody": "x"}}, "that no other key names, got 'nobody'"),
        ({"names": {"sps": "a", "b.jsonl": "b"}}, "`names` must name a file or a method of the files, and one that no"),
        ({"names": {"a.jsonl": "slow"}}, "target alone, got 'slow'"),
        ({"windows": {"nobody": 3}}, "`windows` must name a drafter of sps, eagle, got 'nobody'"),
        ({"token_drafters": frozenset({"nobody"})}, "`token_drafters` must name a drafter"),
        ({"prefilled": {"other": True}}, "`prefilled` must name a drafter of sps, eagle, got 'other'"),
        ({"windows": {"sps": 2}}, "must hold rounds within `windows` sps=2, got 3"),
        ({"windows": {"sps": 0}}, "the window of sps must be in [1, 2147483647], got 0"),
        ({"names": {"sps": "a:b"}}, "a drafter's name must match"),
        ({"target": "sps"}, "names of drafters and target must be unique"),
        ({"seed": 1}, "`seed` must be left out: nothing of this log is drawn"),
        ({"load": Load(requests=1, output_tokens=1)}, "`load` must be left out: this log names its requests"),
        ({"line": 1}, "`line` must be left out: files of this format are taken whole"),
        ({"line": 0}, "`line` must be in [1, 2147483647], got 0"),
    ],
)
def test_options_that_do_not_fit(read, tmp_path, options, told):
    files = [write_lines(tmp_path / f"{name}.jsonl", *lines) for name, lines in zip("abc", THREE, strict=True)]
    with pytest.raises(ValueError, match=re.escape(told)):
        read("spec-bench", *files, **options)


def test_a_log_that_settles_how_answers_begin_is_not_told_otherwise(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [1], [2]))
    assert read("vllm-detailed", path, prefilled={"drafter": True}).meta.drafters[0].prefilled
    with pytest.raises(ValueError, match="`prefilled` drafter must be prefill, as in every log of this format"):
        read("vllm-detailed", path, prefilled={"drafter": False})


# -- files that do not go together


def test_files_that_do_not_go_together(refusal, tmp_path):
    paths = [write_text(tmp_path / name, metrics_line([0.5], 50, 100)) for name in ("a", "b")]
    assert "b: file: must be the only one of this format, got '2 files'" in refusal("vllm-log", *paths)
    sps = [write_lines(tmp_path / f"{name}.jsonl", answer(1, [3, 1])) for name in "cd"]
    assert "(`names` FILE=NAME)" in refusal("spec-bench", *sps)
    alone = [write_lines(tmp_path / f"{name}.jsonl", answer(1, [1, 1])) for name in "ef"]
    assert "both the target alone" in refusal("spec-bench", *alone)
    info = write_lines(tmp_path / "x_info.jsonl", timing([1]))
    other = write_lines(tmp_path / "x.jsonl", timed_answer(1, [1]))
    spare = write_lines(tmp_path / "spare.jsonl", timed_answer(1, [9]))
    assert "accept_length: must fit one answer file" in refusal("eagle-timed", info)
    assert "accept_length: must be in one of the files" in refusal("eagle-timed", other)
    told = refusal("eagle-timed", info, other, spare)
    assert "spare.jsonl: file: must be an answer file that a file of timings fits" in told


def test_a_server_that_was_started_anew(refusal, tmp_path):
    page, later = counters(10, [7, 4], requests=19, tokens=264), counters(43, [28, 20], requests=51, tokens=1083)
    before, after = write_text(tmp_path / "a", *page), write_text(tmp_path / "b", *later)
    told = refusal("vllm-metrics", after, before)
    assert 'a: line 7: vllm:request_success{engine="0",finished_reason="stop",model_name="m"}: ' in told
    assert "must be at least the 51 of" in told
    assert "the server was started anew in between, or the pages are not in the order of time" in told
    created = 'vllm:spec_decode_num_drafts_created{engine="0",model_name="m"}'
    grown = [write_text(tmp_path / str(at), *one, f"{created} {at}e9") for at, one in ((1, page), (2, later))]
    assert "must be the 1000000000 of" in refusal("vllm-metrics", *grown)
    lost = write_text(tmp_path / "c", *(line for line in later if 'position="1"' not in line))
    assert 'position="1"}: must be there in the last page' in refusal("vllm-metrics", before, lost)


# -- what is said twice, and differently


@pytest.mark.parametrize(
    ("text", "half"), [("3", 0.5), ("3.0", 0.05), ("0.554", 0.0005), ("5e-05", 0.5e-5), ("1.25e-05", 0.5e-7)]
)
def test_rounding_is_told_by_the_digits_that_are_printed(text, half):
    assert half_of_last_digit(text) == pytest.approx(half)


def changed(found, path, value):
    """The same object with another value at the end of a path of keys."""
    found = copy.deepcopy(found)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return found


IN_VLLM = ("metrics", "speculative_decoding")
DETAILED = response("a", [3, 0, 1, 0], [3, 3, 3, 0])  # 4 of 9 tokens; one step drafted nothing
SUMMARY = summary("a", [3, 2, 0, 4])  # 14 of 27 tokens in 9 steps
TRTLLM = trtllm("a", histogram=[2, 0, 3])  # 6 of 10 tokens
BENCH = vllm_bench([0.7, 0.5, 0.4])  # 100 drafts, 160 of 300 tokens

# format, a sound object, path of a field, values that are sound as well, a value that is not, what the line says
OBJECTS = [
    ("vllm-detailed", DETAILED, (*IN_VLLM, "acceptance_histogram"), [[1, 1, 0, 1], [2, 1, 0, 1, 0], None],
     [2, 2, 0, 1], "acceptance_histogram[1]: must be 1, as many steps of per_step_accepted kept 1 tokens, got 2"),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "acceptance_histogram"), [], [0, 1, 0, 1], "[0]: must be 2, "),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "acceptance_histogram"), [], [2, 1, 0, 1, 1], "[4]: must be 0, "),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "num_spec_steps"), [3, 4, None], 5, "num_spec_steps: must be 4, "),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "num_accepted_draft_tokens"), [4], 5, "tokens: must be 4, the tokens"),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "num_draft_tokens"), [9], 12, "num_draft_tokens: must be 9, the sum"),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "draft_acceptance_rate"), [4 / 9, 0.444, 0.44, None], 0.45,
     "draft_acceptance_rate: must be 0.4444: 4 accepted of 9 drafted tokens, got '0.45'"),
    ("vllm-detailed", response("a", [3, 0], [3, 3]), (*IN_VLLM, "mean_acceptance_length"), [2.5], 1.5,
     "mean_acceptance_length: must be 2.5: 1 and 3 accepted tokens in 2 steps, got '1.5'"),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "num_spec_steps"), [9], 8, "num_spec_steps: must be 9, as many steps"),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "num_accepted_draft_tokens"), [14], 13, "must be 14, the tokens that"),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "mean_acceptance_length"), [1 + 14 / 9, 2.56], 2.4, "must be 2.556: 1 and 14"),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "draft_acceptance_rate"), [14 / 27, 0.519], 0.6, "must be 0.5185: 14 acc"),
    ("trtllm", TRTLLM, ("choices", 0, "speculative_decoding", "total_accepted_draft_tokens"), [6], 7,
     "speculative_decoding.total_accepted_draft_tokens: must be 6, the tokens that acceptance_histogram adds up to"),
    ("trtllm", TRTLLM, ("choices", 0, "speculative_decoding", "acceptance_rate"), [0.6], 0.7, "must be 0.6: 6 acc"),
    ("llamacpp-timings", {**timings(30, 40, 12), "usage": {}}, ("usage", "completion_tokens"), [30, None], 31,
     "usage.completion_tokens: must be 30, by timings.predicted_n, got 31"),
    ("llamacpp-timings", timings(30, 40, 12), ("tokens_predicted",), [30], 29, "tokens_predicted: must be 30, by tim"),
    ("vllm-bench", BENCH, ("spec_decode_accepted_tokens",), [159, 161], 200,
     "spec_decode_accepted_tokens: must be about 160, the sum of the 3 rates per position of 100 drafts, got 200"),
    ("vllm-bench", BENCH, ("spec_decode_acceptance_length",), [2.6, None], 3.1, "must be 2.6: 1 and 160 accepted"),
    ("vllm-bench", BENCH, ("spec_decode_acceptance_rate",), [53.33, 160 / 3], 63.33, "must be 53.33: 160 accepted"),
    ("vllm-bench", BENCH, ("spec_decode_draft_tokens",), [250, 300], 301, "the 160 accepted and 100 drafts of 3"),
    ("vllm-bench", BENCH, ("total_output_tokens",), [50, None], 51, "must be 50, the sum of output_lens, got 51"),
    ("vllm-bench", BENCH, ("completed",), [1, 2], 3, "completed: must be at most the 2 answers of output_lens, got 3"),
]  # fmt: skip


@pytest.mark.parametrize(("format_name", "sound", "path", "others", "wrong", "told"), OBJECTS)
def test_objects_that_contradict_themselves(read, refusal, tmp_path, format_name, sound, path, others, wrong, told):
    options = STATED.get(format_name, {})
    for value in others:
        assert read(format_name, write_lines(tmp_path / "x.jsonl", changed(sound, path, value)), **options).requests
    line = refusal(format_name, write_lines(tmp_path / "x.jsonl", changed(sound, path, wrong)), **options)
    assert told in line
    assert len(line.replace(str(tmp_path), "")) <= 300


VLLM = metrics_line([0.921, 0.828, 0.674], 676, 837)
LLAMA = new_llamacpp_lines(516, 564, 374, wording="length")
SHORT = new_llamacpp_lines(516, 564, 374)
DRAFTED = 'draft_tokens_total{engine="0",model_name="m"}'
BY_PLACE = "I slot print_timing: id  0 | task 0 |      acc per pos = (0.809, 0.723, 0.596, 0.525)"

# format, sound lines, what is replaced, by what is sound as well, by what is not, what the line says
LINES = [
    ("vllm-log", [VLLM], "length: 3.42", ["length: 3.4", "length: 3.423"], "length: 2.42",
     "Mean acceptance length: must be 3.423: 1 and the sum of the 3 rates per position, got '2.42'"),
    ("vllm-log", [VLLM], "Accepted: 676", [], "Accepted: 200",
     "Mean acceptance length: must be in [1.239, 1.717]: 200 accepted of 837 drafted tokens, at most 3 a draft"),
    ("vllm-log", [VLLM.replace("Mean acceptance length: 3.42, ", "")], "Accepted: 676", [],
     "Accepted: 200", "Per-position acceptance rate (sum): must be in [0.2374, 0.7183]: 200 accepted of 837"),
    ("vllm-log", [VLLM], "Drafted: 837", ["Drafted: 837"], "Drafted: 9000", "676 accepted of 9000 drafted tokens"),
    ("vllm-log", [VLLM], "rate: 80.8%", ["rate: 81%", "rate: 80.76%"], "rate: 70.8%",
     "Avg Draft acceptance rate: must be 80.76: 676 accepted of 837 drafted tokens, got '70.8'"),
    ("llamacpp-log", LLAMA, "0.723", ["0.809", "0.600"], "0.850",
     "acceptance rate per position[1]: must not exceed the rate before it, 0.809: drafts are kept from their"),
    ("llamacpp-log", [*SHORT[:-1], BY_PLACE], "0.596", ["0.723"], "0.9", "must not exceed the rate before it, 0.723"),
    ("llamacpp-log", LLAMA, "length =  3.65", ["length =  3.6"], "length =  2.65", "mean len: must be in [3.5"),
    ("llamacpp-log", SHORT, "mean len =  3.65", ["mean len = 3.65"], "mean len =  4.65",
     "1 and 374 accepted tokens by the step, 564 drafted, at most 4 a step, 516 answered, got '4.65'"),
    ("llamacpp-log", SHORT, "mean len =  3.65", [], "mean len = 3..65", "mean len: must be a number, got '3..65'"),
    ("llamacpp-log", LLAMA, "acceptance = 0.66312", ["acceptance = 0.663"], "acceptance = 0.76312",
     "draft acceptance: must be 0.6631: 374 accepted of 564 drafted tokens, got '0.76312'"),
    ("llamacpp-log", llamacpp_lines(30, 40, 12), "0.30000", ["0.3"], "0.40000", "draft acceptance: must be 0.3: 12"),
    ("vllm-metrics", counters(100, [70, 50], drafted=150), f"{DRAFTED} 150", [],
     f"{DRAFTED} 100", "accepted_tokens_total: must be at most the 100 of vllm:"),
    ("trtllm-metrics", trtllm_counters([100, 90], [70, 50], by_place=True), "} 70.0", ["} 70"], "} 120.0",
     "trtllm_spec_decode_accepted_tokens_total, position 0: must be at most the 100 drafted there, got 120.0"),
]  # fmt: skip


@pytest.mark.parametrize(("format_name", "sound", "shown", "others", "wrong", "told"), LINES)
def test_lines_that_contradict_themselves(read, refusal, tmp_path, format_name, sound, shown, others, wrong, told):
    options = STATED["vllm-log"] if format_name == "vllm-metrics" else STATED.get(format_name, {})
    text = "\n".join(sound)
    assert text.count(shown) == 1
    for other in [shown, *others]:
        assert read(format_name, write_text(tmp_path / "x.log", text.replace(shown, other)), **options).requests
    line = refusal(format_name, write_text(tmp_path / "x.log", text.replace(shown, wrong)), **options)
    assert told in line
    assert len(line.replace(str(tmp_path), "")) <= 300


def events(*objects, end="data: [DONE]\n\n"):
    return "".join(f"data: {json.dumps(one)}\n\n" for one in objects) + end


CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "x"}}]}
LAST = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
ERROR = {"error": {"message": "out of memory", "code": 500}}
SAID = "error: must not be there, the server did not answer to the end: it said this, got 'out of memory'"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (events(CHUNK, ERROR), SAID),
        (events(CHUNK, end="event: error\ndata: out of memory\n\n"), SAID),
        (events(CHUNK, end='event: error\ndata: {"message": "out of memory"}\n\n'), SAID),
        (events(CHUNK, end='error: {"message": "out of memory"}\n\n'), SAID),
        (events(CHUNK, end=""), "a streamed response that was cut, without a finish_reason and usage"),
        (events(CHUNK, LAST), "a streamed response without its last chunk, of usage; ask for stream_options"),
        (json.dumps(ERROR), "it is an error of a server; save responses"),
        (json.dumps(SUMMARY) + "\n" + json.dumps(ERROR), f"line 2: {SAID}"),
        (events(SUMMARY, ERROR), f"line 3: {SAID}"),
    ],
)
def test_a_server_that_failed_is_quoted_and_a_cut_stream_is_told(refusal, tmp_path, text, told):
    line = refusal("auto", write_text(tmp_path / "x.sse", text))
    assert told in line
    assert "out of memory" in line or "error" not in told
    assert len(line.replace(str(tmp_path), "")) <= 300


# -- files of no known format


RESPONSE = {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": {}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5}}  # fmt: skip
UNKNOWN_BENCH = {"date": "x", "backend": "vllm", "num_prompts": 8, "completed": 8, "request_throughput": 3.0,
                 "mean_ttft_ms": 20.1, "total_input_tokens": 80, "total_output_tokens": 90}  # fmt: skip


def lines(*objects):
    return "".join(json.dumps(one) + "\n" for one in objects).encode()


# name: content, and words that the refusal has to have.
SPOILED = {
    "empty": (b"", ["must hold a JSON object, got 'nothing'"]),
    "blank lines": (b"\n \n\n", ["must hold a JSON object, got 'nothing'"]),
    "a response": (lines(RESPONSE), ["a response without acceptance", "--per-request-spec-decode-metrics"]),
    "a result without speculation": (lines(UNKNOWN_BENCH), ["nearest is vllm-bench", "spec_decode_per_position"]),
    "a misspelt key": (
        lines({"per_step_acceptd": [1], "per_step_drafted": [2], "speculative_decoding": {}}),
        ["nearest is vllm-detailed", "(it has per_step_acceptd)"],
    ),
    "a config": (lines({"model_type": "llama", "architectures": ["A"]}), ["a model's config", "--models"]),
    "shapes": (lines({"name": "a", "parameters": 3, "kv_bytes_per_token": 2}), ["shapes of models", "--models"]),
    "a workload": (lines({"arrives_s": 0, "prompt_tokens": 3, "output_tokens": 2}), ["a workload", "--workload"]),
    "blocks": (lines({"timestamp": 0, "input_length": 3, "output_length": 2, "hash_ids": [1]}), ["a workload"]),
    "prompts": (lines({"id": "a", "prompt": "why"}), ["a list of prompts", "save responses"]),
    "an error": (lines({"error": {"message": "no such model"}}), ["an error of a server"]),
    "a recording": (lines({"format": "x", "kind": "trie", "target": "t"}), ["the meta.json of a recording"]),
    "trtllm-bench": (
        lines({"engine": {}, "performance": {}, "decoding_stats": {"acceptance_length": {"average": 2.4}}}),
        ["a report of trtllm-bench", "avg_decoded_tokens_per_iter"],
    ),
    "an object of nothing": (b"{}", ["must be one that is known", "got 'keys none'"]),
    "other keys": (lines({"foo": 1, "bar": {"baz": 2}}), ["near none", "docs/importing.md", "keys bar, foo"]),
    "thousands of keys": (lines({f"k{number}": number for number in range(20_000)}), ["near none"]),
    "a long key": (lines({"k" * 100_000: 1}), ["near none"]),
    "a long text": (lines({"text": "x" * 1_000_000}), ["near none"]),
    "numbers": (b"[1, 2, 3]", ["near none"]),
    "a number": (b"42", ["near none"]),
    "cut JSON": (b'{"id": "a", "usage": {"prompt', ["JSON: must be one JSON object", "is it cut?"]),
    "a cut array": (b'[{"id": "a"}, {"id"', ["JSON: must be one JSON object"]),
    "single quotes": (b"{'id': 'a'}", ["JSON: must be one JSON object"]),
    "a list of texts": (b'["a", "b"]', ["JSON: must be one JSON object", "a text"]),
    "deep JSON": (b'{"a": ' + b"[" * 50_000, ["JSON", "nested too deep"]),
    "prose": (b"Dear reader,\nthis is no log.\n", ["near none", "'Dear reader, this is no log.'"]),
    "a line without end": (b"word " * 200_000, ["near none"]),
    "a table": (b"time,prompt,output\n0,3,4\n", ["near none"]),
    "YAML": (b"model: m\nspec:\n  - a\n", ["near none"]),
    "a log of vLLM without drafts": (
        b"INFO 05-18 11:19:54 [loggers.py:127] Engine 000: Avg prompt throughput: 3.2 tokens/s, Avg generation "
        b"throughput: 9 tokens/s (vllm)\n",
        ["speculative decoding is off", "SpecDecoding metrics:"],
    ),
    "a log of llama.cpp without answers": (
        b"srv  init: initializing slots\nslot get_availabl: id 0\nllama_context: n_ctx = 4096\n",
        ["nearest is llamacpp-log"],
    ),
    "a page of counters": (
        b"# HELP http_requests_total Requests.\n# TYPE http_requests_total counter\nhttp_requests_total 3\n",
        ["nearest is vllm-metrics"],
    ),
    "a printed result": (
        b"============ Serving Benchmark Result ============\nSuccessful requests: 80\n",
        ["nearest is", "-bench"],
    ),
    "a page": (b"<!DOCTYPE html>\n<html><body>502 Bad Gateway</body></html>", ["a page of a web server"]),
    "control characters": (b"\x1b[31mred\x1b[0m \x07\n", ["near none"]),
    "UTF-16": ("\ufeff{}".encode("utf-16-le"), ["UTF-16", "save it as UTF-8"]),
    "Latin-1": ("caf\u00e9 du monde\n".encode("latin-1"), ["near none"]),
    "NUL bytes": (b"a\x00b\x00c", ["must be text or JSON"]),
    "random bytes": (bytes(range(256)) * 40, ["must be text or JSON"]),
    "gzip without its name": (gzip.compress(b"{}" * 40), ["it is gzip; name it .gz"]),
    "zip": (b"PK\x03\x04" + b"\x00" * 60, ["an archive", "unpack it"]),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"\x01" * 60, ["an archive"]),
    "bzip2": (b"BZh9" + b"\x01" * 60, ["an archive"]),
    "Parquet": (b"PAR1" + b"\x00" * 60, ["a columnar table"]),
    "SQLite": (b"SQLite format 3\x00" + b"\x00" * 60, ["a database"]),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3", ["a picture or a page"]),
    "a stream of nothing": (b": ping\n\n: ping\n\n", ["must hold a JSON object, got 'nothing'"]),
    "a stream of other things": (b'data: {"a": 1}\n\n', ["near none"]),
    "a stream without data": (b'data: {"a": 1}\n\n{"b": 2}\n', ["event: must be data: {...}"]),
    "a stream of prose": (b"data: hello\n\n", ["near none"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("folder", [".", "logs of some server/on some day"])
def test_one_short_line_says_what_it_is_and_what_to_save(tmp_path, monkeypatch, name, folder):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    content, words = SPOILED[name]
    path = os.path.relpath(place / "my file.log")
    (tmp_path / path).write_bytes(content)
    told = refused("trace", "import", "auto", path, "--out", "x.trace")
    assert told.startswith(f"{path}: ")
    assert len(f"paceline: error: {told}") <= 300
    assert "\n" not in told
    assert told.isprintable()
    for word in words:
        assert word in told
    assert not (tmp_path / "x.trace").exists()


def test_a_cut_file_of_every_format_is_short_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, files in one_file_each(tmp_path).items():
        half = files[0].read_bytes()
        (tmp_path / "half").write_bytes(half[: len(half) // 3].replace(b"accept", b"acept").replace(b"spec_", b"spek_"))
        for form in ("auto", name):
            ran = paceline("trace", "import", form, "half", "--out", "x.trace")
            assert ran.code == (0 if name == "llamacpp-log" else 2), (name, form)  # a log ends anywhere
            assert len(ran.told) <= 300, (name, form)
            shutil.rmtree(tmp_path / "x.trace", ignore_errors=True)


@pytest.mark.parametrize("name", sorted(format_names()))
def test_a_file_of_another_format_is_refused_shortly_by_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "prose.txt", "nothing of the kind")
    told = refused("trace", "import", name, "prose.txt", "--out", "x.trace")
    assert told.startswith("prose.txt: ")
    assert len(told) <= 300


# -- NaN and Infinity, as Python writes them into JSON: they pass where nobody reads, and are refused by name elsewhere


def numbers(found, path=()):
    """Paths of all numbers within JSON."""
    if isinstance(found, (dict, list)):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from numbers(value, (*path, key))
    elif not isinstance(found, (str, bool, type(None))):
        yield path


def refused_import(name, files, out):
    """Why an import is refused; None if it is not."""
    try:
        import_recording(name, files, out, ImportOptions(name="x", **STATED.get(name, {})))
    except TraceFormatError as error:
        return str(error)
    return None


def read_back(out):
    trace = read_rounds(out)
    return trace.meta.model_dump_json(), [repr(request) for request in trace.requests]


OF_JSON = (
    *("spec-bench", "eagle-timed", "vllm-detailed", "positions", "frontier", "vllm-summary", "sglang-meta", "trtllm"),
    *("llamacpp-timings", "vllm-bench", "sglang-bench"),
)


@pytest.mark.parametrize("name", OF_JSON)
def test_a_number_that_is_none_is_refused_by_its_field_or_read_by_nobody(tmp_path, name):
    files = one_file_each(tmp_path)[name]
    assert refused_import(name, files, tmp_path / "sound.trace") is None
    sound = read_back(tmp_path / "sound.trace")
    refused = unread = 0
    for file in files:
        text = file.read_text()
        found = [json.loads(line) for line in text.splitlines()]
        for number, path in [(number, path) for number, line in enumerate(found) for path in numbers(line)]:
            write_lines(file, *found[:number], changed(found[number], path, float("inf")), *found[number + 1 :])
            out = tmp_path / f"{file.name}-{refused + unread}.trace"
            told = refused_import(name, files, out)
            if told is None:
                assert read_back(out) == sound
                unread += 1
            else:
                key = next(part for part in reversed(path) if isinstance(part, str))
                assert key in told
                assert told.endswith("got inf")
                refused += 1
        file.write_text(text)
    assert refused > 0
