"""Files of others are read strictly, in one line for whatever is wrong; our own are whole or as they were before."""

import errno
import json
import os
import stat
import tomllib
from pathlib import Path

import pytest
from paceline.base import files as strict_json
from paceline.base.errors import repeated
from paceline.base.files import (
    MOST_DEPTH,
    decode_json,
    nested_too_deep,
    place_of,
    read_json,
    whole_file,
    whole_folder,
    write_whole,
)
from paceline.base.toml import TomlFileError, decode_toml, read_toml
from paceline.policies.learned import read_head
from paceline.runs.observed import read_run
from paceline.runtime.pools.heads import read_head_tokens
from paceline.runtime.prompts import read_prompts
from paceline.runtime.tasks import read_task
from paceline.sim.cost.files import read_cost_file
from paceline.traces import TraceFormatError
from paceline.traces.contexts.meta import TrieMeta
from paceline.traces.folder import read_meta
from paceline.traces.importers import read_recording
from paceline.traces.shapes_given import given_shapes
from paceline.traces.workloads import open_workload

from .pairs import pairs

MANY = 200_000


def test_those_that_stood_before_in_order():
    assert repeated("abcabca") == ["a", "b", "c", "a"]
    assert repeated(iter([1, 2, 3])) == []


def test_many_keys_with_the_last_one_twice():
    pairs = ", ".join(f'"k{number}": 1' for number in range(MANY))
    with pytest.raises(ValueError, match=f"^key 'k{MANY - 1}' twice$"):
        decode_json(f'{{{pairs}, "k{MANY - 1}": 2}}'.encode())
    with pytest.raises(ValueError, match=r"^key 'x{100}' twice$"):  # of a key of any length the beginning
        decode_json(json.dumps({"x" * 5000: 1})[:-1].encode() + b', "' + b"x" * 5000 + b'": 2}')


def test_many_blocks_with_the_last_one_twice(tmp_path):
    path = tmp_path / "w.jsonl"
    line = {"timestamp": 0, "input_length": MANY * 512, "output_length": 1, "hash_ids": [*range(MANY), MANY - 1]}
    path.write_text(json.dumps(line))
    with pytest.raises(TraceFormatError, match=f"hash_ids: must not hold an id twice.*got {MANY - 1}$"):
        list(open_workload(path))


@pytest.mark.parametrize("opened", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [1, MOST_DEPTH, MOST_DEPTH + 1, 900, 2000, 200_000])
def test_brackets_within_brackets(opened, depth):
    text = (opened * depth + "1" + {"[": "]"}.get(opened, "}") * depth).encode()
    if depth > MOST_DEPTH:
        with pytest.raises(ValueError, match=r"^brackets nested too deep$"):
            decode_json(text)
    else:
        assert decode_json(text) == json.loads(text)


def test_many_brackets_that_are_not_deep_and_brackets_in_texts():
    wide = [[[number]] for number in range(1000)]
    assert decode_json(json.dumps(wide).encode()) == wide
    text = {"a": "[" * 10_000}
    assert decode_json(json.dumps(text).encode()) == text
    assert not nested_too_deep("[[[")


def test_a_byte_order_mark_begins_a_text_of_json_and_nothing_else():
    """RFC 8259 lets a reader ignore it; some clients and editors write one."""
    assert decode_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    for text in (b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}', b'{"a": 1}\xef\xbb\xbf', b"\xef\xbb\xbf"):
        with pytest.raises(ValueError, match=r"at character [08]$"):
            decode_json(text)


def test_constants_are_taken_where_asked():
    assert decode_json(b'{"a": [Infinity, -Infinity]}', constants=True) == {"a": [float("inf"), float("-inf")]}
    for word in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(ValueError, match=f"^{word}, which is no JSON$"):
            decode_json(word.encode())


def test_no_more_of_a_file_is_read_than_it_may_have(tmp_path, monkeypatch):
    monkeypatch.setattr(strict_json, "MOST_BYTES", 100)
    path = tmp_path / "x.json"
    path.write_text('"' + "x" * 98 + '"')
    assert read_json(path) == "x" * 98
    path.write_text('"' + "x" * 99 + '"')
    with pytest.raises(ValueError, match=r"^more than 100 bytes$"):
        read_json(path)
    with pytest.raises(TomlFileError, match=r"x\.json: cluster must be TOML in UTF-8, got 'more than 100 bytes'"):
        read_toml(path, "cluster", TomlFileError)


LONG = 200_000
TEXTS = {
    "a long key": "a" * LONG + " = 1",
    "a long key without a value": "a" * LONG,
    "a long quoted key": f'"{"a" * LONG}" = 1',
    "a long name": f'name = "{"a" * LONG}"',
    "an open quote": '"' + "a" * LONG,
    "an open single quote": "'" + "a " * LONG,
    "quotes": '"' * LONG + '"',
    "dashes": "a-" * LONG,
    "blanks": "a" + " " * LONG,
    "blanks around dots": "a . " * 60 + " " * LONG,
    "many tables": "".join(f"[t{number}]\n" for number in range(5_000)),
}
DEEP = {
    "lists": "a = " + "[" * 5000 + "]" * 5000,
    "lists that are read": "a = " + "[" * 150 + "]" * 150,
    "tables": "a = " + "{b = " * 3000 + "1" + "}" * 3000,
    "dots": "a." * 200_000 + "b = 1",
    "quoted dots": '"a b".' * 100 + "c = 1",
    "single quotes": "'a'." * 100 + "c = 1",
    "a header": "[" + ".".join("a" * 200) + "]",
}


@pytest.mark.parametrize("name", TEXTS)
def test_long_toml_reads_as_the_standard_library_reads_it(name):
    try:
        expected = tomllib.loads(TEXTS[name])
    except tomllib.TOMLDecodeError:
        with pytest.raises(tomllib.TOMLDecodeError):
            decode_toml(TEXTS[name])
    else:
        assert decode_toml(TEXTS[name]) == expected


@pytest.mark.parametrize("name", DEEP)
def test_deep_toml_is_refused_in_one_line(name, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(DEEP[name])
    with pytest.raises(TomlFileError) as error:
        read_toml(path, "cluster", TomlFileError)
    assert str(error.value) == f"{path}: cluster must be TOML in UTF-8, got 'tables or lists nested too deep'"


CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
          "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 100, "torch_dtype": "float16"}  # fmt: skip


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


READERS = {
    "a model's config": ("config.json", lambda path: given_shapes([f"target={path}"], "target")),
    "shapes": ("models.json", lambda path: given_shapes([str(path)], "target")),
    "costs": ("costs.json", lambda path: read_cost_file(path, ("target",))),
    "an acceptance head": ("head.json", lambda path: read_head(str(path))),
    "prompts": ("prompts.jsonl", read_prompts),
    "questions": ("gsm8k.jsonl", lambda path: read_task("gsm8k", path)),
    "a workload": ("workload.jsonl", lambda path: list(open_workload(path))),
    "a log": ("log.jsonl", lambda path: read_recording("positions", [path])),
    "a recording": ("meta.json", lambda path: read_meta(path, TrieMeta)),
    "a result": ("bench.json", read_run),
    "ids of a head": ("ids.json", lambda path: read_head_tokens(path, 100)),
}


@pytest.mark.parametrize(
    ("name", "brackets", "depth"), pairs(list(READERS), [("[", "]"), ('{"a": ', "}")], [150, 900, 100_000])
)
def test_every_reader_of_json_answers_deep_nesting_with_one_line(tmp_path, name, brackets, depth):
    file, read = READERS[name]
    opened, closed = brackets
    path = written(tmp_path, file, '{"model_type": ' + opened * depth + "1" + closed * depth + "}")
    with pytest.raises(ValueError, match=r"nested too deep|recursion limit|name: field required") as error:
        read(path)
    assert "\n" not in str(error.value)


def test_constants_of_configs_and_workloads_that_nobody_reads(tmp_path):
    path = written(tmp_path, "config.json", json.dumps({**CONFIG, "time_step_limit": [0.0, float("inf")]}))
    assert given_shapes([f"target={path}"], "target")[0].layers == 2
    written(tmp_path, "config.json", json.dumps({**CONFIG, "hidden_size": float("inf")}))
    with pytest.raises(TraceFormatError, match=r"hidden_size: must be a whole number .*, got inf"):
        given_shapes([f"target={path}"], "target")
    line = {"arrives_s": float("nan"), "prompt_tokens": 3, "output_tokens": 2}
    with pytest.raises(TraceFormatError, match=r"arrives_s: must be .*, got nan"):
        list(open_workload(written(tmp_path, "w.jsonl", json.dumps(line))))


STOPS = [KeyboardInterrupt(), ValueError("no"), OSError(errno.ENOSPC, "No space left on device")]


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def half_written(path, stop):
    path.write_text("ha")
    raise stop


@pytest.fixture
def neighbour(tmp_path):
    """What a former way of writing `out.json` would have written to, and taken away."""
    (tmp_path / "out.json.part").write_text("mine")
    return tmp_path / "out.json.part"


def test_a_neighbour_stays(tmp_path, neighbour):
    write_whole(tmp_path / "out.json", "new")
    assert (tmp_path / "out.json").read_text() == "new"
    assert neighbour.read_text() == "mine"
    assert names(tmp_path) == ["out.json", "out.json.part"]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
@pytest.mark.parametrize("former", [None, "old"])
def test_a_file_that_was_not_finished_leaves_nothing(tmp_path, neighbour, stop, former):
    path = tmp_path / "out.json"
    if former is not None:
        path.write_text(former)
    before = names(tmp_path)
    with pytest.raises(type(stop)), whole_file(path) as part:
        half_written(part, stop)
    assert names(tmp_path) == before
    assert former is None or path.read_text() == former


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
@pytest.mark.parametrize("former", [False, True])
def test_a_folder_that_was_not_finished_leaves_nothing(tmp_path, stop, former):
    path = tmp_path / "deep" / "down" / "out"
    if former:
        path.mkdir(parents=True)
        (path / "old").write_text("old")
    with pytest.raises(type(stop)), whole_folder(path) as part:
        half_written(part / "new", stop)
    if former:
        assert names(path) == ["old"]
        assert names(path.parent) == ["out"]
    else:
        assert names(tmp_path) == []


def test_a_folder_above_that_others_took_into_use_stays(tmp_path):
    with pytest.raises(ValueError, match="no"), whole_folder(tmp_path / "deep" / "down" / "out"):
        half_written(tmp_path / "deep" / "theirs", ValueError("no"))
    assert names(tmp_path / "deep") == ["theirs"]


def test_an_interrupt_while_clearing_away_leaves_nothing_either(tmp_path, monkeypatch):
    unlink, interrupted = Path.unlink, []

    def once(path, **options):
        if not interrupted:
            interrupted.append(path)
            raise KeyboardInterrupt
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", once)
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "out"):
        raise ValueError("no")
    assert interrupted
    assert names(tmp_path) == []


# -- links
def test_a_link_stays_one_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "new"
    assert names(tmp_path / "real") == ["file"]


def test_a_full_disk_behind_a_link_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old and whole")
    (tmp_path / "link").symlink_to("file")
    monkeypatch.setattr(Path, "write_bytes", half_then_full)
    with pytest.raises(OSError, match="No space left") as told:
        write_whole(tmp_path / "link", "new and longer")
    assert told.value.filename == str(tmp_path / "link")
    assert (tmp_path / "file").read_text() == "old and whole"
    assert names(tmp_path) == ["file", "link"]


def half_then_full(path, data):
    with path.open("wb") as file:
        file.write(data[: len(data) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_link_that_leads_nowhere_is_filled(tmp_path):
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_a_link_to_itself_is_refused_by_name(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for refused in (lambda: place_of(loop), lambda: write_whole(loop, "new"), lambda: whole_folder(loop).__enter__()):
        with pytest.raises(OSError, match="Too many levels of symbolic links") as told:
            refused()
        assert told.value.filename == str(loop)
    assert names(tmp_path) == ["loop"]


# -- what is told, and what stays
def test_errors_name_what_was_asked_for(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "no" / "out", tmp_path / "file" / "out"):
        with pytest.raises(OSError, match="directory") as told:
            write_whole(path, "new")
        assert told.value.filename == str(path)
    with pytest.raises(OSError, match="directory") as told, whole_folder(tmp_path / "file" / "out"):
        pass
    assert told.value.filename == str(tmp_path / "file" / "out")
    assert names(tmp_path) == ["file"]


def test_errors_of_other_files_keep_their_names(tmp_path):
    with pytest.raises(FileNotFoundError) as told, whole_file(tmp_path / "out"):
        (tmp_path / "source").read_text()
    assert told.value.filename == str(tmp_path / "source")


def test_a_library_that_gives_no_number_is_told_in_its_words(tmp_path):
    with pytest.raises(OSError, match="cannot be written: it is over"), whole_file(tmp_path / "out"):
        raise OSError("it is over")


def test_a_name_may_be_as_long_as_names_may_be(tmp_path):
    path = tmp_path / ("n" * 255)
    write_whole(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o755])
def test_who_may_read_a_file_stays(tmp_path, mode):
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(mode)
    write_whole(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_is_as_readable_as_any(tmp_path):
    write_whole(tmp_path / "ours", "")
    (tmp_path / "any").write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_a_pipe_is_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "new")
        assert os.read(reader, 9) == b"new"
    finally:
        os.close(reader)
    assert names(tmp_path) == ["pipe"]
