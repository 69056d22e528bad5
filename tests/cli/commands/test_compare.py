"""`paceline compare` on a small synthetic recording."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paceline.base.errors import install_hint

from ..command_line import done, paceline

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


def test_the_target_alone_is_what_speed_is_measured_against(trace):
    alone, chain = compared(trace, "--policy", "plain", "--policy", "draft:4/target")["policies"]
    assert alone["speed_up"] == 1.0
    assert chain["speed_up"] == pytest.approx(chain["output_tokens_per_s"] / alone["output_tokens_per_s"])
    (again,) = compared(trace, "--policy", "draft:4/target")["policies"]
    assert again == chain
    (target,) = compared(trace, "--policy", "target")["policies"]
    assert {**target, "policy": "plain"} == alone


def rows_of(text):
    """Cells of the rows of the tables in a print."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]


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


def test_an_error_in_full(trace, monkeypatch):
    monkeypatch.setenv("PACELINE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown policy"):
        paceline("compare", "--trace", trace, "--policy", "nope")
