"""Numbers, dates and short sentences between English, German and French; the domain `translation`."""

import random
from collections.abc import Callable

from .item import Item
from .number_words import english, french, german
from .text_data import text_data

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
    """Those that do not follow the rule, by the number."""
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
    """The date stands before a separated verb prefix: `findet am ersten Mai statt`."""
    if clause.endswith(" statt"):
        return f"{clause.removesuffix(' statt')} {date} statt."
    return f"{clause} {date}."
