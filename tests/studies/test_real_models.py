"""Decoding, recording and agreement as functions: what the commands print and write, and what they refuse by name."""

import json
import re
from dataclasses import asdict

import pytest
from paceline.base.errors import ArgumentError
from paceline.decoding.seen import Start
from paceline.runs.agreement import compare_runs
from paceline.runtime.forward_kinds import KINDS
from paceline.runtime.prompts import Prompt, prompts_of
from paceline.studies import agree as agreeing
from paceline.studies.agree import agree
from paceline.studies.decode import decode, load_pool
from paceline.studies.record import record
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Closure

from ..tiny_models import random_prompts, tiny_pool_of_four

POOL = tiny_pool_of_four()
PROMPTS = random_prompts(3, seed=2)
LOSSLESS = ["plain", "draft:2/target", "draft:2/mid:3/target"]


@pytest.fixture(scope="module")
def decoded():
    return {policy: decode(POOL, PROMPTS, policy, max_new_tokens=8) for policy in LOSSLESS}


def test_a_run_prints_itself_and_gives_rows(decoded, tmp_path):
    found = decoded["draft:2/target"]
    assert repr(found).startswith("draft:2/target: 3 requests")
    unscored = {"right": None, "failure": None}  # the prompts do not say what a right answer is
    assert found.to_dicts() == found.to_json()["outputs"] == [asdict(output) | unscored for output in found.outputs]
    assert found.to_arrow().num_rows == 3
    assert not found.failed
    found.write(tmp_path / "run")
    lines = (tmp_path / "run" / "outputs.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == [prompt.request_id for prompt in PROMPTS]


def test_both_worlds_agree_on_a_recording_made_now_and_on_one_kept(tmp_path):
    now = agree(POOL, PROMPTS, LOSSLESS, max_new_tokens=8, reach=6)
    kept = record(
        POOL, PROMPTS, str(tmp_path / "a.trace"), max_new_tokens=8, closure=Closure(kind="monotone", reach=6, run=6),
        costs=False,
    )  # fmt: skip
    assert read_trace(tmp_path / "a.trace").meta == kept.meta
    then = agree(POOL, PROMPTS, LOSSLESS, max_new_tokens=8, recording=str(tmp_path / "a.trace"))
    assert now.agree
    assert now.to_json()["policies"] == then.to_json()["policies"]
    assert repr(now).startswith("pool tiny and recording made now (greedy; monotone, reach 6, run 6), 3 requests")
    assert repr(now).endswith("no difference")
    assert [row["policy"] for row in now.to_dicts()] == LOSSLESS
    assert now.to_arrow().num_rows == len(LOSSLESS)


def test_another_draft_that_is_refused_all_the_same_differs(monkeypatch):
    """The last drafted id of the runtime is planted."""

    def planted(*logs, ran_drafts, **given):
        last = max(ran_drafts)
        return compare_runs(*logs, ran_drafts={**ran_drafts, last: (*ran_drafts[last][:-1], -1)}, **given)

    monkeypatch.setattr(agreeing, "compare_runs", planted)
    found = agree(POOL, PROMPTS, ["draft:2/target"], max_new_tokens=8, reach=6)
    assert not found.agree
    assert re.search(r"runtime +draft by draft: \d tokens? of 2 asked for \[(\d+, )?-1\]", repr(found))


@pytest.mark.parametrize(
    ("ask", "policies", "given", "told"),
    [
        (
            agree,
            ["plain"],
            {"recording": "a", "reach": 3},
            "`closure`, `reach` and `run` belong to a recording made now",
        ),
        (agree, ["plain", "plain"], {}, "`policies` plain is given twice"),
        (decode, "early-commit", {"lossless": True}, r"policy early-commit.* is lossy, and `lossless` was asked for"),
        (decode, "oracle-window", {}, "sees ahead, which only a recording allows"),
    ],
)
def test_arguments_are_refused_by_name(ask, policies, given, told):
    with pytest.raises(ArgumentError, match=told):
        ask(POOL, PROMPTS, policies, **given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"closure": "nope"}, "`closure` must be one of monotone, full, got 'nope'"),
        ({"reach": -1}, "`reach` must be in [0, 2147483647], got -1"),
        ({"run": 2.5}, "`run` must be a valid integer, got 2.5"),
        ({"reach": "3"}, "`reach` must be a valid integer, got '3'"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be >= 1, got 0"),
    ],
)
def test_a_recording_is_asked_for_alike_by_both_and_refused_in_one_line(tmp_path, given, told):
    with pytest.raises(ArgumentError, match=f"^{re.escape(told)}$"):
        agree(POOL, PROMPTS, ["plain"], **given)
    with pytest.raises(ArgumentError, match=f"^{re.escape(told)}$"):
        record(POOL, PROMPTS, tmp_path / "a.trace", costs=False, **given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"batch": 0}, "`batch` must be >= 1, got 0"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be >= 1, got 0"),
        ({"limit": 0}, "`limit` must be >= 1, got 0"),
        ({"forward": "fast"}, f"`forward` must be one of {', '.join(KINDS)}, got 'fast'"),
        ({"stop": [""]}, "stop strings must not be empty, got ['']"),
        (
            {"start": "recorded"},
            "`start` must be prefill or draft for a run of models, which holds no start of its own, got recorded",
        ),
    ],
)
def test_what_cannot_be_decoded_is_an_argument_that_is_refused(given, told):
    with pytest.raises(ArgumentError, match=f"^{re.escape(told)}$"):
        decode(POOL, PROMPTS, **given)


def test_a_closure_is_its_kind_and_reach_and_run(tmp_path):
    closure = Closure(kind="monotone", reach=2, run=1)
    shape = {"max_new_tokens": 3, "costs": False}
    whole = record(POOL, PROMPTS[:1], tmp_path / "a.trace", closure=closure, **shape)
    parts = record(POOL, PROMPTS[:1], tmp_path / "b.trace", closure="monotone", reach=2, run=1, **shape)
    assert whole.meta.closure == parts.meta.closure == closure
    for beside in ({"reach": -5}, {"run": 3}):
        with pytest.raises(ArgumentError, match=r"^`closure` has a reach and a run; `reach` and `run` must be None"):
            record(POOL, PROMPTS[:1], tmp_path / "c.trace", closure=closure, **beside)


@pytest.mark.parametrize("start", Start)
def test_a_start_may_be_its_text(start):
    """A text that is compared by identity would silently mean the other start."""
    if start is Start.recorded:
        with pytest.raises(ValueError, match="which holds no start of its own"):
            decode(POOL, PROMPTS, start="recorded", max_new_tokens=4)
        return
    named, meant = (decode(POOL, PROMPTS, LOSSLESS[1], start=given, max_new_tokens=8) for given in (str(start), start))
    assert named.log.meta["start"] == meant.log.meta["start"] == start.value
    assert named.log.steps["prefill"].tolist() == meant.log.steps["prefill"].tolist()
    assert any(named.log.steps["prefill"]) == (start is Start.prefill)
    for ask in (decode, agree):
        with pytest.raises(ArgumentError, match="`start` must be one of prefill, draft, recorded, got 'prefil'"):
            ask(POOL, PROMPTS, start="prefil")


def test_one_text_that_ends_answers_is_no_list_of_letters(decoded):
    text = decoded["plain"].outputs[0].text
    stop = text[len(text) // 2 :][:3]
    one, several = (decode(POOL, PROMPTS[:1], max_new_tokens=8, stop=given).outputs[0] for given in (stop, [stop]))
    assert one.text == several.text


def test_prompts_are_a_file_or_texts(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    assert prompts_of(tmp_path / "p.jsonl") == (Prompt(request_id="a", text="x"),)
    assert prompts_of(["x", PROMPTS[0]]) == (Prompt(request_id="0", text="x"), PROMPTS[0])
    assert prompts_of(str(tmp_path / "p.jsonl")) == prompts_of(tmp_path / "p.jsonl")
    with pytest.raises(FileNotFoundError):
        prompts_of(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("What is a pool?", "'What is a pool?'"),
        ("", "''"),
        (".", "'.'"),
        ("a\0b", r"'a\x00b'"),
        ("why " * 2000, f"'{'why ' * 15}'"),
    ],
)
def test_a_text_without_brackets_is_told_from_a_file(tmp_path, text, shown):
    told = f"^{re.escape(f'`prompts` must be a list of texts, or the path of a file, got {shown}')}$"
    for ask in (prompts_of, lambda given: decode(POOL, given), lambda given: record(POOL, given, tmp_path / "a.trace")):
        with pytest.raises(ArgumentError, match=told):
            ask(text)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_may_name_the_tag_of_a_prompt_beyond_the_limit():
    prompts = [Prompt(request_id=tag, tag=tag, text=PROMPTS[0].text) for tag in "abcdefghij"]
    found = decode(POOL, prompts, "per-tag,default=plain,j=draft:2/target", limit=1, max_new_tokens=4)
    assert [output.request_id for output in found.outputs] == ["a"]
    assert found.num_requests == 1
    told = "names the tag k, which no request of the prompts has; there are a, b, c, d, e, f, g, h, ..."
    with pytest.raises(ArgumentError, match=f" {told}$"):
        decode(POOL, prompts, "per-tag,default=plain,k=draft:2/target", limit=1)


def test_models_in_hand_are_not_loaded_again():
    assert load_pool(POOL) is POOL
