"""Every breach of a cluster file is one line with file, table, field, rule and value; defaults are vLLM's."""

import pytest
from paceline.sim.cost.engines import engines
from paceline.sim.cost.roofline import device_sheet
from paceline.sim.serving.cluster import batch_limits, open_cluster
from paceline.sim.serving.cluster_file import ClusterFileError, read_cluster_file

from .small_pools import LLAMA_1B, LLAMA_8B, llamas, recording_of

ONE = '[[replicas]]\ndevice = "h100"\n'


@pytest.fixture
def written(tmp_path):
    """Writes a cluster file and gives its path."""

    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "replicas must be given, got None"),
        ("replicas = []", "replicas tuple should have at least 1 item"),
        ("[[replicas]]\ncount = 0", "replicas[0].count input should be greater than or equal to 1, got 0"),
        ("[[replicas]]\ncount = true", "replicas[0].count input should be a valid integer, got True"),
        ("[[replicas]]\ncount = 2.0", "replicas[0].count input should be a valid integer, got 2.0"),
        (
            "[[replicas]]\nmemory_share = 1.5",
            "replicas[0].memory_share input should be less than or equal to 1, got 1.5",
        ),
        ("[[replicas]]\nmemory_share = nan", "replicas[0].memory_share input should be a finite number, got nan"),
        (
            "[[replicas]]\nmax_num_seqs = 0",
            "replicas[0].max_num_seqs input should be greater than or equal to 1, got 0",
        ),
        ("[[replicas]]\ntoken_budget = -1", "replicas[0].token_budget input should be greater than or equal to 1"),
        ("[[replicas]]\nblock_tokens = 0", "replicas[0].block_tokens input should be greater than or equal to 1"),
        ("[[replicas]]\nkv_blocks = 0", "replicas[0].kv_blocks input should be greater than or equal to 1, got 0"),
        ("[[replicas]]\nactivation_reserve_bytes = -1.0", "replicas[0].activation_reserve_bytes input should be"),
        (
            '[[replicas]]\npreemption = "none"',
            "replicas[0].preemption input should be 'latest' or 'fewest-tokens', got 'none'",
        ),
        ("[[replicas]]\nshared_prefix = true", "replicas[0].shared_prefix input should be"),
        (
            "[[replicas]]\n[replicas.shared_prefix]\nleast_rows = 1",
            "replicas[0].shared_prefix.least_rows input should be",
        ),
        ("[[replicas]]\n[replicas.shared_prefix]\nleast = 1", "replicas[0].shared_prefix.least is not a known key"),
        (
            '[[replicas]]\nrole = "draft"',
            "replicas[0].role input should be 'both', 'prefill' or 'decode', got 'draft'",
        ),
        (f"{ONE}[transfer]", "transfer.bytes_per_s must be given, got None"),
        (
            f"{ONE}[transfer]\nbytes_per_s = 0",
            "transfer.bytes_per_s input should be greater than or equal to 1000000, got 0",
        ),
        (f"{ONE}[transfer]\nbytes_per_s = 1e9\nlatency_s = -1", "transfer.latency_s input should be greater than"),
        ("[[replicas]]\nmax_model_len = 0", "replicas[0].max_model_len input should be greater than or equal to 1"),
        ("[[replicas]]\nhost_bytes = 5", "replicas[0].host_bytes is not a known key (known are name, "),
        ("[[replicas]]\noffload = true", "replicas[0].offload input should be"),
        ("[[replicas]]\noffload = { host_bytes = 1e9 }", "replicas[0].offload.bytes_per_s must be given, got None"),
        (
            "[[replicas]]\noffload = { host_bytes = 0, bytes_per_s = 1e9 }",
            "replicas[0].offload.host_bytes input should be greater than or equal to 1000000, got 0",
        ),
        (
            f"{ONE}[transfer]\nbytes_per_s = 50",
            "transfer.bytes_per_s input should be greater than or equal to 1000000, got",
        ),
        (
            "[[replicas]]\nactivation_reserve_bytes = 2",
            "replicas[0].activation_reserve_bytes must be 0 or >= 1e+06, got 2",
        ),
        ("[[replicas]]\nprefix_cache = 1", "replicas[0].prefix_cache input should be a valid boolean, got 1"),
        ("[[replicas]]\ndrop_units = -1", "replicas[0].drop_units input should be greater than or equal to 0, got -1"),
        (
            "[[replicas]]\n[replicas.members.draft]\ndrop_units = 1",
            "replicas[0].members.draft.drop_units is not a known key",
        ),
        ("[[replicas]]\n[replicas.members.draft]\nprefill = 1", "replicas[0].members.draft.prefill is not a known key"),
        (f"horizon_s = 0\n{ONE}", "horizon_s input should be greater than 0, got 0"),
        (f"{ONE}[router]\nstale_s = 1e-13", "router.stale_s must be 0 or >= 1e-06, got 1e-13"),
        (f"{ONE}[router]\nstale_s = -0.5", "router.stale_s input should be greater than or equal to 0, got -0.5"),
        (f"{ONE}[devices.mine]\nmemory_bytes = 1e9", "devices.mine must have flops_per_s, or be like a device"),
        (f"{ONE}[[replicas]]\ncount = 10000", "replicas must be 10,000 at most in all, got 10001"),
        (
            f'{ONE}[devices.mine]\nlike = "h100"\nflops_per_s = {{ FP8 = 1e15 }}',
            "devices.mine flops_per_s must be of float32, bfloat16, float16, fp8, fp4, int8, got 'FP8'",
        ),
        ("replicas = ", "cluster file must be TOML in UTF-8, got"),
    ],
)
def test_refused_by_the_schema(written, text, said):
    path = written(text)
    with pytest.raises(ClusterFileError) as refused:
        read_cluster_file(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


ALONE = """
[[replicas]]
device = "alone"
tensor_parallel = 2
[devices.alone]
flops_per_s = { bfloat16 = 1e14 }
bytes_per_s = 1e12
memory_bytes = 80e9
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[replicas]]\n", "replicas[0].device must be given, or one for draft, which is not placed, got None"),
        (
            '[[replicas]]\n[replicas.members.draft]\ndevice = "l40s"',
            "replicas[0].device must be given, or one for target, which is not placed, got None",
        ),
        ('[[replicas]]\ndevice = "h300"', "replicas[0].device must be in [devices] or of the sheet (known are a10,"),
        (f'{ONE}[replicas.members.draft]\ndevice = "x"', "replicas[0].members.draft.device must be in [devices] or"),
        (
            f"{ONE}[replicas.members.mid]\nkv_blocks = 9",
            "members.mid must be a member of the recording (draft, target)",
        ),
        (
            f"{ONE}prefix_cache = false\ndrop_units = 1",
            "replicas[0].drop_units must be 0 without a prefix cache of target, got 1",
        ),
        (
            f"{ONE}prefix_cache = false\n[replicas.shared_prefix]",
            "replicas[0].shared_prefix must be left out without a prefix cache of target, got {'least_tokens': 256,",
        ),
        (
            '[[replicas]]\ndevice = "tiny"\n[devices.tiny]\nlike = "h100"\nmemory_bytes = 1e10',
            "replicas[0].device must hold the weights of its members in 10,000,000,000 bytes of tiny "
            "(draft 2,471,628,800, target 16,060,522,496), got '18,532,151,296 bytes'",
        ),
        (f'{ONE}[devices.h100]\nlike = "h200"', "devices.h100 must have a name of its own; the sheet has this one"),
        (
            f'{ONE}[devices.mine]\nlike = "h300"',
            "devices.mine.like must be a device of the sheet (known are a10, a100, a100-40gb",
        ),
        (ALONE, "replicas[0].cost cannot be taken: cost alone: no link to split models over, got tensor_parallel 2"),
        (f'{ONE}policy = "draft:4/mid"', "replicas[0].policy cannot be built: policy 'draft:4/mid'"),
        (f'{ONE}cost = "cpu"', "replicas[0].cost cannot be taken: unknown cost 'cpu'"),
        (f'{ONE}cost = "h200"', "replicas[0].cost must be left out or the device that every member lies on (h100)"),
        (f'{ONE}cost = "mine.json"', "mine.json: file: must be a readable file, got 'No such file or directory'"),
        (f'{ONE}[router]\nname = "two-choices,by=foo"', "by must be requests, tokens or kv, got 'foo'"),
        (f"{ONE}[transfer]\nbytes_per_s = 1e9\nkv_bytes_per_token = 0.5", "kv_bytes_per_token input should be a valid"),
        (f'{ONE}[router]\nname = "fast"', "router.name cannot be built: router 'fast': known are round-robin"),
        (f'{ONE}[router]\nname = "least-loaded,by=luck"', "by must be requests, tokens or kv, got 'luck'"),
        (f'{ONE}role = "prefill"', "replicas[0].role must be both where no replicas are of role decode, got 'prefill'"),
        (f'{ONE}{ONE}role = "decode"', "replicas[1].role must be both where no replicas are of role prefill"),
        (f'{ONE}role = "prefill"\n{ONE}role = "decode"', "transfer must be given where replicas prefill for others"),
        (f"{ONE}[transfer]\nbytes_per_s = 1e9", "transfer must be left out where no replicas prefill for others"),
        (
            f"{ONE}prefix_cache = false\noffload = {{ host_bytes = 1e9, bytes_per_s = 1e9 }}",
            "replicas[0].offload must be left out without a prefix cache, got 'a table'",
        ),
        (
            f'{ONE}role = "decode"\noffload = {{ host_bytes = 1e9, bytes_per_s = 1e9 }}\n{ONE}role = "prefill"',
            "replicas[0].offload must be left out on replicas of role decode",
        ),
        (f'{ONE}name = "a"\n{ONE}name = "a"', "replicas[1].name must be unique, got 'a'"),
    ],
)
def test_refused_beside_the_recording(written, text, said):
    path = written(text)
    with pytest.raises(ClusterFileError) as refused:
        open_cluster(path, llamas())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_submodel_lies_where_its_model_does(written):
    slim = LLAMA_8B.model_copy(update={"name": "slim", "submodel_of": "target"})
    path = written(f'{ONE}[replicas.members.slim]\ndevice = "h200"')
    with pytest.raises(ClusterFileError, match=r"members.slim.device must be that of target \(h100\), whose weights"):
        open_cluster(path, recording_of(slim, LLAMA_8B))


MINE = '[devices.mine]\nlike = "h100"\n'
ON_MINE = '[[replicas]]\ndevice = "mine"\n'


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (ONE, {"cost": "h100", "tensor_parallel": 1, "engine": None}),
        (f'{ONE}tensor_parallel = 2\nengine = "sglang"', {"cost": "h100", "tensor_parallel": 2, "engine": "sglang"}),
        (f'{ONE}{ONE}[[replicas]]\ndevice = "h200"\nrole = "prefill"', {"cost": "h100", "tensor_parallel": 1}),
        (ON_MINE + MINE, {"cost": "the.toml", "tensor_parallel": 1, "engine": None}),
        (f'{ON_MINE}{MINE}[devices.other]\nlike = "h100"', None),
        (f"{ONE}{ON_MINE}{MINE}", None),
        (f"{ONE}{ONE}tensor_parallel = 2", None),
        (f'{ONE}cost = "cpu"', None),
        (f'{ONE}[replicas.members.draft]\ndevice = "h200"', None),
    ],
)
def test_replicas_of_one_kind_of_device_have_one_cost(written, text, options):
    found = read_cluster_file(written(text)).one_cost("the.toml")
    assert (found is None) == (options is None)
    assert found is None or found == {"engine": None} | options


@pytest.mark.parametrize("text", ["h300", "h100,h200", "somewhere"])
def test_what_is_neither_file_nor_device(text):
    with pytest.raises(ValueError, match=f"unknown cluster '{text}': known are a10, a100"):
        open_cluster(text, llamas())


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(ClusterFileError, match=r"none.toml: cluster file must exist"):
        open_cluster(tmp_path / "none.toml", llamas())


@pytest.mark.parametrize("name", sorted(device_sheet()))
def test_every_large_enough_device_is_a_preset(name):
    half = name != "cpu-roofline"  # which has no peak in half precision
    models = [model if half else model.model_copy(update={"dtype": "float32"}) for model in (LLAMA_1B, LLAMA_8B)]
    cluster = open_cluster(name, recording_of(*models))
    (replica,) = cluster.replicas
    known = name in engines()["vllm"]
    assert (cluster.name, replica.name, replica.cost.name) == (name, name, f"{name} (vllm)" if known else name)
    assert bool(replica.cost.ends()) == known
    assert replica.policy is None
    assert (cluster.router.label, cluster.stale_s, cluster.horizon_s) == ("round-robin", 0, None)
    assert all(kv.block_tokens == 16 and kv.prefix_cache and kv.drop_units == 0 for kv in replica.limits.kv.values())


@pytest.mark.parametrize(
    ("device", "limits"),
    [("a100", (256, 2048)), ("h100", (1024, 8192)), ("h200", (1024, 8192)), ("rtx4090", (256, 2048))],
)
def test_batches_are_those_of_vllms_server(device, limits):
    usual = batch_limits(device_sheet()[device], device)
    assert (usual.max_num_seqs, usual.token_budget) == limits


def test_a_device_like_an_a100_has_its_batches(written):
    path = written('[[replicas]]\ndevice = "mine"\n[devices.mine]\nlike = "a100"\nmemory_bytes = 85e9')
    limits = open_cluster(path, llamas()).replicas[0].limits
    assert (limits.max_num_seqs, limits.token_budget) == (256, 2048)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('name = "{}"\n[[replicas]]\n', "name "),
        ('[[replicas]]\nname = "{}"\n', "replicas[0].name "),
        ('[[replicas]]\ndevice = "{}"\n', "replicas[0].device "),
        ('[[replicas]]\npolicy = "{}"\n', "replicas[0].policy "),
        ('[[replicas]]\ncost = "{}"\n', "replicas[0].cost "),
        ('[[replicas]]\n[replicas.members.{}]\ndevice = "h100"\n', "replicas[0].members."),
        ('[devices.{}]\nlike = "h100"\n[[replicas]]\n', "devices."),
        ('[router]\nname = "{}"\n[[replicas]]\n', "router.name "),
        ("{} = 1\n[[replicas]]\n", ""),
        ("{}.{} = 1\n[[replicas]]\n", ""),
    ],
)
def test_a_name_of_any_length_is_refused_at_once(tmp_path, text, told):
    """A name of 200,000 letters took minutes, as their square."""
    path = tmp_path / "long.toml"
    path.write_text(text.replace("{}", "x" * 200_000))
    with pytest.raises(ClusterFileError) as error:
        read_cluster_file(path)
    assert str(error.value).startswith(f"{path}: {told}")
