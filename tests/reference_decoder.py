"""Multi-level speculative decoding written from its definition: slow, without caches, records, sessions or policies.

For a chain m0:n0 / m1:n1 / ... / target: m0 drafts n0 tokens; m1 judges them and keeps the prefix it would have
written itself and one token of its own; that goes on until m1 has kept at least n1 tokens, then m2 judges all of them;
and so on up to the target, whose tokens are the answer. As engines do it, the target has written the first token
before anything is drafted; it may also be left out. Nothing is written after an end-of-sequence token or beyond
the budget.

It shares no code with what it is the measure of. Letters: V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

NEAR_TIE = 1e-4

Noise = Callable[[int], torch.Tensor]
"""Position in the answer to `[V]` noise, the same for all models."""


@dataclass
class Decoded:
    """What one request came to.

    Attributes:
        tokens: of the answer.
        verdicts: (model, tokens accepted) of every verification, in order.
        forwards: of each model: one per drafted token, one per verification.
        near_ties: choices it rests on whose two best scores differ by less than 1e-4.
    """

    tokens: list[int]
    verdicts: list[tuple[str, int]] = field(default_factory=list)
    forwards: dict[str, int] = field(default_factory=dict)
    near_ties: int = 0


class ReferenceDecoder:
    """Decodes one prompt, under as many chains as asked for.

    Args:
        models: by name; torch modules that map ids `[1, T]` to logits `[1, T, V]`.
        prompt: token ids.
        budget: longest answer.
        eos: each ends an answer.
        temperature, noise: of coupled sampling; both None if greedy.
    """

    def __init__(
        self,
        models: dict[str, torch.nn.Module],
        prompt: Sequence[int],
        *,
        budget: int,
        eos: frozenset[int],
        temperature: float | None = None,
        noise: Noise | None = None,
    ) -> None:
        self._models = models
        self._prompt = list(prompt)
        self._budget = budget
        self._eos = eos
        self._temperature = temperature
        self._noise = noise
        self._choices: dict[tuple[str, tuple[int, ...]], tuple[int, bool]] = {}

    def decode(self, chain: Sequence[tuple[str, int]], target: str, *, prefill: bool = True) -> Decoded:
        """Decode under `chain`, (model, window) from the smallest up, below `target`, after a prefill or without."""
        result = Decoded(tokens=[])
        if prefill:
            result.tokens += self._judge(target, [], [], result)
        while self._room(result.tokens):
            proposed = self._kept_by(chain, result.tokens, result) if chain else []
            result.tokens += self._judge(target, result.tokens, proposed, result)
        return result

    def _room(self, answer: list[int]) -> bool:
        return len(answer) < self._budget and self._eos.isdisjoint(answer[-1:])

    def _kept_by(self, chain: Sequence[tuple[str, int]], answer: list[int], result: Decoded) -> list[int]:
        """At least the window of the chain's last model, unless there is no room for that."""
        *lower, (model, window) = chain
        kept: list[int] = []
        while len(kept) < window and self._room(answer + kept):
            if lower:
                proposed = self._kept_by(lower, answer + kept, result)
                kept += self._judge(model, answer + kept, proposed, result)
            else:
                _count(result, model)
                kept.append(self._choice(model, answer + kept, result))
        return kept

    def _judge(self, model: str, answer: list[int], proposed: list[int], result: Decoded) -> list[int]:
        """The tokens of `proposed` that `model` would have written, and one of its own if there is room."""
        _count(result, model)
        self._read(model, answer + proposed, since=len(answer))
        kept: list[int] = []
        for token in proposed:
            if self._choice(model, answer + kept, result) != token:
                break
            kept.append(token)
        result.verdicts.append((model, len(kept)))
        if self._room(answer + kept):
            kept.append(self._choice(model, answer + kept, result))
        return kept

    def _choice(self, model: str, answer: list[int], result: Decoded) -> int:
        self._read(model, answer, since=len(answer))
        token, near_tie = self._choices[model, tuple(answer)]
        result.near_ties += near_tie
        return token

    @torch.inference_mode()
    def _read(self, model: str, answer: list[int], *, since: int) -> None:
        """One forward over the whole context; remembers what the model writes at its end and at earlier ends."""
        ends = range(since, len(answer) + 1)
        if all((model, tuple(answer[:end])) in self._choices for end in ends):
            return
        logits = self._models[model](torch.tensor([self._prompt + answer]), use_cache=False).logits[0].float()
        for end in ends:
            scores = logits[len(self._prompt) + end - 1]
            if self._temperature is not None:
                scores = scores / self._temperature
            if self._noise is not None:
                scores = scores + self._noise(end)
            best = scores.topk(2).values
            near_tie = bool(best[0] - best[1] < NEAR_TIE)
            self._choices.setdefault((model, tuple(answer[:end])), (int(scores.argmax()), near_tie))


def _count(result: Decoded, model: str) -> None:
    result.forwards[model] = result.forwards.get(model, 0) + 1
