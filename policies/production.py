"""Controllers that serving engines have: `sglang-adaptive` and `trtllm-gate`. vLLM's table is `off-under-load`.

`sglang-adaptive` is `--speculative-adaptive` of SGLang (#21599, #24055, as of 0.5.23). A running average of accepted
tokens of a request moves the length: down to the next shorter one s' at s' - 0.5 + `down` (0.5 + `down` where s' is 0),
up beyond the present one s above s - 0.5 + `up`. At length 0 nothing is learnt, and the shortest draft is tried at the
next move. `trtllm-gate` is TensorRT-LLM's `acceptance_rate_window_size` and `acceptance_rate_threshold`.

Both engines decide for a batch. Here a round of a batch is a turn, in which as many rounds begin as requests run.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..base.errors import check_least, check_within
from ..decoding.pool import Pool
from ..decoding.seen import Observation
from ..decoding.steps import Draft, Outcome, Step, Verify
from .about import About
from .blocks import A_DRAFTER, BatchTurns, DraftedBlocks, drafter_of

# SGLang's defaults: draft lengths by least running requests, and `down`, which moves their thresholds.
LADDER = "1:1+3+7/8:0+1+3/32:0+1/64:0"
DOWN = {1: -0.25}
EMA, EVERY, WARM_UP = 0.2, 5, 10  # weight of a round in the average, rounds between moves, rounds before the first
LONGEST = 256  # tokens of a draft


@dataclass(slots=True, kw_only=True)
class Rung:
    """The draft length of batches of one size. Mutated by `note`."""

    lengths: tuple[int, ...]  # ascending
    down: float  # added to thresholds on the way down
    up: float  # and on the way up
    length: int  # present
    accepted: float = field(init=False)  # running average of tokens that a request had accepted in a round
    num_rounds: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.accepted = self.length - 1.0

    def note(self, accepted: float) -> None:
        """Note a round of the batch, with the mean of tokens accepted per request."""
        if self.length:
            self.accepted += EMA * (accepted - self.accepted)
        self.num_rounds += 1
        beyond = self.num_rounds - WARM_UP
        if beyond > 0 and beyond % EVERY == 0:
            self.length = self._next()

    def _next(self) -> int:
        place = was = self.lengths.index(self.length)
        if not self.length:
            longer = self.lengths[min(place + 1, len(self.lengths) - 1)]
            if longer and self.accepted < 0:
                self.accepted = longer - 1.0
            return longer
        while place and self.accepted <= max(self.lengths[place - 1] - 0.5, 0.5) + self.down:
            place -= 1
        if place == was:
            while place + 1 < len(self.lengths) and self.accepted > self.lengths[place] - 0.5 + self.up:
                place += 1
        return self.lengths[place]


class SglangAdaptive(DraftedBlocks):
    """A draft length by the size of the batch and by what stayed, as SGLang moves it.

    Args:
        draft: the drafter; default the smallest model.
        ladder: lengths by running requests, as `1:1+3+7/8:0+1+3/32:0+1/64:0`: 1, 3 or 7 tokens from 1 request on, none,
            1 or 3 from 8 on. It begins at 1 and goes up; a length of 0 drafts nothing.
        start: length that rungs begin with which have it, 0 to 256; others begin in their middle.
        up: added to the thresholds on the way up.
        down: added to those on the way down; default SGLang's, -0.25 below 8 requests, 0 from there on.

    Attributes:
        rungs: by the first number of running requests.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="SGLang's adaptive steps", lossless=True, members=A_DRAFTER)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        ladder: str = LADDER,
        start: int = 3,
        up: float = 0.0,
        down: float | None = None,
    ) -> None:
        check_within("start", start, f"[0, {LONGEST}]")
        lengths = _parse(ladder)
        most = max(max(each) for each in lengths.values())
        super().__init__(Draft(drafter_of(pool, draft), max(most, 1)), Verify(pool.target), others=())
        self.rungs = {
            first: Rung(
                lengths=each,
                up=up,
                down=DOWN.get(first, 0.0) if down is None else down,
                length=start if start in each else each[len(each) // 2],
            )
            for first, each in lengths.items()
        }
        self._turns = BatchTurns()
        self._rung = self.rungs[1]
        self._accepted: list[int] = []  # of the rounds of this turn

    def block(self, seen: Observation) -> Step:
        """A draft of the turn's length, or plain decoding."""
        if self._turns.begins(seen.load.num_running):
            if self._accepted:
                self._rung.note(sum(self._accepted) / len(self._accepted))
                self._accepted.clear()
            self._rung = next(each for first, each in reversed(self.rungs.items()) if seen.load.num_running >= first)
        return self.block_of(self._rung.length)

    def learn(self, outcome: Outcome) -> None:
        """Note the accepted tokens of a round."""
        if isinstance(outcome.step, Verify):
            self._accepted.append(outcome.num_accepted)


def _parse(ladder: str) -> Mapping[int, tuple[int, ...]]:
    """Lengths by the first number of running requests, in order."""
    found: dict[int, tuple[int, ...]] = {}
    for part in ladder.split("/"):
        first, colon, lengths = part.partition(":")
        numbers = [first, *lengths.split("+")]
        if not colon or not all(number.isascii() and number.isdigit() for number in numbers):
            raise ValueError(f"ladder must read REQUESTS:LENGTH+LENGTH/..., as in {LADDER}, got {part!r} in {ladder!r}")
        if int(first) <= max(found, default=0) or (not found and int(first) != 1):
            raise ValueError(f"ladder must begin at 1 request and go up, got {part!r} in {ladder!r}")
        each = tuple(sorted({int(length) for length in numbers[1:]}))
        if each[-1] > LONGEST:
            raise ValueError(f"ladder must hold lengths of at most {LONGEST}, got {each[-1]} in {ladder!r}")
        found[int(first)] = each
    return found


class TrtllmGate(DraftedBlocks):
    """A fixed draft length until too little of it stays, then the target alone for good.

    Args:
        draft: the drafter; default the smallest model.
        window: tokens of a draft, 1 to 256.
        rounds: of a batch, that the mean reaches back; nothing is switched off before there are as many.
        share: of the drafted tokens, below which it is switched off, 0 to 1.

    Attributes:
        off: whether it is.

    Raises:
        ValueError: an option out of range, or a drafter that is not below the target.
    """

    about = About(paper="TensorRT-LLM's acceptance-rate gate", lossless=True, members=A_DRAFTER)

    def __init__(
        self, pool: Pool, *, draft: str | None = None, window: int = 4, rounds: int = 100, share: float = 0.3
    ) -> None:
        check_within("window", window, f"[1, {LONGEST}]")
        check_least("rounds", rounds, 1)
        check_within("share", share, "[0, 1]")
        super().__init__(Draft(drafter_of(pool, draft), window), Verify(pool.target), others=())
        self._turns = BatchTurns()
        self._shares: deque[float] = deque(maxlen=rounds)
        self._share, self._kept, self._judged = share, 0, 0
        self.off = False

    def block(self, seen: Observation) -> Step:
        """The draft, or plain decoding once it is off."""
        if not self.off and self._turns.begins(seen.load.num_running) and self._judged:
            self._shares.append(self._kept / self._judged)
            self._kept = self._judged = 0
            full = len(self._shares) == self._shares.maxlen
            self.off = full and sum(self._shares) / len(self._shares) < self._share
        return self.block_of(0 if self.off else self._draft.tokens)

    def learn(self, outcome: Outcome) -> None:
        """Note the accepted tokens of a round."""
        self._kept += outcome.num_accepted
        self._judged += outcome.num_judged
