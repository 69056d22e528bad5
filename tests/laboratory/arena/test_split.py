"""The split of recordings."""

import pytest
from paceline_laboratory.arena.cells import Side, SplitFileError, read_split


def test_nothing_is_on_both_sides_of_the_split_that_is_committed():
    split = read_split()
    tune, report = (split.recordings(side) for side in (Side.tune, Side.report))
    assert not set(tune) & set(report)
    assert split.recordings(Side.all) == (*tune, *report)
    assert {split.side_of(name) for name in tune} == {Side.tune}
    assert {split.side_of(name) for name in report} == {Side.report}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('tune = ["pico"]', "report must be given"),
        ('tune = ["pico"]\nreport = []', "report must name one recording at least"),
        ('tune = ["pico"]\nreport = ["pico"]', "report must hold what no side holds before, which 'pico' is not"),
        ('report = ["a/b"]', "report must hold names that match [a-z0-9][a-z0-9.-]*, which 'a/b' does not"),
        ('report = ["a"]\nreprot = ["b"]', "reprot is not a known key"),
        ("report = [", "the split must be TOML in UTF-8"),
    ],
)
def test_what_is_no_split_is_told_in_one_line(tmp_path, text, says):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(SplitFileError) as told:
        read_split(file)
    assert says in str(told.value)
    assert str(file) in str(told.value)
    assert "\n" not in str(told.value)


def test_a_split_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SplitFileError, match="must be readable"):
        read_split(tmp_path / "none.toml")
