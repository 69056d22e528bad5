"""Whole numbers from 0 to 9999 written out in English, German and French."""

ENGLISH_SMALL = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
ENGLISH_TENS = ("-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
GERMAN_SMALL = (
    "null",
    "eins",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
)
GERMAN_TENS = ("-", "-", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
FRENCH_SMALL = (
    "zéro",
    "un",
    "deux",
    "trois",
    "quatre",
    "cinq",
    "six",
    "sept",
    "huit",
    "neuf",
    "dix",
    "onze",
    "douze",
    "treize",
    "quatorze",
    "quinze",
    "seize",
    "dix-sept",
    "dix-huit",
    "dix-neuf",
)
FRENCH_TENS = ("-", "-", "vingt", "trente", "quarante", "cinquante", "soixante")


def english(number: int) -> str:
    """British style: `three hundred and twelve`."""
    if number < 20:
        return ENGLISH_SMALL[number]
    if number < 100:
        tens, units = divmod(number, 10)
        return ENGLISH_TENS[tens] + (f"-{ENGLISH_SMALL[units]}" if units else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{ENGLISH_SMALL[hundreds]} hundred" + (f" and {english(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    joint = " and " if rest < 100 else " "
    return f"{english(thousands)} thousand" + (f"{joint}{english(rest)}" if rest else "")


def german(number: int) -> str:
    """One word: `dreihundertzwölf`."""
    if number < 20:
        return GERMAN_SMALL[number]
    if number < 100:
        tens, units = divmod(number, 10)
        return (f"{_german_stem(units)}und" if units else "") + GERMAN_TENS[tens]
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_german_stem(hundreds)}hundert" + (german(rest) if rest else "")
    thousands, rest = divmod(number, 1000)
    return f"{_german_stem(thousands)}tausend" + (german(rest) if rest else "")


def french(number: int) -> str:
    """Traditional hyphens, masculine: `trois cent douze`, `quatre-vingts`, `soixante et onze`."""
    if number < 20:
        return FRENCH_SMALL[number]
    if number < 100:
        return _french_tens(number)
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        cent = "cent" if hundreds == 1 else f"{FRENCH_SMALL[hundreds]} cent"
        if rest == 0:
            return cent + ("s" if hundreds > 1 else "")
        return f"{cent} {french(rest)}"
    thousands, rest = divmod(number, 1000)
    mille = "mille" if thousands == 1 else f"{french(thousands)} mille"
    return mille + (f" {french(rest)}" if rest else "")


def _german_stem(units: int) -> str:
    """`ein` instead of `eins` inside a compound."""
    return "ein" if units == 1 else GERMAN_SMALL[units]


def _french_tens(number: int) -> str:
    """20 to 99: seventy and ninety count on from sixty and eighty."""
    if number >= 80:
        return "quatre-vingt" + (f"-{FRENCH_SMALL[number - 80]}" if number > 80 else "s")
    tens = min(number // 10, 6)
    rest = number - 10 * tens
    if rest == 0:
        return FRENCH_TENS[tens]
    joint = " et " if rest in (1, 11) else "-"
    return f"{FRENCH_TENS[tens]}{joint}{FRENCH_SMALL[rest]}"
