"""Screens that show ASCII only: every command prints all the same, and what is written for programs does not change."""

import json
import os
import subprocess
import sys

import pytest
from paceline.base.terminal import draws_boxes

from .command_line import done

ASCII = ({"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"PYTHONIOENCODING": "ascii"})
WORDS = (
    ("compare", "--trace", "small.trace", "--policy", "draft:9/mid:9/target", "--detail", "--by-tag"),
    ("compare", "--trace", "small.trace", "--policy", "via-sd,slim=mid", "--policy", "adaptive"),
    ("trace", "inspect"),
    ("policy", "list"),
    ("compare", "--help"),
)


def ran(*args, **environment):
    """The real command in an environment that says nothing else of languages; bytes."""
    unset = ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING", "PYTHONUTF8")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-m", "paceline", *args], capture_output=True, check=False, env={**kept, **environment}
    )


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_every_command_prints_where_only_ascii_is_shown(trace, words):
    run = ran(*words, **ASCII[len(words) % len(ASCII)])
    assert (run.returncode, run.stderr) == (0, b"")
    assert run.stdout.isascii()


@pytest.mark.parametrize("environment", ASCII, ids=str)
def test_tables_are_drawn_in_ascii(trace, environment):
    run = ran("compare", "--trace", "small.trace", "--policy", "draft:9/mid:9/target", "--seeds", "2", **environment)
    text = run.stdout.decode("ascii")
    assert run.returncode == 0
    assert "+-" in text
    assert "|draft:9/mid:9/target" in text.replace("| draft", "|draft")
    assert "+-: 95% interval" in text


@pytest.mark.parametrize("environment", [{"LANG": "C"}, {"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}], ids=str)
def test_boxes_are_drawn_where_they_are_shown(trace, environment):
    run = ran("compare", "--trace", "small.trace", "--policy", "plain", **environment)
    assert "┃" in run.stdout.decode("utf-8")


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("words", WORDS[:2], ids=" ".join)
def test_no_line_ends_in_spaces(trace, words, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = done(*words).splitlines()
    assert [line for line in lines if line != line.rstrip()] == []


def test_json_does_not_change(trace):
    words = ("compare", "--trace", "small.trace", "--policy", "adaptive", "--json", "-")
    plain, shown = (ran(*words, **environment).stdout for environment in (ASCII[0], {}))
    assert plain == shown
    assert json.loads(plain)["policies"]


def test_a_name_that_cannot_be_shown_is_spelled(trace, tmp_path):
    (tmp_path / "größe.py").write_text("from paceline.policies.fixed import Plain\n", encoding="utf-8")
    # What the terminal sent is UTF-8 whatever the locale says of output.
    run = ran(
        "compare", "--trace", "small.trace", "--policy", "größe.py:Plain", PYTHONIOENCODING="ascii", LC_ALL="C.UTF-8"
    )
    assert run.returncode == 0, run.stderr
    assert b"gr\\xf6\\xdfe.py:Plain" in run.stdout
    run = ran("compare", "--trace", "größe.trace", PYTHONIOENCODING="ascii", LC_ALL="C.UTF-8")
    assert run.returncode == 2
    assert run.stderr.startswith(b"paceline: error: gr\\xf6\\xdfe.trace: ")


@pytest.mark.parametrize(
    ("encoding", "drawn"), [("utf-8", True), ("ascii", False), ("latin-1", False), ("cp437", False)]
)
def test_which_encodings_draw_boxes(encoding, drawn):
    assert draws_boxes(encoding) is drawn
