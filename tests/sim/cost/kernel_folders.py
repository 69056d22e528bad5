"""Folders of kernel tables whose seconds follow formulas, in the schema in which aiconfigurator publishes its own."""

from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

H100 = "NVIDIA H100 80GB HBM3"
WIDE = (64, 1024, 2048, 4096, 65_536)
TOKENS = (1, 16, 256, 16_384)
ROWS = (1, 8, 64)
STEPS = (1, 255, 4095)
PROMPT = (1, 64, 4096)


def gemm_ms(n, k, m):
    return 0.002 + n * k / 1.25e9 + n * k * m / 2.5e11


def decoding_ms(rows, step, kv_heads=8):
    return 0.004 + rows * step * kv_heads / 4e6


def prompt_ms(rows, isl):
    return 0.003 + rows * isl * isl / 4e6


def experts_ms(tokens):
    return 0.02 + tokens / 1e3


def reduce_ms(elements):
    return 0.004 + elements / 1e8


def put(folder, operation, engine, version, name, rows):
    """Write a table of rows, each a dict of its columns without those that all tables have."""
    path = Path(folder) / operation / engine / version / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    same = {"framework": engine, "version": version, "device": H100, "op_name": operation, "kernel_source": "kernel"}
    pq.write_table(pa.Table.from_pylist([same | row for row in rows]), path, compression="zstd")
    return path


def gemm(dtype="bfloat16", ms=gemm_ms, wide=WIDE):
    return [
        {"gemm_dtype": dtype, "n": n, "k": k, "m": m, "latency": ms(n, k, m)} for n, k, m in product(wide, wide, TOKENS)
    ]


def attention(heads, kv_heads, head_size=128, kv_dtype="bfloat16"):
    """(rows of decoding, rows of prompts)."""
    same = {
        "num_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_size, "attn_dtype": "bfloat16",
        "kv_cache_dtype": kv_dtype, "window_size": 0,
    }  # fmt: skip
    decoding = [
        same | {"batch_size": rows, "isl": 1, "step": step, "latency": decoding_ms(rows, step, kv_heads)}
        for rows, step in product(ROWS, STEPS)
    ]
    prompts = [
        same | {"batch_size": rows, "isl": isl, "step": 0, "latency": prompt_ms(rows, isl)}
        for rows, isl in product(ROWS, PROMPT)
    ]
    return decoding, prompts


def folder(path, engine="vllm", *, heads=(32, 8), head_size=128, dtypes=("bfloat16",)):
    """A folder that knows models with such heads of queries and of keys, on one device and on two."""
    put(path, "gemm", engine, "0.9.0", "gemm_perf", [row for dtype in dtypes for row in gemm(dtype)])
    both = [attention(heads[0] // split, heads[1] // split, head_size) for split in (1, 2)]
    put(path, "attention", engine, "0.9.0", "generation_attention_perf", [row for rows, _ in both for row in rows])
    put(path, "attention", engine, "0.9.0", "context_attention_perf", [row for _, rows in both for row in rows])
    reduce = [
        {"allreduce_dtype": "bfloat16", "num_gpus": 2, "message_size": size, "latency": reduce_ms(size)}
        for size in (128, 2**16, 2**26)
    ]
    put(path, "comm", engine, "0.9.0", "custom_allreduce_perf", reduce)
    return path
