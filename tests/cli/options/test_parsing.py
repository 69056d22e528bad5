import pytest
from paceline.cli.options import named_numbers


def test_a_number_for_each_name():
    assert named_numbers("--scale", "FACTOR", None) == {}
    told = ["draft=0.5", "mid=+2", "target=1e-3", "b=-.25"]
    found = named_numbers("--scale", "FACTOR", told)
    assert list(found.items()) == [("draft", 0.5), ("mid", 2.0), ("target", 1e-3), ("b", -0.25)]


@pytest.mark.parametrize(
    "text", ["", "draft", "draft=", "draft=x", "draft=1=2", "=1", "draft= 2", "draft=1_0", "draft=\u0663", "draft=0x1"]
)
def test_what_is_no_name_and_number(text):
    with pytest.raises(ValueError, match=f"--scale must be NAME=FACTOR, got '{text}'"):
        named_numbers("--scale", "FACTOR", [text])


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
def test_numbers_that_are_not_finite(number):
    with pytest.raises(ValueError, match=f"--shift of draft must be finite, got {number}"):
        named_numbers("--shift", "DELTA", [f"draft={number}"])


def test_a_name_given_twice():
    with pytest.raises(ValueError, match="--scale draft is given twice"):
        named_numbers("--scale", "FACTOR", ["draft=1", "draft=2"])
