"""`paceline pool search-slim`: what it prints, what it writes, and what it refuses."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from paceline.runtime.pools.pool import ModelPool

from ..command_line import done, refused
from ..untrained_pool import write_untrained_pool


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A pool of untrained models with prompts; its target has four layers and `slim` leaves one out."""
    folder = tmp_path_factory.mktemp("built")
    write_untrained_pool(folder)
    return folder


@pytest.fixture
def pool(built, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(built, tmp_path / "pool")


def search(pool, *options):
    return ("pool", "search-slim", pool, "--max-new-tokens", 4, "--trials", 4, *options)


def members(file: Path):
    return {member["name"]: member for member in tomllib.loads(file.read_text(encoding="utf-8"))["members"]}


def test_a_member_per_share_is_put_into_the_pool_file(pool):
    printed = done(*search(pool, "--share", 0.5, "--share", 0.25))
    assert "8 masks tried on 12 tokens of 3 prompts" in printed
    assert "slim50, slim25 written" in printed
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("│")][-1] == "target"
    after = members(pool / "pool.toml")
    assert list(after) == ["ngram", "draft", "mid", "slim50", "slim", "slim25", "target"]
    assert after["slim50"]["submodel_of"] == "target"
    assert len(after["slim50"]["skip_layers"]) == 2
    loaded = ModelPool.load(pool)
    assert loaded.member("slim50").num_layers == 2
    assert sorted(path.name for path in pool.iterdir()) == [
        "draft",
        "mid",
        "pool.toml",
        "prompts.jsonl",
        "target",
        "tokenizer.json",
    ]


def test_the_default_share_is_that_of_the_paper(pool):
    done(*search(pool))
    assert len(members(pool / "pool.toml")["slim45"]["skip_layers"]) == 2


def test_figures_for_programs(pool):
    told = json.loads(done(*search(pool, "--share", 0.5, "--seed", 3, "--limit", 2, "--json", "-")))
    assert (told["prompts"], told["seed"], told["trials"], told["random_trials"]) == (2, 3, 4, 1)
    assert told["target"]["num_layers"] == 4
    assert told["num_tokens"] == 8
    (found,) = told["found"]
    (slim,) = told["baselines"]
    assert (found["name"], slim["name"], slim["how"]) == ("slim50", "slim", "pool")
    assert slim["skip_layers"] == [1]
    assert found["seconds_share"] == pytest.approx(found["seconds"] / told["target"]["seconds"])
    assert members(pool / "pool.toml")["slim50"]["skip_layers"] == found["skip_layers"]
    again = json.loads(done(*search(pool, "--share", 0.5, "--seed", 3, "--limit", 2, "--json", "-", "--replace")))
    for field in ("skip_layers", "tvd", "disagreement", "how"):
        assert again["found"][0][field] == found[field]


def test_names_that_are_taken_need_replace(pool):
    done(*search(pool, "--share", 0.5))
    before = (pool / "pool.toml").read_bytes()
    assert "--replace" in refused(*search(pool, "--share", 0.5))
    assert (pool / "pool.toml").read_bytes() == before
    done(*search(pool, "--share", 0.5, "--replace", "--seed", 1))
    assert list(members(pool / "pool.toml")) == ["ngram", "draft", "mid", "slim50", "slim", "target"]


def test_another_file_in_another_folder_loads(pool, tmp_path):
    before = (pool / "pool.toml").read_bytes()
    (tmp_path / "kept").mkdir()
    printed = done(*search(pool, "--share", 0.5, "--out", tmp_path / "kept" / "slim.toml"))
    assert "slim.toml: slim50 written" in printed
    assert (pool / "pool.toml").read_bytes() == before
    loaded = ModelPool.load(tmp_path / "kept" / "slim.toml")
    assert [member.name for member in loaded.members] == ["ngram", "draft", "mid", "slim50", "slim", "target"]


def test_a_link_to_the_pool_file_stays_one(pool):
    (pool / "real.toml").write_bytes((pool / "pool.toml").read_bytes())
    (pool / "pool.toml").unlink()
    (pool / "pool.toml").symlink_to("real.toml")
    done(*search(pool, "--share", 0.5))
    assert (pool / "pool.toml").is_symlink()
    assert "slim50" in members(pool / "real.toml")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--share", 0), "share must be in (0, 1), got 0"),
        (("--share", 0.1), "leave out at least one of 4 layers and keep one, got 0.1, which rounds to 0"),
        (("--share", 0.9), "leave out at least one of 4 layers and keep one, got 0.9, which rounds to 4"),
        (("--share", 0.5, "--share", 0.45), "must leave out another number of layers than slim50 (2 of 4), got 0.45"),
        (("--random-trials", 0), "random_trials must be 1 to trials (4), got 0"),
        (("--prompts", "none.jsonl"), "none.jsonl: No such file or directory"),
        (("--out", "pool"), "--out must name a file, got the folder pool"),
        (("--out", "nowhere/slim.toml"), "--out nowhere/slim.toml: no folder nowhere"),
        (("--out", "other.toml"), "--out other.toml: exists already, and is not the pool file"),
        (("--json", "nowhere/slim.json"), "nowhere/slim.json: no folder nowhere"),
        (("--json", "pool/pool.toml"), "--json must be a file of its own, got 'pool/pool.toml'"),
        (("--out", "s", "--json", "./s"), "--json must be a file of its own, got 's'"),
        (("--max-new-tokens", 600), "must fit into the pool's context of 512 tokens"),
    ],
)
def test_bad_input_changes_nothing(pool, tmp_path, options, told):
    (tmp_path / "other.toml").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert told in refused(*search(pool, *options))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_pool_without_prompts_of_its_own_needs_some(pool):
    (pool / "prompts.jsonl").unlink()
    told = refused(*search(pool))
    assert told == "--prompts must be given for a pool without prompts.jsonl beside its file, got none"


@pytest.mark.parametrize("named", [(), ("pico",)])
def test_the_shipped_pool_is_not_written_to(named):
    told = refused("pool", "search-slim", *named, "--trials", 2)
    assert told.startswith("--out must name another file than the shipped pool's, got ")


def test_a_member_that_is_no_submodel_is_never_replaced(pool):
    text = (pool / "pool.toml").read_text(encoding="utf-8").replace('name = "mid"', 'name = "slim45"')
    (pool / "pool.toml").write_text(text, encoding="utf-8")
    assert "must be a submodel of target to be replaced, got 'slim45'" in refused(*search(pool, "--replace"))


def test_a_pool_that_does_not_load_is_told_by_its_loader(pool):
    shutil.rmtree(pool / "target")
    assert "members[4].path must be an existing folder or a hub id" in refused(*search(pool))
