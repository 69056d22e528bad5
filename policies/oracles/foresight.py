"""Foresight by trying: one round of a chain is run through a world from any position, and nothing is committed.

A *position* is a number of tokens of the answer, counted on the trunk.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ...decoding.observation import Load
from ...decoding.pool import Pool
from ...decoding.session import Session
from ...decoding.world import World
from ..chain_notation import ChainSpec
from ..lossless.chain import Chain
from .attempt import Around, Attempt, Round, answered, copied

ForwardSeconds = Callable[[int, int, int], float]


class Answer(NamedTuple):
    """A request and its trunk of N tokens.

    Attributes:
        session: before its first step; never stepped itself.
        tokens: `[N]`.
        places: `[N + 1]` the world's places of the contexts after 0 to N tokens.
    """

    session: Session
    tokens: list[int]
    places: list[int]


class Foreseen(NamedTuple):
    """What a recording shows: a world to try rounds in, and every request's text.

    Attributes:
        world: tries rounds; its own, since requests stay open in it.
        answers: by request id.
        drawn: whether what it draws is what a run of the same seed draws, and so part of the future.
    """

    world: World
    answers: dict[str, Answer]
    drawn: bool


class Foresight:
    """The future of every request, which only a recording knows.

    Args:
        pool: the members.
        foreseen: what the recording shows.
        forward_s: seconds of one forward at batch 1 from level, new tokens and tokens held.

    Attributes:
        request_ids: in the order of the recording.
        forward_s: as given; inf where nothing is known of a forward so large.
    """

    def __init__(self, pool: Pool, foreseen: Foreseen, forward_s: ForwardSeconds) -> None:
        self._world, self._answers, self._drawn = foreseen
        self.request_ids = tuple(self._answers)
        self.forward_s = forward_s
        self._pool = pool
        self._around: Around = (Load(len(pool.members)), self._world.signal)
        self._smaller: dict[ChainSpec, list[Chain]] = {}
        for answer in self._answers.values():
            self._world.open(answer.session)

    def num_prompt(self, request_id: str) -> int:
        """Tokens of the prompt."""
        return self._answers[request_id].session.num_prompt

    def num_tokens(self, request_id: str) -> int:
        """Tokens of the answer, as far as it is recorded."""
        return len(self._answers[request_id].tokens)

    def round_of(self, request_id: str, position: int, chain: Chain) -> Round | None:
        """The round of `chain` from `position` on; None where the recording does not answer for all of it.

        Where the run starts with the prefill, the round from position 0 is the prefill, whatever the chain.
        """
        return self._at(request_id, position).finish(chain)

    def climbs(self, request_id: str, position: int, chain: Chain) -> list[Round]:
        """Rounds of a chain of three or more members, by its last window: the one it has, and every smaller one.

        Windows that come to the same round are one. The list ends at the first round in which the target refuses a
        token, since a longer climb emits no more, and where the recording ends.
        """
        attempt = self._at(request_id, position)
        if attempt.session.prefills_first:
            return answered(attempt.finish(chain))
        top = self._pool.level(chain.spec.members[-2])
        smaller = self._by_last_window(chain)
        rounds: list[Round] = []
        while attempt.climb(chain, top):
            waiting = len(attempt.session.tokens)
            if waiting < len(smaller):
                found = attempt.fork().finish(smaller[waiting])
                if found is None:
                    return rounds
                rounds.append(found)
                if found.num_emitted <= waiting:
                    return rounds
        last = attempt.finish(chain)
        return rounds if last is None else [*rounds, last]

    def _at(self, request_id: str, position: int) -> Attempt:
        """A request placed on its trunk, every cache warm."""
        session, tokens, places = self._answers[request_id]
        session = copied(session)
        session.emitted = tokens[:position]
        session.place = places[position]
        session.tokens, session.places, session.drafters, session.judges = [], [], [], []
        session.cached = [session.num_prompt + position - 1] * len(session.cached)
        return Attempt(session, self._world, self._around, self._drawn, len(session.emitted))

    def _by_last_window(self, chain: Chain) -> list[Chain]:
        """Variants of a chain: at index w with the last window w, the one it has at index 0 and no larger one."""
        spec = chain.spec
        if spec not in self._smaller:
            *lower, most = spec.windows
            specs = [replace(spec, windows=(*lower, window)) for window in range(1, most)]
            self._smaller[spec] = [chain, *(Chain(self._pool, str(smaller)) for smaller in specs)]
        return self._smaller[spec]
