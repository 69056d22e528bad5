"""Blocks are what memory holds: the hand calculations of docs/cluster.md, and what holds for any pool."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.roofline import device_sheet
from paceline.sim.serving.cluster import open_cluster
from paceline.sim.serving.cluster_file import MemberTable, MemoryRuleError, ReplicaTable, device_memory
from paceline.sim.serving.limits import KvWindow
from paceline.traces.meta import ModelInfo, Windowed
from paceline.traces.shapes import presets

from .small_pools import LLAMA_1B, LLAMA_8B, llamas, recording_of


def test_one_h100_with_a_draft_model_by_hand():
    """The first calculation of docs/cluster.md, figure by figure."""
    memory = open_cluster("h100", llamas()).replicas[0].memory[0]
    usable = 80_000_000_000 * 92 // 100
    assert memory.usable_bytes == usable == 73_600_000_000
    weights = {member.name: member.weights_bytes for member in memory.members}
    assert weights == {"draft": 2 * 1_235_814_400, "target": 2 * 8_030_261_248}
    free = usable - 2_471_628_800 - 16_060_522_496 - 2_000_000_000
    assert free == 53_067_848_704
    token_bytes = 2 * 16 * 8 * 64 * 2 + 2 * 32 * 8 * 128 * 2  # keys and values, layers, heads, size, bytes
    assert token_bytes == 32_768 + 131_072
    blocks = free // (16 * token_bytes)
    assert blocks == 20_243
    assert {member.name: member.kv.num_blocks for member in memory.members} == {"draft": blocks, "target": blocks}
    assert memory.spare_bytes == free - blocks * 16 * token_bytes


def test_what_vllm_logged_of_one_a100():
    """Its log: 79.14 GiB x 0.90, weights 14.99, beside them 0.12 + 1.19, the rest 54.93 GiB."""
    table = ReplicaTable(memory_share=0.9, activation_reserve_bytes=(0.12 + 1.19) * 2**30)
    device = device_sheet()["a100"]
    memory = device_memory(replace(device, memory_bytes=79.14 * 2**30), table, ["target"], {"target": LLAMA_8B})
    logged = 54.93 * 2**30 / 131_072
    assert memory.members[0].kv.num_tokens == pytest.approx(logged, rel=0.001)


dtypes = st.sampled_from(["float32", "bfloat16", "float16"])
members = st.lists(
    st.tuples(
        st.integers(1, 10**9),
        st.integers(0, 10**5),
        dtypes,
        st.sampled_from([1, 8, 16, 24, 32, 48]),
        st.one_of(st.none(), st.integers(1, 50)),
    ),
    min_size=1,
    max_size=4,
)


@given(
    found=members, share=st.floats(0.01, 1), reserve=st.just(0) | st.integers(10**6, 10**9), parallel=st.integers(1, 4)
)
def test_what_is_computed_fits_and_one_block_more_would_not(found, share, reserve, parallel):
    shapes, tables = {}, {}
    for number, (parameters, kv_bytes, dtype, block_tokens, blocks) in enumerate(found):
        name = f"m{number}"
        shapes[name] = ModelInfo(
            name=name, parameters=parameters, layers=1, hidden_size=1, kv_bytes_per_token=kv_bytes, dtype=dtype
        )
        tables[name] = MemberTable(block_tokens=block_tokens, kv_blocks=blocks)
    table = ReplicaTable(
        memory_share=share, activation_reserve_bytes=float(reserve), tensor_parallel=parallel, members=tables
    )
    try:
        memory = device_memory(device_sheet()["rtx4090"], table, list(shapes), shapes)
    except MemoryRuleError:
        return
    computed = [member for member in memory.members if not member.given]
    assert all(member.kv.num_blocks == tables[member.name].kv_blocks for member in memory.members if member.given)
    assert memory.weights_bytes + memory.kv_bytes <= memory.memory_bytes
    if computed:
        assert memory.spare_bytes >= 0
        assert len({member.kv.num_tokens for member in computed}) == 1
        most = max(member.kv.block_tokens for member in computed)
        a_group = 48 * 5 * sum(member.shape.kv_bytes_per_token for member in computed)  # 240: of any of these sizes
        assert memory.spare_bytes < max(a_group, most)


def test_submodels_share_the_weights_of_their_model():
    slim = LLAMA_8B.model_copy(
        update={"name": "slim", "submodel_of": "target", "kv_bytes_per_token": 65_536, "parameters": 4_000_000_000}
    )
    memory = open_cluster("h100", recording_of(slim, LLAMA_8B)).replicas[0].memory[0]
    assert [member.weights_bytes for member in memory.members] == [0, 2 * 8_030_261_248]
    assert memory.weights_bytes == 2 * 8_030_261_248


def test_tensor_parallel_adds_memory_and_reserve_device_by_device():
    table = ReplicaTable(tensor_parallel=2)
    memory = device_memory(device_sheet()["rtx4090"], table, ["target"], {"target": LLAMA_8B})
    assert memory.usable_bytes == 2 * 23_230_000_000
    assert memory.reserve_bytes == 2 * 2_000_000_000
    assert memory.members[0].kv.num_blocks == (46_460_000_000 - 16_060_522_496 - 4_000_000_000) // (16 * 131_072)


def test_devices_beyond_the_heads_of_keys_and_values_hold_the_same_ones():
    """Qwen3-235B has four: on eight devices, two hold each, so that a token takes twice the bytes."""
    shape, tokens = presets()["qwen-3-235b-a22b"].info("target"), {}
    for count in (4, 8):
        table = ReplicaTable(tensor_parallel=count)
        memory = device_memory(device_sheet()["b200"], table, ["target"], {"target": shape})
        free = memory.usable_bytes - memory.weights_bytes - memory.reserve_bytes
        tokens[count] = memory.members[0].kv.num_tokens / (free / shape.kv_bytes_per_token)
        assert memory.kv_bytes <= free
    assert tokens == {4: pytest.approx(1, rel=1e-4), 8: pytest.approx(1 / 2, rel=1e-4)}


def test_layers_with_a_window_are_groups_of_layers_by_hand():
    """Gemma 3 27B on an H100: 10 layers attend to all, 52 are 6 groups of 10, the last one filled up."""
    layer_bytes = 2 * 16 * 128 * 2  # keys and values, heads, size, bytes
    memory = open_cluster("h100", recording_of(presets()["gemma-3-27b"].info("target"))).replicas[0].memory[0]
    free, member = memory.usable_bytes - memory.weights_bytes - memory.reserve_bytes, memory.members[0]
    assert member.kv.num_blocks == free // (16 * 10 * layer_bytes)
    assert member.kv.window == KvWindow(tokens=1024, whole=1, near=6, most_new=8192)
    # A chunk of 8,192 tokens and 1,023 before it are in 577 blocks at most, wherever they begin.
    assert member.kv.longest_text == (member.kv.num_blocks - 6 * 577) * 16
    assert memory.kv_bytes == member.kv.num_blocks * 16 * 10 * layer_bytes


@pytest.mark.parametrize(("gibibytes", "tokens"), [(109.86, 205_696), (35.31, 66_112)])
def test_what_vllm_logged_of_gemma_3_27b(gibibytes, tokens):
    """Two logs: memory that is available for keys and values, and tokens; of the first also 50.05 texts of 4,096."""
    shape = presets()["gemma-3-27b"].info("target")
    device = replace(device_sheet()["h200"], memory_bytes=shape.weights_bytes + gibibytes * 2**30)
    table = ReplicaTable(memory_share=1.0, activation_reserve_bytes=0)
    (member,) = device_memory(device, table, ["target"], {"target": shape}).members
    assert member.kv.num_tokens == pytest.approx(tokens, rel=2e-4)
    if tokens == 205_696:  # read in one step, so that no group has given up any
        assert member.kv.num_blocks / (4096 // 16 + 6 * (4096 // 16 + 1)) == pytest.approx(50.05, abs=0.01)


@pytest.mark.parametrize(
    ("near", "layers", "groups", "filled"),
    [(12, 24, (1, 1), 24), (13, 25, (1, 1), 26), (32, 32, (0, 1), 32), (29, 34, (1, 6), 35)],
)
def test_groups_of_layers_are_those_of_vllm(near, layers, groups, filled):
    """Of the smaller number of layers of a kind, or of the larger one if it is less than half as large again."""
    windowed = Windowed(layers=near, tokens=512)
    shape = LLAMA_8B.model_copy(update={"layers": layers, "kv_bytes_per_token": layers * 64, "windowed": windowed})
    (member,) = device_memory(device_sheet()["h100"], ReplicaTable(), ["target"], {"target": shape}).members
    assert (member.kv.window.whole, member.kv.window.near) == groups
    assert member.token_bytes == filled * 64


def test_beside_a_model_with_windows_members_hold_the_same_texts():
    """gpt-oss 20B, two groups of 12 layers, and Llama 3.2 1B: of a text of 1,024 tokens 64 + 9 blocks, and 64."""
    models = [LLAMA_1B, presets()["gpt-oss-20b"].info("target")]
    draft, target = open_cluster("h100", recording_of(*models)).replicas[0].memory[0].members
    assert target.kv.num_blocks / draft.kv.num_blocks == pytest.approx((64 + 9) / 64, rel=1e-4)


@pytest.mark.parametrize(
    ("key", "table", "shape", "said"),
    [
        ("device", {}, {"parameters": 13 * 10**9}, "must hold the weights of its members in 25,250,000,000 bytes"),
        (
            "memory_share",
            {"memory_share": 0.7},
            {},
            "must leave room for a block of target on rtx4090: 2,097,152 bytes",
        ),
        ("kv_blocks", {"kv_blocks": 4500}, {}, "must fit rtx4090 beside the weights: 25,250,000,000 bytes hold"),
        ("kv_blocks", {}, {"kv_bytes_per_token": 0}, "must be given on rtx4090: no token takes memory of target"),
        ("members.target", {}, {"dtype": "int4"}, "must be of weights in float32, bfloat16, float16"),
    ],
    ids=["weights", "no block", "given", "no bytes", "dtype"],
)
def test_what_does_not_fit_is_refused(key, table, shape, said):
    with pytest.raises(MemoryRuleError) as refused:
        device_memory(
            device_sheet()["rtx4090"],
            ReplicaTable(**table),
            ["target"],
            {"target": LLAMA_8B.model_copy(update=shape)},
        )
    assert refused.value.key == key
    assert said in refused.value.rule


def test_a_shape_nobody_knows_needs_given_blocks():
    device = device_sheet()["rtx4090"]
    with pytest.raises(MemoryRuleError, match="the shape of draft is not known"):
        device_memory(device, ReplicaTable(), ["draft", "target"], {"target": LLAMA_8B})
    given_blocks = device_memory(device, ReplicaTable(kv_blocks=7), ["draft", "target"], {"target": LLAMA_8B})
    assert [member.kv.num_blocks for member in given_blocks.members] == [7, 7]


def test_a_member_that_never_runs_leaves_its_memory_to_the_others():
    """Llama 3.2 1B and 3.1 8B on an H100: without the draft the target has all that is free."""
    whole = open_cluster("h100", llamas()).replicas[0]
    alone = whole.running(frozenset({"target"}))
    free = 73_600_000_000 - 16_060_522_496 - 2_000_000_000
    assert [member.name for member in alone.memory[0].members] == ["target"]
    assert alone.memory[0].members[0].kv.num_blocks == free // (16 * 131_072) == 26_483
    assert alone.limits.kv == {"target": alone.memory[0].members[0].kv}
    assert whole.running(None) is whole
    assert whole.running(frozenset({"draft", "target"})).memory == whole.memory


def test_a_submodel_keeps_the_weights_of_a_model_that_never_runs():
    mid = LLAMA_8B.model_copy(update={"name": "mid"})
    slim = LLAMA_8B.model_copy(update={"name": "slim", "submodel_of": "mid", "parameters": 4_000_000_000})
    whole = open_cluster("h100", recording_of(slim, mid, LLAMA_8B)).replicas[0]
    running = whole.running(frozenset({"slim", "target"})).memory[0]
    assert {member.name: member.weights_bytes for member in running.members} == {
        "slim": 2 * 8_030_261_248,
        "target": 2 * 8_030_261_248,
    }
    assert running.spare_bytes >= 0


def test_the_policy_of_a_table_says_which_members_lie_on_it(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[[replicas]]\ndevice = "h100"\nmax_model_len = 8192\nmembers.draft = { max_model_len = 2048 }\n')
    drafting = open_cluster(path, llamas()).replicas[0].limits
    assert drafting.max_model_len == {"draft": 2048, "target": 8192}
    path.write_text(path.read_text() + 'policy = "target"\n')
    alone = open_cluster(path, llamas()).replicas[0].limits
    assert list(alone.kv) == ["target"]
    assert alone.max_model_len == {"target": 8192}  # one that never runs rejects no request


def test_the_reserve_of_an_engines_log_in_place_of_the_default():
    """Llama 3.1 8B on an RTX 4090: each 131,072 bytes of reserve are a token less, as in vLLM's own rule."""
    device, shapes = device_sheet()["rtx4090"], {"target": LLAMA_8B}
    usual = device_memory(device, ReplicaTable(), ["target"], shapes)
    said = device_memory(device, ReplicaTable(activation_reserve_bytes=0.5e9), ["target"], shapes)
    assert usual.members[0].kv.num_tokens == (23_230_000_000 - 16_060_522_496 - 2_000_000_000) // 2_097_152 * 16
    assert said.members[0].kv.num_tokens == (23_230_000_000 - 16_060_522_496 - 500_000_000) // 2_097_152 * 16
