"""The command line in one of several processes of torchrun: rank 0 prints and writes, who fails first says why."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from ..installing import needs_torch
from ..progress import quiet
from ..runtime.ranks.launched import launched

TOGETHER = "run"  # what several processes can do together


def check_command(name: str | None) -> None:
    """Raises ValueError for a command that several processes would do several times."""
    num_ranks = launched().num_ranks
    if num_ranks > 1 and name != TOGETHER:
        raise ValueError(f"torchrun must start `paceline {TOGETHER}` or a single process, got `{name}` in {num_ranks}")


def is_first() -> bool:
    """Whether this process prints and writes."""
    return launched().rank == 0


def is_heard(*, interrupted: bool) -> bool:
    """Whether this process, which is about to end, says why; an interrupt comes to all, and rank 0 tells of it."""
    own = launched()
    if own.num_ranks == 1:
        return True
    if interrupted and own.rank > 0:
        return False
    with needs_torch():
        from ..runtime.ranks.last_words import first_to_fail
    return first_to_fail()


def lost_rank(error: BaseException) -> str | None:
    """What to say of an error that another process caused; None of other errors."""
    if launched().num_ranks == 1:
        return None
    with needs_torch():
        from ..runtime.ranks.last_words import of_a_lost_rank
    return of_a_lost_rank(error)


@contextmanager
def one_voice() -> Iterator[None]:
    """Ranks other than 0 print nothing and tell no progress; their errors are heard all the same."""
    if is_first():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), quiet():  # noqa: PTH123
        yield
