"""Options of the command line are made from where they are declared; typed texts become values, or are refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import get_args

import pytest
from paceline.base.options import opt
from paceline.cli.models import ForwardOption
from paceline.cli.typed import named_numbers, spelled_out
from paceline.runtime.forward_kinds import KINDS


@dataclass(frozen=True, kw_only=True)
class Size:
    name: str = "no option"
    width: int = opt(3, "Of it.", least=1)
    factors: tuple[float, ...] = opt((0.5, 2.0), "Of each side.")
    scale: Mapping[str, float] | None = opt(None, "By name.", metavar="NAME=FACTOR")


def test_a_record_is_typed_field_by_field_and_reaches_the_command_as_one():
    told = []

    def command(*, first: str, size: Size, last: bool) -> None:
        told.append((first, size, last))

    made = spelled_out(command)
    found = signature(made).parameters
    assert list(found) == ["first", "width", "factors", "scale", "last"]
    assert [get_args(one.annotation)[:1] for one in found.values()] == [(), (int,), (str,), (list[str] | None,), ()]
    assert [found[name].default for name in ("width", "factors", "scale")] == [3, "0.5,2.0", None]
    made(first="a", last=True, width=1, factors="1,2", scale=["draft=2"])
    made(first="a", last=True, width=3, factors="0.5,2.0", scale=None)
    sizes = [Size(width=1, factors=(1.0, 2.0), scale={"draft": 2.0}), Size()]
    assert told == [("a", size, True) for size in sizes]


def test_a_number_for_each_name():
    assert named_numbers("--scale", "FACTOR", None) == {}
    told = ["draft=0.5", "mid=+2", "target=1e-3", "b=-.25"]
    found = named_numbers("--scale", "FACTOR", told)
    assert list(found.items()) == [("draft", 0.5), ("mid", 2.0), ("target", 1e-3), ("b", -0.25)]


NO_NUMBERS = ("", "draft", "draft=", "draft=x", "draft=1=2", "=1", "draft= 2", "draft=1_0", "draft=\u0663", "draft=0x1")


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        *(([text], f"must be NAME=FACTOR, got '{text}'") for text in NO_NUMBERS),
        *(([f"draft={one}"], f"of draft must be finite, got {one}") for one in ("nan", "inf", "-inf", "1e400")),
        (["draft=1", "draft=2"], "draft is given twice"),
    ],
)
def test_what_is_no_name_and_number(texts, told):
    with pytest.raises(ValueError, match=f"--scale {told}"):
        named_numbers("--scale", "FACTOR", texts)


def test_forward_names_every_kind_without_loading_torch():
    kinds, _ = get_args(ForwardOption)
    assert get_args(kinds) == KINDS
