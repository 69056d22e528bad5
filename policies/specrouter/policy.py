"""SpecRouter: the chain and its windows follow what members cost and how far they agree, while requests run.

SpecRouter (arXiv:2505.07680): SimScore between members, a scheduler that picks the chain of least predicted seconds per
token, and verification level by level in which a cheap level refuses early. The published description leaves open
the closed form of the prediction, the search, windows, warm-up and when to re-select; what is chosen for each stands
in `search`, `similarity`, `scheduler` and `parts.performance_profiler`. Beyond the paper, `stop=confidence` (the
default) ends windows token by token where the next one no longer pays (`plan`, `confidence`); `stop=window` is the
paper's.

Measured seconds differ between the simulator and a machine, and with them the chains; with `costs` stated the choice
depends on tokens and signals alone and both worlds take the same steps.
"""

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from ...decoding.contract import Commit, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation, PendingToken
from ...decoding.pool import Pool
from ..about import About, Observable
from .constants import CONSTANTS
from .copies import Copies
from .estimates.confidence import doubt
from .estimates.evidence import RoundEvidence
from .operation_timer import OperationTimer, tokens_fed
from .options import RouterOptions
from .plan import Plan
from .scheduler import ModelChainScheduler
from .selector import Counters

CERTAIN = (0.0, 0.0)  # hazard of a token whose drafter is none of the chain's


@dataclass(slots=True)
class _Request:
    """One request: its round's plan, and the forward that is under way."""

    key: str
    evidence: RoundEvidence
    num_tokens: int  # of the answer so far
    plan: Plan | None = None
    judge: Verify | None = None  # of what was just copied
    copied: bool = False  # whether the target judges a copy in this round
    fed: int = 0


class SpecRouter:
    """Chains and windows chosen by running estimates.

    Args:
        pool: the members.
        every, most, form, similarity, select, stop, explore, probe, hysteresis: see `RouterOptions`.
        store, costs, without: likewise.

    Raises:
        ValueError: an option out of range.
    """

    about: ClassVar[About] = About(
        paper="SpecRouter, arXiv:2505.07680",
        lossless=True,
        members="a model below the target",
        observes=frozenset({Observable.signals, Observable.text}),
    )

    def __init__(
        self,
        pool: Pool,
        *,
        every: int = 8,
        most: int = 16,
        form: str | None = None,
        similarity: str = "auto",
        select: str = "auto",
        stop: str = "confidence",
        explore: int | None = None,
        probe: int | None = None,
        hysteresis: float = 0.08,
        store: int | None = None,
        costs: str | None = None,
        without: str = "",
    ) -> None:
        options = RouterOptions(
            every=every,
            most=most,
            form=form,
            similarity=similarity,
            select=select,
            stop=stop,
            explore=explore,
            probe=probe,
            hysteresis=hysteresis,
            store=store,
            costs=costs,
            without=without,
        )
        self.scheduler = ModelChainScheduler(pool, options, CONSTANTS)
        self._most = options.most
        self._requests: dict[str, _Request] = {}
        self._levels = {name: level for level, name in enumerate(pool.names)}
        self._target = pool.target
        self._copies = Copies(pool, options, CONSTANTS) if pool.members[0].model_free else None
        profiler = self.scheduler.knowledge.profiler
        self._timer = OperationTimer(profiler, pool.target_level)
        self._stated = profiler.stated

    @property
    def counters(self) -> Counters:
        """What it did; early refusals of every level among it."""
        return self.scheduler.counters

    @property
    def chains(self) -> dict[str, str]:
        """The chain in use by tag, in notation."""
        return self.scheduler.chains()

    @property
    def shared_chain(self) -> str | None:
        """The chain of all requests where they go in step, in notation."""
        return self.scheduler.shared_chain

    def decide(self, seen: Observation) -> Step:
        """Follow the plan of the round; make one where a round begins."""
        request = self._requests.get(seen.request_id)
        self._timer.settle(seen.load, begins=request is None and seen.num_emitted > 0)
        if request is None:
            knowledge = self.scheduler.knowledge
            evidence = RoundEvidence(seen.tag, knowledge.verdicts, knowledge.runs)
            request = _Request(seen.tag, evidence, num_tokens=seen.num_emitted)  # what the prefill wrote
            budget = seen.num_emitted + seen.remaining
            knowledge.profiler.note_prompt(num_prompt=seen.num_prompt, budget=budget)
            self._requests[seen.request_id] = request
        if request.plan is None:
            request.evidence.settle(seen)
            load = seen.load
            rows = load.batch[-1] or load.num_running  # what the target met last
            request.plan = self.scheduler.plan(request.key, num_rows=rows, num_running=load.num_running)
            if self._copies is not None:
                self._copies.begin(seen)
        step, held = self._next(seen, request)
        if isinstance(step, Verify):
            self._expect(seen, request, step.model, held)
        elif self._stated is None and isinstance(step, Draft):
            request.fed = tokens_fed(seen, step.model)
        return step

    def learn(self, outcome: Outcome) -> None:
        """Take in seconds and verdicts; a commit ends the round."""
        request = self._requests[outcome.request_id]
        step = outcome.step
        assert not isinstance(step, Commit)  # it plans none
        if isinstance(step, Verify):
            self._count(step.model, outcome)
            if not request.copied:
                request.evidence.after(outcome)
        if self._stated is None:
            self._timer.note(self._levels[step.model], request.fed, outcome)
        if outcome.num_emitted:
            self._end_round(request, outcome)
        if self._copies is not None:
            self._copies.learn(outcome)
        request.num_tokens += outcome.num_emitted
        if outcome.done:
            self.scheduler.knowledge.profiler.note_answer(request.num_tokens)
            del self._requests[outcome.request_id]

    def _next(self, seen: Observation, request: _Request) -> tuple[Step, tuple[PendingToken, ...]]:
        """The step, and the tokens that it verifies where they were looked at."""
        plan = request.plan
        assert plan is not None
        judge, request.judge = request.judge, None
        if not seen.num_pending:
            return self._write(seen, request), ()
        if judge is not None:
            return judge, ()
        if plan.fixed is not None:
            step = plan.fixed.decide(seen)
            return self._write(seen, request) if isinstance(step, Draft) else step, ()
        for index, verify in enumerate(plan.verifies):
            waiting = seen.waiting(verify.model)
            if not waiting:
                continue
            if not index and waiting < plan.least and seen.room > 1:
                return self._write(seen, request), ()
            # What the lowest level drafted it stopped by itself; of a copy that it judged it may want more.
            gathers = index > 0 or (seen.last is not None and isinstance(seen.last.step, Verify))
            if not gathers or plan.most_doubt[index] == -inf or seen.room < 2 or seen.num_pending >= 2 * self._most:
                return verify, ()
            held = seen.pending_from(seen.num_pending - waiting)
            return (self._write(seen, request), ()) if _holds(held, plan, index) else (verify, held)
        return plan.verifies[-1], ()

    def _write(self, seen: Observation, request: _Request) -> Step:
        """What the lowest level does next: copy, draft, or hand over where there is nothing to write."""
        plan = request.plan
        assert plan is not None
        copy = self._copies.best(seen, plan.copies) if self._copies is not None and plan.copies else None
        request.copied = copy is not None and copy.judge.model == self._target
        if copy is not None:
            request.judge = copy.judge
            return copy.draft
        room, draft = seen.room, plan.draft
        if draft is None or room < 2:
            return plan.verifies[0] if not seen.num_pending else self._above(seen, plan)
        if draft.tokens >= room:  # the verifier writes the last token of the budget itself
            return self.scheduler.planner.draft(draft.model, room - 1, draft.stop)
        return draft

    def _above(self, seen: Observation, plan: Plan) -> Verify:
        """The lowest level that has something to judge."""
        return next(verify for verify in plan.verifies if seen.waiting(verify.model))

    def _expect(self, seen: Observation, request: _Request, model: str, held: tuple[PendingToken, ...]) -> None:
        """Keep what the verifier is about to judge."""
        num_pending = seen.num_pending
        if request.copied:  # it tells of no member
            request.evidence.restart()
            request.fed = tokens_fed(seen, model, judged=num_pending)
            return
        if num_pending and not held:
            held = seen.pending_from(num_pending - seen.waiting(model))
        waiting = len(held)
        known, first = request.evidence.num_endorsed, num_pending - waiting
        if known > num_pending:  # the request was put back, and what was pending is gone
            request.evidence.restart()
            known = 0
        if known < first:
            request.evidence.note_written(seen.pending_from(known)[: first - known])
        request.evidence.before(model, held, first)
        if self._stated is None:
            request.fed = tokens_fed(seen, model, judged=waiting)

    def _count(self, model: str, outcome: Outcome) -> None:
        counters = self.scheduler.counters
        counters.judged[model] = counters.judged.get(model, 0) + outcome.num_judged
        if model != self._target:
            refused = outcome.num_judged - outcome.num_accepted
            counters.refused_early[model] = counters.refused_early.get(model, 0) + refused

    def _end_round(self, request: _Request, outcome: Outcome) -> None:
        assert request.plan is not None
        num_tokens = outcome.num_emitted
        self.scheduler.note_round(request.key, request.plan, num_tokens=num_tokens, copied=request.copied)
        request.plan = None


def _holds(held: tuple[PendingToken, ...], plan: Plan, index: int) -> bool:
    """Whether the tokens that the level below verifier `index` holds are sure enough to gather more on top of them."""
    hazards, most = plan.hazards[index], plan.most_doubt[index]
    doubts = 0.0
    for token in held:
        hazard, of_doubt = hazards.get(token.drafter, CERTAIN)
        doubts += hazard + of_doubt * doubt(token.signal.prob)
        if doubts > most:
            return False
    return doubts <= most
