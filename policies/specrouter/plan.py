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
from ...decoding.rules.stops import ProductBelow
from ..chain_notation import ChainSpec
from ..lossless.chain import Chain
from .confidence import Survival
from .knowledge import Figures
from .search import FoundChain

LADDER_WINDOW = 4
STOP_STEPS = 40  # thresholds of drafts, in factors of the root of two


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What requests of one key do in a round. Letters: K levels of the chain.

    Attributes:
        chain: the members, windows and predicted seconds.
        front: copies first, where something matches; None: nothing does, or it does not pay.
        draft: of the lowest level; None for the target alone.
        verifies: `[K - 1]` of the levels above the lowest, or the target's alone.
        most_doubt: `[K - 1]` -ln of the least survival with which a level gathers on; -inf hands over at once.
        gammas: `[K - 1]` exponents by drafter of the tokens that a level holds.
        fixed: follows fixed windows instead; None: the rules above.
        trial: whether it is for one round only, to learn.
        in_step: whether the requests that run share it.
        least: tokens that the lowest level drafts before the first verifier judges, where room allows, >= 1.
    """

    chain: FoundChain
    front: Draft | None
    draft: Draft | None
    verifies: tuple[Verify, ...]
    most_doubt: tuple[float, ...]
    gammas: tuple[dict[str, float], ...]
    fixed: Chain | None = None
    trial: bool = False
    in_step: bool = False
    least: int = 1


class Planner:
    """Makes plans, and every step of them once.

    Args:
        pool: the members.
        most: longest window.
        fixed: keep to the windows that were found.

    Attributes:
        fixed: likewise.
    """

    def __init__(self, pool: Pool, *, most: int, fixed: bool) -> None:
        self._pool = pool
        self._most = most
        self.fixed = fixed
        self._drafts: dict[tuple[str, int, int | None], Draft] = {}
        self._verifies = {name: Verify(name) for name in pool.names}
        self._chains: dict[FoundChain, Chain] = {}
        self._stops = [ProductBelow(2.0 ** (-step / 2)) for step in range(STOP_STEPS + 1)]

    def alone(self) -> Plan:
        """The target alone, once."""
        target = self._pool.target_level
        return self._plan(FoundChain(levels=(target,), windows=(), level_s=(inf,)), None, trial=True)

    def ladder(self, levels: tuple[int, ...]) -> Plan:
        """Every member once: the lowest drafts a little, each of the others judges and hands over at once.

        Drafted token by token, for the first one, which reads the prompt, has to be timed apart from the others.
        """
        windows = (LADDER_WINDOW, *[1] * (len(levels) - 2))
        chain = FoundChain(levels=levels, windows=windows, level_s=(inf,) * len(levels))
        draft = self.draft(self._pool.names[levels[0]], 1, None)
        return self._plan(chain, draft, most_doubt=(-inf,) * len(windows), trial=True, least=LADDER_WINDOW)

    def chosen(
        self, chain: FoundChain, figures: Figures, survival: Survival, tag: str, *, front: Draft | None, trial: bool
    ) -> Plan:
        """A chain that was found, with the rules of its levels; `figures` are those of the whole pool."""
        if len(chain.levels) == 1:
            return self._plan(chain, None, front=front, trial=trial)
        names = self._pool.names
        if self.fixed:
            draft = self.draft(names[chain.levels[0]], chain.windows[0], None)
            return self._plan(chain, draft, front=front, fixed=self._fixed_chain(chain), trial=trial)
        gammas = tuple(self._gammas(chain, index, front, survival, tag) for index in range(len(chain.windows)))
        most_doubt = tuple(_most_doubt(chain, index, figures) for index in range(len(chain.windows)))
        lowest = names[chain.levels[0]]
        draft = self.draft(lowest, self._most, self._stop(most_doubt[0], gammas[0][lowest]))
        return self._plan(chain, draft, front=front, most_doubt=most_doubt, gammas=gammas, trial=trial)

    def in_step(
        self, chain: FoundChain, figures: Figures, survival: Survival, tag: str, *, front: Draft | None, trial: bool
    ) -> Plan:
        """A chain whose levels hand over at once; arguments as of `chosen`. Its window is the longest draft."""
        if len(chain.levels) == 1:
            return self._plan(chain, None, front=front, trial=trial, in_step=True)
        gammas = self._gammas(chain, 0, front, survival, tag)
        lowest = self._pool.names[chain.levels[0]]
        stop = None if self.fixed else self._stop(_most_doubt(chain, 0, figures), gammas[lowest])
        draft = self.draft(lowest, chain.windows[0], stop)
        most_doubt = (-inf,) * len(chain.windows)
        return self._plan(chain, draft, front=front, most_doubt=most_doubt, trial=trial, in_step=True)

    def draft(self, model: str, tokens: int, stop: int | None) -> Draft:
        """A draft; `stop` is an index of `_stops`."""
        key = (model, tokens, stop)
        draft = self._drafts.get(key)
        if draft is None:
            draft = self._drafts[key] = Draft(model, tokens, None if stop is None else self._stops[stop])
        return draft

    def shortened(self, draft: Draft, tokens: int) -> Draft:
        """The same draft with a smaller window."""
        stop = None if draft.stop is None else self._stops.index(draft.stop)  # type: ignore[arg-type]
        return self.draft(draft.model, tokens, stop)

    def notation(self, chain: FoundChain) -> str:
        """A chain with the windows that were found."""
        members = tuple(self._pool.names[level] for level in chain.levels)
        return str(ChainSpec(members=members, windows=chain.windows))

    def _stop(self, most_doubt: float, gamma: float) -> int:
        """Index of the rule that stops a draft of exponent `gamma` at a survival of exp(-most_doubt)."""
        return round(min(max(2.0 * most_doubt / (gamma * log(2.0)), 0.0), STOP_STEPS))

    def _plan(
        self,
        chain: FoundChain,
        draft: Draft | None,
        *,
        front: Draft | None = None,
        most_doubt: tuple[float, ...] = (),
        gammas: tuple[dict[str, float], ...] = (),
        fixed: Chain | None = None,
        trial: bool,
        in_step: bool = False,
        least: int = 1,
    ) -> Plan:
        names = self._pool.names
        verifies = tuple(self._verifies[names[level]] for level in (chain.levels[1:] or chain.levels))
        return Plan(
            chain=chain,
            front=front,
            draft=draft,
            verifies=verifies,
            most_doubt=most_doubt,
            gammas=gammas,
            fixed=fixed,
            trial=trial,
            in_step=in_step,
            least=least,
        )

    def _fixed_chain(self, chain: FoundChain) -> Chain:
        found = self._chains.get(chain)
        if found is None:
            members = tuple(self._pool.names[level] for level in chain.levels)
            spec = ChainSpec(members=members, windows=chain.windows)
            found = self._chains[chain] = Chain(self._pool, str(spec))
        return found

    def _gammas(
        self, chain: FoundChain, index: int, front: Draft | None, survival: Survival, tag: str
    ) -> dict[str, float]:
        names = self._pool.names
        judge, verifier = chain.levels[index], chain.levels[index + 1]
        writers = list(chain.levels[: index + 1])
        gammas = {names[writer]: survival.gamma(tag, (writer, judge, verifier)) for writer in writers}
        if front is not None:
            level = self._pool.level(front.model)
            gammas[front.model] = survival.gamma(tag, (level, level if index == 0 else judge, verifier))
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
