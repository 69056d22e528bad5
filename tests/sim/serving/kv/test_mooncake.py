"""Prefix hits of the Mooncake conversation trace: as its hashes say, and as a plain LRU has them.

Requests are taken in the order of the file, one after the other; the memory is one member's.
"""

import gzip
import json
from collections import OrderedDict
from functools import cache

import pytest
from paceline.sim.serving.limits import KvLimits
from paceline.sim.serving.memory import BlockKeys, MemberKv

from ....data_folder import data_files

FILES = data_files("mooncake_fast25", "conversation_trace.jsonl.gz")
UNIT = 512
UNLIMITED = 10**9
pytestmark = pytest.mark.skipif(not FILES, reason="no mooncake_fast25 in PACELINE_DATA")


@cache
def prompts():
    """(prompt_tokens, ids) of each request."""
    with gzip.open(FILES[0], "rt") as lines:
        return [(row["input_length"], tuple(row["hash_ids"])) for row in map(json.loads, lines)]


def hits_of(num_blocks, block_tokens=UNIT):
    kv = MemberKv(KvLimits(num_blocks=num_blocks, block_tokens=block_tokens))
    for serial, (prompt_tokens, ids) in enumerate(prompts()):
        keys = BlockKeys(ids, UNIT, block_tokens, prompt_tokens, serial)
        kv.open(serial, keys, prompt_tokens)
        assert kv.reserve(serial, prompt_tokens)
        kv.commit(serial, prompt_tokens, keys)
        kv.close(serial)
    assert kv.used_blocks == 0
    return kv.hits


def plain_lru(num_blocks):
    """(asked, found) full blocks: one queue of all, those of a request behind the others and its last one first."""
    cached = OrderedDict()
    asked = found = 0
    for prompt_tokens, ids in prompts():
        within = ids[: (prompt_tokens - 1) // UNIT]
        hit = next((n for n, one in enumerate(within) if one not in cached), len(within))
        for one in ids[:hit]:
            del cached[one]
        while cached and len(cached) + len(ids) > num_blocks:
            cached.popitem(last=False)
        full = ids[: prompt_tokens // UNIT]
        for one in reversed(full):
            cached[one] = None
            cached.move_to_end(one)
        asked += len(full)
        found += hit
    return asked, found


def test_unlimited_memory_finds_what_the_hashes_say():
    seen = set()
    asked = found = 0
    for prompt_tokens, ids in prompts():
        within = ids[: (prompt_tokens - 1) // UNIT]
        found += next((n for n, one in enumerate(within) if one not in seen), len(within))
        asked += prompt_tokens // UNIT
        seen.update(ids[: prompt_tokens // UNIT])
    hits = hits_of(UNLIMITED)
    assert (hits.asked_blocks, hits.found_blocks) == (asked, found)
    assert (hits.found_blocks, hits.asked_blocks) == (found, asked)
    assert hits.found_tokens == found * UNIT
    assert hits.asked_tokens == sum(prompt_tokens for prompt_tokens, _ in prompts())


# The table in docs/kv-memory.md.
FOUND = {1_000: 12_988, 10_000: 62_001, 50_000: 102_723, UNLIMITED: 105_592}


@pytest.mark.parametrize(("num_blocks", "found"), FOUND.items())
def test_limited_memory_finds_what_a_plain_lru_does(num_blocks, found):
    hits = hits_of(num_blocks)
    assert (hits.asked_blocks, hits.found_blocks) == plain_lru(num_blocks) == (276_491, found)


def test_smaller_blocks_find_all_that_units_do():
    assert hits_of(UNLIMITED, 16).found_tokens >= hits_of(UNLIMITED).found_tokens
