"""One request of a replica whose rounds are known: numbers in place of tokens."""

from ....traces.workloads.arrival import Arrival
from ...fixed.round import FixedOp, Round
from ..engine.served_session import NEVER


class TabledRequest:
    """What `ServedSession` is, without tokens. Letter: L levels. Mutated by its replica.

    Attributes:
        arrival: what is wanted.
        serial: of the request in its run.
        depths: tokens of the answer that others of its session wait for, and that are not written yet.
        recorded_id: the request of the recording that it replays; "" until it is first looked at.
        most_tokens: that its text ever has, prompt and answer.
        num_text: tokens of prompt and answer so far.
        answer_tokens: of the recorded answer that it repeats; 0 until it is first looked at.
        most_answer: tokens that the recording allowed that answer.
        position: tokens of the present segment.
        budget: tokens that the present segment may have.
        cached: `[L]` tokens of the text that each member's cache holds.
        room_held: `[L]` tokens that its blocks of each member have room for.
        full_at: `[L]` tokens with which a further block may enter the member's prefix cache.
        order: number of its latest admission; NEVER while it waits.
        scheduled: whether it was ever admitted.
        round: that it is in; None between two.
        step: index of its next operation in the round.
        num_noted: tokens of the answer that were written down.
        out_at_ps: when its latest tokens came out; NEVER before the first.
    """

    __slots__ = (
        "answer_tokens", "arrival", "budget", "cached", "depths", "full_at", "most_answer", "most_tokens", "num_noted",
        "num_text", "order", "out_at_ps", "position", "recorded_id", "room_held", "round", "scheduled", "serial",
        "step",
    )  # fmt: skip

    def __init__(self, arrival: Arrival, serial: int, num_levels: int) -> None:
        self.arrival = arrival
        self.serial = serial
        self.depths = arrival.depths
        self.recorded_id = ""
        self.num_text = arrival.prompt_tokens
        self.most_tokens = arrival.prompt_tokens + arrival.output_tokens
        self.answer_tokens = self.most_answer = 0
        self.position = self.budget = self.num_noted = 0
        self.cached = [0] * num_levels
        self.room_held = [0] * num_levels
        self.full_at = [0] * num_levels
        self.order = NEVER
        self.scheduled = False
        self.round: Round | None = None
        self.step = 0
        self.out_at_ps = NEVER

    def replays(self, recorded_id: str, answer_tokens: int, most_answer: int) -> None:
        """Stand at the start of a recorded answer."""
        self.recorded_id = recorded_id
        self.answer_tokens = answer_tokens
        self.most_answer = most_answer
        self.budget = min(most_answer, self.arrival.output_tokens)

    @property
    def op(self) -> FixedOp:
        """Its next operation; it must be in a round."""
        assert self.round is not None
        return self.round.ops[self.step]

    @property
    def num_answer(self) -> int:
        """Tokens of the answer so far."""
        return self.num_text - self.arrival.prompt_tokens

    @property
    def prefill_left(self) -> int:
        """Tokens of the text that the target has not read."""
        return self.num_text - self.cached[-1]

    def draft(self, op: FixedOp, *, keeps: bool) -> None:
        """A draft has run; `keeps`: by a member with a cache."""
        self.step += 1
        if keeps and op.drafted:
            self.cached[op.level] = self.num_text + op.pending + op.drafted - 1

    def judge(self, op: FixedOp) -> None:
        """A member below the target has judged."""
        self.step += 1
        self._roll_back(op.level, self.num_text + op.first + op.accepted)

    def commit(self, accepted: int, tokens: int, *, ends: bool) -> bool:
        """The target has judged, and so many tokens come out; returns whether the request is done."""
        self._roll_back(-1, self.num_text + accepted)
        self.round = None
        self.num_text += tokens
        self.position += tokens
        if not ends:
            return False
        self.position = 0
        self.budget = min(self.most_answer, self.most_tokens - self.num_text)
        return self.num_text >= self.most_tokens

    def commit_first(self) -> bool:
        """The prefill is done, which writes a token; returns whether the request is."""
        return self.commit(0, 1, ends=self.position + 1 >= min(self.answer_tokens, self.budget))

    def put_back(self) -> None:
        """It waits again, and no cache holds anything of it."""
        self.order = NEVER
        self.round = None
        for tokens in (self.cached, self.room_held, self.full_at):
            tokens[:] = [0] * len(tokens)

    def _roll_back(self, level: int, limit: int) -> None:
        self.cached = [min(held, limit) for held in self.cached]
        self.cached[level] = limit
