"""`persistent-agent`: sessions of many turns that send a growing context again and again."""

from dataclasses import dataclass
from random import Random

from ..arrival import Arrival
from ..generated.lengths import Length
from .growing_line import DrawnLine
from .seconds import Seconds
from .session_kind import Place, check_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentAgent:
    """An agent that keeps one conversation open, as coding agents do.

    It imitates sessions such as those of kv-cache-tester (docs/workloads.md): a system prompt with tools that all
    sessions have in common, then turn after turn, each of which sends all that was read and answered before, and the
    result of a tool or a message of the user. The client keeps its text as it was, so that nothing but the newest
    tokens has to be read, as long as the prefix cache holds the session: with many turns over 80% of the tokens read
    are hits.
    It leaves out what real clients do now and then: cutting or rewriting their history, and sub-agents.

    Attributes:
        turns: of a session.
        system: tokens of the system prompt, >= 0.
        prompt: new tokens of each turn.
        output: tokens of each answer.
        wait: seconds from an answer to the next turn.
    """

    turns: Length
    system: int
    prompt: Length
    output: Length
    wait: Seconds

    @property
    def num_requests(self) -> int | None:
        """See `SessionKind`."""
        return self.turns.least if self.turns.is_given else None

    def begin(self, place: Place, rng: Random) -> Arrival:
        """See `SessionKind`."""
        turns = self.turns.draw(rng)
        check_requests(turns)
        new, outputs = ([length.draw(rng) for _ in range(turns)] for length in (self.prompt, self.output))
        waits_ps = [self.wait.draw_ps(rng) for _ in range(turns - 1)]
        return DrawnLine(place, self.system, new, outputs, waits_ps).begin()
