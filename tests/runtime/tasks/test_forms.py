"""Files of published tasks as prompts: what is read, what is refused, and how numbers are compared."""

import gzip
import json

import pytest
from paceline.base.errors import ArgumentError
from paceline.runtime.prompts import read_prompts
from paceline.runtime.tasks import prompt_lines, read_task
from paceline.traces.errors import TraceFormatError

from ...data_folder import data_files

GSM8K = {"question": "How many?", "answer": "Two and two.\n#### 1,004"}
TASK = {"task_id": "H/0", "prompt": "def f():", "entry_point": "f", "test": "def check(f): pass"}
TURNS = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}


def written(tmp_path, name, *rows):
    path = tmp_path / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_each_form_is_read_and_written_as_prompts(tmp_path):
    files = {
        "gsm8k": written(tmp_path, "test.jsonl", GSM8K),
        "mgsm": written(tmp_path, "mgsm_de.tsv", 'Wie "viele"?\t18', "Und jetzt?\t-3"),
        "questions": written(tmp_path, "question.jsonl", TURNS, "", TURNS | {"question_id": "b"}),
    }
    found = {form: read_task(form, path) for form, path in files.items()}
    assert [(one.request_id, one.tag, one.text, one.answer, one.check) for one in found["gsm8k"]] == [
        ("gsm8k-0001", "gsm8k", "How many?", "1,004", "number")
    ]
    assert [(one.request_id, one.text, one.answer) for one in found["mgsm"]] == [
        ("mgsm-de-0001", 'Wie "viele"?', "18"),
        ("mgsm-de-0002", "Und jetzt?", "-3"),
    ]
    assert [(one.request_id, one.tag, one.text, one.answer) for one in found["questions"]] == [
        ("81", "writing", "Write.", None),
        ("b", "writing", "Write.", None),
    ]
    for form, prompts in found.items():
        out = tmp_path / f"{form}.prompts.jsonl"
        out.write_text(prompt_lines(prompts), encoding="utf-8")
        assert read_prompts(out) == prompts


@pytest.mark.parametrize(
    ("form", "name", "row", "told"),
    [
        ("gsm8k", "a.jsonl", {"question": "q"}, "line 1, answer: must be a text that is not blank, got None"),
        ("gsm8k", "a.jsonl", GSM8K | {"answer": "4"}, "line 1, answer: must end in #### and a number, got '4'"),
        ("gsm8k", "a.jsonl", TURNS, "line 1, question: must be a text that is not blank, got None"),
        ("gsm8k", "a.jsonl", "{", "line 1: must be JSON"),
        ("gsm8k", "a.jsonl", "[]", "line 1: must be a JSON object"),
        ("mgsm", "a.tsv", "no tab", "line 1: must be a question, a tab and a number, got 'no tab'"),
        ("mgsm", "a.tsv", "q\tmany", "line 1: must be a question, a tab and a number"),
        ("questions", "a.jsonl", TURNS | {"turns": []}, r"line 1, turns: must be a list that begins with a text, got"),
        ("questions", "a.jsonl", TURNS | {"question_id": None}, "line 1, question_id: must be a number or a text"),
        ("questions", "a.jsonl", "", "file: must hold at least one question, got 0"),
        ("gsm8k", "a.jsonl.gz", GSM8K, "file: must be whole and compressed by gzip"),
        (
            "humaneval",
            "a.jsonl",
            TASK | {"task_id": None},
            "line 1, task_id: must be a text that is not blank, got None",
        ),
        ("humaneval", "a.jsonl", TASK | {"prompt": " "}, "line 1, prompt: must be a text that is not blank"),
        ("humaneval", "a.jsonl", TASK | {"entry_point": "a b"}, "line 1, entry_point: must be the name of a function"),
        ("humaneval", "a.jsonl", TASK | {"test": "x"}, r"line 1, test: must define check\(candidate\), got 'x'"),
    ],
)
def test_files_of_another_form_are_refused_by_line_and_field(tmp_path, form, name, row, told):
    path = written(tmp_path, name, row)
    with pytest.raises(TraceFormatError, match=told) as refused:
        read_task(form, path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_a_compressed_file_that_was_cut_short_is_refused(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(GSM8K).encode())[:-9])
    with pytest.raises(TraceFormatError, match="file: must be whole and compressed by gzip"):
        read_task("gsm8k", path)


def test_questions_twice_and_forms_nobody_knows_are_refused(tmp_path):
    path = written(tmp_path, "a.jsonl", TURNS, TURNS)
    with pytest.raises(TraceFormatError, match=r"line 2, question_id: must be unique \(first on line 1\), got 81"):
        read_task("questions", path)
    with pytest.raises(ArgumentError, match="`form` must be one of gsm8k, mgsm, humaneval, questions, got 'mmlu'"):
        read_task("mmlu", path)


@pytest.mark.parametrize(
    ("form", "folder", "pattern", "count"),
    [
        ("gsm8k", "gsm8k", "gsm8k_test.jsonl.gz", 1319),
        ("mgsm", "mgsm", "mgsm_*.tsv.gz", 250),
        ("questions", "mt_bench", "question.jsonl.gz", 80),
        ("questions", "spec_bench_questions", "question.jsonl.gz", 480),
    ],
)
def test_the_published_files_are_read(form, folder, pattern, count):
    files = data_files(folder, pattern)
    if not files:
        pytest.skip(f"PACELINE_DATA has no {folder}")
    for file in files:
        prompts = read_task(form, file)
        assert len(prompts) == count
        assert all((one.answer is None) == (form == "questions") for one in prompts)
