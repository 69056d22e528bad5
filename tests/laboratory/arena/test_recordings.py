"""Recordings of the arena: made once, put together, drawn, imported, and of pools that are trained for it."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.base.files import shipped
from paceline.policies.by_name import make_policy
from paceline.runtime.pools.pool import ModelPool
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import default_cost, make_cost
from paceline.sim.replay_tables import tables_of
from paceline.sim.simulate import Scenario, simulate
from paceline.studies.agree import agree
from paceline.traces import SyntheticSpec, make_trace, read_rounds, read_trace, write_trace
from paceline.traces.folder import META
from paceline_laboratory.arena import pools as training
from paceline_laboratory.arena import recordings
from paceline_laboratory.arena.pools import TargetTexts, joined
from paceline_laboratory.arena.recipe import PoolRecipeError, pool_recipe
from paceline_laboratory.arena.recordings import (
    TRAINED,
    ArrangedSource,
    RecordingShelf,
    RecordingUnavailableError,
    TrainedSource,
    catalogue,
    deep,
    gone_stale,
    hsd,
    spec_bench,
    turned_over,
)
from paceline_laboratory.arena.repeats import PIECE, pieces_of, repeats
from paceline_laboratory.arena.statics import best_static

from ...data_folder import data_files

DRAWN = {name: catalogue()[name] for name in ("synth-flat", "synth-deep", "synth-bursty", "synth-ladder")}
IMPORTED = {"specbench": (spec_bench(), 3), "hsd": (hsd(), 4)}
TAGS = ("code", "math", "prose")
FRESH = make_trace(
    SyntheticSpec(name="fresh", requests=11, tokens=48, models=("draft", "mid", "target"), acceptance=(0.8, 0.9))
)
FRESH = replace(FRESH, requests=tuple(replace(one, tag=TAGS[place // 4]) for place, one in enumerate(FRESH.requests)))
STALE = FRESH.shifted({"draft": -0.6}, seed=1)
HALF = 6


@dataclass(frozen=True)
class Counted:
    """Writes a file with its text, and counts how often."""

    text: str
    needs: tuple[str, ...] = ()
    slow = False
    made: list[str] = field(default_factory=list)
    fails: bool = False

    def recipe(self) -> object:
        return self.text

    def make(self, out: Path, *, name: str, shelf: RecordingShelf) -> None:
        self.made.append(name)
        out.mkdir()
        texts = [(shelf.recording(other) / "text").read_text() for other in self.needs]
        (out / "text").write_text("+".join([*texts, self.text]))
        if self.fails:
            raise OSError("disk full")


def shelf_of(work, **sources):
    return RecordingShelf(work=work, entries=sources)


def test_a_recording_is_made_once_and_anew_without_its_fingerprint(tmp_path):
    source = Counted("a")
    for _ in range(2):
        path = shelf_of(tmp_path, one=source).recording("one")
    assert source.made == ["one"]
    assert path == tmp_path / "recordings" / "one.trace"
    (tmp_path / "recordings" / "one.made").write_text("[]")
    shelf_of(tmp_path, one=source).recording("one")
    assert source.made == ["one", "one"]
    with pytest.raises(ArgumentError, match="must be one of one, got 'other'"):
        shelf_of(tmp_path, one=source).recording("other")


def test_another_recipe_makes_it_and_what_is_made_of_it_anew_and_one_that_failed_is_not_there(tmp_path):
    second = Counted("b", needs=("one",))
    with pytest.raises(OSError, match="disk full"):
        shelf_of(tmp_path, one=Counted("a", fails=True)).recording("one")
    assert not (tmp_path / "recordings" / "one.trace").exists()
    shelf_of(tmp_path, one=Counted("a"), two=second).recording("two")
    path = shelf_of(tmp_path, one=Counted("c"), two=second).recording("two")
    assert (path / "text").read_text() == "c+b"
    assert len(second.made) == 2


MAKER = """
import sys
from pathlib import Path
from paceline_laboratory.arena.recordings import made_once

folder, who = Path(sys.argv[1]), sys.argv[2]

def make(part):
    print("makes", who, flush=True)
    sys.stdin.readline()
    part.mkdir()
    (part / "who").write_text(who)

made_once(folder / "one.trace", "a", make)
print("done", flush=True)
"""


class Maker:
    """Another process that makes a recording, as slowly as somebody says."""

    def __init__(self, folder, who):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", MAKER, str(folder), who], **pipes)

    def said(self, line):
        assert self.process.stdout.readline().strip() == line

    def waits(self):
        assert "which another process makes" in self.process.stderr.readline()

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def test_of_processes_one_makes_it_and_the_others_wait_also_for_one_that_is_killed(tmp_path):
    first = Maker(tmp_path, "first")
    first.said("makes first")
    second = Maker(tmp_path, "second")
    second.waits()
    os.kill(first.process.pid, signal.SIGKILL)
    second.said("makes second")
    third = Maker(tmp_path, "third")
    third.waits()
    second.go_on()
    for maker in (second, third):
        maker.said("done")
        maker.process.communicate(timeout=600)
    assert (tmp_path / "one.trace" / "who").read_text() == "second"
    first.process.communicate(timeout=600)


def test_the_shipped_recording_is_as_it_came(tmp_path):
    path = RecordingShelf(work=tmp_path).recording("pico")
    for file in ("requests.parquet", "nodes.parquet", META):
        assert (path / file).read_bytes() == (shipped("recordings", "pico.trace") / file).read_bytes()


def steps_by_request(trace, chain="draft:3/mid:4/target"):
    """For each request every step: by whom, tokens drafted, accepted and emitted."""
    log = simulate(
        Scenario(tables=tables_of(trace), cost=make_cost(default_cost(trace), trace), batch=1),
        make_policy(chain, tables_of(trace).pool),
        chain,
    )
    columns = np.stack([log.steps[name] for name in ("level", "drafted", "accepted", "emitted")], axis=1)
    ids = log.requests["request_id"].tolist()
    return {one: columns[log.steps["request"] == row].tolist() for row, one in enumerate(ids)}


def test_every_request_is_replayed_as_in_the_recording_it_is_from():
    mixed = gone_stale(FRESH, STALE, name="mixed")
    assert sorted(one.request_id for one in mixed.requests) == sorted(one.request_id for one in FRESH.requests)
    fresh, stale, found = map(steps_by_request, (FRESH, STALE, mixed))
    assert fresh != stale
    halves = mixed.requests[:HALF], mixed.requests[HALF:]
    assert [{one.tag for one in half} for half in halves] == [set(TAGS)] * 2
    for place, one in enumerate(mixed.requests):
        assert found[one.request_id] == (fresh if place < HALF else stale)[one.request_id]
    # A chain without the drafter notices nothing.
    assert steps_by_request(mixed, "mid:4/target") == steps_by_request(FRESH, "mid:4/target")


def test_another_target_or_other_members_are_refused():
    other = make_trace(
        SyntheticSpec(requests=11, tokens=48, models=("draft", "mid", "target"), acceptance=(0.8, 0.9), seed=5)
    )
    with pytest.raises(ArgumentError, match="the same text of the target"):
        gone_stale(FRESH, other, name="mixed")
    larger = replace(STALE, meta=STALE.meta.model_copy(update={"vocab_size": 40000}))
    with pytest.raises(ArgumentError, match="the same vocab_size, got 32000 and 40000"):
        gone_stale(FRESH, larger, name="mixed")


def test_phases_follow_each_other_and_in_each_tags_take_turns():
    requests = turned_over(FRESH, (("prose", "code"), ("math",)), name="turned").requests
    assert [one.tag for one in requests] == ["code", "prose", "code", "prose", "code", "prose", "code"] + ["math"] * 4
    assert {one.request_id for one in requests} == {one.request_id for one in FRESH.requests}
    for phases in ((("code",), ("math",)), (("code", "math"), ("math", "prose")), (TAGS, ("poems",))):
        with pytest.raises(ArgumentError, match="phases must name each tag"):
            turned_over(FRESH, phases, name="turned")


@dataclass(frozen=True)
class Given:
    """A source that writes what it is given."""

    recording: object
    needs = ()

    def recipe(self) -> object:
        return self.recording.meta.name

    def make(self, out: Path, *, name: str, shelf: object) -> None:
        write_trace(self.recording, out)


def test_they_are_made_of_what_the_shelf_has(tmp_path):
    entries = {
        "fresh": Given(FRESH),
        "stale": Given(STALE),
        "aged": ArrangedSource(needs=("fresh", "stale"), arrange=gone_stale),
        "turned": ArrangedSource(needs=("fresh",), arrange=turned_over, setting=((("code", "math"), ("prose",)),)),
    }
    shelf = RecordingShelf(work=tmp_path, entries=entries)
    assert read_trace(shelf.recording("aged")).meta.name == "aged"
    assert [one.tag for one in read_trace(shelf.recording("turned")).requests][-3:] == ["prose"] * 3
    folders = {path.name for path in (tmp_path / "recordings").iterdir() if path.is_dir()}
    assert folders == {"fresh.trace", "stale.trace", "aged.trace", "turned.trace"}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Each of them, read again."""
    shelf = RecordingShelf(work=tmp_path_factory.mktemp("work"))
    return {name: read_trace(shelf.recording(name)) for name in DRAWN}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.one_in(4)
@pytest.mark.slow
def test_every_tag_agrees_as_stated_and_a_probability_tells_of_it_about_as_much_as_in_the_shipped_one(drawn, name):
    summary = drawn[name].summary()
    assert list(summary.by_tag) == list(DRAWN[name].acceptance)
    for tag, asked in DRAWN[name].acceptance.items():
        assert list(summary.by_tag[tag].agreement.values()) == pytest.approx(asked, abs=0.05)
    assert summary.total.num_trunk_tokens >= (10_000 if name in ("synth-flat", "synth-bursty") else 5_000)
    # Share of pairs of an agreed and a missed token in which the agreed one has the higher probability.
    agrees, probs = [], []
    for request in drawn[name].requests:
        trie = request.trie
        agrees.append(trie.agreement[0])
        probs.append(trie.next_log_prob[0, trie.trunk[:-1]])
    agrees, probs = np.concatenate(agrees), np.concatenate(probs)
    missed = np.sort(probs[~agrees])
    below = np.searchsorted(missed, probs[agrees], side="left") + np.searchsorted(missed, probs[agrees], side="right")
    assert 0.8 < below.mean() / 2 / len(missed) < 0.92  # draft of pico: 0.90, of pico-coupled: 0.85


@pytest.mark.slow
def test_tags_take_turns_and_only_the_bursty_one_and_the_ladder_have_memory(drawn):
    tags = [request.tag for request in drawn["synth-flat"].requests]
    assert tags[:6] == ["easy", "usual", "hard"] * 2
    for name, asked in (("synth-flat", 0.0), ("synth-deep", -0.1), ("synth-bursty", 0.6), ("synth-ladder", 0.15)):
        usual = [request.trie.agreement[1] for request in drawn[name].requests if request.tag == "usual"]
        now = np.concatenate([each[:-1] for each in usual])
        then = np.concatenate([each[1:] for each in usual])
        assert np.corrcoef(now, then)[0, 1] == pytest.approx(asked, abs=0.08)


def test_recipes_differ_are_json_and_hold_the_code(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    logs = tmp_path / hsd().folder / "h100_a.jsonl.gz"
    logs.parent.mkdir()
    logs.write_bytes(b"one")
    names = (*DRAWN, "hsd")
    before = {name: json.dumps(catalogue()[name].recipe()) for name in names}
    assert len(set(before.values())) == len(names)
    logs.write_bytes(b"two")
    assert json.dumps(hsd().recipe()) != before["hsd"]
    logs.write_bytes(b"one")
    monkeypatch.setattr(recordings, "code_of_traces", lambda: "changed")
    assert all(json.dumps(catalogue()[name].recipe()) != before[name] for name in names)


def test_the_same_recipe_gives_the_same_bytes(drawn, tmp_path):
    deep().make(tmp_path / "again.trace", name="synth-deep", shelf=None)
    write_trace(drawn["synth-deep"], tmp_path / "first.trace")
    for file in ("nodes.parquet", "requests.parquet"):
        assert (tmp_path / "again.trace" / file).read_bytes() == (tmp_path / "first.trace" / file).read_bytes()


@pytest.fixture(params=IMPORTED)
def imported(request, tmp_path, monkeypatch):
    """A recording by name, where its logs lie."""
    source, count = IMPORTED[request.param]
    files = data_files(source.folder, source.pattern)
    if len(files) != count:
        pytest.skip(f"no {source.folder} in PACELINE_DATA")
    monkeypatch.setenv("PACELINE_DATA", str(files[0].parents[1]))
    return read_rounds(RecordingShelf(work=tmp_path).recording(request.param))


def test_a_part_of_the_logs_is_imported_with_every_method(imported):
    source, _ = IMPORTED[imported.meta.name]
    drafters = {"specbench": {"eagle", "sps"}, "hsd": {"eagle", "hsd"}}
    assert {each.name for each in imported.meta.drafters} == drafters[imported.meta.name]
    assert imported.meta.source == source.format_name
    assert sum(request.length("") for request in imported.requests) >= 5_000
    assert len({request.tag for request in imported.requests}) == {"specbench": 13, "hsd": 1}[imported.meta.name]


@pytest.mark.parametrize("name", IMPORTED)
def test_absent_logs_are_said_in_one_line_with_where_they_were_looked_for(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(RecordingUnavailableError, match="PACELINE_DATA") as refused:
        RecordingShelf(work=tmp_path).recording(name)
    assert str(tmp_path / "nowhere" / IMPORTED[name][0].folder) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("*.trace"))


RECIPES = Path(__file__).with_name("recipes.toml")
ARCHITECTURES = ("llama", "gpt2", "gpt-neox", "qwen3", "gemma2", "gemma3")
QUICK = ("gemma2",)


def trained_shelf(work, name, file=RECIPES):
    return RecordingShelf(work=work, entries={name: TrainedSource(pool=name, file=file)})


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES if name not in QUICK)]
)
@pytest.mark.slow
def test_a_pool_of_each_architecture_is_recorded_and_replays_exactly(tmp_path, name):
    trace = trained_shelf(tmp_path, name).recording(name)
    pool = tmp_path / "pools" / name
    names = [member.name for member in ModelPool.load(pool).members]
    slim = [] if name in ("gpt2", "gpt-neox") else ["slim"]
    assert names == ["ngram", "draft", *slim, "target"]
    policies = ["plain", "draft:2/target", *(f"draft:1/{each}:2/target" for each in slim)]
    assert agree(pool, pool / "prompts.jsonl", policies, recording=trace, max_new_tokens=8).agree
    assert not list(tmp_path.rglob("*.making*"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The pool of `gpt2`, trained and recorded."""
    shelf = trained_shelf(tmp_path_factory.mktemp("whole"), "gpt2")
    shelf.recording("gpt2")
    return shelf


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_further_prompts_come_after_the_pools_own(whole, tmp_path):
    file = tmp_path / "recipes.toml"
    file.write_text(RECIPES.read_text().replace("[pools.gpt2]", "[pools.gpt2]\nmore_prompts = 2"))
    more = trained_shelf(tmp_path, "gpt2", file)
    one, other = (read_trace(shelf.recording("gpt2")).requests for shelf in (whole, more))
    assert files_of(whole.work / "pools") == files_of(more.work / "pools")
    assert whole.fingerprint("gpt2") != more.fingerprint("gpt2")
    assert [each.request_id for each in other] == [
        f"{tag}-{at:04d}" for at in (1, 2, 3) for tag in ("math", "dialogue")
    ]
    assert len({each.prompt for each in other}) == 6
    assert [each.prompt for each in one] == [each.prompt for each in other[: len(one)]]


@pytest.mark.slow
def test_a_training_that_was_cut_short_goes_on_to_the_same_pool(whole, tmp_path, monkeypatch):
    def killed(*_args, **_settings):
        raise KeyboardInterrupt

    source = TrainedSource(pool="gpt2", file=RECIPES)
    for stage in ("train_target", "make_teacher", "train_student", "_write"):
        with monkeypatch.context() as patch:
            patch.setattr(training, stage, killed)
            with pytest.raises(KeyboardInterrupt):
                source.trained(tmp_path)
        assert not (tmp_path / "pools" / "gpt2").exists()
    assert files_of(source.trained(tmp_path)) == files_of(whole.work / "pools" / "gpt2")


@pytest.mark.slow
def test_what_is_left_of_another_recipe_is_not_gone_on_from(whole, tmp_path, monkeypatch):
    source = TrainedSource(pool="gpt2", file=RECIPES)
    other = tmp_path / "recipes.toml"
    other.write_text(RECIPES.read_text().replace("corpus_tokens = 12_000", "corpus_tokens = 11_000"))
    with monkeypatch.context() as patch:
        patch.setattr(training, "_write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            TrainedSource(pool="gpt2", file=other).trained(tmp_path / "cut")
    assert files_of(source.trained(tmp_path / "cut")) == files_of(whole.work / "pools" / "gpt2")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[20, 5e-3]", "[0, 5e-3]", r"students\[0\].schedule knots must be in order of their steps"),
        ("agreement = 0.99", "agreement = 1.5", r"students\[0\].agreement .* less than or equal to 1, got 1.5"),
        ("hidden_size = 16", "hidden_size = 18", "even multiples of num_heads, not 18 and 2 of draft"),
        ('name = "draft"', 'name = "slim"', "none of them ngram, slim or target"),
        ('tags = ["math"]', 'tags = ["code"]', "must have text of what draft learns from, and has none of code"),
        ("[pools.gemma3]", "[pools.gemma3]\nspeed = 3", "speed is not a known key"),
        ("shares = [0.0, 0.0, 0.5", "shares = [0.0, 0.0, 0.4", "shares must add up to 1"),
        ("[pools.gemma3]", "[pools.gemma4]", "pools must be one of .*gemma4, got 'gemma3'"),
    ],
)
def test_a_recipe_that_is_not_sound_is_refused_in_one_line(tmp_path, old, new, said):
    file = tmp_path / "recipes.toml"
    file.write_text(RECIPES.read_text().replace(old, new))
    with pytest.raises(PoolRecipeError, match=said) as refused:
        trained_shelf(tmp_path, "gemma3", file).recording("gemma3")
    assert str(refused.value).startswith(f"{file}: ")
    assert "\n" not in str(refused.value)


def test_only_llama_like_targets_have_submodels(tmp_path):
    file = tmp_path / "recipes.toml"
    file.write_text(RECIPES.read_text().replace("[defaults.training]", "[defaults.training]\nskip_layers = [1]"))
    with pytest.raises(PoolRecipeError, match="only with a Llama-like target, not with gpt2"):
        pool_recipe("gpt2", file)


def test_too_few_held_out_prompts_are_said(tmp_path):
    file = tmp_path / "recipes.toml"
    file.write_text(RECIPES.read_text().replace("checked_texts = 1", "checked_texts = 1000"))
    said = "pool gpt2: math must have 1 held-out prompts to record and 1000 to measure agreement, has "
    with pytest.raises(ArgumentError, match=said):
        TrainedSource(pool="gpt2", file=file).trained(tmp_path)


def test_without_torch_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, training.__name__)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match="pool gpt2 runs real models and needs torch: "):
        TrainedSource(pool="gpt2", file=RECIPES).trained(tmp_path)


def test_every_recipe_of_the_package_is_sound():
    assert {pool_recipe(name).name for name in TRAINED} == set(TRAINED) <= set(catalogue())


def test_agreement_counts_the_targets_own_tokens_alone(monkeypatch):
    """Against a model that says the token before each: right once in the three places that were written."""
    tokens = torch.tensor([[5, 5, 6, 6, 7, 0]])
    written = torch.tensor([[False, False, True, True, True]])
    texts = TargetTexts(tokens=tokens, written=written)

    class Echo:
        def __call__(self, input_ids, use_cache):
            return type("Output", (), {"logits": torch.nn.functional.one_hot(input_ids, 8).float()})

    assert texts.agreement(Echo()) == pytest.approx(1 / 3)
    assert joined([texts, texts]).agreement(Echo()) == pytest.approx(1 / 3)


@pytest.mark.slow
def test_a_stale_pool_differs_in_what_its_drafter_has_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(TargetTexts, "agreement", lambda self, model: 0.5)
    fresh = TrainedSource(pool="llama", file=RECIPES)
    stale = TrainedSource(pool="llama", file=RECIPES, goals={"draft": 0.4})
    entries = {
        "fresh": fresh,
        "stale": stale,
        "aged": ArrangedSource(needs=("fresh", "stale"), arrange=gone_stale),
    }
    aged = read_trace(RecordingShelf(work=tmp_path, entries=entries).recording("aged"))
    assert len(aged.requests) == 2
    pools = tmp_path / "pools"
    for file in ("target/model.safetensors", "tokenizer.json", "prompts.jsonl"):
        assert (pools / "llama" / file).read_bytes() == (pools / "llama-stale" / file).read_bytes()
    weights = [pools / name / "draft" / "model.safetensors" for name in ("llama", "llama-stale")]
    assert weights[0].read_bytes() != weights[1].read_bytes()


def test_goals_are_of_students_and_within_range():
    with pytest.raises(ValueError, match="goals must be of draft, not of mid"):
        TrainedSource(pool="llama", file=RECIPES, goals={"mid": 0.4}).recipe()
    with pytest.raises(ValueError, match=r"the goal of draft must be in \(0, 1\], got 1.4"):
        TrainedSource(pool="llama", file=RECIPES, goals={"draft": 1.4}).recipe()


PICO = read_trace(shipped("recordings", "pico.trace"))


def answer_of(request):
    return request.trie.token[request.trie.trunk[1:]].tolist()


def stands_in(piece, text):
    return any(tuple(text[start : start + PIECE]) == piece for start in range(len(text)))


def test_pieces_are_counted_as_by_looking_for_each_of_them():
    some = replace(PICO, requests=PICO.requests[::4])
    own = earlier = 0
    for place, request in enumerate(some.requests):
        answer = answer_of(request)
        for start, piece in enumerate(pieces_of(answer)):
            own += stands_in(piece, [*request.prompt, *answer[: start + PIECE - 1]])
            earlier += any(stands_in(piece, answer_of(other)) for other in some.requests[:place])
    found = repeats(some)
    assert (found.own, found.earlier) == (own, earlier)
    assert found.pieces == sum(max(0, len(answer_of(request)) - PIECE + 1) for request in some.requests)
    assert own > 0 < earlier


def test_a_recording_that_comes_again_stands_in_earlier_answers():
    once = repeats(PICO)
    twice = repeats(replace(PICO, requests=[*PICO.requests, *PICO.requests]))
    assert twice.pieces == 2 * once.pieces
    assert twice.earlier == once.earlier + once.pieces


@pytest.fixture(scope="module")
def llama_shelf(tmp_path_factory):
    source = TrainedSource(pool="llama", file=RECIPES)
    return RecordingShelf(work=tmp_path_factory.mktemp("arena"), entries={"llama": source})


def test_the_best_static_chain_is_no_slower_than_others(llama_shelf):
    trace = read_trace(llama_shelf.recording("llama"))
    scenario = Scenario(tables=TrieTables(trace), cost=make_cost("h100", trace), batch=2)

    def seconds(policy):
        log = simulate(scenario, make_policy(policy, scenario.tables.pool), policy)
        return float(log.requests["finished_at_s"].max())

    best = seconds(str(best_static(scenario).chains[0]))
    for other in ("plain", "draft:2/target", "ngram:2/target", "slim:3/target", "draft:1/slim:2/target"):
        assert best <= seconds(other) * (1 + 1e-9)
