"""Rows of a table that one test checks: each row that is wrong is named, so that the first does not hide the others."""

import pytest

SHOWN = 200  # characters of a row, whose number tells the rest


def check_rows(rows, check):
    """Call `check` with every row, which is a tuple; fail with all that it says, row by row, whatever it raises."""
    wrong = []
    for number, row in enumerate(rows):
        try:
            check(*row)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - what a row raises is told with the row
            wrong.append(f"row {number}, {str(row)[:SHOWN]}: {type(error).__name__}: {error}")
    assert not wrong, "\n\n".join(wrong)
