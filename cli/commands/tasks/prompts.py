"""`paceline prompts`: a published task's file as prompts for `run`, `record` and `agree`."""

from pathlib import Path
from typing import Annotated

import typer

from ....arguments import repeated
from ....counted import counted
from ....runtime.tasks.forms import FORMS, prompt_lines, read_task
from ....whole_files import write_whole
from ...output import check_file_path, say


def prompts(
    form: Annotated[str, typer.Argument(metavar="FORM", help=f"Of the file: {', '.join(FORMS)}.")],
    file: Annotated[list[Path], typer.Argument(metavar="FILE...", help="The task's own files, also as .gz.")],
    out: Annotated[Path, typer.Option(help="JSONL to write, a line a question.")],
    limit: Annotated[int | None, typer.Option(help="Only the first so many of each file.", min=1)] = None,
) -> None:
    """Turn files of GSM8K, MGSM, HumanEval, MT-Bench or Spec-Bench into prompts, with what tells right answers.

    questions are those of MT-Bench and Spec-Bench: first turns only, as a second one goes on from an answer.
    """
    check_file_path("--out", out)
    found = tuple(prompt for path in file for prompt in read_task(form, path)[:limit])
    twice = repeated(prompt.request_id for prompt in found)
    if twice:
        raise ValueError(f"FILE must name each question once, got {twice[0]} twice")
    write_whole(out, prompt_lines(found))
    scored = sum(prompt.answer is not None for prompt in found)
    tested = sum(prompt.tests is not None for prompt in found)
    tests = f", {tested:,} with tests that run --run-tests runs" if tested else ""
    say(f"{out}: {counted(len(found), 'prompt')}, {scored:,} with an answer to be checked{tests}")
