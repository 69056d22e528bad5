"""Word problems with short worked answers; the domain `math`."""

import random

from .item import Item
from .text_data import text_data

MAX_TOTAL = 400


def make_word_problem(rng: random.Random) -> Item:
    """Draw one problem; the completion holds the steps and `Answer: N`."""
    while True:
        template = rng.choice(text_data("word_problems")["templates"])
        solved = _solve(template["operations"], rng)
        if solved is not None:
            break
    operands, steps, answer = solved
    words = text_data("words")
    first, second = rng.sample(words["names"], 2)
    slots = dict(zip("abcd", operands, strict=False))
    problem = template["text"].format(n=first, m=second, t=rng.choice(words["plural_things"]), **slots)
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
