"""A page says what the tables say, asks nobody for anything, and holds no markup of its users."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import paceline
import pytest
from paceline.reports.page import PAGE, TOPICS, ReportPage, html_page, page_from, page_of
from paceline.reports.panels import Panel, Section, Series, Span, Spans, over_time, ranking
from paceline.reports.tables import Grid, table
from pydantic import TypeAdapter

from ..cli.command_line import done, refused

EVIL = '<script>alert("x")</script>'
# Elements without an end.
VOID = {"meta", "link", "br", "circle", "path", "use", "rect", "image"}


class WellFormed(HTMLParser):
    """Ends elements where they began; gathers ids, links, texts and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.addresses, self.texts = [], [], [], [], []
        self.scripts = 0

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        assert len(found) == len(attrs), (tag, attrs)
        self.scripts += tag == "script"
        self.ids += [found["id"]] if "id" in found else []
        for name in ("href", "src", "xlink:href", "action"):
            value = found.get(name)
            if value is not None:
                (self.links if value.startswith("#") else self.addresses).append(value)
        self.links += [f"#{one}" for value in found.values() for one in re.findall(r"url\(#([^)]*)\)", value or "")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def checked(html):
    """The page, read; it is well formed, its ids are unique, links lead to them, and no other address is in it."""
    read = WellFormed()
    read.feed(html)
    read.close()
    assert read.open == []
    assert len(set(read.ids)) == len(read.ids)
    assert {link[1:] for link in read.links} <= set(read.ids)
    assert all(address.startswith("data:") for address in read.addresses)
    assert "://" not in html
    assert "@import" not in html
    assert read.scripts == 1
    assert len(html) < 600_000
    return read


@pytest.fixture(scope="module")
def compared():
    return paceline.compare(
        paceline.open_recording(), ["draft:4/target", "typical"], by_tag=True, why=True, decide_s=0.001
    )


def test_a_page_says_the_answer_first_then_all_tables(compared):
    html = compared.to_html()
    read = checked(html)
    text = " ".join(read.texts)
    for line in compared.lines():
        for clause in line.split("; "):
            assert clause in text
    assert text.index(compared.lines()[0].split("; ")[0]) < text.index("Policies")
    for grid in compared.tables(detail=True):
        for row in grid.rows:
            assert all(cell.strip() in text for cell in row)
    assert compared.headline() in text
    assert "decide_s" in text
    assert "regret (compare --regret)" in text
    assert "where the gain goes (compare --why)" not in text


def test_json_gives_the_same_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = ["compare", "--policy", "draft:4/target", "--policy", "plain"]
    printed = done(*call, "--html", "a.html", "--json", "c.json")
    assert printed == ""
    assert done("report", "c.json", "--out", "b.html") == "b.html: open it in a browser\n"
    # The two pages were made by one call, whose command stands in both.
    assert Path("a.html").read_text() == Path("b.html").read_text()
    page = page_from(json.loads(Path("c.json").read_text()), "c.json")
    assert page == page_from({PAGE: page.to_json()}, "again")
    checked(Path("b.html").read_text())


def evil_page(**changes):
    line = Series(name=EVIL, x=(1.0, 2.0), y=(1.0, 3.0))
    panels = (
        Panel(title=EVIL, x_label=EVIL, y_label=EVIL, series=(line, Series(name="b", x=(1.0,), y=(2.0,)))),
        Panel(
            title="bars",
            x_label="",
            y_label="y",
            kind="bar",
            categories=(EVIL, "two"),
            series=(Series(name=EVIL, x=(0.0, 1.0), y=(1.0, 2.0)),),
        ),
        ranking(EVIL, {EVIL: (1.0, (0.5, 1.5))}, told=EVIL),
        Spans(
            title=EVIL,
            x_label="s",
            rows=(EVIL,),
            kinds=(EVIL, "b"),
            spans=(Span(0, 0.0, 1.0, EVIL), Span(0, 1.0, 2.0, "b")),
            style=".1f",
        ),
    )
    grid = table([{EVIL: EVIL, "x": "1"}, {EVIL: "b", "x": "2"}], title=EVIL, remarks=[EVIL])
    given = {"title": EVIL, "answer": (EVIL,), "sections": (Section(topic="figures", tables=(grid,), panels=panels),)}
    return ReportPage(**given | {"configuration": {EVIL: EVIL}, "command": EVIL} | changes)


def test_cells_in_bold_have_one_order():
    """None, of a whole row, has the hash of its address, so that a set of such places has any order."""
    places = [(row, column) for row in range(9) for column in (None, 0, 3)]
    rows = [dict.fromkeys("abcd", "x") for _ in range(9)]
    grid = TypeAdapter(Grid).dump_python(table(rows, bold=reversed(places)), mode="json")
    assert grid["bold"] == [list(place) for place in places]


def test_what_users_named_is_text():
    html = html_page([evil_page(), evil_page()])
    read = checked(html)
    assert "".join(read.texts).count(EVIL) > 30
    assert "<script>alert" not in html


def test_pages_without_anything_are_pages():
    html = html_page([ReportPage(title="", answer=(), sections=())])
    checked(html)
    assert all(source in html for _, source in TOPICS.values())


WRONG = [
    ("{", "c.json: content: must be JSON, or a folder be named"),
    ("[]", "c.json: content: must be an object, as --json writes it"),
    ("{}", "c.json: `page` must be there, as compare, simulate, recommend and others write it with --json"),
    ('{"page": {"version": 2}}', "c.json: `page.version` must be 1, got 2"),
    ('{"page": {"version": 1}}', "c.json: `page.title` must be given, got nothing"),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_files_that_hold_no_page_are_refused(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(content)
    assert refused("report", "c.json", "--out", "r.html").startswith(message)
    assert not Path("r.html").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda section: section.update(topic="x"), "`page.sections[0].topic` must be one of figures, policies, load,"),
        (
            lambda section: section["tables"][0]["rows"][0].pop(),
            "`page.sections[0].tables[0]` each row must",
        ),
    ],
)
def test_a_page_that_was_changed_leaves_nothing_out(change, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = evil_page().to_json()
    change(page["sections"][0])
    Path("c.json").write_text(json.dumps({PAGE: page}))
    assert refused("report", "c.json", "--out", "r.html").startswith(f"c.json: {told}")


def test_other_bad_input_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps({PAGE: evil_page(partial="3 runs left out").to_json()}))
    partial = "c.json: must be of a whole run, got a partial one (3 runs left out)"
    assert refused("report", "c.json", "--out", "r.html") == partial
    assert refused("report", "c.json", "--out", "r.pdf") == "--out must end in .html, got 'r.pdf'"
    assert refused("report", "c.json", "--out", "no/r.html") == "no/r.html: no folder no"
    assert refused("report", "no.run", "--out", "r.html").startswith("no.run: ")
    assert refused("report", "c.json", "c.json", "--out", "r.html").startswith("RUN|COMPARISON|SWEEP must be different")
    call = ["compare", "--policy", "plain", "--html", "c.html", "--json", "c.html"]
    assert refused(*call) == "--html must be a file of its own, got 'c.html'"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.json"]


def test_a_line_over_time_keeps_its_peaks():
    import numpy as np

    at = np.linspace(0.0, 10.0, 5000)
    values = np.zeros(5000)
    values[[7, 2500, 4999]] = (3.0, 9.0, 5.0)
    line = over_time("q", at, values)
    assert len(line.x) <= 200
    assert sorted({*line.y}) == [0.0, 3.0, 5.0, 9.0]
    peak = line.x[line.y.index(9.0)]
    assert peak <= at[2500] <= peak + 10.0 / 200
    assert over_time("q", at[:3], values[:3]).x == tuple(at[:3])


CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
# What a reader does, and what comes of it, written where the test finds it.
CLICKS = """<script>
window.errors = [];
window.addEventListener("load", function () {
  var table = document.querySelector("table.sorts"), head = table.tHead.rows[0].cells[1];
  function cells() {
    return Array.from(table.tBodies[0].rows).map(function (row) { return row.cells[1].textContent; });
  }
  head.querySelector("button").click();
  var down = cells().join("|"), sort = head.getAttribute("aria-sort");
  head.querySelector("button").click();
  var point = document.querySelector(".points circle");
  point.focus();
  document.getElementById("light").click();
  var told = { down: down, sort: sort, up: cells().join("|"), told: document.getElementById("told").textContent,
    label: point.getAttribute("aria-label"), light: document.documentElement.dataset.light, errors: window.errors };
  document.title = JSON.stringify(told);
});
window.addEventListener("error", function (event) { window.errors.push(event.message); });
</script></head>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_in_a_browser_tables_sort_points_tell_and_the_light_changes(compared, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(html_page([page_of(compared)]).replace("</head>", CLICKS))
    call = [
        CHROMIUM,
        *QUIET.split(),
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",  # of which a container may have little
        f"--user-data-dir={tmp_path / 'data'}",
    ]
    ran = subprocess.run([*call, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=600, check=True)
    (title,) = re.findall(r"<title>(.*?)</title>", ran.stdout, re.DOTALL)
    told = json.loads(title)
    speeds = [float(cell.split("x")[0]) for cell in told["down"].split("|")]
    assert speeds == sorted(speeds, reverse=True)
    assert told["up"] == "|".join(reversed(told["down"].split("|")))
    assert told["sort"] == "descending"
    assert told["told"] == told["label"] != ""
    assert told["light"] == "dark"
    assert told["errors"] == []
    assert 'data-ready="yes"' in ran.stdout
