"""Prompts as files hold them, and how answers to them are told right."""

import json
from decimal import Decimal

import pytest
from paceline.runtime.prompts import Prompt, is_right, last_number, read_prompts
from paceline.traces.errors import TraceFormatError


@pytest.fixture
def read(tmp_path):
    def reading(content):
        path = tmp_path / "prompts.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_prompts(path)

    return reading


def test_reads_in_file_order_with_defaults(read, tmp_path):
    assert read(
        '{"id": "b", "tag": "sums", "prompt": "1 + 1 =", "answer": "2"}\n\n{"id": "a", "prompt": "é\\n"}\r\n'
    ) == (
        Prompt(request_id="b", tag="sums", text="1 + 1 =", answer="2"),
        Prompt(request_id="a", tag="untagged", text="é\n", answer=None),
    )
    assert read('{"id": "a", "session": "s", "prompt": "x"}')[0].session == "s"
    # A byte order mark is no part of the first line.
    assert read(b'\xef\xbb\xbf{"id": "a", "prompt": "x"}')[0].request_id == "a"
    for blank in ("\n", " ", "\t\n"):  # a line break is a token to go on from, as any other
        assert read(json.dumps({"id": "a", "prompt": blank}))[0].text == blank
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_prompts(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file: must hold at least one prompt, got 0"),
        ("\n \n", "file: must hold at least one prompt, got 0"),
        ('{"id": "a", "prompt": "x"}\n{"id": ', "line 2: must be JSON"),
        ("[" * 100_000, "line 1: must be JSON"),
        ('{"id": "a", "prompt": "\\ud83d"}', "line 1, prompt: must hold no half of a surrogate pair, got '\\ud83d'"),
        ("[1, 2]", "line 1: must be a JSON object, got [1, 2]"),
        ('{"prompt": "x"}', "line 1: must have the key id, got 'prompt'"),
        ('{"id": 3, "prompt": "x"}', "line 1, id: must be a string that is not empty, got 3"),
        ('{"id": "a"}', "line 1: must have the key prompt, got 'id'"),
        ('{"id": "a", "prompt": ""}', "line 1, prompt: must be a string that is not empty, got ''"),
        ('{"id": "\\n", "prompt": "x"}', "line 1, id: must be more than spaces and line breaks, got '\\n'"),
        ('{"id": "a", "prompt": "x", "id": "b"}', "line 1: must be JSON (key 'id' twice)"),
        ('{"id": "a\\u001b[31m", "prompt": "x"}', "line 1, id: must hold no control characters"),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', "line 2, id: must be unique (first on line 1), got"),
        (b'{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "\xff"}', "line 2, byte 24: must be UTF-8, got b'\\xff'"),
        # What stands beside a prompt.
        ('"tag": ""', "line 1, tag: must be a string that is not empty, got ''"),
        ('"answer": null', "line 1, answer: must be a string that is not empty, got None"),
        ('"label": 1', "line 1: keys must be among id, tag, session, prompt, answer, check, tests, got 'label'"),
        ('"check": "tests", "answer": "1"', "line 1, check: must be one of text, number, got"),
        ('"check": "number"', "line 1, check: may stand only beside answer, got 'number'"),
        ('"check": "number", "answer": "many"', "line 1, answer: must hold a number, as check"),
        ('"tests": 1', "line 1, tests: must be an object of entry_point, code, check, got 1"),
        ('"tests": {"entry_point": "a", "code": "b", "check": ""}', "line 1, tests, check: must be a text that is not"),
        (
            '"tests": {"entry_point": "if", "code": "b", "check": "c"}',
            "line 1, tests, entry_point: must be the name of",
        ),
        ('"tests": {}, "answer": "1"', "line 1, tests: must stand without answer, got '1'"),
    ],
)
def test_what_breaks_the_format_is_named(read, tmp_path, text, message):
    if isinstance(text, str) and text.startswith('"'):
        text = f'{{"id": "a", "prompt": "x", {text}}}'
    with pytest.raises(TraceFormatError) as caught:
        read(text)
    assert str(caught.value).startswith(f"{tmp_path / 'prompts.jsonl'}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 18.", "18"),
        ("so 16 - 3-4 = 9 eggs\n#### 9", "9"),
        ("She makes $1,234.50.", "1234.50"),
        ("It fell to -5 degrees", "-5"),
        ("rooms 10-12", "12"),
        ("1,2,3", "3"),
        ("उत्तर १८ है", "18"),
        ("eighteen", None),
    ],
)
def test_the_last_number_counts(text, number):
    assert last_number(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("tag", "answer", "text", "check", "right"),
    [
        ("gsm8k", "1,004", "The answer is 1004.0", "number", True),
        ("math", "18", "18", "number", True),
        ("gsm8k", "18", "18 eggs, or 19", "number", False),
        ("gsm8k", "18", "nobody knows", "number", False),
        # Space around an answer does not count.
        ("math", " 12\n", " 9 + 3 = 12\nAnswer: 12\n", None, True),
        ("math", "2", " 9 + 3 = 12\nAnswer: 12\n", None, False),
        ("edit", " 12\n", "12 ", None, True),
        ("edit", "2", "12 ", None, False),
    ],
)
def test_answers_are_right(tag, answer, text, check, right):
    assert is_right(tag, answer, text, *([check] if check else [])) is right
