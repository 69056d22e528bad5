"""`paceline compare` on a small synthetic recording."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from paceline.base.errors import install_hint

from ...reports.test_summary import LEVEL_KEYS, POLICY_KEYS, SPREAD_KEYS
from ..command_line import done, paceline, refused

META_KEYS = {
    "trace",
    "kind",
    "source",
    "notes",
    "remarks",
    "sampling",
    "cost",
    "hardware",
    "cost_notes",
    "what_if",
    "extrapolate",
    "batch",
    "seed",
    "seeds",
    "decide_s",
    "start",
    "devices",
    "prefix_cache",
    "trust",
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
        "remarks": [],
        "sampling": "greedy",
        "cost": "cpu",
        "hardware": "",
        "cost_notes": ["measured by new tokens only: a longer context costs no more"],
        "what_if": {"acceptance": {}, "scale": {}, "tensor_parallel": 1},
        "extrapolate": False,
        "batch": 1,
        "seed": 0,
        "seeds": 5,
        "decide_s": 0.0,
        "start": "prefill",
        "devices": "one",
        "prefix_cache": None,
        "trust": None,
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
    for heading in ("policy", "speed-up", "mean of requests", "tokens/s", "exact share"):
        assert heading in text
    assert "1.00x" in text


def rows_of(text):
    """Cells of the rows of the tables in a print."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]


def test_rows_are_sorted_by_speed_and_the_target_alone_is_among_them(trace):
    policies = [option for name in ("mid:4/target", "ngram", "draft:4/target") for option in ("--policy", name)]
    text = done("compare", "--trace", trace, *policies)
    speeds = {
        row["policy"]: row["output_tokens_per_s"] for row in compared(trace, *policies, "--policy", "plain")["policies"]
    }
    shown = [row[0] for row in rows_of(text)]
    assert shown == sorted(speeds, key=speeds.get, reverse=True)
    assert "plain" in shown
    assert [row["policy"] for row in compared(trace, *policies)["policies"]] == policies[1::2]


def test_both_speed_ups_are_shown(trace):
    (row,) = compared(trace, "--policy", "draft:4/target")["policies"]
    shown = {cells[0]: cells for cells in rows_of(done("compare", "--trace", trace, "--policy", "draft:4/target"))}
    assert shown["draft:4/target"][1:3] == [f"{row['speed_up']:.2f}x", f"{row['speed_up_mean_of_requests']:.2f}x"]
    assert shown["plain"][1:3] == ["1.00x", "1.00x"]


def test_the_last_line_is_in_words(trace):
    text = done("compare", "--trace", trace, "--by-tag", "--regret", "--policy", "draft:4/target")
    last = text.splitlines()[-1]
    assert last.startswith("best: draft:4/target, ")
    assert "oracle" not in last


def test_members_are_shown_on_demand(trace):
    words = ("compare", "--trace", trace, "--policy", "draft:3/mid:6/target")
    assert "what each member did" not in done(*words)
    text = done(*words, "--detail")
    members = [row[0] for row in rows_of(text.partition("what each member did")[2])]
    assert members == ["draft:3/mid:6/target", "draft", "mid", "target", "plain", "target"]
    assert text.splitlines()[-1].startswith("best: ")


def test_a_batch_larger_than_the_recording(trace):
    told = "--batch 32: the recording has 3 requests, so at most 3 run together"
    assert told in done("compare", "--trace", trace, "--policy", "plain", "--batch", "32")
    assert compared(trace, "--policy", "plain", "--batch", "32")["meta"]["remarks"] == [told]
    assert compared(trace, "--policy", "plain", "--batch", "3")["meta"]["remarks"] == []


@pytest.mark.parametrize("columns", [80, 100])
def test_nothing_is_cut_on_a_narrow_screen(trace, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    words = (
        "--policy",
        "draft:9/mid:12/target",
        "--policy",
        "adaptive,draft=mid,start=4,most=12",
        "--detail",
        "--by-tag",
    )
    text = done("compare", "--trace", trace, *words)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= columns
    figures = compared(trace, *words[:4])["policies"]
    for row in figures:
        assert any(cells[3] == f"{row['output_tokens_per_s']:,.1f}" for cells in rows_of(text) if len(cells) == 6)


def test_the_documentation_lists_every_key_of_meta():
    text = (Path(__file__).parents[3] / "docs" / "compare.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`meta\.(\w+)`", text))
    assert listed >= META_KEYS


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
    assert "this command runs real models and needs torch: " in ran.stderr
    assert install_hint("runtime") in ran.stderr
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
