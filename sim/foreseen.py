"""What a recording shows an oracle: a world to try rounds in, and every request's text."""

from typing import NamedTuple

from ..decoding.world import World
from ..policies.oracles.foresight import Answer


class Foreseen(NamedTuple):
    """The future of a recording's requests.

    Attributes:
        world: tries rounds; its own, since requests stay open in it.
        answers: by request id.
        drawn: whether what it draws is what a run of the same seed draws, and so part of the future.
    """

    world: World
    answers: dict[str, Answer]
    drawn: bool
