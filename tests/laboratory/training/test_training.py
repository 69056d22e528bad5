"""A recipe runs from end to end, a killed run continues to the same pool, and what is written is whole."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import read_prompts
from paceline_laboratory.training import pool as pipeline
from paceline_laboratory.training.pool import AGREEMENT_TOKENS, train_pool, write_pool_file
from paceline_laboratory.training.recipe import TAGS, Schedule, read_recipe
from paceline_laboratory.training.texts import Item, write_prompts
from paceline_laboratory.training.training import (
    ROOM,
    GrowingLayer,
    _top_cross_entropy,
    make_model,
    run_training,
    write_tensors,
    write_texts,
)
from transformers.cache_utils import DynamicLayer

from ...runtime.conftest import random_llama

TINY = read_recipe("tiny")
POOL_FILES = ("tokenizer.json", "prompts.jsonl", "pool.toml", "target/config.json")
POOL_FILES += tuple(f"{name}/model.safetensors" for name in ("draft", "mid", "target"))
WRITERS = {
    "tensors": lambda path: write_tensors({"a": torch.ones(99)}, path),
    "prompts": lambda path: write_prompts({"math": [Item(tag="math", prompt="x", completion="")]}, path),
    "pool": lambda path: write_pool_file(TINY, path),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny pool, trained in one go."""
    folder = tmp_path_factory.mktemp("trained")
    train_pool(TINY, folder / "pool", folder / "work", command="a command")
    return folder / "pool"


def test_the_pool_loads_and_has_a_card(trained):
    pool = ModelPool.load(trained)
    assert [member.name for member in pool.members] == ["ngram", "draft", "mid", "slim", "target"]
    card = (trained / "CARD.md").read_text(encoding="utf-8")
    assert "a command" in card
    assert str(trained.parent) not in card
    rows = [json.loads(line) for line in (trained / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["tag"] for row in rows] == list(TAGS)
    assert [row["id"] for row in rows] == [f"{tag}-0001" for tag in TAGS]


def test_a_killed_run_continues_to_the_same_pool(trained, tmp_path, monkeypatch):
    recipe = replace(TINY, checkpoint_every_s=0.0)

    def killed(*_args, **_settings):
        raise KeyboardInterrupt

    for stage in ("train_target", "make_teacher", "train_student"):
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, stage, killed)
            with pytest.raises(KeyboardInterrupt):
                train_pool(recipe, tmp_path / "pool", tmp_path / "work")
    train_pool(recipe, tmp_path / "pool", tmp_path / "work")
    for name in POOL_FILES:
        assert (tmp_path / "pool" / name).read_bytes() == (trained / name).read_bytes(), name
    with pytest.raises(ValueError, match="work_dir must belong to the same recipe"):
        train_pool(replace(recipe, seed=1), tmp_path / "pool", tmp_path / "work")


def test_a_run_killed_between_steps_gives_the_same_weights(tmp_path):
    batches = torch.randint(0, 400, (6, 2, 17), generator=torch.Generator().manual_seed(3))

    def run(checkpoint, stop_at=None):
        model = make_model(TINY.shapes["mid"], TINY, seed=1)

        def loss_at(step, rows):
            assert len(set(rows.tolist())) == 2
            if step == stop_at:
                raise KeyboardInterrupt
            return model(input_ids=batches[step], labels=batches[step]).loss

        schedule = Schedule(num_steps=6, num_rows=2, knots=((0, 1e-2), (6, 2e-4)))
        run_training(
            model, loss_at, num_sequences=12, schedule=schedule, seed=TINY.seed, sequence_tokens=17,
            checkpoint_every_s=0.0, checkpoint=checkpoint, stage="t",
        )  # fmt: skip
        return model

    whole = run(tmp_path / "whole.safetensors")
    for killed_at in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "broken.safetensors", stop_at=killed_at)
    continued = run(tmp_path / "broken.safetensors")
    for (name, one), (_, other) in zip(whole.named_parameters(), continued.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_the_card_counts_equal_choices(trained):
    """Against choices by hand; the target always agrees with itself."""
    pool = ModelPool.load(trained)
    prompts = [pool.encode(prompt.text) for prompt in read_prompts(trained / "prompts.jsonl")]
    texts = write_texts(pool.target.model, prompts, num_tokens=AGREEMENT_TOKENS, temperature=0.0, seed=0)
    equal = 0
    for prompt, text in zip(prompts, texts, strict=True):
        logits = pool.member("draft").model(input_ids=torch.tensor([prompt + text[:-1]])).logits[0]
        equal += int((logits[len(prompt) - 1 :].argmax(dim=-1) == torch.tensor(text)).sum())
    section = (trained / "CARD.md").read_text(encoding="utf-8").partition("## Agreement")[2].partition("\n## ")[0]
    head, _, *rows = (line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|"))
    shares = {name: cells for name, *cells in rows}
    assert head == ["member", *TAGS, "all"]
    assert list(shares) == ["draft", "mid", "slim", "target"]
    assert shares["target"] == ["100.0%"] * len(head[1:])
    assert shares["draft"][-1] == f"{equal / sum(map(len, texts)):.1%}"
    assert f"({sum(map(len, texts))} tokens)" in section


def test_texts_stop_at_the_end_token():
    model = make_model(TINY.shapes["draft"], TINY, seed=0).eval()
    texts = write_texts(model, [[5, 6], [7]], num_tokens=400, temperature=5.0, seed=1)
    assert all(0 not in text[:-1] for text in texts)
    assert any(text[-1] == 0 for text in texts)


def test_distillation_loss_is_least_for_the_teacher_itself():
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    top = logits.log_softmax(-1).topk(8, dim=-1)
    own = _top_cross_entropy(logits, top.indices, top.values)
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
    torch.testing.assert_close(own, entropy)
    assert _top_cross_entropy(logits + torch.arange(8.0), top.indices, top.values) > own


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"shares": (0.5, 0.5)}, "shares must hold 6 numbers"),
        ({"shares": (0.5,) * 6}, "add up to 1"),
        ({"full_share": 0.9, "slim_share": 0.2}, "must be <= 1"),
        ({"sequence_tokens": 1024}, "sequence_tokens must be <= 512"),
        ({"skip_layers": (0,)}, "keep the first and the last layer"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(TINY, **change)


def test_the_rate_rises_and_falls():
    schedule = Schedule(num_steps=100, num_rows=1, knots=((0, 0.1), (10, 1.0), (100, 0.02)))
    rates = [schedule.rate_at(step) for step in range(100)]
    assert rates[10] == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.05


def test_a_growing_cache_holds_what_transformers_own_holds():
    torch.manual_seed(0)
    ours, theirs = GrowingLayer(), DynamicLayer()
    num_texts = 5
    for step, length in enumerate((1, ROOM - 1, ROOM + 5, 1, 1, 60, 1)):
        keys, values = torch.randn(num_texts, 2, length, 4), torch.randn(num_texts, 2, length, 4)
        for own, other in zip(ours.update(keys, values), theirs.update(keys, values), strict=True):
            assert torch.equal(own, other)
        if step in (1, 3):
            kept = torch.tensor([0, 2, 3][: num_texts - 1])
            ours.batch_select_indices(kept)
            theirs.batch_select_indices(kept)
            num_texts = len(kept)
        if step == 4:
            ours.batch_repeat_interleave(2)
            theirs.batch_repeat_interleave(2)
            num_texts *= 2
        assert ours.get_seq_length() == theirs.get_seq_length()


def test_batched_text_equals_single_text_and_each_has_its_own_temperature():
    model = random_llama(3)
    prompts = [[5, 6, 7], [8], [9, 4]]
    greedy = write_texts(model, prompts, num_tokens=20, temperature=0.0, seed=0)
    for prompt, text in zip(prompts, greedy, strict=True):
        assert write_texts(model, [prompt], num_tokens=20, temperature=0.0, seed=0) == [text]
    mixed = write_texts(model, prompts, num_tokens=20, temperature=[0.0, 5.0, 0.0], seed=0)
    assert (mixed[0], mixed[2]) == (greedy[0], greedy[2])
    assert mixed[1] != greedy[1]
    with pytest.raises(ValueError, match="temperature must be one for each of 3 prompts, got 2"):
        write_texts(model, prompts, num_tokens=2, temperature=[0.0, 1.0], seed=0)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_keeps_what_was_there_and_is_told_by_name(tmp_path, monkeypatch, write):
    path = tmp_path / "state"
    path.write_text("old")
    (tmp_path / "state.part").write_text("mine")

    def half(file, data):
        with file.open("wb") as stream:
            stream.write(data[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space left on device") as told:
        write(path)
    assert told.value.filename == str(path)
    assert path.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state", "state.part"]
    assert (tmp_path / "state.part").read_text() == "mine"
