"""A forced pool is made of its file alone, always the same, and anything wrong with the file is one line."""

import pytest
import torch
from paceline.runtime.caches import SlotCache
from paceline.runtime.forced import ForcedPool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError, is_forced_pool

from .forced_pools import MEMBERS, VOCABULARY, tiny_forced_pool, write_tiny_forced_pool

HEAD = 'name = "f"\ncontext_tokens = 64\n'


def weights(pool):
    return [parameter for member in pool.members if member.model is not None for parameter in member.model.parameters()]


def test_members_are_as_the_file_says(tmp_path):
    pool = tiny_forced_pool(tmp_path)
    assert tuple(member.name for member in pool.members) == MEMBERS
    assert [member.num_layers for member in pool.members] == [0, 1, 2, 3, 4]
    assert pool.vocab_size == VOCABULARY
    assert pool.tokenizer is None


def test_weights_follow_from_the_seed_and_nothing_else_is_drawn(tmp_path):
    state = torch.get_rng_state()
    ours, again = tiny_forced_pool(tmp_path), tiny_forced_pool(tmp_path)
    other = tiny_forced_pool(tmp_path, extra="seed = 7\n")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(weights(ours), weights(again), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(ours), weights(other), strict=True))
    assert all(torch.isfinite(weight).all() for weight in weights(ours))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_of_the_dtype_asked_for(tmp_path, dtype):
    folder = write_tiny_forced_pool(tmp_path)
    text = (folder / "pool.toml").read_text()
    (folder / "pool.toml").write_text(text.replace('.json"\n', f'.json"\ndtype = "{dtype}"\n'))
    pool = ForcedPool.load(folder)
    assert {member.dtype for member in pool.members} == {"none", dtype}


def test_a_vocabulary_may_be_given_to_all(tmp_path):
    assert tiny_forced_pool(tmp_path, extra="vocab_size = 64\n").vocab_size == 64


def test_a_forward_takes_any_token_id(tmp_path):
    forward = tiny_forced_pool(tmp_path).forward(4, "auto", share_weights=True)
    logits = []
    for ids in ([1, 2, VOCABULARY - 1], [VOCABULARY + 1, 3 * VOCABULARY + 2, -1]):
        cache = SlotCache(forward.kv_shape)
        logits.append(forward(torch.tensor(ids), cache.place(["a"], [3]), cache, slice(None)))
    assert torch.equal(*logits)


def test_a_forced_pool_is_known_by_its_file(tmp_path):
    assert is_forced_pool(write_tiny_forced_pool(tmp_path))
    (tmp_path / "pool.toml").write_text(HEAD + 'tokenizer = "t"\n[[members]]\nname = "a"\npath = "a"\n')
    assert not is_forced_pool(tmp_path)


def test_other_commands_refuse_a_forced_pool(tmp_path):
    folder = write_tiny_forced_pool(tmp_path)
    told = r"members\[1\].config makes this a forced pool, of random weights, which only profile and validate run"
    with pytest.raises(PoolFileError, match=told):
        ModelPool.load(folder)


def member(name, rest):
    return f'[[members]]\nname = "{name}"\n{rest}\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            member("a", 'config = "30M"'),
            r"members\[0\].config must be a config.json, its folder or a preset \(known are 20M,",
        ),
        (
            member("a", 'path = "a"') + member("b", 'config = "20M"'),
            r"members\[0\].path must not stand in a forced pool",
        ),
        (member("a", 'config = "20M"\npath = "a"'), r"exactly one of path, config, submodel_of and ngram, not 2"),
        (
            member("a", 'config = "150M"') + member("b", 'config = "20M"'),
            r"members\[1\] must stand in order of parameters",
        ),
        (
            member("a", 'config = "20M"') + member("b", 'config = "llama-3-8b"'),
            r"members\[0\] must have the target's vocabulary size \(128256\); `vocab_size` gives .*, got 32000",
        ),
        (member("a", 'config = "20M"\ndevice = "cuda:77"'), r"members\[0\].device must be a device of this machine"),
        (
            member("a", 'config = "llama-3.1-405b"'),
            r"device cpu must have 1,623,\d{3},\d{3},\d{3} bytes for the weights",
        ),
        (member("a", 'config = ""'), r"members\[0\].config string should have at least 1 character"),
        (member("a", 'config = "20M"\ntokenizer = "t"'), r"members\[0\] may have a tokenizer only beside path"),
        ('tokenizer = "t"\n' + member("a", 'config = "20M"'), r"tokenizer is not a known key"),
        ("seed = -1\n" + member("a", 'config = "20M"'), r"seed input should be greater than or equal to 0"),
        (member("a", "ngram = { max_match = 3 }"), r"members\[0\] must be the target, a model with a config"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_in_one_line(tmp_path, text, told):
    (tmp_path / "pool.toml").write_text(HEAD + text)
    with pytest.raises(PoolFileError, match=told) as refused:
        ForcedPool.load(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_context_beyond_the_positions_of_a_config_is_refused(tmp_path):
    with pytest.raises(PoolFileError, match="context_tokens must be <= 256, the positions of draft, got 257"):
        tiny_forced_pool(tmp_path, context_tokens=257)
