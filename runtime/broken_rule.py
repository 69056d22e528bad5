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
