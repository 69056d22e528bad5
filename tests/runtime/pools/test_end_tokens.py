"""Several end-of-sequence tokens: `run` and `record` end an answer where `generate()` does, wherever the ids stand."""

import json
from pathlib import Path

import pytest
import torch
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.recorder import record
from paceline.sim import Scenario, TrieTables, simulate
from paceline.sim.recorded import recorded_pool
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Closure, Sampling
from transformers import AutoModelForCausalLM

from ...unit_cost import UnitCost
from ..conftest import ALPHABET, random_llama

NUM_TOKENS = 24
GREEDY = Sampling(mode="greedy")
PROMPTS = tuple(
    Prompt(request_id=f"r{row}", text=text)
    for row, text in enumerate(("a", "hello there", "the cat, the ca", "we go!"))
)
POOL_FILE = """name = "ends"
tokenizer = "tokenizer.json"
context_tokens = 64

[[members]]
name = "ngram"
ngram = { max_match = 3 }

[[members]]
name = "draft"
submodel_of = "target"
skip_layers = [2]

[[members]]
name = "target"
path = "target"
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory, tiny_pool) -> Path:
    """A pool on disk; never changed by a test."""
    folder = tmp_path_factory.mktemp("ends")
    tiny_pool.tokenizer.save(str(folder / "tokenizer.json"))
    random_llama(11).save_pretrained(folder / "target")
    (folder / "target" / "generation_config.json").unlink()
    (folder / "pool.toml").write_text(POOL_FILE, encoding="utf-8")
    return folder


@pytest.fixture
def pool_folder(written, tmp_path) -> Path:
    folder = tmp_path / "pool"
    (folder / "target").mkdir(parents=True)
    for name in ("pool.toml", "tokenizer.json", "target/model.safetensors"):
        (folder / name).symlink_to(written / name)
    (folder / "target" / "config.json").write_text((written / "target" / "config.json").read_text())
    return folder


def say(folder: Path, *, config: object, generation: object = "no file") -> None:
    """Name end tokens in the target's files; the word `nothing` leaves the field out."""
    values = json.loads((folder / "target" / "config.json").read_text())
    (folder / "target" / "config.json").write_text(json.dumps(values | {"eos_token_id": config}))
    if generation != "no file":
        content = {} if generation == "nothing" else {"eos_token_id": generation}
        (folder / "target" / "generation_config.json").write_text(json.dumps(content))


def stock(folder: Path, tokens: list[int]) -> list[int]:
    """What `generate()` of transformers answers."""
    model = AutoModelForCausalLM.from_pretrained(str(folder / "target"), dtype=torch.float32)
    ids = torch.tensor([tokens])
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False)
    return answer[0, len(tokens) :].tolist()


def ran(pool: ModelPool, policy: str) -> list[list[int]]:
    built = make_policy(policy, loaded_pool(pool))
    outputs, _ = decode(pool, built, PROMPTS, sampling=GREEDY, max_new_tokens=NUM_TOKENS, name=policy, batch=2)
    assert {output.finish_reason for output in outputs} <= {"eos", "length"}
    return [list(output.tokens) for output in outputs]


def frequent(folder: Path) -> list[int]:
    """Two tokens that free answers hold early, so that ending at either is another text."""
    say(folder, config=ALPHABET.index("z"))
    pool = ModelPool.load(folder)
    answers = ran(pool, "plain")
    return [answers[1][2], answers[2][4]]


@pytest.mark.parametrize("place", ["config", "generation", "generation over config"])
def test_run_record_and_replay_end_where_generate_does(pool_folder, tmp_path, place):
    ends = frequent(pool_folder)
    if place == "config":
        say(pool_folder, config=ends)
    elif place == "generation":
        say(pool_folder, config=None, generation=ends)
    else:  # generate() then does not stop at what config.json names
        say(pool_folder, config=[ALPHABET.index("z"), ends[0]], generation=ends[1])
    pool = ModelPool.load(pool_folder)
    wanted = [stock(pool_folder, pool.encode(prompt.text)) for prompt in PROMPTS]
    assert any(len(answer) < NUM_TOKENS for answer in wanted)
    closure = Closure(kind="monotone", reach=6, run=4)
    record(
        pool,
        PROMPTS,
        sampling=GREEDY,
        closure=closure,
        max_new_tokens=NUM_TOKENS,
        out=tmp_path / "ends.trace",
    )
    trace = read_trace(tmp_path / "ends.trace")
    assert (
        set(trace.meta.eos_token_ids)
        == set(pool.eos_token_ids)
        == set(ends if place != "generation over config" else ends[1:])
    )
    assert [trie.token[trie.trunk[1:]].tolist() for trie in (record.trie for record in trace.requests)] == wanted
    for policy in ("plain", "draft:4/target", "ngram:3/draft:2/target"):
        assert ran(pool, policy) == wanted
        tokens: dict[str, list[int]] = {}
        members = recorded_pool(trace)
        scenario = Scenario(tables=TrieTables(trace), cost=UnitCost())
        simulate(scenario, make_policy(policy, members), policy, outputs=tokens)
        assert [tokens[prompt.request_id] for prompt in PROMPTS] == wanted


def test_old_rule_would_have_gone_on(pool_folder):
    """The second end matters: without it answers are longer."""
    ends = frequent(pool_folder)
    say(pool_folder, config=ends)
    both = ran(ModelPool.load(pool_folder), "plain")
    say(pool_folder, config=ends[0])
    assert sum(map(len, ran(ModelPool.load(pool_folder), "plain"))) > sum(map(len, both))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("wrong", ["x", 10**9, len(ALPHABET), True, -1, 1.5, [0, "x"], [0, -1], [[0]], {"a": 0}])
def test_what_is_no_id_is_one_line(pool_folder, wrong, file):
    if file == "config.json":
        say(pool_folder, config=wrong)
    else:
        say(pool_folder, config=0, generation=wrong)
    with pytest.raises(PoolFileError) as caught:
        ModelPool.load(pool_folder)
    assert str(caught.value) == f"{pool_folder / 'target' / file}: eos_token_id must be ids from 0 to 31, got {wrong!r}"


@pytest.mark.parametrize("generation", [None, "nothing", []])
def test_a_target_whose_generate_never_stops_is_refused(pool_folder, generation):
    say(pool_folder, config=0, generation=generation)
    with pytest.raises(PoolFileError, match=r"generation_config\.json: eos_token_id must name the tokens .*, got None"):
        ModelPool.load(pool_folder)
