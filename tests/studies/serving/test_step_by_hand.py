"""The step that docs/serving.md works out by hand: a chunk of a prefill, a decode and a verification in one forward."""

import json

import paceline
import pytest

REQUESTS = (
    {"request_id": "a", "arrives_s": 0, "prompt_tokens": 6, "output_tokens": 9, "tag": "math"},
    {"request_id": "c", "arrives_s": 0, "prompt_tokens": 5, "output_tokens": 3, "tag": "code"},
    {"request_id": "b", "arrives_s": 0, "prompt_tokens": 20, "output_tokens": 1, "tag": "code"},
)
CLUSTER = """
[[replicas]]
device = "h100"
cost = "costs.json"
token_budget = 16
"""
US = 10**6  # picoseconds of a microsecond


def line(intercept_us, new_us, held_us=0):
    return {"intercept_s": intercept_us / 1e6, "per_new_token_s": new_us / 1e6, "per_kv_token_s": held_us / 1e6}


@pytest.fixture
def run(tmp_path):
    lines = {"draft": line(1000, 100), "target": line(10_000, 1000, 100)}
    costs = lines | {name: line(2000, 200) for name in ("mid", "slim")}
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    (tmp_path / "step.toml").write_text(CLUSTER)
    (tmp_path / "step.jsonl").write_text("".join(f"{json.dumps(request)}\n" for request in REQUESTS))
    return paceline.simulate(
        tmp_path / "step.jsonl", "per-tag,default=plain,math=draft:2/target", cluster=tmp_path / "step.toml"
    )


def test_every_time_is_as_by_hand(run):
    requests = run.log.requests
    first = dict(zip(requests["request_id"], requests["first_token_at_ps"].tolist(), strict=True))
    ended = dict(zip(requests["request_id"], requests["ended_at_ps"].tolist(), strict=True))
    step1 = 10_000 + (6 + 5 + 5) * 1000  # a and c whole, five tokens of b
    draft1 = (1000 + 7 * 100) + (1000 + 100)  # a's prompt and first token, then the first drafted one
    step2 = 10_000 + (3 + 1 + 12) * 1000 + (6 + 5 + 5) * 100  # a verifies, c decodes, b reads on
    draft2 = 2 * (1000 + 100)  # one of two was kept: the cache lacks the own token only
    step3 = 10_000 + (3 + 1 + 3) * 1000 + (8 + 6 + 17) * 100
    draft3 = (1000 + 2 * 100) + (1000 + 100)  # both were kept: it lacks the second one too
    step4 = 10_000 + 3 * 1000 + 11 * 100
    at3 = step1 + draft1 + step2 + draft2 + step3
    assert first == {"a": step1 * US, "c": step1 * US, "b": at3 * US}
    assert ended == {"a": (at3 + draft3 + step4) * US, "c": at3 * US, "b": at3 * US}
    assert (at3, at3 + draft3 + step4) == (78_700, 95_100)  # as the page says
