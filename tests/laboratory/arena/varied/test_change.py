from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.arguments import ArgumentError
from paceline.laboratory.arena.varied.change import Change, changed, changes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """A record of every kind of field."""

    memory: float = 64.0
    rounds: int = 8
    once: int = 1
    share: float = 0.6
    nothing: float = 0.0
    name: str = "nested"
    optimism: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {self.share}")
        if self.once < 1:
            raise ValueError(f"once must be >= 1, got {self.once}")


def test_every_number_is_halved_and_doubled_where_the_record_takes_that():
    assert [str(change) for change in changes_of(Toy())] == [
        "memory*0.5",
        "memory*2",
        "rounds*0.5",
        "rounds*2",
        "once*2",  # half of 1 is 1
        "share*0.5",  # twice 0.6 is refused by the record
    ]


def test_a_change_changes_its_field_and_nothing_else():
    assert changed(Toy(), Change.parse("memory*2")) == Toy(memory=128.0)
    assert changed(Toy(), Change.parse("rounds*0.5")) == Toy(rounds=4)
    assert changed(Toy(once=3), Change.parse("once*0.5")) == Toy(once=2)


@given(field=st.from_regex(r"[a-z_]+", fullmatch=True), factor=st.sampled_from([0.5, 2.0, 0.25, 10.0]))
def test_a_text_is_read_as_it_is_written(field, factor):
    change = Change(field=field, factor=factor)
    assert Change.parse(str(change)) == change


@pytest.mark.parametrize("text", ["", "memory", "memory*", "*2", "memory*0", "memory*-1", "memory*nan", "memory*inf"])
def test_a_text_that_is_no_change_is_refused(text):
    with pytest.raises(ArgumentError, match="`change` must be NAME"):
        Change.parse(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("speed*2", "must name one of memory, rounds"),
        ("name*2", "must name one of memory"),
        ("nothing*2", "must name one of memory"),
        ("optimism*2", "must name one of memory"),
        ("once*0.5", "must change once, which stays 1"),
    ],
)
def test_a_change_of_nothing_is_refused(text, rule):
    with pytest.raises(ArgumentError, match=rule):
        changed(Toy(), Change.parse(text))


def test_what_the_record_refuses_is_told_by_it():
    with pytest.raises(ValueError, match="share must lie"):
        changed(Toy(), Change.parse("share*2"))
