import json

import pytest
from paceline.traces.importers import format_names
from paceline.traces.importers.formats import format_named
from paceline.traces.rounds.rounds import TRUST

from ...traces.importers.foreign_files import answer, one_file_each, positions, write_lines
from ..command_line import done, paceline, refused

WINDOW = ["--window", "drafter=4"]
LOAD = ["--requests", "3", "--output-tokens", "20"]
OPTIONS = {
    "llamacpp-timings": WINDOW,
    "llamacpp-log": WINDOW,
    "sglang-bench": WINDOW,
    "vllm-log": LOAD,
    "llamacpp-metrics": LOAD,
    "sglang-log": LOAD,
    "trtllm-iterations": LOAD,
    "acceptance-by-k": LOAD,
}
MODEL = {"name": "draft", "parameters": 68, "layers": 2, "hidden_size": 8, "kv_bytes_per_token": 64, "dtype": "float16"}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "files").mkdir()
    return one_file_each(tmp_path / "files")


@pytest.mark.parametrize("name", format_names())
def test_every_format_by_name_and_by_its_files(files, tmp_path, name):
    stated = OPTIONS.get(name, [])
    told = done("trace", "import", name, *files[name], "--out", "a.trace", *stated)
    form = format_named(name).form if name != "sglang-meta" else "request means"  # one of its two has no histogram
    assert told.startswith(f"a.trace: imported from {name} ({TRUST[form]}), ")
    assert "\nExact: " in told
    assert "\nUnknown: " in told
    told = done("trace", "import", "auto", *files[name], "--out", "b.trace", *stated)
    assert f"; saw {format_named(name).words} Exact: " in " ".join(told.split())
    assert "ok" in done("trace", "check", "a.trace")
    shown = json.loads(done("trace", "inspect", "b.trace", "--json", "-"))
    assert name in json.dumps(shown)
    assert TRUST[form] in done("trace", "inspect", "b.trace").splitlines()[0]


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
            "--drafter must name a file or a method of the files, and one that no other key names, got 'nobody'",
        ),
        (["--drafter", "draft=mid"], "drafters: must have names of their own (--drafter), got 'mid'"),
        (["--drafter", "draft=a", "--drafter", "draft=b"], "--drafter must name draft once"),
        (["--window", "draft=many"], "--window draft must be a whole number, got 'many'"),
        (["--drafter", "pos.jsonl=x"], "and one that no other key names, got 'pos.jsonl'"),
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


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("frontier", ["--skip-bad-lines"], "--skip-bad-lines must be left out: frontier files do not go by lines"),
        ("positions", ["--seed", "3"], "--seed must be left out: nothing of this log is drawn"),
        ("positions", ["--requests", "3"], "--output-tokens must be given beside the other counts of requests"),
        ("positions", ["--requests", "3", "--output-tokens", "9"], "--requests must be left out: this log names its"),
        ("vllm-log", ["--requests", "0", "--output-tokens", "9"], "requests must be in [1, 1000000], got 0"),
        ("positions", ["--lookup", "max_match=3"], "--lookup must be left out: this log has no token ids to look up"),
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
def test_options_that_change_nothing_or_are_missing(files, tmp_path, name, options, told):
    assert told in refused("trace", "import", name, *files[name], "--out", "x.trace", *options)
    assert not (tmp_path / "x.trace").exists()


def test_an_unreadable_file_says_what_to_save(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    told = refused("trace", "import", "auto", path, "--out", "x.trace")
    assert "x.csv: format: must be one that is known, and is near none; save responses, a log or /metrics" in told
    told = refused("trace", "import", "vllm-detailed", path, "--out", "x.trace")
    assert "x.csv: line 1: JSON: must be one JSON object; vllm-detailed is told by " in told


def test_files_that_do_not_fit(files, tmp_path):
    cut = write_lines(tmp_path / "cut.jsonl", positions("a", draft=[1]), positions("b", draft=[1]))
    cut.write_bytes(cut.read_bytes()[:-20])
    assert "cut.jsonl: line 2: JSON: must be one JSON object (the file's last line: is it cut?)" in refused(
        "trace", "import", "positions", cut, "--out", "x.trace"
    )
    assert "none.jsonl: file: must be a readable file" in refused(
        "trace", "import", "auto", "none.jsonl", "--out", "x.trace"
    )
    assert "format must be auto or a known one" in refused("trace", "import", "csv", cut, "--out", "x.trace")
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
