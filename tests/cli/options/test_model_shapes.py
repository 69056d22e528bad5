"""`--models` of `compare` and `trace import`: presets, configs and what is assumed from names."""

import json

import pytest
from paceline.traces.rounds.on_disk import write_rounds

from ...sim.rounds.small_rounds import one_request, recording_of, rounds_of
from ..command_line import done, refused


def recorded(path, *, drafter="eagle3", target="target", **request):
    rounds = rounds_of((0, 2, 4), (3, 4, 4), (8, 2, 4))
    recording = recording_of(
        one_request({"": 11, drafter: 11}, {drafter: rounds}, **request), drafters=((drafter, True, 4),)
    )
    meta = recording.meta.model_copy(update={"name": "served", "target": target})
    write_rounds(iter(recording.requests), lambda: meta, path)
    return path


def compared(trace, *args):
    return json.loads(done("compare", "--trace", trace, *args, "--json", "-"))


def test_names_of_common_logs_answer_at_the_first_try(tmp_path):
    trace = recorded(tmp_path / "served.trace", target="Llama-3.1-8B-Instruct")
    data = compared(trace, "--cost", "h100")
    assert data["meta"]["cost_notes"] == [
        "assumed from names, unless --models says otherwise: eagle3 is the EAGLE-3 head of the target; "
        "Llama-3.1-8B-Instruct is llama-3.1-8b"
    ]
    assert data == compared(trace), "a device is the default where shapes are known"


def test_presets_and_configs_come_to_the_same(tmp_path):
    trace = recorded(tmp_path / "served.trace")
    named = compared(trace, "--models", "llama-3.1-8b")
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14_336,
                "vocab_size": 128_256,
                "dtype": "bfloat16",
            }
        )
    )
    assert compared(trace, "--models", f"target={config}") == named
    both = compared(trace, "--models", "target=llama-3.1-8b", "--models", "eagle3=eagle3")
    assert both["policies"] == named["policies"]
    assert both["meta"]["cost_notes"] == []


ROUNDS = [{"id": "a", "prompt_tokens": 5, "drafters": {"eagle3": [2, 1, 1, 3, 2, 1, 2, 1]}}]


@pytest.mark.parametrize(
    ("first", "shape"),
    [
        ({"model": "meta-llama/Llama-3.1-8B-Instruct"}, "llama-3.1-8b"),
        ({"model_id": "Qwen3-8B", "tokenizer": "x"}, "qwen-3-8b"),
        ({"server": {"model_path": "/models/Qwen2.5-7B-Instruct"}}, "qwen-2.5-7b"),
        ({"model": "mystery"}, None),
        ({"model": "Llama-3.1-8B-Instruct-FP8"}, None),
        ({"models": "Qwen3-8B"}, None),
        ({"text": '"model": "Qwen3-8B"'}, None),
    ],
)
def test_the_model_that_a_log_names_is_the_target(tmp_path, first, shape):
    log = tmp_path / "positions.jsonl"
    log.write_text("\n".join(json.dumps({**first, **line}) for line in ROUNDS))
    done("trace", "import", "positions", log, "--out", tmp_path / "served.trace")
    meta = json.loads((tmp_path / "served.trace" / "meta.json").read_text())
    assert meta["served_model"] == (shape or "")
    if shape is None:
        assert "no shape for target" in refused("compare", "--trace", tmp_path / "served.trace", "--cost", "h100")
        return
    data = compared(tmp_path / "served.trace", "--cost", "h100")
    assert data["meta"]["cost_notes"][0].endswith(f"eagle3 is the EAGLE-3 head of the target; target is {shape}")
    other = compared(tmp_path / "served.trace", "--cost", "h100", "--models", "target=gemma-3-1b")
    assert other["policies"] != data["policies"]


def test_what_copies_text_costs_a_lookup(tmp_path):
    trace = recorded(tmp_path / "served.trace", drafter="ngram-cpu", target="Qwen3-8B")
    data = compared(trace, "--policy", "ngram-cpu:4/Qwen3-8B", "--cost", "h100")
    drafter = data["policies"][0]["levels"][0]
    assert drafter["duration_s"] == pytest.approx(drafter["forwards"] * 1e-5)
    assert data["meta"]["cost_notes"][0].endswith("ngram-cpu copies text; Qwen3-8B is qwen-3-8b")


def test_unknown_names_are_told_with_what_is_known(tmp_path):
    trace = recorded(tmp_path / "served.trace", drafter="mystery")
    told = refused("compare", "--trace", trace, "--cost", "h100")
    assert told.startswith(
        "cost h100: no shape for target, mystery: give --models target=PRESET, target=config.json or"
    )
    assert told.endswith("presets are in docs/costs.md")
    assert len(told) <= 300
    assert "--cost h100 --models target=llama-3.1-8b" in refused("compare", "--trace", trace)


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ("nobody=llama-3.1-8b", "--models must name members of the recording (eagle3, target), got 'nobody'"),
        ("target=mystery", "--models must be a config.json or a preset ("),
        ("target=nowhere.json", "nowhere.json: file: must be a readable file"),
    ],
)
def test_models_that_are_wrong(tmp_path, models, told):
    assert told in refused("compare", "--trace", recorded(tmp_path / "served.trace"), "--models", models)


def test_what_if_the_models_of_a_recording_were_others():
    """Acceptance is the same, seconds are not: a mixture of experts gains less from the same drafts."""
    asked = ("compare", "--cost", "h200", "--policy", "draft:4/target", "--models", "draft=llama-3.2-1b", "--json", "-")
    dense, mixed = (
        json.loads(done(*asked, "--models", f"target={model}")) for model in ("llama-3.1-8b", "qwen-3-30b-a3b")
    )
    for found, speed_up in ((dense, 1.75), (mixed, 0.85)):
        (row,) = (one for one in found["policies"] if one["policy"] == "draft:4/target")
        assert row["speed_up"] == pytest.approx(speed_up, abs=0.01)
        assert row["acceptance_length"] == pytest.approx(3.07, abs=0.01)
        assert any(remark.startswith("WHAT IF: shapes of draft=") for remark in found["meta"]["remarks"])
    assert "--models is for a device of the sheet" in refused("compare", "--models", "llama-3.1-8b")
    assert "seconds of pico are of its own models" in refused("compare", "--models", "llama-3.1-8b", "--on", "h200")


def test_a_cluster_of_other_models():
    asked = ("--models", "draft=llama-3.2-1b", "--models", "target=mixtral-8x7b")
    assert "weights" in done("cluster", "h200", *asked)
    assert "must hold the weights of its members" in refused("cluster", "h100", *asked)
    load = ("--workload", "poisson:rate=2,requests=6", "--cluster", "h200", "--policy", "plain")
    printed = done("simulate", *load, *asked).replace("\n", " ")
    assert "shapes draft=llama-3.2-1b, target=mixtral-8x7b" in printed
    assert "WHAT IF: shapes of draft=llama-3.2-1b" in printed


@pytest.mark.parametrize("cost", [(), ("--cost", "timed"), ("--cost", "line.json")])
def test_shapes_that_the_cost_would_not_look_at_are_refused(tmp_path, cost):
    """Seconds measured, or of a file, need no shapes; a device of the sheet does, and so does taking them to one."""
    trace = recorded(tmp_path / "served.trace", wall_s={"": 0.33, "eagle3": 0.2}, prefill_s={})
    (tmp_path / "line.json").write_text(json.dumps({key: {"intercept_s": 0.01} for key in ("eagle3", "target")}))
    words = ("--policy", "eagle3:4/target", *cost)
    done("compare", "--trace", trace, *words)
    line = refused("compare", "--trace", trace, *words, "--models", "llama-3.1-8b")
    name = cost[-1] if cost else "timed"
    assert line == f"--models is for a device of the sheet, as --cost DEVICE or --on DEVICE; {name} has no shapes"
    for served in (("--cost", "h100"), ("--cost", "timed", "--on", "h200", "--measured-on", "h100")):
        done("compare", "--trace", trace, *words[:2], *served, "--models", "llama-3.1-8b")


# -- drafters that write a whole draft in one forward, and quantised weights

ANSWER = {
    "id": "a",
    "usage": {"prompt_tokens": 64, "completion_tokens": 57},
    "metrics": {
        "speculative_decoding": {
            "num_spec_tokens": 15,
            "acceptance_histogram": [0, 0, 0, 0, 0, 2, 4, 2],
            "per_step_accepted": [6, 5, 7, 6, 6, 5, 7, 6],
            "per_step_drafted": [15] * 8,
        }
    },
}
QWEN = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12_288,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def answered(folder, drafter, target):
    """The log of a block drafter, whose eight rounds kept 6 of 15 drafted tokens in the mean, imported."""
    log = folder / "responses.jsonl"
    log.write_text(json.dumps(ANSWER))
    done(
        "trace", "import", "auto", log, "--drafter", f"{log}={drafter}", "--target", target, "--out", folder / "x.trace"
    )
    return folder / "x.trace"


@pytest.mark.parametrize(
    "drafter",
    [
        "Qwen3-8B-DFlash-b16",
        "dspark_qwen3_8b_block7",
        "HASS-Qwen3-8B",
        "qwen3-8b-accelerator",
        "peagle",
        "Qwen3-8B-Base",
    ],
)
def test_a_drafter_whose_name_is_its_targets_and_more_has_to_be_given(tmp_path, drafter):
    trace = answered(tmp_path, drafter, "Qwen3-8B")
    told = refused("compare", "--trace", trace, "--policy", f"{drafter}:15/Qwen3-8B", "--cost", "h200")
    assert told.startswith(f"cost h200: no shape for {drafter}: give --models {drafter}=PRESET, {drafter}=config.json")
    assert "PRESET@FORMAT (fp8, int8, int4, nvfp4, mxfp4)" in told


def test_a_block_drafter_costs_one_forward_a_round(tmp_path):
    trace = answered(tmp_path, "dflash", "target")
    said = {"num_hidden_layers": 5, "block_size": 16, "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}
    (tmp_path / "dflash.json").write_text(json.dumps({**QWEN, **said, "architectures": ["DFlashDraftModel"]}))
    asked = ("--cost", "h200", "--models", "target=qwen-3-8b", "--models", f"dflash={tmp_path / 'dflash.json'}")
    policies = ("--policy", "plain", "--policy", "dflash:15/target", "--policy", "dflash:7/target")
    found = compared(trace, *policies, *asked)
    speed_ups = {row["policy"]: row["speed_up"] for row in found["policies"]}
    assert speed_ups["dflash:15/target"] == pytest.approx(5.39, abs=0.02)
    assert speed_ups["dflash:7/target"] == pytest.approx(speed_ups["dflash:15/target"], rel=0.01)
    assert found["meta"]["cost_notes"] == ["a whole draft in one forward: dflash"]
    longer = refused("compare", "--trace", trace, "--policy", "dflash:16/target", *asked)
    assert longer.startswith("dflash drafts 15 tokens in one forward, asked for 16; use a window of 15")
    others = {"num_hidden_layers": 4, "draft_vocab_size": 32_000, "architectures": ["PEagleDraftModel"]}
    (tmp_path / "dflash.json").write_text(json.dumps({**QWEN, **others}))
    assert "architectures: must be a known one" in refused("compare", "--trace", trace, *policies, *asked)


def test_quantised_weights_of_a_checkpoint_as_modelopt_leaves_it(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 28_672,
        "vocab_size": 128_256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    said = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    asked = ("compare", "--policy", "plain", "--cost", "h100", "--tensor-parallel", "4", "--json", "-", "--models")
    read, named, plain = (
        json.loads(done(*asked, f"target={model}"))["policies"][0]["output_tokens_per_s"]
        for model in (tmp_path, "llama-3.1-70b@fp8,kv=fp8", "llama-3.1-70b")
    )
    assert read == named == pytest.approx(127.5, abs=0.5)
    assert plain == pytest.approx(77.2, abs=0.1)
    done("compare", "--policy", "plain", "--cost", "h200", "--models", f"target={tmp_path}")
    assert "memory holds 141.0 GB" in refused(
        "compare", "--policy", "plain", "--cost", "h200", "--models", "target=llama-3.1-70b"
    )


def test_a_cluster_holds_more_of_quantised_weights_and_caches():
    blocks = {}
    for way in ("", "@fp8", "@fp8,kv=fp8"):
        models = ("--models", "draft=llama-3.2-1b", "--models", f"target=llama-3.1-8b{way}")
        found = json.loads(done("cluster", "h100", *models, "--json", "-"))
        members = {
            member["member"]: member for memory in found["replicas"][0]["memory"] for member in memory["members"]
        }
        blocks[way] = members["target"]["num_blocks"], members["target"]["weights_bytes"]
    assert blocks["@fp8"][1] == blocks["@fp8,kv=fp8"][1] == pytest.approx(9.08e9, rel=0.01)
    assert blocks[""][1] == pytest.approx(16.06e9, rel=0.01)
    assert blocks[""][0] < blocks["@fp8"][0] < blocks["@fp8,kv=fp8"][0]
