"""Draft lengths that are known are found, what is not decided is not named, and settings are those of engines."""

import json
import random
from dataclasses import replace

import pytest
from paceline import open_recording, recommend
from paceline.base.errors import ArgumentError
from paceline.base.terminal import Progress
from paceline.studies import compare as comparing
from paceline.studies import recommend as recommending
from paceline.studies.options import RecommendOptions, checked
from paceline.studies.setting import setting_of
from paceline.traces import SyntheticSpec, make_trace

from ..cli.command_line import done, refused
from ..traces.importers.foreign_files import sglang_counters, summary

SHARE = 0.8  # of tokens that the draft foresees
DRAFT_S, TARGET_S, ROW_S = 0.1, 1.0, 0.05


@pytest.fixture(scope="module")
def made():
    return make_trace(
        SyntheticSpec(requests=200, tokens=128, acceptance=(SHARE,), depth_decay=0.0, shared_difficulty=0.0)
    )


@pytest.fixture(scope="module")
def cost(tmp_path_factory):
    """A forward of the target takes a second, and a twentieth for each token fed; one of the draft a tenth."""
    path = tmp_path_factory.mktemp("cost") / "known.json"
    lines = {"draft": {"intercept_s": DRAFT_S}, "target": {"intercept_s": TARGET_S, "per_new_token_s": ROW_S}}
    path.write_text(json.dumps(lines))
    return path


def rate(length, batch, *, share=SHARE, draft_s=DRAFT_S, row_s=ROW_S):
    """Tokens a second of a row, of rounds that all rows of a batch take together."""
    tokens = (1 - share ** (length + 1)) / (1 - share)
    return tokens / (TARGET_S + row_s * batch * (length + 1) + draft_s * length)


def expected(batch, most=8):
    """The best K."""
    return max(range(most + 1), key=lambda length: rate(length, batch))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_schedules_of_random_traffics_are_found(seed, tmp_path):
    """Shares and seconds are drawn; what is chosen is within 1% of the best by what is known, at every batch."""
    rng = random.Random(seed)
    known = {"share": rng.uniform(0.4, 0.9), "draft_s": rng.uniform(0.02, 0.3), "row_s": rng.uniform(0.005, 0.1)}
    path = tmp_path / "drawn.json"
    target = {"intercept_s": TARGET_S, "per_new_token_s": known["row_s"]}
    path.write_text(json.dumps({"draft": {"intercept_s": known["draft_s"]}, "target": target}))
    uniform = {"depth_decay": 0.0, "shared_difficulty": 0.0}
    made = make_trace(SyntheticSpec(requests=240, tokens=96, acceptance=(known["share"],), seed=seed, **uniform))
    found = recommend(made, cost=path, batches=[1, 8, 32], most=6)
    for each in found.batches:
        rates = {one.draft_tokens: rate(one.draft_tokens, each.batch, **known) for one in each.candidates}
        assert rates[each.chosen] >= 0.99 * max(rates.values())
        assert each.own.tokens_per_s >= 0.99 * max(one.tokens_per_s for one in each.candidates)


def test_a_schedule_that_is_known_is_found(made, cost):
    found = recommend(made, cost=cost, batches=[1, 4, 16, 64])
    assert [expected(batch) for batch in (1, 4, 16, 64)] == [5, 3, 2, 1]
    for each in found.batches:
        best = max(one.tokens_per_s for one in each.candidates)
        assert each.own.tokens_per_s >= 0.99 * best
        assert abs(each.chosen - expected(each.batch)) <= 1
        assert {one.draft_tokens for one in each.candidates} == set(range(9))
        assert each.own.tuned_on != each.own.speed_up, "the gain is that of the other half"
    assert len(made.requests) == found.meta["requests_tuned_on"] + found.meta["requests"]
    ks = [each.chosen for each in found.batches]
    assert found.setting.decision.schedule == tuple(zip((1, 4, 16, 64), ks, strict=True))
    assert found.setting.engine == "vllm"
    assert found.advice == ()
    first = found.batches[0]
    torn = (first, replace(first, batch=2, open_between=True), replace(first, batch=3))
    said = replace(found, batches=torn).answer()
    assert [line.partition(" running")[0][-4:] for line in said[:2]] == ["at 1", "at 3"], "2 is not settled"
    (few,) = replace(found, meta={**found.meta, "requests_tuned_on": 1}).tables()
    assert "; chosen on 1 request, gain on the other " in few.remarks[0]


def test_where_drafting_cannot_be_told_from_none_no_setting_is_named(made, cost, tmp_path):
    """At one batch a round of one drafted token takes as much longer as it gains."""
    even = tmp_path / "even.json"
    even.write_text(json.dumps({"draft": {"intercept_s": 0.799}, "target": {"intercept_s": 1.0}}))
    found = recommend(made[[one.request_id for one in made.requests[:40]]], cost=even, most=1, batches=[1])
    (at,) = found.batches
    assert at.open_between
    assert not at.open_by_cost
    assert (found.setting, found.advice) == (None, ("record more requests: these do not tell drafting from none",))
    assert next(iter(found.lines())) == (
        "no setting is named: at 1 running, K cannot be told from none; the target alone came out best at 1"
    )
    assert found.to_json()["setting"] is None


def test_the_setting_is_that_of_the_rows_that_can_be_told(made, cost):
    """At 70 running a forward takes 4.5 times as long, and drafts of one token neither gain nor lose."""
    found = recommend(made[[one.request_id for one in made.requests[:140]]], cost=cost, batches=[1, 70], most=8)
    first, last = found.batches
    assert (first.open_between, last.open_between) == (False, True)
    assert found.setting.decision.schedule == ((1, first.chosen),)
    said, advice, *pasted = found.lines()
    assert said.startswith("at 70 running, K cannot be told from none")
    there = next(one for one in last.candidates if one.draft_tokens == first.chosen)
    assert said.endswith(
        f"; the setting is for the others; there its gain, by this cost, is {there.speed_up:.2f}x at 70 (K = "
        f"{first.chosen})"
    )
    assert [each.set_tokens for each in found.batches] == [first.chosen, first.chosen]
    assert advice == "record more requests: these do not tell drafting from none"
    assert pasted == ["", *found.setting.lines()]
    assert [*found.answer()][1:] == [said, advice]
    assert " at 1 running" in next(iter(found.answer()))


@pytest.mark.parametrize(("requests", "is_told"), [(8, False), (10, True)])
def test_of_too_few_requests_nothing_is_told(cost, requests, is_told):
    """Of fewer than five on a half no interval is known, however alike they are: no setting is named."""
    spec = SyntheticSpec(requests=requests, tokens=400, acceptance=(0.9,), depth_decay=0.0, shared_difficulty=0.0)
    found = recommend(make_trace(spec), cost=cost, batches=[1], most=4)
    assert found.batches[0].chosen == 4
    assert found.batches[0].open_between is not is_told
    assert (found.setting is not None) is is_told
    if not is_told:
        assert found.batches[0].tied == (0, 1, 2, 3)
        assert "record more requests" in found.lines()[-1]


def test_a_cost_that_does_not_tell_says_what_to_measure(made):
    """An engine's rounds are known between bounds, and here drafting pays at one of them only."""
    shapes = ["target=llama-3.1-8b", "draft=llama-3.2-3b"]
    found = recommend(made, cost="h100", engine="trtllm", models=shapes, batches=[1], sample=60)
    (at,) = found.batches
    assert at.open_by_cost
    assert found.setting is None
    assert "paceline observe URL" in found.advice[0]
    low, high = next(one.speed_up_range for one in at.candidates if one.draft_tokens == 2)
    assert low < 1 < high


def test_the_present_setting_is_held_against_the_choice(made, cost):
    found = recommend(made, cost=cost, batches=[1], present=1, sample=60)
    (at,) = found.batches
    now = next(one for one in at.candidates if one.draft_tokens == 1)
    assert at.over_present == at.own.tokens_per_s / now.tokens_per_s > 1.1
    (longer,) = recommend(made, cost=cost, batches=[1], most=3, present=12, sample=60).batches
    tried = sorted(one.draft_tokens for one in longer.candidates)
    assert tried == [0, 1, 2, 3, 12], "what is set now is tried as well, and nothing else beyond `most`"


@pytest.fixture(scope="module")
def far(made, cost):
    """At one request and at 30, for an engine that takes K by running requests."""
    return recommend(made, cost=cost, batches=[1, 30], sample=60, engine_version="0.33.0")


def test_numbers_of_requests_that_were_not_replayed_are_named(made, cost, far):
    near = recommend(made, cost=cost, batches=[1, 2], sample=60)
    assert far.batches[0].chosen != far.batches[1].chosen
    told = f"2 to 29 running were not replayed: K = {far.batches[0].chosen} is that of 1; add --batch between it and 30"
    assert told in far.meta["remarks"]
    assert not any("not replayed" in remark for remark in near.meta["remarks"])


@pytest.mark.parametrize("device", [False, True], ids=["a cost", "a cost with ends"])
def test_all_that_is_replayed_is_one_stage(made, cost, device, monkeypatch):
    stages, steps = [], []

    class Watched(Progress):
        def __exit__(self, *error):
            stages.append((self.done, self.total))
            super().__exit__(*error)

        def advance_to(self, done, note=None):
            steps.append(done)
            super().advance_to(done, note)

    for module in (recommending, comparing):
        monkeypatch.setattr(module, "Progress", Watched)
    options = {"cost": "h100", "models": ["target=llama-3.1-8b", "draft=llama-3.2-1b"]} if device else {"cost": cost}
    recommend(made, batches=[1, 4], most=2, sample=8, **options)
    total = 2 * 2 * 3 * (3 if device else 1)  # halves, batches, K; the cost and its ends
    assert stages == [(total, total)]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"engine_version": "0.11.0"}, "vLLM 0.11.0 is older than 0.33.0, where K by running requests was read"),
        ({"paste_into": "llamacpp"}, "llama.cpp sets no K by running requests (it has one K, whatever the load)"),
        (
            {"paste_into": "sglang"},
            "SGLang sets no K by running requests (its adaptive mode knows EAGLE heads and MTP ",
        ),
    ],
)
def test_an_engine_without_a_schedule_gets_one_k(engine, why, made, cost, far):
    old = recommend(made, cost=cost, batches=[1, 30], sample=60, **engine)
    assert [replace(each, set_tokens=None) for each in far.batches] == [
        replace(each, set_tokens=None) for each in old.batches
    ]
    assert len(far.setting.decision.schedule) == 2
    ((first, tokens),) = old.setting.decision.schedule
    assert first == 1
    assert far.batches[1].chosen <= tokens <= far.batches[0].chosen
    speeds = [{one.draft_tokens: one.tuned_on for one in each.candidates} for each in old.batches]
    kept = {length: min(speed[length] / max(speed.values()) for speed in speeds) for length in speeds[0]}
    assert kept[tokens] == max(kept.values())
    (told,) = [remark for remark in old.meta["remarks"] if ": one K for all, K =" in remark]
    assert told.startswith(why)
    assert told.endswith(f"{1 - kept[tokens]:.0%}")
    (said,) = old.answer()
    gains = [one.speed_up for each in old.batches for one in each.candidates if one.draft_tokens == tokens]
    assert said.startswith(f"draft {tokens} tokens at 1 to 30 running: {min(gains):.2f}x to ")


def test_an_engine_of_one_request_gets_the_k_of_one(made, cost):
    found = recommend(made, cost=cost, batches=[1, 30], sample=60, paste_into="transformers")
    chosen = found.batches[0].chosen
    assert chosen != found.batches[1].chosen
    assert found.setting.decision.schedule == ((1, chosen),)
    assert f"(it takes one request at a time): K = {chosen} is that of 1 running" in " ".join(found.meta["remarks"])
    assert not any("were not replayed" in remark for remark in found.meta["remarks"])
    assert [each.set_tokens for each in found.batches] == [chosen, None]
    (said,) = found.answer()
    assert said.startswith(f"draft {chosen} tokens at 1 running: ")


def test_an_engine_of_one_request_gets_no_k_of_many(made, tmp_path):
    """Where K of a request alone is not decided."""
    cost = tmp_path / "even.json"
    cost.write_text('{"draft": {"intercept_s": 0.79}, "target": {"intercept_s": 1, "per_new_token_s": 0.05}}')
    options = {"cost": cost, "batches": [1, 60], "most": 1}
    many, one = (recommend(made, **options, paste_into=engine) for engine in ("vllm", "transformers"))
    assert [each.open_between for each in one.batches] == [True, False]
    assert many.setting is not None
    assert one.setting is None
    assert "no setting is named: at 1 running, K cannot be told from none" in one.lines()[0]


def test_a_large_recording_is_drawn_from(made, cost):
    drawn = recommend(made, cost=cost, batches=[1], most=2, sample=30)
    assert drawn.meta["requests"] + drawn.meta["requests_tuned_on"] == 30
    assert "about 30 of 200 requests were drawn and replayed; --sample takes more" in drawn.meta["remarks"]
    assert drawn.to_json() == recommend(made, cost=cost, batches=[1], most=2, sample=30).to_json(), "the same ones"
    assert not any("drawn" in remark for remark in recommend(made, cost=cost, batches=[1], most=1).meta["remarks"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"drafter": "mid"}, "`drafter` must be one of draft, got 'mid'"),
        ({"batches": [4, 2]}, "`batches` must ascend from 1 or more to at most 100, the requests of a half, got 4, 2"),
        ({"batches": [1, 101]}, "`batches` must ascend from 1 or more to at most 100"),
        ({"sample": 1}, "`sample` must be >= 2 and finite, got 1"),
        ({"split": 1.0}, "`split` must be in (0, 1), got 1.0"),
        ({"paste_into": "tgi"}, "`paste_into` must be one of vllm, sglang"),
        ({"most": 0}, "`most` must be in [1, 32], got 0"),
        ({"present": -1}, "`present` must be in [0, 32], got -1"),
        ({"weights": "eagle3"}, "`weights` must read eagle3=PATH, got 'eagle3'"),
        ({"weights": "head=a"}, "`weights` 'head=a' is of no known kind; known are model, eagle,"),
        ({"engine_version": "new"}, "`engine_version` must be a version as 0.33.0, got 'new'"),
    ],
)
def test_what_will_not_do(made, cost, options, told):
    with pytest.raises(ArgumentError) as error:
        recommend(made, cost=cost, **{"batches": [1], **options})
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, ("vllm", "0.9")),
        ({"engine_version": "0.9.2"}, ("vllm", "0.9.2")),
        ({"engine_version": "0.9.2rc2.dev10"}, ("vllm", "0.9.2rc2.dev10")),
        ({"paste_into": "sglang"}, ("sglang", None)),
    ],
)
def test_seconds_of_a_release_name_its_version(given, found):
    asked = checked(RecommendOptions, {"cost": "h100", "engine": "vllm-0.9", **given})
    assert recommending.version_of(asked, setting_of(open_recording("pico"), asked)) == found


def test_a_recording_of_the_target_alone_has_nothing_to_recommend():
    with pytest.raises(ArgumentError, match="must have a member that drafts, got synthetic, of target alone"):
        recommend(make_trace(SyntheticSpec(requests=4, tokens=8, models=("target",))))


def test_what_an_engine_cannot_do_is_said_beside_the_table(made, cost):
    """Before the numbers that are undecided, which alone keep no setting from being named."""
    some = made[[one.request_id for one in made.requests[:140]]]
    options = {"paste_into": "trtllm", "weights": "eagle3=HEAD", "engine_version": "1.4.0"}
    found = recommend(some, cost=cost, batches=[1, 30, 70], **options)
    assert [each.open_between for each in found.batches] == [False, False, True]
    assert len({each.chosen for each in found.batches[:2]}) == 2
    assert found.setting is None
    first, undecided, _ = found.lines()
    assert undecided.startswith("at 70 running, K cannot be told from none")
    refusal = "trtllm cannot do this: --max-batch must be given in trtllm, where K is 0 above the last key, for 1:"
    assert first.startswith(f"no setting is named: {refusal}")
    chosen = ",".join(f"{each.batch}:{each.chosen}" for each in found.batches[:2])
    assert first.endswith(
        f"edit: paceline settings --engine trtllm --drafter eagle3=HEAD --schedule {chosen} --engine-version 1.4.0"
    )
    assert found.to_json()["advice"][-1].startswith(refusal)


def test_the_command(tmp_path):
    out = tmp_path / "found.json"
    printed = done("recommend", "--batch", 1, "--batch", 8, "--most", 4, "--cost", "h100", "--models", "draft=eagle3",
                   "--models", "target=llama-3.1-8b", "--weights", "eagle3=HEAD", "--paste-into", "sglang")  # fmt: skip
    assert "--speculative-algorithm EAGLE3" in printed
    assert "range of cost" in printed
    shapes = ["--models", "draft=eagle3", "--models", "target=llama-3.1-8b"]
    printed = done("recommend", "--batch", 1, "--most", 2, "--cost", "h100", *shapes)
    assert "no input says what draft is in an engine: give --weights, one of model=PATH," in " ".join(printed.split())
    assert "draft_model" not in printed
    done("recommend", "--batch", 1, "--most", 2, "--json", out)
    found = json.loads(out.read_text())
    assert [one["batch"] for one in found["batches"]] == [1]
    assert {one["policy"] for one in found["batches"][0]["candidates"]} == {"plain", "draft:1/target", "draft:2/target"}
    assert found["drafter"] == "draft"
    assert "--batch must ascend" in refused("recommend", "--batch", 8, "--batch", 8)


def test_an_imported_log_names_its_engine():
    """A drafter that copies text is set as such."""
    recording = open_recording("pico")
    found = recommend(recording, drafter="ngram", batches=[1], most=4)
    assert found.drafter == "ngram"
    asked = checked(RecommendOptions, {"most": 4})
    for engine, drafter in (("vllm", "ngram=3"), ("sglang", "ngram"), ("trtllm", "ngram=3"), ("llamacpp", "ngram=3")):
        own = replace(asked, paste_into=engine)
        setting, refusal = recommending.pasted({1: 4}, own, setting_of(recording, own), "ngram", split=1)
        assert refusal is None
        assert str(setting.decision.drafter) == drafter  # the longest match that was replayed, where an engine has one
        assert "replayed: what follows the last match of 1 to 3 tokens" in setting.pasted.notes[-1]
        compared = "docs/pools-and-recordings.md#prompt-lookup" in setting.pasted.notes[-1]
        assert compared == (engine in ("vllm", "sglang")), "the page has a row for it"
    vllms = recording.meta.ngram.model_copy(update={"min_match": 5, "max_match": 5, "occurrence": "first"})
    own = replace(asked, paste_into="vllm")
    alike = replace(recording, meta=recording.meta.model_copy(update={"ngram": vllms}))
    setting, _ = recommending.pasted({1: 4}, own, setting_of(alike, own), "ngram", split=1)
    assert '"prompt_lookup_max": 5, "prompt_lookup_min": 5' in setting.pasted.command  # and no shorter match
    assert "the first match of 5 tokens;" in setting.pasted.notes[-1]
    own = replace(asked, weights="ngram=7")
    given, _ = recommending.pasted({1: 4}, own, setting_of(recording, own), "ngram", split=1)
    assert str(given.decision.drafter) == "ngram=7"


def test_what_a_log_was_written_at_is_the_present_setting(tmp_path):
    log = tmp_path / "served.jsonl"
    log.write_text("".join(f"{json.dumps(summary(f'r{number}', [4, 3, 2, 6]))}\n" for number in range(12)))
    done("trace", "import", "vllm-summary", log, "--out", tmp_path / "log.trace")
    shapes = ["target=llama-3.1-8b", "drafter=eagle3"]
    found = recommend(tmp_path / "log.trace", cost="h100", models=shapes, batches=[1])
    assert found.present == 3
    assert found.batches[0].over_present is not None
    assert {one.draft_tokens for one in found.batches[0].candidates} == {0, 1, 2, 3}
    assert "K up to 3, the longest draft of the log" in "".join(found.meta["remarks"])
    # What the log calls a drafter may be a head on the target: nothing is printed that would load it as a model.
    assert found.setting is None
    assert found.lines()[0].startswith(
        "no setting is named: no input says what drafter is in an engine: give --weights, one of model=PATH,"
    )
    given = recommend(tmp_path / "log.trace", cost="h100", models=shapes, batches=[1], weights="eagle3=HEAD")
    assert given.setting is not None
    # A log with the engine's arguments says it, of that engine.
    named = open_recording(tmp_path / "log.trace")
    named = replace(named, meta=named.meta.model_copy(update={"drafts_by": "eagle3=HEAD"}))
    own = recommend(named, cost="h100", models=shapes, batches=[1])
    assert own.setting == given.setting
    other = recommend(named, cost="h100", models=shapes, batches=[1], paste_into="sglang")
    assert "the log says eagle3=HEAD of another engine: give --weights" in other.lines()[0]


@pytest.mark.parametrize("weights", [None, "model=DRAFT"])
def test_no_setting_is_named_where_nobody_timed_the_target_alone(weights, tmp_path):
    """Only the logged draft length has seconds, so that it came out best of one; nothing says that it gains."""
    log = tmp_path / "answers.jsonl"
    timings = {"prompt_n": 10, "predicted_n": 30, "draft_n": 36, "draft_n_accepted": 18, "prompt_ms": 9.0}
    log.write_text(f"{json.dumps({'timings': {**timings, 'predicted_ms': 240.0}})}\n" * 12)
    done("trace", "import", "auto", log, "--window", "drafter=3", "--out", tmp_path / "log.trace")
    found = recommend(tmp_path / "log.trace", batches=[1], weights=weights)
    assert (found.batches[0].chosen, found.batches[0].own.speed_up) == (3, None)
    assert found.setting is None
    assert found.lines() == [
        "no setting is named: at 1 running, K cannot be told from none",
        "no gain is known: import answers that the target wrote alone as well, or give another --cost",
    ]


@pytest.mark.parametrize("tokens", [4, 16])
def test_what_trees_kept_sets_no_chains(tokens, tmp_path):
    page = "\n".join(
        [*sglang_counters(2.6), f'sglang:spec_num_draft_tokens{{model_name="m",tp_rank="0"}} {tokens}.0\n']
    )
    (tmp_path / "page.prom").write_text(page)
    out = tmp_path / "log.trace"
    done("trace", "import", "auto", tmp_path / "page.prom", "--requests", 40, "--output-tokens", 60, "--out", out)
    shapes = ["target=llama-3.1-8b", "drafter=eagle3-llama-3.1-8b"]
    found = recommend(out, cost="h100", models=shapes, batches=[1], weights="eagle3=HEAD", seeds=2)
    assert (found.setting is None) == (tokens > 4)
    assert (
        ("log chains" in (found.open_because or ""))
        == ("drafted trees" in "".join(found.meta["remarks"]))
        == (tokens > 4)
    )


@pytest.mark.parametrize(("weights", "is_set"), [("eagle=HEAD", False), ("model=DRAFT", True)])
def test_files_of_eagles_own_code_set_no_chains(weights, is_set, tmp_path):
    """Which drafts trees, and does not say so."""
    choice = {"index": 0, "turns": ["x"], "decoding_steps": [5], "new_tokens": [15], "wall_time": [0.1]}
    choice["accept_lengths"] = [4, 2, 3, 5, 1]
    lines = [{"question_id": n, "category": "a", "model_id": "m-eagle2", "choices": [choice]} for n in range(12)]
    (tmp_path / "m-eagle2.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done("trace", "import", "spec-bench", tmp_path / "m-eagle2.jsonl", "--out", tmp_path / "log.trace")
    shapes = ["target=llama-3.1-8b", "eagle2=eagle-llama-3.1-8b"]
    found = recommend(tmp_path / "log.trace", cost="h100", models=shapes, batches=[1], weights=weights, seeds=1)
    assert ((found.setting is not None), "log chains" in (found.open_because or "")) == (is_set, not is_set)


def test_without_seconds_of_the_target_alone_the_page_shows_tokens_a_second(tmp_path):
    """What drafting gains over none is unknown."""
    choice = {"index": 0, "turns": ["x"], "decoding_steps": [5], "new_tokens": [15], "wall_time": [0.1]}
    choice["accept_lengths"] = [4, 2, 3, 5, 1]
    lines = [{"question_id": n, "category": "a", "model_id": "m-sps", "choices": [choice]} for n in range(12)]
    (tmp_path / "m-sps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done("trace", "import", "spec-bench", tmp_path / "m-sps.jsonl", "--out", tmp_path / "log.trace")
    found = recommend(tmp_path / "log.trace", batches=[1], weights="model=DRAFT", seeds=1)
    assert {one.speed_up for one in found.batches[0].candidates} == {None}
    assert found.setting is None
    assert found.lines()[0] == "no setting is named: at 1 running, K cannot be told from none"
    assert found.lines()[1].startswith("no gain is known: import answers that the target wrote alone")
    (panel,) = found.panels()
    assert (panel.value_label, panel.least) == ("output tokens/s", None)
    assert {row[0] for row in panel.values} == {one.tokens_per_s for one in found.batches[0].candidates}


@pytest.mark.parametrize("name", ["most", "present"])
def test_a_longer_draft_than_those_of_the_log_is_refused(tmp_path, name):
    log = tmp_path / "served.jsonl"
    log.write_text("".join(f"{json.dumps(summary(f'r{number}', [4, 3, 2, 6]))}\n" for number in range(8)))
    done("trace", "import", "vllm-summary", log, "--out", tmp_path / "log.trace")
    rule = (
        f"`{name}` must be at most 3, the longest draft of drafter in log, got 4: what a longer one keeps is not known"
    )
    with pytest.raises(ArgumentError, match=rule):
        recommend(tmp_path / "log.trace", cost="h100", batches=[1], **{name: 4})


def test_a_setting_says_over_how_many_devices_its_target_was_split():
    spec = SyntheticSpec(requests=24, tokens=400, models=("draft", "target"), acceptance=(0.9,), shared_difficulty=0.0)
    shapes = ["target=llama-3.1-70b", "draft=llama-3.2-1b"]
    for split in (4, 8):
        asked = {"cost": "h100", "tensor_parallel": split, "models": shapes, "batches": [1], "most": 3}
        notes = recommend(make_trace(spec), **asked).setting.pasted.notes
        assert notes == (f"for a target that is split over {split} devices: set that, too",)
