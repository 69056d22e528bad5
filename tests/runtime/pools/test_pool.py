"""The pool loads what its file says, and every fault in it is one clear line."""

import shutil

import pytest
import torch
from paceline.base.files import shipped
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.heads import read_head_tokens
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError, read_forced_pool_file, read_pool_file
from paceline.runtime.pools.published import SMOLLM2_135M
from paceline.runtime.pools.submodels import kept_name
from paceline.runtime.recording.model_info import model_info
from paceline.runtime.recording.recorder import _owner
from paceline.studies.agree import agree
from paceline.studies.setting import open_recording
from paceline.traces.meta import Sampling
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ...word_models import INNER, LLAMA, VOCABULARY, WIDTH, model, words
from ..conftest import EOS, random_llama
from . import head_pools
from .head_pools import PART, SAID, SHARES
from .making import NGRAM, at, change_json, slim, write

HEAD = 'name = "p"\ntokenizer = "tokenizer.json"\ncontext_tokens = 64\n'
DRAFT, MID, SLIM, TARGET = at("draft"), at("mid"), slim("slim", 1), at("target")
QWEN2 = (Qwen2ForCausalLM, Qwen2Config)
FAMILIES = pytest.mark.parametrize("family", [LLAMA, QWEN2], ids=["llama", "qwen2"])


@pytest.fixture(scope="module")
def built(tmp_path_factory, tiny_pool):
    """A pool of models that are not trained; never changed by a test."""
    models = {name: random_llama(count, num_layers=count) for name, count in (("draft", 1), ("mid", 2), ("target", 4))}
    members = NGRAM + DRAFT + MID + SLIM + TARGET
    return write(tmp_path_factory.mktemp("built"), tiny_pool.tokenizer, members, **models)


@pytest.fixture(scope="module")
def loaded(built):
    return ModelPool.load(built)


@pytest.fixture
def folder(built, tmp_path):
    """A copy that a test may break."""
    return shutil.copytree(built, tmp_path / "pool")


def load_error(folder) -> str:
    with pytest.raises(PoolFileError) as caught:
        ModelPool.load(folder)
    told = str(caught.value)
    assert "\n" not in told
    assert str(folder) in told
    return told


def test_members_are_described(built, loaded):
    assert [(member.name, member.kind) for member in loaded.members] == [
        ("ngram", "ngram"), ("draft", "model"), ("mid", "model"), ("slim", "submodel"), ("target", "model"),
    ]  # fmt: skip
    target = loaded.target
    assert (target.num_layers, target.hidden_size, target.dtype) == (4, 32, "float32")
    assert target.kv_bytes_per_token == 2 * 4 * 16 * 4
    assert target.num_parameters == 2 * 32 * 32 + 4 * (3 * 32 * 32 + 3 * 32 * 64 + 2 * 32) + 32
    assert loaded.member("ngram").lookup.max_match == 3
    assert (loaded.eos_token_ids, loaded.context_tokens) == ((EOS,), 64)
    assert loaded.decode(loaded.encode("a line of riders.")) == "a line of riders."
    again = ModelPool.load(built / "pool.toml")
    assert again.tokenizer_sha256 == loaded.tokenizer_sha256
    assert [member.num_parameters for member in again.members] == [member.num_parameters for member in loaded.members]


def test_models_are_ready_to_run(loaded):
    for member in loaded.members[1:]:
        assert not member.model.training
        assert not any(parameter.requires_grad for parameter in member.model.parameters())
        assert member.model.config._attn_implementation == "sdpa"
    target, slim_model = loaded.target.model, loaded.member("slim").model
    owned = {parameter.data_ptr() for parameter in target.parameters()}
    assert {parameter.data_ptr() for parameter in slim_model.parameters()} < owned
    assert slim_model.model.layers[1].mlp.up_proj.weight is target.model.layers[2].mlp.up_proj.weight


def test_arguments_that_are_refused(built, loaded, tmp_path):
    with pytest.raises(ValueError, match=r"one of ngram, draft, mid, slim, target, got 'big'"):
        loaded.member("big")
    with pytest.raises(ValueError, match="`threads` must be >= 1, got 0"):
        ModelPool.load(built, threads=0)
    with pytest.raises(
        PoolFileError, match=r"pool must be a folder with pool\.toml, such a file, or the name of a shipped pool"
    ):
        ModelPool.load(tmp_path)


DEVICES = r"members\[0\]\.device must be a device of this machine"
ONLY_FIRST = r"members\[1\]\.ngram only the first member may be model-free, got 'ngram'"


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        (HEAD + "speed = 3\n" + TARGET, r"speed is not a known key"),
        (HEAD + TARGET + "weight = 1\n", r"members\[0\]\.weight is not a known key"),
        (HEAD + "members = []\n", r"members must hold at least one member, got \[\]"),
        (HEAD, r"members must be given"),
        (HEAD + DRAFT + DRAFT + TARGET, r"members\[0\]\.name must be unique, got 'draft'"),
        (HEAD + TARGET + NGRAM, ONLY_FIRST),
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
        (HEAD + TARGET + 'device = "abacus"\n', DEVICES + r" \(cpu.*\), got .abacus."),
        (HEAD + TARGET + 'device = "cuda:99"\n', DEVICES),
        (HEAD + TARGET + 'device = "meta"\n', DEVICES),
        (
            HEAD + '[[members]]\nname = "target"\n',
            r"\[0\] must have exactly one of path, config, submodel_of and ngram",
        ),
        (HEAD + TARGET.replace('name = "target"', 'name = "a:b"'), r"members\[0\]\.name .*got 'a:b'"),
        (HEAD + NGRAM.replace("3", "0") + TARGET, r"members\[0\]\.ngram\.max_match .*got 0"),
        (
            HEAD + NGRAM.replace("3", "3, min_match = 4") + TARGET,
            r"ngram must have a min_match of at most .*, 3, not 4",
        ),
        (HEAD + NGRAM.replace("3", '3, occurrence = "a"') + TARGET, r"ngram\.occurrence .*'longest'.*got 'a'"),
        (HEAD + NGRAM + 'low_rank = "a"\n' + TARGET, r"members\[0\] may have low_rank only beside submodel_of"),
        (HEAD.replace("64", "257") + TARGET, r"context_tokens must be <= 256, the positions of target, got 257"),
        (HEAD + MID + DRAFT + TARGET, r"members\[1\] must stand in order of parameters .*got 'draft'"),
        (HEAD + DRAFT + NGRAM + TARGET, ONLY_FIRST),
        (HEAD + SLIM + MID + TARGET, r"members\[1\] must stand in order of parameters .*got 'mid'"),
        (HEAD + TARGET.replace('path = "target"', 'path = "gone"'), r"members\[0\]\.path must be an existing folder"),
        (HEAD.replace("tokenizer.json", "gone.json") + TARGET, r"tokenizer must be an existing file.*got 'gone.json'"),
        (HEAD.replace("tokenizer.json", "draft/config.json") + TARGET, r"tokenizer cannot be loaded"),
        ("name = ", r"pool file must be TOML in UTF-8"),
    ],
)
def test_a_fault_in_the_file_is_named(folder, toml, complaint):
    (folder / "pool.toml").write_text(toml, encoding="utf-8")
    with pytest.raises(PoolFileError, match=complaint):
        ModelPool.load(folder)
    load_error(folder)


def without_norm(folder):
    weights = folder / "mid" / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})


def cut_short(folder):
    weights = folder / "mid" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def of_another_shape(folder):
    shutil.copy(folder / "mid" / "model.safetensors", folder / "draft" / "model.safetensors")
    change_json(folder / "draft" / "config.json", intermediate_size=48)


def with_fewer_rows(folder):
    random_llama(1, num_layers=1, vocab_size=31).save_pretrained(folder / "draft")


def with_many_tokens(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def with_a_token_id_beyond_its_rows(folder):
    Tokenizer(WordLevel({"a": 0, "b": 40}, unk_token="a")).save(str(folder / "tokenizer.json"))


def without_an_end(folder):
    change_json(folder / "target" / "config.json", eos_token_id=None)
    change_json(folder / "target" / "generation_config.json", eos_token_id=None)


@pytest.mark.parametrize(
    ("breaking", "complaint"),
    [
        (lambda folder: (folder / "mid" / "config.json").unlink(), "holds config.json"),
        (lambda folder: (folder / "mid" / "model.safetensors").unlink(), "holds model.safetensors"),
        (cut_short, "members[2].path cannot be loaded"),
        (without_norm, "model.norm.weight is missing"),
        (of_another_shape, "members[1].path must hold weights of the shapes its config names (model."),
        (with_fewer_rows, "must have a row for each of the 32 tokens of the pool's tokenizer, or a `tokenizer` of its"),
        (with_many_tokens, "not have more tokens than the target (32)"),
        (with_a_token_id_beyond_its_rows, "not have more tokens than the target (32), got 41"),
        (without_an_end, "eos_token_id"),
    ],
)
def test_files_that_do_not_fit(folder, breaking, complaint):
    breaking(folder)
    assert complaint in load_error(folder)


def test_a_hub_id_goes_to_the_hub_as_it_is(folder, built, monkeypatch):
    asked = []
    original = LlamaForCausalLM.from_pretrained

    def refuse(*_args, **_settings):
        raise OSError("offline\nsecond line")

    def answer(location, **settings):
        asked.append(location)
        assert settings["trust_remote_code"] is False
        assert settings["use_safetensors"] is True
        return original(str(built / "target"), **settings)

    def stored(location, name, **settings):
        asked.append((location, name))
        return str(built / "target" / name) if (built / "target" / name).is_file() else None

    (folder / "pool.toml").write_text(HEAD + TARGET.replace('path = "target"', 'path = "owner/name"'), encoding="utf-8")
    monkeypatch.setattr("paceline.runtime.pools.hub.get_hf_file_metadata", lambda *_args, **_settings: None)
    monkeypatch.setattr("paceline.runtime.pools.tokenizer_files.cached_file", refuse)
    assert "offline second line" in load_error(folder)
    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", answer)
    monkeypatch.setattr("paceline.runtime.pools.tokenizer_files.cached_file", stored)
    assert ModelPool.load(folder).target.num_layers == 4
    assert asked == [("owner/name", "config.json"), ("owner/name", "generation_config.json"), "owner/name"]


@pytest.mark.parametrize(
    ("hub_id", "way"),
    [
        ("owner/name", "and its cache has none, got 'owner/name'"),
        (SMOLLM2_135M.hub_id, "; `paceline pool fetch smollm2` gets its weights without the hub, got"),
    ],
)
def test_a_hub_that_does_not_answer_is_asked_once(folder, built, monkeypatch, tmp_path, hub_id, way):
    """Transformers would ask six times for each file; what is in the hub's cache needs no asking."""
    asked = []

    def unreachable(url, **_settings):
        asked.append(url)
        raise OSError("no such\nname")

    monkeypatch.setattr("paceline.runtime.pools.hub.get_hf_file_metadata", unreachable)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    for field, text in (("path", 'path = "target"'), ("tokenizer", 'tokenizer = "tokenizer.json"')):
        found = HEAD + TARGET
        assert text in found
        (folder / "pool.toml").write_text(found.replace(text, f'{field} = "{hub_id}"'), encoding="utf-8")
        told = load_error(folder)
        assert f"{field} cannot be loaded: the model hub does not answer (no such name)" in told
        assert way in told
    assert len(asked) == 2
    cached = str(built / "target" / "config.json")
    monkeypatch.setattr("paceline.runtime.pools.hub.try_to_load_from_cache", lambda _location, _name: cached)
    monkeypatch.setattr(
        "paceline.runtime.pools.tokenizer_files.AutoTokenizer.from_pretrained", lambda *_args, **_settings: 1 / 0
    )
    assert "division by zero" in load_error(folder)
    assert len(asked) == 2


def check_agree(folder, chains, **given):
    """On prompts of a word or two; both worlds write what the target does."""
    prompts = [f"w{token} w{token + 3}" for token in range(1, 7)]
    found = agree(folder, prompts, chains, max_new_tokens=16, batch=2, **given)
    assert found.agree
    assert sum(policy.num_steps for policy in found.policies) > 100


SAMPLINGS = pytest.mark.parametrize("sampling", [None, Sampling(mode="coupled", temperature=0.7, top_k=20, seed=5)])


class TestHeads:
    """Drafters that say a part of the vocabulary, by the embeddings of their target."""

    @pytest.mark.parametrize("tied", [True, False])
    @FAMILIES
    def test_logits_are_those_of_the_targets_head_and_nothing_for_other_tokens(self, tmp_path, tied, family):
        pool = ModelPool.load(head_pools.written(tmp_path, tied=tied, family=family))
        draft, target = pool.member("draft").model, pool.target.model
        tokens = torch.arange(12)[None]
        with torch.inference_mode():
            logits = draft(input_ids=tokens, use_cache=False).logits
            expected = target.lm_head(draft.model(input_ids=tokens, use_cache=False).last_hidden_state)
        others = sorted(set(range(VOCABULARY)) - set(SAID))
        torch.testing.assert_close(logits[..., SAID], expected[..., SAID])
        assert (logits[..., others] == -torch.inf).all()
        assert draft.model.embed_tokens is target.model.embed_tokens
        for kind in ("fused", "modules"):  # either is compared with the model itself
            choose_forward(draft, kind=kind, share_weights=True, context_tokens=64)

    def test_only_what_a_forward_reads_counts(self, tmp_path):
        draft = ModelPool.load(head_pools.written(tmp_path)).member("draft")
        layers = sum(weight.numel() for weight in draft.model.model.layers.parameters()) + WIDTH
        assert draft.num_parameters == layers + len(SAID) * WIDTH
        found = check_pool(tmp_path)
        assert found.works
        assert found.members[0].num_parameters == draft.num_parameters
        assert found.members[0].head_tokens == len(SAID)
        assert found.members[0].weight_bytes == 4 * (layers + len(SAID) * WIDTH)

    def test_embeddings_may_be_shared_whole_also_by_a_submodel(self, tmp_path):
        more = '[[members]]\nname = "slim"\nsubmodel_of = "draft"\nskip_layers = []\n'
        pool = ModelPool.load(head_pools.written(tmp_path / "whole", draft_keys=SHARES, more=more))
        draft, slim_model, head = pool.member("draft"), pool.member("slim").model, pool.target.model.lm_head
        tokens = torch.arange(6)[None]
        assert torch.equal(slim_model(input_ids=tokens).logits, draft.model(input_ids=tokens).logits)
        assert draft.model.lm_head is head
        assert slim_model.model.embed_tokens.weight is pool.target.model.model.embed_tokens.weight
        weight_bytes = check_pool(tmp_path / "whole").members[0].weight_bytes
        assert weight_bytes == 4 * (draft.num_parameters - VOCABULARY * WIDTH)
        assert "submodel_of must not be a member that says only a part" in load_error(
            head_pools.written(tmp_path / "part", more=more)
        )

    @pytest.mark.parametrize(("part", "tied"), [(PART, True), (PART, False), ("", True), ("", False)])
    def test_a_narrower_format_has_rounded_copies(self, tmp_path, part, tied):
        keys = SHARES + part + 'dtype = "bfloat16"\n'
        pool = ModelPool.load(head_pools.written(tmp_path, draft_keys=keys, tied=tied))
        draft, target = pool.member("draft").model, pool.target.model
        assert {weight.dtype for weight in draft.parameters()} == {torch.bfloat16}
        assert {weight.dtype for weight in target.parameters()} == {torch.float32}
        for own, whole in ((draft.model.embed_tokens, target.model.embed_tokens), (draft.lm_head, target.lm_head)):
            rows = whole.weight[SAID] if part and own is draft.lm_head else whole.weight
            assert torch.equal(own.weight, rows.bfloat16())
        if not part:
            assert (draft.lm_head.weight is draft.model.embed_tokens.weight) == tied
        for kind in ("fused", "modules"):
            choose_forward(draft, kind=kind, share_weights=True, context_tokens=64)
        found = check_pool(tmp_path).members[0]
        assert found.num_parameters == pool.member("draft").num_parameters
        held = {weight.data_ptr(): weight.numel() for weight in draft.parameters()}
        assert found.weight_bytes == 2 * sum(held.values())

    def test_a_model_with_embeddings_of_its_own_may_say_a_part(self, tmp_path):
        pool = ModelPool.load(head_pools.written(tmp_path, draft_keys=PART, has_embeddings=True))
        logits = pool.member("draft").model(input_ids=torch.arange(4)[None]).logits
        assert logits.isfinite().sum().item() == 4 * len(SAID)

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"has_embeddings": True}, "embeddings_of must be absent where the weights have embeddings of their own"),
            ({"draft_keys": PART}, "must hold every weight ("),
            ({"hidden_size": 16}, "embeddings_of must be a member of the same hidden size (16), got 'target'"),
            ({"draft_keys": 'embeddings_of = "nobody"\n'}, "embeddings_of must be a member with a path and embeddings"),
            ({"draft_keys": 'vocabulary = "none.json"\n', "has_embeddings": True}, "must be a file that can be read"),
            ({"draft_keys": SHARES + PART + 'tokenizer = "tokenizer.json"\n'}, "may not have both"),
            ({"said": "{}"}, "vocabulary must be a list of token ids, got an object"),
            ({"said": "[1, 1]"}, "ascending order, each once, got 1 at place 1"),
            ({"said": "[1, 40]"}, "below 40 in ascending order, each once, got 40 at place 1"),
            ({"said": "[1, true]"}, "got True at place 1"),
            ({"said": "[1]"}, "vocabulary must hold 2 to 39 of 40 tokens, got 1"),
            ({"said": "["}, "vocabulary"),
        ],
    )
    def test_faults_are_one_line(self, tmp_path, changes, complaint):
        assert complaint in load_error(head_pools.written(tmp_path, **changes))

    def test_the_target_says_every_token(self, tmp_path):
        file = head_pools.written(tmp_path) / "pool.toml"
        file.write_text(file.read_text(encoding="utf-8") + PART, encoding="utf-8")
        assert "vocabulary must not be given for the target" in load_error(tmp_path)

    @SAMPLINGS
    def test_both_worlds_take_the_same_steps(self, tmp_path, sampling):
        folder = head_pools.written(tmp_path, initializer_range=0.1)
        check_agree(folder, ["draft:3/target", "svip,most=6"], sampling=sampling)


RANK = 3
UP_PROJ, NORM = "model.layers.2.mlp.up_proj", "model.layers.4.input_layernorm.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj"
EMBEDDING = "model.embed_tokens.weight"


def low_rank_tensors(**changes):
    """Of layers 0, 2 and 4 that are kept of 5; changes by name, None takes one away."""
    generator = torch.Generator().manual_seed(7)
    shapes = {
        f"{Q_PROJ}.A": (RANK, WIDTH), f"{Q_PROJ}.B": (WIDTH, RANK), f"{UP_PROJ}.A": (RANK, WIDTH),
        f"{UP_PROJ}.B": (INNER, RANK), NORM: (WIDTH,), "model.norm.weight": (WIDTH,),
    }  # fmt: skip
    drawn = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made = {name: (each + (each.dim() == 1)).bfloat16() for name, each in drawn.items()} | changes
    return {name: tensor for name, tensor in made.items() if tensor is not None}


def low_rank_pool(folder, *, held=None, slim_keys="", target_keys="", family=LLAMA):
    draft, target = (model(n, num_layers=n, family=family, initializer_range=0.1) for n in (1, 5))
    made = slim("slim", 1).replace("[1]", "[1, 3]") + 'low_rank = "slim.safetensors"\n' + slim_keys
    write(folder, words(), at("draft") + made + at("target") + target_keys, draft=draft, target=target)
    save_file(low_rank_tensors() if held is None else held, folder / "slim.safetensors")
    return folder


class TestLowRank:
    """Submodels with a product of small rank beside their weights."""

    @FAMILIES
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_weights_are_the_targets_and_the_product_beside_them(self, tmp_path, family, dtype):
        pool = ModelPool.load(low_rank_pool(tmp_path, family=family, target_keys=f'dtype = "{dtype}"\n'))
        slim_model, target = pool.member("slim").model, pool.target.model
        given, number = low_rank_tensors(), getattr(torch, dtype)
        theirs, own = dict(target.named_parameters()), dict(slim_model.named_parameters())
        for place, layer in enumerate((0, 2, 4)):
            for name in dict(slim_model.model.layers[0].named_parameters()):
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
        assert slim_model.model.embed_tokens.weight is target.model.embed_tokens.weight
        for kind in ("fused", "modules"):  # either is compared with the model itself
            choose_forward(slim_model, kind=kind, share_weights=True, context_tokens=64)
        assert model_info(pool.member("slim"), submodel_of=_owner(pool, pool.member("slim"))).submodel_of is None

    def test_a_check_counts_what_is_not_shared(self, tmp_path):
        found = check_pool(low_rank_pool(tmp_path))
        assert found.works
        held = found.members[1]
        assert held.weight_bytes == 4 * (WIDTH * WIDTH + WIDTH * INNER + 2 * WIDTH)
        assert held.num_parameters == ModelPool.load(tmp_path).member("slim").num_parameters
        file = tmp_path / "pool.toml"
        file.write_text(file.read_text().replace('low_rank = "slim.safetensors"\n', ""))
        plain = check_pool(tmp_path).members[1]
        assert (plain.weight_bytes, plain.num_parameters) == (0, held.num_parameters)

    @SAMPLINGS
    def test_both_worlds_write_what_the_target_does(self, tmp_path, sampling):
        chains = ["draft:3/slim:2/target", "slim:3/target", "specrouter"]
        check_agree(low_rank_pool(tmp_path), chains, sampling=sampling, reach=6)

    def test_names_count_layers_of_the_whole_model(self):
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
            ({EMBEDDING: torch.ones(VOCABULARY, WIDTH)}, f"({EMBEDDING} is of Embedding)"),
            ({"other": torch.ones(1)}, "must hold tensors of layers that are kept (other is of none)"),
        ],
    )
    @pytest.mark.one_in(3)
    def test_tensors_that_do_not_fit_are_one_line(self, tmp_path, changes, complaint):
        low_rank_pool(tmp_path, held=low_rank_tensors(**changes))
        for told in (load_error(tmp_path), *check_pool(tmp_path).members[1].problems):
            assert f"{tmp_path / 'pool.toml'}: members[1].low_rank must hold" in told
            assert complaint in told
            assert told.endswith("got 'slim.safetensors'")
            assert "\n" not in told
        assert len(check_pool(tmp_path).members[1].problems) == 1

    def test_a_file_that_is_none_is_one_line(self, tmp_path):
        low_rank_pool(tmp_path, held={})
        assert "members[1].low_rank must hold at least one tensor" in load_error(tmp_path)
        (tmp_path / "slim.safetensors").write_bytes(b"not one")
        assert "members[1].low_rank must be a safetensors file that can be read (" in load_error(tmp_path)
        (tmp_path / "slim.safetensors").unlink()
        assert "must be a safetensors file that can be read (no such file)" in load_error(tmp_path)

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"target_keys": 'low_rank = "slim.safetensors"\n'}, "members[2] may have low_rank only beside submodel_"),
            ({"slim_keys": PART}, "members[1] may have a vocabulary only beside path"),
            ({"target_keys": 'tp_plan = "auto"\n'}, "members[1].low_rank must not be given for a submodel of a member"),
        ],
    )
    def test_keys_that_it_cannot_stand_beside_are_refused(self, tmp_path, changes, complaint):
        assert complaint in load_error(low_rank_pool(tmp_path, **changes))

    def test_a_forced_pool_has_none(self, tmp_path):
        (tmp_path / "pool.toml").write_text(
            f'name = "p"\ncontext_tokens = 96\n{SLIM}low_rank = "a.safetensors"\n'
            '[[members]]\nname = "target"\nconfig = "20M"\n'
        )
        with pytest.raises(PoolFileError, match=r"members\[0\].low_rank must not stand in a forced pool"):
            read_forced_pool_file(tmp_path)


def test_members_of_the_shipped_pools_are_those_of_the_files():
    """Small files that fit together."""
    files = [each for name in ("smollm2", "smollm2-feature") for each in shipped("pools", name).rglob("*.safetensors")]
    assert len(files) == 4
    assert sum(each.stat().st_size for each in files) <= 40e6
    for name in ("smollm2", "smollm2-feature"):
        file, content = read_pool_file(shipped("pools", name))
        assert content.name == name
        for entry in content.members:
            assert entry.low_rank is None or (file.parent / entry.low_rank).is_file()
            if entry.vocabulary is None:
                continue
            num_layers = AutoConfig.from_pretrained(file.parent / entry.path).num_hidden_layers
            with safe_open(file.parent / entry.path / "model.safetensors", "pt") as weights:
                held = set(weights.keys())
            assert read_head_tokens(file.parent / entry.vocabulary, 49_152)
            downs = {f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(num_layers)}
            assert {key for key in held if "down_proj" in key} == downs
            assert ("fc.weight" in held) == (entry.features_of is not None)


def test_shipped_recordings_are_of_four_tasks():
    _, content = read_pool_file(shipped("pools", "smollm2"))
    sizes = 0
    for name in ("smollm2", "smollm2-coupled"):
        recording = open_recording(name)
        assert list(recording.meta.model_names) == [entry.name for entry in content.members if entry.ngram is None]
        assert recording.meta.ngram is not None
        assert len(recording.requests) >= 40
        assert len({request.tag for request in recording.requests}) == 4
        sizes += sum(each.stat().st_size for each in shipped("recordings", f"{name}.trace").iterdir())
    assert sizes <= 16e6
