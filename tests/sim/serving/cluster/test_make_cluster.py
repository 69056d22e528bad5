"""What a file says is what replicas are: names, limits, costs, places."""

import json

import pytest
from paceline.sim.cost.by_name import make_cost
from paceline.sim.cost.files import FileCost
from paceline.sim.cost.roofline import device_sheet
from paceline.sim.serving.cluster import open_cluster
from paceline.sim.serving.limits import Admission, EngineLimits, KvLimits, OffloadedMember, Preemption, SharedPrefix
from paceline.sim.serving.replica import Transfer

from ...cost.timed_recordings import recording_of, request_of, shapes
from .small_pools import llamas

WHOLE = """
name = "two kinds"
horizon_s = 3600

[devices.my-l40s]
like = "l40s"
memory_bytes = 47.8e9

[router]
name = "prefix-affinity,least_share=0.25"
stale_s = 0.1

[[replicas]]
name = "chat"
count = 2
device = "h100"
policy = "draft:4/target"
max_num_seqs = 64
token_budget = 2048
block_tokens = 32
kv_blocks = 1000
memory_share = 0.8
activation_reserve_bytes = 3e9
drop_units = 1
preemption = "fewest-tokens"
admission = "estimate"
max_model_len = 8192

[replicas.members.draft]
max_model_len = 2048
device = "my-l40s"
block_tokens = 16
kv_blocks = 2000
prefix_cache = false

[[replicas]]
device = "h200"
shared_prefix = { least_rows = 2 }

[[replicas]]
device = "h200"
tensor_parallel = 2
cost = "mine.json"
"""
LINE = {"intercept_s": 0.01}


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"draft": LINE, "target": LINE}))
    (tmp_path / "whole.toml").write_text(WHOLE)
    return open_cluster(tmp_path / "whole.toml", llamas())


def test_every_key_of_the_file_is_read(cluster):
    assert [one.limits.shared_prefix for one in cluster.replicas[1:]] == [None, SharedPrefix(least_rows=2), None]
    assert (cluster.name, cluster.horizon_s, cluster.stale_s) == ("two kinds", 3600, 0.1)
    assert cluster.router.options == {"least_share": 0.25}
    chat = cluster.replicas[0]
    assert chat.policy == "draft:4/target"
    assert chat.limits == EngineLimits(
        max_num_seqs=64,
        token_budget=2048,
        kv={
            "target": KvLimits(num_blocks=1000, block_tokens=32, prefix_cache=True, drop_units=1),
            "draft": KvLimits(num_blocks=2000, block_tokens=16, prefix_cache=False),
        },
        preemption=Preemption.fewest_tokens,
        admission=Admission.estimate,
        max_model_len={"draft": 2048, "target": 8192},
    )
    assert chat.placement == {"draft": "my-l40s", "target": "h100"}
    lying = {memory.device: memory for memory in chat.memory}
    assert (lying["my-l40s"].memory_bytes, lying["my-l40s"].memory_share) == (47_800_000_000, 0.8)
    assert lying["h100"].reserve_bytes == 3_000_000_000


def test_replicas_are_counted_and_named(cluster):
    assert [replica.name for replica in cluster.replicas] == ["chat.0", "chat.1", "h200-1", "h200-2"]
    assert {name: len(found) for name, found in cluster.groups.items()} == {"chat": 2, "h200-1": 1, "h200-2": 1}
    assert cluster.replicas[0].cost is cluster.replicas[1].cost


def test_each_member_costs_what_its_own_device_takes(cluster):
    shape = {"num_rows": 3, "new_tokens": 12, "context_tokens": 900}
    placed = cluster.replicas[0].cost
    assert placed.forward_s("target", **shape) == make_cost("h100", llamas()).forward_s("target", **shape)
    # The bandwidth and the peak are those of the sheet's L40S; only the memory is the file's.
    assert placed.forward_s("draft", **shape) == make_cost("l40s", llamas()).forward_s("draft", **shape)
    assert placed.name == "draft on my-l40s, target on h100 (vllm)"


def test_a_drafter_on_a_device_of_its_own_costs_what_drafters_do(tmp_path):
    """Not what a target does, though it is the last member there; the group of its range is the target's."""
    path = tmp_path / "apart.toml"
    path.write_text('[[replicas]]\ndevice = "h100"\nmembers.draft = { device = "h200" }\n')
    for more in ((), ("target=qwen-3-30b-a3b",)):
        recording = llamas().with_shapes(more) if more else llamas()
        placed, beside = open_cluster(path, recording).replicas[0].cost, make_cost("h200", recording)
        costs = [(placed, beside), *zip(placed.ends(whole=True), beside.ends(whole=True), strict=True)]
        assert len(costs) == 5
        for new in (3, 12):
            shape = {"num_rows": 3, "new_tokens": new, "context_tokens": 900}
            for one, other in costs:
                assert one.forward_s("draft", **shape) == other.forward_s("draft", **shape)


def test_a_copy_costs_a_lookup_wherever_the_models_lie(tmp_path):
    path = tmp_path / "apart.toml"
    path.write_text('[[replicas]]\ndevice = "h100"\nmembers.eagle = { device = "h200" }\n')
    log = recording_of(request_of("a"), drafters=("ngram", "eagle"), models=shapes("eagle", "target"))
    placed, together = open_cluster(path, log).replicas[0].cost, make_cost("h100", log)
    for member in ("ngram", "eagle", "target"):
        assert placed.draft_terms(member) == together.draft_terms(member)
    assert placed.draft_terms("ngram").seconds(4, 1) > placed.lookup_s > 0
    assert placed.lookups_s(4) == together.lookups_s(4) > 4 * placed.lookup_s


def test_seconds_on_several_bare_devices_are_a_bound_only(tmp_path):
    path = tmp_path / "bare.toml"
    for device, other, bound in (("a10", "l40s", True), ("h100", "l40s", True), ("h100", "h200", False)):
        path.write_text(f'[[replicas]]\ndevice = "{device}"\nmembers.draft = {{ device = "{other}" }}\n')
        assert open_cluster(path, llamas()).replicas[0].cost.bound_only == bound


OFFLOADING = """
[[replicas]]
device = "h100"
tensor_parallel = 2
offload = { host_bytes = 64e9, bytes_per_s = 25e9 }
members.draft = { device = "l40s", block_tokens = 32 }
"""


def test_blocks_that_go_to_the_host(tmp_path):
    path = tmp_path / "host.toml"
    path.write_text(OFFLOADING)
    offload = open_cluster(path, llamas()).replicas[0].limits.offload
    assert offload.host_bytes == 64_000_000_000
    assert offload.members == {
        "draft": OffloadedMember(block_bytes=32 * 32_768, block_ps=20_971_520, device="l40s"),
        "target": OffloadedMember(block_bytes=16 * 131_072, block_ps=41_943_040, device="h100"),
    }


APART = """
[[replicas]]
name = "reads"
role = "prefill"
device = "h100"

[[replicas]]
name = "writes"
role = "decode"
count = 2
device = "h200"

[transfer]
bytes_per_s = 50e9
latency_s = 1e-5
"""


@pytest.mark.parametrize(
    ("more", "token_bytes"),
    [("", 131_072), ("kv_bytes_per_token = 70_000\n", 70_000), ("kv_bytes_per_token = 7e4\n", 70_000)],
)
def test_roles_and_the_link_between_them(tmp_path, more, token_bytes):
    path = tmp_path / "apart.toml"
    path.write_text(APART + more)
    found = open_cluster(path, llamas())
    assert [(replica.name, replica.role) for replica in found.replicas] == [
        ("reads", "prefill"),
        ("writes.0", "decode"),
        ("writes.1", "decode"),
    ]
    assert found.transfer == Transfer(bytes_per_s=50e9, latency_s=1e-5, token_bytes=token_bytes)


def test_replicas_that_decode_come_last_whatever_the_order_of_the_file(tmp_path):
    """Their cycles often begin as a prefill ends, and a transfer may take no time."""
    (reads, writes), link = APART.partition("\n[transfer]")[0].split("\n\n"), APART[APART.index("[transfer]") :]
    clusters = []
    for order in ((reads, writes), (writes, reads)):
        (tmp_path / "apart.toml").write_text("\n\n".join((*order, link)))
        clusters.append(open_cluster(tmp_path / "apart.toml", llamas()))
    one, other = ([replica.name for replica in cluster.replicas] for cluster in clusters)
    assert one == other == ["reads", "writes.0", "writes.1"]


def test_costs_of_files_lie_beside_the_cluster_file(cluster):
    split = cluster.replicas[3]
    assert isinstance(split.cost, FileCost)
    assert split.cost.forward_s("target", num_rows=1, new_tokens=1, context_tokens=0) == 0.01
    assert split.memory[0].memory_bytes == 2 * int(device_sheet()["h200"].memory_bytes)


def test_rooflines_are_split_where_members_are(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text('[[replicas]]\ndevice = "h100"\ntensor_parallel = 2\n')
    cost = open_cluster(path, llamas()).replicas[0].cost
    shape = {"num_rows": 1, "new_tokens": 8, "context_tokens": 100}
    assert cost.forward_s("target", **shape) == make_cost("h100", llamas(), tensor_parallel=2).forward_s(
        "target", **shape
    )
