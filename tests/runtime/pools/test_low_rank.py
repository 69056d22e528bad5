"""Submodels with a product of small rank beside their weights."""

import pytest
import torch
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError, read_forced_pool_file
from paceline.runtime.pools.submodels import kept_name
from paceline.runtime.recording.model_info import model_info
from paceline.runtime.recording.recorder import _owner
from paceline.studies.agree import agree
from paceline.traces.meta import Sampling
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

VOCABULARY, WIDTH, INNER, RANK = 40, 32, 48, 3
SKIPPED = (1, 3)
LLAMA, QWEN2 = (LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)
UP_PROJ, NORM = "model.layers.2.mlp.up_proj", "model.layers.4.input_layernorm.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj"


def tensors(**changes):
    """Of layers 0, 2 and 4 that are kept of 5; changes by name, None takes one away."""
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape):
        return (0.1 * torch.randn(shape, generator=generator)).bfloat16()

    made = {
        f"{Q_PROJ}.A": drawn(RANK, WIDTH),
        f"{Q_PROJ}.B": drawn(WIDTH, RANK),
        f"{UP_PROJ}.A": drawn(RANK, WIDTH),
        f"{UP_PROJ}.B": drawn(INNER, RANK),
        NORM: 1 + drawn(WIDTH),
        "model.norm.weight": 1 + drawn(WIDTH),
        **changes,
    }
    return {name: tensor for name, tensor in made.items() if tensor is not None}


def written(folder, *, held=None, slim_keys="", target_keys="", family=LLAMA):
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    cls, config = family
    for name, num_layers in (("draft", 1), ("target", 5)):
        torch.manual_seed(num_layers)
        options = {
            "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER, "eos_token_id": 0,
            "num_hidden_layers": num_layers, "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None,
            "max_position_embeddings": 128, "initializer_range": 0.1, "tie_word_embeddings": True,
        }  # fmt: skip
        cls(config(**options)).save_pretrained(folder / name)
    save_file(tensors() if held is None else held, folder / "slim.safetensors")
    (folder / "pool.toml").write_text(
        'name = "p"\ntokenizer = "tokenizer.json"\ncontext_tokens = 96\n'
        '[[members]]\nname = "draft"\npath = "draft"\n'
        f'[[members]]\nname = "slim"\nsubmodel_of = "target"\nskip_layers = {list(SKIPPED)}\n'
        f'low_rank = "slim.safetensors"\n{slim_keys}'
        f'[[members]]\nname = "target"\npath = "target"\n{target_keys}',
        encoding="utf-8",
    )
    return folder


@pytest.mark.parametrize("family", [LLAMA, QWEN2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_the_targets_and_the_product_beside_them(tmp_path, family, dtype):
    pool = ModelPool.load(written(tmp_path, family=family, target_keys=f'dtype = "{dtype}"\n'))
    slim, target = pool.member("slim").model, pool.target.model
    given, number = tensors(), getattr(torch, dtype)
    theirs, own = dict(target.named_parameters()), dict(slim.named_parameters())
    for place, layer in enumerate((0, 2, 4)):
        for name in dict(slim.model.layers[0].named_parameters()):
            whole, kept = f"model.layers.{layer}.{name}", own[f"model.layers.{place}.{name}"]
            module = whole.removesuffix(".weight")
            if f"{module}.A" in given:
                product = given[f"{module}.B"].float() @ given[f"{module}.A"].float()
                assert torch.equal(kept, (theirs[whole].float() + product).to(number))
            elif whole in given:
                assert torch.equal(kept, given[whole].to(number))
            else:
                assert kept is theirs[whole]
    assert torch.equal(own["model.norm.weight"], given["model.norm.weight"].to(number))
    assert not torch.equal(theirs["model.norm.weight"], own["model.norm.weight"])
    assert slim.model.embed_tokens.weight is target.model.embed_tokens.weight
    for kind in ("fused", "modules"):  # either is compared with the model itself
        choose_forward(slim, kind=kind, share_weights=True, context_tokens=96)


def test_a_check_counts_what_is_not_shared(tmp_path):
    found = check_pool(written(tmp_path))
    assert found.works
    slim = found.members[1]
    assert slim.weight_bytes == 4 * (WIDTH * WIDTH + WIDTH * INNER + 2 * WIDTH)
    pool = ModelPool.load(tmp_path)
    assert slim.num_parameters == pool.member("slim").num_parameters
    text = (tmp_path / "pool.toml").read_text(encoding="utf-8")
    (tmp_path / "pool.toml").write_text(text.replace('low_rank = "slim.safetensors"\n', ""), encoding="utf-8")
    (plain,) = [member for member in check_pool(tmp_path).members if member.name == "slim"]
    assert (plain.weight_bytes, plain.num_parameters) == (0, slim.num_parameters)


def test_a_recording_says_that_its_weights_are_its_own(tmp_path):
    pool = ModelPool.load(written(tmp_path))
    slim = pool.member("slim")
    assert model_info(slim, submodel_of=_owner(pool, slim)).submodel_of is None


@pytest.mark.parametrize("sampling", [None, Sampling(mode="coupled", temperature=0.8, seed=5)])
def test_both_worlds_write_what_the_target_does(tmp_path, sampling):
    prompts = [f"w{token} w{token + 3}" for token in range(1, 7)]
    chains = ["draft:3/slim:2/target", "slim:3/target", "specrouter"]
    found = agree(written(tmp_path), prompts, chains, sampling=sampling, max_new_tokens=16, batch=2, reach=6)
    assert found.agree
    assert sum(policy.num_steps for policy in found.policies) > 100


def test_names_count_layers_of_the_whole_model():
    assert kept_name("model.layers.4.mlp.up_proj", (1, 3)) == "model.layers.2.mlp.up_proj"
    assert kept_name("model.layers.0.mlp", (1, 3)) == "model.layers.0.mlp"
    assert kept_name("model.layers.3.mlp", (1, 3)) == ""
    assert kept_name("model.norm", (1, 3)) == "model.norm"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({f"{UP_PROJ}.B": None}, f"must hold A and B of linear modules ({UP_PROJ}.B is missing)"),
        ({f"{UP_PROJ}.A": None}, f"({UP_PROJ}.B is none of a pair)"),
        ({f"{UP_PROJ}.A": torch.ones(3, 5)}, f"shapes that fit ({UP_PROJ}.A is 3 x 5, not 3 x {WIDTH})"),
        ({f"{UP_PROJ}.A": torch.ones(WIDTH)}, f"shapes that fit ({UP_PROJ}.A is {WIDTH}, not R x {WIDTH})"),
        ({f"{UP_PROJ}.B": torch.ones(INNER, 2)}, f"({UP_PROJ}.B is {INNER} x 2, not {INNER} x 3)"),
        ({NORM: torch.ones(5)}, f"({NORM} is 5, not {WIDTH})"),
        ({NORM: torch.ones(WIDTH, dtype=torch.int32)}, f"must hold floating-point tensors ({NORM} is int32)"),
        ({f"{UP_PROJ}.weight": torch.ones(INNER, WIDTH)}, f"of norms only ({UP_PROJ}.weight is of Linear)"),
        ({"model.norm.A": torch.ones(1, WIDTH)}, "of layers only (model.norm.A is of LlamaRMSNorm)"),
        ({"lm_head.A": torch.ones(1, WIDTH)}, "of layers only (lm_head.A is of Linear)"),
        ({"model.layers.3.mlp.up_proj.A": torch.ones(1, WIDTH)}, "(model.layers.3.mlp.up_proj.A is of none)"),
        ({"model.layers.5.mlp.up_proj.A": torch.ones(1, WIDTH)}, "(model.layers.5.mlp.up_proj.A is of none)"),
        ({"model.embed_tokens.weight": torch.ones(VOCABULARY, WIDTH)}, "(model.embed_tokens.weight is of Embedding)"),
        ({"other": torch.ones(1)}, "must hold tensors of layers that are kept (other is of none)"),
    ],
)
def test_tensors_that_do_not_fit_are_one_line(tmp_path, changes, complaint):
    written(tmp_path, held=tensors(**changes))
    for broken in (loading, checking):
        told = broken(tmp_path)
        assert f"{tmp_path / 'pool.toml'}: members[1].low_rank must hold" in told
        assert complaint in told
        assert told.endswith("got 'slim.safetensors'")
        assert "\n" not in told


def loading(folder):
    with pytest.raises(PoolFileError) as caught:
        ModelPool.load(folder)
    return str(caught.value)


def checking(folder):
    (told,) = check_pool(folder).members[1].problems
    return told


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "must be a safetensors file that can be read (no such file)"),
        (b"not one", "must be a safetensors file that can be read ("),
        ({}, "must hold at least one tensor"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path, content, complaint):
    written(tmp_path, held=content if isinstance(content, dict) else None)
    if content is None:
        (tmp_path / "slim.safetensors").unlink()
    elif isinstance(content, bytes):
        (tmp_path / "slim.safetensors").write_bytes(content)
    told = loading(tmp_path)
    assert f"members[1].low_rank {complaint}" in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"target_keys": 'low_rank = "slim.safetensors"\n'}, "members[2] may have low_rank only beside submodel_of"),
        ({"slim_keys": 'vocabulary = "said.json"\n'}, "members[1] may have a vocabulary only beside path"),
        ({"target_keys": 'tp_plan = "auto"\n'}, "members[1].low_rank must not be given for a submodel of a member"),
    ],
)
def test_keys_that_it_cannot_stand_beside_are_refused(tmp_path, changes, complaint):
    told = loading(written(tmp_path, **changes))
    assert complaint in told
    assert "\n" not in told


def test_prompt_lookup_has_none(tmp_path):
    file = written(tmp_path) / "pool.toml"
    ngram = '[[members]]\nname = "n"\nngram = { max_match = 2 }\nlow_rank = "slim.safetensors"\n'
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('[[members]]\nname = "draft"', f'{ngram}[[members]]\nname = "draft"'), "utf-8")
    assert "members[0] may have low_rank only beside submodel_of" in loading(tmp_path)


def test_a_forced_pool_has_none(tmp_path):
    (tmp_path / "pool.toml").write_text(
        'name = "p"\ncontext_tokens = 96\n[[members]]\nname = "slim"\nsubmodel_of = "target"\nskip_layers = [1]\n'
        'low_rank = "a.safetensors"\n[[members]]\nname = "target"\nconfig = "20M"\n',
        encoding="utf-8",
    )
    with pytest.raises(PoolFileError, match=r"members\[0\].low_rank must not stand in a forced pool"):
        read_forced_pool_file(tmp_path)
