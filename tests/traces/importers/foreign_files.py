"""Small files of foreign formats: made up here with what a test asks for, and a sound one of each."""

import gzip
import json

from ..sheets import IMPORTED, options_of, read_rows, written


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


def positions(name, **drafters):
    """A line of a positions file."""
    return {"id": name, "tag": "code", "prompt_tokens": 3, "drafters": drafters}


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


def llamacpp_lines(tokens, drafted=None, accepted=0):
    lines = [
        "slot print_timing: id  3 | task 0 |",
        "prompt eval time =     648.99 ms /   133 tokens (    4.88 ms per token,   204.94 tokens per second)",
        f"       eval time =   30387.12 ms /  {tokens:4} tokens (   14.84 ms per token,    67.40 tokens per second)",
        f"      total time =   31036.11 ms /  {tokens + 133:4} tokens",
    ]
    if drafted is not None:
        told = {"share": accepted / drafted, "accepted": accepted, "drafted": drafted}
        lines.append(
            "draft acceptance rate = {share:.5f} ( {accepted:4} accepted / {drafted:5} generated)".format(**told)
        )
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


SOUND = {row["format"]: row for row in read_rows(IMPORTED) if row.get("sound")}
# What files do not say themselves, by format.
STATED = {name: options_of(row) for name, row in SOUND.items() if row["options"]}


def one_file_each(folder):
    """A sound file of every format: format name -> files."""
    return {name: written(row, folder) for name, row in SOUND.items()}
