"""Shared code of all benchmarks: reading options and printing tables."""

import argparse
from collections.abc import Iterable, Sequence

from paceline.reports.tables import console_of_output, print_tables
from paceline_laboratory.findings import Cell, table


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the script's own docstring as its help."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def show(title: str, rows: Iterable[Sequence[Cell]], *remarks: str, lines: Iterable[int] = ()) -> None:
    """Print a table of rows, remarks below it; `lines` are drawn after these rows."""
    print_tables(console_of_output(), [table(title, rows).grid(*remarks, lines=lines)])


def verdict(value: float, goal: float) -> str:
    """A figure beside its goal."""
    return f"{value:.2f} ({'reaches' if value >= goal else 'MISSES'} {goal:g})"
