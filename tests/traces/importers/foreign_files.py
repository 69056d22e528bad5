"""Small files of every foreign format, made up here."""

import gzip
import json

from paceline.traces.importers import Load


def write_lines(path, *objects):
    text = "".join(json.dumps(found) + "\n" for found in objects).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def answer(question, *turns, method="sps", category="math", key="accept_lengths", wall_s=0.5, **more):
    """A line of a spec-bench answer file; a turn is the tokens that each of its steps emitted."""
    choice = {
        "index": 0,
        "turns": ["text"] * len(turns),
        "decoding_steps": [len(turn) for turn in turns],
        "new_tokens": [sum(turn) for turn in turns],
        "wall_time": [wall_s] * len(turns),
        key: [length for turn in turns for length in turn],
        **more,
    }
    return {
        "question_id": question,
        "category": category,
        "model_id": f"toy-7b-{method}-float16",
        "choices": [{name: value for name, value in choice.items() if value is not None}],
    }


def timed_answer(question, *turns):
    """A line of the answers beside a timing file; a turn is the drafted tokens that each step kept."""
    tokens = [sum(turn) + len(turn) for turn in turns]
    idxs = [len(turn) - 1 for turn in turns]
    choice = {"turns": ["text"] * len(turns), "idxs": idxs, "new_tokens": tokens, "wall_time": [1.0] * len(turns)}
    return {"question_id": question, "model_id": "toy", "choices": [choice]}


def timing(*turns, depth=7, second=0.01):
    """A line of a timing file."""
    steps = [[second * (1 + step / 10) for step in range(len(turn))] for turn in turns]
    return {
        "generate_time": [10 * second * len(turn) for turn in turns],
        "processor_time": [second / 1000] * len(turns),
        "kv_time": [second / 100] * len(turns),
        "reset_tree_time": [second] * len(turns),
        "tree_time": steps,
        "eval_time": [[second / 10] * len(turn) for turn in turns],
        "update_time": [[second / 2] * len(turn) for turn in turns],
        "accept_length": [list(turn) for turn in turns],
        "draft_length": [[depth] * len(turn) for turn in turns],
    }


def steps(accepted, drafted):
    histogram = [accepted.count(count) for count in range(max([*drafted, 0]) + 1)]
    return {
        "acceptance_histogram": histogram,
        "num_spec_steps": len(accepted),
        "per_step_accepted": accepted,
        "per_step_drafted": drafted,
    }


def response(name, accepted, drafted, *, tokens=None, prompt_tokens=11):
    explained = sum(accepted) + len(accepted) + 1
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": explained if tokens is None else tokens}
    metrics = {"speculative_decoding": steps(accepted, drafted)}
    return {"id": name, "choices": [{"index": 0}], "usage": usage, "metrics": metrics}


def positions(name, **drafters):
    """A line of a positions file."""
    return {"id": name, "tag": "code", "prompt_tokens": 3, "drafters": drafters}


def frontier(committed, scheduled=None):
    found = {"per_request_committed_tokens_per_iteration": committed}
    return found if scheduled is None else {**found, "per_request_scheduled_draft_tokens_per_iteration": scheduled}


def plain_response(name, *, tokens=6, prompt_tokens=11):
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    return {"id": name, "usage": usage, "metrics": {"speculative_decoding": None}}


def summary(name, histogram, *, tokens=None, drafted=None, prompt_tokens=11):
    steps, accepted = sum(histogram), sum(kept * times for kept, times in enumerate(histogram))
    window = len(histogram) - 1
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": steps + accepted + 1 if tokens is None else tokens}
    metrics = {
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": steps * window if drafted is None else drafted,
        "num_spec_tokens": window,
    }
    return {"id": name, "usage": usage, "metrics": {"speculative_decoding": metrics}}


def sglang(name, steps, tokens, *, histogram=None, window=3, **more):
    meta = {"id": name, "prompt_tokens": 9, "completion_tokens": tokens, "spec_verify_ct": steps, **more}
    if histogram is not None:
        meta["spec_accept_histogram"] = histogram
    if steps and window is not None:
        meta["spec_num_proposed_drafts"] = steps * window
    return {"text": "...", "meta_info": meta}


def trtllm(name, *, histogram=None, mean=None, tokens=None):
    choice = {"index": 0, "finish_reason": "stop"}
    if mean is not None:
        choice["avg_decoded_tokens_per_iter"] = mean
    if histogram is not None:
        steps = sum(histogram)
        choice["speculative_decoding"] = {
            "total_draft_tokens": steps * (len(histogram) - 1),
            "num_spec_steps": steps,
            "acceptance_histogram": histogram,
            "num_spec_tokens": len(histogram) - 1,
        }
        accepted = sum(kept * times for kept, times in enumerate(histogram))
        tokens = steps + accepted + 1 if tokens is None else tokens
    return {"id": name, "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}}


def timings(tokens, drafted=None, accepted=0, **more):
    found = {"cache_n": 4, "prompt_n": 20, "prompt_ms": 55.5, "predicted_n": tokens, "predicted_ms": 900.5, **more}
    return {"content": "...", "timings": found if drafted is None else
            {**found, "draft_n": drafted, "draft_n_accepted": accepted}}  # fmt: skip


WORDINGS = {  # of the line of drafts, by version
    "rate": "draft acceptance rate = {share:.5f} ( {accepted:4} accepted / {drafted:5} generated)",
    "length": "draft acceptance = {share:.5f} ({accepted:5} accepted / {drafted:5} generated), "
    "mean acceptance length = {length:5.2f}, acceptance rate per position = (0.809, 0.723, 0.596, 0.525)",
    "len": "draft acceptance = {share:.5f} ({accepted:5} accepted / {drafted:5} generated), mean len = {length:5.2f}",
}


def new_llamacpp_lines(tokens, drafted=None, accepted=0, *, wording="len", slot=0, task=0, more=()):
    """The same since 2026: a prefix on each line; `more` are lines of statistics."""
    prefix = f"0.11.730.868 I slot print_timing: id  {slot} | task {task} | "
    lines = [
        f"0.10.655.055 I slot print_timing: id  {slot} | task {task} | n_decoded =    374, tg = 123.96 t/s",
        f"{prefix}prompt eval time =     652.30 ms /   109 tokens (    0.60 ms per token,  1672.55 tokens per second)",
        f"{prefix}       eval time =    4092.97 ms / {tokens:5} tokens (    7.93 ms per token,   126.07 t/s)",
        f"{prefix}      total time =    4745.27 ms / {tokens + 109:5} tokens",
        f"{prefix}   graphs reused =        139",
    ]
    if drafted is not None:
        told = {"share": accepted / drafted, "accepted": accepted, "drafted": drafted}
        lines.append(prefix + WORDINGS[wording].format(**told, length=1 + accepted / max(tokens - 1 - accepted, 1)))
    return [
        *lines,
        *more,
        f"0.11.730.999 I slot      release: id  {slot} | task {task} | stop processing: n_tokens = 9",
    ]


def statistics(begun, drafts, drafted, accepted, *, method="draft-mtp", prefix="I "):
    """What llama.cpp's server logs of a method after each request, since it started."""
    return (
        f"0.11.730.906 {prefix}statistics {method:>16}: #calls(b,g,a) = {begun:4} {drafts:6} {drafts:6}, #gen drafts = "
        f"{drafts:6}, #acc drafts = {drafts:5}, #gen tokens = {drafted:6}, #acc tokens = {accepted:5}, #mean acc len = "
        "3.65, #acc rate/pos = (0.809, 0.723), dur(b,g,a) = 0.003, 662.976, 0.282 ms"
    )


def llamacpp_lines(tokens, drafted=None, accepted=0):
    lines = [
        "slot print_timing: id  3 | task 0 |",
        "prompt eval time =     648.99 ms /   133 tokens (    4.88 ms per token,   204.94 tokens per second)",
        f"       eval time =   30387.12 ms /  {tokens:4} tokens (   14.84 ms per token,    67.40 tokens per second)",
        f"      total time =   31036.11 ms /  {tokens + 133:4} tokens",
    ]
    if drafted is not None:
        told = {"share": accepted / drafted, "accepted": accepted, "drafted": drafted}
        lines.append(WORDINGS["rate"].format(**told))
    return [*lines, "slot      release: id  3 | task 0 | stop processing"]


def counters(drafts, positions, *, requests=None, tokens=0, drafted=None, engine=0, model="m", prefix="vllm:"):
    labels = f'engine="{engine}",model_name="{model}"'
    drafted = drafts * len(positions) if drafted is None else drafted
    name = f"{prefix}spec_decode_num"
    lines = [
        f"# TYPE {name}_drafts_total counter",
        f"{name}_drafts_total{{{labels}}} {drafts}.0",
        f"{name}_draft_tokens_total{{{labels}}} {drafted}.0",
        f"{name}_accepted_tokens_total{{{labels}}} {sum(positions)}.0",
        *(
            f'{name}_accepted_tokens_per_pos_total{{{labels},position="{place}"}} {count}.0'
            for place, count in enumerate(positions)
        ),
    ]
    if requests is not None:
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {requests}.0',
            f"vllm:generation_tokens_total{{{labels}}} {tokens}.0",
            f"vllm:prompt_tokens_total{{{labels}}} {10 * requests}.0",
        ]
    return lines


def llamacpp_counters(drafts, positions):
    name = "llamacpp:spec_decode_num"
    return [
        "llamacpp:tokens_predicted_total 4000",
        f"{name}_drafts_total {drafts}",
        f"{name}_draft_tokens_total {drafts * len(positions)}",
        f"{name}_accepted_tokens_total {sum(positions)}",
        *(f'{name}_accepted_tokens_per_pos_total{{position="{place}"}} {n}' for place, n in enumerate(positions)),
    ]


def trtllm_counters(drafted, accepted, *, requests=4, tokens=220, by_place=False):
    labels, name = 'engine_type="trtllm",model_name="m"', "trtllm_spec_decode"
    if by_place:
        lines = [
            f'{name}_{kind}_tokens_total{{{labels},token_position="{place}"}} {count}.0'
            for kind, counts in (("drafted", drafted), ("accepted", accepted))
            for place, count in enumerate(counts)
        ]
    else:
        lines = [
            f"{name}_num_draft_tokens_total{{{labels}}} {drafted}.0",
            f"{name}_num_accepted_tokens_total{{{labels}}} {accepted}.0",
        ]
    return [
        *lines,
        f"{name}_acceptance_length{{{labels}}} 2.0",
        f'trtllm_request_success_total{{{labels},finished_reason="stop"}} {requests}.0',
        f"trtllm_generation_tokens_total{{{labels}}} {tokens}.0",
        f"trtllm_prompt_tokens_total{{{labels}}} {10 * requests}.0",
    ]


def sglang_counters(*lengths, steps=None, requests=4, tokens=220, depth=3):
    lines = [
        f'sglang:spec_accept_length{{dp_rank="{rank}",model_name="m",tp_rank="{rank}"}} {length}'
        for rank, length in enumerate(lengths)
    ]
    if depth:
        lines.append(f'sglang:spec_num_steps{{model_name="m",tp_rank="0"}} {depth}.0')
    if steps is not None:
        lines += [
            f'sglang:spec_verify_calls_total{{model_name="m"}} {steps}.0',
            f'sglang:generation_tokens_total{{is_streaming="true",model_name="m"}} {tokens - 20}.0',
            'sglang:generation_tokens_total{is_streaming="false",model_name="m"} 20.0',
            f'sglang:prompt_tokens_total{{is_streaming="true",model_name="m"}} {10 * requests}.0',
            f'sglang:num_requests_total{{is_streaming="true",model_name="m"}} {requests}.0',
        ]
    return lines


def metrics_line(rates, accepted, drafted, *, depth=None):
    told = "" if depth is None else f"Current speculative depth: {depth}, "
    shown = ", ".join(f"{rate:.3f}" for rate in rates)
    return (
        "(APIServer pid=1) INFO 05-18 11:19:54 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: "
        f"{1 + sum(rates):.2f}, {told}Accepted throughput: 67.60 tokens/s, Drafted throughput: 83.70 tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {shown}, "
        f"Avg Draft acceptance rate: {100 * accepted / drafted if drafted else float('nan'):.1f}%"
    )


def vllm_bench(rates, *, drafts=100, lens=(20, 30), **more):
    accepted = round(drafts * sum(rates))
    return {
        "completed": len(lens),
        "total_output_tokens": sum(lens),
        "input_lens": [10] * len(lens),
        "output_lens": list(lens),
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": drafts * len(rates),
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": list(rates),
        **more,
    }


def sglang_bench(length, **more):
    totals = {"completed": 2, "total_input_tokens": 20, "total_output_tokens": 50}
    return {"backend": "sglang", "accept_length": length, **totals, **more}


def decode_batch(length, rate, *, running=8, more=""):
    said = "" if length is None else f"accept len: {length:.2f}, "
    said += "" if rate is None else f"accept rate: {rate:.2f}, "
    return (
        f"[2026-05-02 10:11:12 DP0 TP0] Decode batch, #running-req: {running}, #full token: 4096, full token usage: "
        f"0.01, {said}{more}cuda graph: True, gen throughput (token/s): 220.60, #queue-req: 0"
    )


def iteration(number, requests, drafted, accepted, *, generating=None, **more):
    found = {"iter": number, "iterLatencyMS": 20.5, "numActiveRequests": 8, "specDecodingStats": None, **more}
    if generating is not None:
        found["inflightBatchingStats"] = {"numContextRequests": 0, "numGenRequests": generating}
    if drafted is not None:
        found["specDecodingStats"] = {
            "numDraftTokens": drafted,
            "numAcceptedTokens": accepted,
            "numRequestsWithDraftTokens": requests,
            "acceptanceLength": (accepted + requests) / requests if requests else 0.0,
            "iterLatencyMS": 2.5,
            "draftOverhead": 0.1,
        }
    return found


def aiperf(name, accepted, drafted, *, listed=True, phase="profiling", tokens=None, **more):
    """A record of AIPerf's profile_export.jsonl."""
    record = {
        "engine": "vllm",
        "mean_acceptance_length": 1 + sum(accepted) / max(len(accepted), 1),
        "draft_acceptance_rate": sum(accepted) / max(sum(drafted), 1),
        "acceptance_histogram": {str(kept): accepted.count(kept) for kept in sorted(set(accepted))},
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "num_spec_steps": len(accepted),
        "num_spec_tokens": max(drafted),
        "completion_tokens": sum(accepted) + len(accepted) + 1 if tokens is None else tokens,
    }
    if listed:
        record |= {"per_step_accepted": accepted, "per_step_drafted": drafted}
    return {
        "metadata": {"session_num": 0, "x_request_id": name, "benchmark_phase": phase, "was_cancelled": False},
        "metrics": {
            "input_sequence_length": {"value": 12, "unit": "tokens"},
            "request_latency": {"value": 9.5, "unit": "ms"},
        },
        "spec_decode_acceptance": record,
        **more,
    }


def guidellm(*requests, incomplete=0):
    kept = [
        {
            "request_id": found["id"],
            "info": {"timings": {"request_start": 1.5}},
            "input_metrics": {"text_tokens": found["usage"]["prompt_tokens"]},
            "output_metrics": {"text_tokens": found["usage"]["completion_tokens"]},
            "response_metrics": found.get("metrics"),
        }
        for found in requests
    ]
    benchmark = {"requests": {"successful": kept, "incomplete": [{}] * incomplete, "errored": []}}
    return {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "config": {}, "benchmarks": [benchmark]}


def write_text(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write(path, *lines):
    return (write_text if isinstance(lines[0], str) else write_lines)(path, *lines)


# What files do not say themselves, by format.
OF_A_WINDOW = ("llamacpp-timings", "llamacpp-log", "sglang-bench")
OF_A_LOAD = ("vllm-log", "llamacpp-metrics", "sglang-log", "trtllm-iterations", "acceptance-by-k")
STATED = {
    **{key: {"windows": {"drafter": 4}} for key in OF_A_WINDOW},
    **{key: {"load": Load(requests=3, output_tokens=20)} for key in OF_A_LOAD},
}


def one_file_each(folder):
    """A sound file of every format: format name -> files."""
    plain = [answer(1, [1] * 9, [1] * 4, method="vanilla"), answer(2, [1] * 6, method="vanilla", category="qa")]
    sps = [answer(1, [3, 1, 5], [2, 2]), answer(2, [4, 2], category="qa")]
    turns = ([6, 0, 2], [3])
    contents = {
        "spec-bench": {"plain.jsonl": plain, "sps.jsonl": sps},
        "eagle-timed": {"toy_ea_info.jsonl": [timing(*turns), timing([1, 1])],
                        "toy_ea.jsonl": [timed_answer(1, *turns), timed_answer(2, [1, 1])]},
        "vllm-detailed": {"vllm.jsonl": [response("a", [2, 0, 1], [3, 3, 3]), response("b", [1], [2])]},
        "positions": {"pos.jsonl": [positions("a", draft=[3, 2, 1, 1], mid=[1, 1, 2, 1]), positions("b", draft=[1])]},
        "frontier": {"frontier.json": [frontier({"0": [1, 2, 3], "1": [2]}, {"0": [0, 2, 2], "1": [1]})]},
        "vllm-summary": {"summary.jsonl": [plain_response("p"), summary("a", [3, 2, 0, 4]), summary("b", [1, 0, 1])]},
        "sglang-meta": {"sglang.jsonl": [sglang("a", 6, 13, histogram=[3, 1, 1, 1]), sglang("b", 4, 9)]},
        "trtllm": {"trt.jsonl": [trtllm("a", histogram=[2, 0, 3]), trtllm("b", histogram=[1, 1])]},
        "llamacpp-timings": {"llama.jsonl": [timings(30, 40, 12), timings(9), timings(12, 9, 5, prompt_ms=0.0)]},
        "llamacpp-log": {"llama.log": [*llamacpp_lines(30, 40, 12), *llamacpp_lines(9), *llamacpp_lines(12, 9, 5)]},
        "vllm-metrics": {"metrics.prom": counters(100, [70, 50], requests=4, tokens=220)},
        "llamacpp-metrics": {"llama.prom": llamacpp_counters(100, [70, 50])},
        "trtllm-metrics": {"trt.prom": trtllm_counters([100, 90], [70, 50], by_place=True)},
        "sglang-metrics": {"sglang.prom": sglang_counters(2.5, steps=100)},
        "vllm-log": {"vllm.log": ["INFO", metrics_line([0.7, 0.5], 120, 200), metrics_line([0.5, 0.25], 75, 200)]},
        "vllm-bench": {"bench.json": [vllm_bench([0.7, 0.5, 0.4])]},
        "sglang-bench": {"sgbench.jsonl": [sglang_bench(2.5)]},
        "sglang-log": {"sg.log": [decode_batch(2.9, 0.63), decode_batch(2.5, 0.5, running=2)]},
        "trtllm-iterations": {"iters.jsonl": [iteration(1, 0, None, 0), iteration(2, 8, 24, 12, generating=8)]},
        "aiperf": {"profile_export.jsonl": [aiperf("a", [2, 0, 1], [3, 3, 3]), aiperf("b", [1], [2], listed=False)]},
        "guidellm": {"guide.json": [guidellm(response("a", [2, 0, 1], [3, 3, 3]), summary("b", [3, 2, 1]),
                                             plain_response("p"))]},
        "acceptance-by-k": {"golden.json": [{"1": 1.78, "2": 2.38, "3": 2.83}]},
    }  # fmt: skip
    return {name: [write(folder / file, *lines) for file, lines in files.items()] for name, files in contents.items()}
