"""Numbers of judged tokens: distances between their endorsers and the verifier, and the facts that a rule sees.

Distances are computed when they are read: few policies read them, and on a small model they cost as much as choosing
the tokens. Numbers are on the grid of recordings, so that a rule's threshold falls at the same place in both worlds.
Letters: K judged tokens of one request, M distributions, N contexts, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Sequence
from math import exp, isnan, nan
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..decoding.legal_steps import raised
from ..decoding.results import Deferred, Failed
from ..decoding.rules import Facts, answer
from ..decoding.session import Session
from ..decoding.steps import Verify
from ..traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS
from .recording.views import entropies
from .sampling import probabilities
from .state import KVMemoryError, PendingView


class Judgement(NamedTuple):
    """One request's judged tokens, as before the verdict."""

    start: int  # index of its first context among those of the verifier
    endorsed: Sequence[Tensor | None]  # `[K]` logits `[V]` of each token's endorser; None without a distribution
    own: Sequence[bool]  # `[K]` whether the verifier wrote the token itself; then the distance is 0


class OpDistances:
    """Total variation distances of all tokens that one operation judges.

    `logits` are the verifier's, at the contexts of all requests; `rows` are by request.
    """

    __slots__ = ("_found", "_logits", "_rows")

    def __init__(self, logits: Tensor, rows: list[Judgement]) -> None:
        self._logits: Tensor | None = logits
        self._rows = rows
        self._found: list[list[float]] = []

    def of(self, number: int) -> list[float]:
        """`[K]` of one request."""
        if self._logits is not None:
            self._found = self._distances(self._logits)
            self._logits, self._rows = None, []  # frees the distributions
        return self._found[number]

    def cut(self, number: int, count: int) -> None:
        """Those of one request after the first `count` are not read any more."""
        if self._logits is not None:
            start, endorsed, own = self._rows[number]
            self._rows[number] = Judgement(start, endorsed[:count], own[:count])

    def _distances(self, logits: Tensor) -> list[list[float]]:
        found = [[0.0 if own else nan for own in row.own] for row in self._rows]
        places = [
            (number, index, endorsed)
            for number, row in enumerate(self._rows)
            for index, (endorsed, own) in enumerate(zip(row.endorsed, row.own, strict=True))
            if endorsed is not None and not own
        ]
        if not places:
            return found
        contexts = [self._rows[number].start + index for number, index, _ in places]
        run = contexts[-1] - contexts[0] + 1 == len(contexts)
        verifiers = logits[contexts[0] : contexts[-1] + 1] if run else logits[contexts]
        theirs = stacked_on(logits.device, [endorsed for _, _, endorsed in places])
        wider = torch.promote_types(theirs.dtype, verifiers.dtype)  # as in a recording
        # In place and without joining the two: new memory of this size costs more than the arithmetic.
        apart = theirs.softmax(dim=-1, dtype=wider).sub_(verifiers.softmax(dim=-1, dtype=wider)).abs_()
        sums: list[float] = apart.sum(dim=-1).tolist()
        for (number, index, _), value in zip(places, sums, strict=True):
            # As `total_variation`. A context without finite logits fails its request, so its distance does not matter.
            found[number][index] = 1.0 if isnan(value) else UNITS.nearest(min(value / 2, 1.0))
        return found


class LazyNumbers(Sequence[float]):
    """The first `count` of some numbers that are computed when read; behaves like a tuple of them."""

    def __init__(self, count: int) -> None:
        self._count = count

    @abstractmethod
    def values(self) -> Sequence[float]:
        """Those numbers, maybe followed by more."""

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> float: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...

    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        values = self.values()
        if isinstance(index, slice):
            return tuple(values[: self._count][index])
        return values[range(self._count)[index]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Distances(LazyNumbers):
    """The first distances of one request. Mutated by `cut`."""

    def __init__(self, op: OpDistances, number: int, count: int) -> None:
        super().__init__(count)
        self._op, self._number = op, number

    def cut(self, count: int) -> None:
        """Keep the first `count`: none after them is computed, as the verdict refused their tokens."""
        self._count = min(count, self._count)
        self._op.cut(self._number, self._count)

    def values(self) -> Sequence[float]:
        return self._op.of(self._number)


def stacked_on(device: torch.device, rows: Sequence[Tensor]) -> Tensor:
    """`[M, V]` of M rows `[V]` in their order, moved to a device once from each device that holds some of them."""
    places: dict[torch.device, list[int]] = {}
    for index, row in enumerate(rows):
        places.setdefault(row.device, []).append(index)
    if len(places) == 1:
        return torch.stack(list(rows)).to(device)
    moved = list(rows)
    for here in places.values():
        block = torch.stack([rows[index] for index in here]).to(device)
        for index, row in zip(here, block.unbind(), strict=True):
            moved[index] = row
    return torch.stack(moved)


class NonFiniteLogitsError(ValueError):
    """A model returned NaN or infinity; no token can be chosen from that."""

    def __init__(self, member: str, request_id: str, position: int) -> None:
        super().__init__(
            f"model {member}, request {request_id}: the logits at output position {position} or after it hold NaN or "
            "infinity; try dtype float32"
        )


def broken(contexts: Sequence[str], logits: Tensor) -> set[str]:
    """The requests whose logits `[N, V]` are not finite; `contexts` has the request of each of the N."""
    sound = logits.amax(dim=-1).isfinite().tolist()
    return {request_id for request_id, is_sound in zip(contexts, sound, strict=True) if not is_sound}


def without_room(error: KVMemoryError | None) -> Failed | Deferred:
    """The result of a request without room in `StateManager.reserve`: it fails with the error, or waits without one."""
    return Deferred("KV memory is short") if error is None else Failed(error)


_LAW_OFF = 1e-3  # by which the probabilities of a law may miss 1, for those made in float32
Flags = NDArray[np.bool_]


def facts_of(view: PendingView, logits: Tensor, own_token: int, *, tvd: float, judge: int) -> Facts:
    """The facts that a rule sees of one token, from the verifier's distribution `[V]` at the context before it.

    `own_token` is what the verifier would write, `tvd` the distance to its distribution, `judge` the level of the
    token's endorser.
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    target_log_prob, top_log_prob = _rounded(log_probs, view.token)
    own_log_prob, _ = _rounded(log_probs, own_token)
    draft_top_prob = own_draft_prob = nan
    if view.drafter is not None:
        drafted = torch.log_softmax(view.drafter, dim=-1)
        own_draft_prob, draft_top_prob = map(exp, _rounded(drafted, own_token))
    return Facts(
        same=own_token == view.token,
        draft_prob=view.signal().prob,
        target_prob=exp(target_log_prob),
        top_prob=exp(top_log_prob),
        entropy=_entropy(log_probs),
        tvd=tvd,
        judge=judge,
        draft_top_prob=draft_top_prob,
        own_draft_prob=own_draft_prob,
        own_prob=exp(own_log_prob),
    )


def facts_of_all(view: PendingView, logits: Tensor, own_token: int, *, tvd: float, judge: int) -> Facts:
    """The same for every token of the vocabulary there: `same`, `draft_prob` and `target_prob` are `[V]`."""
    log_probs = torch.log_softmax(logits, dim=-1)
    theirs = np.exp(LOG_PROBS.round(log_probs.cpu().numpy()))
    drafted = np.full_like(theirs, nan)
    if view.drafter is not None:
        drafted = np.exp(LOG_PROBS.round(torch.log_softmax(view.drafter, dim=-1).cpu().numpy()))
    return Facts(
        same=np.arange(len(theirs)) == own_token,
        draft_prob=drafted,
        target_prob=theirs,
        top_prob=theirs.max(),
        entropy=_entropy(log_probs),
        tvd=tvd,
        judge=judge,
        draft_top_prob=drafted.max(),
        own_draft_prob=drafted[own_token],
        own_prob=theirs[own_token],
    )


def ruled(session: Session, step: Verify, facts: Facts) -> tuple[Flags, Flags]:
    """(`[V]` whether the rule accepts, `[V]` whether it leaves the token to the next verifier), by `facts_of_all`.

    Raises PolicyError for what the rule raises, and for None.
    """
    shape = facts.target_prob.shape
    try:
        keeps, leaves = (np.broadcast_to(answer(step.rule, name, facts), shape) for name in ("accepts", "escalates"))
        return keeps, leaves
    except BaseException as error:  # foreign code
        raise raised(session.policy_name, session.request_id, step, "its rule", error) from error


def law_of(session: Session, step: Verify, probs: Tensor, draft_probs: Tensor) -> Tensor:
    """`[V]` what a rule with `law` makes of the verifier's distribution and that of the token; raises as `ruled`."""
    rule: Any = step.rule
    try:
        law = torch.as_tensor(rule.law(probs, draft_probs), device=probs.device)  # an array of numpy's, too
        if law.shape != probs.shape or not (law.min() >= 0 and abs(law.sum() - 1) <= _LAW_OFF):
            got = f"{tuple(law.shape)} that add up to {float(law.sum()):g}, at least {float(law.min()):g}"
            raise ValueError(f"law must return probabilities of all {len(probs):,} tokens, got {got}")
        return law
    except BaseException as error:  # foreign code
        raise raised(session.policy_name, session.request_id, step, "its rule", error) from error


def law_after(view: PendingView, probs: Tensor, stays: Flags) -> Tensor | None:
    """The law of the token at this place, given the text before it, after a lossy rule has judged it: logits `[V]`.

    It followed `draft_probs`; it is kept if `stays` `[V]` (the rule does not reject it), else a draw from the
    verifier's `probs` (`[V]` float64) replaces it. So it follows draft_probs where tokens are kept, and probs in the
    share of all others. A next level that verifies losslessly needs just this: what it accepts then follows its own
    law, whatever the rule did. None for a token that is certain: drafted without a distribution, and not rejected.
    """
    if view.judge is None:
        return None if stays[view.token] else probs.log()
    draft_probs = probabilities(view.judge).to(probs.device)
    kept = torch.from_numpy(stays.copy()).to(probs.device)
    return (draft_probs * kept + (draft_probs * ~kept).sum() * probs).log()


def _entropy(log_probs: Tensor) -> float:
    return float(ENTROPIES.round(entropies(log_probs.softmax(dim=-1), log_probs).cpu().numpy()))


def _rounded(log_probs: Tensor, token: int) -> tuple[float, float]:
    """Log-probabilities of a token and of the most probable one, on the grid of recordings."""
    both = torch.stack([log_probs[token], log_probs.max()]).cpu().numpy()
    of_token, of_top = LOG_PROBS.round(both).tolist()
    return of_token, of_top
