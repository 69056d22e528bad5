"""Pools are trained and distilled: the same bytes again and after a kill, right texts, whole files."""

import errno
import json
import os
import random
import re
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from shutil import copytree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError, read_pool_file
from paceline.runtime.pools.submodels import make_submodel, restore
from paceline.runtime.prompts import read_prompts
from paceline.studies.agree import agree
from paceline_laboratory.training import pool as pipeline
from paceline_laboratory.training.distilling import (
    Job,
    JobFailedError,
    check_sizes,
    distil_pool,
    side_by_side,
    submodels_of_target,
    write_part,
)
from paceline_laboratory.training.pool import AGREEMENT_TOKENS, train_pool, write_pool_file
from paceline_laboratory.training.recipe import TAGS, Course, Schedule, read_distillation, read_recipe
from paceline_laboratory.training.students import (
    Text,
    begin_feature_student,
    begin_restored,
    begin_student,
    common_tokens,
    distance,
    learned_by,
    read_shards,
    split_texts,
    states_at_depths,
    train_restored,
)
from paceline_laboratory.training.texts import (
    Item,
    build_corpus,
    english,
    english_ordinal,
    english_year,
    french,
    german,
    german_ordinal,
    german_year,
    make_dialogue,
    make_edit,
    make_translation,
    make_word_problem,
    write_prompts,
)
from paceline_laboratory.training.training import (
    MOMENTUM,
    WEIGHT_DECAY,
    Muon,
    _top_cross_entropy,
    make_model,
    run_training,
    write_tensors,
)
from paceline_laboratory.training.writing import ROOM, GrowingLayer, _attend, write_texts
from safetensors.torch import load_file
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .. import word_models
from ..cli.command_line import refused
from ..runtime.conftest import random_llama

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


@pytest.mark.slow
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
            model, loss_at, num_sequences=12, schedule=schedule, recipe=replace(TINY, checkpoint_every_s=0.0),
            sequence_tokens=17, checkpoint=checkpoint, stage="t",
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


def test_muon_takes_the_steps_of_torchs_own_but_for_its_rounding():
    def trained(make):
        draw = torch.Generator().manual_seed(0)
        matrices = [torch.nn.Parameter(torch.randn(*shape, generator=draw)) for shape in ((24, 8), (8, 24), (16, 16))]
        optimizer = make(matrices)
        optimizer.param_groups[0]["lr"] = 0.5
        for _ in range(3):
            for matrix in matrices:
                matrix.grad = torch.randn(*matrix.shape, generator=draw)
            optimizer.step()
        return matrices

    torchs = partial(torch.optim.Muon, weight_decay=WEIGHT_DECAY, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw")
    for ours, theirs in zip(trained(Muon), trained(torchs), strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()  # it rounds to bfloat16


def test_the_rate_rises_and_falls():
    schedule = Schedule(num_steps=100, num_rows=1, knots=((0, 0.1), (10, 1.0), (100, 0.02)))
    rates = [schedule.rate_at(step) for step in range(100)]
    assert rates[10] == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.05


def test_attention_of_one_new_token_is_that_of_transformers():
    module = torch.nn.Module()
    module.num_key_value_groups = 3
    query, key, value = torch.randn(2, 6, 1, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = torch.rand(2, 1, 1, 5) < 0.7
    mask[..., -1] = True
    for seen in (mask, None):
        ours, _ = _attend(module, query, key, value, seen, scaling=0.3)
        theirs, _ = sdpa_attention_forward(module, query, key, value, seen, scaling=0.3)
        torch.testing.assert_close(ours, theirs)


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


VOCABULARY, WIDTH = 64, word_models.WIDTH
TEMPLATE = "{% for m in messages %}w2 {{ m['content'] }} w3 {% endfor %}"
SKIPPED = (1, 2)
DISTILLED = read_distillation("tiny")


def distil(source, out, work, recipe=DISTILLED):
    distil_pool(source, recipe, out, work, processes=1, command="it")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    word_models.words(VOCABULARY, unknown=1).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    word_models.model(3, num_layers=4, vocab_size=VOCABULARY).save_pretrained(folder / "target")
    (folder / "pool.toml").write_text(
        'name = "p"\ntokenizer = "tokenizer.json"\ncontext_tokens = 128\n'
        f'[[members]]\nname = "slim"\nsubmodel_of = "target"\nskip_layers = {list(SKIPPED)}\n'
        '[[members]]\nname = "target"\npath = "target"\n',
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="module")
def target(source):
    return ModelPool.load(source).target.model


@pytest.fixture(scope="module")
def distilled(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distilled")
    distil(source, folder / "out", folder / "work")
    return folder


@pytest.mark.slow
def test_the_pool_drafts_what_the_target_says_in_both_worlds(distilled):
    out = distilled / "out"
    pool = ModelPool.load(out)
    assert [member.name for member in pool.members] == ["ngram", "draft", "mid", "feature", "slim", "target"]
    policies = ["feature:3/target", "draft:2/mid:3/target", "draft:3/slim:2/target"]
    assert agree(pool, ["w5 w6", "w9"], policies, max_new_tokens=6, reach=5).agree
    for name, student in DISTILLED.students.items():
        assert not any("embed" in key or "lm_head" in key for key in load_file(out / name / "model.safetensors"))
        said = json.loads((out / name / "vocabulary.json").read_text(encoding="utf-8"))
        assert len(said) <= student.head_tokens
        assert set(pool.eos_token_ids) <= set(said)
    entry = next(entry for entry in read_pool_file(out)[1].members if entry.name == "slim")
    assert (entry.skip_layers, entry.low_rank) == (SKIPPED, "slim/low_rank.safetensors")
    held = load_file(out / "slim" / "low_rank.safetensors")
    assert {tensor.dtype for tensor in held.values()} == {torch.bfloat16}
    assert held["model.layers.3.mlp.down_proj.A"].shape == (DISTILLED.restored.rank, 48)
    assert {name.split(".")[2] for name in held} == {"0", "3"}
    assert any(tensor.any() for name, tensor in held.items() if name.endswith(".B"))
    card = (out / "CARD.md").read_text(encoding="utf-8")
    assert f"(`slim` leaves out {list(SKIPPED)})" in card
    assert all("| slim " in section and "| slim, untrained " in section for section in card.split("## ")[2:])


def test_texts_are_dialogues_with_the_targets_states(source, distilled):
    pool = ModelPool.load(source, chat=True)
    texts = read_shards(DISTILLED, distilled / "work" / "shards")
    for text in texts:
        assert text.tag in DISTILLED.tasks
        assert text.tokens[: text.answer_at].tolist() == pool.encode(text.question)
        expected = pool.target.model.base_model(input_ids=text.tokens[None, :-1]).last_hidden_state[0]
        assert text.states.shape == (len(text.tokens) - 1, WIDTH)
        torch.testing.assert_close(text.states.float(), expected, rtol=0.2, atol=0.5)  # of bfloat16 at worst
    ours, held_out = split_texts(texts, DISTILLED)
    assert ([*ours, *held_out], len(held_out)) == (texts, DISTILLED.held_out_rows)
    with pytest.raises(ValueError, match="recipe tiny must hold out fewer than 4 texts, got 4"):
        split_texts(texts[:4], DISTILLED)
    assert split_texts([*texts, texts[0], texts[-1]], DISTILLED) == (ours, held_out), "a question counts once"
    assert 60 in common_tokens(texts, 3, [60])
    assert len(common_tokens(texts, 10, [0])) == 10


def test_a_second_call_writes_the_same_and_trains_nothing_again(source, distilled, tmp_path):
    work = distilled / "work"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")}
    distil(source, tmp_path / "out", work)
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")} == before
    for file in (*(f"{name}/model.safetensors" for name in DISTILLED.students), "slim/low_rank.safetensors"):
        assert (tmp_path / "out" / file).read_bytes() == (distilled / "out" / file).read_bytes()
    with pytest.raises(ValueError, match=r"work must belong to the same recipe and target, .* holds another one"):
        distil(source, tmp_path / "o", work, replace(DISTILLED, seed=1))
    other = replace(DISTILLED, restored=replace(DISTILLED.restored, rank=3))
    with pytest.raises(ValueError, match=r"work must hold the same layers and recipe of slim, .* holds others"):
        distil(source, tmp_path / "o", work, other)


@pytest.mark.slow  # each imports torch
def test_processes_write_what_one_writes_and_say_what_fails(source, distilled, tmp_path):
    # The dtype is measured: it is a matter of the machine, not of the processes.
    begun = json.loads((distilled / "work" / "recipe.json").read_text(encoding="utf-8"))
    job = Job(pool=source / "pool.toml", work=tmp_path, recipe=DISTILLED, dtype=getattr(torch, begun["dtype"]))
    job.shards.mkdir()
    with side_by_side(2) as do:
        do([partial(write_part, job, part, 2) for part in range(2)])
        with pytest.raises(JobFailedError, match=r"pool must be a folder with pool.toml.* got .*none"):
            do([partial(write_part, replace(job, pool=tmp_path / "none"), 0, 1)])
    for shard in (distilled / "work" / "shards").iterdir():
        assert (job.shards / shard.name).read_bytes() == shard.read_bytes()


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("pool.toml", "context_tokens = 128", "context_tokens = 64", "context_tokens must hold a dialogue of recipe"),
        ("pool.toml", 'path = "target"', 'path = "target"\ndtype = "bfloat16"', r"members\[1\].dtype must be float32"),
        ("chat_template.jinja", TEMPLATE, "w2 w3", "chat template must hold a question once, as it is"),
    ],
)
def test_a_target_that_would_be_learned_wrong_is_refused(source, tmp_path, file, old, new, complaint):
    changed = copytree(source, tmp_path / "source") / file
    changed.write_text(changed.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(PoolFileError, match=complaint):
        distil(tmp_path / "source", tmp_path / "out", tmp_path / "work")


def test_names_and_sizes_with_no_place_in_the_new_pool_are_refused(source):
    file, content = read_pool_file(source)
    draft = content.members[0].model_copy(update={"name": "draft"})
    taken = content.model_copy(update={"members": (draft, content.members[1])})
    with pytest.raises(PoolFileError, match=r"members\[0\].name must not be that of a member to be trained"):
        submodels_of_target(file, taken, DISTILLED)
    check_sizes(file, {"slim": (0, 1)}, 4, DISTILLED)
    large = {"mid": replace(DISTILLED.students["mid"], num_layers=2)}
    with pytest.raises(PoolFileError, match="skip_layers of slim must keep more layers than the largest"):
        check_sizes(file, {"slim": (0, 1, 2)}, 4, replace(DISTILLED, students=large))


def test_a_student_begins_as_layers_of_its_target(target):
    for num_layers, sources in ((1, [0]), (2, [0, 3]), (4, [0, 1, 2, 3])):
        student = begin_student(target, num_layers)
        for layer, of in zip(student.model.layers, sources, strict=True):
            for own, theirs in zip(layer.parameters(), target.model.layers[of].parameters(), strict=True):
                assert torch.equal(own, theirs)
    tokens = torch.arange(9)[None]
    with torch.inference_mode():
        whole = student.model(inputs_embeds=target.model.embed_tokens(tokens)).last_hidden_state
        torch.testing.assert_close(whole, target.model(input_ids=tokens).last_hidden_state)


def test_a_narrower_student_keeps_the_units_of_the_greatest_weights(target):
    target = deepcopy(target)
    weights = target.model.layers[0].mlp
    with torch.no_grad():
        for matrix in (weights.up_proj.weight, weights.gate_proj.weight, weights.down_proj.weight.T):
            matrix[5] *= 30
            matrix[7] *= 30
    (layer,) = begin_student(target, 1, 2).model.layers
    assert torch.equal(layer.mlp.up_proj.weight, weights.up_proj.weight[[5, 7]])
    assert torch.equal(layer.mlp.gate_proj.weight, weights.gate_proj.weight[[5, 7]])
    assert torch.equal(layer.mlp.down_proj.weight, weights.down_proj.weight[:, [5, 7]])
    assert torch.equal(layer.self_attn.q_proj.weight, target.model.layers[0].self_attn.q_proj.weight)


def test_a_course_has_as_many_steps_as_texts_ask_for_and_wider_ones_beyond_its_most():
    course = Course(num_epochs=2.0, num_rows=4, most_steps=50, knots=((0, 0.0), (0.1, 1.0), (1, 0.0)))
    few, many = course.schedule(60), course.schedule(1000)
    assert (few.num_steps, few.num_rows, few.rate_at(3)) == (30, 4, 1.0)
    assert (many.num_steps, many.num_rows, many.rate_at(5)) == (50, 40, 1.0)
    with pytest.raises(ValueError, match="knots must be in order of their shares"):
        replace(course, knots=((0.1, 1.0), (0, 0.0)))


def test_a_size_is_whole_parts():
    assert (DISTILLED.sized(None, None), DISTILLED.sized(64, 16).num_shards) == (DISTILLED, 4)
    assert (DISTILLED.sized(8, None).num_shards, DISTILLED.sized(8, None).shard_rows) == (1, 8)
    with pytest.raises(ValueError, match=re.escape("`--dialogues` must be a multiple of `--rows` (32), got 40")):
        DISTILLED.sized(40, None)


def test_a_device_that_is_not_there_is_refused(source, tmp_path):
    line = refused("pool", "distil", source, tmp_path / "out", "--device", "cuda:77")
    assert line.startswith("`--device` must be a device of this machine (cpu")
    assert line.endswith("got 'cuda:77'")
    assert not (tmp_path / "out").exists()


def test_what_is_learned_at_a_depth_is_what_decoding_reads_there(target):
    """Against one forward for each place and depth, whose text is judged up to there."""
    torch.manual_seed(5)
    student = begin_feature_student(target).eval()
    torch.nn.init.normal_(student.fc.weight, std=0.1)
    embedded, states = torch.randn(1, 9, WIDTH), torch.randn(1, 9, WIDTH)
    with torch.inference_mode():
        depths = list(states_at_depths(student, embedded, states, 3))
        for place in range(9):
            for depth in range(min(3, place + 1)):
                judged = place - depth
                before = torch.cat([torch.zeros(1, 1, WIDTH), states[:, :judged]], dim=1)
                own = [depths[number][:, judged + number][:, None] for number in range(depth)]
                read = student.fc(torch.cat([embedded[:, : place + 1], torch.cat([before, *own], dim=1)], dim=-1))
                expected = student.model(inputs_embeds=read).last_hidden_state[:, -1]
                torch.testing.assert_close(depths[depth][:, place], expected)


def test_the_distance_is_least_where_both_say_the_same():
    torch.manual_seed(0)
    states, head = torch.randn(5, 8), torch.randn(6, 8)
    own = distance(states, states, head)
    probs = (states @ head.T).softmax(-1)
    torch.testing.assert_close(own, -(probs * probs.log()).sum(-1).mean())
    assert all(distance(torch.randn(5, 8), states, head) > own for _ in range(20))


def test_a_restored_submodel_begins_as_it_was_and_its_target_stays(target):
    before = {name: weight.clone() for name, weight in target.named_parameters()}
    begun = begin_restored(target, SKIPPED, 2, dtype=torch.float32, seed=0)
    tokens = torch.arange(9)[None]
    with torch.inference_mode():
        own = begun.model(input_ids=tokens).last_hidden_state
        torch.testing.assert_close(own, make_submodel(target, SKIPPED).model(input_ids=tokens).last_hidden_state)
    learned = {name for name, weight in begun.named_parameters() if weight.requires_grad}
    assert len(learned) == 2 * (7 * 2 + 2)
    assert all(name.endswith((".A", ".B", "layernorm.weight")) for name in learned)
    assert all(torch.equal(weight, before[name]) for name, weight in target.named_parameters())
    other = begin_restored(target, (0, 2), 2, dtype=torch.float32, seed=0)
    assert {name.split(".")[2] for name in learned_by(other, (0, 2))} == {"1", "3"}


def test_it_comes_nearer_to_its_target_and_is_what_a_pool_makes_of_it(target, tmp_path):
    rng = torch.Generator().manual_seed(0)
    texts = []
    for _ in range(8):
        tokens = torch.randint(VOCABULARY, (20,), generator=rng)
        with torch.inference_mode():
            states = target.model(input_ids=tokens[None, :-1]).last_hidden_state[0]
        texts.append(Text("t", "q", tokens, 4, states))
    course = Course(num_epochs=30 * 8 / len(texts), num_rows=8, knots=((0, 1e-2), (1, 1e-3)))
    recipe = replace(DISTILLED, restored=replace(DISTILLED.restored, course=course, rank=4))
    head = target.get_output_embeddings().weight.detach()
    tensors, run = train_restored("slim", SKIPPED, target, texts, head, recipe, tmp_path / "c", torch.float32)
    assert run.num_tokens == 30 * 8 * 20
    losses = []
    for learned in ({}, tensors):
        model = make_submodel(target, SKIPPED)
        if learned:
            restore(model, SKIPPED, learned)
        with torch.inference_mode():
            said = torch.cat([model.model(input_ids=text.tokens[None, :-1]).last_hidden_state[0] for text in texts])
            losses.append(float(distance(said, torch.cat([text.states for text in texts]), head)))
    assert losses[1] < 0.8 * losses[0]


SEEDS = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, ("zero", "null", "zéro")),
        (21, ("twenty-one", "einundzwanzig", "vingt et un")),
        (71, ("seventy-one", "einundsiebzig", "soixante et onze")),
        (80, ("eighty", "achtzig", "quatre-vingts")),
        (81, ("eighty-one", "einundachtzig", "quatre-vingt-un")),
        (99, ("ninety-nine", "neunundneunzig", "quatre-vingt-dix-neuf")),
        (101, ("one hundred and one", "einhunderteins", "cent un")),
        (200, ("two hundred", "zweihundert", "deux cents")),
        (312, ("three hundred and twelve", "dreihundertzwölf", "trois cent douze")),
        (1000, ("one thousand", "eintausend", "mille")),
        (1005, ("one thousand and five", "eintausendfünf", "mille cinq")),
        (
            9870,
            (
                "nine thousand eight hundred and seventy",
                "neuntausendachthundertsiebzig",
                "neuf mille huit cent soixante-dix",
            ),
        ),
    ],
)
def test_numbers_in_words(number, words):
    assert (english(number), german(number), french(number)) == words


@pytest.mark.parametrize("language", [english, german, french])
def test_numbers_have_different_words(language):
    assert len({language(number) for number in range(10_000)}) == 10_000


def test_days_and_years_in_words():
    english_days = "first, twelfth, twentieth, twenty-second, thirty-first"
    assert [english_ordinal(day) for day in (1, 12, 20, 22, 31)] == english_days.split(", ")
    german_days = "erste, siebte, neunzehnte, zwanzigste, einunddreißigste"
    assert [german_ordinal(day) for day in (1, 7, 19, 20, 31)] == german_days.split(", ")
    years = "nineteen hundred, nineteen oh five, nineteen ninety-eight, two thousand and five, twenty twenty-four"
    assert [english_year(year) for year in (1900, 1905, 1998, 2005, 2024)] == years.split(", ")
    assert [german_year(year) for year in (1998, 2005)] == ["neunzehnhundertachtundneunzig", "zweitausendfünf"]


@given(SEEDS)
def test_word_problems_add_up(seed):
    item = make_word_problem(random.Random(seed))
    steps = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", item.completion)
    operations = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}
    assert steps
    for left, operation, right, result in steps:
        assert operations[operation](int(left), int(right)) == int(result)
        assert operation != "/" or int(left) % int(right) == 0
    assert all(before[3] == after[0] for before, after in pairwise(steps))
    assert item.completion.endswith(f"\nAnswer: {item.answer}")
    assert item.answer == steps[-1][3]
    assert 0 < int(item.answer) <= 400


@given(SEEDS)
def test_every_operand_stands_in_the_problem(seed):
    item = make_word_problem(random.Random(seed))
    numbers = re.findall(r"\d+", item.prompt)
    steps = re.findall(r"(\d+) [-+*/] (\d+) =", item.completion)
    assert sorted(numbers, key=int) == sorted([steps[0][0], *(right for _, right in steps)], key=int)


@given(SEEDS)
def test_translations_have_a_line_for_each_line(seed):
    item = make_translation(random.Random(seed))
    lines = item.prompt.splitlines()
    assert re.fullmatch(r"Translate from (English|German|French) to (English|German|French)\.", lines[0])
    assert len(item.completion.splitlines()) == len(lines) - 2
    assert lines[-1] == f"{lines[0].split()[-1][:-1]}:"


@given(SEEDS)
def test_dialogues_take_turns(seed):
    item = make_dialogue(random.Random(seed))
    speakers = [line.partition(":")[0] for line in item.text.splitlines()[1:]]
    assert len(set(speakers)) == 2
    assert all(before != after for before, after in pairwise(speakers))
    assert "{" not in item.text
    assert item.prompt.endswith(":")


@given(SEEDS)
def test_edits_follow_the_instruction(seed):
    item = make_edit(random.Random(seed))
    text = item.prompt.splitlines()[0].removeprefix("Text: ")
    instruction = item.prompt.splitlines()[1].removeprefix("Instruction: ")
    if match := re.fullmatch(r"Replace (\w+) with (\w+)\.", instruction):
        assert item.answer == text.replace(*match.groups())
    elif match := re.fullmatch(r"Write (\w+) in capital letters\.", instruction):
        assert item.answer == text.replace(match[1], match[1].upper())
    elif instruction.startswith("Delete"):
        assert len(item.answer) < len(text)
    elif instruction.startswith("Make"):
        marker = instruction.split()[4]
        assert item.answer.replace(f"\n{marker}", "").strip() == text
    else:
        assert all(fact.split(" = ")[1] in text for fact in item.answer.split("; "))


def test_nothing_that_is_held_out_is_trained_on():
    corpus = build_corpus(replace(read_recipe("tiny"), prompts_per_tag=20))
    for tag in TAGS:
        assert corpus.held_out[tag]
        assert not {item.prompt for item in corpus.train[tag]} & {item.prompt for item in corpus.held_out[tag]}
    modules = [
        {re.search(r"[\w/]+\.py", item.prompt)[0] for item in side["code"]} for side in (corpus.train, corpus.held_out)
    ]
    assert not modules[0] & modules[1]
