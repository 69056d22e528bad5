"""Pools on disk, what they write, and what `generate()` and a replay write in their place."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.sim import Scenario, TrieTables, simulate
from paceline.sim.recorded import recorded_pool
from paceline.traces.meta import Sampling
from transformers import AutoModelForCausalLM

from ...unit_cost import UnitCost
from ..conftest import EOS

GREEDY = Sampling(mode="greedy")
COUPLED = Sampling(mode="coupled", temperature=0.7, seed=3)
NGRAM = '[[members]]\nname = "ngram"\nngram = { max_match = 3 }\n'
# A value of each option of generation that is not its default, and that transformers takes.
VALUES = {
    "max_length": 30, "max_new_tokens": 3, "do_sample": True, "temperature": 0.7, "top_k": 2, "top_p": 0.8,
    "min_p": 0.2, "top_h": 0.4, "typical_p": 0.5, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "early_stopping": True,
    "length_penalty": 2.0, "diversity_penalty": 0.5, "low_memory": True, "eos_token_id": [EOS, 5], "pad_token_id": 4,
    "bos_token_id": 6, "decoder_start_token_id": 7, "output_scores": True, "output_logits": True,
    "output_attentions": True, "output_hidden_states": True, "return_dict_in_generate": True, "use_cache": False,
    "cache_config": {"nbits": 4}, "max_cache_len": 60, "prefill_chunk_size": 4, "compile_config": None,
    "disable_compile": True, "continuous_batching_config": None, "num_assistant_tokens": 3,
    "num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.9,
    "prompt_lookup_num_tokens": None, "max_matching_ngram_size": 3, "assistant_lookbehind": 4, "target_lookbehind": 4,
    "assistant_ensemble_weight": 0.5, "speculation_type": "x", "transformers_version": "4.0.0",
    "num_beams": 3, "num_beam_groups": 2, "constraints": [1], "force_words_ids": [[5]], "penalty_alpha": 0.6,
    "dola_layers": "low", "use_mtp": True, "assistant_early_exit": 1, "cache_implementation": "quantized",
    "num_return_sequences": 2, "max_time": 9.0, "stop_strings": ["a"], "is_assistant": True, "token_healing": True,
    "guidance_scale": 1.5, "sequence_bias": [[[5], 9.0]], "encoder_repetition_penalty": 1.5,
    "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2, "bad_words_ids": [[5]],
    "min_length": 40, "min_new_tokens": 9, "forced_bos_token_id": 5, "forced_eos_token_id": 5,
    "remove_invalid_values": True, "exponential_decay_length_penalty": [1, 1.5], "suppress_tokens": [5],
    "begin_suppress_tokens": [5], "watermarking_config": {"bias": 9.0}, "renormalize_logits": True,
}  # fmt: skip


def asked(*texts: str) -> tuple[Prompt, ...]:
    return tuple(Prompt(request_id=f"r{row}", text=text) for row, text in enumerate(texts))


PROMPTS = asked("a", "hello there, how do you do?", "the cat, the ca", "we go!")


def slim(name: str, layer: int) -> str:
    return f'[[members]]\nname = "{name}"\nsubmodel_of = "target"\nskip_layers = [{layer}]\n'


def at(*names: str) -> str:
    """Members in folders of their names."""
    return "".join(f'[[members]]\nname = "{name}"\npath = "{name}"\n' for name in names)


def write(folder: Path, tokenizer, members: str, *, name: str = "p", **models) -> Path:
    """A pool file of such members, and models by folder."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for place, model in models.items():
        model.save_pretrained(folder / place)
    head = f'name = "{name}"\ntokenizer = "tokenizer.json"\ncontext_tokens = 64\n'
    (folder / "pool.toml").write_text(head + members, encoding="utf-8")
    return folder


def change_json(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | values), encoding="utf-8")


def ran(pool: ModelPool, policy: str, prompts: Sequence[Prompt] = PROMPTS, *, num_tokens=16, batch=2, **options):
    """The answers of a run, greedy unless told otherwise."""
    built = make_policy(policy, loaded_pool(pool))
    given = {"sampling": GREEDY} | options
    outputs, _ = decode(pool, built, prompts, max_new_tokens=num_tokens, name=policy, batch=batch, **given)
    assert {output.finish_reason for output in outputs} <= {"eos", "length"}
    return [list(output.tokens) for output in outputs]


def stock(pool: ModelPool, folder: Path, prompts: Sequence[Prompt] = PROMPTS, *, num_tokens=16, **options):
    """The answers of `generate()` of transformers."""
    model = AutoModelForCausalLM.from_pretrained(str(folder / "target"), dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = torch.tensor([pool.encode(prompt.text)])
        given = {"max_new_tokens": num_tokens, "do_sample": False} | options
        made = model.generate(ids, attention_mask=torch.ones_like(ids), **given)
        answers.append(made[0, ids.shape[1] :].tolist())
    return answers


def replayed(trace, policy: str):
    """The answers of a simulation, and its log."""
    tokens: dict[str, list[int]] = {}
    scenario = Scenario(tables=TrieTables(trace), cost=UnitCost())
    log = simulate(scenario, make_policy(policy, recorded_pool(trace)), policy, outputs=tokens)
    return [tokens[request.request_id] for request in trace.requests], log


def trunks(trace):
    """The recorded answers."""
    return [request.trie.token[request.trie.trunk[1:]].tolist() for request in trace.requests]
