"""Whether answers are right, and how those failed that tests were run on."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ...counted import counted
from ..answer_check import is_right
from ..prompts import Prompt
from .code_run import FAILURES, Failure, Limits, failure_of


class Score(NamedTuple):
    """What is known of an answer to a prompt that says what a right one is.

    Attributes:
        tag: of the prompt.
        right: None if that takes tests, which nobody asked to run.
        failure: of tests, how they ended; None if they passed or the answer is compared without any.
    """

    tag: str
    right: bool | None
    failure: Failure | None = None


class Scorer:
    """Scores answers; a program that was run already is not run again. Final.

    Args:
        limits: of code that a model wrote; None: none is run.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits
        self._failures: dict[tuple[str, str], Failure | None] = {}

    def score(self, prompt: Prompt, text: str) -> Score | None:
        """None if nothing is known of a right answer.

        Args:
            prompt: that was answered.
            text: the answer.
        """
        if prompt.tests is not None:
            if self._limits is None:
                return Score(prompt.tag, None)
            program = (prompt.tests.program(text), prompt.tests.check)
            if program not in self._failures:
                self._failures[program] = failure_of(prompt.tests, text, self._limits)
            failure = self._failures[program]
            return Score(prompt.tag, failure is None, failure)
        if prompt.answer is None:
            return None
        return Score(prompt.tag, is_right(prompt.tag, prompt.answer, text, prompt.check))


def score_lines(scores: Collection[Score]) -> list[str]:
    """How many answers are right, in all and by tag, and how tests failed; none without scores."""
    known = _known(scores)
    lines = []
    if known:
        shares = [f"{tag} {right:,} of {total:,}" for tag, (right, total) in _by_tag(known).items()]
        each = f" ({', '.join(shares)})" if len(shares) > 1 else ""
        lines.append(f"right answers: {sum(bool(score.right) for score in known):,} of {len(known):,}{each}")
    failures = _failures(known)
    if failures:
        lines.append(f"tests that did not pass: {', '.join(f'{kind} {count:,}' for kind, count in failures.items())}")
    if len(known) < len(scores):
        lines.append(f"{counted(len(scores) - len(known), 'answer')} not scored: run --run-tests runs a model's code")
    return lines


def scores_json(scores: Collection[Score]) -> dict[str, Any] | None:
    """The documented form (docs/runtime.md); None without scores."""
    if not scores:
        return None
    known = _known(scores)
    return {
        "right": sum(bool(score.right) for score in known),
        "total": len(known),
        "not_run": len(scores) - len(known),
        "failures": _failures(known),
        "by_tag": {tag: {"right": right, "total": total} for tag, (right, total) in _by_tag(known).items()},
    }


def _known(scores: Collection[Score]) -> Sequence[Score]:
    return [score for score in scores if score.right is not None]


def _by_tag(known: Sequence[Score]) -> Mapping[str, tuple[int, int]]:
    """Right answers and all, by tag."""
    right, total = Counter(score.tag for score in known if score.right), Counter(score.tag for score in known)
    return {tag: (right[tag], total[tag]) for tag in total}


def _failures(known: Sequence[Score]) -> dict[str, int]:
    """By kind, those that there are."""
    found = Counter(score.failure for score in known)
    return {kind: found[kind] for kind in FAILURES if found[kind]}
