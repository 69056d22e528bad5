"""A file that is wrong gives one line that names file, field and value, exit code 2, and nothing half-written."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ..traces.making import edit_meta, edit_table, sign
from .command_line import paceline, refused

# -- recordings


@pytest.mark.parametrize("command", [("compare", "--trace"), ("trace", "inspect"), ("trace", "check")])
def test_a_recording_that_is_none(tmp_path, command):
    assert "missing.trace: trace: must be a directory, got 'nothing there'" in refused(*command, "missing.trace")
    (tmp_path / "file.trace").write_text("")
    assert "file.trace: trace: must be a directory, got 'a file'" in refused(*command, "file.trace")
    (tmp_path / "empty.trace").mkdir()
    assert "empty.trace/meta.json: file: must be a readable file" in refused(*command, "empty.trace")


def cut(path, name):
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[: len(data) // 2])


def cut_and_signed(path, name):
    cut(path, name)
    sign(path, name)


def without_column(path):
    edit_table(path, "nodes.parquet", lambda table: table.drop_columns(["mid.next_token"]))


def of_another_type(path):
    def floats(table):
        place = table.schema.get_field_index("mid.gap")
        values = [math.nan] * len(table)
        return table.set_column(place, "mid.gap", pa.array(values, pa.float32()))

    edit_table(path, "nodes.parquet", floats)


def parent_after_its_child(path):
    def loop(table):
        parents = table.column("parent").to_pylist()
        parents[1] = 2
        place = table.schema.get_field_index("parent")
        return table.set_column(place, "parent", pa.array(parents, pa.int32()))

    edit_table(path, "nodes.parquet", loop)


def duplicate_ids(path):
    def same(table):
        ids = ["small-0"] * len(table)
        return table.set_column(0, "id", pa.array(ids, pa.string()))

    edit_table(path, "requests.parquet", same)


def sampled(**options):
    coupled = {"mode": "coupled", "temperature": 1.0, "seed": 1}
    return lambda path: edit_meta(path, lambda meta: meta.update(sampling=coupled | options))


SPOILED = [
    (lambda path: cut(path, "nodes.parquet"), "nodes.parquet: sha256: must be"),
    (lambda path: cut(path, "requests.parquet"), "requests.parquet: sha256: must be"),
    (lambda path: cut_and_signed(path, "nodes.parquet"), "nodes.parquet: content: must be a Parquet file"),
    (lambda path: cut(path, "meta.json"), "meta.json: content: "),
    (lambda path: (path / "nodes.parquet").unlink(), "nodes.parquet: file: must be a readable file of the recording"),
    (without_column, "nodes.parquet: mid.next_token: must be a column of the file"),
    (of_another_type, "nodes.parquet: mid.gap: must be of type uint16, got 'float'"),
    (parent_after_its_child, "nodes.parquet: parent: must be the index of an earlier node of the request"),
    (duplicate_ids, "requests.parquet: id: must be unique, got 'small-0'"),
    (lambda path: edit_meta(path, lambda meta: meta.update(version=2)), "meta.json: version: "),
    (lambda path: edit_meta(path, lambda meta: meta.update(format="other")), "meta.json: format: "),
    (lambda path: edit_meta(path, lambda meta: meta.update(colour="red")), "meta.json: colour: "),
    (lambda path: edit_meta(path, lambda meta: meta.pop("models")), "meta.json: models: "),
    (lambda path: edit_meta(path, lambda meta: meta["costs"]["cpu"]["mid"].update(seconds=[math.nan])), "meta.json: "),
    (sampled(temperature=0), "meta.json: sampling.temperature: must be >= 0.001 and finite, got 0"),
    (sampled(top_p=1.5), "meta.json: sampling.top_p: must be in (0, 1], got 1.5"),
    (sampled(top_k=0), "meta.json: sampling.top_k: must be >= 1, got 0"),
]


@pytest.mark.parametrize(("spoil", "told"), SPOILED)
def test_a_recording_that_is_spoiled(trace, spoil, told):
    spoil(trace)
    line = refused("compare", "--trace", "small.trace")
    assert line.startswith("small.trace/")
    assert told in line


POOL = """
name = "tiny"
tokenizer = "tokenizer.json"
context_tokens = {context}

[[members]]
name = "{member}"
{what}

[[members]]
name = "target"
path = "target"
"""


def a_pool(folder, *, member="draft", what='path = "draft"', context="64"):
    folder.mkdir()
    (folder / "pool.toml").write_text(POOL.format(member=member, what=what, context=context))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_recording_of_another_tokenizer(trace, tmp_path):
    pool = a_pool(tmp_path / "pool")
    digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # of two braces
    line = refused("trace", "check", trace, "--pool", "pool")
    assert line == f"{trace}: tokenizer_sha256: must be that of pool, {digest[:12]}, got ''"
    edit_meta(trace, lambda meta: meta.update(tokenizer_sha256=digest))
    ran = paceline("trace", "check", trace, "--pool", pool)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"what": 'submodel_of = "huge"\nskip_layers = [1]'}, "members[0].submodel_of must be a member with a path"),
        ({"what": 'path = "x"\ncolour = 3'}, "members[0].colour is not a known key, got 3"),
        (
            {"what": 'submodel_of = "target"\nskip_layers = [1.0]'},
            "members[0].skip_layers[0] input should be a valid int",
        ),
        (
            {"what": "ngram = { max_match = 3.0 }"},
            "members[0].ngram.max_match input should be a valid integer, got 3.0",
        ),
        (
            {"what": "ngram = { max_match = true }"},
            "members[0].ngram.max_match input should be a valid integer, got True",
        ),
        ({"what": "", "context": "512.0"}, "context_tokens input should be a valid integer, got 512.0"),
        ({"what": f"x{'.x' * 50_000} = 1"}, "pool file must be TOML in UTF-8, got 'tables or lists nested too deep'"),
    ],
)
def test_a_pool_that_is_wrong(trace, tmp_path, change, told):
    a_pool(tmp_path / "pool", **change)
    line = refused("trace", "check", "small.trace", "--pool", "pool")
    assert line.startswith("pool/pool.toml: ")
    assert told in line


def test_a_pool_that_is_none(trace, tmp_path):
    assert refused("trace", "check", trace, "--pool", "nowhere") == "nowhere: pool file must exist, got 'nowhere'"
    a_pool(tmp_path / "pool")
    (tmp_path / "pool" / "tokenizer.json").unlink()
    line = refused("trace", "check", trace, "--pool", "pool")
    assert line == "pool/pool.toml: tokenizer must be a local file to be compared, got 'tokenizer.json'"


# -- prompts


def prompts(folder, *lines):
    (folder / "prompts.jsonl").write_text("".join(f"{line}\n" for line in lines))


GOOD = '{"id": "a", "prompt": "x"}'


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((), "prompts.jsonl: file: must hold at least one prompt, got 0"),
        ((GOOD, '{"id": "b", "prompt": "y"}', GOOD), "line 3, id: must be unique (first on line 1), got 'a'"),
        ((GOOD, "{"), "line 2: must be JSON"),
        (('{"id": "a"}',), "line 1, prompt: must be a string that is not empty, got None"),
        (
            ('{"id": "a", "prompt": "x", "size": 1}',),
            "keys must be among id, tag, prompt, answer, check, tests, got 'size'",
        ),
    ],
)
def test_prompts_that_are_none(tmp_path, lines, told):
    prompts(tmp_path, *lines)
    line = refused("record", "out", "--prompts", "prompts.jsonl")
    assert line.startswith("prompts.jsonl: ")
    assert told in line
    assert [file.name for file in tmp_path.iterdir()] == ["prompts.jsonl"]


@pytest.mark.parametrize("command", [("record", "out"), ("run",)])
def test_no_prompts(tmp_path, command):
    assert refused(*command, "--prompts", "missing.jsonl") == "missing.jsonl: No such file or directory"
    assert refused(*command, "--prompts", tmp_path) == f"{tmp_path}: Is a directory"
    assert "--prompts" in refused(*command)


@pytest.mark.parametrize("command", [("record", "out"), ("run", "--out", "out")])
def test_an_output_that_exists(tmp_path, command):
    prompts(tmp_path, GOOD)
    (tmp_path / "out").mkdir()
    assert "out: exists already; a r" in refused(*command, "--prompts", "prompts.jsonl")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("command", [("record", "out"), ("run", "--out", "out")])
def test_models_that_are_not_there(tmp_path, command):
    pytest.importorskip("torch")
    prompts(tmp_path, GOOD)
    assert "nowhere" in refused(*command, "--prompts", "prompts.jsonl", "--pool", "nowhere")
    a_pool(tmp_path / "pool")
    line = refused(*command, "--prompts", "prompts.jsonl", "--pool", "pool")
    assert "pool/pool.toml" in line
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pool", "prompts.jsonl"]


def test_recordings_stay_as_they_are(trace):
    table = pq.read_table(trace / "requests.parquet")
    paceline("compare", "--trace", trace)
    assert pq.read_table(trace / "requests.parquet").equals(table)


@pytest.mark.parametrize("name", ["", "a\nb", "a\x7f"])
def test_a_name_that_no_recording_can_have_is_refused_before_models_are_loaded(tmp_path, monkeypatch, name):
    monkeypatch.setattr("paceline.studies.record.load_pool", lambda *_, **__: pytest.fail("models were loaded"))
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    line = refused("record", "out.trace", "--prompts", "prompts.jsonl", "--name", name)
    assert line == f"the recording's name must be one line that is not empty, got {name!r}"
