"""`paceline compare --by-tag` and `--regret`, and oracles where they have no place."""

import json

import pytest

from ..command_line import done, refused

CHAINS = ("draft:2/target", "draft:4/target", "draft:3/mid:6/target")


def compared(trace, *args):
    asked = [word for chain in CHAINS for word in ("--policy", chain)]
    return json.loads(done("compare", "--trace", trace, *asked, *args, "--json", "-"))


def test_an_oracle_with_options_is_the_reference(trace):
    data = compared(trace, "--policy", "oracle-chain,most=2,levels=2", "--regret")
    assert [row["policy"] for row in data["policies"]][len(CHAINS) :] == [
        "oracle-chain,most=2,levels=2",
        "oracle-window",
    ]
    assert data["regret"]["reference"] == "oracle-chain,most=2,levels=2"


def test_lossless_and_strict_comparisons_may_have_oracles(trace):
    assert compared(trace, "--regret", "--lossless", "--strict")["regret"]["policies"]


def test_plans_take_no_part_in_chance(trace):
    data = compared(trace, "--policy", "oracle-window", "--shift-acceptance", "draft=+0.1", "--seeds", "2")
    assert data["policies"][-1]["exact_share"] == 1
    assert data["policies"][-1]["seeds"] == 2


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("oracle-window,most=0", "policy 'oracle-window,most=0': most must be in [1, 1,000], got 0"),
        ("oracle-window,draft=nobody", "unknown model 'nobody'; this pool has ngram, draft, mid, target"),
        ("oracle-window,draft=target", "draft must be a member below the target, got 'target'"),
        ("oracle-chain,most=0", "policy 'oracle-chain,most=0': most must be in [1, 1,000], got 0"),
        ("oracle-chain,levels=1", "levels must be >= 2, got 1"),
        ("oracle-chain,most=many", "option 'most' must be a whole number, got 'many'"),
    ],
)
def test_bad_options(trace, policy, message):
    assert message in refused("compare", "--trace", trace, "--policy", policy)


def test_imported_recordings_have_a_future_of_known_and_drawn_rounds(tmp_path):
    (tmp_path / "log.jsonl").write_text(
        '{"id": "a", "prompt_tokens": 20, "drafters": {"eagle": [4, 3, 2, 1, 3, 2, 1]}}\n'
    )
    line = {"intercept_s": 0.001, "per_new_token_s": 0, "per_kv_token_s": 0}
    (tmp_path / "line.json").write_text(json.dumps({"eagle": line, "target": line}))
    done("trace", "import", "positions", "log.jsonl", "--window", "eagle=4", "--out", "log.trace")
    imported = ("compare", "--trace", "log.trace", "--cost", "line.json")
    found = json.loads(done(*imported, "--policy", "eagle:4/target", "--regret", "--by-tag", "--json", "-"))
    speeds = {row["policy"]: row["speed_up"] for row in found["policies"]}
    assert speeds["oracle-chain"] >= speeds["oracle-window"] >= speeds["eagle:4/target"] > 0
    assert found["regret"]


@pytest.mark.parametrize(("command", "study"), [("run", "decode"), ("agree", "agree")])
def test_real_models_have_no_future_and_need_not_be_loaded_to_say_so(tmp_path, monkeypatch, command, study):
    monkeypatch.setattr(f"paceline.studies.{study}.load_pool", lambda *_, **__: pytest.fail("models were loaded"))
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    policy = "oracle-window,most=4"
    line = refused(command, "--prompts", "prompts.jsonl", "--policy", policy, "--threads", "1")
    assert line == f"policy {policy} sees ahead, which only a recording can grant"
