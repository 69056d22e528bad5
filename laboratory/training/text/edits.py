"""Short paragraphs with an instruction whose result copies most of the input; the domain `edit`."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .item import Item
from .text_data import draw_slots, text_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Sentences about one person.

    Attributes:
        slots: value of each slot of the templates.
        sentences: the sentences in order; the first one gives name, city and job.
    """

    slots: dict[str, str]
    sentences: tuple[str, ...]


def make_edit(rng: random.Random) -> Item:
    """Draw a paragraph and one of the instructions."""
    paragraph = _draw_paragraph(rng)
    instruction, result = rng.choice(_INSTRUCTIONS)(paragraph, rng)
    return Item(
        tag="edit",
        prompt=f"Text: {' '.join(paragraph.sentences)}\nInstruction: {instruction}\nResult:",
        completion=f" {result}",
        answer=result,
    )


def _draw_paragraph(rng: random.Random) -> Paragraph:
    edits = text_data("edits")
    slots, sentences = draw_slots(edits["slots"], text_data("words"), rng), edits["sentences"]
    chosen = [sentences[0], *rng.sample(sentences[1:], rng.randint(2, 3))]
    return Paragraph(slots=slots, sentences=tuple(sentence.format(**slots) for sentence in chosen))


def _replace(slot: str, kind: str, paragraph: Paragraph, rng: random.Random) -> tuple[str, str]:
    old = paragraph.slots[slot]
    new = rng.choice([choice for choice in text_data("words")[kind] if choice != old])
    return f"Replace {old} with {new}.", " ".join(paragraph.sentences).replace(old, new)


def _upper_name(paragraph: Paragraph, rng: random.Random) -> tuple[str, str]:
    word = paragraph.slots[rng.choice(("name", "city"))]
    return f"Write {word} in capital letters.", " ".join(paragraph.sentences).replace(word, word.upper())


def _delete_sentence(paragraph: Paragraph, rng: random.Random) -> tuple[str, str]:
    gone = rng.randrange(len(paragraph.sentences))
    kept = [sentence for place, sentence in enumerate(paragraph.sentences) if place != gone]
    return f"Delete the {text_data('edits')['ordinals'][gone]} sentence.", " ".join(kept)


def _list_facts(paragraph: Paragraph, rng: random.Random) -> tuple[str, str]:
    labels = rng.sample(("name", "city", "job"), rng.randint(2, 3))
    facts = "; ".join(f"{label} = {paragraph.slots[label]}" for label in labels)
    return f"List the {', '.join(labels)}.", facts


def _number_sentences(paragraph: Paragraph, rng: random.Random) -> tuple[str, str]:
    marker = rng.choice(("-", "*"))
    rows = "\n".join(f"{marker} {sentence}" for sentence in paragraph.sentences)
    return f"Make a list with {marker} before each sentence.", f"\n{rows}"


_INSTRUCTIONS: tuple[Callable[[Paragraph, random.Random], tuple[str, str]], ...] = (
    partial(_replace, "name", "names"),
    partial(_replace, "city", "cities"),
    _upper_name,
    _delete_sentence,
    _list_facts,
    _number_sentences,
)
