"""Lists in one option: `0.6,0.8`."""


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The comma-separated numbers of an option; raises ValueError with the part that is none."""
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise ValueError(f"{option} must hold numbers with commas between, got {part!r}") from None
    return tuple(values)


def words(option: str, text: str) -> tuple[str, ...]:
    """The comma-separated names of an option; raises ValueError for an empty one."""
    values = tuple(text.split(","))
    if not all(values):
        raise ValueError(f"{option} must hold names with commas between, got {text!r}")
    return values
