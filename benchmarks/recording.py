"""The cost of recording beside decoding the same answers with `generate()` of transformers, at batch 8.

python benchmarks/recording.py [PROMPTS] [--pool pico] [--max-new-tokens 64] [--reach 4 8 16] [--run 8]

A recorded token costs one token of the target at batch 8, and one of each member per context, all at the price of a
token in a wide forward: that is the column `by the formula` (docs/pools-and-recordings.md). `one by one` are recordings
of one request each; `same tokens` is the number of them in which every context and every model's next token equals that
of the recording made together, `other values` the number of other values that differ (float32 rounding depends on the
batch). Seconds are processor seconds of one thread.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from paceline.base.files import shipped
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt, read_prompts
from paceline.runtime.recording.recorder import record
from paceline.runtime.recording.views import view
from paceline.traces import Closure, Sampling
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.contexts.trie import Trie, arrays_of
from paceline_laboratory.findings import table_cell
from shared.report import parser_of, show

BATCH, WIDE = 8, 256
GREEDY = Sampling(mode="greedy")


def processor_s(do: Callable[[], object]) -> float:
    """Processor seconds of a function."""
    started_s = time.process_time()
    do()
    return time.process_time() - started_s


def generate(pool: ModelPool, prompts: Sequence[tuple[int, ...]], max_new_tokens: int) -> None:
    """Answer in batches with left padding."""
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        longest = max(map(len, some))
        pad = [longest - len(prompt) for prompt in some]
        ids = torch.tensor([[0] * left + list(prompt) for left, prompt in zip(pad, some, strict=True)])
        seen = torch.tensor([[0] * left + [1] * (longest - left) for left in pad])
        pool.target.model.generate(
            input_ids=ids, attention_mask=seen, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0
        )


def context_s(pool: ModelPool) -> float:
    """Processor seconds of a context: a token of each member in a wide forward, and its recorded values."""
    total_s, width = 0.0, int(pool.target.model.config.vocab_size)
    levels = [level for level, member in enumerate(pool.members) if member.model is not None]
    for level in levels:
        forward = pool.forward(level, "auto", share_weights=True)
        ids, times = torch.zeros(WIDE, dtype=torch.long), []
        for _ in range(3):
            cache = forward.slot_cache()
            placement = cache.place(["a"], [WIDE])
            times.append(processor_s(lambda: forward(ids, placement, cache, slice(None))))  # noqa: B023 - called here
        total_s += min(times) / WIDE
    logits = [torch.randn(64, width) for _ in levels]
    return total_s + min(processor_s(lambda: view(logits, sampling=GREEDY, noise=None)) for _ in range(3)) / 64


def differing(one: Trie, other: Trie) -> tuple[int, int, int]:
    """Counts of two tries: differing integers (contexts and next tokens), differing floats, and all floats."""
    ours, theirs = arrays_of(one), arrays_of(other)
    counts = {"i": 0, "f": 0}
    for name, values in ours.items():
        kind = "f" if values.dtype.kind == "f" else "i"
        alike = values.shape == theirs[name].shape
        same = alike and np.isclose(values, theirs[name], rtol=0, atol=0, equal_nan=kind == "f")
        counts[kind] += int(values.size - np.sum(same))
    return counts["i"], counts["f"], sum(values.size for values in ours.values() if values.dtype.kind == "f")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("prompts", type=int, nargs="?", default=BATCH)
    parser.add_argument("--pool", default="pico", help="a shipped pool")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--reach", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--run", type=int, default=8)
    options = parser.parse_args()
    pool = ModelPool.load(shipped("pools", options.pool), threads=1, chat=options.pool != "pico")
    every = read_prompts(shipped("pools", options.pool.removesuffix("-feature")) / "prompts.jsonl")
    chosen = every[:: max(1, len(every) // options.prompts)][: options.prompts]  # from every kind of text
    prompts = pool.tokens_of(chosen, options.max_new_tokens)

    def recorded(closure: Closure, some: Sequence[Prompt]) -> TrieRecording:
        tokens = options.max_new_tokens
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "a.trace"
            return record(pool, some, sampling=GREEDY, closure=closure, max_new_tokens=tokens, out=out)

    decoded_s = min(processor_s(lambda: generate(pool, prompts, options.max_new_tokens)) for _ in range(2))
    each_s = context_s(pool)
    rows, read = [], sum(map(len, prompts))
    for reach in options.reach:
        closure = Closure(kind="monotone", reach=reach, run=options.run)
        found, alone = list[TrieRecording](), list[TrieRecording]()
        taken_s = processor_s(lambda: found.append(recorded(closure, chosen)))  # noqa: B023 - called here, as below
        alone_s = processor_s(lambda: alone.extend(recorded(closure, [one]) for one in chosen))  # noqa: B023
        tries = [one.trie for one in found[0].requests]
        tokens, contexts = (
            sum(counts) for counts in zip(*((len(t.trunk) - 1, t.num_nodes) for t in tries), strict=True)
        )
        found_apart = [differing(one, other.requests[0].trie) for one, other in zip(tries, alone, strict=True)]
        _, off, floats = (sum(counts) for counts in zip(*found_apart, strict=True))
        same = sum(not integers for integers, _, _ in found_apart)
        row = {
            "reach": str(reach),
            "contexts a token": f"{contexts / tokens:.1f}",
            "generate(), ms a token": f"{1e3 * decoded_s / tokens:.1f}",
            "record": f"{1e3 * taken_s / tokens:.1f}",
            "by the formula": f"{1e3 * (decoded_s + (read + contexts) * each_s) / tokens:.1f}",
            "one by one": f"{1e3 * alone_s / tokens:.1f}",
            "times generate()": f"{taken_s / decoded_s:.1f}",
            "same tokens": f"{same} of {len(tries)}",
            "other values": f"{off / floats:.1%}",
        }
        rows.append([table_cell(name, value) for name, value in row.items()])
    show(f"{options.pool}, {len(chosen)} prompts, {options.max_new_tokens} new tokens, run {options.run}", rows)


if __name__ == "__main__":
    main()
