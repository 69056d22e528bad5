"""Progress: a line every ten seconds where standard error is no terminal, a bar where it is one, never on stdout."""

import time
from contextlib import redirect_stderr
from io import StringIO
from types import SimpleNamespace

import pytest
from paceline.base import terminal as module
from paceline.base.terminal import Progress, in_words, quiet, tracked


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.fixture
def often(monkeypatch):
    """Lines come every hundredth of a second, and no time goes by for whoever reads the clock."""
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 5.0))


@pytest.fixture
def an_xterm(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)


def lines_after(stream, count):
    """Waits until so many lines were written."""
    deadline_s = time.monotonic() + 300
    while stream.getvalue().count("\n") < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    return stream.getvalue().splitlines()


def test_ten_seconds():
    assert module.SECONDS_BETWEEN_LINES == 10


def test_what_is_quick_says_nothing(capsys):
    with Progress("counting", 3) as progress:
        progress.advance()
    assert list(tracked("abc", "spelling", total=3)) == ["a", "b", "c"]
    assert tuple(capsys.readouterr()) == ("", "")


def test_a_single_unit_that_lasts_is_told_again_and_again(often, capsys):
    stream = StringIO()
    with redirect_stderr(stream), Progress("recording", 3, unit="requests") as progress:
        progress.advance()
        lines = lines_after(stream, 4)
    assert lines[1:4] == ["paceline: recording: 1 of 3 requests, 0 s, about 0 s left"] * 3
    assert tuple(capsys.readouterr()) == ("", "")


def test_the_last_line_says_how_long_it_took(often):
    stream = StringIO()
    with redirect_stderr(stream), Progress("recording", 2, unit="requests") as progress:
        lines_after(stream, 1)
        progress.advance(2)
    said = stream.getvalue()
    assert said.endswith("paceline: recording: 2 of 2 requests, 0 s\n")
    time.sleep(0.05)
    assert stream.getvalue() == said


def test_what_fails_says_no_more(often):
    stream = StringIO()
    progress = Progress("dividing", 2)
    with redirect_stderr(stream):
        progress.__enter__()
        told = lines_after(stream, 1)
        progress.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert stream.getvalue().splitlines()[-1] == told[0]


def test_one_inside_another_is_not_shown(often, capsys):
    with quiet(), Progress("inner", 2):
        time.sleep(0.05)
    assert tuple(capsys.readouterr()) == ("", "")


def test_where_nobody_reads_it_goes_on(often):
    stream = StringIO()
    with redirect_stderr(stream), Progress("writing", 2) as progress:
        stream.close()
        time.sleep(0.05)
        progress.advance()


@pytest.mark.parametrize(
    ("options", "done", "taken_s", "line"),
    [
        ({"total": 12, "unit": "requests"}, 3, 41, "x: 3 of 12 requests, 41 s, about 2 min left"),
        ({"total": 12, "done": 8}, 10, 30, "x: 10 of 12, 30 s, about 30 s left"),
        ({"total": 12, "done": 8}, 8, 30, "x: 8 of 12, 30 s"),
        ({"total": 12}, 12, 7300, "x: 12 of 12, 2.0 h"),
        ({"unit": "requests"}, 1200, 20, "x: 1,200 requests, 20 s"),
        ({}, 0, 10, "x: 10 s"),
    ],
)
def test_a_line_says_how_far_and_how_long_to_go(often, options, done, taken_s, line):
    progress = Progress("x", **options)
    progress.advance_to(done)
    progress._started_at_s -= taken_s
    assert progress.line == line


def test_a_note_stands_in_the_line(often):
    progress = Progress("replaying", 4)
    progress.advance_to(1, "plain")
    assert progress.line == "replaying: 1 of 4, plain, 0 s, about 0 s left"
    progress.note("ngram, seed 3 of 5")
    assert "1 of 4, ngram, seed 3 of 5, 0 s" in progress.line


def test_a_terminal_has_a_bar_and_keeps_nothing_of_it(often, an_xterm, capsys):
    stream = Terminal()
    with redirect_stderr(stream), Progress("recording", 3, unit="requests") as progress:
        progress.advance(2)
        deadline_s = time.monotonic() + 300
        while "2 of 3 requests" not in stream.getvalue() and time.monotonic() < deadline_s:
            time.sleep(0.005)
    shown = stream.getvalue()
    assert "recording" in shown
    assert "2 of 3 requests" in shown
    assert "paceline:" not in shown
    assert shown.endswith("\x1b[2K")  # the line is erased
    assert tuple(capsys.readouterr()) == ("", "")


def test_words_for_a_span():
    assert [in_words(seconds) for seconds in (0.2, 99, 130, 5999, 9000)] == ["0 s", "99 s", "2 min", "100 min", "2.5 h"]
