"""Small files of foreign formats: made up here with what a test asks for, and a sound one of each."""

import json

from ..sheets import IMPORTED, options_of, read_rows, written


def write_text(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_lines(path, *objects):
    return write_text(path, *map(json.dumps, objects))


def answer(question, *turns, **more):
    """A line of a spec-bench answer file; a turn is the tokens that each of its steps emitted."""
    choice = {"index": 0, "turns": ["text"] * len(turns), "decoding_steps": [len(turn) for turn in turns]}
    choice |= {"new_tokens": [sum(turn) for turn in turns], "wall_time": [0.5] * len(turns)}
    choice |= {"accept_lengths": [length for turn in turns for length in turn], **more}
    return {"question_id": question, "category": "math", "model_id": "toy-7b-sps-float16", "choices": [choice]}


def positions(name, **drafters):
    """A line of a positions file."""
    return {"id": name, "tag": "code", "prompt_tokens": 3, "drafters": drafters}


def kept_in(histogram):
    return sum(kept * times for kept, times in enumerate(histogram))


def summary(name, histogram, *, tokens=None):
    steps, window = sum(histogram), len(histogram) - 1
    explained = steps + kept_in(histogram) + 1
    usage = {"prompt_tokens": 11, "completion_tokens": explained if tokens is None else tokens}
    metrics = {"acceptance_histogram": histogram, "num_spec_steps": steps, "num_spec_tokens": window}
    metrics |= {"num_accepted_draft_tokens": kept_in(histogram), "num_draft_tokens": steps * window}
    return {"id": name, "usage": usage, "metrics": {"speculative_decoding": metrics}}


def sglang(name, steps, tokens, *, histogram=None):
    meta = {"id": name, "prompt_tokens": 9, "completion_tokens": tokens, "spec_verify_ct": steps}
    meta |= {"spec_num_proposed_drafts": steps * 3} | ({"spec_accept_histogram": histogram} if histogram else {})
    return {"text": "...", "meta_info": meta}


def trtllm(name, *, histogram):
    steps, window = sum(histogram), len(histogram) - 1
    stats = {"total_draft_tokens": steps * window, "num_spec_steps": steps, "num_spec_tokens": window}
    choice = {"index": 0, "finish_reason": "stop", "speculative_decoding": stats | {"acceptance_histogram": histogram}}
    usage = {"prompt_tokens": 5, "completion_tokens": steps + kept_in(histogram) + 1}
    return {"id": name, "choices": [choice], "usage": usage}


def timings(tokens, drafted, accepted):
    found = {"cache_n": 4, "prompt_n": 20, "prompt_ms": 55.5, "predicted_n": tokens, "predicted_ms": 900.5}
    return {"content": "...", "timings": found | {"draft_n": drafted, "draft_n_accepted": accepted}}


def llamacpp_lines(tokens, drafted, accepted):
    return [
        "slot print_timing: id  3 | task 0 |",
        "prompt eval time =     648.99 ms /   133 tokens (    4.88 ms per token,   204.94 tokens per second)",
        f"       eval time =   30387.12 ms /  {tokens:4} tokens (   14.84 ms per token,    67.40 tokens per second)",
        f"      total time =   31036.11 ms /  {tokens + 133:4} tokens",
        f"draft acceptance rate = {accepted / drafted:.5f} ( {accepted:4} accepted / {drafted:5} generated)",
        "slot      release: id  3 | task 0 | stop processing",
    ]


def counters(drafts, positions, *, requests=None, tokens=0, model="m"):
    labels, name = f'engine="0",model_name="{model}"', "vllm:spec_decode_num"
    kept = f"{name}_accepted_tokens_per_pos_total"
    lines = [
        f"# TYPE {name}_drafts_total counter",
        f"{name}_drafts_total{{{labels}}} {drafts}.0",
        f"{name}_draft_tokens_total{{{labels}}} {drafts * len(positions)}.0",
        f"{name}_accepted_tokens_total{{{labels}}} {sum(positions)}.0",
        *(f'{kept}{{{labels},position="{place}"}} {count}.0' for place, count in enumerate(positions)),
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


def trtllm_counters(drafted, accepted, *, requests, tokens):
    labels, name = 'engine_type="trtllm",model_name="m"', "trtllm_spec_decode"
    return [
        *(f'{name}_drafted_tokens_total{{{labels},token_position="{place}"}} {n}.0' for place, n in enumerate(drafted)),
        *(
            f'{name}_accepted_tokens_total{{{labels},token_position="{place}"}} {n}.0'
            for place, n in enumerate(accepted)
        ),
        f"{name}_acceptance_length{{{labels}}} 2.0",
        f'trtllm_request_success_total{{{labels},finished_reason="stop"}} {requests}.0',
        f"trtllm_generation_tokens_total{{{labels}}} {tokens}.0",
        f"trtllm_prompt_tokens_total{{{labels}}} {10 * requests}.0",
    ]


def sglang_counters(length):
    return [
        f'sglang:spec_accept_length{{dp_rank="0",model_name="m",tp_rank="0"}} {length}',
        'sglang:spec_num_steps{model_name="m",tp_rank="0"} 3.0',
    ]


def metrics_line(rates, accepted, drafted, *, depth=None):
    told = "" if depth is None else f"Current speculative depth: {depth}, "
    shown = ", ".join(f"{rate:.3f}" for rate in rates)
    return (
        "(APIServer pid=1) INFO 05-18 11:19:54 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: "
        f"{1 + sum(rates):.2f}, {told}Accepted throughput: 67.60 tokens/s, Drafted throughput: 83.70 tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {shown}, "
        f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%"
    )


def vllm_bench(rates, *, drafts, lens):
    found = {"completed": len(lens), "total_output_tokens": sum(lens), "input_lens": [10] * len(lens)}
    counts = {"num_drafts": drafts, "draft_tokens": drafts * len(rates), "accepted_tokens": round(drafts * sum(rates))}
    told = counts | {"per_position_acceptance_rates": list(rates)}
    return found | {"output_lens": list(lens)} | {f"spec_decode_{name}": value for name, value in told.items()}


def decode_batch(length, rate):
    return (
        "[2026-05-02 10:11:12 DP0 TP0] Decode batch, #running-req: 8, #full token: 4096, full token usage: 0.01, "
        f"accept len: {length:.2f}, accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): 220.60, "
        "#queue-req: 0"
    )


def iteration(number, requests, drafted, accepted):
    stats = {"numDraftTokens": drafted, "numAcceptedTokens": accepted, "numRequestsWithDraftTokens": requests}
    stats |= {"acceptanceLength": (accepted + requests) / requests, "iterLatencyMS": 2.5, "draftOverhead": 0.1}
    return {"iter": number, "iterLatencyMS": 20.5, "numActiveRequests": 8, "specDecodingStats": stats}


def aiperf(name, accepted, drafted):
    """A record of AIPerf's profile_export.jsonl, without its single steps."""
    record = {
        "engine": "vllm",
        "mean_acceptance_length": 1 + sum(accepted) / len(accepted),
        "draft_acceptance_rate": sum(accepted) / sum(drafted),
        "acceptance_histogram": {str(kept): accepted.count(kept) for kept in sorted(set(accepted))},
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "num_spec_steps": len(accepted),
        "num_spec_tokens": max(drafted),
        "completion_tokens": sum(accepted) + len(accepted) + 1,
    }
    about = {"session_num": 0, "x_request_id": name, "benchmark_phase": "profiling", "was_cancelled": False}
    metrics = {"input_sequence_length": {"value": 12, "unit": "tokens"}}
    return {"metadata": about, "metrics": metrics, "spec_decode_acceptance": record}


def guidellm(request):
    kept = {
        "request_id": request["id"],
        "info": {"timings": {"request_start": 1.5}},
        "input_metrics": {"text_tokens": request["usage"]["prompt_tokens"]},
        "output_metrics": {"text_tokens": request["usage"]["completion_tokens"]},
        "response_metrics": request["metrics"],
    }
    benchmark = {"requests": {"successful": [kept], "incomplete": [], "errored": []}}
    return {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "config": {}, "benchmarks": [benchmark]}


SOUND = {row["format"]: row for row in read_rows(IMPORTED) if row.get("sound")}
# What files do not say themselves, by format.
STATED = {name: options_of(row) for name, row in SOUND.items() if row["options"]}


def one_file_each(folder):
    """A sound file of every format: format name -> files."""
    return {name: written(row, folder) for name, row in SOUND.items()}
