"""Lines of cells: nothing is lost, nothing is too long without need, and numbers stay whole."""

import re

from hypothesis import given
from hypothesis import strategies as st
from paceline.reports.tables import broken, longest_piece, prose, words_of
from rich.cells import cell_len

PARTS = st.sampled_from(
    ["draft:12", "mid:6", "1,234.56", "target", "start=4", "adaptive", "file.py:Class", "a-b", "日本語"]
)
NAMES = st.lists(PARTS, min_size=1, max_size=6).flatmap(
    lambda parts: st.lists(st.sampled_from(["/", ",", " "]), min_size=len(parts), max_size=len(parts)).map(
        lambda joints: "".join(part + joint for part, joint in zip(parts, joints, strict=True)).strip(" /,")
    )
)


def numbers(text):
    return re.findall(r"\d[\d.,]*\d|\d", text)


@given(text=NAMES, width=st.integers(2, 40))
def test_nothing_is_lost_and_no_number_is_broken(text, width):
    lines = broken(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert [number for line in lines for number in numbers(line)] == numbers(text)
    for line in lines:
        assert cell_len(line) <= width or numbers(line)


@given(text=NAMES)
def test_a_line_as_wide_as_the_longest_piece_cuts_none(text):
    width = max(1, longest_piece(text))
    assert all(cell_len(line) <= width for line in broken(text, width))
    for name in ("adaptive", "target", "draft:12", "1,234.56"):
        assert sum(line.count(name) for line in broken(text, width)) == text.count(name)


def test_names_are_broken_after_their_parts():
    assert broken("adaptive,draft=eagle,start=4,most=12", 21) == ["adaptive,draft=eagle,", "start=4,most=12"]
    assert broken("draft:12/mid:6/target", 15) == ["draft:12/mid:6/", "target"]
    assert broken("my_policy.py:MyPolicy", 13) == ["my_policy.py:", "MyPolicy"]
    assert broken("first line\nsecond", 40) == ["first line", "second"]
    assert broken("  draft", 7) == ["  draft"]


def test_prose_keeps_names_whole_where_it_can():
    assert prose("takes more than draft:4/target does", 24) == ["takes more than", "draft:4/target does"]
    assert prose("in draft:3/mid:6/target", 10) == ["in", "draft:3/", "mid:6/", "target"]
    assert prose("one\ntwo", 10) == ["one", "two"]


def test_headings_are_broken_between_words():
    assert words_of("tokens/s", 3) == ["tokens/s"]
    assert words_of("target calls /token", 12) == ["target calls", "/token"]
    assert words_of("", 5) == [""]
