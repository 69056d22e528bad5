"""An argument that is refused, named so that a notebook and a command line can each say it in their own words."""


class ArgumentError(ValueError):
    """An argument that does not do; its text has the names of arguments in backquotes: "`batch` must be >= 1, got 0".

    The command line prints its options instead of them.
    """
