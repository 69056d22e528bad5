"""Pages of metrics: what a counter counted is the same however its scrapes were kept, and lines are what they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces import TraceFormatError
from paceline.traces.importers.metrics_pages import Scrapes, read_page

NAMES = frozenset({"a", "b"})
LABELS = st.dictionaries(st.sampled_from(["engine", "model_name"]), st.text(max_size=6), max_size=2)
# Of each series what it began with, and what it grew by between scrapes.
SERIES = st.tuples(st.sampled_from(["a", "b_total"]), LABELS, st.lists(st.integers(0, 50), min_size=3, max_size=3))
SUMMED = frozenset({"engine", "model_name"})


def numbered(lines):
    return [(f"page: line {number}", line) for number, line in enumerate(lines, start=1)]


def escaped(text):
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def line(name, labels, value):
    inner = ",".join(f'{key}="{escaped(found)}"' for key, found in labels.items())
    return f"{name}{{{inner}}} {value}" if inner else f"{name} {value}"


@given(st.lists(SERIES, min_size=1, max_size=5, unique_by=lambda one: (one[0], tuple(sorted(one[1].items())))))
def test_what_was_counted_is_the_last_less_the_first(series):
    scrapes = [[line(name, labels, sum(grown[: at + 1])) for name, labels, grown in series] for at in range(3)]
    wanted = {
        name: sum(sum(grown[1:]) for other, _, grown in series if other.removesuffix("_total") == name)
        for name in NAMES
    }
    apart = Scrapes(read_page(numbered(page), NAMES) for page in scrapes)
    together = Scrapes([read_page(numbered(one for page in scrapes for one in page), NAMES)])
    for found in (apart, together):
        assert len(found) == 3
        for name in NAMES:
            assert sum(found.counted(name, summed=SUMMED).values()) == wanted[name]
    alone = Scrapes([read_page(numbered(scrapes[-1]), NAMES)])
    everything = sum(sum(grown) for _, _, grown in series)
    assert sum(sum(alone.counted(name, summed=SUMMED).values()) for name in NAMES) == everything


@pytest.mark.parametrize(
    ("text", "labels", "value"),
    [
        ("a 2", {}, 2.0),
        ("a_total 2", {}, 2.0),
        ("  a{}  2.5e3 1700000000000", {}, 2500.0),
        (r'a{x="q\"},{\\\n",y=""} 1e3', {"x": 'q"},{\\\n', "y": ""}, 1000.0),
        ('a{le="1"} 3 # {trace="x"} 0.5', {"le": "1"}, 3.0),
        ('a{le="1"} 3 # {trace="} 9"} 0.5 1700000000.1', {"le": "1"}, 3.0),
        ('a 3 # {trace="x"} 0.5', {}, 3.0),
    ],
)
def test_a_sample_is_what_its_line_says(text, labels, value):
    (found,) = read_page(numbered([text]), NAMES).samples
    assert (found.name, dict(found.labels), found.value) == ("a", labels, value)


@pytest.mark.parametrize(
    "text", ["", "# TYPE a counter", "# a 3", "{", "1a 2", "abc 3", "ab{", "a_bucket x", "a_sum -1"]
)
def test_lines_of_other_metrics_are_passed_over(text):
    assert read_page(numbered([text]), NAMES).samples == ()


@pytest.mark.parametrize(
    "text", ["a", "a{", "a x", "a NaN", "a -1", "a +Inf", "a 1_000", 'a{x="1",x="2"} 3', "a{x=1} 2", "a{" + "," * 999]
)
def test_a_line_of_a_known_metric_must_be_a_sample(text):
    with pytest.raises(TraceFormatError, match="page: line 1: a: must be"):
        read_page(numbered([text]), NAMES)
