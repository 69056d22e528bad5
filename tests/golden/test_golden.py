"""Commands and public functions print, write and take what the golden book says."""

import re

import pytest

from .book import HERE, PAGES, difference, groups, page, played, signatures

EVERY = groups()
HELP = re.compile(r"^\$ paceline ([\w -]*?) ?--help\n(.*?)(?=^\$ |\Z)", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"^  (--[\w-]+)(?: / (--[\w-]+))?", re.MULTILINE)
LEFT_OUT = re.compile(r"^# left out: (.*?): (.*)$", re.MULTILINE)


# Real models, which tests/cli runs as well; tables of every policy, each of which tests/policies checks.
SLOW = {"record", "run", "policies"}


@pytest.mark.parametrize("group", [pytest.param(group, marks=[pytest.mark.slow] * (group in SLOW)) for group in EVERY])
def test_commands_print_and_write_what_the_book_says(group, tmp_path):
    told = difference(page(group), played(EVERY[group], tmp_path))
    assert not told, f"python -m tests.golden --write {group}\n{told}"


def test_public_functions_take_what_the_book_says():
    told = difference(page("signatures"), signatures())
    assert not told, f"python -m tests.golden --write signatures\n{told}"


def test_the_book_has_no_page_without_commands():
    assert {path.stem for path in PAGES.glob("*.txt")} == {*EVERY, "signatures"}
    assert sum(path.stat().st_size for path in PAGES.iterdir()) < 1_750_000


def asked_options():
    """(command, option) of every help in the book."""
    for command, text in HELP.findall(page("help")):
        for found in OPTION.finditer(text):
            yield from ((command, option) for option in found.groups() if option and option != "--help")


def test_every_option_of_every_command_is_in_the_book_or_left_out_by_name():
    played_lines = [line for lines in EVERY.values() for line in lines if "--help" not in line]

    def is_played(command, option):
        words = re.compile(rf"paceline {command} (.* )?{option}( |$)".replace("  ", " "))
        return any(words.search(line) for line in played_lines)

    asked = {*asked_options()}
    assert len(asked) > 250
    left_out = {
        (command, option)
        for command, options in LEFT_OUT.findall((HERE / "commands.txt").read_text(encoding="utf-8"))
        for option in options.split()
    }
    assert {pair for pair in asked if not is_played(*pair)} == left_out
