"""Spoiled files of every format: a sound recording or one line of refusal, never a traceback, never half a trace."""

import copy
import gzip
import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.traces import TraceFormatError
from paceline.traces.importers import ImportOptions, format_names, import_recording
from paceline.traces.rounds.on_disk import read_rounds

from .foreign_files import STATED, one_file_each

DEEP = "deep"  # stands for brackets nested deeper than any parser goes
ODD_VALUES = (
    None, True, False, 0, -1, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.0, -0.5, 1.5, 1e-320, 1e308,
    float("nan"), float("inf"), "", "1", "x" * 300, "\ud800", "\x00", "a\nb", "é", [], {}, [[]], [{}], [1], [None],
    {"": 1}, DEEP,
)  # fmt: skip


ODD_WORDS = (
    "", "0", "-1", "1", "3", "7", "1.5", "0.000", "1.000", "nan", "NaN", "inf", "1e400", "1e9", "9" * 30, "2147483648",
    "{", "}", '"', "é", "\x00", "x" * 300, "position=", "/", "0.9, 0.9", ",",
)  # fmt: skip
METRICS = ("vllm-metrics", "sglang-metrics", "trtllm-metrics", "llamacpp-metrics")
TEXTS = frozenset({"llamacpp-log", "vllm-log", "sglang-log", *METRICS})
OPTIONS_SAY = ("drafters and target must be unique", "must be left out", "`windows` must name a drafter")


@st.composite
def places(draw, found):
    """A path to some value within JSON."""
    path = []
    while isinstance(found, (dict, list)) and found and (not path or draw(st.integers(0, 4))):
        keys = list(found) if isinstance(found, dict) else list(range(len(found)))
        path.append(draw(st.sampled_from(keys)))
        found = found[path[-1]]
    return path


@st.composite
def spoiled_objects(draw, found):
    """An object with one to three of its values dropped, repeated or replaced."""
    found = copy.deepcopy(found)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(places(found))
        if not path:
            continue
        around = found
        for key in path[:-1]:
            around = around[key]
        what = draw(st.sampled_from(["drop", "repeat", "replace", "replace"]))
        if what == "drop":
            del around[path[-1]]
        elif what == "repeat" and isinstance(around, list):
            around.append(copy.deepcopy(around[path[-1]]))
        else:
            around[path[-1]] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
    return found


@st.composite
def spoiled_lines(draw, data):
    """The lines of a file with objects spoiled, left out, repeated or swapped."""
    objects = [json.loads(line) for line in data.splitlines()]
    at = draw(st.integers(0, len(objects) - 1))
    what = draw(st.sampled_from(["spoil", "spoil", "spoil", "leave", "repeat", "array"]))
    if what == "spoil":
        objects[at] = draw(spoiled_objects(objects[at]))
    elif what == "leave":
        del objects[at]
    elif what == "repeat":
        objects.append(objects[at])
    else:
        objects[at] = [objects[at]]
    text = "\n".join(json.dumps(found) for found in objects)
    return text.replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000).encode()


@st.composite
def spoiled_bytes(draw, data):
    """A file with bytes altered, cut out or cut off."""
    spoiled = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(spoiled) - 1, 0)))
        what = draw(st.sampled_from(["alter", "cut out", "cut off", "insert"]))
        if what == "alter" and spoiled:
            spoiled[at] = draw(st.integers(0, 255))
        elif what == "cut out":
            del spoiled[at : at + draw(st.integers(1, 20))]
        elif what == "cut off":
            del spoiled[at:]
        else:
            spoiled[at:at] = draw(st.binary(min_size=1, max_size=6))
    return bytes(spoiled)


@st.composite
def spoiled_text(draw, data):
    """The lines of a text file with words replaced, left out, repeated or swapped."""
    lines = data.decode().splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        what = draw(st.sampled_from(["replace", "replace", "number", "number", "leave", "repeat"]))
        if what == "leave" and len(lines) > 1:
            del lines[at]
        elif what == "repeat":
            lines.insert(draw(st.integers(0, len(lines))), lines[at])
        else:
            pattern = r"[0-9.]+" if what == "number" else r"\S+"
            places = [found.span() for found in re.finditer(pattern, lines[at])]
            start, end = draw(st.sampled_from(places)) if places else (0, 0)
            lines[at] = lines[at][:start] + draw(st.sampled_from(ODD_WORDS)) + lines[at][end:]
    return "\n".join(lines).encode()


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    return {name: [(path.name, path.read_bytes()) for path in files] for name, files in one_file_each(folder).items()}


def check(name, sound, data, spoil):
    """Import the files of a format, one of them spoiled."""
    source = data.draw(st.sampled_from(sorted(sound))) if name == "auto" else name
    files = list(sound[source])
    at = data.draw(st.integers(0, len(files) - 1))
    files[at] = spoil(source, *files[at])
    options = ImportOptions(**STATED.get(source, {}), skip_bad_lines=data.draw(st.booleans()))
    refusal = None
    with tempfile.TemporaryDirectory() as made:
        paths, out = [Path(made) / file for file, _ in files], Path(made) / "out"
        for path, (_, content) in zip(paths, files, strict=True):
            path.write_bytes(content)
        out.mkdir()
        try:
            import_recording(name, paths, out / "t.trace", options)
        except ValueError as error:
            refusal = error
        assert [path.name for path in out.iterdir()] == ([] if refusal else ["t.trace"])
        if refusal is None:
            read_rounds(out / "t.trace")
            return
    told = str(refusal)
    assert isinstance(refusal, TraceFormatError) or any(words in told for words in OPTIONS_SAY)
    assert told.encode()
    assert "\n" not in told
    assert len(told) < 2000


EXAMPLES = settings.default.max_examples


@pytest.mark.parametrize("name", [*format_names(), "auto"])
@settings(max_examples=3 * EXAMPLES)
@given(data=st.data())
@pytest.mark.one_in(3)
def test_spoiled_values(sound, name, data):
    def spoil(source, file, content):
        return file, data.draw((spoiled_text if source in TEXTS else spoiled_lines)(content))

    check(name, sound, data, spoil)


@pytest.mark.parametrize("name", [*format_names(), "auto"])
@settings(max_examples=2 * EXAMPLES)
@given(data=st.data())
@pytest.mark.one_in(3)
def test_spoiled_bytes(sound, name, data):
    def spoil(_, file, content):
        if data.draw(st.booleans()):
            file, content = f"{file}.gz", gzip.compress(content, mtime=0)
        return file, data.draw(spoiled_bytes(content))

    check(name, sound, data, spoil)
