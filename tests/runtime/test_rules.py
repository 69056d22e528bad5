"""No oracle decides for real models, whoever asks; how answers are told right."""

from decimal import Decimal

import pytest
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.rules import is_right, last_number, refuse_oracle
from paceline.traces.meta import Sampling

from ..tiny_models import random_prompts, tiny_pool_of_four


@pytest.mark.parametrize("name", ["oracle-window", "oracle-chain"])
def test_oracles_are_refused_by_name(name):
    pool = tiny_pool_of_four()
    policy = make_policy(name, loaded_pool(pool))
    with pytest.raises(ValueError, match=f"^policy {name} sees ahead, which only a recording can grant$"):
        decode(pool, policy, random_prompts(1), sampling=Sampling(mode="greedy"), max_new_tokens=4, name=name)


def test_others_are_not():
    refuse_oracle(make_policy("two-level", loaded_pool(tiny_pool_of_four())), "two-level")


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


def test_numbers_are_compared_by_value():
    assert is_right("gsm8k", "1,004", "The answer is 1004.0", "number")
    assert is_right("math", "18", "18", "number")
    assert not is_right("gsm8k", "18", "18 eggs, or 19", "number")
    assert not is_right("gsm8k", "18", "nobody knows", "number")


@pytest.mark.parametrize(("tag", "text"), [("math", " 9 + 3 = 12\nAnswer: 12\n"), ("edit", "12 ")])
def test_space_around_an_answer_does_not_count(tag, text):
    assert is_right(tag, " 12\n", text)
    assert not is_right(tag, "2", text)
