"""A chosen chain as steps, and how far each level of it gathers before it hands over.

Windows stop where the next token no longer pays. A token of level i costs tau_i and is worth tau_(i+1) if the next
level keeps it; it does so if it survives and all before it have. So level i gathers while S g tau_(i+1) >= tau_i + w: S
the survival of what it holds (`confidence`), g that of the tokens that one more round of the level below adds, w what a
further token costs the next level to judge. The paper has fixed windows, and `stop=window` keeps to them.
"""

from dataclasses import dataclass
from math import inf, log

from ...decoding.contract import Draft, Verify
from ...decoding.pool import Pool
from ...decoding.rules.draft_stops import ProductBelow, Stop
from ..chain_notation import ChainSpec
from ..lossless.chain import Chain
from .confidence import Survival
from .options import RouterOptions
from .search import Figures, FoundChain

LADDER_WINDOW = 4
STOP_STEPS = 40  # thresholds of drafts, in factors of the root of two


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What requests of one key do in a round. Letters: K levels of the chain.

    Attributes:
        chain: the members, windows and predicted seconds.
        verifies: `[K - 1]` of the levels above the lowest, or the target's alone.
        front: copies first, where something matches; None: nothing does, or it does not pay.
        draft: of the lowest level; None for the target alone.
        most_doubt: `[K - 1]` -ln of the least survival with which a level gathers on; -inf hands over at once.
        gammas: `[K - 1]` exponents by drafter of the tokens that a level holds.
        fixed: follows fixed windows instead; None: the rules above.
        trial: whether it is for one round only, to learn.
        in_step: whether the requests that run share it.
        least: tokens that the lowest level drafts before the first verifier judges, where room allows, >= 1.
    """

    chain: FoundChain
    verifies: tuple[Verify, ...]
    front: Draft | None = None
    draft: Draft | None = None
    most_doubt: tuple[float, ...] = ()
    gammas: tuple[dict[str, float], ...] = ()
    fixed: Chain | None = None
    trial: bool = False
    in_step: bool = False
    least: int = 1


class Planner:
    """Makes plans, and every step of them once.

    Args:
        pool: the members.
        options: the longest window, and whether windows are those that were found.
        survival: of drafted tokens.
    """

    def __init__(self, pool: Pool, options: RouterOptions, survival: Survival) -> None:
        self._pool = pool
        self._survival = survival
        self._most = options.most
        self._fixed = options.stop == "window"
        self._drafts: dict[tuple[str, int, Stop | None], Draft] = {}
        self._verifies = [Verify(name) for name in pool.names]
        self._chains: dict[FoundChain, Chain] = {}
        self._stops = [ProductBelow(2.0 ** (-step / 2)) for step in range(STOP_STEPS + 1)]

    def alone(self) -> Plan:
        """The target alone, once."""
        target = self._pool.target_level
        chain = FoundChain(levels=(target,), windows=(), level_s=(inf,))
        return Plan(chain=chain, verifies=self._above(chain), trial=True)

    def ladder(self, levels: tuple[int, ...]) -> Plan:
        """Every member once: the lowest drafts a little, each of the others judges and hands over at once.

        Drafted token by token, for the first one, which reads the prompt, has to be timed apart from the others.
        """
        windows = (LADDER_WINDOW, *[1] * (len(levels) - 2))
        chain = FoundChain(levels=levels, windows=windows, level_s=(inf,) * len(levels))
        return Plan(
            chain=chain,
            verifies=self._above(chain),
            draft=self.draft(self._pool.names[levels[0]], 1),
            most_doubt=(-inf,) * len(windows),
            trial=True,
            least=LADDER_WINDOW,
        )

    def plan(
        self, tag: str, chain: FoundChain, figures: Figures, *, front: Draft | None, in_step: bool = False
    ) -> Plan:
        """A chain that was found, with the rules of its levels; `figures` are those of the whole pool.

        In step, levels hand over at once, and the window is the longest draft.
        """
        draft, stop, fixed = None, None, None
        lowest = self._pool.names[chain.levels[0]]
        most_doubt: tuple[float, ...] = (-inf,) * len(chain.windows)
        gammas: tuple[dict[str, float], ...] = ()
        if chain.windows and not self._fixed:
            ruled = range(1 if in_step else len(chain.windows))
            gammas = tuple(self._gammas(tag, chain, index, front) for index in ruled)
            doubts = tuple(_most_doubt(chain, index, figures) for index in ruled)
            stop = self._stop(doubts[0], gammas[0][lowest])
            most_doubt = most_doubt if in_step else doubts
        if chain.windows:
            found = self._fixed or in_step
            draft = self.draft(lowest, chain.windows[0] if found else self._most, stop)
            fixed = self._fixed_chain(chain) if self._fixed and not in_step else None
        return Plan(
            chain=chain,
            verifies=self._above(chain),
            front=front,
            draft=draft,
            most_doubt=most_doubt,
            gammas=gammas,
            fixed=fixed,
            in_step=in_step,
        )

    def draft(self, model: str, tokens: int, stop: Stop | None = None) -> Draft:
        """A draft, made once."""
        key = (model, tokens, stop)
        draft = self._drafts.get(key)
        if draft is None:
            draft = self._drafts[key] = Draft(model, tokens, stop)
        return draft

    def notation(self, chain: FoundChain) -> str:
        """A chain with the windows that were found."""
        members = tuple(self._pool.names[level] for level in chain.levels)
        return str(ChainSpec(members=members, windows=chain.windows))

    def _above(self, chain: FoundChain) -> tuple[Verify, ...]:
        return tuple(self._verifies[level] for level in (chain.levels[1:] or chain.levels))

    def _stop(self, most_doubt: float, gamma: float) -> Stop:
        """What stops a draft of exponent `gamma` at a survival of exp(-most_doubt)."""
        return self._stops[round(min(max(2.0 * most_doubt / (gamma * log(2.0)), 0.0), STOP_STEPS))]

    def _fixed_chain(self, chain: FoundChain) -> Chain:
        found = self._chains.get(chain)
        if found is None:
            found = self._chains[chain] = Chain(self._pool, self.notation(chain))
        return found

    def _gammas(self, tag: str, chain: FoundChain, index: int, front: Draft | None) -> dict[str, float]:
        """Exponents by drafter of the tokens that a level holds."""
        names, gamma = self._pool.names, self._survival.gamma
        judge, verifier = chain.levels[index], chain.levels[index + 1]
        gammas = {names[writer]: gamma(tag, (writer, judge, verifier)) for writer in chain.levels[: index + 1]}
        if front is not None:
            level = self._pool.level(front.model)
            gammas[front.model] = gamma(tag, (level, level if index == 0 else judge, verifier))
        return gammas


def _most_doubt(chain: FoundChain, index: int, figures: Figures) -> float:
    """-ln of the survival S at which S g tau_(i+1) = tau_i + w; see the module."""
    rates = figures.rates
    judging = figures.seconds[chain.levels[index + 1]]
    wider = max(0.0, float(judging[-1] - judging[1]) / (len(judging) - 2)) if len(judging) > 2 else 0.0
    rate = float(rates[chain.levels[index], chain.levels[index + 1]])
    added = 1
    if index:
        below = float(rates[chain.levels[index - 1], chain.levels[index]])
        added = max(1, round(sum(below**kept for kept in range(chain.windows[index - 1] + 1))))
    gain = sum(rate**kept for kept in range(1, added + 1)) / added
    least = (chain.level_s[index] + wider) / chain.level_s[index + 1]
    return log(gain / least) if gain > 0.0 and least > 0.0 else -inf if gain <= 0.0 else inf
