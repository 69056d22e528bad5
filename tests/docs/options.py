"""Writes docs/options.md, the help of every command: `python -m tests.docs.options --write`."""

import sys
from html import escape

from paceline.cli.app import CommandByName, command
from paceline.cli.panels import SECTIONS
from typer._click import Context

from .shown import ROOT

PAGE = ROOT / "docs" / "options.md"
HEAD = """# Every command and its options

What `paceline COMMAND --help` prints; `python -m tests.docs.options --write` writes this page. Policies have options of
their own: [all of them](policies.md#every-option).
"""
ALIKE = "experiment "  # experiments share their options, so one of them stands for all


def commands(made, names=()):
    """(words as typed, command) of a command, or of all of a group."""
    made = made.make() if isinstance(made, CommandByName) else made
    for name, part in getattr(made, "commands", {}).items():
        yield from commands(part, (*names, name))
    if not hasattr(made, "commands"):
        yield " ".join(names), made


def options(words, made):
    """(text of help, its meaning) of each argument and option."""
    records = [one.get_help_record(Context(made, info_name=words)) for one in made.params]
    return [record for record in records if record is not None]


def table(head, rows):
    """Lines of a table of two columns, the first one of code."""
    lines = [f"| {code(name)} | {cell(meaning)} |" for name, meaning in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---|---|", *lines, ""])


def code(text):
    """Code as it stands in a table; a bar within backquotes is read in one way by GitHub and in another by mkdocs."""
    return f"<code>{escape(text).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def cell(text):
    """Text as it stands in a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


def page():
    """The whole text: each section of `paceline --help` with its commands, then the options of each."""
    made = dict(commands(command()))
    parts, seen = [HEAD], []
    for section, names in SECTIONS.items():
        of_section = [words for name in names for words in made if words.split()[0] == name]
        purposes = [(words, made[words].help or "") for words in of_section]
        parts += [f"## {section}\n", table(("command", "what it does"), purposes)]
        for words in of_section:
            found = options(words, made[words])
            if not (words.startswith(ALIKE) and found in seen):
                seen.append(found)
                parts += [f"### paceline {words}\n", table(("argument or option", "meaning"), found)]
    return "\n".join(parts)


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
