"""What the log of an imported recording knew, from all to least, and how far a replay of it can be trusted."""

from typing import Literal, get_args

Form = Literal["rounds", "histograms", "request means", "rates", "mean"]
FORMS: tuple[Form, ...] = get_args(Form)

_TRUST: dict[Form, str] = {
    "rounds": "rounds known in order",
    "histograms": "histograms of requests known, their order drawn",
    "request means": "means of requests known, their rounds drawn",
    "rates": "rates per position known, all rounds drawn",
    "mean": "one mean known, all rounds drawn at one rate",
}


def trust(form: Form) -> str:
    """What was known and what is drawn, in a few words for the first line of whatever shows the recording."""
    return _TRUST[form]
