"""Dialogues in which the target asks itself: it is set at the user's place, goes on from first words, and answers.

So were Magpie's instructions made (Xu et al. 2024, arXiv:2406.08464). Nobody's questions are needed, and the answers
are what a drafter has to foresee.
"""

import random
from dataclasses import dataclass

from transformers import PreTrainedModel

from ...runtime.pools.loading.chat_template import ChatTemplate
from ...runtime.pools.pool import ModelPool
from ...runtime.pools.pool_file import PoolFileError
from ..training.writing import write_texts
from .recipe import Recipe

_MARK = "{question}"


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A question and its answer.

    Attributes:
        tag: the kind of question.
        question: its text.
        tokens: of the whole dialogue, up to the answer's last one.
        answer_at: place of the answer's first token.
    """

    tag: str
    question: str
    tokens: tuple[int, ...]
    answer_at: int


def write_dialogues(pool: ModelPool, writer: PreTrainedModel, recipe: Recipe, shard: int) -> list[Dialogue]:
    """The dialogues of a shard; questions that do not end in time, or are twice among them, are left out.

    Args:
        pool: loaded for a chat.
        writer: its target, in the dtype that it writes in.
        recipe: how many, how long, at what temperatures.
        shard: number of the shard, which sets its seed.

    Raises:
        PoolFileError: a chat template that does not hold a question as it is.
        ValueError: no question ended.
    """
    rng = random.Random(f"{recipe.seed}/{shard}")
    asked = _ask(pool, writer, recipe, rng)
    rng.shuffle(asked)
    # All in one batch, as wide products are the quicker ones.
    num_sampled = round(recipe.sampled_share * len(asked))
    temperatures = [recipe.answer_temperature] * num_sampled + [0.0] * (len(asked) - num_sampled)
    return _answer(pool, writer, recipe, asked, temperatures, seed=rng.randrange(2**31))


def _ask(pool: ModelPool, writer: PreTrainedModel, recipe: Recipe, rng: random.Random) -> list[tuple[str, str]]:
    """Tag and text of different questions."""
    before = _before(pool.chat)
    tags = rng.choices(list(recipe.tasks), [task.share for task in recipe.tasks.values()], k=recipe.shard_rows)
    openings = [rng.choice(recipe.tasks[tag].openings) for tag in tags]
    begun = [_ids(pool, before + opening) for opening in openings]
    written = write_texts(
        writer, begun, num_tokens=recipe.question_tokens, temperature=recipe.question_temperature,
        seed=rng.randrange(2**31), end_token_ids=pool.eos_token_ids,
    )  # fmt: skip
    questions = {
        (opening + pool.decode(text[:-1])).strip(): tag
        for tag, opening, text in zip(tags, openings, written, strict=True)
        if text[-1] in pool.eos_token_ids
    }
    if not questions:
        raise ValueError(
            f"recipe {recipe.name}: no question of {recipe.shard_rows} ended in {recipe.question_tokens} tokens"
        )
    return [(tag, question) for question, tag in questions.items()]


def _before(chat: ChatTemplate | None) -> str:
    """What stands before a question; raises PoolFileError for a template that does not hold it as it is."""
    assert chat is not None  # the pool was loaded for one
    before, mark, after = chat.asked(_MARK).partition(_MARK)
    if not mark or _MARK in after:
        raise PoolFileError(chat.place, "chat template", "must hold a question once, as it is", f"{before}{after}")
    return before


def _answer(
    pool: ModelPool,
    writer: PreTrainedModel,
    recipe: Recipe,
    asked: list[tuple[str, str]],
    temperatures: list[float],
    seed: int,
) -> list[Dialogue]:
    prompts = [pool.encode(question) for _, question in asked]
    answers = write_texts(
        writer, prompts, num_tokens=recipe.answer_tokens, temperature=temperatures, seed=seed,
        end_token_ids=pool.eos_token_ids,
    )  # fmt: skip
    return [
        Dialogue(tag, question, (*prompt, *answer), len(prompt))
        for (tag, question), prompt, answer in zip(asked, prompts, answers, strict=True)
    ]


def _ids(pool: ModelPool, text: str) -> list[int]:
    return list(pool.tokenizer.encode(text, add_special_tokens=False).ids)
