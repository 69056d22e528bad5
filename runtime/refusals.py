"""What the runtime rejects: models and configs that break a rule, and oracles with real models."""

from collections.abc import Iterable

from ..base.errors import ArgumentError
from ..policies.about import about_of


def in_one_line(error: BaseException) -> str:
    """What foreign code says is wrong, on one line."""
    return " ".join(str(error).split())


def in_words(shape: Iterable[int]) -> str:
    """A tensor's shape."""
    return " x ".join(map(str, shape)) or "one number"


class BrokenRuleError(ValueError):
    """A model, or its use, breaks a rule; `rule` is in words, without the value got."""

    def __init__(self, rule: str, got: str = "") -> None:
        super().__init__(f"{rule}, got {got}" if got else rule)
        self.rule = rule


class ConfigError(ValueError):
    """One field of a model's config that breaks a rule, before its file is known."""

    def __init__(self, field: str, rule: str, value: object) -> None:
        super().__init__(f"{field} {rule}, got {value!r}")
        self.field = field
        self.rule = rule
        self.value = value


def refuse_oracle(policy: object, name: str) -> None:
    """Raises ArgumentError, naming the policy, if it sees ahead; takes its class too, before models are loaded."""
    about = about_of(policy)
    if about is not None and about.oracle:
        raise ArgumentError(f"policy {name} sees ahead, which only a recording allows")
