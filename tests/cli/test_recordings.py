"""Recordings, pools and prompts in files: what is wrong with one is one line, and nothing half-written; imports."""

import json
from dataclasses import replace

import pytest
from paceline.traces.rounds.rounds import StatedAcceptance

from ..traces.importers.foreign_files import answer, one_file_each, positions, write_lines
from ..traces.making import edit_meta, edit_table, timed_trace, write
from ..traces.rounds.rounds_strategies import bernoulli_trace
from .command_line import done, paceline, refused


def meta_of(**changes):
    return lambda path: edit_meta(path, lambda meta: meta.update(changes))


# -- pools and prompts

POOL = """
name = "tiny"
tokenizer = "tokenizer.json"
context_tokens = {context}

[[members]]
name = "draft"
{what}

[[members]]
name = "target"
path = "target"
"""


def a_pool(folder, *, what='path = "draft"', context="64"):
    folder.mkdir()
    (folder / "pool.toml").write_text(POOL.format(what=what, context=context))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_recording_of_another_tokenizer(trace, tmp_path):
    pool = a_pool(tmp_path / "pool")
    digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # of two braces
    line = refused("trace", "check", trace, "--pool", "pool")
    assert line == f"{trace}: tokenizer_sha256: must be that of pool, {digest[:12]}, got ''"
    meta_of(tokenizer_sha256=digest)(trace)
    ran = paceline("trace", "check", trace, "--pool", pool)
    assert (ran.code, ran.err) == (0, "")
    (pool / "tokenizer.json").unlink()
    line = refused("trace", "check", trace, "--pool", "pool")
    assert line == "pool/pool.toml: tokenizer must be a local file to be compared, got 'tokenizer.json'"
    assert refused("trace", "check", trace, "--pool", "nowhere").startswith(
        "nowhere: pool must be a folder with pool.toml"
    )
    assert "pico.trace: ok, " in done("trace", "check", "pico", "--pool", "pico")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ('submodel_of = "target"\nskip_layers = [1.0]', "members[0].skip_layers[0] input should be a valid int"),
        ("ngram = { max_match = 3.0 }", "members[0].ngram.max_match input should be a valid integer, got 3.0"),
        ("ngram = { max_match = true }", "members[0].ngram.max_match input should be a valid integer, got True"),
        ("", "context_tokens input should be a valid integer, got 512.0"),
    ],
)
def test_a_pool_that_is_wrong(trace, tmp_path, what, told):
    a_pool(tmp_path / "pool", what=what, context="64" if what else "512.0")
    line = refused("trace", "check", "small.trace", "--pool", "pool")
    assert line.startswith("pool/pool.toml: ")
    assert told in line


@pytest.mark.parametrize("name", ["", "a\nb", "a\x7f"])
def test_a_name_that_no_recording_can_have_is_refused_before_models_are_loaded(tmp_path, monkeypatch, name):
    monkeypatch.setattr("paceline.studies.record.load_pool", lambda *_, **__: pytest.fail("models were loaded"))
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    line = refused("record", "out.trace", "--prompts", "prompts.jsonl", "--name", name)
    assert line == f"the recording's name must be one line that is not empty, got {name!r}"


# -- paceline trace import; what it prints is in the golden book

MODEL = {"name": "draft", "parameters": 68, "layers": 2, "hidden_size": 8, "kv_bytes_per_token": 64, "dtype": "float16"}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "files").mkdir()
    return one_file_each(tmp_path / "files")


def test_models_for_cost_models(files, tmp_path):
    path = tmp_path / "models.json"
    path.write_text(json.dumps([MODEL]))
    command = ["trace", "import", "positions", *files["positions"], "--models", path]
    assert json.loads(done(*command, "--out", "x.trace", "--json", "-"))["models"][0]["parameters"] == 68
    for text, told in (
        (
            json.dumps([{**MODEL, "name": "nobody"}]),
            "models must name draft, mid, target once each at most, got nobody",
        ),
        (json.dumps([{**MODEL, "layers": "2"}]), "models.json: 0.layers: input should be a valid integer, got '2'"),
        (json.dumps([{**MODEL, "layers": 0}]), "models.json: 0.layers: input should be greater than or equal to 1"),
        (json.dumps([{**MODEL, "parameters": 8}]), "0.parameters: must be at least layers x hidden_size, 16, got 8"),
        (json.dumps([{**MODEL, "layers": 9}]), "0.layers: must be at most hidden_size, 8, got 9"),
        (json.dumps([{**MODEL, "parameters": 10**400}]), "0.parameters: input should be less than or equal"),
        ('[{"name": "a", "name": "b"}]', "models.json: content: must be JSON, got \"key 'name' twice\""),
    ):
        path.write_text(text)
        assert told in refused(*command, "--out", "y.trace")
    assert not (tmp_path / "y.trace").exists()


MATCH = "max_match=3"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("positions", ["--drafter", "draft"], "--drafter must be FILE_OR_METHOD=NAME, got 'draft'"),
        ("positions", ["--drafter", "nobody=x"], "--drafter must name a file or a method of the files, and one that"),
        ("positions", ["--drafter", "draft=mid"], "drafters: must have names of their own (--drafter), got 'mid'"),
        ("positions", ["--drafter", "draft=a", "--drafter", "draft=b"], "--drafter draft is given twice"),
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
        ("positions", ["--lookup", MATCH], "--lookup must be left out: this log has no token ids to look up"),
        ("positions", ["--lookup", "most=3"], "--lookup must name max_match, min_match and occurrence once each, got"),
        ("positions", ["--lookup", f"{MATCH},min_match=4"], "--lookup min_match min_match must be at most max_match"),
        ("positions", ["--lookup", f"{MATCH},occurrence=best"], "--lookup occurrence Input should be 'first', 'last'"),
        ("positions", ["--lookup", "min_match=3"], "--lookup max_match Field required"),
        ("vllm-log", [], "requests: must be stated, the log does not know them: --requests 100 --output-tokens N"),
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
    assert f"3 bad lines were skipped (--skip-bad-lines); the first: {path}: line 3: JSON: " in " ".join(told.split())
    path.write_text("nonsense\n{}\n")
    command = ("trace", "import", "positions", path, "--out", "y.trace", "--skip-bad-lines")
    assert "(all lines are bad)" in refused(*command)


def test_files_that_do_not_fit(tmp_path):
    cut = write_lines(tmp_path / "cut.jsonl", positions("a", draft=[1]), positions("b", draft=[1]))
    cut.write_bytes(cut.read_bytes()[:-20])
    odd = write_lines(tmp_path / "odd.jsonl", answer(1, [3, 1], new_tokens=[9]))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    for name, path, told in (
        ("positions", cut, "cut.jsonl: line 2: JSON: must be one JSON object (the file's last line: is it cut?)"),
        ("auto", odd, "odd.jsonl: line 1: choices[0].accept_lengths: must add up to the 9"),
        ("vllm-detailed", "x.csv", "x.csv: line 1: JSON: must be one JSON object; vllm-detailed is recognised by "),
    ):
        assert told in refused("trace", "import", name, path, "--out", "x.trace")
    assert not (tmp_path / "x.trace").exists()


# -- paceline trace inspect | check of what was imported


def test_what_no_method_says_is_no_row(tmp_path):
    trace = bernoulli_trace(by_start=False, requests=2)
    silent = replace(trace.requests[1], tag="", rounds={})
    write(replace(trace, requests=(trace.requests[0], silent)), tmp_path / "coins.trace")
    told = done("trace", "inspect", "coins.trace")
    assert "d (window 6, reads tokens only)" in told
    assert [line for line in told.splitlines() if line.startswith("│ - ")] == []
    assert "seconds measured for │ nothing" in told
    assert "what is exact" not in told


def test_acceptance_that_a_log_states_is_shown_by_position(tmp_path):
    trace = bernoulli_trace(by_start=True, requests=1)
    stated = StatedAcceptance(hazards=(0.8, 0.5), drafting=0.75)
    drafters = tuple(one.model_copy(update={"window": 3, "stated": stated}) for one in trace.meta.drafters)
    meta, requests = trace.meta.model_copy(update={"drafters": drafters}), [replace(trace.requests[0], rounds={})]
    write(replace(trace, meta=meta, requests=requests), tmp_path / "coins.trace")
    told = done("trace", "inspect", "coins.trace")
    assert "d keeps by position  │ 80.0%, 40.0%, 20.0%; 75.0% of the steps draft" in told


def test_an_import_names_no_tokenizer_and_a_spoilt_one_is_refused_in_one_line(tmp_path):
    write(timed_trace(), tmp_path / "coins.trace")
    a_pool(tmp_path / "pool")
    told = refused("trace", "check", "coins.trace", "--pool", "pool")
    assert "tokenizer_sha256: must be that of pool" in told
    assert "none, as it was imported" in told
    edit_meta(tmp_path / "coins.trace", lambda meta: meta["drafters"][0].update(window=1))
    for command in ("check", "inspect"):
        told = "rounds.parquet: accepted: must be at most the window 1 of drafter 'd'"
        assert told in refused("trace", command, "coins.trace")
    edit_table(tmp_path / "coins.trace", "rounds.parquet", lambda table: table.slice(1))
    for command in ("check", "inspect"):
        assert "requests.parquet: num_rounds: " in refused("trace", command, "coins.trace")
