"""Settings of engines: what a schedule means there is what was decided, and what an engine would change is refused."""

import argparse
import json
import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline import settings
from paceline.base.errors import ArgumentError
from paceline.studies.engine_settings import ENGINES

MOST = 400  # running requests
SCHEDULES = st.dictionaries(st.integers(2, 300), st.integers(0, 9), max_size=5).flatmap(
    lambda later: st.integers(0, 9).map(lambda first: {1: first, **dict(sorted(later.items()))})
)


def decided(schedule):
    """K by running requests, 1 to MOST."""
    starts = sorted(schedule)
    return [schedule[max(start for start in starts if start <= batch)] for batch in range(1, MOST + 1)]


def vllm_plays(config):
    """What vLLM 0.33.0 makes of a configuration: inclusive ranges, gaps and the tail keep K, no more than the cap."""
    most = config["num_speculative_tokens"]
    assert most > 0
    ranges = config.get("num_speculative_tokens_per_batch_size")
    if ranges is None:
        return [most] * MOST
    assert ranges[0][0] == 1
    assert all(low <= high for low, high, _ in ranges)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    return [min(most, [tokens for low, _, tokens in ranges if low <= batch][-1]) for batch in range(1, MOST + 1)]


def sglang_plays(setting, files):
    """SGLang 0.5.23 takes the entry of the largest key that is not above the running requests."""
    assert setting["speculative-eagle-topk"] == 1
    assert setting["speculative-num-draft-tokens"] == setting["speculative-num-steps"] + 1
    if "speculative-adaptive" not in setting:
        return [setting["speculative-num-steps"]] * MOST
    steps = {int(key): entry["candidate_steps"] for key, entry in json.loads(files["adaptive.json"]).items()}
    assert all(len(found) == 1 for found in steps.values())  # nothing to adapt: the schedule alone decides
    return [steps[max(key for key in steps if key <= batch)][0] for batch in range(1, MOST + 1)]


def tensorrt_plays(config):
    """TensorRT-LLM 1.4.0rc1: keys are upper bounds, the smallest has max_draft_len, above the last one K is 0."""
    most, keys = config["max_draft_len"], config.get("draft_len_schedule")
    if keys is None:
        return [most] * MOST
    assert keys[min(keys)] == most
    assert all(0 <= tokens <= most for tokens in keys.values())
    return [
        keys[min((key for key in keys if key >= batch), default=0)] if batch <= max(keys) else 0
        for batch in range(1, MOST + 1)
    ]


@given(schedule=SCHEDULES, most=st.sampled_from([None, MOST]))
def test_vllm_and_sglang_play_what_was_decided(schedule, most):
    found = settings("vllm", "eagle3=D", schedule=schedule, max_batch=most).to_json()
    beside = settings("sglang", "eagle3=D", schedule=schedule, max_batch=most).to_json()
    if not any(schedule.values()):
        assert found["setting"] == beside["setting"] == {}
        assert "speculative" not in found["command"] + beside["command"]
        return
    assert vllm_plays(found["setting"]["speculative_config"]) == decided(schedule)
    assert sglang_plays(beside["setting"], beside["files"]) == decided(schedule)


SOME = [{1: 5, 8: 3, 32: 0}, {1: 0, 4: 7}, {1: 2, 2: 9, 3: 0, 300: 1}]


@pytest.mark.parametrize("schedule", SOME)
def test_vllm_itself_reads_it(schedule):
    engine = pytest.importorskip("vllm.v1.spec_decode.dynamic.utils", exc_type=ImportError)
    config = settings("vllm", "eagle3=D", schedule=schedule).to_json()["setting"]["speculative_config"]
    ranges = config["num_speculative_tokens_per_batch_size"]
    found = engine.build_dynamic_sd_schedule_lookup(ranges, MOST, config["num_speculative_tokens"])
    assert found[1:] == decided(schedule)


@pytest.mark.parametrize("schedule", SOME)
def test_sglang_itself_reads_it(schedule, tmp_path):
    engine = pytest.importorskip("sglang.srt.speculative.adaptive_spec_params", exc_type=ImportError)
    found = settings("sglang", "eagle3=D", schedule=schedule).to_json()
    file = tmp_path / "adaptive.json"
    file.write_text(found["files"]["adaptive.json"])
    params = engine.AdaptiveSpeculativeParams(found["setting"]["speculative-num-steps"], str(file))
    assert [params.get_steps_for_batch(batch) for batch in range(1, MOST + 1)] == decided(schedule)


@pytest.mark.parametrize(
    ("drafter", "asked"),
    [
        ("eagle3=D", {"schedule": SOME[0]}),
        ("eagle=D", {"schedule": {1: 3}, "tree_top_k": 4, "tree_tokens": 8}),
        ("model=D", {"schedule": {1: 4}}),
        ("ngram", {"schedule": {1: 4}}),
        ("mtp", {"schedule": {1: 2}}),
    ],
)
def test_sglang_itself_takes_every_flag(drafter, asked):
    engine = pytest.importorskip("sglang.srt.server_args", exc_type=ImportError)
    found = settings("sglang", drafter, **asked).to_json()
    parser = argparse.ArgumentParser(exit_on_error=False)
    engine.ServerArgs.add_cli_args(parser)
    flags = shlex.split(found["command"].replace("\\\n", " "))
    taken = vars(parser.parse_args(flags[flags.index("--model-path") :]))
    wanted = {name.replace("-", "_"): value for name, value in found["setting"].items()}
    assert {name: taken[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("engine", "drafter", "told"),
    [
        ("vllm", "ngram", {}),
        ("vllm", "ngram=5", {"prompt_lookup_max": 5, "prompt_lookup_min": 1}),
        ("vllm", "ngram=2..5", {"prompt_lookup_max": 5, "prompt_lookup_min": 2}),
        ("trtllm", "ngram=5", {"max_matching_ngram_size": 5}),
    ],
)
def test_an_engine_is_told_the_matches_of_a_lookup(engine, drafter, told):
    config = settings(engine, drafter, schedule={1: 4}).to_json()["setting"]["speculative_config"]
    assert {key: value for key, value in config.items() if "lookup" in key or "matching" in key} == told


@given(schedule=SCHEDULES)
def test_tensorrt_plays_what_was_decided_or_refuses_it(schedule):
    yaml = pytest.importorskip("yaml")
    if schedule[1] < max(schedule.values()):
        with pytest.raises(ArgumentError, match=r"^`schedule` must begin with its largest K in trtllm"):
            settings("trtllm", "eagle3=D", schedule=schedule, max_batch=MOST)
        return
    found = settings("trtllm", "eagle3=D", schedule=schedule, max_batch=MOST).to_json()
    written = yaml.safe_load(found["files"]["speculative.yaml"])
    assert written == found["setting"]
    assert written["max_batch_size"] == MOST
    if schedule[1]:
        assert tensorrt_plays(written["speculative_config"]) == decided(schedule)
    else:
        assert "speculative_config" not in written


NAMES = ["D", "my model.gguf", "it's", 'a "b"', "a: b", "$HOME", "Q#1"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "transformers"])
def test_names_go_through_a_shell_and_a_file_as_they_are(engine, name):
    yaml = pytest.importorskip("yaml")
    found = settings(engine, f"model={name}", schedule="1:3", target=name, max_batch=1).to_json()
    words = shlex.split(found["command"])
    assert name in words  # the target
    if engine == "vllm":
        assert json.loads(words[words.index("--speculative-config") + 1])["model"] == name
    elif engine == "trtllm":
        assert yaml.safe_load(found["files"]["speculative.yaml"])["speculative_config"]["speculative_model"] == name
    else:
        assert words.count(name) == 2


def test_an_engine_has_a_setting_for_each_drafter_it_names():
    for engine, rules in ENGINES.items():
        for kind, word in rules.names.items():
            drafter = f"{kind}=D" if kind in {"model", "eagle", "eagle3"} else kind
            found = settings(engine, drafter, schedule="1:3").to_json()
            assert word in found["command"] + "".join(found["files"].values())
            assert repr(settings(engine, drafter, schedule="1:3")).count(found["command"]) == 1


CHAIN = {"schedule": "1:5,8:3,32:0"}
REFUSED = [
    ("vlm", "ngram", {}, "`engine` 'vlm' is not known; did you mean vllm?"),
    ("vllm", "eagl=D", {}, "`drafter` 'eagl=D' is of no known kind; did you mean eagle or eagle3?"),
    ("vllm", "model", {}, "`drafter` must read model=PATH, got 'model'"),
    ("vllm", "suffix=D", {}, "`drafter` must read suffix, got 'suffix=D'"),
    (
        "vllm",
        "ngram=0",
        {},
        "`drafter` must read ngram=[SHORTEST..]LONGEST, a match in tokens, 1 to 9999, got 'ngram=0'",
    ),
    (
        "vllm",
        "ngram=6..5",
        {},
        "`drafter` must read ngram=[SHORTEST..]LONGEST, a match in tokens, 1 to 9999, got 'ngram=6..5'",
    ),
    (
        "vllm",
        "ngram=..5",
        {},
        "`drafter` must read ngram=[SHORTEST..]LONGEST, a match in tokens, 1 to 9999, got 'ngram=..5'",
    ),
    ("trtllm", "ngram=5..5", {}, "`drafter` must be ngram=LONGEST in trtllm, got ngram=5..5"),
    ("vllm", 5, {}, "`drafter` must be a text or several, got 5"),
    ("vllm", "ngram", {"schedule": 5}, "`schedule` must be a text or K by running requests, got 5"),
    ("vllm", [], {}, "`drafter` must name one, got none"),
    (
        "vllm",
        ["model=A", "model=B"],
        {},
        "`drafter` must be one in vllm, which runs no chain of 3 models, got model=A, model=B; the best it can is one "
        "of them right below the target (paceline.generate runs chains)",
    ),
    (
        "vllm",
        "suffix",
        CHAIN,
        "`schedule` must have one K for suffix in vllm: its drafter stops vLLM where K is not the configured one; got "
        "1:5,8:3,32:0, the best it can is one K for all, as 1:5, or 1:0 for none",
    ),
    (
        "sglang",
        "model=D",
        {"schedule": "1:0,8:3"},
        "`schedule` must have one K for model in sglang: its adaptive mode knows EAGLE heads and MTP only, and is "
        "dropped otherwise; got 1:0,8:3, the best it can is one K for all, as 1:3, or 1:0 for none",
    ),
    ("sglang", "suffix", {}, "`drafter` must be one of model, eagle, eagle3, mtp, ngram in sglang, got suffix"),
    (
        "sglang",
        "ngram=3",
        {},
        "`drafter` must be ngram without a longest match in sglang, which has none of this meaning, got ngram=3",
    ),
    (
        "trtllm",
        "eagle3=D",
        {"schedule": "1:5,8:3"},
        "`max_batch` must be given in trtllm, where K is 0 above the last key, for 1:5,8:3",
    ),
    (
        "trtllm",
        "mtp=D",
        {},
        "`drafter` must be mtp alone in trtllm, whose MTP layers are the target's own, got mtp=D",
    ),
    (
        "vllm",
        "eagle3=D",
        {"tree_top_k": 4, "tree_tokens": 16},
        "`tree_top_k` must be left out for eagle3 in vllm, which verifies trees of no drafter, got 4; the best it can "
        "is a chain of K = 4",
    ),
    ("sglang", "eagle3=D", {"tree_top_k": 4}, "a tree needs `tree_top_k` and `tree_tokens`, got no `tree_tokens`"),
    (
        "sglang",
        "eagle3=D",
        {"tree_top_k": 4, "tree_tokens": 16, **CHAIN},
        "`schedule` of a tree must have one K > 0, its depth, got 1:5,8:3,32:0",
    ),
    (
        "vllm",
        "ngram",
        {"per_request": True},
        "`per_request` cannot be set in vllm, where one K holds for all running requests; the best it can is one "
        "`schedule`",
    ),
    ("vllm", "ngram", {"max_batch": 16, **CHAIN}, "`schedule` must not go beyond `max_batch` 16, got 1:5,8:3,32:0"),
    (
        "transformers",
        "model=D",
        {"max_batch": 4},
        "`max_batch` must be 1 in transformers, where a drafter takes one request at a time, got 4",
    ),
    (
        "vllm",
        "ngram",
        {"engine_version": "0.20.1", **CHAIN},
        "`engine_version` must be 0.33.0 or newer for a K by running requests, whose setting was read there, got "
        "0.20.1; one K for all is set in older ones, too",
    ),
    ("vllm", "ngram", {"engine_version": "new"}, "`engine_version` must be a version as 0.33.0, got 'new'"),
    (
        "llamacpp",
        "ngram",
        {"engine_version": "b7000"},
        "`engine_version` must be left out for llamacpp: names are of commit 0c1e57098, got b7000",
    ),
    ("vllm", "ngram", {"schedule": "8:3"}, "`schedule` must begin at 1 request and ascend, got '8:3'"),
    ("vllm", "ngram", {"schedule": {}}, "`schedule` must begin at 1 request and ascend, got {}"),
    ("vllm", "ngram", {"schedule": {1: True}}, "`schedule` must hold whole numbers, got True"),
    ("vllm", "ngram", {"schedule": "1:2000"}, "`schedule`, K must be in [0, 1,024], got 2000"),
    (
        "vllm",
        "ngram",
        {"schedule": "1:5;8:3"},
        "`schedule` must read REQUESTS:K,..., as in 1:5,8:3,32:0, got '1:5;8:3' in '1:5;8:3'",
    ),
]


@pytest.mark.parametrize(("engine", "drafter", "options", "message"), REFUSED)
def test_what_an_engine_would_change_is_refused(engine, drafter, options, message):
    with pytest.raises(ArgumentError) as refused:
        settings(engine, drafter, **{"schedule": "1:4", **options})
    assert str(refused.value) == message


def test_a_tree_counts_what_each_engine_counts():
    asked = {"schedule": "1:3", "tree_top_k": 4, "tree_tokens": 16}
    sglang = settings("sglang", "eagle3=D", **asked).to_json()["setting"]
    # SGLang counts the newest token of the text as well.
    assert (sglang["speculative-num-steps"], sglang["speculative-num-draft-tokens"]) == (3, 17)
    tensorrt = settings("trtllm", "eagle3=D", **asked).to_json()["setting"]["speculative_config"]
    assert (tensorrt["max_draft_len"], tensorrt["max_total_draft_tokens"]) == (3, 16)


def test_another_version_is_noted():
    found = settings("sglang", "eagle3=D", schedule="1:3", engine_version="0.5.1").to_json()
    assert found["notes"][-1] == "names are those of SGLang 0.5.23: look whether 0.5.1 has them"
    for ours in ("0.5.23", "v0.5.23"):
        assert settings("sglang", "eagle3=D", schedule="1:3", engine_version=ours).to_json()["notes"] != found["notes"]


@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_transformers_drafts_as_many_tokens_as_were_set(tokens, monkeypatch):
    torch = pytest.importorskip("torch")
    from transformers.generation import candidate_generator

    from ..tiny_models import tiny_pool_of_four

    members = {member.name: member.model for member in tiny_pool_of_four().members}
    drafted = []
    inner = candidate_generator.AssistedCandidateGenerator.get_candidates

    def seen(self, input_ids, *args, **options):
        found = inner(self, input_ids, *args, **options)
        drafted.append(found[0].shape[1] - input_ids.shape[1])
        return found

    monkeypatch.setattr(candidate_generator.AssistedCandidateGenerator, "get_candidates", seen)
    found = settings("transformers", "model=D", schedule={1: tokens}).to_json()
    lines = [line for line in found["command"].splitlines() if "from_pretrained" not in line]
    before = members["draft"].generation_config.to_dict()
    names = {
        "assistant": members["draft"],
        "model": members["target"],
        "inputs": {
            "input_ids": torch.arange(5, 15)[None],
            "max_new_tokens": 20,
            "eos_token_id": None,
            "pad_token_id": 0,
        },
    }
    try:
        exec("\n".join(lines), names)
    finally:
        for name in found["setting"]["assistant_generation_config"]:
            setattr(members["draft"].generation_config, name, before.get(name))
    assert drafted[0] == tokens == max(drafted)


def test_keywords_of_transformers_are_keywords_of_its_configuration():
    transformers = pytest.importorskip("transformers")
    known = vars(transformers.GenerationConfig())
    for drafter in ("ngram=3", "mtp", "model=D"):
        setting = settings("transformers", drafter, schedule="1:3").to_json()["setting"]
        names = setting.get("assistant_generation_config", setting)
        assert names.keys() <= known.keys()
        assert transformers.GenerationConfig(**names).to_dict().items() >= names.items()
