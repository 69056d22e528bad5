"""Submodels of a small random target that learn to do without the layers that they leave out."""

from dataclasses import replace

import pytest
import torch
from paceline.runtime.pools.parts import make_submodel, restore
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError, read_pool_file
from paceline.studies.agree import agree
from paceline_laboratory.training.distilling import check_sizes, distil_pool, submodels_of_target
from paceline_laboratory.training.recipe import Schedule
from paceline_laboratory.training.students import (
    Text,
    begin_restored,
    distance,
    learned_by,
    read_recipe,
    train_restored,
)
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, WIDTH = 64, 32
TEMPLATE = "{% for m in messages %}w2 {{ m['content'] }} w3 {% endfor %}"
SKIPPED = (1, 2)


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
def distilled(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distilled")
    distil_pool(source, read_recipe("tiny"), folder / "out", folder / "work", processes=1, command="it")
    return folder


def test_the_new_pool_has_the_submodel_restored(source, distilled):
    pool, recipe = ModelPool.load(distilled / "out"), read_recipe("tiny")
    names = [member.name for member in pool.members]
    assert (names[0], names[-2:], set(names[1:-2])) == ("ngram", ["slim", "target"], set(recipe.students))
    entry = next(entry for entry in read_pool_file(distilled / "out")[1].members if entry.name == "slim")
    assert (entry.skip_layers, entry.low_rank) == (SKIPPED, "slim/low_rank.safetensors")
    held = load_file(distilled / "out" / "slim" / "low_rank.safetensors")
    assert {tensor.dtype for tensor in held.values()} == {torch.bfloat16}
    assert held["model.layers.3.mlp.down_proj.A"].shape == (recipe.restored.rank, 48)
    assert {name.split(".")[2] for name in held} == {"0", "3"}
    assert any(tensor.any() for name, tensor in held.items() if name.endswith(".B"))
    assert agree(pool, ["w5 w6", "w9"], ["draft:3/slim:2/target"], max_new_tokens=8, reach=6).agree


def test_the_card_shows_it_before_and_after(distilled):
    card = (distilled / "out" / "CARD.md").read_text(encoding="utf-8")
    assert f"(`slim` leaves out {list(SKIPPED)})" in card
    for section in card.split("## ")[2:]:
        assert "| slim " in section
        assert "| slim, untrained " in section


def test_a_second_call_trains_nothing_again_and_other_layers_are_refused(source, distilled, tmp_path):
    weights = distilled / "work" / "slim.safetensors"
    before = weights.stat().st_mtime_ns
    again = tmp_path / "out"
    distil_pool(source, read_recipe("tiny"), again, distilled / "work", processes=1, command="it")
    assert weights.stat().st_mtime_ns == before
    name = "slim/low_rank.safetensors"
    assert (again / name).read_bytes() == (distilled / "out" / name).read_bytes()
    recipe = read_recipe("tiny")
    other = replace(recipe, restored=replace(recipe.restored, rank=3))
    with pytest.raises(ValueError, match=r"work must hold the same layers and recipe of slim, .* holds others"):
        distil_pool(source, other, tmp_path / "o", distilled / "work", processes=1, command="it")


def test_names_and_sizes_with_no_place_in_the_new_pool_are_refused(source):
    file, content = read_pool_file(source)
    recipe = read_recipe("tiny")
    draft = content.members[0].model_copy(update={"name": "draft"})
    taken = content.model_copy(update={"members": (draft, content.members[1])})
    with pytest.raises(PoolFileError, match=r"members\[0\].name must not be that of a member to be trained"):
        submodels_of_target(file, taken, recipe)
    check_sizes(file, {"slim": (0, 1)}, 4, recipe)
    large = {"mid": replace(recipe.students["mid"], num_layers=2)}
    with pytest.raises(PoolFileError, match="skip_layers of slim must keep more layers than the largest"):
        check_sizes(file, {"slim": (0, 1, 2)}, 4, replace(recipe, students=large))


def test_it_begins_as_the_submodel_and_its_target_stays(source):
    target = ModelPool.load(source).target.model
    before = {name: weight.clone() for name, weight in target.named_parameters()}
    begun = begin_restored(target, SKIPPED, 2, dtype=torch.float32, seed=0)
    tokens = torch.arange(9)[None]
    with torch.inference_mode():
        own = begun.model(input_ids=tokens).last_hidden_state
        torch.testing.assert_close(own, make_submodel(target, SKIPPED).model(input_ids=tokens).last_hidden_state)
    learned = {name for name, weight in begun.named_parameters() if weight.requires_grad}
    assert len(learned) == 2 * (7 * 2 + 2)
    assert all(name.endswith((".A", ".B", "layernorm.weight")) for name in learned)
    for name, weight in target.named_parameters():
        assert torch.equal(weight, before[name])


def test_it_comes_nearer_to_its_target_and_is_what_a_pool_makes_of_it(source, tmp_path):
    target = ModelPool.load(source).target.model
    rng = torch.Generator().manual_seed(0)
    texts = []
    for _ in range(8):
        tokens = torch.randint(VOCABULARY, (20,), generator=rng)
        with torch.inference_mode():
            states = target.model(input_ids=tokens[None, :-1]).last_hidden_state[0]
        texts.append(Text("t", "q", tokens, 4, states))
    recipe = read_recipe("tiny")
    schedule = Schedule(num_steps=30, num_rows=8, knots=((0, 1e-2), (30, 1e-3)))
    recipe = replace(recipe, restored=replace(recipe.restored, schedule=schedule, rank=4))
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


def test_what_was_learned_is_named_by_the_targets_layers(source):
    target = ModelPool.load(source).target.model
    begun = begin_restored(target, (0, 2), 2, dtype=torch.float32, seed=0)
    assert {name.split(".")[2] for name in learned_by(begun, (0, 2))} == {"1", "3"}
