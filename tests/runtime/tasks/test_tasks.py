"""Files of published tasks as prompts, answers as programs, and the commands that read and score them."""

import gzip
import json

import pytest
from paceline.base.errors import ArgumentError
from paceline.runtime.prompts import Prompt, read_prompts
from paceline.runtime.sandbox import CodeTests, failure_of
from paceline.runtime.tasks import Score, Scorer, prompt_lines, read_task, score_lines, scores_json
from paceline.traces.errors import TraceFormatError

from ...cli.command_line import done, paceline, refused
from ...data_folder import data_files
from ..conftest import random_llama
from ..pools.making import at, slim, write
from .sandboxes import limits, needs_sandbox

GSM8K = {"question": "How many?", "answer": "Two and two.\n#### 1,004"}
CODE = 'from math import floor\n\n\ndef half(x: float) -> int:\n    """Half of it, a whole number."""\n'
TEST = "def check(candidate):\n    assert candidate(5) == 2\n"
TASK = {"task_id": "HumanEval/0", "prompt": CODE, "entry_point": "half", "test": TEST}
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
        "humaneval": written(tmp_path, "a.jsonl", TASK),
    }
    found = {form: read_task(form, path) for form, path in files.items()}
    assert {form: [(one.request_id, one.tag, one.text, one.answer) for one in found[form]] for form in found} == {
        "gsm8k": [("gsm8k-0001", "gsm8k", "How many?", "1,004")],
        "mgsm": [("mgsm-de-0001", "mgsm-de", 'Wie "viele"?', "18"), ("mgsm-de-0002", "mgsm-de", "Und jetzt?", "-3")],
        "questions": [("81", "writing", "Write.", None), ("b", "writing", "Write.", None)],
        "humaneval": [("HumanEval/0", "humaneval", CODE, None)],
    }
    assert found["gsm8k"][0].check == "number"
    for form, prompts in found.items():
        out = tmp_path / f"{form}.prompts.jsonl"
        out.write_text(prompt_lines(prompts), encoding="utf-8")
        assert read_prompts(out) == prompts


def test_a_question_may_hold_what_unicode_calls_the_end_of_a_line(tmp_path):
    asked = GSM8K | {"question": "How\u2028many?"}
    path = written(tmp_path, "a.jsonl", json.dumps(asked, ensure_ascii=False))
    assert [one.text for one in read_task("gsm8k", path)] == [asked["question"]]


@pytest.mark.parametrize(
    ("form", "row", "told"),
    [
        ("gsm8k", {"question": "q"}, "line 1: must have the key answer, got 'question'"),
        ("gsm8k", GSM8K | {"answer": "4"}, "line 1, answer: must end in #### and a number, got '4'"),
        ("gsm8k", TURNS, "line 1: must have the key question, got 'question_id, category, turns'"),
        ("gsm8k", GSM8K | {"question": "half a \ud83d"}, "line 1, question: must hold no half of a surrogate pair"),
        ("questions", TURNS | {"turns": ["\ud83d"]}, "line 1, turns: must hold no half of a surrogate pair"),
        ("gsm8k", "{", "line 1: must be JSON"),
        ("gsm8k", "[]", "line 1: must be a JSON object"),
        ("mgsm", "no tab", "line 1: must be a question, a tab and a number, got 'no tab'"),
        ("mgsm", "q\tmany", "line 1: must be a question, a tab and a number"),
        ("questions", TURNS | {"turns": []}, "line 1, turns: must be a list that begins with a text, got"),
        ("questions", TURNS | {"question_id": None}, "line 1, question_id: must be a number or a text"),
        ("questions", "", "file: must hold at least one question, got 0"),
        ("questions", (TURNS, TURNS), r"line 2, question_id: must be unique \(first on line 1\), got 81"),
        ("humaneval", TASK | {"task_id": None}, "line 1, task_id: must be a string that is not empty, got None"),
        ("humaneval", TASK | {"prompt": " "}, "line 1, prompt: must be more than spaces and line breaks"),
        ("humaneval", TASK | {"entry_point": "a b"}, "line 1, entry_point: must be the name of a function"),
        ("humaneval", TASK | {"test": "x"}, r"line 1, test: must define check\(candidate\), got 'x'"),
    ],
)
def test_files_of_another_form_are_refused_by_line_and_field(tmp_path, form, row, told):
    path = written(tmp_path, "a.jsonl", *(row if isinstance(row, tuple) else (row,)))
    with pytest.raises(TraceFormatError, match=told) as caught:
        read_task(form, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_compressed_files_must_be_whole_and_forms_known(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    whole = json.dumps(GSM8K).encode()
    for content in (gzip.compress(whole)[:-9], whole):
        path.write_bytes(content)
        with pytest.raises(TraceFormatError, match=r"gz: file: must be whole and compressed by gzip"):
            read_task("gsm8k", path)
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


RIGHT, WRONG = "    return floor(x / 2)\n", "    return x\n"
WHOLE = "def half(x):\n" + RIGHT
LIMITS = limits(sandbox=False)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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


def test_files_become_prompts(tmp_path):
    written(tmp_path, "test.jsonl", GSM8K, GSM8K, GSM8K)
    written(tmp_path, "question.jsonl", TURNS)
    assert done("prompts", "gsm8k", "test.jsonl", "--out", "p.jsonl", "--limit", 2).split() == (
        ["p.jsonl:", "2", "prompts,", "2", "with", "an", "answer", "to", "be", "checked"]
    )
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert rows[1] == {
        "id": "gsm8k-0002", "tag": "gsm8k", "prompt": "How many?", "answer": "1,004", "check": "number"
    }  # fmt: skip
    assert "1 prompt, 0 with" in done("prompts", "questions", "question.jsonl", "--out", "q.jsonl")


def test_what_is_wrong_leaves_what_was_there(tmp_path):
    written(tmp_path, "question.jsonl", TURNS)
    (tmp_path / "p.jsonl").write_text("old")
    assert "must be one of gsm8k, mgsm, humaneval, questions" in refused(
        "prompts", "mmlu", "question.jsonl", "--out", "p.jsonl"
    )
    assert "question.jsonl: line 1: must have the key question" in refused(
        "prompts", "gsm8k", "question.jsonl", "--out", "p.jsonl"
    )
    twice = ("prompts", "questions", "question.jsonl", "question.jsonl", "--out", "p.jsonl")
    assert "must name each question once, got 81 twice" in refused(*twice)
    assert (tmp_path / "p.jsonl").read_text() == "old"


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_pool):
    """Words of `run` with a pool of tiny models and few tokens."""
    members = slim("draft", 1).replace("[1]", "[1, 2]") + slim("mid", 1) + at("target")
    folder = write(tmp_path_factory.mktemp("pool"), tiny_pool.tokenizer, members, target=random_llama(11))
    return ("run", "--pool", folder, "--prompts", "p.jsonl", "--max-new-tokens", 4)


def test_a_run_counts_right_answers(tmp_path, run):
    rows = [{"id": f"r{number}", "tag": f"t{number % 2}", "prompt": "a line"} for number in range(3)]
    written(tmp_path, "p.jsonl", *rows)
    ran = json.loads(done(*run, "--json", "-"))
    text = ran["outputs"][0]["text"]
    assert [row["right"] for row in ran["outputs"]] == [None] * 3
    expected = [{"answer": text}, {"answer": "x" + text}, {"answer": text, "check": "text"}]
    written(tmp_path, "p.jsonl", *(row | more for row, more in zip(rows, expected, strict=True)))
    assert [row["right"] for row in json.loads(done(*run, "--json", "-"))["outputs"]] == [True, False, True]
    assert "right answers: 2 of 3 (t0 2 of 2, t1 0 of 1)" in done(*run)


@pytest.mark.parametrize(
    "how", [pytest.param(("--run-tests",), marks=needs_sandbox), ("--run-tests", "unsandboxed")], ids=str
)
def test_a_run_runs_tests_of_code_where_that_is_asked_for(tmp_path, run, how):
    tests = {"entry_point": "f", "code": "def f(): return 1\n#"}  # whatever is written is a comment
    rows = [{"id": f"r{number}", "prompt": "a", "tests": tests | {"check": f"f() / {number}"}} for number in (0, 1)]
    written(tmp_path, "p.jsonl", *rows)
    one_token = (*run[:-1], 1)
    assert "2 answers not scored: run --run-tests runs a model's code" in done(*one_token)
    ran = json.loads(done(*one_token, *how, "--json", "-"))
    assert [(row["right"], row["failure"]) for row in ran["outputs"]] == [(False, "failed"), (True, None)]
    by_tag = {"untagged": {"right": 1, "total": 2}}
    assert ran["scores"] == {"right": 1, "total": 2, "not_run": 0, "failures": {"failed": 1}, "by_tag": by_tag}


EMPTY = {"id": "a", "prompt": "a line", "tests": {"entry_point": "f", "code": "#", "check": "f()"}}


def test_tests_are_run_only_where_there_are_some_and_without_a_sandbox_only_where_that_is_said(tmp_path, monkeypatch):
    given = ("run", "--prompts", "p.jsonl")
    written(tmp_path, "p.jsonl", {"id": "a", "prompt": "a line", "answer": "4"})
    assert "--run-tests needs prompts with tests of code, got none" in refused(*given, "--run-tests")
    written(tmp_path, "p.jsonl", EMPTY)
    monkeypatch.setattr("paceline.runtime.sandbox.shutil.which", lambda _: None)
    told = refused(*given, "--run-tests")
    assert "apt install bubblewrap), found no bwrap; --run-tests unsandboxed runs what the model wrote" in told
    told = refused("run", "unsandboxed", "--prompts", "p.jsonl")
    assert told == "unsandboxed stands after --run-tests, got it without"
    assert "unsandboxed" in refused("run", "--run-tests", "boxed", "--prompts", "p.jsonl")


def test_an_interrupt_while_tests_run_keeps_the_answers(tmp_path, run, monkeypatch):
    def interrupted(tests, answer, limits):
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.runtime.tasks.failure_of", interrupted)
    written(tmp_path, "p.jsonl", EMPTY)
    ran = paceline(*run, "--run-tests", "unsandboxed", "--out", "kept")
    assert (ran.code, ran.err) == (0, "paceline: interrupted: the answers are kept, their quality is not measured\n")
    (row,) = (json.loads(line) for line in (tmp_path / "kept" / "outputs.jsonl").read_text().splitlines())
    assert row["tokens"]
    assert row["right"] is None


def test_several_policies_have_intervals_over_requests_and_rounds(tmp_path, run):
    written(tmp_path, "p.jsonl", *({"id": name, "prompt": f"line {name}"} for name in "abcdef"))
    several = (*run, "--policy", "plain", "--policy", "draft:2/target")
    said = json.loads(done(*several, "--json", "-", "--repeats", 2))
    same, over = said["over_first"]
    assert (same["mean"], same["ci"]) == (1.0, [1.0, 1.0])
    low, high = over["ci"]
    assert low < over["mean"] < high
    means = [sum(speeds) / 2 for speeds in zip(*said["tokens_per_s"], strict=True)]
    assert over["mean"] == pytest.approx(means[1] / means[0])
    shown = done(*several)
    told = (
        "over plain: median of the rounds' ratios; 95%: interval of the ratio of mean speeds over requests and rounds"
    )
    assert told in " ".join(shown.split())


def test_pictures_of_several_policies_begin_with_the_fastest(tmp_path, run):
    written(tmp_path, "p.jsonl", *({"id": name, "prompt": f"line {name}"} for name in "abc"))
    names = ["draft:6/target", "draft:1/target"]  # the slower one first
    said = json.loads(done(*run, "--policy", names[0], "--policy", names[1], "--json", "-", "--repeats", 2))
    medians = [sum(speeds) / 2 for speeds in zip(*said["tokens_per_s"], strict=True)]
    (heat,) = (
        panel
        for part in said["page"]["sections"]
        for panel in part["panels"]
        if panel["title"] == "Where the seconds go"
    )
    assert heat["rows"] == [name for _, name in sorted(zip(medians, names, strict=True), reverse=True)]


def test_several_policies_stand_in_one_table_with_right_answers(tmp_path, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # so that no heading is broken
    written(tmp_path, "p.jsonl", {"id": "a", "prompt": "a line"})
    text = json.loads(done(*run, "--json", "-"))["outputs"][0]["text"]
    rows = ({"id": "a", "prompt": "a line", "answer": text}, {"id": "b", "prompt": "b", "answer": "x"})
    written(tmp_path, "p.jsonl", *rows)
    several = (*run, "--policy", "plain", "--policy", "draft:2/target", "--policy", "cascade")
    shown = done(*several)
    for words in (
        "2 prompts, each policy in turn; medians of 3 rounds", "least to most", "over plain", "1.00x",
        "plain: right answers: 1 of 2", "draft:2/target: right answers: 1 of 2",
        "what was refused, and the texts beside the target's own",
    ):  # fmt: skip
        assert words in shown
    said = json.loads(done(*several, "--json", "-", "--repeats", 2))
    assert [len(speeds) for speeds in said["tokens_per_s"]] == [3, 3]
    assert min(speed for speeds in said["tokens_per_s"] for speed in speeds) > 0
    found = said["policies"]
    for policy, first in zip(found, said["tokens_per_s"][0], strict=True):
        assert policy["summary"]["output_tokens_per_s"] == pytest.approx(first)
    assert "each policy in turn\n" in done(*several, "--repeats", 1).replace(" \n", "\n")
    assert "--repeats goes with several --policy, got plain" in refused(*several[:-4], "--repeats", 2)
    assert [one["meta"]["policy"] for one in found] == ["plain", "draft:2/target", "cascade"]
    assert [one["scores"]["total"] for one in found] == [2, 2, 2]
    assert said["over_first"] == [None] * 3  # of two requests nobody knows
    tokens = [[row["tokens"] for row in one["outputs"]] for one in found]
    assert tokens[1] == tokens[0]
    own = sum(one == other for one, other in zip(tokens[2], tokens[0], strict=True))
    assert found[2]["summary"]["quality"]["answers_own"] == own
