"""Word problems with short worked answers; the domain `math`."""

import random
from dataclasses import dataclass

from .item import Item
from .word_lists import NAMES, PLURAL_THINGS

MAX_TOTAL = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A problem text and the chain of operations that solves it.

    Attributes:
        text: problem with the slots `{n}`, `{m}` (names), `{t}` (things), `{a}` (start value) and
            `{b}`, `{c}`, `{d}` (operands in order).
        operations: one of `+`, `-`, `*`, `/` for each operand, applied from left to right.
    """

    text: str
    operations: str


TEMPLATES = tuple(
    Template(operations=operations, text=text)
    for operations, text in (
        ("+", "{n} has {a} {t}. {m} gives {n} {b} more. How many {t} does {n} have now?"),
        ("-", "There are {a} {t} on the table. {n} takes {b} of them. How many {t} are left?"),
        ("*", "A box holds {a} {t}. {n} fills {b} boxes. How many {t} does {n} pack?"),
        ("/", "{n} shares {a} {t} equally among {b} friends. How many {t} does each friend get?"),
        ("+-", "{n} has {a} {t}. {n} buys {b} more and gives {c} to {m}. How many {t} does {n} have now?"),
        ("-+", "{n} had {a} {t} and lost {b} of them. Then {m} brought {c} new {t}. How many {t} are there now?"),
        ("*-", "{n} buys {b} bags with {a} {t} in each. {c} of the {t} are broken. How many {t} are good?"),
        ("*+", "There are {b} shelves with {a} {t} each. {n} adds {c} more {t}. How many {t} are there?"),
        ("++", "{n} finds {a} {t} on Monday, {b} on Tuesday and {c} on Friday. How many {t} is that in total?"),
        ("--", "A shop has {a} {t}. It sells {b} in the morning and {c} in the evening. How many {t} remain?"),
        ("/+", "{n} puts {a} {t} into {b} equal piles. {m} adds {c} {t} to one pile. How many {t} are in it?"),
        (
            "-/",
            "{n} bakes {a} cakes and keeps {b}. The rest goes to {c} neighbours in equal parts. "
            "How many cakes does each neighbour get?",
        ),
        (
            "+/",
            "{n} has {a} {t} and {m} has {b}. They share all of them equally among {c} children. "
            "How many {t} does each child get?",
        ),
        ("*", "A ticket costs {a} euros. {n} buys {b} tickets. How many euros does {n} pay?"),
        (
            "*+",
            "{n} earns {a} euros an hour and works {b} hours. {m} adds a tip of {c} euros. "
            "How many euros does {n} get?",
        ),
        (
            "--",
            "{n} starts with {a} euros. A bag costs {b} euros and a hat costs {c} euros. "
            "How many euros are left after buying both?",
        ),
        ("+", "A train drives {a} km before noon and {b} km after noon. How many km does it drive?"),
        ("*", "{n} runs {a} km every day. How many km does {n} run in {b} days?"),
        ("-", "A rope is {a} metres long. {n} cuts off {b} metres. How many metres remain?"),
        ("-*", "{n} reads {a} pages a day, but {m} reads {b} pages less. How many pages does {m} read in {c} days?"),
        (
            "+-+",
            "A bus leaves with {a} people. At the first stop {b} get on, at the second stop {c} get off, "
            "and at the last stop {d} get on. How many people are on the bus?",
        ),
        (
            "*-+",
            "{n} plants {b} rows of {a} trees. A storm breaks {c} trees and {m} plants {d} new ones. "
            "How many trees stand there now?",
        ),
    )
)


def make_word_problem(rng: random.Random) -> Item:
    """Draw one problem; the completion holds the steps and `Answer: N`."""
    while True:
        template = rng.choice(TEMPLATES)
        solved = _solve(template.operations, rng)
        if solved is not None:
            break
    operands, steps, answer = solved
    first, second = rng.sample(NAMES, 2)
    slots = dict(zip("abcd", operands, strict=False))
    problem = template.text.format(n=first, m=second, t=rng.choice(PLURAL_THINGS), **slots)
    return Item(
        tag="math",
        prompt=f"Problem: {problem}\nSteps:",
        completion=f" {'; '.join(steps)}\nAnswer: {answer}",
        answer=str(answer),
    )


def _solve(operations: str, rng: random.Random) -> tuple[list[int], list[str], int] | None:
    """Draw operands that keep every total whole, positive and small; None when a draw does not fit."""
    total = rng.randint(2, 12) if operations[0] == "*" else rng.randint(5, 60)
    operands, steps = [total], []
    for operation in operations:
        operand = _draw_operand(operation, total, rng)
        if operand is None:
            return None
        result = _apply(operation, total, operand)
        steps.append(f"{total} {operation} {operand} = {result}")
        operands.append(operand)
        total = result
    return (operands, steps, total) if total <= MAX_TOTAL else None


def _draw_operand(operation: str, total: int, rng: random.Random) -> int | None:
    if operation == "+":
        return rng.randint(2, 40)
    if operation == "*":
        return rng.randint(2, 9)
    if operation == "-":
        return rng.randint(1, total - 1) if total >= 3 else None
    divisors = [number for number in range(2, 10) if total % number == 0 and total > number]
    return rng.choice(divisors) if divisors else None


def _apply(operation: str, left: int, right: int) -> int:
    if operation == "+":
        return left + right
    if operation == "-":
        return left - right
    return left * right if operation == "*" else left // right
