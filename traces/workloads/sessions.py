"""Sessions: a line of turns, each of which waits for the one before it.

Letters: T turns of a session.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .arrival import Arrival

Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session.

    Attributes:
        request_id: unique in the workload.
        wait_ps: from the end of the turn before, or of the first from the start of the session, >= 0.
        prompt_tokens: >= 1.
        output_tokens: >= 1.
        kept_blocks: how many blocks of the turn before, from its first, this prompt begins with.
        new_blocks: its other blocks, as runs of ids (first, last).
    """

    request_id: str
    wait_ps: int
    prompt_tokens: int
    output_tokens: int
    kept_blocks: int = 0
    new_blocks: Runs = ()

    def blocks(self, before: tuple[int, ...]) -> tuple[int, ...]:
        """Of its prompt, where those of the turn before were `before`."""
        kept = before[: self.kept_blocks]
        return (*kept, *(block for first, last in self.new_blocks for block in range(first, last + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What is left of a session after some of its turns; implements `Turns`.

    Attributes:
        turns: `[T]` all of them.
        place: how many came before.
        blocks: of the turn before.
        tag: of its requests.
        slo: of its requests.
    """

    turns: tuple[Turn, ...]
    place: int = 0
    blocks: tuple[int, ...] = ()
    tag: str = ""
    slo: str = ""

    @property
    def depths(self) -> tuple[int, ...]:
        """See `Turns`: a turn waits for the end of the one before."""
        return ()

    def reached(self, depth: int, at_ps: int) -> tuple[Arrival, ...]:
        """See `Turns`."""
        return ()

    def after(self, ended_ps: int) -> tuple[Arrival, ...]:
        """See `Turns`."""
        return () if self.place == len(self.turns) else (self.next(ended_ps),)

    def begin(self, arrives_ps: int) -> Arrival:
        """Its first request, as `SessionGraph.begin`."""
        return self.next(arrives_ps)

    def next(self, ended_ps: int) -> Arrival:
        """The next turn, of which there must be one."""
        turn = self.turns[self.place]
        blocks = turn.blocks(self.blocks)
        left = replace(self, place=self.place + 1, blocks=blocks) if self.place + 1 < len(self.turns) else None
        return Arrival(
            turn.request_id,
            ended_ps + turn.wait_ps,
            turn.prompt_tokens,
            turn.output_tokens,
            self.tag,
            blocks,
            left,
            self.slo,
        )


def runs_of(ids: Iterable[int]) -> Runs:
    """Ids as runs of consecutive ones."""
    runs: list[tuple[int, int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)
