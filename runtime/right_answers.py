"""Whether the text of a model gives the right answer."""

import re
from decimal import Decimal
from typing import Literal, get_args

Check = Literal["text", "number"]
CHECKS: tuple[Check, ...] = get_args(Check)
# Digits of any script; commas part thousands, a dot is the decimal one, and a line between two numbers is no sign.
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:,\d{3})*(?:\.\d+)?")


def is_right(tag: str, answer: str, text: str, check: Check = "text") -> bool:
    """True if `text` gives `answer`; a text that the token limit cut short counts as wrong, unless a number is asked.

    Args:
        tag: of the request; a text tagged `math` has to end in `Answer: ` and the answer, any other to be the answer.
        answer: what is expected; space around it does not count.
        text: what was written after the prompt.
        check: `text` is the above. `number`: the last number in the text has to be the answer's, whatever the tag, as
            GSM8K and MGSM are scored (Cobbe et al., arXiv:2110.14168).
    """
    wanted = answer.strip()
    if check == "number":
        found = last_number(text)
        return found is not None and found == last_number(wanted)
    if tag == "math":
        return text.rstrip().endswith(f"Answer: {wanted}")
    return text.strip() == wanted


def last_number(text: str) -> Decimal | None:
    """The last number in a text; None if there is none."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None
