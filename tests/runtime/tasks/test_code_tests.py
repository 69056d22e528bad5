"""Answers as programs: the block that defines the function, or what goes on from the prompt."""

import gzip
import json

import pytest
from paceline.runtime.prompts import Prompt, read_prompts
from paceline.runtime.sandbox import CodeTests, failure_of
from paceline.runtime.tasks import Score, Scorer, prompt_lines, read_task, score_lines, scores_json

from ...cli.command_line import refused
from ...data_folder import data_files
from .sandboxes import limits, needs_sandbox
from .test_forms import written

CODE = 'from math import floor\n\n\ndef half(x: float) -> int:\n    """Half of it, a whole number."""\n'
TASK = {
    "task_id": "HumanEval/0",
    "prompt": CODE,
    "entry_point": "half",
    "test": "def check(candidate):\n    assert candidate(5) == 2\n",
    "canonical_solution": "    return floor(x / 2)\n",
}
RIGHT, WRONG = "    return floor(x / 2)\n", "    return x\n"
WHOLE = "def half(x):\n" + RIGHT
LIMITS = limits(sandbox=False)


def prompt_of(tmp_path):
    (prompt,) = read_task("humaneval", written(tmp_path, "a.jsonl", TASK))
    return prompt


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (RIGHT, None),
        (WRONG, "failed"),
        ("", "failed"),
        (RIGHT + "\n\ndef main():\n    while True: pass\nmain()", None),  # it stops before what is beyond
        (RIGHT + "\nprint(half(", None),
        (f"Here:\n```python\n{WHOLE}```\nIt halves.", None),
        (f"```\n{WHOLE}```", None),
        (f"```Python\n{WHOLE}", None),  # cut short behind it
        (f"```bash\npip install half\n```\n```python\nprint(1)\n```\n```py\n{WHOLE}```", None),
        (f"```python\ndef half(x):\n{WRONG}```\nor\n```python\n{WHOLE}```", "failed"),  # the first one counts
        ("```python\ndef halves(x):\n    return 1\n```", "failed"),
        (WHOLE, None),
        (f"{CODE.rpartition('def')[0]}{WHOLE}\n# Example\nprint(half(", None),
        (f"Sure, here it is:\n\n{WHOLE}```\n\nIt halves.", None),
        (RIGHT + "\ndef half(x):\n" + WRONG, None),  # a body goes before what comes after it
        ("I cannot do that.", "failed"),
        ("    return lambda: x\n", "not plain data"),
    ],
)
def test_the_first_block_that_defines_the_function_counts_or_the_text(tmp_path, answer, failure):
    prompt = prompt_of(tmp_path)
    assert failure_of(prompt.tests, answer, LIMITS) == failure


def test_tasks_are_written_as_prompts_with_their_tests(tmp_path):
    prompt = prompt_of(tmp_path)
    assert (prompt.request_id, prompt.tag, prompt.text, prompt.answer) == ("HumanEval/0", "humaneval", CODE, None)
    out = tmp_path / "p.jsonl"
    out.write_text(prompt_lines((prompt,)), encoding="utf-8")
    assert read_prompts(out) == (prompt,)


def test_nothing_is_run_unasked(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.runtime.tasks.failure_of", None)
    score = Scorer().score(prompt_of(tmp_path), RIGHT)
    assert score == Score("humaneval", None)
    assert score_lines([score]) == ["1 answer not scored: run --run-tests runs a model's code"]
    assert scores_json([score]) == {"right": 0, "total": 0, "not_run": 1, "failures": {}, "by_tag": {}}


def test_scores_are_summed_by_tag_and_failure(tmp_path):
    prompt, counted = prompt_of(tmp_path), []

    def run(tests, answer, limits):
        counted.append(answer)
        return failure_of(tests, answer, limits)

    scorer = Scorer(LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.runtime.tasks.failure_of", run)
        scores = [scorer.score(prompt, text) for text in (RIGHT, WRONG, WRONG)]
    assert len(counted) == 2  # the same program is not run again
    scores.append(scorer.score(Prompt(request_id="b", tag="gsm8k", text="x", answer="4", check="number"), "so 4"))
    assert scorer.score(Prompt(request_id="c", text="x"), "y") is None
    assert score_lines(scores) == [
        "right answers: 2 of 4 (humaneval 1 of 3, gsm8k 1 of 1)",
        "tests that did not pass: failed 2",
    ]
    assert scores_json(scores) == {
        "right": 2, "total": 4, "not_run": 0, "failures": {"failed": 2},
        "by_tag": {"humaneval": {"right": 1, "total": 3}, "gsm8k": {"right": 1, "total": 1}},
    }  # fmt: skip


def published():
    files = data_files("humaneval", "HumanEval.jsonl.gz")
    if not files:
        pytest.skip("PACELINE_DATA has no humaneval")
    return files[0]


@needs_sandbox
def test_the_published_tests_pass_for_a_right_answer_and_for_no_other():
    tests = {prompt.request_id: prompt.tests for prompt in read_task("humaneval", published())}
    assert len(tests) == 164
    adds, boxed = tests["HumanEval/53"], limits(sandbox=True)
    assert isinstance(adds, CodeTests)
    assert failure_of(adds, "    return x + y\n", boxed) is None
    assert failure_of(adds, "    return x - y\n", boxed) == "failed"
    assert failure_of(adds, "```python\ndef add(x, y):\n    return x + y\n```", boxed) is None


@pytest.mark.slow
@needs_sandbox
def test_every_published_solution_passes_its_tests():
    path = published()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        solutions = {row["task_id"]: row["canonical_solution"] for row in map(json.loads, file)}
    found = {
        prompt.request_id: failure_of(prompt.tests, solutions[prompt.request_id], limits(sandbox=True))
        for prompt in read_task("humaneval", path)
    }
    assert {name: failure for name, failure in found.items() if failure} == {}


@pytest.mark.parametrize(
    ("code", "head"),
    [
        (CODE, CODE),
        ("import math\n\n\ndef f(x):\n", "import math\n\n\ndef f(x):\n\n    pass\n"),
        ("class A:\n    def f(self): # it\n", "class A:\n    def f(self): # it\n\n        pass\n"),
        ("#", "#"),
    ],
)
def test_the_head_of_a_function_is_a_program_of_its_own(code, head):
    assert CodeTests(entry_point="f", code=code, check="f()").head() == head


@pytest.mark.parametrize("code", ["def f(", "def f(x):\n    return (", "Write f.\n", "(" * 5000, "\0"])
def test_code_that_is_no_python_is_told_before_anything_runs(tmp_path, code):
    tests = {"entry_point": "f", "code": code, "check": "f()"}
    written(tmp_path, "p.jsonl", {"id": "a", "prompt": "x", "tests": tests})
    told = refused("run", "--prompts", tmp_path / "p.jsonl", "--run-tests")
    assert "prompts, a: tests, code, must be Python that ends in the head of a function, got" in told.replace("--", "")
