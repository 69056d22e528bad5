"""What is wrong with the config of a model, before anybody says in which file it stands."""


class ConfigError(ValueError):
    """One field of a model's config that breaks a rule."""

    def __init__(self, field: str, rule: str, value: object) -> None:
        """State that `field` breaks `rule` by being `value`."""
        super().__init__(f"{field} {rule}, got {value!r}")
        self.field = field
        self.rule = rule
        self.value = value
