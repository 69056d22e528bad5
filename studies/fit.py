"""Fit an acceptance head to recordings, as `paceline policy fit specdec++` does.

It is fitted to the tokens that rounds of one drafter would have judged over a recording's own text. Letter: N tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..base.errors import check_least, counted
from ..policies.blocks import drafter_of
from ..policies.learned import WEIGHTS, AcceptanceHead, chances_of, fit_logistic, fit_of, moved
from ..reports.tables import Grid, Printed, table
from ..sim.recorded import recorded_pool
from ..traces.contexts.recording import TrieRecording
from ..traces.contexts.trie import TrieRequest
from ..traces.folder import META, hash_file
from ..traces.opening import by_form, open_recording
from ..traces.rounds.recording import RoundsRecording


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTokens:
    """Of one request: the tokens that the target judges, up to the first rejected one of each round."""

    # `[N, 4]` probability, root of the entropy in nats, gap, and 1 / (1 + index in the draft)
    signals: NDArray[np.float64]
    kept: NDArray[np.bool_]  # `[N]` whether the target accepts the token
    rounds: tuple[int, ...]  # tokens of each round, in order; they add up to N

    def agreement(self, start: float) -> NDArray[np.float64]:
        """`[N]` running agreement of the request at the start of each token's round, `start` before the first one."""
        found, place = np.empty(len(self.kept)), 0
        for count in self.rounds:
            found[place : place + count] = start
            # Tokens after the first rejected one were judged too, but a shorter draft would have had an unknown number
            # of them.
            start = moved(start, int(self.kept[place : place + count].sum()), count)
            place += count
        return found


def judged_tokens(request: TrieRequest, level: int, window: int) -> JudgedTokens:
    """Replay drafts of up to `window` >= 1 tokens by the model at `level` over a request's trunk, after its prefill."""
    trie = request.trie
    trunk = trie.trunk[:-1]  # where a member wrote a token
    kept = trie.agreement[level]
    places: list[int] = []
    depths: list[int] = []
    rounds: list[int] = []
    for start, count in _rounds(kept, window):
        places += range(start, start + count)
        depths += range(count)
        rounds.append(count)
    nodes = trunk[places]
    signals = (
        np.exp(trie.next_log_prob[level][nodes]),
        trie.entropy[level][nodes] ** 0.5,
        trie.gap[level][nodes],
        1.0 / (1.0 + np.array(depths, dtype=float)),
    )
    return JudgedTokens(signals=np.column_stack(signals), kept=kept[places], rounds=tuple(rounds))


def _rounds(kept: NDArray[np.bool_], window: int) -> Iterator[tuple[int, int]]:
    """(place of the first token, tokens up to the first rejected one) of each round; the target writes one after it."""
    refused = np.flatnonzero(~kept)
    place = 1  # the prefill wrote the first token
    while place < len(kept):
        later = refused[np.searchsorted(refused, place) :]
        end = min(place + window, len(kept))
        end = min(end, int(later[0]) + 1) if len(later) else end
        yield place, end - place
        place = end + (1 if kept[end - 1] else 0)


HELD_OUT = 4  # the last of this many requests is held out


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FittedHead(Printed):
    """A head, and what it was fitted to."""

    head: AcceptanceHead  # in the form of its file
    num_requests: int  # fitted to
    num_held_out: int  # requests that it was evaluated on

    def tables(self) -> Sequence[Grid]:
        head = self.head
        weights = {"bias": head.bias, **{name: head.weights[name] for name in WEIGHTS}}
        title = f"chance that {head.target} keeps a token of {head.drafter}, logistic in"
        rows = [{"signal": name, "weight": f"{weight:.3f}"} for name, weight in weights.items()]
        return [table(rows, title=title)]

    def lines(self) -> Sequence[str]:
        head, fit = self.head, self.head.held_out
        return (
            f"fitted to {counted(head.num_tokens, 'judged token')} of {counted(self.num_requests, 'request')} of "
            f"{head.recording}, in drafts of up to {counted(head.window, 'token')}",
            f"{counted(self.num_held_out, 'request')} held out, {counted(fit.num_rows, 'token')}, {fit.share:.1%} "
            f"kept: AUC {fit.auc:.3f}, calibration error {fit.calibration_error:.3f}",
        )

    def to_json(self) -> dict[str, Any]:
        """See `Printed`; without the sums, which are in the file."""
        head, fit = self.head, self.head.held_out
        return {
            "recording": head.recording,
            "drafter": head.drafter,
            "target": head.target,
            "window": head.window,
            "num_requests": self.num_requests,
            "num_tokens": head.num_tokens,
            "num_held_out": self.num_held_out,
            "held_out_tokens": fit.num_rows,
            "held_out_share": fit.share,
            "auc": fit.auc,
            "calibration_error": fit.calibration_error,
            "start": head.start,
            "bias": head.bias,
            **head.weights,
        }


def fit_head(path: str | Path, *, drafter: str | None = None, window: int = 16) -> FittedHead:
    """Fit a head to three quarters of the requests of a recording of contexts, and evaluate it on the others.

    It judges tokens of `drafter`, of the smallest model if None, in drafts of up to `window` >= 1.

    Raises:
        ArgumentError: a window below 1.
        ValueError: a drafter that has no probabilities or is not below the target, or a recording that has none, or too
            few requests, or in one of the parts no accepted token, or no rejected one.
    """
    judged = _judged(Path(path), drafter, window)
    own = (judged.drafter, judged.target, judged.members)
    return _fitted([judged], own, window)


def fit_shared_head(paths: Sequence[str | Path], *, window: int = 16) -> FittedHead:
    """Fit one head to the smallest models of recordings of contexts, at least one, for the smallest model of any pool.

    Of each recording three quarters of the requests are fitted to, and every judged token has the same weight.

    Raises:
        ArgumentError, ValueError: as `fit_head`; no recording.
    """
    check_least("`paths`", len(paths), 1)
    return _fitted([_judged(Path(path), None, window) for path in paths], (None, None, ()), window)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The drafts of one recording's drafter, by request, and their origin."""

    name: str
    sha256: str
    drafter: str
    target: str
    members: tuple[str, ...]
    requests: Sequence[JudgedTokens]


def _judged(path: Path, drafter: str | None, window: int) -> _Judged:
    check_least("`window`", window, 1)
    trace: TrieRecording = by_form(open_recording(path), tries=lambda tries: tries, rounds=_refuse)
    pool = recorded_pool(trace)
    drafter = drafter_of(pool, drafter)
    if pool.is_model_free(drafter):
        raise ValueError(f"drafter must have probabilities, got {drafter!r}, which is model-free")
    level = trace.meta.model_names.index(drafter)
    return _Judged(
        name=trace.about.name,
        sha256=hash_file(path / META),
        drafter=drafter,
        target=pool.target,
        members=pool.names,
        requests=[judged_tokens(request, level, window) for request in trace.requests],
    )


def _fitted(
    judged: Sequence[_Judged], tells_of: tuple[str | None, str | None, tuple[str, ...]], window: int
) -> FittedHead:
    """The head of all recordings, for (drafter, target, members)."""
    fitted = [one for each in judged for at, one in enumerate(each.requests) if at % HELD_OUT < HELD_OUT - 1]
    held_out = [one for each in judged for one in each.requests[HELD_OUT - 1 :: HELD_OUT]]
    names = ", ".join(each.name for each in judged)
    for part, what in ((fitted, "fitted to"), (held_out, "held out")):
        _check_both(part, f"recording {names}: requests that are {what}", judged[0].drafter)
    start = float(_kept(fitted).mean())
    weights = fit_logistic(_rows(fitted, start), _kept(fitted))
    bias, *others = weights.tolist()
    drafter, target, members = tells_of
    hashes = [each.sha256 for each in judged]
    head = AcceptanceHead(
        drafter=drafter,
        target=target,
        members=members,
        recording=names,
        sha256=hashes[0] if len(hashes) == 1 else sha256("\n".join(hashes).encode()).hexdigest(),
        num_tokens=len(_kept(fitted)),
        window=window,
        start=start,
        bias=bias,
        weights=dict(zip(WEIGHTS, others, strict=True)),
        held_out=fit_of(chances_of(_rows(held_out, start), weights), _kept(held_out)),
    )
    return FittedHead(head=head, num_requests=len(fitted), num_held_out=len(held_out))


def _rows(judged: Sequence[JudgedTokens], start: float) -> NDArray[np.float64]:
    """`[N, 5]` the inputs of the head's logistic function, in the order of `WEIGHTS`."""
    return np.concatenate([np.column_stack([tokens.signals, tokens.agreement(start)]) for tokens in judged])


def _kept(judged: Sequence[JudgedTokens]) -> NDArray[np.bool_]:
    return np.concatenate([tokens.kept for tokens in judged])


def _check_both(judged: Sequence[JudgedTokens], what: str, drafter: str) -> None:
    num_tokens = sum(len(tokens.kept) for tokens in judged)
    num_kept = sum(int(tokens.kept.sum()) for tokens in judged)
    if not 0 < num_kept < num_tokens:
        raise ValueError(
            f"{what} must have tokens of {drafter} that were kept and some that were refused, got {num_kept:,} of "
            f"{num_tokens:,} kept"
        )


def _refuse(trace: RoundsRecording) -> NoReturn:
    raise ValueError(
        f"recording {trace.about.name} must hold probabilities of tokens, and one that was imported has none"
    )
