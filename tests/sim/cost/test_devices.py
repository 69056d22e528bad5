"""A device of a user's own as a cost: the same seconds as one of the sheet with its figures."""

import pytest
from paceline.base.errors import ArgumentError
from paceline.base.toml import TomlFileError
from paceline.sim.cost.by_name import OnDevice, make_cost
from paceline.sim.cost.devices import DevicesContent, ReplicaOfCost
from paceline.sim.cost.roofline import RooflineCost
from paceline.sim.serving.cluster import open_cluster
from paceline.sim.serving.cluster_file import ClusterContent, ClusterFileError, ReplicaTable

from .shapes import RECORDING, seconds
from .timed_recordings import recording_of, request_of, shapes

H100 = """
[devices.mine]
flops_per_s = { float32 = 67e12, bfloat16 = 989e12, float16 = 989e12, fp8 = 1979e12, int8 = 1979e12 }
bytes_per_s = 3.35e12
memory_bytes = 80e9
link_bytes_per_s = 450e9
"""
REPLICA = '[[replicas]]\ndevice = "mine"\n'


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("text", [H100, H100 + REPLICA])
@pytest.mark.parametrize("split", [1, 2])
def test_figures_of_the_sheet_give_its_seconds(written, text, split):
    own = make_cost(written(text), RECORDING, tensor_parallel=split)
    bare = make_cost("h100", RECORDING, tensor_parallel=split, engine="bare")
    assert isinstance(own, RooflineCost)
    assert own.name == bare.name.replace("h100", "mine")
    assert own.notes()[0].startswith("published peaks of mine, on which no engine was measured")
    for new, held in ((1, 0), (5, 1000), (3000, 10)):
        assert seconds(own, new, held=held, model="target") == seconds(bare, new, held=held, model="target")


def test_one_like_a_device_of_the_sheet_has_its_engines(written):
    path = written('[devices.mine]\nlike = "h100"\nmemory_bytes = 94e9')
    own, same = make_cost(path, RECORDING, engine="sglang"), make_cost("h100", RECORDING, engine="sglang")
    assert own.name == "mine (sglang)"
    assert seconds(own, 5, model="target") == seconds(same, 5, model="target")


def test_measured_seconds_are_taken_to_it(written):
    timed = recording_of(request_of("a", wall_s={"": 2.0}), models=shapes("eagle", "target"))
    own = make_cost("timed", timed, on=OnDevice(device=written(H100), measured_on="a100"))
    same = make_cost("timed", timed, on=OnDevice(device="h100", measured_on="a100"))
    assert seconds(own, 1, model="target") == seconds(same, 1, model="target")


@pytest.mark.parametrize("key", ["tensor_parallel = 2", 'engine = "sglang"'])
@pytest.mark.parametrize("option", ["device", "measured_on"])
def test_measured_seconds_are_not_taken_to_several_devices_nor_to_another_engine(written, key, option):
    timed = recording_of(request_of("a", wall_s={"": 2.0}), models=shapes("eagle", "target"))
    places = {"device": "h200", "measured_on": "a100", option: written(H100 + REPLICA + REPLICA + key)}
    with pytest.raises(ArgumentError, match=f"`on` takes seconds from one device to one, .* have {key[:6]}"):
        make_cost("timed", timed, on=OnDevice(**places))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[device.mine]\n", "mine.toml: devices must be given, got None"),
        ("[devices]\n", "mine.toml: devices must hold one device to be a cost, got ''"),
        (H100 + '[devices.other]\nlike = "h100"\n', "devices must hold one device to be a cost, got 'mine, other'"),
        ("[devices.mine]\n", "mine.toml: devices.mine must have flops_per_s, or be like a device of the sheet"),
        (H100.replace("mine", "h100"), "devices.h100 must have a name of its own; the sheet has this one, got 'h100'"),
        ('[devices.mine]\nlike = "h300"', "mine.toml: devices.mine.like must be a device of the sheet (known are"),
        (
            "efficiency = 0.8\n" + H100,
            "mine.toml: efficiency is not a known key (known are devices, replicas, router, ",
        ),
        (H100 + REPLICA + "[links]\n", "mine.toml: links is not a known key (known are devices, replicas, router, "),
        ("horizon_s = 9\n" + H100, "mine.toml: horizon_s must be left out of a file without replicas, got 9"),
        (
            H100 + "mass_kg = 3\n",
            "mine.toml: devices.mine.mass_kg is not a known key (known are like, flops_per_s, bytes_per_s, ",
        ),
        ("devices = ", "mine.toml: devices file must be TOML in UTF-8, got"),
        (
            H100.replace("3.35e12", "3350"),
            "devices.mine.bytes_per_s input should be greater than or equal to 1000000, got 3350",
        ),
        (
            H100.replace("80e9", "80"),
            "devices.mine.memory_bytes input should be greater than or equal to 1000000, got 80",
        ),
        (
            H100.replace("67e12", "67"),
            "devices.mine.flops_per_s.float32 input should be greater than or equal to 1000000",
        ),
        (
            H100.replace("450e9", "450"),
            "devices.mine.link_bytes_per_s input should be greater than or equal to 1000000",
        ),
        (
            H100 + "layer_launch_s = 10",
            "devices.mine.layer_launch_s input should be less than or equal to 0.01, got 10",
        ),
        (H100 + "link_latency_s = 30", "devices.mine.link_latency_s input should be less than or equal to 1, got 30"),
    ],
)
def test_files_without_one_device_are_refused(written, text, told):
    with pytest.raises(TomlFileError) as caught:
        make_cost(written(text), RECORDING)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_file_of_a_cluster_is_a_cost_whatever_else_it_says(written):
    assert DevicesContent.model_fields.keys() == ClusterContent.model_fields.keys()
    whole = 'name = "it"\nhorizon_s = 9\n' + H100 + REPLICA + "[transfer]\nbytes_per_s = 1e9\n[router]\n"
    assert make_cost(written(whole), RECORDING).name == "mine"


def test_what_replicas_say_of_their_device_is_asked_for_by_options(written):
    path = written(H100.replace("[devices.mine]", '[devices.mine]\nlike = "h100"') + REPLICA + "tensor_parallel = 2\n")
    with pytest.raises(
        ArgumentError, match=r"^`tensor_parallel` must be given with `cost` .*, whose replicas have 2, not 1$"
    ):
        make_cost(path, RECORDING)
    assert make_cost(path, RECORDING, tensor_parallel=2, engine="sglang").name == "mine x2 tensor parallel (sglang)"
    path = written(H100.replace("[devices.mine]", '[devices.mine]\nlike = "h100"') + REPLICA + 'engine = "sglang"\n')
    with pytest.raises(
        ArgumentError, match=r"^`engine` must be given with `cost` .*, whose replicas have sglang, not None$"
    ):
        make_cost(path, RECORDING)
    assert make_cost(path, RECORDING, engine="bare").name == "mine"
    several = REPLICA + REPLICA + "tensor_parallel = 2\n" + REPLICA + "tensor_parallel = 4\nrole = 'prefill'\n"
    cost = make_cost(written(H100 + several), RECORDING)
    assert cost.name == "mine"
    assert cost.notes()[0].endswith("mine.toml have `tensor_parallel` 1, 2: these are seconds of 1")
    cost = make_cost(written(H100 + several), RECORDING, tensor_parallel=2)
    assert not any(note.startswith("replicas of") for note in cost.notes())
    like = H100.replace("[devices.mine]", '[devices.mine]\nlike = "h100"') + REPLICA + REPLICA + 'engine = "sglang"\n'
    note = make_cost(written(like), RECORDING).notes()[0]
    assert note.endswith("mine.toml have `engine` none, sglang: these are seconds of the default one")
    with pytest.raises(
        TomlFileError, match=r"mine.toml: replicas\[0\].tensor_parallel input should be a valid integer"
    ):
        make_cost(written(H100 + REPLICA + "tensor_parallel = '2'"), RECORDING)
    with pytest.raises(
        TomlFileError, match=r"replicas\[0\].tensor_paralel is not a known key \(did you mean tensor_para"
    ):
        make_cost(written(H100 + REPLICA + "tensor_paralel = 2"), RECORDING)
    assert ReplicaOfCost.model_fields.keys() == ReplicaTable.model_fields.keys()


def test_what_is_neither_of_the_sheet_nor_a_file(written):
    with pytest.raises(ValueError, match=r"'rtx3080': did you mean rtx3090\?; a device of your own: \[devices.NAME\]"):
        make_cost("rtx3080", RECORDING)
    with pytest.raises(ArgumentError, match=r"`engine` vllm has terms on h100-sxm, .* only, got mine"):
        make_cost(written(H100), RECORDING, engine="vllm")
    single = "[devices.mine]\nflops_per_s = { float32 = 1e13 }\nbytes_per_s = 1e12\nmemory_bytes = 80e9\n"
    with pytest.raises(
        ArgumentError,
        match=r"no peak figure for dtype 'bfloat16' of .*: flops_per_s of a device of your own may have it",
    ):
        make_cost(written(single), RECORDING)
    with pytest.raises(ClusterFileError, match=r"'bfloat16' of draft: .* another dtype$"):
        open_cluster(written(single + REPLICA), RECORDING)
    with pytest.raises(
        ClusterFileError, match=r"cost must be left out or the device that every member lies on \(mine\)"
    ):
        open_cluster(written(H100 + REPLICA + 'cost = "other.toml"'), RECORDING)
