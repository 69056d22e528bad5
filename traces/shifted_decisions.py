"""How decisions turn over when a drafter's acceptance is shifted.

Let r be the share of known decisions in which a drafter writes the target's token. A shift of its acceptance by d > 0
turns each refusal into an agreement with probability d / (1 - r), one by d < 0 each agreement into a refusal with
probability -d / r: the share becomes r + d, and where the text was easy it stays easier.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Turning:
    """How decisions of one drafter turn over.

    Attributes:
        to_agreement: probability that a refusal becomes an agreement, 0 to 1.
        to_refusal: probability that an agreement becomes a refusal, 0 to 1.
    """

    to_agreement: float
    to_refusal: float

    def turns(self, agrees: NDArray[np.bool_], draws: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which decisions turn over, given one number from [0, 1) for each; a larger shift turns these and more."""
        return draws < np.where(agrees, self.to_refusal, self.to_agreement)


def turning(name: str, num_agreed: int, num_known: int, shift: float) -> Turning:
    """How the decisions of drafter `name` turn over, of which `num_agreed` of `num_known` are agreements.

    Raises:
        ValueError: nothing known, or a share of agreement that would leave [0, 1].
    """
    if not num_known:
        raise ValueError(f"acceptance of {name} cannot be shifted: the recording holds no decision of it")
    share = num_agreed / num_known
    if not -share <= shift <= 1.0 - share:
        raise ValueError(f"acceptance of {name} is {share:.4f}; shifted it must stay within [0, 1], got {shift:+g}")
    if shift > 0:
        return Turning(to_agreement=min(shift / (1.0 - share), 1.0), to_refusal=0.0)
    return Turning(to_agreement=0.0, to_refusal=min(-shift / share, 1.0) if shift else 0.0)


def turnings_of(
    shifts: Mapping[str, float], names: Sequence[str], counts: Callable[[str], tuple[int, int]]
) -> dict[str, Turning]:
    """How decisions turn over by drafter, of those whose acceptance changes.

    Args:
        shifts: by drafter, change of its share of agreement.
        names: of the drafters, in level order.
        counts: (agreements, known decisions) of a drafter.

    Raises:
        ValueError: a name that is none of the drafters, a share that would leave [0, 1], no decision known.
    """
    for name in shifts:
        if name not in names:
            known = ", ".join(names) or "none"
            raise ValueError(f"shifted acceptance must name a drafter of the recording ({known}), got {name!r}")
    return {name: turning(name, *counts(name), shifts[name]) for name in names if shifts.get(name)}


def shifted_name(name: str, shifts: Mapping[str, float]) -> str:
    """The name of a recording, and what was shifted in it."""
    words = ", ".join(f"{drafter} acceptance {shift:+g}" for drafter, shift in shifts.items() if shift)
    return f"{name} ({words})" if words else name


def keyed_draws(seed: int, request_id: str, drafter: str, count: int) -> NDArray[np.float64]:
    """`count` numbers from [0, 1) that nothing but the key decides; fewer of them are the first of more."""
    return keyed_generator(f"{seed}/{drafter}/{request_id}").random(count)


def keyed_generator(key: str) -> np.random.Generator:
    """Random numbers that nothing but the key decides."""
    digest = blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
