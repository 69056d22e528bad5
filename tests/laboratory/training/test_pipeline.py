"""The texts are right, the recipe runs from end to end, and a killed run continues to the same pool."""

import json
import random
import re
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import read_prompts
from paceline.runtime.rules import is_right
from paceline_laboratory.training import pool as pipeline
from paceline_laboratory.training.pool import AGREEMENT_TOKENS, train_pool
from paceline_laboratory.training.recipe import TAGS, Schedule, read_recipe
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
    read_stdlib,
)
from paceline_laboratory.training.training import _top_cross_entropy, make_model, run_training, write_texts

SEEDS = st.integers(0, 10**9)
POOL_FILES = (
    "tokenizer.json",
    "prompts.jsonl",
    "pool.toml",
    "draft/model.safetensors",
    "mid/model.safetensors",
    "target/model.safetensors",
    "target/config.json",
)


@pytest.fixture(scope="module", autouse=True)
def stdlib_read_once():
    """Reading the standard library takes seconds and gives the same texts every time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline_laboratory.training.texts.read_stdlib", lru_cache(read_stdlib))
        yield


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
            9876,
            (
                "nine thousand eight hundred and seventy-six",
                "neuntausendachthundertsechsundsiebzig",
                "neuf mille huit cent soixante-seize",
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
    assert [english_ordinal(day) for day in (1, 12, 20, 22, 31)] == [
        "first",
        "twelfth",
        "twentieth",
        "twenty-second",
        "thirty-first",
    ]
    assert [german_ordinal(day) for day in (1, 7, 19, 20, 31)] == [
        "erste",
        "siebte",
        "neunzehnte",
        "zwanzigste",
        "einunddreißigste",
    ]
    assert [english_year(year) for year in (1900, 1905, 1998, 2005, 2024)] == [
        "nineteen hundred",
        "nineteen oh five",
        "nineteen ninety-eight",
        "two thousand and five",
        "twenty twenty-four",
    ]
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


def test_held_out_prompts_do_not_occur_in_training_texts():
    corpus = build_corpus(replace(read_recipe("tiny"), prompts_per_tag=20))
    for tag in TAGS:
        seen = {item.prompt for item in corpus.train[tag]}
        assert corpus.held_out[tag]
        assert not any(item.prompt in seen for item in corpus.held_out[tag])


def test_held_out_modules_are_not_read_for_training():
    corpus = build_corpus(read_recipe("tiny"))
    modules = {
        side: {re.search(r"[\w/]+\.py", item.prompt)[0] for item in items["code"]}
        for side, items in (("train", corpus.train), ("held_out", corpus.held_out))
    }
    assert not modules["train"] & modules["held_out"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny pool, trained in one go."""
    folder = tmp_path_factory.mktemp("trained")
    train_pool(read_recipe("tiny"), folder / "pool", folder / "work", command="a command")
    return folder / "pool"


def test_the_pool_loads_and_has_a_card(trained):
    pool = ModelPool.load(trained)
    assert [member.name for member in pool.members] == ["ngram", "draft", "mid", "slim", "target"]
    card = (trained / "CARD.md").read_text(encoding="utf-8")
    assert "a command" in card
    assert str(trained.parent) not in card
    rows = [json.loads(line) for line in (trained / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["tag"] for row in rows] == list(TAGS)
    assert [row["id"] for row in rows] == [f"{tag}-0001" for tag in TAGS]


def test_a_killed_run_continues_to_the_same_pool(trained, tmp_path, monkeypatch):
    recipe = replace(read_recipe("tiny"), checkpoint_every_s=0.0)
    stages = {"train_target": 0, "make_teacher": 0, "train_student": 0}

    def killed(*_args, **_settings):
        raise KeyboardInterrupt

    for stage in stages:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, stage, killed)
            with pytest.raises(KeyboardInterrupt):
                train_pool(recipe, tmp_path / "pool", tmp_path / "work")
    train_pool(recipe, tmp_path / "pool", tmp_path / "work")
    for name in POOL_FILES:
        assert (tmp_path / "pool" / name).read_bytes() == (trained / name).read_bytes(), name


@pytest.mark.parametrize("killed_at", [1, 4])
def test_a_run_killed_between_steps_gives_the_same_weights(tmp_path, killed_at):
    recipe = read_recipe("tiny")
    batches = torch.randint(0, 400, (6, 2, 17), generator=torch.Generator().manual_seed(3))

    def run(checkpoint, stop_at=None):
        model = make_model(recipe.mid, recipe, seed=1)

        def loss_at(step, rows):
            assert len(set(rows.tolist())) == 2
            if step == stop_at:
                raise KeyboardInterrupt
            return model(input_ids=batches[step], labels=batches[step]).loss

        schedule = Schedule(num_steps=6, num_rows=2, knots=((0, 1e-2), (6, 2e-4)))
        run_training(
            model,
            loss_at,
            num_sequences=12,
            schedule=schedule,
            seed=recipe.seed,
            sequence_tokens=17,
            checkpoint_every_s=0.0,
            checkpoint=checkpoint,
            stage="t",
        )
        return model

    whole = run(tmp_path / "whole.safetensors")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken.safetensors", stop_at=killed_at)
    continued = run(tmp_path / "broken.safetensors")
    for (name, one), (_, other) in zip(whole.named_parameters(), continued.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_checkpoints_of_another_recipe_are_refused(tmp_path):
    (tmp_path / "recipe.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="must belong to the same recipe"):
        train_pool(read_recipe("tiny"), tmp_path / "pool", tmp_path)


def test_the_card_counts_equal_choices(trained):
    """Against choices by hand; the target always agrees with itself."""
    pool = ModelPool.load(trained)
    prompts = [pool.encode(prompt.text) for prompt in read_prompts(trained / "prompts.jsonl")]
    texts = write_texts(pool.target.model, prompts, num_tokens=AGREEMENT_TOKENS, temperature=0.0, seed=0)
    equal = 0
    for prompt, text in zip(prompts, texts, strict=True):
        logits = pool.member("draft").model(input_ids=torch.tensor([prompt + text[:-1]])).logits[0]
        equal += int((logits[len(prompt) - 1 :].argmax(dim=-1) == torch.tensor(text)).sum())
    section = (trained / "CARD.md").read_text(encoding="utf-8").partition("## Agreement")[2].partition("\n## ")[0]
    head, _, *rows = (line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|"))
    shares = {name: cells for name, *cells in rows}
    assert head == ["member", *TAGS, "all"]
    assert list(shares) == ["draft", "mid", "slim", "target"]
    assert shares["target"] == ["100.0%"] * len(head[1:])
    assert shares["draft"][-1] == f"{equal / sum(map(len, texts)):.1%}"
    assert f"({sum(map(len, texts))} tokens)" in section


def test_batched_text_equals_single_text(trained):
    pool = ModelPool.load(trained)
    prompts = [pool.encode(prompt.text) for prompt in read_prompts(trained / "prompts.jsonl")]
    together = write_texts(pool.target.model, prompts, num_tokens=12, temperature=0.0, seed=0)
    for prompt, text in zip(prompts, together, strict=True):
        assert write_texts(pool.target.model, [prompt], num_tokens=12, temperature=0.0, seed=0) == [text]


def test_texts_stop_at_the_end_token():
    recipe = read_recipe("tiny")
    model = make_model(recipe.draft, recipe, seed=0).eval()
    texts = write_texts(model, [[5, 6], [7]], num_tokens=400, temperature=5.0, seed=1)
    assert all(0 not in text[:-1] for text in texts)
    assert any(text[-1] == 0 for text in texts)


def test_distillation_loss_is_least_for_the_teacher_itself():
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    top = logits.log_softmax(-1).topk(8, dim=-1)
    own = _top_cross_entropy(logits, top.indices, top.values)
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
    torch.testing.assert_close(own, entropy)
    assert _top_cross_entropy(logits + torch.arange(8.0), top.indices, top.values) > own


def test_answers_are_scored():
    assert is_right("math", "12", " 3 * 4 = 12\nAnswer: 12")
    assert not is_right("math", "2", " 3 * 4 = 12\nAnswer: 12")
    assert is_right("edit", "A b.", " A b.")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"shares": (0.5, 0.5)}, "shares must hold 6 numbers"),
        ({"shares": (0.5,) * 6}, "add up to 1"),
        ({"full_share": 0.9, "slim_share": 0.2}, "must be <= 1"),
        ({"sequence_tokens": 1024}, "sequence_tokens must be <= 512"),
        ({"skip_layers": (0,)}, "keep the first and the last layer"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(read_recipe("tiny"), **change)


def test_the_rate_rises_and_falls():
    schedule = Schedule(num_steps=100, num_rows=1, knots=((0, 0.1), (10, 1.0), (100, 0.02)))
    rates = [schedule.rate_at(step) for step in range(100)]
    assert rates[10] == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.05
