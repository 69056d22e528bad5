"""What a command found is printed or written, and only that one form of it is made."""

import json

import pytest
from paceline.cli.output import show
from paceline.reports.tables import Printed, table


class Found(Printed):
    """Says of an argument, in a table and in JSON, and counts what it is asked for."""

    def __init__(self):
        self.asked = []
        self.meta = {"remarks": ["`decide_s` is 1"], "notes": ["`decide_s` is a field"]}

    def tables(self):
        self.asked.append("tables")
        return [table([{"a": "1"}], remarks=self.meta["remarks"])]

    def lines(self):
        self.asked.append("lines")
        return ["one line"]

    def to_json(self):
        self.asked.append("json")
        return {"meta": self.meta, "rows": [1]}

    def to_dicts(self):
        raise AssertionError("nobody asks for rows")


@pytest.fixture
def found():
    return Found()


def test_json_alone_is_made_where_it_is_asked_for(found, tmp_path):
    show(tmp_path / "out.json", found)
    assert found.asked == ["json"]
    said = json.loads((tmp_path / "out.json").read_text())
    assert said == {"meta": {"remarks": ["--decide-seconds is 1"], "notes": ["`decide_s` is a field"]}, "rows": [1]}


def test_what_is_given_is_left_as_it_is(found, tmp_path):
    show(tmp_path / "out.json", found)
    assert found.meta["remarks"] == ["`decide_s` is 1"]


def test_tables_and_lines_are_printed_without_json(found, capsys):
    show(None, found)
    assert found.asked == ["tables", "lines"]
    out = capsys.readouterr().out
    assert "--decide-seconds is 1" in out
    assert out.endswith("one line\n")


def test_other_tables_take_the_place_of_its_own(found, capsys):
    show(None, found, lambda: [table([{"b": "2"}])])
    assert found.asked == ["lines"]
    assert "b" in capsys.readouterr().out
