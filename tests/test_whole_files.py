"""A file or folder is there whole or as it was before, whatever comes in between, and its neighbours stay."""

import errno
import os
import stat
from pathlib import Path

import pytest
from paceline.base.files import place_of, whole_file, whole_folder, write_whole

STOPS = [KeyboardInterrupt(), ValueError("no"), OSError(errno.ENOSPC, "No space left on device")]


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def half_written(path, stop):
    path.write_text("ha")
    raise stop


@pytest.fixture
def neighbour(tmp_path):
    """What a former way of writing `out.json` would have written to, and taken away."""
    (tmp_path / "out.json.part").write_text("mine")
    return tmp_path / "out.json.part"


def test_a_neighbour_stays(tmp_path, neighbour):
    write_whole(tmp_path / "out.json", "new")
    assert (tmp_path / "out.json").read_text() == "new"
    assert neighbour.read_text() == "mine"
    assert names(tmp_path) == ["out.json", "out.json.part"]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
@pytest.mark.parametrize("former", [None, "old"])
def test_a_file_that_was_not_finished_leaves_nothing(tmp_path, neighbour, stop, former):
    path = tmp_path / "out.json"
    if former is not None:
        path.write_text(former)
    before = names(tmp_path)
    with pytest.raises(type(stop)), whole_file(path) as part:
        half_written(part, stop)
    assert names(tmp_path) == before
    assert former is None or path.read_text() == former


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
@pytest.mark.parametrize("former", [False, True])
def test_a_folder_that_was_not_finished_leaves_nothing(tmp_path, stop, former):
    path = tmp_path / "deep" / "down" / "out"
    if former:
        path.mkdir(parents=True)
        (path / "old").write_text("old")
    with pytest.raises(type(stop)), whole_folder(path) as part:
        half_written(part / "new", stop)
    if former:
        assert names(path) == ["old"]
        assert names(path.parent) == ["out"]
    else:
        assert names(tmp_path) == []


def test_a_folder_above_that_others_took_into_use_stays(tmp_path):
    with pytest.raises(ValueError, match="no"), whole_folder(tmp_path / "deep" / "down" / "out"):
        half_written(tmp_path / "deep" / "theirs", ValueError("no"))
    assert names(tmp_path / "deep") == ["theirs"]


def test_an_interrupt_while_clearing_away_leaves_nothing_either(tmp_path, monkeypatch):
    unlink, interrupted = Path.unlink, []

    def once(path, **options):
        if not interrupted:
            interrupted.append(path)
            raise KeyboardInterrupt
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", once)
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "out"):
        raise ValueError("no")
    assert interrupted
    assert names(tmp_path) == []


# -- links


def test_a_link_stays_one_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"
    assert names(tmp_path / "real") == ["file"]


def test_a_full_disk_behind_a_link_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old and whole")
    (tmp_path / "link").symlink_to("file")
    monkeypatch.setattr(Path, "write_bytes", half_then_full)
    with pytest.raises(OSError, match="No space left") as told:
        write_whole(tmp_path / "link", "new and longer")
    assert told.value.filename == str(tmp_path / "link")
    assert (tmp_path / "file").read_text() == "old and whole"
    assert names(tmp_path) == ["file", "link"]


def half_then_full(path, data):
    with path.open("wb") as file:
        file.write(data[: len(data) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_link_that_leads_nowhere_is_filled(tmp_path):
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_a_link_to_itself_is_refused_by_name(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for refused in (lambda: place_of(loop), lambda: write_whole(loop, "new"), lambda: whole_folder(loop).__enter__()):
        with pytest.raises(OSError, match="Too many levels of symbolic links") as told:
            refused()
        assert told.value.filename == str(loop)
    assert names(tmp_path) == ["loop"]


# -- what is told, and what stays


def test_errors_name_what_was_asked_for(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "no" / "out", tmp_path / "file" / "out"):
        with pytest.raises(OSError, match="directory") as told:
            write_whole(path, "new")
        assert told.value.filename == str(path)
    with pytest.raises(OSError, match="directory") as told, whole_folder(tmp_path / "file" / "out"):
        pass
    assert told.value.filename == str(tmp_path / "file" / "out")
    assert names(tmp_path) == ["file"]


def test_errors_of_other_files_keep_their_names(tmp_path):
    with pytest.raises(FileNotFoundError) as told, whole_file(tmp_path / "out"):
        (tmp_path / "source").read_text()
    assert told.value.filename == str(tmp_path / "source")


def test_a_library_that_gives_no_number_is_told_in_its_words(tmp_path):
    with pytest.raises(OSError, match="cannot be written: it is over"), whole_file(tmp_path / "out"):
        raise OSError("it is over")


def test_a_name_may_be_as_long_as_names_may_be(tmp_path):
    path = tmp_path / ("n" * 255)
    write_whole(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o755])
def test_who_may_read_a_file_stays(tmp_path, mode):
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(mode)
    write_whole(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_is_as_readable_as_any(tmp_path):
    write_whole(tmp_path / "ours", "")
    (tmp_path / "any").write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_a_pipe_is_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "new")
        assert os.read(reader, 9) == b"new"
    finally:
        os.close(reader)
    assert names(tmp_path) == ["pipe"]
