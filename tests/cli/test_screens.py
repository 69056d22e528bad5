"""The screens of `compare` are those in `golden/`. If a change is wanted: `make screens`, then read the diff."""

import pytest

from .screens import GOLDEN, SCREENS, WIDTHS, golden, screen


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("screens")


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was(name, columns, folder):
    assert screen(name, columns, folder) == golden(name, columns).read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_readable(name, columns):
    lines = golden(name, columns).read_text(encoding="utf-8").splitlines()
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= columns
    assert all(line == line.rstrip() for line in lines)


def test_nothing_else_is_kept():
    kept = {golden(name, columns).name for name in SCREENS for columns in WIDTHS}
    assert {path.name for path in GOLDEN.iterdir()} == kept
