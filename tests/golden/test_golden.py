"""Commands and public functions print, write and take what the golden book says."""

import re

import pytest
from paceline.cli.app import command

from ..docs.options import ALIKE, commands
from .book import HERE, PAGES, difference, groups, page, played, signatures

EVERY = groups()
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
    """(command, option) of all commands; of the experiments, whose options are the same, of the first one."""
    seen = []
    for words, made in commands(command()):
        found = [name for one in made.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]
        if not (words.startswith(ALIKE) and found in seen):
            seen.append(found)
            yield from ((words, name) for name in found)


def test_every_option_of_every_command_is_in_the_book_or_left_out_by_name():
    played_lines = [line for lines in EVERY.values() for line in lines if "--help" not in line]

    def is_played(words, option):
        asked = re.sub(rf"^{ALIKE}baseline$", rf"{ALIKE}[a-z-]+", words)
        words = re.compile(rf"paceline {asked} (.* )?{option}( |$)")
        return any(words.search(line) for line in played_lines)

    asked = {*asked_options()}
    assert len(asked) > 250
    left_out = {
        (words, option)
        for words, options in LEFT_OUT.findall((HERE / "commands.txt").read_text(encoding="utf-8"))
        for option in options.split()
    }
    assert {pair for pair in asked if not is_played(*pair)} == left_out
