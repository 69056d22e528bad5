"""The pool loads what its file says, and every fault in it is one clear line."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from paceline.runtime.forward import cache_argument
from paceline.runtime.pools.parts import make_submodel
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline_laboratory.training.pool import export_model, write_pool_file
from paceline_laboratory.training.recipe import read_recipe
from paceline_laboratory.training.training import make_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DynamicCache, LlamaForCausalLM

TEXT = "A paceline is a line of riders, each drafting behind the next."
HEAD = 'name = "p"\ntokenizer = "tokenizer.json"\ncontext_tokens = 512\n'
DRAFT = '[[members]]\nname = "draft"\npath = "draft"\n'
MID = '[[members]]\nname = "mid"\npath = "mid"\n'
NGRAM = '[[members]]\nname = "ngram"\nngram = { max_match = 3 }\n'
SLIM = '[[members]]\nname = "slim"\nsubmodel_of = "target"\nskip_layers = [1]\n'
TARGET = '[[members]]\nname = "target"\npath = "target"\n'
HUB_TARGET = TARGET.replace('path = "target"', 'path = "owner/name"')


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A pool of untrained models; never changed by a test."""
    folder = tmp_path_factory.mktemp("built")
    recipe = read_recipe("tiny")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary_size,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    for seed, (name, shape) in enumerate(recipe.shapes.items()):
        export_model(make_model(shape, recipe, seed=seed), folder / name)
    write_pool_file(recipe, folder / "pool.toml")
    return folder


@pytest.fixture(scope="module")
def loaded(built):
    return ModelPool.load(built)


@pytest.fixture
def folder(built, tmp_path):
    """A copy that a test may break."""
    shutil.copytree(built, tmp_path / "pool")
    return tmp_path / "pool"


def load_error(folder: Path, toml: str | None = None) -> PoolFileError:
    if toml is not None:
        (folder / "pool.toml").write_text(toml, encoding="utf-8")
    with pytest.raises(PoolFileError) as caught:
        ModelPool.load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return caught.value


def test_members_are_described(loaded):
    assert [(member.name, member.kind) for member in loaded.members] == [
        ("ngram", "ngram"),
        ("draft", "model"),
        ("mid", "model"),
        ("slim", "submodel"),
        ("target", "model"),
    ]
    target = loaded.target
    assert target.num_layers == 4
    assert target.hidden_size == 64
    assert target.kv_bytes_per_token == 2 * 4 * 64 * 4
    assert target.num_parameters == 400 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64
    assert target.dtype == "float32"
    assert loaded.member("ngram").lookup.max_match == 3
    assert loaded.eos_token_ids == (0,)
    assert loaded.context_tokens == 512


def test_file_and_folder_load_alike(built, loaded):
    again = ModelPool.load(built / "pool.toml")
    assert again.tokenizer_sha256 == loaded.tokenizer_sha256
    assert [member.num_parameters for member in again.members] == [member.num_parameters for member in loaded.members]


def test_models_are_ready_to_run(loaded):
    for member in loaded.members:
        if member.model is not None:
            assert not member.model.training
            assert not any(parameter.requires_grad for parameter in member.model.parameters())
            assert member.model.config._attn_implementation == "sdpa"


def test_text_survives_a_round_trip(loaded):
    assert loaded.decode(loaded.encode(TEXT)) == TEXT


def test_an_unknown_member_is_named(loaded):
    with pytest.raises(ValueError, match=r"one of ngram, draft, mid, slim, target, got 'big'"):
        loaded.member("big")


def test_threads_must_be_positive(built):
    with pytest.raises(ValueError, match="`threads` must be >= 1, got 0"):
        ModelPool.load(built, threads=0)


def test_submodel_shares_every_tensor(loaded):
    target, slim = loaded.target.model, loaded.member("slim").model
    owned = {parameter.data_ptr() for parameter in target.parameters()}
    assert {parameter.data_ptr() for parameter in slim.parameters()} < owned
    assert slim.model.layers[1].mlp.up_proj.weight is target.model.layers[2].mlp.up_proj.weight
    assert not any(buffer.is_meta for buffer in slim.buffers())


def test_submodel_leaves_gradients_as_they_are():
    recipe = read_recipe("tiny")
    model = make_model(recipe.target, recipe, seed=0)
    assert all(parameter.requires_grad for parameter in make_submodel(model, (1,)).parameters())
    model.requires_grad_(requires_grad=False)
    make_submodel(model, (1,))
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_submodel_computes_the_kept_layers(loaded):
    target, slim = loaded.target.model, loaded.member("slim").model
    tokens = torch.arange(1, 20)[None]
    every = target.model.layers
    target.model.layers = torch.nn.ModuleList(every[layer] for layer in (0, 2, 3))
    try:
        expected = target(input_ids=tokens, use_cache=False).logits
    finally:
        target.model.layers = every
    assert torch.equal(slim(input_ids=tokens, use_cache=False).logits, expected)


def test_submodel_has_its_own_cache(loaded):
    slim = loaded.member("slim").model
    tokens = torch.arange(1, 20)[None]
    cache = DynamicCache()
    slim(input_ids=tokens[:, :12], **{cache_argument(slim): cache})
    stepwise = slim(input_ids=tokens[:, 12:], **{cache_argument(slim): cache}).logits
    assert cache.get_seq_length() == 19
    assert len(cache.layers) == 3
    torch.testing.assert_close(stepwise, slim(input_ids=tokens, use_cache=False).logits[:, 12:])


def test_submodel_without_skipped_layers_is_the_model(loaded):
    target = loaded.target.model
    tokens = torch.arange(1, 20)[None]
    assert torch.equal(make_submodel(target, ())(input_ids=tokens).logits, target(input_ids=tokens).logits)


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        (HEAD + "speed = 3\n" + TARGET, r"speed is not a known key, got 3"),
        (HEAD + TARGET + "weight = 1\n", r"members\[0\]\.weight is not a known key, got 1"),
        (HEAD + "members = []\n", r"members must hold at least one member, got \[\]"),
        (HEAD, r"members must be given"),
        (HEAD + DRAFT + DRAFT + TARGET, r"members\[0\]\.name must be unique, got 'draft'"),
        (HEAD + TARGET + NGRAM, r"members\[1\]\.ngram only the first member may be model-free, got 'ngram'"),
        (HEAD + NGRAM, r"members\[0\] must be the target"),
        (HEAD + TARGET + SLIM, r"members\[1\] must be the target"),
        (HEAD + SLIM.replace('"target"', '"big"') + TARGET, r"submodel_of must be a member with a path .*got 'big'"),
        (HEAD + SLIM.replace("[1]", "[4]") + TARGET, r"members\[0\]\.skip_layers .*layers of 0\.\.3.*\(4,\)"),
        (HEAD + SLIM.replace("[1]", "[-1]") + TARGET, r"members\[0\]\.skip_layers\[0\] .*greater.*got -1"),
        (HEAD + SLIM.replace("[1]", "[1, 1]") + TARGET, r"members\[0\]\.skip_layers must not repeat a layer"),
        (HEAD + SLIM.replace("[1]", "[0, 1, 2, 3]") + TARGET, r"must leave at least one of 4 layers"),
        (HEAD + TARGET + "skip_layers = [1]\n", r"members\[0\] may have skip_layers only beside submodel_of"),
        (HEAD + SLIM + 'dtype = "bfloat16"\n' + TARGET, r"members\[0\] takes dtype and device from submodel_of"),
        (HEAD + TARGET + 'dtype = "int3"\n', r"members\[0\]\.dtype .*'float32'.*got 'int3'"),
        (
            HEAD + TARGET + 'device = "abacus"\n',
            r"members\[0\]\.device must be a device of this machine \(cpu.*\), got .abacus.",
        ),
        (HEAD + TARGET + 'device = "cuda:99"\n', r"members\[0\]\.device must be a device of this machine"),
        (HEAD + TARGET + 'device = "meta"\n', r"members\[0\]\.device must be a device of this machine"),
        (
            HEAD + '[[members]]\nname = "target"\n',
            r"members\[0\] must have exactly one of path, config, submodel_of and ngram",
        ),
        (HEAD + TARGET.replace('name = "target"', 'name = "a:b"'), r"members\[0\]\.name .*got 'a:b'"),
        (HEAD + NGRAM.replace("3", "0") + TARGET, r"members\[0\]\.ngram\.max_match .*got 0"),
        (
            HEAD + NGRAM.replace(" }", ", min_match = 4 }") + TARGET,
            r"members\[0\]\.ngram must have a min_match of at most max_match, 3, not 4",
        ),
        (
            HEAD + NGRAM.replace(" }", ', occurrence = "best" }') + TARGET,
            r"members\[0\]\.ngram\.occurrence .*'longest'.*got 'best'",
        ),
        (HEAD.replace("512", "513") + TARGET, r"context_tokens must be <= 512, the positions of target, got 513"),
        (HEAD + MID + DRAFT + TARGET, r"members\[1\] must stand in order of parameters .*got 'draft'"),
        (HEAD + DRAFT + NGRAM + TARGET, r"members\[1\]\.ngram only the first member may be model-free, got 'ngram'"),
        (HEAD + SLIM + MID + TARGET, r"members\[1\] must stand in order of parameters .*got 'mid'"),
        (HEAD + TARGET.replace('path = "target"', 'path = "gone"'), r"members\[0\]\.path must be an existing folder"),
        (HEAD.replace("tokenizer.json", "gone.json") + TARGET, r"tokenizer must be an existing file.*got 'gone.json'"),
        (HEAD.replace("tokenizer.json", "draft/config.json") + TARGET, r"tokenizer cannot be loaded"),
        ("name = ", r"pool file must be TOML in UTF-8"),
    ],
)
def test_a_fault_in_the_file_is_named(folder, toml, complaint):
    assert re.search(complaint, str(load_error(folder, toml)))


def test_a_missing_pool_file_is_named(tmp_path):
    with pytest.raises(PoolFileError, match="pool file must exist"):
        ModelPool.load(tmp_path)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_missing_model_file_is_named(folder, missing):
    (folder / "mid" / missing).unlink()
    assert f"holds {missing}" in str(load_error(folder))


def test_weights_cut_short_are_refused(folder):
    weights = folder / "mid" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    error = load_error(folder)
    assert error.field == "members[2].path"
    assert "cannot be loaded" in str(error)


def test_a_missing_weight_is_named(folder):
    weights = folder / "mid" / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    assert "model.norm.weight is missing" in str(load_error(folder))


def test_weights_of_another_shape_are_refused(folder):
    shutil.copy(folder / "mid" / "model.safetensors", folder / "draft" / "model.safetensors")
    error = load_error(folder)
    assert error.field == "members[1].path"
    assert "must hold weights of the shapes its config names (model." in str(error)


def test_a_table_with_fewer_rows_than_tokens_is_refused(folder):
    recipe = read_recipe("tiny")
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    model = make_model(recipe.shapes["draft"], recipe, seed=0)
    model.resize_token_embeddings(tokens - 1)
    export_model(model, folder / "draft")
    config = json.loads((folder / "draft" / "config.json").read_text(encoding="utf-8"))
    assert config["vocab_size"] == tokens - 1
    told = f"must have a row for each of the {tokens} tokens of the pool's tokenizer, or a `tokenizer` of its own"
    assert told in str(load_error(folder))


def test_a_tokenizer_with_too_many_tokens_is_refused(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"<extra{number}>" for number in range(400)])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert "not have more tokens than the target (400)" in str(load_error(folder))


def test_a_target_without_an_end_token_is_refused(folder):
    config_file = folder / "target" / "config.json"
    values = json.loads(config_file.read_text(encoding="utf-8"))
    values["eos_token_id"] = None
    config_file.write_text(json.dumps(values), encoding="utf-8")
    assert "eos_token_id" in str(load_error(folder))


def test_a_hub_id_that_cannot_be_reached_is_one_line(folder, monkeypatch):
    def refuse(*_args, **_settings):
        raise OSError("offline\nsecond line")

    monkeypatch.setattr("paceline.runtime.pools.configs.cached_file", refuse)
    assert "offline second line" in str(load_error(folder, HEAD + HUB_TARGET))


def test_a_hub_id_goes_to_the_hub_as_it_is(folder, built, monkeypatch):
    asked = []
    original = LlamaForCausalLM.from_pretrained

    def answer(location, **settings):
        asked.append(location)
        assert settings["trust_remote_code"] is False
        assert settings["use_safetensors"] is True
        return original(str(built / "target"), **settings)

    def stored(location, name, **settings):
        asked.append((location, name))
        return str(built / "target" / name) if (built / "target" / name).is_file() else None

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", answer)
    monkeypatch.setattr("paceline.runtime.pools.configs.cached_file", stored)
    (folder / "pool.toml").write_text(HEAD + HUB_TARGET, encoding="utf-8")
    assert ModelPool.load(folder).target.num_layers == 4
    assert asked == [("owner/name", "config.json"), ("owner/name", "generation_config.json"), "owner/name"]
