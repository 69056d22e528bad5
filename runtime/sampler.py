"""How a run chooses tokens: what a member writes, and which drafted tokens a verifier accepts.

Letters: B requests, N contexts (of all requests, one after the other), K judged tokens of one request, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..decoding.legal_steps import ruling_of
from ..decoding.rules import Ruling
from ..decoding.steps import PolicyError, Verify
from ..traces.meta import Sampling
from .coupled_noise import RequestNoise
from .distances import Distances, facts_of, facts_of_all, law_after, law_of, ruled
from .rejection_sampling import Chance, judge
from .sampling import probabilities, truncated
from .state import PendingView, RequestState


class Judging(NamedTuple):
    """One request's part in a verification."""

    state: RequestState
    step: Verify  # with the rule of what is accepted
    views: list[PendingView]  # `[K]` of the judged tokens
    start: int  # index of the first of the request's K + 1 contexts among all N
    position: int  # output position of the first judged token
    # `[K]` total variation distance of each token's distribution to the verifier's; NaN without one
    distances: Distances
    judges: list[int]  # `[K]` level of each token's endorser


class Verdict(NamedTuple):
    """The verdict on one request's judged tokens.

    `laws` `[num_accepted + 1]` are the distributions that each accepted token and the own token follow, as logits
    `[V]`: an entry is None for a certain token, and all is None where the tokens follow the verifier's.
    """

    num_accepted: int  # how many are accepted
    own_token: int  # the verifier's own after them
    escalated: tuple[int, ...] = ()  # indices of those that are left to the next verifier
    laws: list[Tensor | None] | None = None


# Of each row; where its rule raised, the error, and None where the logits are not finite.
Verdicts = list[Verdict | PolicyError | None]


class Sampler(ABC):
    """One way to sample, without caches and forwards.

    `rewrites`: an accepted token follows the distribution of its latest verifier. Else it is a certain token that a
    larger member may have endorsed already.
    """

    rewrites: ClassVar[bool] = False

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    def distributions(self, logits: Tensor, states: Sequence[RequestState]) -> Tensor:
        """`[N, V]` logits as the run samples from them, after contexts of `[N]` requests.

        They are divided by the temperature, -inf where truncated.
        """
        return truncated(logits, self.sampling)

    @abstractmethod
    def write(self, logits: Tensor, states: Sequence[RequestState], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The token written after each of N contexts, on the device of the logits.

        Args:
            logits: `[N, V]` from `distributions`.
            states: `[N]` whose context it is.
            positions: `[N]` output position of the token written.

        Returns:
            `[N]` tokens and `[N]` the largest score, which is NaN or infinite if the logits are not finite.
        """

    @abstractmethod
    def verdicts(self, logits: Tensor, judgings: Sequence[Judging]) -> Verdicts:
        """`[B]` a verifier's verdicts, from its `[N, V]` distributions."""


class SameToken(Sampler):
    """Greedy and coupled: a member writes one certain token at each context, and a verifier accepts only that one.

    Greedy: the argmax. Coupled: the argmax of logits and noise that all members share (Daliri et al.,
    arXiv:2408.07978), a draw from softmax(logits).
    """

    def write(self, logits: Tensor, states: Sequence[RequestState], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The argmax, of logits and noise if coupled."""
        return _best(self.scores(logits, states, positions))

    def scores(self, logits: Tensor, states: Sequence[RequestState], positions: Sequence[int]) -> Tensor:
        """`[N, V]` scores whose argmax is the token written; arguments as of `write`."""
        if self.sampling.mode == "greedy":
            return logits
        noise = [noise_of(state).at(position) for state, position in zip(states, positions, strict=True)]
        return logits + torch.from_numpy(np.stack(noise)).to(logits.device)

    def verdicts(self, logits: Tensor, judgings: Sequence[Judging]) -> Verdicts:
        """Accept the tokens that the verifier writes itself, or those that its rule accepts."""
        states: list[RequestState] = []
        positions: list[int] = []
        if self.sampling.mode == "coupled":
            states = [row.state for row in judgings for _ in range(len(row.views) + 1)]
            positions = [row.position + index for row in judgings for index in range(len(row.views) + 1)]
        tokens, best = self.write(logits, states, positions)
        written: list[int] = tokens.tolist()
        scores: list[float] = best.tolist()
        known = all(map(isfinite, scores))
        return [
            _or_error(self._verdict, logits, row, written) if known or _known(scores, row) else None for row in judgings
        ]

    def _verdict(self, logits: Tensor, row: Judging, written: list[int]) -> Verdict:
        start = row.start
        if not row.step.rule.lossless:
            kept, escalated = _kept(row, logits[start:], written[start:])
            return Verdict(kept, written[start + kept], escalated)
        at = start
        for view in row.views:
            if written[at] != view.token:
                break
            at += 1
        return Verdict(at - start, written[at])


class Rejecting(Sampler):
    """Standard speculative sampling (Leviathan et al. 2023, arXiv:2211.17192), lossless at every level of a chain."""

    rewrites: ClassVar[bool] = True

    def write(self, logits: Tensor, states: Sequence[RequestState], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A draw from each distribution; 0 where it is not finite."""
        best = logits.amax(dim=-1)
        probs = probabilities(logits)
        finite: list[bool] = torch.isfinite(best).tolist()
        tokens = [
            _chance(state).draw(row) if known else 0 for state, row, known in zip(states, probs, finite, strict=True)
        ]
        return torch.tensor(tokens, device=logits.device), best

    def verdicts(self, logits: Tensor, judgings: Sequence[Judging]) -> Verdicts:
        """Accept tokens at random, and replace a rejected one by a draw from the residual distribution."""
        best: list[float] = logits.amax(dim=-1).tolist()
        probs = probabilities(logits)
        verdicts: Verdicts = []
        for row in judgings:
            contexts = slice(row.start, row.start + len(row.views) + 1)
            if not _known(best, row):
                verdicts.append(None)
            elif row.step.rule.lossless or hasattr(row.step.rule, "law"):
                verdicts.append(_or_error(self._by_chance, probs[contexts], row))
            else:
                verdicts.append(_or_error(self._by_rule, logits[contexts], probs[contexts], row))
        return verdicts

    def _by_chance(self, probs: Tensor, row: Judging) -> Verdict:
        """The output follows the verifier, or the rule's law where a token has a distribution."""
        drafted = [None if view.judge is None else probabilities(view.judge) for view in row.views]
        tokens = [view.token for view in row.views]
        if not hasattr(row.step.rule, "law"):
            return Verdict(*judge(tokens, drafted, probs, _chance(row.state)))
        followed = probs.clone()
        for index, theirs in enumerate(drafted):
            if theirs is not None:
                followed[index] = law_of(row.state.session, row.step, probs[index], theirs.to(probs.device))
        kept, own_token = judge(tokens, drafted, followed, _chance(row.state))
        return Verdict(kept, own_token, (), list(followed[: kept + 1].log()))

    def _by_rule(self, logits: Tensor, probs: Tensor, row: Judging) -> Verdict:
        """A lossy rule: `same` means the most probable token; the own token is a draw from the verifier."""
        written: list[int] = logits.argmax(dim=-1).tolist()
        escalated: list[int] = []
        laws: list[Tensor | None] = []
        for index, view in enumerate(row.views):
            facts = facts_of_all(view, logits[index], written[index], tvd=row.distances[index], judge=row.judges[index])
            keeps, leaves = ruled(row.state.session, row.step, facts)
            if not (keeps[view.token] or leaves[view.token]):
                own_token = _chance(row.state).draw(probs[index])
                laws.append(law_after(view, probs[index], keeps | leaves))
                return Verdict(index, own_token, tuple(escalated), laws)
            if not keeps[view.token]:
                escalated.append(index)
            laws.append(law_after(view, probs[index], keeps | leaves))
        own_token = _chance(row.state).draw(probs[-1])
        return Verdict(len(row.views), own_token, tuple(escalated), [*laws, logits[len(row.views)]])


def make_sampler(sampling: Sampling) -> Sampler:
    """The sampler of a run."""
    return Rejecting(sampling) if sampling.mode == "rejection" else SameToken(sampling)


def _best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """`[N]` the first of the largest scores `[N, V]`, and that score."""
    if scores.device.type != "cpu":
        largest, tokens = scores.max(dim=-1)
        return tokens, largest
    # Much faster than torch's own over many rows, with the same result: the first of equal scores, and NaN before all.
    table = scores.numpy()
    chosen = table.argmax(axis=-1)
    return torch.from_numpy(chosen), torch.from_numpy(table[np.arange(len(chosen)), chosen])


def _kept(row: Judging, logits: Tensor, written: list[int]) -> tuple[int, tuple[int, ...]]:
    """(leading tokens that a lossy rule accepts, which of them it escalates).

    `logits` are `[K + 1, V]` or more, of its contexts; `written` is what the verifier would write at each of them.
    """
    escalated: list[int] = []
    for index, view in enumerate(row.views):
        facts = facts_of(view, logits[index], written[index], tvd=row.distances[index], judge=row.judges[index])
        says = ruling_of(row.state.session, row.step, facts)
        if says is Ruling.refuse:
            return index, tuple(escalated)
        if says is Ruling.escalate:
            escalated.append(index)
    return len(row.views), tuple(escalated)


def _or_error(verdict: Callable[..., Verdict], *args: Any) -> Verdict | PolicyError:  # noqa: ANN401 - as each takes
    """A verdict, or what the rule raised: foreign code, for which its request fails alone."""
    try:
        return verdict(*args)
    except PolicyError as error:
        return error


def _known(best: Sequence[float], row: Judging) -> bool:
    return all(map(isfinite, best[row.start : row.start + len(row.views) + 1]))


def noise_of(state: RequestState) -> RequestNoise:
    """The noise of a request under coupled sampling."""
    assert state.noise is not None
    return state.noise


def _chance(state: RequestState) -> Chance:
    assert state.chance is not None
    return state.chance
