import pytest
from paceline.runtime.prompts import Prompt, read_prompts
from paceline.traces.errors import TraceFormatError


def write(folder, text):
    path = folder / "prompts.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_reads_in_file_order_with_defaults(tmp_path):
    path = write(
        tmp_path,
        '{"id": "b", "tag": "sums", "prompt": "1 + 1 =", "answer": "2"}\n\n{"id": "a", "prompt": "é\\n"}\r\n',
    )
    assert read_prompts(path) == (
        Prompt(request_id="b", tag="sums", text="1 + 1 =", answer="2"),
        Prompt(request_id="a", tag="untagged", text="é\n", answer=None),
    )


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    assert read_prompts(write(tmp_path, b'\xef\xbb\xbf{"id": "a", "prompt": "x"}'))[0].request_id == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file: must hold at least one prompt, got 0"),
        ("\n \n", "file: must hold at least one prompt, got 0"),
        ('{"id": "a", "prompt": "x"}\n{"id": ', "line 2: must be JSON"),
        ("[" * 100_000, "line 1: must be JSON"),
        ('{"id": "a", "prompt": "\\ud83d"}', "line 1, prompt: must hold no half of a surrogate pair, got '\\ud83d'"),
        ("[1, 2]", "line 1: must be a JSON object, got [1, 2]"),
        ('{"prompt": "x"}', "line 1, id: must be a string that is not empty, got None"),
        ('{"id": 3, "prompt": "x"}', "line 1, id: must be a string that is not empty, got 3"),
        ('{"id": "a"}', "line 1, prompt: must be a string that is not empty, got None"),
        ('{"id": "a", "prompt": ""}', "line 1, prompt: must be a string that is not empty, got ''"),
        ('{"id": "\\n", "prompt": "x"}', "line 1, id: must be more than spaces and line breaks, got '\\n'"),
        ('{"id": "a", "tag": "", "prompt": "x"}', "line 1, tag: must be a string that is not empty, got ''"),
        ('{"id": "a", "prompt": "x", "answer": null}', "line 1, answer: must be a string that is not empty, got None"),
        (
            '{"id": "a", "prompt": "x", "label": 1}',
            "line 1: keys must be among id, tag, prompt, answer, check, tests, got 'label'",
        ),
        (
            '{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}',
            "line 2, id: must be unique (first on line 1), got 'a'",
        ),
        ('{"id": "a", "prompt": "x", "id": "b"}', "line 1: must be JSON (key 'id' twice)"),
        ('{"id": "a\\u001b[31m", "prompt": "x"}', "line 1, id: must hold no control characters"),
        (
            '{"id": "a", "prompt": "x", "check": "tests", "answer": "1"}',
            "line 1, check: must be one of text, number, got",
        ),
        ('{"id": "a", "prompt": "x", "check": "number"}', "line 1, check: may stand only beside answer, got 'number'"),
        (
            '{"id": "a", "prompt": "x", "check": "number", "answer": "many"}',
            "line 1, answer: must hold a number, as check",
        ),
        (
            '{"id": "a", "prompt": "x", "tests": 1}',
            "line 1, tests: must be an object of entry_point, code, check, got 1",
        ),
        (
            '{"id": "a", "prompt": "x", "tests": {"entry_point": "a", "code": "b", "check": ""}}',
            "line 1, tests, check: must be a text that is not",
        ),
        (
            '{"id": "a", "prompt": "x", "tests": {"entry_point": "if", "code": "b", "check": "c"}}',
            "line 1, tests, entry_point: must be the name of",
        ),
        ('{"id": "a", "prompt": "x", "tests": {}, "answer": "1"}', "line 1, tests: must stand without answer, got '1'"),
        (b'{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "\xff"}', "line 2, byte 24: must be UTF-8, got b'\\xff'"),
    ],
)
def test_what_breaks_the_format_is_named(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(TraceFormatError) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["\\n", " ", "\\t\\n"])
def test_a_prompt_may_be_blank(tmp_path, text):
    """A line break is a token to go on from, as any other."""
    (prompt,) = read_prompts(write(tmp_path, f'{{"id": "a", "prompt": "{text}"}}'))
    assert prompt.text == text.encode().decode("unicode_escape")


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_prompts(tmp_path / "nowhere.jsonl")
