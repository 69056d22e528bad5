"""What the runtime refuses or calls right: answers, models that break a rule, and oracles among real models."""

import re
from decimal import Decimal
from typing import Literal, get_args

from ..base.errors import ArgumentError
from ..policies.about import about_of

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


class BrokenRuleError(ValueError):
    """A model, or what is asked of it, breaks a rule; `rule` is in words, without what was got."""

    def __init__(self, rule: str, got: str = "") -> None:
        super().__init__(f"{rule}, got {got}" if got else rule)
        self.rule = rule


class ConfigError(ValueError):
    """One field of a model's config that breaks a rule, before anybody says in which file it stands."""

    def __init__(self, field: str, rule: str, value: object) -> None:
        super().__init__(f"{field} {rule}, got {value!r}")
        self.field = field
        self.rule = rule
        self.value = value


def refuse_oracle(policy: object, name: str) -> None:
    """Raises ArgumentError, naming the policy, if it sees ahead; its class can be asked before models are loaded."""
    about = about_of(policy)
    if about is not None and about.oracle:
        raise ArgumentError(f"policy {name} sees ahead, which only a recording can grant")
