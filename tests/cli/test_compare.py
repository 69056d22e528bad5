"""`paceline compare` on a small synthetic recording."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from paceline.installing import install_hint

from ..reports.test_summary import LEVEL_KEYS, POLICY_KEYS, SPREAD_KEYS
from .command_line import done, paceline, refused

META_KEYS = {
    "trace",
    "kind",
    "source",
    "notes",
    "sampling",
    "cost",
    "cost_notes",
    "what_if",
    "extrapolate",
    "batch",
    "seed",
    "seeds",
    "decide_s",
    "left_out",
}


def compared(trace, *args):
    return json.loads(done("compare", "--trace", trace, *args, "--json", "-"))


def test_json_on_standard_output(trace):
    data = compared(trace, "--policy", "draft:4/target", "--policy", "adaptive")
    assert set(data) == {"meta", "policies"}
    assert set(data["meta"]) == META_KEYS
    assert data["meta"] == {
        "trace": "small",
        "kind": "synthetic",
        "source": None,
        "notes": [],
        "sampling": "greedy",
        "cost": "cpu",
        "cost_notes": ["measured by new tokens only: a longer context costs no more"],
        "what_if": {"acceptance": {}, "scale": {}, "tensor_parallel": 1},
        "extrapolate": False,
        "batch": 1,
        "seed": 0,
        "seeds": 5,
        "decide_s": 0.0,
        "left_out": [],
    }
    assert [policy["policy"] for policy in data["policies"]] == ["draft:4/target", "adaptive"]
    for policy in data["policies"]:
        assert set(policy) == POLICY_KEYS
        assert [set(level) for level in policy["levels"]] == [LEVEL_KEYS] * 4
        assert [level["name"] for level in policy["levels"]] == ["ngram", "draft", "mid", "target"]
        assert set(policy["ttft_s"]) == set(policy["tpot_s"]) == set(policy["e2e_s"]) == SPREAD_KEYS
        assert (policy["requests"], policy["output_tokens"]) == (3, 36)


def test_the_target_alone_is_what_speed_is_measured_against(trace):
    alone, chain = compared(trace, "--policy", "plain", "--policy", "draft:4/target")["policies"]
    assert alone["speed_up"] == 1.0
    assert chain["speed_up"] == pytest.approx(chain["output_tokens_per_s"] / alone["output_tokens_per_s"])
    (again,) = compared(trace, "--policy", "draft:4/target")["policies"]
    assert again == chain
    (target,) = compared(trace, "--policy", "target")["policies"]
    assert {**target, "policy": "plain"} == alone


def test_a_representative_set_is_the_default(trace):
    names = [policy["policy"] for policy in compared(trace)["policies"]]
    assert names == [
        "plain",
        "draft:4/target",
        "mid:4/target",
        "draft:3/mid:6/target",
        "ngram",
        "ngram:6/mid:6/target",
        "adaptive",
        "confident",
        "specrouter",
    ]


def test_options_reach_the_scenario(trace):
    options = ("--batch", "3", "--seed", "5", "--decide-seconds", "0.001", "--cost", "h100")
    data = compared(trace, "--policy", "plain", *options)
    assert {key: data["meta"][key] for key in ("batch", "seed", "decide_s", "cost")} == {
        "batch": 3,
        "seed": 5,
        "decide_s": 0.001,
        "cost": "h100",
    }
    alone = compared(trace, "--policy", "plain", "--cost", "h100")["policies"][0]
    assert data["policies"][0]["duration_s"] - 36 * 0.001 < alone["duration_s"] / 1.5


def test_a_cost_of_ones_own(trace, tmp_path):
    table = {"new_tokens": [1, 512], "seconds": [1.0, 1.0]}
    (tmp_path / "mine.json").write_text(json.dumps(dict.fromkeys(("draft", "mid", "target"), table)))
    data = compared(trace, "--policy", "plain", "--cost", "mine.json")
    assert data["meta"]["cost"] == "mine.json"
    assert data["policies"][0]["duration_s"] == 36.0


def test_a_table(trace):
    text = done("compare", "--trace", trace, "--policy", "draft:4/target", "--policy", "plain")
    assert "SYNTHETIC trace small (greedy), 3 requests, 36 tokens; cost cpu, batch 1, seed 0" in text
    for heading in ("policy", "speed-up", "tokens/s", "wasted tokens", "exact share"):
        assert heading in text
    assert "1.00x" in text


def test_the_same_command_prints_the_same(trace):
    assert len({done("compare", "--trace", trace, "--batch", "2", "--json", "-") for _ in range(2)}) == 1


def test_json_in_a_file(trace, tmp_path):
    assert done("compare", "--trace", trace, "--policy", "plain", "--json", "out.json") == ""
    assert json.loads((tmp_path / "out.json").read_text()) == compared(trace, "--policy", "plain")
    assert done("compare", "--trace", trace, "--policy", "ngram", "--json", "out.json") == ""
    assert json.loads((tmp_path / "out.json").read_text())["policies"][0]["policy"] == "ngram"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.json", "small.trace"]


def test_json_through_a_link(trace, tmp_path):
    """What is no plain file, such as /dev/stdout, is written through and not replaced."""
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    done("compare", "--trace", trace, "--policy", "plain", "--json", "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["meta"]["trace"] == "small"


def test_run_logs(trace, tmp_path):
    done("compare", "--trace", trace, "--policy", "draft:3/mid:6/target", "--policy", "plain", "--log", "deep/logs")
    logs = tmp_path / "deep" / "logs"
    assert sorted(folder.name for folder in logs.iterdir()) == ["00-draft_3_mid_6_target", "01-plain"]
    for folder in logs.iterdir():
        meta = json.loads((folder / "meta.json").read_text())
        assert meta["members"] == ["ngram", "draft", "mid", "target"]
        assert (meta["world"], meta["kind"]) == ("sim", "synthetic")
        assert pq.read_table(folder / "steps.parquet").column("emitted").to_numpy().sum() == 36
    assert not list((tmp_path / "deep").glob("*.part"))


def test_strict(trace):
    done("compare", "--trace", trace, "--policy", "draft:4/target", "--strict")
    line = refused("compare", "--trace", trace, "--policy", "draft:9/mid:9/target", "--strict")
    assert line.startswith("request small-")
    assert "needs a context outside the recording" in line


def test_as_a_process(trace):
    command = [sys.executable, "-m", "paceline", "compare", "--trace", str(trace)]
    ran = subprocess.run([*command, "--policy", "plain", "--json", "-"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["policies"][0]["speed_up"] == 1.0
    ran = subprocess.run([*command, "--policy", "nope"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("paceline: error: unknown policy 'nope'")
    assert ran.stderr.count("\n") == 1


WITHOUT_TORCH = """
import sys
sys.modules.update(torch=None, transformers=None, tokenizers=None)
from paceline.__main__ import main
sys.argv = ["paceline", *sys.argv[1:]]
main()
"""


def without_torch(*args):
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_torch_is_needed(trace):
    ran = without_torch("compare", "--trace", trace, "--policy", "plain", "--json", "-")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_without_torch_real_models_say_what_to_install(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    ran = without_torch("run", "--prompts", "prompts.jsonl", "--pool", "nowhere")
    assert ran.returncode == 2
    assert f"this command runs real models and needs torch: {install_hint('runtime')}" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_help_of_every_command():
    for words in ((), ("compare",), ("run",), ("record",), ("trace", "make"), ("policy", "check"), ("pool", "train")):
        assert "Usage: paceline" in done(*words, "--help")


def test_a_group_alone_shows_its_help():
    for words in ((), ("trace",), ("policy",), ("pool",)):
        ran = paceline(*words)
        assert ran.code == 2
        assert "Usage: paceline" in ran.err


def test_an_error_in_full(trace, monkeypatch):
    monkeypatch.setenv("PACELINE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown policy"):
        paceline("compare", "--trace", trace, "--policy", "nope")
