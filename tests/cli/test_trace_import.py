import json
import re
import shlex
from pathlib import Path

import pytest
from paceline.traces.importers import format_names

from ..traces.importers.foreign_files import answer, one_file_each, positions, write_lines
from .command_line import done, paceline, refused

GUIDE = Path(__file__).parents[2] / "docs" / "importing.md"

MODEL = {"name": "draft", "parameters": 68, "layers": 2, "hidden_size": 8, "kv_bytes_per_token": 64, "dtype": "float16"}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "files").mkdir()
    return one_file_each(tmp_path / "files")


@pytest.mark.parametrize("name", format_names())
def test_every_format_by_name_and_by_its_files(files, tmp_path, name):
    told = done("trace", "import", name, *files[name], "--out", "a.trace")
    assert told.startswith(f"a.trace: imported from {name}, ")
    assert "\n  Exact: " in told
    assert "\n  Unknown: " in told
    assert done("trace", "import", "auto", *files[name], "--out", "b.trace").startswith("saw ")
    assert "ok" in done("trace", "check", "a.trace")
    shown = json.loads(done("trace", "inspect", "b.trace", "--json", "-"))
    assert name in json.dumps(shown)


def test_what_is_told(files):
    told = done("trace", "import", "spec-bench", *files["spec-bench"], "--out", "x.trace")
    assert told.splitlines()[0] == (
        "x.trace: imported from spec-bench, 3 requests, drafters sps (window 4, reads tokens)"
    )


def test_json(files):
    options = ["--name", "ours", "--target", "big", "--drafter", "draft=small", "--window", "small=4"]
    told = done(
        "trace", "import", "positions", *files["positions"], "--out", "x.trace", "--json", "-", *options,
        "--token-drafter", "mid",
    )  # fmt: skip
    found = json.loads(told)
    assert (found["trace"], found["name"], found["target"], found["requests"]) == ("x.trace", "ours", "big", 2)
    assert found["drafters"] == [
        {"name": "small", "by_start": True, "window": 4, "prefilled": False},
        {"name": "mid", "by_start": False, "window": 1, "prefilled": False},
    ]


def test_models_for_cost_models(files, tmp_path):
    path = tmp_path / "models.json"
    path.write_text(json.dumps([MODEL]))
    command = ["trace", "import", "positions", *files["positions"], "--models", path]
    assert json.loads(done(*command, "--out", "x.trace", "--json", "-"))["models"][0]["parameters"] == 68
    path.write_text(json.dumps([{**MODEL, "name": "nobody"}]))
    assert "models must name members of the pool" in refused(*command, "--out", "y.trace")
    for text, told in (
        (json.dumps([{**MODEL, "layers": 0}]), "models.json: 0.layers: input should be greater than or equal to 1"),
        (
            json.dumps([{**MODEL, "parameters": 10**400}]),
            "models.json: 0.parameters: input should be less than or equal",
        ),
        (json.dumps([]), "models.json: content: list should have at least 1 item"),
        (json.dumps({}), "models.json: content: input should be a valid"),
        ("[", "models.json: content: must be JSON, got"),
        ('[{"name": "a", "name": "b"}]', "models.json: content: must be JSON, got \"key 'name' twice\""),
    ):
        path.write_text(text)
        assert told in refused(*command, "--out", "y.trace")
    path.unlink()
    assert "models.json: file: must be a readable file" in refused(*command, "--out", "y.trace")
    assert not (tmp_path / "y.trace").exists()


def test_a_recording_is_never_overwritten(files, tmp_path):
    command = ["trace", "import", "positions", *files["positions"], "--out", "x.trace"]
    done(*command)
    before = (tmp_path / "x.trace" / "meta.json").read_bytes()
    assert "x.trace: exists already; a recording is never overwritten" in refused(*command)
    assert (tmp_path / "x.trace" / "meta.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--drafter", "draft"], "--drafter must be of the form KEY=VALUE, got 'draft'"),
        (["--drafter", "draft=a:b"], "a drafter's name must match"),
        (
            ["--drafter", "nobody=x"],
            "--drafter must name a file or a method of the files, and one that no other --drafter names, got 'nobody'",
        ),
        (["--drafter", "draft=mid"], "drafters: must have names of their own (--drafter), got 'mid'"),
        (["--drafter", "draft=a", "--drafter", "draft=b"], "--drafter must name draft once"),
        (["--window", "draft=many"], "--window draft must be a whole number, got 'many'"),
        (["--drafter", "pos.jsonl=x"], "and one that no other --drafter names, got 'pos.jsonl'"),
        (["--window", "draft=0"], "the window of draft must be in [1, 2147483647], got 0"),
        (["--window", "draft=2147483648"], "the window of draft must be in [1, 2147483647], got 2147483648"),
        (["--window", "draft=1"], "must hold rounds within --window draft=1, got 2"),
        (["--window", "nobody=3"], "--window must name a drafter of draft, mid, got 'nobody'"),
        (["--start", "nobody=draft"], "--start must name a drafter of draft, mid, got 'nobody'"),
        (["--start", "draft=late"], "--start draft must be prefill or draft, got 'late'"),
        (["--token-drafter", "nobody"], "--token-drafter must name a drafter of draft, mid"),
        (["--target", "draft"], "names of drafters and target must be unique"),
        (["--target", "a b"], "the target's name must match"),
        (["--name", ""], "the recording's name must be one line that is not empty, got ''"),
        (["--name", "a\nb"], "the recording's name must be one line that is not empty, got 'a\\nb'"),
        (["--json", "x.trace"], "--json must be a file of its own, got 'x.trace'"),
        (["--json", "files/pos.jsonl"], "--json must be a file of its own, got 'files/pos.jsonl'"),
        (["--json", "none/x.json"], "no folder none"),
    ],
)
def test_options_that_do_not_fit(files, tmp_path, options, told):
    assert told in refused("trace", "import", "positions", *files["positions"], "--out", "x.trace", *options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files"]


def test_files_that_do_not_fit(files, tmp_path):
    cut = write_lines(tmp_path / "cut.jsonl", positions("a", draft=[1]), positions("b", draft=[1]))
    cut.write_bytes(cut.read_bytes()[:-20])
    assert "cut.jsonl: line 2: JSON: must be one JSON object (the file's last line: is it cut?)" in refused(
        "trace", "import", "positions", cut, "--out", "x.trace"
    )
    assert "none.jsonl: file: must be a readable file" in refused(
        "trace", "import", "auto", "none.jsonl", "--out", "x.trace"
    )
    assert "format must be auto or one of" in refused("trace", "import", "csv", cut, "--out", "x.trace")
    other = write_lines(tmp_path / "odd.jsonl", answer(1, [3, 1], new_tokens=[9]))
    assert "odd.jsonl: line 1: choices[0].accept_lengths: must add up to the 9" in refused(
        "trace", "import", "auto", other, "--out", "x.trace"
    )
    assert not (tmp_path / "x.trace").exists()


def test_how_answers_began_is_told(files, tmp_path):
    told = paceline("trace", "import", "positions", *files["positions"], "--out", "x.trace", "--start", "mid=prefill")
    assert told.code == 0
    meta = json.loads((tmp_path / "x.trace" / "meta.json").read_text())
    assert {info["name"]: info["prefilled"] for info in meta["drafters"]} == {"draft": False, "mid": True}


def shown_files(guide):
    """Every JSON file of the guide whose name stands before it."""
    return re.findall(r"`([\w-]+\.jsonl?)`[^`]*\n\n```json\n(.*?)```", guide, flags=re.DOTALL)


def shown_commands(guide):
    """Commands of the guide with what they print."""
    for block in re.findall(r"```console\n(.*?)```", guide, flags=re.DOTALL):
        for shown in block.split("$ .venv/bin/paceline ")[1:]:
            command, _, output = shown.partition("\n")
            yield shlex.split(command), output.rstrip("\n")


def test_the_guide_shows_what_happens(tmp_path):
    guide = GUIDE.read_text(encoding="utf-8")
    files = dict(shown_files(guide))
    assert len(files) == len(re.findall("```json", guide)) == 9
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    commands = [(words, output) for words, output in shown_commands(guide) if words[0] == "trace"]
    assert len(commands) == 9
    for words, output in commands:
        ran = paceline(*words)
        told = "\n".join(line.rstrip() for line in (ran.out + ran.err).splitlines())
        assert told == output
