"""Drafters and submodels distilled from a small random target: every stage, and what continues a cut one."""

import json
from dataclasses import replace
from functools import partial
from shutil import copytree

import pytest
import torch
from paceline.runtime.pools.parts import make_submodel, restore
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError, read_pool_file
from paceline.studies.agree import agree
from paceline_laboratory.training.distilling import (
    Job,
    JobFailedError,
    check_sizes,
    distil_pool,
    side_by_side,
    submodels_of_target,
    write_part,
)
from paceline_laboratory.training.recipe import Schedule, read_distillation
from paceline_laboratory.training.students import (
    Text,
    begin_feature_student,
    begin_restored,
    begin_student,
    common_tokens,
    distance,
    learned_by,
    parted,
    read_shards,
    states_at_depths,
    train_restored,
)
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, WIDTH = 64, 32
TEMPLATE = "{% for m in messages %}w2 {{ m['content'] }} w3 {% endfor %}"
SKIPPED = (1, 2)
TINY = read_distillation("tiny")


def distil(source, out, work, recipe=TINY):
    distil_pool(source, recipe, out, work, processes=1, command="it")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    words = {f"w{token}": token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=True,
        eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "target")
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


def test_the_pool_drafts_what_the_target_says_in_both_worlds(distilled):
    out = distilled / "out"
    pool = ModelPool.load(out)
    assert [member.name for member in pool.members] == ["ngram", "draft", "mid", "feature", "slim", "target"]
    policies = ["feature:3/target", "draft:2/mid:3/target", "draft:3/slim:2/target"]
    assert agree(pool, ["w5 w6", "w9"], policies, max_new_tokens=6, reach=5).agree
    for name, student in TINY.students.items():
        assert not any("embed" in key or "lm_head" in key for key in load_file(out / name / "model.safetensors"))
        said = json.loads((out / name / "vocabulary.json").read_text(encoding="utf-8"))
        assert len(said) <= student.head_tokens
        assert set(pool.eos_token_ids) <= set(said)
    entry = next(entry for entry in read_pool_file(out)[1].members if entry.name == "slim")
    assert (entry.skip_layers, entry.low_rank) == (SKIPPED, "slim/low_rank.safetensors")
    held = load_file(out / "slim" / "low_rank.safetensors")
    assert {tensor.dtype for tensor in held.values()} == {torch.bfloat16}
    assert held["model.layers.3.mlp.down_proj.A"].shape == (TINY.restored.rank, 48)
    assert {name.split(".")[2] for name in held} == {"0", "3"}
    assert any(tensor.any() for name, tensor in held.items() if name.endswith(".B"))
    card = (out / "CARD.md").read_text(encoding="utf-8")
    assert f"(`slim` leaves out {list(SKIPPED)})" in card
    assert all("| slim " in section and "| slim, untrained " in section for section in card.split("## ")[2:])


def test_texts_are_dialogues_with_the_targets_states(source, distilled):
    pool = ModelPool.load(source, chat=True)
    texts = read_shards(TINY, distilled / "work" / "shards")
    for text in texts:
        assert text.tag in TINY.tasks
        assert text.tokens[: text.answer_at].tolist() == pool.encode(text.question)
        expected = pool.target.model.base_model(input_ids=text.tokens[None, :-1]).last_hidden_state[0]
        assert text.states.shape == (len(text.tokens) - 1, WIDTH)
        torch.testing.assert_close(text.states.float(), expected, rtol=0.2, atol=0.5)  # of bfloat16 at worst
    ours, held_out = parted(texts, TINY)
    assert ([*ours, *held_out], len(held_out)) == (texts, TINY.held_out_rows)
    with pytest.raises(ValueError, match="recipe tiny must hold out fewer than 4 texts, got 4"):
        parted(texts[:4], TINY)
    assert 60 in common_tokens(texts, 3, [60])
    assert len(common_tokens(texts, 10, [0])) == 10


def test_a_second_call_writes_the_same_and_trains_nothing_again(source, distilled, tmp_path):
    work = distilled / "work"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")}
    distil(source, tmp_path / "out", work)
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")} == before
    for file in (*(f"{name}/model.safetensors" for name in TINY.students), "slim/low_rank.safetensors"):
        assert (tmp_path / "out" / file).read_bytes() == (distilled / "out" / file).read_bytes()
    with pytest.raises(ValueError, match=r"work must belong to the same recipe and target, .* holds another one"):
        distil(source, tmp_path / "o", work, replace(TINY, seed=1))
    other = replace(TINY, restored=replace(TINY.restored, rank=3))
    with pytest.raises(ValueError, match=r"work must hold the same layers and recipe of slim, .* holds others"):
        distil(source, tmp_path / "o", work, other)


def test_processes_write_what_one_writes_and_say_what_fails(source, distilled, tmp_path):
    # The dtype is measured: it is a matter of the machine, not of the processes.
    begun = json.loads((distilled / "work" / "recipe.json").read_text(encoding="utf-8"))
    job = Job(pool=source / "pool.toml", work=tmp_path, recipe=TINY, dtype=getattr(torch, begun["dtype"]))
    job.shards.mkdir()
    with side_by_side(2) as do:
        do([partial(write_part, job, part, 2) for part in range(2)])
        with pytest.raises(JobFailedError, match=r"pool file must exist, got .*none"):
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
        submodels_of_target(file, taken, TINY)
    check_sizes(file, {"slim": (0, 1)}, 4, TINY)
    large = {"mid": replace(TINY.students["mid"], num_layers=2)}
    with pytest.raises(PoolFileError, match="skip_layers of slim must keep more layers than the largest"):
        check_sizes(file, {"slim": (0, 1, 2)}, 4, replace(TINY, students=large))


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
    schedule = Schedule(num_steps=30, num_rows=8, knots=((0, 1e-2), (30, 1e-3)))
    recipe = replace(TINY, restored=replace(TINY.restored, schedule=schedule, rank=4))
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
