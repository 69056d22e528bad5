"""Whole numbers from 0 to 9999 written out in English, German and French."""

from dataclasses import dataclass

from .text_data import text_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Words of a language.

    Attributes:
        small: of the numbers below 20.
        tens: of 20, 30, ...
    """

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
