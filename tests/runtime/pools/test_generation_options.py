"""Every option of a generation_config.json: `run` writes what `generate()` writes, or refuses the option by name."""

import json
from pathlib import Path

import pytest
import torch
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.configs import OFF_IN_FILES, OPTIONS
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.recorder import record
from paceline.traces.meta import Closure, Sampling
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, GenerationConfig

from ..conftest import EOS, random_llama

NUM_TOKENS = 16
GREEDY = Sampling(mode="greedy")
PROMPT = Prompt(request_id="r0", text="hello there, the ca")
POOL_FILE = """name = "options"
tokenizer = "tokenizer.json"
context_tokens = 64

[[members]]
name = "draft"
submodel_of = "target"
skip_layers = [2]

[[members]]
name = "target"
path = "target"
"""
# A value of each option that is not its default, and that transformers takes.
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
NO_EFFECT = [option for options in OPTIONS["no_effect"].values() for option in options]
# What the greedy text is asked with; they are the run's own, or say what else than ids is returned.
ASKED = {"do_sample": False, "max_new_tokens": NUM_TOKENS, "return_dict_in_generate": False} | {
    option: False for option in OPTIONS["off_in_calls"] if option.startswith("output_")
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_pool) -> Path:
    """A pool; each test writes the options."""
    folder = tmp_path_factory.mktemp("options")
    tiny_pool.tokenizer.save(str(folder / "tokenizer.json"))
    random_llama(11).save_pretrained(folder / "target")
    return folder


def say(folder: Path, options: dict, ignored: tuple[str, ...] = ()) -> None:
    """Write the target's options, and which of them the pool ignores."""
    (folder / "target" / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS} | options))
    key = f"ignore_generation_options = {json.dumps(ignored)}\n" if ignored else ""
    (folder / "pool.toml").write_text(key + POOL_FILE, encoding="utf-8")


def written(folder: Path) -> list[int]:
    """What the pool writes."""
    pool = ModelPool.load(folder)
    policy = make_policy("draft:3/target", loaded_pool(pool))
    ((output,), _) = decode(
        pool, policy, [PROMPT], sampling=GREEDY, max_new_tokens=NUM_TOKENS, name="chain", forward="modules"
    )
    return list(output.tokens)


def stock(folder: Path, **options: object) -> list[int]:
    """What `generate()` writes, with the options in the file but for those given."""
    model = AutoModelForCausalLM.from_pretrained(folder / "target", attn_implementation="sdpa")
    prompt = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(PROMPT.text).ids
    ids = torch.tensor([prompt])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), **(ASKED | options))
    return list(made[0, len(prompt) :].tolist())


def test_the_list_holds_every_option_once():
    """A new version of transformers may bring some."""
    known = sorted(option for option in vars(GenerationConfig()) if not option.startswith("_"))
    listed = sorted([*NO_EFFECT, *OFF_IN_FILES, *set(OPTIONS["off_in_calls"]) - set(NO_EFFECT) - set(OFF_IN_FILES)])
    assert set(known) - set(listed) == set()
    assert len(listed) == len(set(listed))
    assert set(listed) == set(VALUES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("option", NO_EFFECT)
def test_an_option_that_is_let_through_changes_no_text(folder, option):
    say(folder, {} if VALUES[option] is None else {option: VALUES[option]})
    assert written(folder) == stock(folder)


@pytest.mark.parametrize("option", sorted(OFF_IN_FILES))
def test_another_option_is_refused_by_name_and_may_be_ignored(folder, option):
    said = {option: VALUES[option], "do_sample": option == "num_return_sequences"}  # several need chance
    say(folder, said)
    told = rf"generation_config\.json: {option} must be left at .*ignore_generation_options = \[\"{option}\"\]"
    with pytest.raises(PoolFileError, match=told) as caught:
        ModelPool.load(folder)
    assert str(caught.value) in check_pool(folder).problems
    say(folder, {})
    alone = stock(folder)
    say(folder, said, ignored=(option,))
    assert check_pool(folder).works
    assert written(folder) == alone


@pytest.mark.parametrize("option", sorted(OFF_IN_FILES))
def test_an_option_that_is_left_off_is_let_through(folder, option):
    for off in (None, *OFF_IN_FILES[option]):
        say(folder, {option: off})
        assert check_pool(folder).works


def test_penalties_change_texts_here(folder):
    """What the refusal is for: the text of the case."""
    say(folder, {"repetition_penalty": 1.3})
    assert stock(folder) != stock(folder, repetition_penalty=1.0)


def test_options_of_an_instruct_model(folder, tmp_path):
    """As Qwen2.5-Instruct has them: what only sampling reads is let through; the recording tells what is left off."""
    options = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}
    say(folder, options)
    with pytest.raises(PoolFileError, match=r"repetition_penalty must be left at 1, .*got 1\.1$"):
        ModelPool.load(folder)
    say(folder, options, ignored=("repetition_penalty",))
    assert written(folder) == stock(folder, repetition_penalty=1.0)
    trace = record(
        ModelPool.load(folder), [PROMPT], sampling=GREEDY, closure=Closure(kind="monotone", reach=2, run=1),
        max_new_tokens=4, out=tmp_path / "t.trace",
    )  # fmt: skip
    assert trace.meta.origin == "recorded from pool options; repetition_penalty 1.1 of its generation config left off"


def test_what_is_to_be_ignored_must_be_there(folder):
    say(folder, {"temperature": 0.7}, ignored=("temperature",))
    told = (
        r"ignore_generation_options must be options of generation_config\.json .* refused \(none\), got 'temperature'$"
    )
    with pytest.raises(PoolFileError, match=told):
        ModelPool.load(folder)
    assert any("got 'temperature'" in problem for problem in check_pool(folder).problems)


def test_options_in_a_config_without_the_other_file_count(folder):
    """As `generate()` reads models saved before there was a generation_config.json."""
    say(folder, {})
    (folder / "target" / "generation_config.json").unlink()
    file = folder / "target" / "config.json"
    before = file.read_text()
    try:
        file.write_text(json.dumps(json.loads(before) | {"eos_token_id": EOS, "no_repeat_ngram_size": 2}))
        with pytest.raises(PoolFileError, match=r"config\.json: no_repeat_ngram_size must be left at 0"):
            ModelPool.load(folder)
    finally:
        file.write_text(before)


def test_options_that_transformers_cannot_read_are_one_line(folder):
    say(folder, {"max_new_tokens": -3})
    (problem,) = check_pool(folder).members[1].problems
    assert "generation_config.json: content must be options of generation that transformers reads" in problem
