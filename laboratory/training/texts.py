"""Training documents of all domains, each split where a held-out prompt would stop, and their tokenizer.

`code` and `prose` are functions and docstrings of the running Python's standard library. The others are drawn from the
word lists and templates of this folder: word problems with short worked answers (`math`), numbers, dates and sentences
between English, German and French (`translation`), service dialogues of several turns (`dialogue`), and paragraphs with
an instruction whose result copies most of them (`edit`).
"""

import ast
import inspect
import json
import operator
import random
import sysconfig
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paceline.base.files import write_whole
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .recipe import TAGS, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A prompt and the text that should follow it."""

    tag: str  # domain of the text, such as `math`
    prompt: str  # what a model is given
    completion: str  # what a model should write; the end token comes after it
    answer: str | None = None  # the part of the completion that can be scored, if any

    @property
    def text(self) -> str:
        """The whole document without the end token."""
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents by domain."""

    train: dict[str, list[Item]]  # for training
    held_out: dict[str, list[Item]]  # never trained on, or never with these prompts


END_TOKEN = "<|end|>"
END_TOKEN_ID = 0
MAX_DOCUMENTS_PER_TAG = 2500


def train_tokenizer(corpus: Corpus, recipe: Recipe) -> Tokenizer:
    """Learn the merges from an equal number of documents of each domain; deterministic."""
    tokenizer = Tokenizer(models.BPE())
    # With single digits a small model can learn column arithmetic.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary_size,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [item.text for items in corpus.train.values() for item in items[:MAX_DOCUMENTS_PER_TAG]]
    random.Random(f"{recipe.seed}/tokenizer").shuffle(texts)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@cache
def text_data(name: str) -> Mapping[str, Any]:
    """The content of `NAME.toml`, which its comments describe."""
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def draw_slots(slots: Mapping[str, Any], words: Mapping[str, Any], rng: random.Random) -> dict[str, str]:
    """The value of each slot, drawn in their order: one of the named list in `words`, or a number of its range."""
    return {
        slot: rng.choice(words[kind]) if isinstance(kind, str) else str(rng.randint(*kind))
        for slot, kind in slots.items()
    }


def make_dialogue(rng: random.Random) -> Item:
    """Draw one dialogue; the prompt ends after the name of the next speaker."""
    dialogues = text_data("dialogue")
    scene = rng.choice(dialogues["scenes"])
    slots = _draw_slots(dialogues, rng)
    lines = []
    for position, wordings in enumerate(scene["turns"]):
        speaker = scene["speakers"][position % 2].format(**slots)
        turn = rng.choice(wordings).format(**slots)
        lines.append(f"{speaker}: {turn[0].upper()}{turn[1:]}")
    first_open = rng.randint(2, 5)
    speaker, _, rest = lines[first_open].partition(":")
    opening = "\n".join([f"Dialogue: {scene['title']}", *lines[:first_open], f"{speaker}:"])
    return Item(tag="dialogue", prompt=opening, completion="\n".join([rest, *lines[first_open + 1 :]]))


def _draw_slots(dialogues: Mapping[str, Any], rng: random.Random) -> dict[str, str]:
    words = {**text_data("words"), **dialogues}
    pairs = {}
    for slot, kind in dialogues["pairs"].items():
        pairs[slot], pairs[f"{slot}2"] = rng.sample(words[kind], 2)
    return pairs | draw_slots(dialogues["slots"], words, rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Sentences about one person."""

    slots: dict[str, str]  # value of each slot of the templates
    sentences: tuple[str, ...]  # the sentences in order; the first one gives name, city and job


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


MIN_CHARACTERS, MAX_CHARACTERS = 160, 900
HELD_OUT_ONE_IN = 20
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def read_stdlib(seed: int) -> Corpus:
    """Read every function and docstring of a fit length, in an order that `seed` shuffles.

    Held-out ones come from modules that are not used in training.
    """
    found = Corpus(train={"code": [], "prose": []}, held_out={"code": [], "prose": []})
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in _module_files(root):
        name = path.relative_to(root).as_posix()
        side = found.held_out if zlib.crc32(name.encode()) % HELD_OUT_ONE_IN == 0 else found.train
        for item in _read_module(path, name):
            side[item.tag].append(item)
    for part in (found.train, found.held_out):
        for tag, items in part.items():
            unique = list({item.text: item for item in items}.values())
            random.Random(f"{seed}/{tag}").shuffle(unique)
            part[tag] = unique
    return found


def _module_files(root: Path) -> Iterator[Path]:
    skipped = frozenset(text_data("stdlib_text")["skipped_folders"])
    for path in sorted(root.rglob("*.py")):
        if not skipped.intersection(path.relative_to(root).parts):
            yield path


def _read_module(path: Path, name: str) -> Iterator[Item]:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            yield from _code_item(node, lines, name)
        if isinstance(node, Definition | ast.ClassDef):
            yield from _prose_item(node, name)


def _code_item(node: Definition, lines: list[str], name: str) -> Iterator[Item]:
    """The source of one function without its docstring, its first lines as the prompt."""
    kept = lines[node.lineno - 1 : node.end_lineno]
    if ast.get_docstring(node, clean=False) is not None:
        first = node.body[0]
        kept = lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno or 0 : node.end_lineno]
    body = [line[node.col_offset :].rstrip() for line in kept if line.strip()]
    text = "\n".join(body)
    if len(body) < 5 or not MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS or not text.isascii():
        return
    cut = max(2, len(body) // 3)
    head = "\n".join(body[:cut])
    yield Item(tag="code", prompt=f"# {name}\n{head}\n", completion="\n".join(body[cut:]))


def _prose_item(node: Definition | ast.ClassDef, name: str) -> Iterator[Item]:
    """One docstring, cut after about a third of its words."""
    docstring = ast.get_docstring(node, clean=False)
    if docstring is None:
        return
    text = inspect.cleandoc(docstring)
    if not MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS or not text.isascii() or ">>>" in text:
        return
    cut = text.find(" ", max(90, len(text) // 3))
    if cut < 0:
        return
    yield Item(tag="prose", prompt=f"About {node.name} in {name}:\n{text[:cut]}", completion=text[cut:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Words of numbers: of those below 20, and of 20, 30, ..."""

    small: tuple[str, ...]
    tens: tuple[str, ...]


ENGLISH, GERMAN, FRENCH = (
    Words(**{kind: tuple(words) for kind, words in text_data("number_words")[language].items()})
    for language in ("english", "german", "french")
)


def english(number: int) -> str:
    """British style: `three hundred and twelve`."""
    if number < 20:
        return ENGLISH.small[number]
    if number < 100:
        tens, units = divmod(number, 10)
        return ENGLISH.tens[tens - 2] + (f"-{ENGLISH.small[units]}" if units else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{ENGLISH.small[hundreds]} hundred" + (f" and {english(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    joint = " and " if rest < 100 else " "
    return f"{english(thousands)} thousand" + (f"{joint}{english(rest)}" if rest else "")


def german(number: int) -> str:
    """One word: `dreihundertzwölf`."""
    if number < 20:
        return GERMAN.small[number]
    if number < 100:
        tens, units = divmod(number, 10)
        return (f"{_german_stem(units)}und" if units else "") + GERMAN.tens[tens - 2]
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_german_stem(hundreds)}hundert" + (german(rest) if rest else "")
    thousands, rest = divmod(number, 1000)
    return f"{_german_stem(thousands)}tausend" + (german(rest) if rest else "")


def french(number: int) -> str:
    """Traditional hyphens, masculine: `trois cent douze`, `quatre-vingts`, `soixante et onze`."""
    if number < 20:
        return FRENCH.small[number]
    if number < 100:
        return _french_tens(number)
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        cent = "cent" if hundreds == 1 else f"{FRENCH.small[hundreds]} cent"
        if rest == 0:
            return cent + ("s" if hundreds > 1 else "")
        return f"{cent} {french(rest)}"
    thousands, rest = divmod(number, 1000)
    mille = "mille" if thousands == 1 else f"{french(thousands)} mille"
    return mille + (f" {french(rest)}" if rest else "")


def _german_stem(units: int) -> str:
    """`ein` instead of `eins` inside a compound."""
    return "ein" if units == 1 else GERMAN.small[units]


def _french_tens(number: int) -> str:
    """20 to 99: seventy and ninety count on from sixty and eighty."""
    if number >= 80:
        return "quatre-vingt" + (f"-{FRENCH.small[number - 80]}" if number > 80 else "s")
    tens = min(number // 10, 6)
    rest = number - 10 * tens
    if rest == 0:
        return FRENCH.tens[tens - 2]
    joint = " et " if rest in (1, 11) else "-"
    return f"{FRENCH.tens[tens - 2]}{joint}{FRENCH.small[rest]}"


Phrase = tuple[str, str, str]
LANGUAGES = ("English", "German", "French")


def make_translation(rng: random.Random) -> Item:
    """Draw a list of one to four phrases and its translation, in any of the six directions."""
    source, goal = rng.sample(range(3), 2)
    kind = rng.choice(_KINDS)
    phrases = [kind(rng) for _ in range(rng.randint(2, 4))]
    listed = "".join(f"{row}. {phrase[source]}\n" for row, phrase in enumerate(phrases, 1))
    translated = "\n".join(f"{row}. {phrase[goal]}" for row, phrase in enumerate(phrases, 1))
    return Item(
        tag="translation",
        prompt=f"Translate from {LANGUAGES[source]} to {LANGUAGES[goal]}.\n{listed}{LANGUAGES[goal]}:\n",
        completion=translated,
        answer=translated,
    )


def number_phrase(rng: random.Random) -> Phrase:
    """A number; short ones are as frequent as long ones."""
    number = rng.randrange(10 ** rng.randint(2, 4))
    return english(number), german(number), french(number)


def date_phrase(rng: random.Random) -> Phrase:
    """A weekday, day and month, sometimes with a year."""
    phrases = text_data("translation")
    weekday, day, month = rng.choice(phrases["weekdays"]), rng.randint(1, 31), rng.choice(phrases["months"])
    dates = (
        f"{weekday[0]}, the {english_ordinal(day)} of {month[0]}",
        f"{weekday[1]}, der {german_ordinal(day)} {month[1]}",
        f"{weekday[2]} {french_day(day)} {month[2]}",
    )
    if rng.random() < 0.5:
        return dates
    year = rng.randint(1900, 2049)
    return (
        f"{dates[0]} {english_year(year)}",
        f"{dates[1]} {german_year(year)}",
        f"{dates[2]} {french(year)}",
    )


def sentence_phrase(rng: random.Random) -> Phrase:
    """A short sentence that holds a number or a day."""
    phrases = text_data("translation")
    if rng.random() < 0.5:
        owner, noun = rng.choice(phrases["owners"]), rng.choice(phrases["counted"])
        number = rng.choice([number for number in range(2, 400) if number % 100 != 1])
        return (
            f"{owner[0]} {english(number)} {noun[0]}.",
            f"{owner[1]} {german(number)} {noun[1]}.",
            f"{owner[2]} {french(number)} {noun[2]}.",
        )
    event, day, month = rng.choice(phrases["events"]), rng.randint(1, 31), rng.choice(phrases["months"])
    return (
        f"{event[0]} on the {english_ordinal(day)} of {month[0]}.",
        _german_event(event[1], f"am {german_ordinal(day)}n {month[1]}"),
        f"{event[2]} le {french_day(day)} {month[2]}.",
    )


_KINDS: tuple[Callable[[random.Random], Phrase], ...] = (number_phrase, date_phrase, sentence_phrase)


def _ordinals(language: str) -> dict[str, str]:
    """Irregular ordinals, by number."""
    ordinals: dict[str, str] = text_data("translation")["ordinals"][language]
    return ordinals


def english_ordinal(day: int) -> str:
    """`first`, `twenty-second`, `thirtieth`."""
    if named := _ordinals("english").get(str(day)):
        return named
    if day > 20 and day % 10:
        return f"{english(day - day % 10)}-{english_ordinal(day % 10)}"
    stem = english(day)
    return f"{stem[:-1]}ieth" if stem.endswith("y") else f"{stem}th"


def german_ordinal(day: int) -> str:
    """Nominative after the definite article: `erste`, `zwanzigste`."""
    if named := _ordinals("german").get(str(day)):
        return named
    return german(day) + ("te" if day < 20 else "ste")


def french_day(day: int) -> str:
    """Only the first day of a month is an ordinal in French."""
    return "premier" if day == 1 else french(day)


def english_year(year: int) -> str:
    """`nineteen ninety-eight`, `nineteen oh five`, `two thousand and five`, `twenty twenty-four`."""
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return english(year)
    if rest == 0:
        return f"{english(century)} hundred"
    return f"{english(century)} {english(rest) if rest >= 10 else f'oh {english(rest)}'}"


def german_year(year: int) -> str:
    """`neunzehnhundertachtundneunzig`, `zweitausendfünf`."""
    century, rest = divmod(year, 100)
    if century >= 20:
        return german(year)
    return f"{german(century)}hundert" + (german(rest) if rest else "")


def _german_event(clause: str, date: str) -> str:
    """The date comes before a separated verb prefix: `findet am ersten Mai statt`."""
    if clause.endswith(" statt"):
        return f"{clause.removesuffix(' statt')} {date} statt."
    return f"{clause} {date}."


MAX_TOTAL = 400
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


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
    """Draw operands that keep every total whole, positive and small; None if a draw does not fit."""
    total = rng.randint(2, 12) if operations[0] == "*" else rng.randint(5, 60)
    operands, steps = [total], []
    for operation in operations:
        operand = _draw_operand(operation, total, rng)
        if operand is None:
            return None
        result = _OPERATIONS[operation](total, operand)
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


GENERATORS: dict[str, Callable[[random.Random], Item]] = {
    "math": make_word_problem,
    "translation": make_translation,
    "dialogue": make_dialogue,
    "edit": make_edit,
}
# A low estimate, so that there are enough documents before there is a tokenizer; unused ones are dropped.
CHARACTERS_PER_TOKEN = 3.6
CANDIDATES_PER_PROMPT = 20
MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 30, 160


def build_corpus(recipe: Recipe) -> Corpus:
    """Read and generate the documents; the same recipe gives the same corpus.

    Candidates for the prompts are held out; none of their prompts occurs in the training text.
    """
    stdlib = read_stdlib(recipe.seed)
    train, held_out = {}, {}
    for tag, share in zip(TAGS, recipe.shares, strict=True):
        if tag in GENERATORS:
            texts, others = (_generated(tag, f"{recipe.seed}/{side}/{tag}") for side in ("train", "held-out"))
        else:  # training starts over at their end
            texts, others = cycle(stdlib.train[tag]), iter(stdlib.held_out[tag])
        num_characters = int(recipe.corpus_tokens * share * CHARACTERS_PER_TOKEN)
        train[tag] = list(_take_characters(texts, num_characters))
        seen = {item.prompt for item in train[tag]}
        candidates = islice(others, CANDIDATES_PER_PROMPT * recipe.prompts_per_tag)
        held_out[tag] = [item for item in candidates if item.prompt not in seen]
    return Corpus(train=train, held_out=held_out)


def pack_corpus(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> torch.Tensor:
    """Join the documents in random order, an end token after each, and cut them: int16 ids `[N, sequence_tokens + 1]`.

    Neighbours share one token, so that each token is predicted once.
    """
    documents: list[np.ndarray] = []
    for tag, share in zip(TAGS, recipe.shares, strict=True):
        documents.extend(_take_tokens(corpus.train[tag], tokenizer, int(recipe.corpus_tokens * share)))
    random.Random(f"{recipe.seed}/pack").shuffle(documents)
    flat = torch.from_numpy(np.concatenate(documents))
    return flat.unfold(0, recipe.sequence_tokens + 1, recipe.sequence_tokens).clone()


def held_out_items(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> dict[str, list[Item]]:
    """By domain, the documents whose prompts are held out: neither too short nor too long, each prompt once."""
    return {tag: _fit_items(items, tokenizer)[: recipe.prompts_per_tag] for tag, items in corpus.held_out.items()}


def write_prompts(items: Mapping[str, Sequence[Item]], path: Path) -> None:
    """Write `prompts.jsonl`: one JSON object a line, round-robin over the domains."""
    rounds = enumerate(zip_longest(*items.values()), start=1)
    rows = [
        {"id": f"{item.tag}-{number:04d}", "tag": item.tag, "prompt": item.prompt}
        | ({} if item.answer is None else {"answer": item.answer})
        for number, some in rounds
        for item in some
        if item is not None
    ]
    write_whole(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))


def _fit_items(items: list[Item], tokenizer: Tokenizer) -> list[Item]:
    lengths = [len(tokenizer.encode(item.prompt).ids) for item in items]
    unique = {
        item.prompt: item
        for item, length in zip(items, lengths, strict=True)
        if MIN_PROMPT_TOKENS <= length <= MAX_PROMPT_TOKENS
    }
    return list(unique.values())


def _generated(tag: str, seed: str) -> Iterator[Item]:
    rng = random.Random(seed)
    while True:
        yield GENERATORS[tag](rng)


def _take_characters(items: Iterator[Item], num_characters: int) -> Iterator[Item]:
    taken = 0
    for item in items:
        if taken >= num_characters:
            return
        taken += len(item.text)
        yield item


def _take_tokens(items: list[Item], tokenizer: Tokenizer, num_tokens: int) -> Iterator[np.ndarray]:
    """Encoded items with an end token until `num_tokens` are reached; starts again at the end."""
    encodings = tokenizer.encode_batch([f"{item.text}<|end|>" for item in items])
    taken = 0
    while taken < num_tokens:
        for encoding in encodings:
            taken += len(encoding.ids)
            yield np.asarray(encoding.ids, dtype=np.int16)
            if taken >= num_tokens:
                return
