"""Bad input gives one line that names the offender, exit code 2, and leaves nothing behind."""

import json

import pytest

from .command_line import refused


def compare(trace, *args):
    return refused("compare", "--trace", trace, *args)


# -- policies by name, and chains

POLICIES = [
    ("nope", "unknown policy 'nope'"),
    ("Plain", "unknown policy 'Plain'"),
    ("huge:4/target", "unknown model 'huge'; this pool has ngram, draft, mid, target"),
    ("draft:4/huge", "unknown model 'huge'"),
    ("adaptive,draft=huge", "unknown model 'huge'"),
    ("mid:4/draft:4/target", "members must go from smallest to largest: ngram, draft, mid, target"),
    ("draft:4/target:4/target", "target stands twice"),
    ("draft:0/target", "the window of draft must be a whole number >= 1, got '0'"),
    ("draft:4/mid/target", "'mid' needs a window, as in mid:4"),
    ("/target", "'' needs a window"),
    ("draft:4/target,stop=1", "a bare chain takes no options; use chain,spec=draft:4/target"),
    ("chain", "missing a required argument: 'spec'"),
    ("adaptive,begin=3", "unknown option 'begin'; known are draft, start, up, down, most"),
    ("plain,start=3", "unknown option 'start'; it takes no options"),
]


@pytest.mark.parametrize(("policy", "told"), POLICIES)
def test_a_policy_that_is_none(trace, policy, told):
    line = compare(trace, "--policy", "plain", "--policy", policy, "--log", "logs")
    assert told in line
    assert policy.partition(",")[0] in line
    assert not list(trace.parent.glob("logs*"))


@pytest.mark.parametrize(("policy", "told"), POLICIES[:3])
def test_the_check_refuses_them_too(policy, told):
    assert told.partition(";")[0] in refused("policy", "check", policy)


def test_a_policy_asked_for_twice(trace):
    args = ("--policy", "ngram", "--policy", "plain", "--policy", "ngram")
    assert compare(trace, *args) == "--policy ngram is given twice"


# -- numbers and names of options


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--batch", "0", "--batch"),
        ("--batch", "-3", "--batch"),
        ("--batch", "99999999999999999999", "--batch"),
        ("--batch", "two", "--batch"),
        ("--batch", "1.5", "--batch"),
        ("--seed", "x", "--seed"),
        ("--decide-seconds", "-1", "--decide-seconds"),
        ("--decide-seconds", "nan", "--decide-seconds"),
        ("--decide-seconds", "inf", "--decide-seconds must be in [0, 1e+09], got inf"),
        ("--decide-seconds", "1e308", "--decide-seconds must be in [0, 1e+09], got 1e+308"),
        ("--cost", "v100", "unknown cost 'v100': known are a100, a100-40gb, a100-80gb, b200, cpu, cpu-"),
        ("--cost", "missing.json", "missing.json: file: must be a readable file, got 'No such file or directory'"),
        ("--polic", "plain", "No such option: --polic"),
    ],
)
def test_an_option_that_cannot_be(trace, option, value, told):
    assert told in compare(trace, option, value, "--log", "logs")
    assert [file.name for file in trace.parent.iterdir()] == ["small.trace"]


def test_a_batch_larger_than_was_measured(trace):
    line = compare(trace, "--policy", "draft:4/target", "--cost", "mine.json", "--log", "logs")
    assert "mine.json" in line
    table = {"new_tokens": [1, 8], "seconds": [1.0, 2.0]}
    costs = trace.parent / "mine.json"
    costs.write_text(json.dumps(dict.fromkeys(("draft", "mid", "target"), table)))
    line = compare(trace, "--batch", "3", "--policy", "draft:4/target", "--cost", "mine.json", "--log", "logs")
    assert line == (
        "cost mine.json: target was measured for 1 to 8 new tokens a forward, asked for 12; "
        "use a smaller batch or window, another cost, or --extrapolate"
    )
    assert sorted(file.name for file in trace.parent.iterdir()) == ["mine.json", "small.trace"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "content: must be JSON, got"),
        ("[]", "content: "),
        ('{"draft": {"new_tokens": [1, 2], "seconds": [1, 0]}}', "draft: seconds must be in [1e-12, 1e+09], got"),
        ('{"draft": {"new_tokens": [1], "seconds": [1]}}', "no table for model 'mid'"),
    ],
)
def test_a_cost_file_that_is_wrong(trace, tmp_path, content, told):
    (tmp_path / "mine.json").write_text(content)
    line = compare(trace, "--cost", "mine.json")
    assert line.startswith("mine.json: ")
    assert told in line


# -- synthetic recordings


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--requests", "0"], "requests must be >= 1, got 0"),
        (["--tokens", "0"], "tokens must be >= 1, got 0"),
        (["--acceptance", "0.5,x"], "acceptance must hold numbers with commas between, got 'x'"),
        (["--acceptance", "nan"], "acceptance must lie in [0, 1], got (nan,)"),
        (["--acceptance", "1.5"], "acceptance must lie in [0, 1], got (1.5,)"),
        (["--acceptance", "0.5,0.6"], "acceptance must have 1 entries"),
        (["--models", "a"], "models must name at least two different models, got ('a',)"),
        (["--models", "a,a"], "models must name at least two different models"),
        (["--models", "a,,b"], "models must hold names with commas between, got 'a,,b'"),
        (["--models", "a:1,b"], "ModelInfo.name: String should match pattern"),
        (["--autocorrelation", "1"], "autocorrelation must lie in [0, 1), got 1.0"),
        (["--cost-ratios", "0"], "cost_ratios must be positive and finite, got (0.0,)"),
        (["--target-forward-seconds", "inf"], "target_forward_s must be positive and finite, got inf"),
        (["--seed", "-1"], "seed must be >= 0, got -1"),
        (["--tags", ""], "tags must hold names with commas between, got ''"),
    ],
)
def test_a_synthetic_recording_that_cannot_be(tmp_path, args, told):
    assert told in refused("trace", "make", "new.trace", *args)
    assert not list(tmp_path.iterdir())


def test_a_recording_is_never_overwritten(trace):
    before = (trace / "nodes.parquet").read_bytes()
    line = refused("trace", "make", trace)
    assert line == f"{trace}: exists already; a recording is never overwritten"
    assert (trace / "nodes.parquet").read_bytes() == before


# -- outputs


def test_json_into_a_folder_that_is_not_there(trace):
    assert compare(trace, "--json", "no/out.json") == "no/out.json: no folder no"
    assert compare(trace, "--json", "small.trace") == "small.trace: is a folder"
    assert "no folder no" in refused("policy", "list", "--json", "no/out.json")
    assert [file.name for file in trace.parent.iterdir()] == ["small.trace"]


def test_a_wrong_output_is_refused_before_the_run(trace, monkeypatch):
    monkeypatch.setattr("paceline.studies.compare.simulate", lambda *_, **__: pytest.fail("it ran"))
    compare(trace, "--json", "no/out.json")
    (trace.parent / "logs").mkdir()
    compare(trace, "--log", "logs")


def test_a_json_file_is_untouched_when_the_run_fails(trace, tmp_path):
    (tmp_path / "out.json").write_text("old")
    compare(trace, "--json", "out.json", "--policy", "draft:9/mid:9/target", "--strict")
    assert (tmp_path / "out.json").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.json", "small.trace"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_run_logs_are_never_overwritten(trace, tmp_path, kind):
    path = tmp_path / "logs"
    path.mkdir() if kind == "folder" else path.write_text("mine")
    assert compare(trace, "--log", "logs") == "logs: exists already; a run is never overwritten"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["logs", "small.trace"]


def test_run_logs_appear_together_or_not_at_all(trace, tmp_path):
    """The first policy ends well, the second does not."""
    compare(trace, "--policy", "plain", "--policy", "draft:9/mid:9/target", "--strict", "--log", "logs")
    assert [file.name for file in tmp_path.iterdir()] == ["small.trace"]


def test_what_typer_refuses(trace):
    assert "extra" in refused("compare", "words")
    assert "No such command 'compar'" in refused("compar")
    assert "Missing argument" in refused("trace", "check")
    assert "requires an argument" in refused("compare", "--trace")
