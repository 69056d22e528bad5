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
SOUND = {
    "azure": AZURE,
    "vidur": VIDUR,
    "burstgpt": BURSTGPT,
    "mooncake": MOONCAKE,
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
