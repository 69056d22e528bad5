"""A rule that is broken, apart from what breaks it: whoever catches the error may know better where that stands."""


class BrokenRuleError(ValueError):
    """A model, or what is asked of it, breaks a rule.

    Attributes:
        rule: in words, without what was got.
    """

    def __init__(self, rule: str, got: str = "") -> None:
        """State that `rule` is broken, by `got` if there is more to say."""
        super().__init__(f"{rule}, got {got}" if got else rule)
        self.rule = rule


class ConfigError(ValueError):
    """One field of a model's config that breaks a rule, before anybody says in which file it stands."""

    def __init__(self, field: str, rule: str, value: object) -> None:
        """State that `field` breaks `rule` by being `value`."""
        super().__init__(f"{field} {rule}, got {value!r}")
        self.field = field
        self.rule = rule
        self.value = value
