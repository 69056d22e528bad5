"""A journal gives back what was noted before an interrupt, wherever it came, and nothing of anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.profiling.probe import Journal

ABOUT = {"pool": "tiny", "threads": 1, "grid": (1, 2)}
SECONDS = {("draft", 1, 2, 0): 0.25, ("target", 1, 2, 0): 1.5}


def filled(path, count=3):
    journal = Journal(path, ABOUT)
    for number in range(count):
        journal.note(number, (1, 0), {key: value + number for key, value in SECONDS.items()})
    return journal


def test_what_was_noted_is_known_to_the_next(tmp_path):
    first = filled(tmp_path / "new" / "a.jsonl")
    again = Journal(tmp_path / "new" / "a.jsonl", ABOUT)
    assert len(again) == 3
    assert again.begun_at == first.begun_at is not None
    assert again.known(1, (1, 0)) == {key: value + 1 for key, value in SECONDS.items()}
    assert again.known(1, (2, 0)) is None
    assert again.seconds() == {key: [value, value + 1, value + 2] for key, value in SECONDS.items()}


@given(share=st.floats(0, 1))
def test_a_file_cut_short_anywhere_gives_its_whole_lines_and_grows_on(tmp_path_factory, share):
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    filled(path)
    content = path.read_bytes()
    cut = content[: int(share * len(content))]
    path.write_bytes(cut)
    again = Journal(path, ABOUT)
    assert len(again) == max(0, cut.count(b"\n") - 1)
    again.note(7, (3, 60), SECONDS)
    third = Journal(path, ABOUT)
    assert len(third) == len(again)
    assert third.known(7, (3, 60)) == SECONDS


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]\n", b'{"about": 1}\n', b"\xff\n", b'{"about": {}, "begun_at": 3}\n']
)
def test_a_file_that_is_no_journal_is_begun_anew(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert len(Journal(path, ABOUT)) == 0
    filled(path)
    assert len(Journal(path, ABOUT)) == 3


def test_another_setting_a_fresh_start_and_forgetting_know_nothing(tmp_path):
    path = tmp_path / "a.jsonl"
    journal = filled(path)
    assert len(Journal(path, ABOUT | {"threads": 2})) == 0
    assert len(Journal(path, ABOUT, resume=False)) == 0
    journal.forget()
    assert (len(journal), journal.begun_at, path.exists()) == (0, None, False)


def test_a_file_that_cannot_be_written_does_not_matter(tmp_path):
    (tmp_path / "a").write_text("")
    journal = filled(tmp_path / "a" / "b.jsonl")
    assert len(journal) == 3
