"""A small sound file of every format that workloads are read from, as text."""

import gzip
import json

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.9799600,4808,10
2023-11-17 00:00:00.0319600,3180,8
2023-11-17 00:00:00.0319600,110,27
"""
VIDUR = """arrived_at,num_prefill_tokens,num_decode_tokens
0.0,374,44
5.8926549999999995,396,109
9.5e1,91,16
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,ChatGPT,472,18,490,Conversation log
19440155.5,GPT-4,1087,230,1317,API log
"""


def lines(*objects):
    return "".join(f"{json.dumps(one)}\n" for one in objects)


def mooncake_row(timestamp, tokens, ids):
    return {"timestamp": timestamp, "input_length": tokens, "output_length": 5, "hash_ids": ids}


MOONCAKE = lines(mooncake_row(0, 1025, [0, 1, 2]), mooncake_row(27482, 512, [0]), mooncake_row(27482, 1500, [0, 1, 7]))


def turn(t, tokens, think=None, api=None, out=7, **blocks):
    found = {"t": t, "type": "n", "model": "m", "in": tokens, "out": out, "stop": "", **blocks}
    return found | ({"think_time": think} if think is not None else {}) | ({"api_time": api} if api is not None else {})


def compact(t, tokens, kept, runs, **more):
    count = kept + sum(last - first + 1 for first, last in runs)
    return turn(t, tokens, reuse_prev=kept, new_runs=runs, n_blocks=count, **more)


def session(name, *requests, scope="local"):
    return {"id": name, "models": [], "block_size": 64, "hash_id_scope": scope, "requests": list(requests)}


AGENTS = lines(
    session(
        "one",
        compact(0.0, 130, 0, [[1, 2]], think=0.0, api=7.34),
        compact(19.0, 200, 2, [[3, 3]], think=12.0, api=2.0),
        {
            "t": 31.5,
            "type": "subagent",
            "agent_id": "a",
            "duration_ms": 10_000,
            "requests": [
                compact(0.0, 64, 0, [[9, 9]], think=0.0, api=1.0),
                compact(4.0, 128, 1, [[10, 10]], think=2.0),
            ],
        },
        compact(45.0, 256, 3, [[4, 4]], think=24.0, api=1.0),
    ),
    session("two", compact(0.0, 70, 0, [[1, 1]])),
)
OWN = lines(
    {"workload": "mine", "unit_tokens": 16},
    {"arrives_s": 0.1, "prompt_tokens": 20, "output_tokens": 3, "tag": "math", "slo": "fast", "blocks": [5, 6]},
    {
        "request_id": "b",
        "arrives_s": 2,
        "prompt_tokens": 16,
        "output_tokens": 4,
        "turns": [{"wait_s": 1.5, "prompt_tokens": 40, "output_tokens": 2, "blocks": [5, 7]}],
    },
)
SPLITWISE = """request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
0,2,0,0.0,1,2162,5
1,2,0,0.36,1,2399,6
"""


def bailian_row(chat, parent, timestamp, tokens, ids, turn=1):
    found = {"chat_id": chat, "parent_chat_id": parent, "timestamp": timestamp, "input_length": tokens}
    return {**found, "output_length": 9, "type": "text", "turn": turn, "hash_ids": ids}


BAILIAN = lines(
    bailian_row(159, -1, 61.114, 40, [7, 8, 9]),
    bailian_row(3, -1, 61.2, 16, [4]),
    bailian_row(160, 159, 63, 60, [7, 8, 11, 12], turn=2),
)
# Whole prompts, as Dynamo writes them, and rows that add to what was before, as AIPerf does.
MOONCAKE_SESSIONS = lines(
    {"session_id": "a", "timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]},
    {"session_id": "b", "timestamp": 100, "input_length": 300, "output_length": 40},
    {
        "session_id": "a",
        "timestamp": 500,
        "delay": 120,
        "input_length": 1100,
        "output_length": 5,
        "hash_ids": [46, 48, 49],
    },
    {"session_id": "b", "delay": 2.5, "input_length": 900, "output_length": 20},
    {"timestamp": 700, "input_length": 10, "output_length": 4},
)
LLMSERVINGSIM = lines(
    {"input_toks": 40, "output_toks": 3, "arrival_time_ns": 46926808, "input_tok_ids": list(range(40))},
    {
        "session_id": "s",
        "arrival_time_ns": 347938951,
        "sub_requests": [
            {"input_toks": 33, "output_toks": 7, "tool_duration_ns": 1500000, "input_tok_ids": [*range(32), 99]},
            {"input_toks": 9, "output_toks": 2, "tool_duration_ns": 0},
        ],
    },
)
DETAILS = lines(
    {
        "completed": 3,
        "total_input_tokens": 36,
        "input_lens": [10, 12, 14],
        "output_lens": [50, 100, 151],
        "start_times": [5.3, 5.1, 5.25],
        "ttfts": [0.1, 0.1, 0.1],
    }
)
SOUND = {
    "azure": AZURE,
    "vidur": VIDUR,
    "burstgpt": BURSTGPT,
    "splitwise": SPLITWISE,
    "mooncake": MOONCAKE,
    "mooncake-sessions": MOONCAKE_SESSIONS,
    "bailian": BAILIAN,
    "llmservingsim": LLMSERVINGSIM,
    "vllm-bench": DETAILS,
    "agent-sessions": AGENTS,
    "paceline": OWN,
}


def write(folder, text, name="load", *, zipped=False):
    data = text if isinstance(text, bytes) else text.encode()
    path = folder / (f"{name}.gz" if zipped else name)
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


def all_of(workload):
    """Every request, sessions followed as if each ended 2 seconds after it arrived."""
    found = []
    for arrival in workload:
        left = arrival
        while left is not None:
            found.append(left)
            left = next(iter(left.turns.after(left.arrives_ps + 2 * 10**12)), None) if left.turns else None
    return found
