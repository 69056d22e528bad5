"""`paceline trace import`: what the command adds to `import_logs`; what it prints is in the golden book."""

import json

import pytest

from ...traces.importers.foreign_files import answer, one_file_each, positions, write_lines
from ..command_line import done, refused

MODEL = {"name": "draft", "parameters": 68, "layers": 2, "hidden_size": 8, "kv_bytes_per_token": 64, "dtype": "float16"}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "files").mkdir()
    return one_file_each(tmp_path / "files")


@pytest.mark.parametrize("columns", [60, 100])
def test_notes_are_broken_as_other_prose(files, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    told = done("trace", "import", "auto", *files["spec-bench"], "--out", "x.trace").splitlines()
    assert max(map(len, told)) <= columns
    assert len(told) > 4
    notes = json.loads(done("trace", "inspect", "x.trace", "--json", "-"))["meta"]["notes"]
    assert " ".join(told).endswith(" ".join(notes))


def test_models_for_cost_models(files, tmp_path):
    path = tmp_path / "models.json"
    path.write_text(json.dumps([MODEL]))
    command = ["trace", "import", "positions", *files["positions"], "--models", path]
    assert json.loads(done(*command, "--out", "x.trace", "--json", "-"))["models"][0]["parameters"] == 68
    for text, told in (
        (json.dumps([{**MODEL, "name": "nobody"}]), "models must name members of the pool"),
        (json.dumps([{**MODEL, "layers": 0}]), "models.json: 0.layers: input should be greater than or equal to 1"),
        (json.dumps([{**MODEL, "parameters": 10**400}]), "0.parameters: input should be less than or equal"),
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


LATE = "--lookup must be left out: this log has no token ids to look up"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("positions", ["--drafter", "draft"], "--drafter must be of the form KEY=VALUE, got 'draft'"),
        (
            "positions",
            ["--drafter", "nobody=x"],
            "--drafter must name a file or a method of the files, and one that no",
        ),
        ("positions", ["--drafter", "draft=mid"], "drafters: must have names of their own (--drafter), got 'mid'"),
        ("positions", ["--drafter", "draft=a", "--drafter", "draft=b"], "--drafter must name draft once"),
        ("positions", ["--window", "draft=many"], "--window draft must be a whole number, got 'many'"),
        ("positions", ["--window", "draft=2147483648"], "window of draft must be in [1, 2147483647], got 2147483648"),
        ("positions", ["--window", "draft=1"], "must hold rounds within --window draft=1, got 2"),
        ("positions", ["--window", "nobody=3"], "--window must name a drafter of draft, mid, got 'nobody'"),
        ("positions", ["--start", "nobody=draft"], "--start must name a drafter of draft, mid, got 'nobody'"),
        ("positions", ["--start", "draft=late"], "--start draft must be prefill or draft, got 'late'"),
        ("positions", ["--token-drafter", "nobody"], "--token-drafter must name a drafter of draft, mid"),
        ("positions", ["--target", "a b"], "the target's name must match"),
        ("positions", ["--name", ""], "the recording's name must be one line that is not empty, got ''"),
        ("positions", ["--json", "x.trace"], "--json must be a file of its own, got 'x.trace'"),
        ("positions", ["--json", "files/pos.jsonl"], "--json must be a file of its own, got 'files/pos.jsonl'"),
        ("positions", ["--json", "none/x.json"], "no folder none"),
        ("frontier", ["--skip-bad-lines"], "--skip-bad-lines must be left out: frontier files do not go by lines"),
        ("positions", ["--seed", "3"], "--seed must be left out: nothing of this log is drawn"),
        ("positions", ["--requests", "3"], "--output-tokens must be given beside the other counts of requests"),
        ("positions", ["--requests", "3", "--output-tokens", "9"], "--requests must be left out: this log names its"),
        ("vllm-log", ["--requests", "0", "--output-tokens", "9"], "requests must be in [1, 1000000], got 0"),
        ("positions", ["--lookup", "max_match=3"], LATE),
        ("positions", ["--lookup", "most=3"], "--lookup must name max_match, min_match and occurrence once each, got"),
        (
            "positions",
            ["--lookup", "max_match=3,min_match=4"],
            "--lookup min_match min_match must be at most max_match",
        ),
        (
            "positions",
            ["--lookup", "max_match=3,occurrence=best"],
            "--lookup occurrence Input should be 'first', 'last'",
        ),
        ("positions", ["--lookup", "min_match=3"], "--lookup max_match Field required"),
        ("vllm-log", [], "requests: must be stated, the log does not know them: --requests N --output-tokens M"),
        ("sglang-bench", [], "window: must be stated, the log does not say how many tokens a round drafts"),
    ],
)
def test_options_that_do_not_fit_change_nothing_or_are_missing(files, tmp_path, name, options, told):
    assert told in refused("trace", "import", name, *files[name], "--out", "x.trace", *options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files"]


def test_a_recording_is_never_overwritten(files, tmp_path):
    command = ["trace", "import", "positions", *files["positions"], "--out", "x.trace"]
    done(*command, "--start", "mid=prefill")
    before = (tmp_path / "x.trace" / "meta.json").read_bytes()
    drafters = json.loads(before)["drafters"]
    assert {info["name"]: info["prefilled"] for info in drafters} == {"draft": False, "mid": True}
    assert "x.trace: exists already; a recording is never overwritten" in refused(*command)
    assert (tmp_path / "x.trace" / "meta.json").read_bytes() == before


def test_bad_lines_are_skipped_counted_and_named(files, tmp_path):
    lines = files["positions"][0].read_text()
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{lines}nonsense\n" + json.dumps(positions("c", draft=[0])) + "\n" + lines.splitlines()[0] + "\n")
    told = done("trace", "import", "auto", path, "--out", "x.trace", "--skip-bad-lines")
    assert "), 2 requests, " in told.splitlines()[0]
    note = json.loads(done("trace", "inspect", "x.trace", "--json", "-"))["meta"]["notes"][-1]
    assert note.startswith(f"3 bad lines were skipped (--skip-bad-lines); the first: {path}: line 3: JSON: ")
    assert " ".join(told.split()).endswith(" ".join(note.split()))
    path.write_text("nonsense\n{}\n")
    command = ("trace", "import", "positions", path, "--out", "y.trace", "--skip-bad-lines")
    assert "(all lines are bad)" in refused(*command)


def test_the_line_of_a_result(tmp_path):
    path = tmp_path / "two.jsonl"
    results = [{"accept_length": 2.5, "completed": count, "total_output_tokens": 90} for count in (3, 5)]
    path.write_text("".join(json.dumps(one) + "\n" for one in results))
    call = ("trace", "import", "auto", path, "--window", "drafter=4", "--out", tmp_path / "x.trace")
    assert "line: must be stated, the file holds 2 results: --line N, one of 1, 2" in refused(*call)
    assert "5 requests" in " ".join(done(*call, "--line", "2").split())


def test_files_that_do_not_fit(tmp_path):
    cut = write_lines(tmp_path / "cut.jsonl", positions("a", draft=[1]), positions("b", draft=[1]))
    cut.write_bytes(cut.read_bytes()[:-20])
    odd = write_lines(tmp_path / "odd.jsonl", answer(1, [3, 1], new_tokens=[9]))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    for name, path, told in (
        ("positions", cut, "cut.jsonl: line 2: JSON: must be one JSON object (the file's last line: is it cut?)"),
        ("auto", "none.jsonl", "none.jsonl: file: must be a readable file"),
        ("csv", cut, "format must be auto or a known one"),
        ("auto", odd, "odd.jsonl: line 1: choices[0].accept_lengths: must add up to the 9"),
        ("vllm-detailed", "x.csv", "x.csv: line 1: JSON: must be one JSON object; vllm-detailed is told by "),
    ):
        assert told in refused("trace", "import", name, path, "--out", "x.trace")
    assert not (tmp_path / "x.trace").exists()
