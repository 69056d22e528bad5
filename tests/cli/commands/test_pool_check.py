"""`paceline pool check` says before any weights are read what works, what does not, and what all of it needs."""

import json
from pathlib import Path

import pytest

from ...runtime.generation.chained_models import letters
from ...runtime.pools.window_pools import write_window_pool
from ..command_line import done, paceline, refused

MEASURED = ("num_parameters", "kv_bytes_per_token", "dtype", "kind")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A pool whose weights cannot be read."""
    pool = write_window_pool(tmp_path / "pool", "gemma2", letters().backend_tokenizer, dtype="bfloat16")
    (pool / "target" / "model.safetensors").write_bytes(b"no weights")
    return pool


def change(folder: Path, **values) -> None:
    file = folder / "target" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def checked(folder: Path) -> tuple[int, dict]:
    ran = paceline("pool", "check", folder, "--json", "check.json")
    assert ran.err == ""
    return ran.code, json.loads(Path("check.json").read_text())


def test_memory_beside_the_weights_is_said(tmp_path):
    """A fused forward may copy what it multiplies by; the embedding of an untied model it reads only."""
    pool = write_window_pool(tmp_path / "pool", "mistral-window", letters().backend_tokenizer)
    code, found = checked(pool)
    assert code == 0
    (need,) = found["devices"]
    table = 4 * json.loads((pool / "target" / "config.json").read_text())["hidden_size"] * len(letters())
    assert 0 < need["weight_bytes"] - need["copy_bytes"] - table < 0.1 * need["weight_bytes"]  # norms and biases
    assert need["choice_bytes"] == 64 * 2**20 + 140 * 10**6


def test_masks_that_only_loading_tries_are_said(tmp_path):
    """A family whose masks no test of ours compares with `generate()` is not called supported before it is loaded."""
    pool = write_window_pool(tmp_path / "pool", "olmo3", letters().backend_tokenizer)
    code, found = checked(pool)
    assert code == 0
    assert [member["masks_tried_at_load"] for member in found["members"]] == [False, True, True]
    last = " ".join(done("pool", "check", pool).split("\n\n")[-1].split())
    tried = "attention masks of target and skipped layers of draft are tried when weights are loaded"
    assert last.endswith(f"everything else is supported; {tried}")
    assert "everything is supported" not in last


def test_it_says_of_the_shipped_pool_what_loading_it_says():
    done("pool", "show", "--json", "show.json")
    done("pool", "check", "--json", "check.json")
    shown, found = (json.loads(Path(name).read_text())["members"] for name in ("show.json", "check.json"))
    for loaded, member in zip(shown[1:], found[1:], strict=True):
        assert {field: loaded[field] for field in MEASURED} == {field: member[field] for field in MEASURED}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"num_hidden_layers": "3"}, "num_hidden_layers must be a whole number from 1 to 1,000, got '3'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config must be absent"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder must be false"),
        ({"model_type": "mamba"}, "content must be a config that transformers reads"),
    ],
)
def test_what_is_not_supported_is_one_line_and_exit_1(folder, values, told):
    change(folder, **values)
    code, found = checked(folder)
    assert code == 1
    assert found["works"] is False
    problem = found["members"][2]["problems"][0]
    assert problem.startswith(f"{folder / 'target' / 'config.json'}: ")
    assert told in problem
    ran = paceline("pool", "check", folder)
    assert ran.code == 1
    assert problem in ran.out.splitlines()
    assert "this pool does not work" in ran.out


def test_everything_that_is_wrong_is_said_at_once(folder):
    change(folder, vocab_size=20)
    file = folder / "pool.toml"
    text = file.read_text().replace("skip_layers = [1]", "skip_layers = [9]").replace("= 96", "= 512")
    file.write_text(text.replace('dtype = "bfloat16"', 'dtype = "bfloat16"\ndevice = "cuda:77"'))
    code, found = checked(folder)
    problems = [*found["problems"], *(problem for member in found["members"] for problem in member["problems"])]
    assert code == 1
    for told in (
        "tokenizer must not have more tokens than the target (20), got 32",
        "members[1].skip_layers must be different layers of 0..2",
        "members[2].device must be a device of this machine (cpu",
    ):
        assert any(told in problem for problem in problems), told
    assert all("\n" not in problem for problem in problems)


def test_a_target_without_end_tokens_and_a_missing_tokenizer(folder):
    (folder / "target" / "generation_config.json").write_text("{}")
    (folder / "tokenizer.json").unlink()
    code, found = checked(folder)
    assert code == 1
    assert found["num_tokens"] is None
    assert any("generation_config.json: eos_token_id must name the tokens" in problem for problem in found["problems"])
    assert any("tokenizer must be an existing file" in problem for problem in found["problems"])


def test_a_pool_file_that_cannot_be_read_is_bad_input(tmp_path):
    assert "pool file must exist" in refused("pool", "check", tmp_path / "nowhere")
    (tmp_path / "pool.toml").write_text("name = 7")
    assert "pool.toml: name" in refused("pool", "check", tmp_path)
