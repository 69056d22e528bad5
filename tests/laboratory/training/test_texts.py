"""The texts of a pool are right: numbers in words, problems that add up, edits as they are told, none held out seen."""

import random
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_laboratory.training.recipe import TAGS, read_recipe
from paceline_laboratory.training.texts import (
    build_corpus,
    english,
    english_ordinal,
    english_year,
    french,
    german,
    german_ordinal,
    german_year,
    make_dialogue,
    make_edit,
    make_translation,
    make_word_problem,
)

SEEDS = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, ("zero", "null", "zéro")),
        (21, ("twenty-one", "einundzwanzig", "vingt et un")),
        (71, ("seventy-one", "einundsiebzig", "soixante et onze")),
        (80, ("eighty", "achtzig", "quatre-vingts")),
        (81, ("eighty-one", "einundachtzig", "quatre-vingt-un")),
        (99, ("ninety-nine", "neunundneunzig", "quatre-vingt-dix-neuf")),
        (101, ("one hundred and one", "einhunderteins", "cent un")),
        (200, ("two hundred", "zweihundert", "deux cents")),
        (312, ("three hundred and twelve", "dreihundertzwölf", "trois cent douze")),
        (1000, ("one thousand", "eintausend", "mille")),
        (1005, ("one thousand and five", "eintausendfünf", "mille cinq")),
        (
            9870,
            (
                "nine thousand eight hundred and seventy",
                "neuntausendachthundertsiebzig",
                "neuf mille huit cent soixante-dix",
            ),
        ),
    ],
)
def test_numbers_in_words(number, words):
    assert (english(number), german(number), french(number)) == words


@pytest.mark.parametrize("language", [english, german, french])
def test_numbers_have_different_words(language):
    assert len({language(number) for number in range(10_000)}) == 10_000


def test_days_and_years_in_words():
    english_days = "first, twelfth, twentieth, twenty-second, thirty-first"
    assert [english_ordinal(day) for day in (1, 12, 20, 22, 31)] == english_days.split(", ")
    german_days = "erste, siebte, neunzehnte, zwanzigste, einunddreißigste"
    assert [german_ordinal(day) for day in (1, 7, 19, 20, 31)] == german_days.split(", ")
    years = "nineteen hundred, nineteen oh five, nineteen ninety-eight, two thousand and five, twenty twenty-four"
    assert [english_year(year) for year in (1900, 1905, 1998, 2005, 2024)] == years.split(", ")
    assert [german_year(year) for year in (1998, 2005)] == ["neunzehnhundertachtundneunzig", "zweitausendfünf"]


@given(SEEDS)
def test_word_problems_add_up(seed):
    item = make_word_problem(random.Random(seed))
    steps = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", item.completion)
    operations = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}
    assert steps
    for left, operation, right, result in steps:
        assert operations[operation](int(left), int(right)) == int(result)
        assert operation != "/" or int(left) % int(right) == 0
    assert all(before[3] == after[0] for before, after in pairwise(steps))
    assert item.completion.endswith(f"\nAnswer: {item.answer}")
    assert item.answer == steps[-1][3]
    assert 0 < int(item.answer) <= 400


@given(SEEDS)
def test_every_operand_stands_in_the_problem(seed):
    item = make_word_problem(random.Random(seed))
    numbers = re.findall(r"\d+", item.prompt)
    steps = re.findall(r"(\d+) [-+*/] (\d+) =", item.completion)
    assert sorted(numbers, key=int) == sorted([steps[0][0], *(right for _, right in steps)], key=int)


@given(SEEDS)
def test_translations_have_a_line_for_each_line(seed):
    item = make_translation(random.Random(seed))
    lines = item.prompt.splitlines()
    assert re.fullmatch(r"Translate from (English|German|French) to (English|German|French)\.", lines[0])
    assert len(item.completion.splitlines()) == len(lines) - 2
    assert lines[-1] == f"{lines[0].split()[-1][:-1]}:"


@given(SEEDS)
def test_dialogues_take_turns(seed):
    item = make_dialogue(random.Random(seed))
    speakers = [line.partition(":")[0] for line in item.text.splitlines()[1:]]
    assert len(set(speakers)) == 2
    assert all(before != after for before, after in pairwise(speakers))
    assert "{" not in item.text
    assert item.prompt.endswith(":")


@given(SEEDS)
def test_edits_follow_the_instruction(seed):
    item = make_edit(random.Random(seed))
    text = item.prompt.splitlines()[0].removeprefix("Text: ")
    instruction = item.prompt.splitlines()[1].removeprefix("Instruction: ")
    if match := re.fullmatch(r"Replace (\w+) with (\w+)\.", instruction):
        assert item.answer == text.replace(*match.groups())
    elif match := re.fullmatch(r"Write (\w+) in capital letters\.", instruction):
        assert item.answer == text.replace(match[1], match[1].upper())
    elif instruction.startswith("Delete"):
        assert len(item.answer) < len(text)
    elif instruction.startswith("Make"):
        marker = instruction.split()[4]
        assert item.answer.replace(f"\n{marker}", "").strip() == text
    else:
        assert all(fact.split(" = ")[1] in text for fact in item.answer.split("; "))


def test_nothing_that_is_held_out_is_trained_on():
    corpus = build_corpus(replace(read_recipe("tiny"), prompts_per_tag=20))
    for tag in TAGS:
        assert corpus.held_out[tag]
        assert not {item.prompt for item in corpus.train[tag]} & {item.prompt for item in corpus.held_out[tag]}
    modules = [
        {re.search(r"[\w/]+\.py", item.prompt)[0] for item in side["code"]} for side in (corpus.train, corpus.held_out)
    ]
    assert not modules[0] & modules[1]
