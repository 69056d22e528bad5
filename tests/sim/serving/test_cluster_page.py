"""docs/cluster.md has every key of a cluster file with its default, and every router with its options."""

import re
from pathlib import Path

import pytest
from paceline.policies.chain_text import policy_options
from paceline.sim.serving.cluster_file import (
    ACTIVATION_RESERVE_BYTES,
    BLOCK_TOKENS,
    MEMORY_SHARE,
    ClusterContent,
    DeviceTable,
    MemberTable,
    OffloadTable,
    ReplicaTable,
    RouterTable,
    TransferTable,
)
from paceline.sim.serving.routers import own_routers

PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")


def section(heading):
    """What stands below a heading, up to the next one."""
    return re.split(r"^#+ ", PAGE.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("### The whole file", ClusterContent),
        ("### `[[replicas]]`", ReplicaTable),
        ("### `[[replicas]]`", MemberTable),
        ("### `[[replicas]]`", OffloadTable),
        ("### `[devices.NAME]`", DeviceTable),
        ("### `[router]`", RouterTable),
        ("### `[transfer]`", TransferTable),
    ],
)
def test_every_key_is_told(heading, table):
    told = " ".join(re.findall(r"`([^`]+)`", section(heading)))
    assert [key for key in table.model_fields if not re.search(rf"\b{key}\b", told)] == []


def test_defaults_are_those_of_the_code():
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", section("### `[[replicas]]`"), re.MULTILINE))
    assert float(rows["memory_share"]) == MEMORY_SHARE
    assert float(rows["activation_reserve_bytes"]) == ACTIVATION_RESERVE_BYTES
    assert int(rows["block_tokens"]) == BLOCK_TOKENS
    assert (int(rows["count"]), int(rows["tensor_parallel"])) == (1, 1)
    assert rows["prefix_cache"] == "true"


@pytest.mark.parametrize("name", sorted(own_routers()))
def test_every_router_is_told_with_its_options(name):
    (row,) = (line for line in section("## Routers").splitlines() if line.startswith(f"| `{name}` |"))
    assert set(re.findall(r"`(\w+)`", row.rpartition("|")[0].rpartition("|")[2])) == set(
        policy_options(own_routers()[name])
    )
