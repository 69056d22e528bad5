"""A pool file to which slim verifiers are added says what it said before, in the same words."""

import tomllib

import pytest
from paceline.runtime.pools.pool_file import PoolFileError, read_pool_file
from paceline.runtime.slim import SlimFound, add_slims, check_names, masks_of

TEXT = """\
# Of the club.
name = "p"
tokenizer = "words/tokenizer.json"  # shared
context_tokens = 512

[[members]]
name = "ngram"
ngram = { max_match = 3 }

# Small and quick.
[[members]]
name = 'draft'
path = 'draft'

[[members]] # by hand
name = "slim"
submodel_of = "target"
skip_layers = [
    1, 2,  # chosen by eye
]

# The large one,
# which writes.
[[members]]
name = "target"
path = "../large models/target"
device = "cpu"
"""
SIZES = {"ngram": 0, "draft": 10, "slim": 60, "target": 100}
BLOCK = '[[members]]\nname = "slim45"\nsubmodel_of = "target"\nskip_layers = [1, 3]\n\n'


@pytest.fixture
def file(tmp_path):
    folder = tmp_path / "pool"
    for part in (folder / "words", folder / "draft", tmp_path / "large models" / "target"):
        part.mkdir(parents=True)
    (folder / "words" / "tokenizer.json").write_text("{}")
    (folder / "pool.toml").write_text(TEXT, encoding="utf-8")
    return folder / "pool.toml"


def slim(name="slim45", layers=(1, 3), size=70):
    measured = {"share": 0.5, "tvd": 0.1, "disagreement": 0.1, "seconds": 1.0, "seconds_share": 0.5, "how": "random"}
    return SlimFound(name=name, skip_layers=layers, num_parameters=size, **measured)


def added(file, *slims, folder=None):
    content = read_pool_file(file)[1]
    sizes = {member.name: SIZES.get(member.name, 100) for member in content.members}
    return add_slims(file, content, slims, sizes, folder=folder or file.parent)


def names(text):
    return [member["name"] for member in tomllib.loads(text)["members"]]


def test_nothing_but_the_new_member_is_new(file):
    text = added(file, slim())
    assert text.replace(BLOCK, "") == TEXT
    assert names(text) == ["ngram", "draft", "slim", "slim45", "target"]
    assert '# which writes.\n[[members]]\nname = "target"' in text


@pytest.mark.parametrize(
    ("size", "order"),
    [
        (5, ["ngram", "slim45", "draft", "slim", "target"]),
        (10, ["ngram", "draft", "slim45", "slim", "target"]),
        (59, ["ngram", "draft", "slim45", "slim", "target"]),
        (99, ["ngram", "draft", "slim", "slim45", "target"]),
    ],
)
def test_members_stand_in_order_of_size(file, size, order):
    text = added(file, slim(size=size))
    assert names(text) == order
    assert text.replace(BLOCK, "") == TEXT


def test_several_are_added_in_order(file):
    text = added(file, slim("slim20", (1,), 90), slim("slim70", (1, 2, 3), 30))
    assert names(text) == ["ngram", "draft", "slim70", "slim", "slim20", "target"]


def test_a_member_of_the_same_name_is_replaced_where_it_stands(file):
    text = added(file, slim("slim", (3, 4), 60))
    assert names(text) == ["ngram", "draft", "slim", "target"]
    assert text == TEXT.replace("[\n    1, 2,  # chosen by eye\n]", "[3, 4]")


def test_a_replaced_member_moves_with_its_comments_if_its_size_changes(file):
    file.write_text(TEXT.replace("[[members]] # by hand", "# By hand.\n[[members]]"), encoding="utf-8")
    text = added(file, slim("slim", (1, 2, 3), 7))
    assert names(text) == ["ngram", "slim", "draft", "target"]
    assert '# By hand.\n[[members]]\nname = "slim"' in text


def test_windows_lines_stay(file):
    file.write_bytes(TEXT.replace("\n", "\r\n").encode())
    text = added(file, slim())
    assert "\n" not in text.replace("\r\n", "")
    assert text.replace(BLOCK.replace("\n", "\r\n"), "") == TEXT.replace("\n", "\r\n")


def test_the_last_line_need_not_end(file):
    file.write_text(TEXT.rstrip("\n"), encoding="utf-8")
    assert added(file, slim()).replace(BLOCK, "") == TEXT.rstrip("\n")


def test_locations_are_found_from_another_folder(file, tmp_path):
    other = tmp_path / "kept" / "here"
    other.mkdir(parents=True)
    text = added(file, slim(), folder=other)
    content = tomllib.loads(text)
    locations = [content["tokenizer"], *(member["path"] for member in content["members"] if "path" in member)]
    assert locations == ["../../pool/words/tokenizer.json", "../../pool/draft", "../../large models/target"]
    assert all((other / location).exists() for location in locations)
    assert "# shared" in text


def test_vocabularies_and_low_ranks_are_found_from_another_folder(file, tmp_path):
    vocabulary, low_rank = file.parent / "draft" / "said.json", file.parent / "restored.safetensors"
    vocabulary.touch()
    low_rank.touch()
    text = TEXT.replace("path = 'draft'", "path = 'draft'\nvocabulary = \"draft/said.json\"")
    text = text.replace("by eye\n]", 'by eye\n]\nlow_rank = "restored.safetensors"')
    file.write_text(text, encoding="utf-8")
    members = {member["name"]: member for member in tomllib.loads(added(file, slim(), folder=tmp_path))["members"]}
    assert members["draft"]["vocabulary"] == "pool/draft/said.json"
    assert members["slim"]["low_rank"] == "pool/restored.safetensors"


def test_hub_ids_and_absolute_locations_stay(file, tmp_path):
    absolute = str(tmp_path / "pool" / "draft")
    text = TEXT.replace("'draft'\n\n", f"'{absolute}'\n\n").replace("../large models/target", "owner/target")
    file.write_text(text, encoding="utf-8")
    content = tomllib.loads(added(file, slim(), folder=tmp_path))
    assert [member["path"] for member in content["members"] if "path" in member] == [absolute, "owner/target"]


def test_a_link_to_the_same_folder_is_the_same_folder(file, tmp_path):
    (tmp_path / "link").symlink_to(file.parent)
    assert added(file, slim(), folder=tmp_path / "link").replace(BLOCK, "") == TEXT


@pytest.mark.parametrize(
    "text",
    [
        'name = "p"\ntokenizer = "t"\ncontext_tokens = 8\nmembers = [{ name = "target", path = "a/b" }]\n',
        'name = "p"\ntokenizer = "t"\ncontext_tokens = 8\n[["members"]]\nname = "target"\npath = "a/b"\n',
        'name = """\n[[members]]"""\ntokenizer = "t"\ncontext_tokens = 8\n[[members]]\nname = "target"\npath = "a/b"\n',
    ],
)
def test_a_file_in_another_form_is_refused(file, text):
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PoolFileError, match=r"pool\.toml: members must be a \[\[members\]\] table with plain keys"):
        added(file, slim())


def test_a_location_that_cannot_be_rewritten_is_refused(file, tmp_path):
    file.write_text(TEXT.replace("path = 'draft'", "\"path\" = 'draft'"), encoding="utf-8")
    with pytest.raises(PoolFileError, match=r"with plain keys for each member, to have one added, got 'another form'"):
        added(file, slim(), folder=tmp_path)


def test_names_that_are_taken_are_refused(file):
    path, content = read_pool_file(file)
    check_names(path, content, ["slim45"], replace=False)
    check_names(path, content, ["slim"], replace=True)
    with pytest.raises(PoolFileError, match=r"members\[2\]\.name .*`replace`.*, got 'slim'"):
        check_names(path, content, ["slim45", "slim"], replace=False)
    with pytest.raises(PoolFileError, match=r"members\[1\] must be a submodel of target to be replaced, got 'draft'"):
        check_names(path, content, ["draft"], replace=True)


def test_one_with_weights_of_its_own_is_neither_replaced_nor_compared(file):
    assert masks_of(read_pool_file(file)[1]) == {"slim": (1, 2)}
    file.write_text(TEXT.replace("by eye\n]", 'by eye\n]\nlow_rank = "restored.safetensors"'), encoding="utf-8")
    path, content = read_pool_file(file)
    assert masks_of(content) == {}
    with pytest.raises(PoolFileError, match=r"members\[2\]\.low_rank must be absent where the submodel"):
        check_names(path, content, ["slim"], replace=True)
