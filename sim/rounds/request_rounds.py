"""One request of an imported recording while it is replayed: its text, and what is known of each drafter's tokens.

The tokens of a text whose ids nobody logged are its positions, counted from 1: as good as ids where tokens are only
compared with others of the same position.
"""

from dataclasses import InitVar, dataclass, field

from ...traces.rounds.meta import DrafterInfo, Form, RoundsMeta
from ...traces.rounds.rounds import TARGET_ALONE, RoundsRequest
from .recorded_tokens import Known, known_tokens


@dataclass(slots=True, eq=False)
class RequestRounds:
    """Mutated by `begin`, and by whoever charges seconds.

    Attributes:
        request: as recorded.
        meta: of the recording.
        waits: whether the prefill writes the first token, before any drafter runs.
        prompt: ids if known, else as many zeros, at least one.
        trunk: the target's tokens, as many as the longest of the recorded texts has.
        refused: a token that is not the target's.
        num_tokens: of the answer: that of the drafter that ran first in it, of the target alone before.
        known: per drafter of the recording.
        prefilled: whether its prefill was charged, whole.
        started_s: seconds charged for a prefill of which nobody knew yet whose it would be.
        drawn: whether a drafter ran of which the log places no round of this request: all that follows is modelled.
        verify_s: measured seconds of the verification of what is pending, None if it was not measured.
        num_cut: tokens of the last draft that the end of the answer cut off, where its seconds were not measured.
        verified_from: tokens emitted before the round whose verification it is.
    """

    request: RoundsRequest
    meta: InitVar[RoundsMeta]
    waits: bool = False
    prompt: tuple[int, ...] = field(init=False)
    trunk: list[int] = field(init=False)
    refused: int = field(init=False)
    num_tokens: int = field(init=False)
    known: list[Known] = field(init=False)
    prefilled: bool = False
    started_s: float = 0.0
    drawn: bool = False
    verify_s: float | None = None
    num_cut: int = 0
    verified_from: int = 0
    _begun: bool = False
    _all_drawn: set[str] = field(init=False)

    def __post_init__(self, meta: RoundsMeta) -> None:
        request = self.request
        self.prompt = request.prompt or (0,) * max(request.prompt_tokens, 1)
        longest = max(request.num_tokens.values())
        output = list(request.output)
        # After known ids come tokens that are no ids: where the log ends, nothing can be looked up.
        self.trunk = [*output, *range(-longest - 1, -len(output) - 1)] if output else list(range(1, longest + 1))
        self.refused = -1 if output else 0
        self.num_tokens = request.length(TARGET_ALONE)
        self.known = [known_tokens(request, drafter) for drafter in meta.drafters]
        self._all_drawn = {info.name for info in meta.drafters if _is_drawn(request, info, meta.form)}

    def foresee(self) -> None:
        """Let rounds be tried in no order: the text is the longest one, its prefill is paid for."""
        self._begun = self.prefilled = True
        self.num_tokens = len(self.trunk)

    def begin(self, drafter: str) -> None:
        """A drafter runs; the first one decides where the answer ends, since its text may differ a little."""
        self.drawn = self.drawn or drafter in self._all_drawn
        if not self._begun:
            self._begun = True
            self.num_tokens = self.request.length(drafter)

    def ending(self, emitted: list[int], num_before: int) -> int | None:
        """See `decoding.request_tokens.Ending`.

        The loop's prefill writes a token before anybody knows which method the answer is of.
        """
        if not num_before and self.waits and not self._begun and len(self.trunk) > 1:
            return None
        return max(self.num_tokens, num_before + 1) if len(emitted) >= self.num_tokens else None


def _is_drawn(request: RoundsRequest, info: DrafterInfo, form: Form) -> bool:
    """Whether nothing of a drafter in a request stands where the log says, but all where it was drawn."""
    rounds = request.rounds.get(info.name)
    if info.stated is not None or rounds is None:
        return info.stated is not None or form != "rounds"  # what stands for the absent ones was drawn itself
    return 0 < len(rounds.start) == int(rounds.where_placed.sum())
