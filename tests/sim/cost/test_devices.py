from dataclasses import replace

import pytest
from paceline.sim.cost.roofline import device_sheet
from paceline.traces.meta import WIDTHS

NAMES = {
    "a100-40gb",
    "a100-80gb",
    "h100-pcie",
    "h100-sxm",
    "h200",
    "b200",
    "l40s",
    "rtx4090",
    "rtx5090",
    "tpu-v5p",
    "cpu-roofline",
}


def test_the_sheet_is_sound():
    sheet = device_sheet()
    assert set(sheet) == NAMES | {"a100", "h100"}
    for name, device in sheet.items():
        assert name == device.name
        assert device.source
        assert 1e10 < device.memory_bytes < 1e12
        if name == "cpu-roofline":
            continue
        assert 8e11 < device.bytes_per_s < 1e13
        assert 1e14 < device.flops_per_s["bfloat16"] < 1e16
        assert 3e10 < device.link_bytes_per_s < device.bytes_per_s
        if "float32" in device.flops_per_s:
            assert device.flops_per_s["float32"] < device.flops_per_s["bfloat16"] == device.flops_per_s["float16"]
        narrow = {unit: device.flops_per_s[unit] for unit in ("int8", "fp8", "fp4") if unit in device.flops_per_s}
        assert all(1.9 < peak / device.flops_per_s["bfloat16"] < 8.1 for peak in narrow.values())
        assert set(device.flops_per_s) <= {*WIDTHS, *narrow}


@pytest.mark.parametrize(("short", "name"), [("a100", "a100-80gb"), ("h100", "h100-sxm")])
def test_a_short_name_is_the_same_device(short, name):
    sheet = device_sheet()
    assert replace(sheet[short], name=name) == sheet[name]


def test_a_device_is_a_value():
    device = device_sheet()["h200"]
    assert replace(device, name="other") != device
