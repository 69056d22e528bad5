"""Acceptance by depth in the round, fitted on recorded rounds some of which are censored.

A round that got to depth d either agreed there or was refused there; a censored round (its draft was kept whole) only
tells of agreements. With h_d the share that agreed at depth d among rounds that got there, the share of rounds that
keep at least k tokens is the product-limit S(k) = h_0 h_1 ... h_(k-1) (Kaplan & Meier 1958, JASA 53:457-481), which
needs no assumption on what censored rounds would have kept.

Requests differ: logit h_(d,r) = alpha_d + sigma x_r with x_r ~ N(0, 1). Alphas and sigma are those of most likelihood
with x integrated out, by expectation-maximisation (sigma is a priori a standard normal number, or two requests with
nothing in common would make it infinite). Alphas of the pooled counts with offsets put on top would make rounds too
long, since the pooled counts of deep rounds come from good requests already.

Letters: R requests, D depths, the last of which stands for all deeper ones, Q points of a grid for x.
"""

from dataclasses import dataclass

import numpy as np

from .counts import MOST_FITTED, DepthCounts
from .walk import Floats

_STEPS = 300
_STEADY = 1e-4
_FIRST_SIGMA = 0.5
_GRID = np.linspace(-4.0, 4.0, 65)
_LOG_PRIOR = -0.5 * _GRID**2
_CERTAIN = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthFit:
    """Hazards and how requests differ.

    Attributes:
        alpha: `[D]` logit of agreement at each depth of a request with beta 0; the last holds for all deeper ones.
        sigma: standard deviation of beta between requests, >= 0.
        beta: `[R]` each request's own offset, pulled towards 0 where it has few rounds.
        spread: `[R]` standard deviation of what is not known of beta; sigma where the request has no rounds.
    """

    alpha: Floats
    sigma: float
    beta: Floats
    spread: Floats

    def hazards(self, beta: float) -> list[float]:
        """`[D]` probability of agreement at each depth of a request with offset `beta`."""
        rates: list[float] = _logistic(self.alpha + beta).tolist()
        return rates

    def survival(self, beta: Floats, window: int) -> Floats:
        """`[len(beta), window + 1]` share of rounds that keep at least 0, 1, ... tokens, the product-limit."""
        depth = np.minimum(np.arange(window), len(self.alpha) - 1)
        rates = _logistic(self.alpha[depth] + beta[:, None])
        return np.concatenate((np.ones((len(beta), 1)), np.cumprod(rates, axis=1)), axis=1)


def fit_depths(counts: DepthCounts) -> DepthFit:
    """Alphas and sigma of most likelihood (from at most 4,000 requests), and what each request's own rounds tell."""
    total_agreed, total_refused = counts.agreed.sum(axis=0), counts.refused.sum(axis=0)
    alpha = _logit(total_agreed, total_refused)
    beta, spread = np.zeros(len(counts.agreed)), np.zeros(len(counts.agreed))
    # A depth that was never refused, or never agreed, stays so whatever the request, and tells nothing of requests.
    mixed = (total_agreed > 0) & (total_refused > 0)
    agreed, refused = counts.agreed[:, mixed], counts.refused[:, mixed]
    seen = np.flatnonzero((agreed + refused).any(axis=1))
    if len(seen) < 2:  # one request says nothing of how requests differ
        return DepthFit(alpha=alpha, sigma=0.0, beta=beta, spread=spread)
    fitted = seen[:: -(-len(seen) // MOST_FITTED)]
    alpha[mixed], sigma = _maximise(agreed[fitted], refused[fitted], alpha[mixed])
    share = _shares(agreed, refused, alpha[mixed], sigma)
    mean = share @ _GRID
    beta, spread = sigma * mean, sigma * np.sqrt(np.maximum(share @ _GRID**2 - mean**2, 0.0))
    return DepthFit(alpha=alpha, sigma=sigma, beta=beta, spread=spread)


def stated_depths(hazards: Floats, num_requests: int) -> DepthFit:
    """`[D]` hazards that somebody states for all requests alike."""
    alike = np.zeros(num_requests)
    return DepthFit(alpha=_logit(hazards, 1.0 - hazards), sigma=0.0, beta=alike, spread=alike)


def _maximise(agreed: Floats, refused: Floats, alpha: Floats) -> tuple[Floats, float]:
    """(alpha, sigma) of most likelihood."""
    sigma = _FIRST_SIGMA
    for _ in range(_STEPS):
        share = _shares(agreed, refused, alpha, sigma)
        before = sigma
        alpha, sigma = _step(agreed.T @ share, refused.T @ share, alpha, sigma)
        if abs(sigma - before) < _STEADY * before:
            break
    return alpha, sigma


def _shares(agreed: Floats, refused: Floats, alpha: Floats, sigma: float) -> Floats:
    """`[R, Q]` how likely each x is, given a request's counts."""
    logit = alpha[:, None] + sigma * _GRID
    log_share = -agreed @ np.logaddexp(0.0, -logit) - refused @ np.logaddexp(0.0, logit) + _LOG_PRIOR
    share: Floats = np.exp(log_share - log_share.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    return share


def _step(agreed: Floats, refused: Floats, alpha: Floats, sigma: float) -> tuple[Floats, float]:
    """One step of Newton towards the logistic regression of `[D, Q]` expected counts on depth and x."""
    judged = agreed + refused
    rates = _logistic(alpha[:, None] + sigma * _GRID)
    slopes, weights = agreed - judged * rates, judged * rates * (1.0 - rates)
    hessian = np.diag(np.append(weights.sum(axis=1), (weights @ _GRID**2).sum()))
    hessian[-1, :-1] = hessian[:-1, -1] = weights @ _GRID
    hessian[-1, -1] += 1.0
    slope = np.append(slopes.sum(axis=1), (slopes @ _GRID).sum() - sigma)
    step = np.clip(np.linalg.lstsq(hessian, slope, rcond=None)[0], -1.0, 1.0)
    return alpha + step[:-1], abs(sigma + float(step[-1]))


def _logit(agreed: Floats, refused: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        logit: Floats = np.clip(np.log(agreed) - np.log(refused), -_CERTAIN, _CERTAIN)
    return logit


def _logistic(logit: Floats) -> Floats:
    """1 / (1 + e^-x), exactly 0 or 1 where a count left no doubt."""
    rates: Floats = 1.0 / (1.0 + np.exp(-np.clip(logit, -_CERTAIN, _CERTAIN)))
    certain: Floats = np.where(np.abs(logit) > _CERTAIN / 2, np.rint(rates), rates)
    return certain
