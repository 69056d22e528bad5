"""Where a gain goes: by hand, and terms that add up for any policy."""

import json

import numpy as np
import pytest
from paceline import compare, open_recording, simulate
from paceline.reports.waterfall import LOSSES, Spent, Why, waterfall_of, why_table
from paceline.reports.waterfall_under_load import _held
from paceline.runs.log import read_run_log
from paceline.traces import SyntheticSpec, make_trace

from ..cli.command_line import done
from .making import text_of

ALONE = Spent(
    tokens=110,
    in_rounds=100,
    calls=100,
    judged=0,
    accepted=0,
    duration_s=12.0,
    prompts_s=2.0,
    target_s=10.0,
    below_s=0.0,
    by_rows={1: (20, 50.0, 0.08), 2: (40, 100.0, 0.21)},
    held_s=1e-4,
)
# Forty calls for as many tokens: four drafted tokens each time, of which one and a half stay.
RUN = Spent(
    tokens=110,
    in_rounds=100,
    calls=40,
    judged=160,
    accepted=60,
    duration_s=9.0,
    prompts_s=2.0,
    target_s=5.0,
    below_s=1.5,
    by_rows={2: (10, 120.0, 0.25), 4: (5, 240.0, 0.45)},
    held_s=0.0,
)


def test_a_waterfall_by_hand():
    found = waterfall_of(RUN, ALONE)
    assert found.perfect == pytest.approx(12 / (2 + 100 / 5 * 0.1))
    # Without tokens held, one row takes 0.075 s, and two 0.2 s: so four 0.45 s. A token held takes 0.0001 s.
    narrow_s = 5 * (10 * (0.2 + 0.012) + 5 * (0.45 + 0.024)) / (10 * 0.25 + 5 * 0.45)
    called_s = 2 + 40 * 0.1
    prices_s = (called_s, called_s + 1.5, called_s + 1.5 + 5 - narrow_s, 2 + 5 + 1.5, 9)
    after = [12 / seconds for seconds in prices_s]
    assert found.losses == pytest.approx(
        dict(
            zip(
                LOSSES,
                (before - left for before, left in zip([found.perfect, *after], after, strict=False)),
                strict=True,
            )
        )
    )
    assert found.speed_up == pytest.approx(12 / 9)
    # A round takes 7 / 40 s, and the target alone 10 s for the 100 tokens.
    assert found.pays_from == pytest.approx(100 * (7 / 40) / 10)


def test_the_target_alone_gains_and_loses_nothing():
    found = waterfall_of(ALONE, ALONE)
    assert (found.perfect, found.speed_up, found.pays_from) == (1.0, 1.0, 1.0)
    assert found.losses == dict.fromkeys(LOSSES, 0.0)


def test_where_no_round_is_run_nothing_is_known():
    short = Spent(
        tokens=10, in_rounds=0, calls=0, judged=0, accepted=0, duration_s=2.0, prompts_s=2.0, target_s=0.0, below_s=0.0,
        by_rows={}, held_s=0.0,
    )  # fmt: skip
    assert waterfall_of(short, ALONE) is None
    assert waterfall_of(RUN, short) is None


@pytest.mark.parametrize(
    "options",
    [{}, {"batch": 8}, {"cost": "h100", "models": ["target=llama-3.1-8b", "draft=eagle3"]}, {"decide_s": 1e-3}],
)
@pytest.mark.one_in(2)
def test_terms_add_up(options):
    policies = ["plain", "draft:4/target", "draft:3/mid:6/target", "adaptive", "specrouter", "ngram", "via-sd"]
    given = {**options, "models": [*options["models"], "mid=llama-3.2-1b"]} if "models" in options else options
    found = compare(open_recording("pico").of_tags("code"), policies, why=True, **given)
    runs = {row.policy: row for row in found.runs.rows}
    assert list(found.why.policies) == [row.policy for row in found.runs.ranked() if row.policy != "plain"]
    for policy, each in found.why.policies.items():
        assert each.perfect - sum(each.losses.values()) == pytest.approx(each.speed_up, rel=1e-9)
        first = runs[policy].output_tokens_per_s / runs["plain"].output_tokens_per_s
        assert each.speed_up == pytest.approx(first, rel=1e-9)
        assert each.losses["acceptance"] > 0
        assert each.losses["drafting"] >= 0
    json = found.to_json()["why"]
    assert [one["policy"] for one in json] == list(found.why.policies)
    assert set(json[0]["lost_to"]) == set(LOSSES)


@pytest.mark.parametrize(("batch", "within"), [(1, 0.002), (8, 0.02)])
@pytest.mark.one_in(2)
def test_it_pays_from_the_length_at_which_a_worse_draft_gains_nothing(batch, within):
    """The acceptance is lowered until the simulator's speed-up is 1, by bisection."""
    spec = SyntheticSpec(
        requests=40, tokens=160, models=("draft", "target"), acceptance=(0.8,), depth_decay=0.0, shared_difficulty=0.0
    )
    made, policy = make_trace(spec), "draft:2/target"
    asked = {"cost": "h100", "models": ["target=llama-3.1-8b", "draft=llama-3.2-3b"], "seeds": 1, "batch": batch}
    told = compare(made, policy, why=True, **asked).why.policies[policy].pays_from
    low, high = -0.7, 0.19
    for _ in range(9):
        shift = (low + high) / 2
        runs = compare(made, policy, shift_acceptance={"draft": shift}, **asked).runs
        row = next(row for row in runs.rows if row.policy == policy)
        low, high = (shift, high) if runs.speed_up(row) < 1 else (low, shift)
    assert runs.speed_up(row) == pytest.approx(1, abs=0.01)
    assert row.acceptance_length / runs.speed_up(row) == pytest.approx(told, rel=within)


@pytest.mark.parametrize("has_cache", [True, False])
def test_under_load_tokens_held_are_those_charged(tmp_path, has_cache):
    """Of texts in chunks beside rounds, with hits of a common beginning and preempted requests."""
    place, prompts = tmp_path / "cluster.toml", [700, 90, 1_050, 600, 40, 520, 1_000, 530, 610, 1_030]
    flat, each_s = {"intercept_s": 1e-3, "per_kv_token_s": 0.0, "per_new_token_s": 0.0}, 1e-6
    lines = {"draft": flat, "mid": flat, "slim": flat, "target": flat | {"per_kv_token_s": each_s}}
    (tmp_path / "line.json").write_text(json.dumps(lines))
    memory = f"kv_blocks = 84\ntoken_budget = 96\nprefix_cache = {str(has_cache).lower()}"
    place.write_text(f'[[replicas]]\ndevice = "h100"\ncost = "line.json"\n{memory}\n')
    load = [
        {
            "timestamp": 9 * number,
            "input_length": tokens,
            "output_length": 60,
            "hash_ids": [1, number + 2, 30][: -(-tokens // 512)],
        }
        for number, tokens in enumerate(prompts * 2)
    ]
    (tmp_path / "load.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in load))
    log = simulate(tmp_path / "load.jsonl", "draft:4/target", cluster=place, events=True).log
    assert len(log.preemptions["request"])
    assert log.requests["cached_tokens"][:, -1].any() == has_cache
    ops, rows = log.operations.ops, log.operations.rows
    charged = ((ops["end_ps"] - ops["start_ps"]) / 1e12 - flat["intercept_s"]) / each_s
    at_target = ops["level"] == len(log.meta.members) - 1
    held = np.bincount(rows["operation"], weights=_held(log), minlength=len(charged))
    assert held[at_target] == pytest.approx(charged[at_target], abs=0.01)


def test_of_token_trees_it_is_not_known():
    why = Why(policies={"draft:4/target": waterfall_of(RUN, ALONE), "tree": None})
    printed = text_of(why_table(why))
    assert "-: not known where token trees are drafted, or no round is run" in printed
    assert "│ tree │ - │ - │ - │ - │ - │ - │ - │ │" in printed
    assert why.to_json()[1] == {"policy": "tree"}


def test_the_screen():
    printed = done("compare", "--policy", "draft:4/target", "--why")
    assert "where the gain goes, at the first seed" in printed
    assert "what is drafted is refused" in printed
    assert "where the gain goes" not in done("compare", "--policy", "draft:4/target")


@pytest.mark.parametrize("batch", [16, 64])
@pytest.mark.parametrize(("token_s", "held_s"), [(0.0, 0.0), (1e-4, 1e-5)])
def test_width_is_what_a_forward_takes_for_more_tokens_than_rows(tmp_path, batch, token_s, held_s):
    """However few rows the target's forwards have at the end of a batch, and however long these are."""
    free = {"intercept_s": 1e-9, "per_new_token_s": 0.0, "per_kv_token_s": 0.0}
    line = {"intercept_s": 5e-3, "per_new_token_s": token_s, "per_kv_token_s": held_s}
    (tmp_path / "cost.json").write_text(json.dumps(dict.fromkeys(("draft", "mid", "slim"), free) | {"target": line}))
    asked = {"cost": str(tmp_path / "cost.json"), "batch": batch, "log": str(tmp_path / "runs")}
    found = compare(open_recording("pico"), ["plain", "draft:4/target"], why=True, **asked).why
    alone, drafted = (read_run_log(path) for path in sorted((tmp_path / "runs").iterdir()))
    run, prefills = Spent.of(drafted), drafted.steps["op"][drafted.steps["prefill"] == 1]
    is_target = drafted.ops["level"] == len(drafted.meta["members"]) - 1
    judged = is_target & ~np.isin(np.arange(len(is_target)), prefills)
    wider_s = token_s * (drafted.ops["new_tokens"] - drafted.ops["num_rows"])[judged].sum()
    share = wider_s / drafted.ops["duration_s"][judged].sum()
    assert run.target_s - run.narrow_s(Spent.of(alone)) == pytest.approx(share * run.target_s, rel=1e-6, abs=1e-9)
    width = found.policies["draft:4/target"].losses["width"]
    assert width > 0.1 if token_s else width == pytest.approx(0, abs=1e-6)


def test_requests_that_are_judged_while_others_read_are_of_rounds(tmp_path):
    """Where a forward takes the same whatever is in it, no width is lost, and rounds pay from one token on."""
    free = {"new_tokens": [1, 65536], "seconds": [1e-9] * 2}
    flat = dict.fromkeys(("draft", "mid", "slim"), free) | {"target": free | {"seconds": [0.01] * 2}}
    (tmp_path / "flat.json").write_text(json.dumps(flat))
    asked = {"cost": str(tmp_path / "flat.json"), "batch": 8}
    (found,) = compare(open_recording("pico"), "draft:4/target", why=True, **asked).why.policies.values()
    assert found.losses["width"] == pytest.approx(0, abs=1e-9)
    assert found.pays_from == pytest.approx(1, abs=0.02)
