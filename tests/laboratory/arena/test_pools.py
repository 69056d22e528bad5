"""A tiny pool of every architecture trains, is recorded and replays exactly; the same seed gives the same bytes."""

import sys
from pathlib import Path

import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.runtime.pools.pool import ModelPool
from paceline.studies.agree import agree
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.arena import pools as training
from paceline_laboratory.arena.pools import TargetTexts, joined
from paceline_laboratory.arena.recipe import PoolRecipeError, pool_recipe
from paceline_laboratory.arena.recordings import (
    TRAINED,
    Entry,
    RecordingShelf,
    StaleSource,
    TrainedSource,
    catalogue,
)

FILE = Path(__file__).with_name("recipes.toml")
ARCHITECTURES = ("llama", "gpt2", "gpt-neox", "qwen3", "gemma2", "gemma3")
QUICK = ("gemma2",)


def shelf_of(work, name, file=FILE):
    return RecordingShelf(work=work, entries={name: Entry(what="", source=TrainedSource(pool=name, file=file))})


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES if name not in QUICK)]
)
def test_a_pool_of_each_architecture_is_recorded_and_replays_exactly(tmp_path, name):
    trace = shelf_of(tmp_path, name).recording(name)
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
    shelf = shelf_of(tmp_path_factory.mktemp("whole"), "gpt2")
    shelf.recording("gpt2")
    return shelf


def test_the_same_seed_gives_the_same_bytes_and_further_prompts_come_after_the_pools_own(whole, tmp_path):
    file = tmp_path / "recipes.toml"
    file.write_text(FILE.read_text().replace("[pools.gpt2]", "[pools.gpt2]\nmore_prompts = 2"))
    more = shelf_of(tmp_path, "gpt2", file)
    one, other = (read_trace(shelf.recording("gpt2")).requests for shelf in (whole, more))
    assert files_of(whole.work / "pools") == files_of(more.work / "pools")
    assert whole.fingerprint("gpt2") != more.fingerprint("gpt2")
    assert [each.request_id for each in other] == [
        f"{tag}-{at:04d}" for at in (1, 2, 3) for tag in ("math", "dialogue")
    ]
    assert len({each.prompt for each in other}) == 6
    assert [each.prompt for each in one] == [each.prompt for each in other[: len(one)]]


def test_a_training_that_was_cut_short_goes_on_to_the_same_pool(whole, tmp_path, monkeypatch):
    def killed(*_args, **_settings):
        raise KeyboardInterrupt

    source = TrainedSource(pool="gpt2", file=FILE)
    for stage in ("train_target", "make_teacher", "train_student", "_write"):
        with monkeypatch.context() as patch:
            patch.setattr(training, stage, killed)
            with pytest.raises(KeyboardInterrupt):
                source.trained(tmp_path)
        assert not (tmp_path / "pools" / "gpt2").exists()
    assert files_of(source.trained(tmp_path)) == files_of(whole.work / "pools" / "gpt2")


def test_what_is_left_of_another_recipe_is_not_gone_on_from(whole, tmp_path, monkeypatch):
    source = TrainedSource(pool="gpt2", file=FILE)
    other = tmp_path / "recipes.toml"
    other.write_text(FILE.read_text().replace("corpus_tokens = 12_000", "corpus_tokens = 11_000"))
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
        ("[pools.gemma3]", "[pools.gemma3]\nspeed = 3", "speed is not a known key, got 3"),
        ("shares = [0.0, 0.0, 0.5", "shares = [0.0, 0.0, 0.4", "shares must add up to 1"),
        ("[pools.gemma3]", "[pools.gemma4]", "pools must be one of .*gemma4, got 'gemma3'"),
    ],
)
def test_a_recipe_that_is_not_sound_is_refused_in_one_line(tmp_path, old, new, said):
    file = tmp_path / "recipes.toml"
    file.write_text(FILE.read_text().replace(old, new))
    with pytest.raises(PoolRecipeError, match=said) as refused:
        shelf_of(tmp_path, "gemma3", file).recording("gemma3")
    assert str(refused.value).startswith(f"{file}: ")
    assert "\n" not in str(refused.value)


def test_only_llama_like_targets_have_submodels(tmp_path):
    file = tmp_path / "recipes.toml"
    file.write_text(FILE.read_text().replace("[defaults.training]", "[defaults.training]\nskip_layers = [1]"))
    with pytest.raises(PoolRecipeError, match="only with a Llama-like target, not with gpt2"):
        pool_recipe("gpt2", file)


def test_too_few_held_out_prompts_are_said(tmp_path):
    file = tmp_path / "recipes.toml"
    file.write_text(FILE.read_text().replace("checked_texts = 1", "checked_texts = 1000"))
    said = "pool gpt2: math must have 1 held-out prompts to record and 1000 to measure agreement, has "
    with pytest.raises(ArgumentError, match=said):
        TrainedSource(pool="gpt2", file=file).trained(tmp_path)


def test_without_torch_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, training.__name__)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match="pool gpt2 runs real models and needs torch: "):
        TrainedSource(pool="gpt2", file=FILE).trained(tmp_path)


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


def test_a_stale_pool_differs_in_what_its_drafter_has_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(TargetTexts, "agreement", lambda self, model: 0.5)
    fresh = TrainedSource(pool="llama", file=FILE)
    stale = TrainedSource(pool="llama", file=FILE, goals={"draft": 0.4})
    entries = {
        "fresh": Entry(what="", source=fresh),
        "aged": Entry(what="", source=StaleSource(fresh="fresh", stale=stale)),
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
        TrainedSource(pool="llama", file=FILE, goals={"mid": 0.4}).recipe()
    with pytest.raises(ValueError, match=r"the goal of draft must be in \(0, 1\], got 1.4"):
        TrainedSource(pool="llama", file=FILE, goals={"draft": 1.4}).recipe()
