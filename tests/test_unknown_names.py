"""Names that stand for nothing: one line of at most 300 characters, which names what a nearly right one means."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
from paceline.base.errors import did_you_mean, known_are
from paceline.base.files import recording_path, shipped_names
from paceline.policies.by_name import make_policy, own_policies
from paceline.policies.chain_text import policy_options
from paceline.policies.check import check_pool
from paceline.runtime.forced import named_config
from paceline.runtime.forced import preset_names as forced_names
from paceline.runtime.pools.published import FETCHED_BY_POOL, published_model
from paceline.sim.cost.by_name import OnDevice, make_cost
from paceline.sim.cost.roofline import device_sheet
from paceline.sim.serving.cluster import open_cluster
from paceline.sim.serving.routers import RouterSpec, own_routers
from paceline.traces import open_recording
from paceline.traces.importers.formats import choose_format, format_named, format_names
from paceline.traces.meta import WIDTHS
from paceline.traces.shapes import FORMATS, KV_WIDTHS, preset_names
from paceline.traces.shapes_given import given_shapes, read_hub_config
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.drawn_arrivals import KINDS
from paceline.traces.workloads.drawn_sessions import SESSION_KINDS

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512, "dtype": "bfloat16",
}  # fmt: skip
ARCHITECTURES = ("LlamaForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForConditionalGeneration", "Eagle3Speculator")
POOL = Path("pool.toml")


@cache
def pico():
    return open_recording(recording_path(None))


def config(**changes):
    """Reads a config with these changes, in which NAME stands for the name."""

    def read(name):
        Path("config.json").write_text(json.dumps(LLAMA | changes).replace("NAME", name))
        read_hub_config(Path("config.json"), "target")

    return read


def cluster(table):
    def read(name):
        Path("c.toml").write_text(table.replace("NAME", name))
        open_cluster("c.toml", pico())

    return read


KINDS_OF_NAMES: dict[str, tuple[Iterable[str], Callable[[str], object]]] = {
    "policy": (own_policies(), lambda name: make_policy(name, check_pool())),
    "option of a policy": (
        policy_options(own_policies()["specrouter"]),
        lambda name: make_policy(f"specrouter,{name}=1", check_pool()),
    ),
    "router": (own_routers(), RouterSpec.parse),
    "cluster": (device_sheet(), lambda name: open_cluster(name, pico())),
    "device of a cluster": (device_sheet(), cluster('[[replicas]]\ndevice = "NAME"')),
    "device like": (device_sheet(), cluster('[[replicas]]\ndevice = "m"\n[devices.m]\nlike = "NAME"')),
    "router of a cluster": (own_routers(), cluster('[[replicas]]\ndevice = "h100"\n[router]\nname = "NAME"')),
    "cost": (device_sheet(), lambda name: make_cost(name, pico())),
    "on": (device_sheet(), lambda name: make_cost("cpu", pico(), on=OnDevice(device=name))),
    "format": (format_names(), format_named),
    "format or auto": (format_names(), lambda name: choose_format(name, [Path("x")])),
    "generator": ((*KINDS, *SESSION_KINDS), lambda name: open_workload(f"{name}:rate=1")),
    "option of a generator": (("rate", "requests", "seconds"), lambda name: open_workload(f"poisson:{name}=1")),
    "preset": (preset_names(), lambda name: given_shapes([f"draft={name}"], "target")),
    "weights": (FORMATS, lambda name: given_shapes([f"llama-3.1-8b@{name}"], "target")),
    "cache": (KV_WIDTHS, lambda name: given_shapes([f"llama-3.1-8b@kv={name}"], "target")),
    "preset of a forced pool": (forced_names(), lambda name: named_config(POOL, "members[0].config", name, 64)),
    "architecture": (ARCHITECTURES, config(architectures=["NAME"])),
    "model type": (("llama", "qwen3_moe", "gemma3_text"), config(model_type="NAME")),
    "dtype": (WIDTHS, config(dtype="NAME")),
    "method of quantisation": (
        ("fp8", "compressed-tensors", "bitsandbytes"),
        config(quantization_config={"quant_method": "NAME"}),
    ),
    "recording": (shipped_names("recordings", ".trace"), lambda name: open_recording(recording_path(name))),
    "pool to fetch": (FETCHED_BY_POOL, published_model),
}


def refusal(use, name):
    """What is said of a name; None if it means something after all."""
    try:
        use(name)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", KINDS_OF_NAMES)
@pytest.mark.parametrize("name", ["zzz", "no-such-name-at-all-" * 2, "größe"])
def test_an_unknown_name_is_refused_in_one_short_line(tmp_path, monkeypatch, kind, name):
    monkeypatch.chdir(tmp_path)
    told = refusal(KINDS_OF_NAMES[kind][1], name)
    assert told is not None
    assert len(told) <= 300
    assert "\n" not in told


@pytest.mark.parametrize("kind", KINDS_OF_NAMES)
def test_a_nearly_right_name_is_told_which_one_is_meant(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    known, use = KINDS_OF_NAMES[kind]
    seen = 0
    for name in known:
        middle = len(name) // 2
        for near in (name[:middle] + name[middle + 1 :], name[:middle] + name[middle - 1 :], name + "x"):
            told = refusal(use, near)
            if told is None or near in known or near == name:  # 1.7b and 17b, say, are both names
                continue
            seen += 1
            assert name in told, near
            assert len(told) <= 300
            assert "\n" not in told
    assert seen


def test_a_long_list_is_cut_and_counted():
    names = [f"name-{number}" for number in range(100)]
    told = known_are("other", names, "or a FILE", where="a page")
    assert told.startswith("known are name-0, name-1, ")
    assert told.endswith(", ... (100 in all: a page), or a FILE")
    assert len(told) < 200
    assert known_are("other", ["a", "b"], where="a page") == "known are a, b"


def test_a_name_is_near_in_whatever_case_it_is():
    assert did_you_mean("llamaforcausallm", ["LlamaForCausalLM", "other"]) == "did you mean LlamaForCausalLM?"
    assert did_you_mean(None, ["None"]) == ""
