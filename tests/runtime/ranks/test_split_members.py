"""A pool whose larger models are split over two processes writes what one process writes, in every process alike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.configs import read_member_config
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.prompts import Prompt
from paceline.runtime.ranks import check_split

from ..pools.making import NGRAM, at, slim, stock, write
from .decode_split import NUM_TOKENS, TEXTS, decoded

pytest.importorskip("accelerate")  # the extra `parallel`

ROOT = Path(__file__).parents[3]
GREEDY = {"mode": "greedy"}
COUPLED = {"mode": "coupled", "temperature": 0.7, "seed": 3}
REJECTION = {"mode": "rejection", "temperature": 0.8, "seed": 5}
RUNS = (
    ("plain", GREEDY, 2, "slots"),
    ("draft:2/mid:4/target", GREEDY, 3, "mask"),
    ("ngram:2/slim:4/target", COUPLED, 3, "slots"),
    ("draft:3/slim:3/target", REJECTION, 2, "slots"),
    ("specrouter", COUPLED, 3, "slots"),
)


@pytest.fixture(scope="module")
def pools(tiny_pool, tmp_path_factory):
    """Folders of one pool: `split` and `whole`."""
    home = tmp_path_factory.mktemp("pools")
    for kind in ("split", "whole"):
        plan = 'tp_plan = "auto"\n' if kind == "split" else ""
        members = NGRAM + at("draft") + at("mid") + plan + slim("slim", 2) + at("target") + plan
        write(home / kind, tiny_pool.tokenizer, members, name=kind)
        for name in ("draft", "mid", "target"):
            model = tiny_pool.member(name).model
            # Other tests may have laid its weights out as views.
            whole = {key: weight.contiguous() for key, weight in model.state_dict().items()}
            model.save_pretrained(home / kind / name, state_dict=whole)
    return home


def python(*words, **options):
    """Run with one thread; `words` as after `python`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    command = [sys.executable, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, **options)


def seen_in(pools, out, runs):
    """What both processes saw."""
    done = python(str(Path(__file__).with_name("decode_split.py")), str(pools / "split"), str(out), json.dumps(runs))
    assert done.returncode == 0, done.stderr
    return [json.loads((out / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


@pytest.fixture(scope="module")
def seen(pools, tmp_path_factory):
    return seen_in(pools, tmp_path_factory.mktemp("seen"), RUNS)


@pytest.fixture(scope="module")
def whole(pools):
    return ModelPool.load(pools / "whole")


@pytest.mark.slow
def test_two_processes_write_what_one_and_generate_write(pools, seen, whole):
    for index, run in enumerate(RUNS):
        expected, _ = decoded(whole, *run)
        assert [rank["runs"][index]["tokens"] for rank in seen] == [expected, expected], run
    prompts = [Prompt(request_id=text, text=text) for text in TEXTS]
    assert seen[0]["runs"][0]["tokens"] == stock(whole, pools / "whole", prompts, num_tokens=NUM_TOKENS)


@pytest.mark.slow
def test_both_processes_see_the_same_operations_and_seconds(seen):
    first, second = seen
    for one, other in zip(first["runs"], second["runs"], strict=True):
        assert one["ops"] == other["ops"]
        assert one["ops"]
        assert all(duration_s > 0 for *_, duration_s in one["ops"])
        assert set(one["forward"].values()) == {"modules"}


def test_each_process_holds_its_heads_and_members_are_as_large_as_ever(pools, whole, tmp_path):
    for rank in seen_in(pools, tmp_path, []):
        assert rank["heads"] == [2, 1, 1, 1], "of draft, mid, slim and target"
        for member in whole.members:
            share = 1 if member.name in ("ngram", "draft") else 2
            assert rank["kv_bytes_per_token"][member.name] * share == member.kv_bytes_per_token
            assert rank["num_parameters"][member.name] == member.num_parameters


def test_a_split_member_needs_several_processes(pools):
    with pytest.raises(PoolFileError, match=r"members\[2\]\.tp_plan needs two processes or more .*, got 1$"):
        ModelPool.load(pools / "split")


def ran(pools, *words, policy="draft:2/target"):
    (pools / "prompts.jsonl").write_text(
        "".join(json.dumps({"id": str(index), "prompt": text}) + "\n" for index, text in enumerate(TEXTS))
    )
    run = (
        "run",
        "--prompts",
        "prompts.jsonl",
        "--pool",
        "split",
        "--policy",
        policy,
        "--max-new-tokens",
        str(NUM_TOKENS),
    )
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return python(*torchrun, "-m", "paceline", *run, *words, cwd=pools)


def errors(done):
    return [line for line in done.stderr.splitlines() if line.startswith("paceline: error: ")]


@pytest.mark.slow
def test_only_the_first_process_prints_and_writes(pools, seen):
    done = ran(pools, "--json", "-", "--out", "out")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert [row["tokens"] for row in printed["outputs"]] == seen[0]["runs"][0]["tokens"]
    assert printed["meta"]["processes"] == 2
    assert len((pools / "out" / "outputs.jsonl").read_text(encoding="utf-8").splitlines()) == len(TEXTS)
    assert done.stderr.count("2 processes run the pool together, all models by their own modules") == 1


POLICY = """
import os, signal
from paceline.policies import Draft, Verify
from paceline.policies.fixed import Plain

class Odd(Plain):
    asked = 0

    def decide(self, seen):
        self.asked += 1
        if self.asked == 12 and os.environ["RANK"] == "1":
            {deed}
        return super().decide(seen)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("raise ValueError('enough')", "enough"),
        ("return Draft('draft', 1)", "but rank 1 would do something else than rank 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "another process of torchrun has ended, or does not answer"),
    ],
)
def test_a_process_that_goes_wrong_ends_all_with_one_line(pools, deed, told):
    (pools / "odd.py").write_text(POLICY.format(deed=deed), encoding="utf-8")
    done = ran(pools, "--out", "odd", policy="odd.py:Odd")
    assert done.returncode != 0
    assert len(errors(done)) == 1
    assert told in errors(done)[0]
    assert "RuntimeError" not in done.stderr
    assert not (pools / "odd").exists()


@pytest.mark.slow
def test_what_every_process_finds_wrong_is_said_once(pools):
    done = ran(pools, policy="draft:2/large")
    assert done.returncode != 0
    assert len(errors(done)) == 1
    assert "large" in errors(done)[0]


def test_a_split_pool_is_checked_without_processes(pools):
    found = check_pool(pools / "split")
    assert found.works
    assert [member.device for member in found.members] == ["none", "cpu", *["cpu, split"] * 3]
    (need,) = found.devices
    assert need.device == "cpu"
    assert need.weight_bytes == found.members[1].weight_bytes, "of the member that is whole"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('tp_plan = "rows"', r"members\[4\]\.tp_plan input should be 'auto', got 'rows'"),
        ('tp_plan = "auto"\ndevice = "cuda:1"', r"members\[4\]\.device must be (cpu|cuda) in several processes"),
    ],
)
def test_what_is_said_of_a_split_that_cannot_be(pools, monkeypatch, line, told):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    text = (pools / "whole" / "pool.toml").read_text(encoding="utf-8")
    file = pools / "whole" / "other.toml"
    file.write_text(text + line + "\n", encoding="utf-8")
    with pytest.raises(PoolFileError, match=told):
        ModelPool.load(file)


@pytest.mark.parametrize(
    ("changes", "num_ranks", "told"),
    [
        ({}, 3, "tp_plan needs a model whose num_attention_heads can be divided by 3 processes, got 4"),
        ({}, 4, "tp_plan needs a model whose num_key_value_heads can be divided by 4 processes, got 2"),
        ({"base_model_tp_plan": None}, 2, "tp_plan must be left out for a model whose own plan does not split"),
    ],
)
def test_models_that_cannot_be_split_so(pools, whole, changes, num_ranks, told):
    found = read_member_config(pools / "whole" / "pool.toml", "members[4].path", "target", context_tokens=64)
    for name, value in changes.items():
        setattr(found.config, name, value)
    with pytest.raises(PoolFileError, match=told):
        check_split(pools, "members[4]", found, num_ranks)
