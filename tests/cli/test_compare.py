"""`paceline compare`: on recordings of contexts and imported ones, sweeps, regret, other devices, `--lossless`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paceline.base.errors import install_hint
from paceline.traces.meta import ModelInfo
from paceline.traces.rounds.on_disk import write_rounds

from ..sim.rounds.small_rounds import one_request, recording_of, rounds_of
from .command_line import done, paceline, refused

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
CHAINS = ("--policy", "draft:2/target", "--policy", "draft:4/target", "--policy", "draft:3/mid:6/target")


def compared(trace, *args):
    return json.loads(done("compare", "--trace", trace, *args, "--json", "-"))


def rows_of(text):
    """Cells of the rows of the tables in a print."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]


def test_the_target_alone_is_what_speed_is_measured_against(trace):
    data = compared(trace, "--policy", "plain", "--policy", "draft:4/target")
    assert set(re.findall(r"`meta\.(\w+)`", DOCUMENTED)) >= set(data["meta"])
    alone, chain = data["policies"]
    assert alone["speed_up"] == 1.0
    assert chain["speed_up"] == pytest.approx(chain["output_tokens_per_s"] / alone["output_tokens_per_s"])
    assert compared(trace, "--policy", "draft:4/target")["policies"] == [chain]
    (target,) = compared(trace, "--policy", "target")["policies"]
    of_others = {name: alone[name] for name in ("of_best", "of_best_ci")}
    assert {**target, **of_others, "policy": "plain"} == alone


WITHOUT_TORCH = """
import sys
sys.modules.update(torch=None, transformers=None, tokenizers=None)
from paceline.__main__ import main
sys.argv = ["paceline", *sys.argv[1:]]
main()
"""


def test_a_process_needs_torch_for_real_models_alone_and_says_what_to_install(trace, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "x"}\n')

    def ran(*args):
        command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, args)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.returncode, found.stdout, found.stderr

    code, out, err = ran("compare", "--trace", trace, "--policy", "plain", "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["policies"][0]["speed_up"] == 1.0
    code, out, err = ran("run", "--prompts", "prompts.jsonl", "--pool", "nowhere")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "this command runs real models and needs torch: " in err
    assert install_hint("runtime") in err


def test_an_error_in_full(trace, monkeypatch):
    monkeypatch.setenv("PACELINE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown policy"):
        paceline("compare", "--trace", trace, "--policy", "nope")


# -- oracles and sweeps


def test_an_oracle_with_options_is_the_reference(trace):
    data = compared(trace, *CHAINS, "--policy", "oracle-chain,most=2,levels=2", "--regret")
    assert [row["policy"] for row in data["policies"]][3:] == ["oracle-chain,most=2,levels=2", "oracle-window"]
    assert data["regret"]["reference"] == "oracle-chain,most=2,levels=2"
    assert compared(trace, *CHAINS, "--regret", "--lossless", "--strict")["regret"]["policies"]


def test_plans_take_no_part_in_chance(trace):
    data = compared(trace, "--policy", "oracle-window", "--shift-acceptance", "draft=+0.1", "--seeds", "2")
    assert (data["policies"][-1]["exact_share"], data["policies"][-1]["seeds"]) == (1, 2)


def test_imported_recordings_have_a_future_of_known_and_drawn_rounds(tmp_path):
    (tmp_path / "log.jsonl").write_text(
        '{"id": "a", "prompt_tokens": 20, "drafters": {"eagle": [4, 3, 2, 1, 3, 2, 1]}}\n'
    )
    line = {"intercept_s": 0.001, "per_new_token_s": 0, "per_kv_token_s": 0}
    (tmp_path / "line.json").write_text(json.dumps({"eagle": line, "target": line}))
    done("trace", "import", "positions", "log.jsonl", "--window", "eagle=4", "--out", "log.trace")
    found = compared("log.trace", "--cost", "line.json", "--policy", "eagle:4/target", "--regret", "--by-tag")
    speeds = {row["policy"]: row["speed_up"] for row in found["policies"]}
    assert speeds["oracle-chain"] >= speeds["oracle-window"] >= speeds["eagle:4/target"] > 0
    assert found["regret"]


@pytest.mark.parametrize(("command", "study"), [("run", "decode"), ("agree", "agree")])
def test_real_models_need_not_be_loaded_to_refuse_an_oracle(tmp_path, monkeypatch, command, study):
    monkeypatch.setattr(f"paceline.studies.{study}.load_pool", lambda *_, **__: pytest.fail("models were loaded"))
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    given = (command, "--prompts", "prompts.jsonl", "--threads", "1", "--policy")
    assert refused(*given, "oracle-window,most=4").endswith("sees ahead, which only a recording allows")


def test_every_cell_of_a_sweep_is_that_of_a_comparison(trace):
    data = compared(trace, "--sweep", "draft:1..3/target", "--sweep", "draft:2/mid:3..5:2/target", "--batch", "1,2")
    chains = [*(f"draft:{window}/target" for window in (1, 2, 3)), "draft:2/mid:3/target", "draft:2/mid:5/target"]
    assert [(cell["batch"], cell["policy"]) for cell in data["sweep"]] == [
        (batch, name) for batch in (1, 2) for name in chains
    ]
    assert data["sweep"][3]["windows"] == {"draft": 2, "mid": 3}
    assert data["meta"]["batch"] == [1, 2]
    listed = [row for row in DOCUMENTED.splitlines() if row.startswith("| `sweep[]")]
    named = {name for row in listed for name in re.findall(r"`(?:sweep\[\]\.)?(\w+)`", row.split("|")[1])}
    assert named == set(data["sweep"][0])
    for batch in (1, 2):
        options = [option for chain in chains for option in ("--policy", chain)]
        rows = {row["policy"]: row for row in compared(trace, *options, "--batch", batch)["policies"]}
        cells = [cell for cell in data["sweep"] if cell["batch"] == batch]
        for cell in cells:
            own = set(cell) - {"batch", "windows", "best"}
            assert {key: cell[key] for key in own} == {key: rows[cell["policy"]][key] for key in own}
        best = max(rows.values(), key=lambda row: row["output_tokens_per_s"])["policy"]
        assert [cell["policy"] for cell in cells if cell["best"]] == [best]


def test_what_the_cost_does_not_know_is_told_and_left_empty(trace, tmp_path):
    table = {"new_tokens": [1, 9], "seconds": [1.0, 2.0]}
    (tmp_path / "mine.json").write_text(json.dumps(dict.fromkeys(("draft", "mid", "target"), table)))
    given = ("compare", "--trace", trace, "--cost", "mine.json", "--sweep")
    text = done(*given, "draft:2..12:10/target")
    assert rows_of(text)[1] == ["draft:12/target", "-"]
    assert "batch 1: draft:12/target is left out: cost mine.json: " in text
    line = refused(*given, "draft:12/target", "--batch", "1,3")
    assert line.startswith("batch 1: cost mine.json: target was measured for 1 to 9 new tokens")


SWEEP = ("--sweep", "draft:1..3/target")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*SWEEP, "--by-tag"), "--by-tag does not apply to --sweep"),
        ((*SWEEP, "--regret"), "--regret does not apply to --sweep"),
        ((*SWEEP, "--detail"), "--detail does not apply to --sweep"),
        ((*SWEEP, "--log", "logs"), "--log does not apply to --sweep"),
        ((*SWEEP, "--on", "h200"), "--on does not apply to --sweep"),
        ((*SWEEP, "--batch", "1,1"), "--batch 1 is given twice"),
        ((*SWEEP, "--batch", "1,,2"), "--batch must be a whole number from 1 to 1,000,000, got ''"),
        ((*SWEEP, "--batch", ",".join(map(str, range(1, 400)))), "a sweep must hold 2 cells at most"),
        (("--policy", "plain", "--batch", "1,4"), "--batch takes several numbers with --sweep only, got '1,4'"),
        (("--policy", "oracle-chain,most=0"), "policy 'oracle-chain,most=0': most must be in [1, 1,000], got 0"),
        (("--policy", "oracle-chain,most=many"), "option 'most' must be a whole number, got 'many'"),
        (
            ("--policy", "plain", "--policy", "draft:2/target", "--devices", "each"),
            "--devices is for policies that work ahead, such as pearl, got 'each' for plain nor draft:2/target",
        ),
    ],
)
def test_what_is_refused(trace, words, told):
    assert told in refused("compare", "--trace", trace, *words)


# -- imported recordings

SECONDS = ((0.1, 0.5), (0.1, 0.5), (0.1, 0.5), (0.1, 0.5))
ROWS = ((0, 2, 4), (3, 4, 4), (8, 0, 4), (9, 1, 4))
FEATURE = (("feature", True, 4),)


@pytest.fixture
def log(tmp_path):
    """An imported recording of a feature-fed drafter and one that reads tokens; all that was measured is there."""
    rounds = {name: rounds_of(*ROWS, seconds=SECONDS) for name in ("feature", "tokens")}
    lengths = {"": 11, "feature": 11, "tokens": 11}
    requests = [one_request(lengths, rounds, request_id=f"r{index}", wall_s={"": 5.5}) for index in range(6)]
    return written(tmp_path / "log.trace", *requests, drafters=(*FEATURE, ("tokens", False, 4)))


def written(path, *requests, drafters=FEATURE, **meta):
    recording = recording_of(*requests, drafters=drafters)
    meta = recording.meta.model_copy(update={"name": "log", "notes": ("all is known",), **meta})
    write_rounds(iter(recording.requests), lambda: meta, path)
    return path


def test_an_unknown_window_is_the_longest_seen(tmp_path):
    rounds = {"feature": rounds_of(*((start, kept, -1) for start, kept, _ in ROWS))}
    request = one_request({"": 11, "feature": 11}, rounds, wall_s={"": 5.5, "feature": 3.0})
    trace = written(tmp_path / "log.trace", request, drafters=(("feature", True, None),))
    assert [policy["policy"] for policy in compared(trace)["policies"]][1] == "feature:4/target"


def test_what_is_modelled_is_run_at_several_seeds(log):
    data = compared(log, "--policy", "feature:3/target", "--policy", "feature:4/target", "--seeds", "4", "--seed", "2")
    modelled, known = data["policies"]
    assert modelled["exact_share"] < 1
    assert (modelled["seeds"], known["seeds"], data["meta"]["seeds"]) == (4, 1, 4)
    low, high = modelled["speed_up_ci"]
    assert low <= modelled["speed_up"] <= high
    speeds = []
    for seed in range(2, 6):
        one = compared(log, "--policy", "feature:3/target", "--seeds", "2", "--seed", seed, "--log", f"logs{seed}")
        assert one["policies"][0]["seeds"] == 2
        meta = json.loads((log.parent / f"logs{seed}" / "00-feature_3_target" / "meta.json").read_text())
        assert meta["seed"] == seed
        speeds.append(json.dumps(one["policies"][0]))
    assert len(set(speeds)) > 1
    (alone,) = compared(log, "--policy", "feature:3/target", "--seed", "2", "--seeds", "4")["policies"]
    of_others = {name: modelled[name] for name in ("of_best", "of_best_ci")}
    assert {**alone, **of_others} == modelled


def test_one_seed_is_said(log):
    data = compared(log, "--policy", "feature:3/target", "--policy", "feature:4/target", "--seeds", "1", "--seed", "3")
    assert [row["seeds"] for row in data["policies"]] == [1, 1]
    assert data["policies"][0]["exact_share"] < 1
    told = done("compare", "--trace", log, "--policy", "feature:3/target", "--seeds", "1", "--seed", "3")
    assert "one seed, 3: chance has a part" in told
    assert "over seeds" not in told
    known = done("compare", "--trace", log, "--policy", "feature:4/target", "--seeds", "1")
    assert "one seed" not in known


def test_what_has_no_seconds_is_left_out_of_the_default(tmp_path):
    """Nobody timed the target alone: no speed-up is known, and the table says why."""
    trace = written(
        tmp_path / "log.trace", one_request({"feature": 11}, {"feature": rounds_of(*ROWS, seconds=SECONDS)})
    )
    data = compared(trace)
    assert [(policy["policy"], policy["speed_up"]) for policy in data["policies"]] == [("feature:4/target", None)]
    assert data["meta"]["left_out"][0].startswith("plain is left out: cost timed: the log has no step of target alone")
    assert "unknown" in done("compare", "--trace", trace)
    assert "no step of target alone" in refused("compare", "--trace", trace, "--policy", "plain")
    (alone,) = compared(trace, "--policy", "feature:4/target")["meta"]["left_out"]
    assert alone.startswith("no speed-up is known: cost timed")
    swept = done("compare", "--trace", trace, "--sweep", "feature:4..5/target", "--batch", "1")
    assert "tokens/s*" in swept
    assert "speed-up over" not in swept
    assert "* the fastest chain of a batch" in swept
    assert compared(trace, "--policy", "feature:4/target", "--extrapolate")["policies"][0]["speed_up"] > 1


def test_without_seconds_a_cost_must_be_named(tmp_path):
    trace = written(tmp_path / "log.trace", one_request({"": 11}, {"feature": rounds_of(*ROWS)}))
    assert "--cost FILE.json" in refused("compare", "--trace", trace)
    line = {"intercept_s": 1.0, "per_new_token_s": 0, "per_kv_token_s": 0}
    (tmp_path / "mine.json").write_text(json.dumps({"feature": line, "target": line}))
    data = compared(trace, "--cost", "mine.json", "--policy", "feature:4/target", "--batch", "2")
    assert data["policies"][0]["duration_s"] == 4 + 4 + 4 + 3 + 2


NO_SIGNALS = "needs signals of tokens, which recording log does not hold"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        *((("--policy", "plain", "--policy", policy), f"policy {policy} {NO_SIGNALS}") for policy in (
            "confident", "confident,draft=tokens", "svip,draft=tokens", "adaedl", "guarded,policy=confident")),
        (("--policy", "feature:2/tokens:4/target"), "tokens cannot verify and can only stand first"),
        (
            ("--policy", "feature:3/target", "--strict"),
            "needs a round that was not recorded; leave out --strict",
        ),
        (("--shift-acceptance", "feature"), "--shift-acceptance must be NAME=DELTA, got 'feature'"),
        (("--shift-acceptance", "feature=0.9"), "feature"),
        (("--shift-acceptance", "feature=nan"), "feature"),
        (
            ("--shift-acceptance", "feature=0.1", "--shift-acceptance", "feature=0.2"),
            "--shift-acceptance feature is given twice",
        ),
        (("--seeds", "0"), "--seeds"),
        (("--measured-on", "h100"), "--measured-on goes with --on DEVICE, got --measured-on h100"),
        (("--on", "h200"), "--on h200 needs the device of the sheet that timed was measured on"),
        (("--on", "h200", "--measured-on", "h100", "--tensor-parallel", "2"), "--tensor-parallel goes with a device"),
    ],
)  # fmt: skip
def test_what_rounds_cannot_answer_is_refused(log, args, told):
    assert told in refused("compare", "--trace", log, *args)


@pytest.mark.parametrize("policy", ["two-level,most=4", "banditspec,kind=exp3", "cas-spec,most=4"])
def test_policies_that_choose_work_on_rounds(log, policy):
    assert (
        compared(log, "--policy", policy, "--policy", "guarded,policy=adaptive")["policies"][0]["output_tokens"] == 66
    )
    done("compare", "--trace", log, "--policy", "feature:4/target", "--strict")


# -- measured seconds on another device, and the range

SHAPES = tuple(
    ModelInfo(
        name=name, parameters=size * 10**9, layers=32, hidden_size=4096, kv_bytes_per_token=10**5, dtype="bfloat16"
    )
    for name, size in (("feature", 1), ("target", 8))
)
ON = ("--cost", "timed", "--on", "h200", "--measured-on", "h100")
BOTH = ("--policy", "plain", "--policy", "feature:4/target")


@pytest.fixture
def shaped(tmp_path):
    rounds = rounds_of((0, 2, 4), (3, 4, 4), (8, 2, 4), seconds=((0.02, 0.03),) * 3)
    lengths = {"": 11, "feature": 11}
    requests = [one_request(lengths, {"feature": rounds}, request_id=f"r{n}", wall_s={"": 0.33}) for n in range(3)]
    return written(tmp_path / "log.trace", *requests, models=SHAPES)


def test_the_range_is_around_the_answer(shaped):
    data, here = compared(shaped, *BOTH, *ON), compared(shaped, *BOTH, "--cost", "timed")
    assert "on" not in here
    assert data["meta"]["cost"] == "timed, h100 to h200"
    assert (data["on"]["measured_on"], data["on"]["device"]) == ("h100", "h200")
    for row, measured in zip(data["policies"], here["policies"], strict=True):
        ends = data["on"]["policies"][row["policy"]]
        assert measured["output_tokens_per_s"] < ends["memory"]["output_tokens_per_s"]
        assert ends["memory"]["output_tokens_per_s"] <= row["output_tokens_per_s"] * (1 + 1e-9)
        assert row["output_tokens_per_s"] < ends["all"]["output_tokens_per_s"]
        # Everything waits for memory: all of it scales as the bandwidths do.
        assert ends["all"]["output_tokens_per_s"] == pytest.approx(measured["output_tokens_per_s"] * 4.8 / 3.35)
    assert data["on"]["policies"]["plain"]["all"]["speed_up"] == 1.0


def test_the_range_is_of_the_means_over_the_same_seeds(shaped):
    """Chance has a part in a window that was not recorded; what scales as a whole does so at every seed."""
    words = ("--policy", "feature:3/target", "--seeds", "6", "--extrapolate")
    on, here = compared(shaped, *words, *ON), compared(shaped, *words, "--cost", "timed")
    (row,), (measured,) = on["policies"], here["policies"]
    assert measured["seeds"] == row["seeds"] == 6
    ends = on["on"]["policies"]["feature:3/target"]
    assert ends["all"]["output_tokens_per_s"] == pytest.approx(measured["output_tokens_per_s"] * 4.8 / 3.35)
    assert ends["all"]["speed_up"] == pytest.approx(measured["speed_up"])
    assert on["on"]["left_out"] == []


HASTY = """
from paceline import policies as p

class Hasty:
    def __init__(self, pool):
        self.target = pool.target

    def decide(self, seen):
        if seen.num_pending:
            return p.Verify(self.target)
        fast = seen.last is not None and seen.last.duration_s < 0.025
        return p.Draft("feature", 5 if fast else 4)

    def learn(self, outcome):
        pass
"""


def test_a_policy_that_leaves_what_was_measured_under_one_reading_is_named(shaped, tmp_path):
    """It asks for wide drafts where the target is fast, and seconds of a width that nobody measured are refused."""
    (tmp_path / "hasty.py").write_text(HASTY)
    words = ("--policy", "hasty.py:Hasty", *BOTH, *ON)
    on = compared(shaped, *words)["on"]
    assert set(on["policies"]) == {"plain", "feature:4/target"}
    (line,) = on["left_out"]
    assert line.startswith("hasty.py:Hasty is left out, all scales: cost timed")
    printed = done("compare", "--trace", shaped, *words)
    assert "hasty.py:Hasty is left out, all scales:" in " ".join(printed.split("range")[-1].split())


def test_a_device_says_what_it_leaves_unused(shaped):
    (note, *_) = compared(shaped, "--cost", "h200")["meta"]["cost_notes"]
    assert note.startswith("the recording holds measured seconds, which --cost timed --on h200")
    told = "--on is for seconds measured with the recording (timed), got --cost h100"
    assert told in refused("compare", "--trace", shaped, "--cost", "h100", "--on", "h200")
    assert "--on h100 needs the device of the sheet that cpu was measured on" in refused("compare", "--on", "h100")


# -- lossless ones alone

MINE = """
from paceline.policies import About, Commit, Draft, Ratio, Verify


class Silent:
    # Says nothing of itself.

    def __init__(self, pool):
        self.target = pool.target

    def decide(self, seen):
        return self.judge(seen) if seen.num_pending else Draft("draft", 4)

    def judge(self, seen):
        return Verify(self.target)

    def learn(self, outcome):
        pass


class Lies(Silent):
    about = About(lossless=True)

    def judge(self, seen):
        return Verify(self.target, Ratio(0.01))


class Commits(Silent):
    def judge(self, seen):
        return Commit(seen.num_pending)


class Admits(Commits):
    about = About(lossless=False)
"""


def test_lossless_ones_pass(trace, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    names = ["plain", "two-level", "per-tag,default=svip,code=guarded+policy=ngram", "oracle-window", "mine.py:Silent"]
    asked = [part for name in (*names, "guarded,policy=mine.py:Silent") for part in ("--policy", name)]
    assert [row["policy"] for row in compared(trace, "--lossless", *asked)["policies"]][:5] == names


ASKED = "is lossy, and --lossless was asked for"


@pytest.mark.parametrize(
    ("name", "begins", "told"),
    [
        ("via-sd", f"policy via-sd {ASKED}", ""),
        ("guarded,policy=cascade", f"policy guarded,policy=cascade {ASKED}", ""),
        ("per-tag,default=plain,a=early-commit", f"policy per-tag,default=plain,a=early-commit {ASKED}", ""),
        ("mine.py:Admits", f"policy mine.py:Admits {ASKED}", ""),
        ("mine.py:Lies", "policy mine.py:Lies, request ", "Verify(model='target', rule=Ratio(theta=0.01)) is lossy"),
        ("mine.py:Commits", "policy mine.py:Commits, request ", "Commit(tokens=4) is lossy"),
        ("per-tag,default=mine.py:Commits", "policy ", "is lossy, and only lossless policies were asked for"),
    ],
)
def test_lossy_ones_are_refused_before_a_run_or_at_their_first_lossy_step(trace, tmp_path, name, begins, told):
    (tmp_path / "mine.py").write_text(MINE)
    line = refused("compare", "--trace", trace, "--lossless", "--policy", name)
    assert line.startswith(begins)
    assert told in line
