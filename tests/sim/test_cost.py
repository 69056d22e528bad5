import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost import LOOKUP_S, CostRangeError, TableCost
from paceline.sim.costs import make_cost
from paceline.sim.devices import Device, device_sheet
from paceline.sim.roofline import RooflineCost
from paceline.traces import CostTable, ModelInfo, SyntheticSpec, TraceFormatError

META = SyntheticSpec(models=("draft", "target"), target_forward_s=0.02, cost_slope=0.01).meta()
TABLE = CostTable(new_tokens=(1, 2, 8, 16), seconds=(1.0, 1.5, 3.0, 2.0))
# One teraflop, 100 gigabytes and two microseconds a layer.
DEVICE = Device(
    name="round",
    flops_per_s={"float32": 1e12},
    bytes_per_s=1e11,
    memory_bytes=1e9,
    layer_launch_s=2e-6,
    source="none",
)
MODEL = ModelInfo(name="m", parameters=10**6, layers=3, hidden_size=100, kv_bytes_per_token=400, dtype="float32")


def seconds(cost, new, *, model="m", rows=1, held=0):
    return cost.forward_s(model, num_rows=rows, new_tokens=new, context_tokens=held)


@pytest.mark.parametrize(("new", "wanted"), [(1, 1.0), (2, 1.5), (5, 2.25), (8, 3.0), (12, 2.5), (16, 2.0)])
def test_a_table_is_interpolated(new, wanted):
    cost = TableCost("cpu", {"m": TABLE})
    assert seconds(cost, new) == wanted
    assert seconds(cost, new, rows=7, held=10**6) == wanted  # a table knows new tokens only


@given(new=st.integers(1, 16))
def test_a_table_stays_between_its_points(new):
    cost = TableCost("cpu", {"m": TABLE})
    below = max(index for index, point in enumerate(TABLE.new_tokens) if point <= new)
    ends = TABLE.seconds[below : below + 2]
    assert min(ends) <= seconds(cost, new) <= max(ends)


@pytest.mark.parametrize("new", [0, 17, 10**9])
def test_a_table_is_not_extrapolated(new):
    cost = TableCost("cpu", {"m": TABLE})
    with pytest.raises(CostRangeError, match=f"cost cpu: m was measured for 1 to 16 new tokens.*asked for {new}"):
        seconds(cost, new)


def test_a_table_for_every_model():
    with pytest.raises(CostRangeError, match="cost cpu: no table for model 'other'; it has m"):
        seconds(TableCost("cpu", {"m": TABLE}), 1, model="other")


def test_roofline_by_hand():
    cost = RooflineCost(DEVICE, (MODEL,))
    launch = 3 * 2e-6
    # Few tokens wait for memory: 4 bytes a weight, and 10 + 1 tokens of keys and values.
    assert seconds(cost, 1, held=10) == pytest.approx((4e6 + 400 * 11) / 1e11 + launch)
    # Many tokens wait for arithmetic: two operations a weight, and attention of 4 x 3 x 100 x 1000 new x 1024 held.
    assert seconds(cost, 1000, held=24) == pytest.approx((2e6 * 1000 + 1200 * 1000 * 1024) / 1e12 + launch)
    # The same tokens in four rows attend to a quarter of them each.
    assert seconds(cost, 1000, rows=4, held=24) == pytest.approx((2e6 * 1000 + 1200 * 1000 * 256) / 1e12 + launch)
    assert cost.lookup_s == LOOKUP_S


@given(
    device=st.sampled_from(list(device_sheet().values())),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    new=st.integers(1, 4096),
    held=st.integers(0, 10**6),
    rows=st.integers(1, 64),
    more=st.integers(1, 1000),
)
def test_roofline_is_monotone(device, dtype, new, held, rows, more):
    small = ModelInfo(name="m", parameters=10**9, layers=24, hidden_size=2048, kv_bytes_per_token=10**5, dtype=dtype)
    large = small.model_copy(update={"parameters": 2 * 10**9})
    cost = RooflineCost(device, (small,))
    base = seconds(cost, new, rows=rows, held=held)
    assert base >= 24 * device.layer_launch_s
    assert base <= seconds(cost, new + more, rows=rows, held=held)
    assert base < seconds(cost, new, rows=rows, held=held + more) or base == pytest.approx(
        seconds(cost, new, rows=rows, held=held + more), rel=1e-3
    )
    assert base <= seconds(RooflineCost(device, (large,)), new, rows=rows, held=held)


def test_roofline_needs_a_figure_and_a_shape():
    with pytest.raises(ValueError, match="cost round: no peak figure for dtype 'bfloat16' of m"):
        RooflineCost(DEVICE, (MODEL.model_copy(update={"dtype": "bfloat16"}),))
    with pytest.raises(ValueError, match="cost round: no shape for model 'x'; the trace has m"):
        seconds(RooflineCost(DEVICE, (MODEL,)), 1, model="x")


def test_the_sheet_is_sound():
    for name, device in device_sheet().items():
        assert name == device.name
        assert 1e12 < device.bytes_per_s < 1e13
        assert 1e10 < device.memory_bytes < 1e12
        assert device.flops_per_s["float32"] < device.flops_per_s["bfloat16"] == device.flops_per_s["float16"]
        assert device.source


def test_a_cost_by_name():
    assert seconds(make_cost("cpu", META), 5, model="target") == pytest.approx(0.02 * 1.04)
    assert seconds(make_cost("cpu", META), 1, model="draft") == pytest.approx(0.02 * 0.2)
    for name in device_sheet():
        cost = make_cost(name, META)
        assert isinstance(cost, RooflineCost)
        assert cost.name == name
        assert 0 < seconds(cost, 1, model="draft") < seconds(cost, 1, model="target") < 0.1


def test_a_measured_table_goes_before_the_sheet():
    meta = META.model_copy(update={"costs": {"h100": dict.fromkeys(META.model_names, TABLE)}})
    assert seconds(make_cost("h100", meta), 5, model="draft") == 2.25


def test_a_cost_from_a_file(tmp_path):
    file = tmp_path / "mine.json"
    table = {"new_tokens": [1, 3], "seconds": [1, 2]}
    file.write_text(json.dumps({"draft": table, "target": table, "spare": table}))
    cost = make_cost(str(file), META)
    assert cost.name == str(file)
    assert seconds(cost, 2, model="target") == 1.5


def test_an_unknown_cost_names_the_known_ones():
    with pytest.raises(ValueError, match="unknown cost 'v100': this trace knows a100, cpu, h100, h200, rtx4090, or a"):
        make_cost("v100", META)


GOOD = {"new_tokens": [1, 2], "seconds": [1, 2]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "not JSON"),
        ("\xff", "not JSON"),
        ("[]", "content: input should be a valid dictionary"),
        ('{"draft": 3}', "draft: .*got 3"),
        ('{"draft": {"new_tokens": [1]}}', "draft.seconds: field required"),
        ('{"draft": {"new_tokens": [1, 2], "seconds": [1]}}', "draft: new_tokens must be strictly increasing"),
        ('{"draft": {"new_tokens": [2, 1], "seconds": [1, 2]}}', "draft: new_tokens must be strictly increasing"),
        ('{"draft": {"new_tokens": [0, 1], "seconds": [1, 2]}}', "draft: new_tokens must be strictly increasing"),
        ('{"draft": {"new_tokens": [1, 2], "seconds": [1, NaN]}}', "draft: seconds must be positive and finite"),
        ('{"draft": {"new_tokens": [1, 2], "seconds": [1, 0]}}', "draft: seconds must be positive and finite"),
        ('{"draft": {"new_tokens": [1.5], "seconds": [1]}}', r"draft.new_tokens.0: .*got 1.5"),
        ('{"draft": {"new_tokens": [1], "seconds": ["x"]}}', r"draft.seconds.0: .*got 'x'"),
        ('{"draft": {"new_tokens": [1], "seconds": [1], "extra": 1}}', "draft.extra: extra inputs"),
        (json.dumps({"draft": GOOD}), "no table for model 'target' of the trace"),
    ],
)
def test_a_cost_file_that_is_wrong(tmp_path, content, told):
    file = tmp_path / "mine.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=told) as caught:
        make_cost(str(file), META)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_long_value_is_cut(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"draft": {"new_tokens": [1] * 5000, "seconds": [1] * 5000}}))
    with pytest.raises(TraceFormatError) as caught:
        make_cost(str(file), META)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["missing.json", "folder.json"])
def test_a_cost_file_that_is_none(tmp_path, name):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match=f"{name}: cannot be read: "):
        make_cost(str(tmp_path / name), META)


def test_a_device_is_a_value():
    assert replace(DEVICE, name="other") != DEVICE
