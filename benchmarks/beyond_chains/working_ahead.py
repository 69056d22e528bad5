"""The gain from working ahead on this machine's processors: in turns of one thread, and in a thread per member.

The pools are pico and random decoders of other widths, whose drafts are some of their target's layers. A step lies
between two verdicts of the target. All ways answer the same; prefills are left out.

python benchmarks/beyond_chains/working_ahead.py [--runs 3] [--tokens 32] [--batch 1] [--widths 512,1024]
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from paceline.decoding.results import VERIFY
from paceline.policies import make_policy
from paceline.runs.log import RunLog
from paceline.runtime.decode import decode
from paceline.runtime.forward_kinds import AheadKind
from paceline.runtime.pools.members import LoadedMember, loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.prompts import Prompt
from paceline.studies.decode import load_pool
from paceline.traces.meta import Sampling
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.replays import in_turns
from shared.report import parser_of, show
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

CHAINS = ("draft:4/target", "draft:2/mid:4/target")
AHEAD = ("pearl,window=4", "dsi,window=4", "pipespec,middle=mid,window=4")
WAYS: tuple[AheadKind, ...] = ("turns", "threads")
NUM_LAYERS, VOCABULARY, CONTEXT = 8, 1024, 256
KEPT = {"draft": (0,), "mid": (0, 1, 2)}  # layers of the target
# Scale of the output of layers after the first: small enough for drafts of few layers to agree often.
SHARE = 0.02


class Pace(NamedTuple):
    """The pace of one run without prefills: seconds of a step of all requests, and its tokens for one of them."""

    step_s: float
    tokens_per_step: float


class Size(NamedTuple):
    """The amount of work: concurrent answers, tokens of each, and runs."""

    batch: int
    num_tokens: int
    runs: int


def random_pool(width: int) -> ModelPool:
    """Random decoders of 8, 3 and 1 layers of `width`."""
    target = random_llama(width)
    each = {
        name: make_submodel(target, tuple(layer for layer in range(NUM_LAYERS) if layer not in kept))
        for name, kept in KEPT.items()
    } | {"target": target}
    tokenizer = Tokenizer(models.WordLevel({f"t{token}": token for token in range(VOCABULARY)}, unk_token="t1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return ModelPool(
        name=f"random {width}",
        members=tuple(member(name, model) for name, model in each.items()),
        tokenizer=tokenizer,
        tokenizer_sha256="0" * 64,
        eos_token_ids=(0,),
        context_tokens=CONTEXT,
    )


def random_llama(width: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
    for layer in model.model.layers[1:]:
        layer.self_attn.o_proj.weight.mul_(SHARE)
        layer.mlp.down_proj.weight.mul_(SHARE)
    return model


def member(name: str, model: LlamaForCausalLM) -> LoadedMember:
    return LoadedMember(
        name=name,
        kind="model" if name == "target" else "submodel",
        model=model,
        lookup=None,
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        num_layers=model.config.num_hidden_layers,
        hidden_size=model.config.hidden_size,
        kv_bytes_per_token=8 * model.config.num_hidden_layers * model.config.hidden_size,
        dtype="float32",
    )


def prompts_of(pool: ModelPool, count: int) -> tuple[Prompt, ...]:
    """Prompts in words of a language, or random ones."""
    if pool.name == "pico":
        texts = [f"Let us count: {number}, {number + 1}, {number + 2}," for number in range(count)]
    else:
        drawn = np.random.default_rng(0).integers(1, VOCABULARY, (count, 16))
        texts = [" ".join(f"t{token}" for token in row) for row in drawn.tolist()]
    return tuple(Prompt(request_id=f"r{number}", text=text) for number, text in enumerate(texts))


def pace_of(log: RunLog) -> Pace:
    """Mean seconds and tokens of a target's verdict."""
    steps, ops = log.steps, log.ops
    prefills = set(steps["op"][steps["prefill"] == 1].tolist())
    seconds = end_s = 0.0
    for index, (start_s, taken_s) in enumerate(zip(ops["start_s"], ops["duration_s"], strict=True)):
        if index not in prefills:  # concurrent operations count once
            seconds += max(0.0, float(start_s + taken_s) - max(end_s, float(start_s)))
            end_s = max(end_s, float(start_s + taken_s))
    target = len(log.meta["members"]) - 1
    verdicts = (ops["level"] == target) & (ops["kind"] == VERIFY)
    return Pace(seconds / (int(verdicts.sum()) - len(prefills)), float(log.rounds()["emitted"].mean()))


def run(pool: ModelPool, policy: str, way: AheadKind, size: Size) -> Pace:
    _, log = decode(
        pool,
        make_policy(policy, loaded_pool(pool)),
        prompts_of(pool, size.batch),
        sampling=Sampling(mode="greedy"),
        max_new_tokens=size.num_tokens,
        name=policy,
        batch=size.batch,
        overlap=way,
    )
    return pace_of(log)


def rows(pools: Sequence[ModelPool], size: Size) -> Iterator[list[Cell]]:
    for pool in pools:
        wanted = [("plain", "turns"), *((chain, "turns") for chain in CHAINS), *((a, w) for a in AHEAD for w in WAYS)]
        jobs = {(policy, way): partial(run, pool, policy, way, size) for policy, way in wanted}
        found = {
            name: Pace(*(median(column) for column in zip(*each, strict=True)))
            for name, each in in_turns(jobs, runs=size.runs, warm_ups=1).items()
        }
        for (policy, way), pace in found.items():
            alone = found[policy, "turns"]
            yield [
                table_cell("pool", pool.name),
                table_cell("policy", policy),
                table_cell("in", way if policy in AHEAD else "-"),
                table_cell("ms a step", 1e3 * pace.step_s, digits=1),
                table_cell("of turns", f"{alone.step_s / pace.step_s:.2f}x" if way == "threads" else "-"),
                table_cell("tokens a step", pace.tokens_per_step, digits=2),
                table_cell("tokens/s", size.batch * pace.tokens_per_step / pace.step_s, digits=1),
            ]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--batch", type=int, default=1, help="answers side by side")
    parser.add_argument("--widths", default="512,1024", help="of random decoders")
    options = parser.parse_args()
    size = Size(options.batch, options.tokens, options.runs)
    pools = [load_pool(None, threads=1), *(random_pool(int(width)) for width in options.widths.split(","))]
    each = 1 + len(CHAINS) + len(AHEAD) * len(WAYS)
    lines = range(each - 1, each * len(pools) - 1, each)
    title = f"{size.batch} at a time, {size.num_tokens} tokens each, medians of {size.runs} runs in turn"
    show(title, rows(pools, size), lines=lines)


if __name__ == "__main__":
    main()
