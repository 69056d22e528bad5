"""`--models` of `compare` and `trace import`: presets, configs and what is assumed from names."""

import json

import pytest
from paceline.traces.rounds.on_disk import write_rounds

from ..sim.rounds.small_rounds import one_request, recording_of, rounds_of
from .command_line import done, refused


def recorded(path, *, drafter="eagle3", target="target", **request):
    rounds = rounds_of((0, 2, 4), (3, 4, 4), (8, 2, 4))
    recording = recording_of(
        one_request({"": 11, drafter: 11}, {drafter: rounds}, **request), drafters=((drafter, True, 4),)
    )
    meta = recording.meta.model_copy(update={"name": "served", "target": target})
    write_rounds(iter(recording.requests), lambda: meta, path)
    return path


def compared(trace, *args):
    found = json.loads(done("compare", "--trace", trace, *args, "--json", "-"))
    del found["page"]  # has the command
    return found


def test_names_of_common_logs_answer_at_the_first_try(tmp_path):
    trace = recorded(tmp_path / "served.trace", target="Llama-3.1-8B-Instruct")
    data = compared(trace, "--cost", "h100")
    assert data["meta"]["cost_notes"][:1] == [
        "assumed from names, unless --models says otherwise: eagle3 is the EAGLE-3 head of the target; "
        "Llama-3.1-8B-Instruct is llama-3.1-8b"
    ]
    assert data == compared(trace), "a device is the default where shapes are known"


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
    asked = (trace, "--policy", "ngram-cpu:4/Qwen3-8B", "--cost", "h100", "--engine")
    data, served = compared(*asked, "bare"), compared(*asked, "vllm")
    drafter, in_vllm = (found["policies"][0]["levels"][0] for found in (data, served))
    assert drafter["duration_s"] == pytest.approx(drafter["forwards"] * 1e-5)
    assert in_vllm["duration_s"] > in_vllm["forwards"] * 1e-3  # the host plans no step ahead
    assert served["meta"]["cost_notes"][0].endswith("ngram-cpu copies text; Qwen3-8B is qwen-3-8b")


def test_what_copies_text_is_served_without_keys_and_values(tmp_path):
    trace = recorded(tmp_path / "served.trace", drafter="ngram", target="Qwen3-8B")
    load = ("--workload", "poisson:rate=5,requests=6,prompt=20,output=8", "--cluster", "h100", "--json", "-")
    found = json.loads(done("simulate", "--trace", trace, *load, "--policy", "ngram:4/Qwen3-8B"))
    for run in found["rows"][0]["runs"]:
        assert run["finished"] == 6
        assert run["members"]["ngram"]["kv_use_max"] is None
        assert run["members"]["Qwen3-8B"]["kv_use_max"] > 0


def test_unknown_names_are_told_with_what_is_known(tmp_path):
    trace = recorded(tmp_path / "served.trace", drafter="mystery")
    told = refused("compare", "--trace", trace, "--cost", "h100")
    begins = "cost h100: no shape for target, mystery: give --models target=PRESET, target=config.json or"
    assert told.startswith(begins)
    assert told.endswith("presets are in docs/costs.md, as llama-3.1-8b, or eagle3 for such a head of the target")
    assert len(told) <= 340
    assert "--cost h100 --models target=llama-3.1-8b" in refused("compare", "--trace", trace)
    for models, told in (
        ("nobody=llama-3.1-8b", "--models must name members of the recording (mystery, target), got 'nobody'"),
        ("target=mystery", "--models must be a config.json or a preset ("),
        ("target=nowhere.json", "nowhere.json: file: must be a readable file"),
    ):
        assert told in refused("compare", "--trace", trace, "--models", models)


def test_what_if_the_models_of_a_recording_were_others():
    """Acceptance is the same, seconds are not: a mixture of experts gains less from the same drafts."""
    asked = ("compare", "--cost", "h200", "--engine", "bare", "--policy", "draft:4/target", "--json", "-")
    asked = (*asked, "--models", "draft=llama-3.2-1b")
    dense, mixed = (
        json.loads(done(*asked, "--models", f"target={model}")) for model in ("llama-3.1-8b", "qwen-3-30b-a3b")
    )
    for found, speed_up in ((dense, 1.71), (mixed, 0.81)):
        (row,) = (one for one in found["policies"] if one["policy"] == "draft:4/target")
        assert row["speed_up"] == pytest.approx(speed_up, abs=0.01)
        assert row["acceptance_length"] == pytest.approx(3.07, abs=0.01)
        assert any(remark.startswith("WHAT IF: shapes of draft=") for remark in found["meta"]["remarks"])
    assert "--models is for a device of the sheet" in refused("compare", "--models", "llama-3.1-8b")
    assert "seconds of pico are of its own models" in refused("compare", "--models", "llama-3.1-8b", "--on", "h200")


@pytest.mark.parametrize("cost", [(), ("--cost", "timed"), ("--cost", "line.json")])
def test_shapes_that_the_cost_would_not_look_at_are_refused(tmp_path, cost):
    """Seconds measured, or of a file, need no shapes; a device of the sheet does, and so does taking them to one."""
    trace = recorded(tmp_path / "served.trace", wall_s={"": 0.33, "eagle3": 0.2}, prefill_s={})
    (tmp_path / "line.json").write_text(json.dumps({key: {"intercept_s": 0.01} for key in ("eagle3", "target")}))
    words = ("--policy", "eagle3:4/target", *cost)
    done("compare", "--trace", trace, *words)
    line = refused("compare", "--trace", trace, *words, "--models", "llama-3.1-8b")
    name = cost[-1] if cost else "timed"
    where = "for a device of the sheet, as --cost DEVICE or --on DEVICE, or for --cost kernels:DIR"
    assert line == f"--models is {where}; {name} has no shapes"
    for served in (("--cost", "h100"), ("--cost", "timed", "--on", "h200", "--measured-on", "h100")):
        done("compare", "--trace", trace, *words[:2], *served, "--models", "llama-3.1-8b")


# -- drafters that write a whole draft in one forward, and quantised weights

ROUND_LOG = {
    "num_spec_tokens": 15,
    "acceptance_histogram": [0, 0, 0, 0, 0, 2, 4, 2],
    "per_step_accepted": [6, 5, 7, 6, 6, 5, 7, 6],
    "per_step_drafted": [15] * 8,
}
USAGE = {"prompt_tokens": 64, "completion_tokens": 57}
ANSWER = {"id": "a", "usage": USAGE, "metrics": {"speculative_decoding": ROUND_LOG}}
QWEN = json.loads(
    '{"model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,'
    ' "intermediate_size": 12288, "vocab_size": 151936, "tie_word_embeddings": false, "dtype": "bfloat16"}'
)


def answered(folder, drafter, target):
    """The log of a block drafter, whose eight rounds kept 6 of 15 drafted tokens in the mean, imported."""
    log = folder / "responses.jsonl"
    log.write_text(json.dumps(ANSWER))
    named = ("--drafter", f"{log}={drafter}", "--target", target)
    done("trace", "import", "auto", log, *named, "--out", folder / "x.trace")
    return folder / "x.trace"


NEAR_ITS_TARGET = "Qwen3-8B-DFlash-b16 dspark_qwen3_8b_block7 HASS-Qwen3-8B qwen3-8b-accelerator peagle Qwen3-8B-Base"


@pytest.mark.parametrize("drafter", NEAR_ITS_TARGET.split())
def test_a_drafter_whose_name_is_its_targets_and_more_has_to_be_given(tmp_path, drafter):
    trace = answered(tmp_path, drafter, "Qwen3-8B")
    told = refused("compare", "--trace", trace, "--policy", f"{drafter}:15/Qwen3-8B", "--cost", "h200")
    assert told.startswith(f"cost h200: no shape for {drafter}: give --models {drafter}=PRESET, {drafter}=config.json")
    assert "PRESET@FORMAT (fp8, int8, int4, nvfp4, mxfp4)" in told


def test_a_block_drafter_costs_one_forward_a_round(tmp_path):
    trace = answered(tmp_path, "dflash", "target")
    said = {"num_hidden_layers": 5, "block_size": 16, "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}
    (tmp_path / "dflash.json").write_text(json.dumps({**QWEN, **said, "architectures": ["DFlashDraftModel"]}))
    asked = (
        "--cost",
        "h200",
        "--engine",
        "bare",
        "--models",
        "target=qwen-3-8b",
        "--models",
        f"dflash={tmp_path / 'dflash.json'}",
    )
    policies = ("--policy", "plain", "--policy", "dflash:15/target", "--policy", "dflash:7/target")
    found = compared(trace, *policies, *asked)
    speed_ups = {row["policy"]: row["speed_up"] for row in found["policies"]}
    assert speed_ups["dflash:15/target"] == pytest.approx(5.33, abs=0.02)
    assert speed_ups["dflash:7/target"] == pytest.approx(speed_ups["dflash:15/target"], rel=0.01)
    assert found["meta"]["cost_notes"][1:] == ["a whole draft in one forward: dflash"]
    longer = refused("compare", "--trace", trace, "--policy", "dflash:16/target", *asked)
    assert longer.startswith("dflash drafts 15 tokens in one forward, asked for 16; use a window of 15")
    others = {"num_hidden_layers": 4, "draft_vocab_size": 32_000, "architectures": ["PEagleDraftModel"]}
    (tmp_path / "dflash.json").write_text(json.dumps({**QWEN, **others}))
    assert "architectures: must be a known one" in refused("compare", "--trace", trace, *policies, *asked)
