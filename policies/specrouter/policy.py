"""SpecRouter (arXiv:2505.07680): chain and windows follow the members' seconds and agreement, while requests run.

docs/specrouter.md says what the paper leaves open and where our choices are made. Measured seconds differ between the
simulator and a machine, and with them the chains; with `costs` stated both worlds take the same steps.

The timer gathers the rows of an operation until it has all, since their seconds depend on the widths of all. The target
also reads prompts, of which there is no outcome: the load holds the tokens fed to its latest operation.

A tag's chains are compared by predicted seconds per token at rates raised by their standard errors
(`Knowledge.optimistic`), so that a little-known chain is played while it may be the best; there is no other
exploration. The errors have more weight the more of the tag was seen, up to `pair_memory` tokens. A selection holds for
a third of the rounds that the tag has seen, for `every` at most, and until a request begins. A member that joins a
request has to read its text, which is shortest there, and the cost is spread over the most tokens.

The warm-up is one *ladder* for all: the smallest member drafts, every other one judges in turn, which times every
member and scores every pair; then one plain step of the target.
"""

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from ...decoding.pool import Pool
from ...decoding.seen import Observation, PendingToken, ServerLoad
from ...decoding.steps import Commit, Draft, Outcome, Step, Verify
from ..about import About, Observable
from ..estimates import PROMPT, PerformanceProfiler
from .copies import Copies
from .estimates import Knowledge, RoundEvidence, doubt
from .in_step import InStep
from .options import CONSTANTS, RouterOptions
from .plan import Choice, CopyWorth, Plan, Planner, SchedulerCounts, Selector
from .search import FoundChain, SearchFigures, best_windows

NOTHING = (-1, False, 0, 0.0)  # key before the first row of an operation


def tokens_fed(seen: Observation, model: str, *, judged: int | None = None) -> int:
    """Tokens that the first forward of a step by `model` is fed for a request; `judged` ones are all read."""
    context, cached = seen.context_tokens, seen.cached(model)
    return context - (cached if judged is None else min(cached, context - judged - 1))


class OperationTimer:
    """Feeds a profiler with whole operations. Mutated by `note` and `settle`."""

    def __init__(self, profiler: PerformanceProfiler, target: int) -> None:
        self._profiler = profiler
        self._target = target
        self._key: tuple[int, bool, int, float] = NOTHING
        self._settled = False
        self._target_ran = False
        self._noted: tuple[int, int, float] | None = None
        self._rows = 0
        self._fed = 0
        self._longest = 0

    def settle(self, load: ServerLoad, *, begins: bool) -> None:
        """At a decision: the next row is of another operation, and the load holds the target's latest.

        `begins`: it is the first decision of a request, so that an operation of the target has read the end of its
        prompt, perhaps without an outcome.
        """
        self._settled = True
        if not (self._target_ran or begins):
            return
        level = self._target
        ran = load.batch[level], load.new_tokens[level], load.duration_s[level]
        if ran[1] and (self._target_ran or ran != self._noted):
            self._profiler.note(level, new_tokens=ran[1], seconds=ran[2])
            self._noted = ran
        self._target_ran = False

    def note(self, level: int, fed: int, outcome: Outcome) -> None:
        """Note a row that was first fed `fed` tokens."""
        verify = outcome.step.__class__ is Verify
        if verify and level == self._target:
            self._target_ran = True
            return
        key = (level, verify, outcome.num_rows, outcome.duration_s)
        if key != self._key or self._settled:
            self._key, self._settled = key, False
            self._rows = self._fed = self._longest = 0
        self._rows += 1
        self._fed += fed
        if outcome.num_drafted > self._longest:
            self._longest = outcome.num_drafted
        if self._rows < outcome.num_rows:
            return
        self._key = NOTHING
        if verify:  # the last row completes the operation
            self._profiler.note(level, new_tokens=self._fed, seconds=outcome.duration_s)
        elif self._longest:
            self._draft(level, max(1, round(self._fed / self._rows)), outcome.duration_s)

    def _draft(self, level: int, width: int, seconds: float) -> None:
        """The first forward is fed what the caches lack, the others one token a row."""
        rows, count = self._rows, self._longest
        if level < self._profiler.num_lookups:  # a lookup's seconds are per row, whatever it reads or copies
            self._profiler.note(level, new_tokens=1, seconds=seconds / rows)
            return
        narrow_s = self._profiler.narrowest_s(level, rows)
        if narrow_s is None and width > PROMPT:
            narrow_s = self._profiler.guessed_s(level, rows)
        first_s = seconds if count == 1 else seconds - (count - 1) * (inf if narrow_s is None else narrow_s)
        if width > 2 and first_s > 0.0:
            self._profiler.note(level, new_tokens=rows * width, seconds=first_s)
        elif width <= 2 or narrow_s is None:
            self._profiler.note(level, new_tokens=rows, seconds=seconds / count)


class SelectorPerTag(Selector):
    """One choice per tag, made for the request that asks; see the module and `Selector`."""

    shared: ClassVar[bool] = False
    _seen: Observation
    _begins: bool

    def plan_of(self, seen: Observation, num_rows: int, *, begins: bool) -> Plan:
        """As `plan`, for a request that is seen; `begins`: this is its first round."""
        self._seen, self._begins = seen, begins
        return self.plan(seen.tag, num_rows)

    def has(self, tag: str) -> bool:
        """Whether a tag has a chain of its own."""
        return tag in self._choices

    def chains(self) -> dict[str, str]:
        """By tag, the chain in use in notation."""
        chains = {str(tag): choice.chain for tag, choice in self._choices.items()}
        return {tag: self._planner.notation(chain) for tag, chain in chains.items() if chain is not None}

    def _before_selecting(self, choice: Choice, num_rows: int) -> Plan | None:
        if self._knowledge.profiler.known(self._pool.target_level):
            return None
        return self._planner.alone()  # another request of the batch is still in its warm-up

    def _is_due(self, choice: Choice, num_rows: int) -> bool:
        if self._begins and choice.rounds:  # a member may join a request as cheaply as it ever will
            return True
        return choice.rounds >= min(self._options.every, max(1, round(choice.total * CONSTANTS.early)))

    def _select(self, choice: Choice, tag: str, num_rows: int) -> Plan | None:
        knowledge = self._knowledge
        knowledge.digest()
        self._counters.selections += 1
        figures = knowledge.figures(tag, num_rows, self._seen)
        best = self._best(choice, tag, figures)
        self._counters.switches += choice.chain is not None and best.levels != choice.chain.levels
        choice.chain, choice.figures = best, figures
        choice.num_rows, choice.rounds = num_rows, 0
        choice.plans.clear()
        return None

    def _best(self, choice: Choice, tag: str, figures: SearchFigures) -> FoundChain:
        """The members that are best at raised rates, with the windows at the plain ones."""
        hoped = self._knowledge.optimistic(tag, figures) if self._options.takes("optimism") else figures
        best = self._search(hoped).levels
        if choice.chain is not None and choice.chain.levels != best:
            stays = choice.chain.levels
            gain = CONSTANTS.tag_hysteresis * self._options.hysteresis
            least_s = best_windows(stays, hoped).token_s * (1.0 - gain)
            best = stays if least_s <= best_windows(best, hoped).token_s else best
        return best_windows(best, figures)

    def _planned(self, tag: str, chain: FoundChain, figures: SearchFigures) -> Plan:
        return self._planner.plan(tag, chain, figures, copies=self._copies(tag, chain, figures))

    def _copies(self, tag: str, chain: FoundChain, figures: SearchFigures) -> tuple[CopyWorth, ...]:
        """A copy is worth to a level the seconds of the chain up to it for as many tokens."""
        if self._front < 0:
            return ()
        worth_s = dict(zip(chain.levels, chain.level_s, strict=True)) if self._options.stop == "confidence" else {}
        worth_s[self._pool.target_level] = chain.token_s
        lookup_s = self._lookup_s(self._choices[tag])
        return tuple(
            self._planner.worth(level, token_s, figures.seconds[level, 1:] + lookup_s - token_s)
            for level, token_s in worth_s.items()
            if self._judges[level]
        )


class ModelChainScheduler:
    """Plans by tag, or of a batch in step. Mutated by `plan`, `note_round` and through `knowledge`.

    Attributes:
        counters: of its work so far.
        knowledge: estimates for selections; gets verdicts.
        planner: makes the steps.

    Raises:
        ValueError: costs that do not fit this pool.
    """

    def __init__(self, pool: Pool, options: RouterOptions) -> None:
        self.counters = SchedulerCounts()
        self.knowledge = Knowledge(pool, options)
        self.planner = Planner(pool, options, self.knowledge.survival)
        parts = (pool, options, self.knowledge, self.planner, self.counters)
        self._per_tag, self._in_step = SelectorPerTag(*parts), InStep(*parts)
        self._together = {"auto": CONSTANTS.together, "batch": 1, "request": inf}[options.select]
        self._patience = CONSTANTS.patience
        self._left: dict[str, int] = {}  # rounds that a tag remains in step when few requests run
        self._num_running = 1
        self._warm_up = _warm_up(pool, self.planner)

    def plan(self, seen: Observation, *, num_rows: int, num_running: int, begins: bool) -> Plan:
        """The plan of a request for the round that begins now, its first one if it `begins`.

        The target's latest operation had `num_rows` requests; `num_running` run.
        """
        tag, self._num_running = seen.tag, num_running
        if self._warm_up:
            self.counters.trials += 1
            return self._warm_up.pop(0)
        together = num_running >= self._together
        if together or (not self._per_tag.has(tag) and self._left.get(tag, 0)):
            self._left[tag] = self._patience if together else self._left[tag] - 1
            return self._in_step.plan(tag, num_running)
        return self._per_tag.plan_of(seen, num_rows, begins=begins)

    def note_round(self, tag: str, plan: Plan, *, num_tokens: int, copied: bool) -> None:
        """The target committed `num_tokens` for a request of this tag, after a copy or a round of its plan."""
        self.counters.rounds += 1
        if self._together < inf:
            self._in_step.note_round(tag)
            self._in_step.note_commit(num_tokens, self._num_running, copied=copied)
        if not plan.in_step:
            self._per_tag.note_round(tag)

    def chains(self) -> dict[str, str]:
        """By tag, the chain in use in notation."""
        return self._per_tag.chains()

    @property
    def shared_chain(self) -> str | None:
        """The chain of all running requests, in notation; None before the first."""
        chain = self._in_step.chain
        return None if chain is None else self.planner.notation(chain)


def _warm_up(pool: Pool, planner: Planner) -> list[Plan]:
    lowest, *above = [level for level, member in enumerate(pool.members) if not member.model_free]
    judges = [level for level in above if pool.members[level].verifies]
    plans = [planner.ladder((lowest, *judges)), planner.alone()] if judges else []
    # A member that cannot judge is measured by drafting for the target.
    return plans + [planner.ladder((level, pool.target_level)) for level in above if level not in judges]


CERTAIN = (0.0, 0.0)  # hazard of a token whose drafter is not in the chain


@dataclass(slots=True)
class _Request:
    """One request: its round's plan, and its present forward."""

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
        every: most rounds of a tag, or of every request in step, between two selections, >= 1.
        most: longest window, 1 to 1,000. Levels above the lowest hand over whole rounds, with stop=confidence at the
            latest once twice as many tokens are pending.
        similarity: "simscore", "argmax", or "auto", which takes the one that says how many tokens are accepted.
        select: "request": the chain of its tag for every request; "batch": one chain for all that run, in step;
            "auto": by request while few run, by batch from four on.
        stop: "confidence": windows end where the next token does not pay; "window": as the search finds them.
        explore: in step, rounds of every request after which what is known of a pair counts half as much against trying
            it again, >= 0; 0 never tries, None: 64. Not with select=request.
        probe: in step, requests that draft to learn before anything is known, >= 0; None: 16. Not with select=request.
        hysteresis: predicted gain for which the members of a chain are changed, 0 to below 1; of a tag's own chain a
            share of it (`RouterConstants.tag_hysteresis`).
        store: tokens of earlier answers that are kept to copy from, 0 or >= 2; between half of them and all. None:
            65,536. Not with without=answers or without=copies.
        costs: of a forward by member, as `draft:1/mid:3/target:10`, at every width; None measures seconds.
        without: ingredients to leave out, `+` between them: "lookups" (no copies of a request's own text), "answers"
            (none of earlier answers), "copies" (neither, which is routing alone), "optimism" (what is little known gets
            no benefit of the doubt; not with select=batch), "ease" (a tag's pairs tell nothing of each other),
            "evidence" (a token that several levels kept counts for the last of them alone); "" leaves out none.

    Raises:
        ValueError: an option out of range, or one that has no effect beside another.
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
        self.scheduler = ModelChainScheduler(pool, options)
        self._most = options.most
        self._requests: dict[str, _Request] = {}
        self._levels = {name: level for level, name in enumerate(pool.names)}
        self._target = pool.target
        self._copies = Copies(pool, options) if pool.members[0].model_free and options.takes("copies") else None
        profiler = self.scheduler.knowledge.profiler
        self._timer = OperationTimer(profiler, pool.target_level)
        self._stated = profiler.stated

    @property
    def counters(self) -> SchedulerCounts:
        """Its counts, with early rejections by every level."""
        return self.scheduler.counters

    @property
    def chains(self) -> dict[str, str]:
        """The chain in use by tag, in notation."""
        return self.scheduler.chains()

    @property
    def shared_chain(self) -> str | None:
        """The chain of all requests in step, in notation."""
        return self.scheduler.shared_chain

    def decide(self, seen: Observation) -> Step:
        """Follow the plan of the round; make one where a round begins."""
        request = self._requests.get(seen.request_id)
        begins = request is None
        self._timer.settle(seen.load, begins=begins and seen.num_emitted > 0)
        if request is None:
            knowledge = self.scheduler.knowledge
            evidence = RoundEvidence(seen.tag, knowledge.runs)
            request = _Request(seen.tag, evidence, num_tokens=seen.num_emitted)  # by the prefill
            budget = seen.num_emitted + seen.remaining
            knowledge.profiler.note_prompt(num_prompt=seen.num_prompt, budget=budget)
            self._requests[seen.request_id] = request
        if request.plan is None:
            request.evidence.settle(seen)
            load = seen.load
            rows = load.batch[-1] or load.num_running  # of the target's latest operation
            request.plan = self.scheduler.plan(seen, num_rows=rows, num_running=load.num_running, begins=begins)
            if self._copies is not None:
                self._copies.begin(seen)
        step, held = self._next(seen, request)
        if isinstance(step, Verify):
            self._expect(seen, request, step.model, held)
        elif self._stated is None and isinstance(step, Draft):
            request.fed = tokens_fed(seen, step.model)
        return step

    def learn(self, outcome: Outcome) -> None:
        """Note seconds and verdicts; a commit ends the round."""
        request = self._requests[outcome.request_id]
        step, num_emitted = outcome.step, outcome.num_emitted
        assert not isinstance(step, Commit)  # never planned
        if isinstance(step, Verify):
            judged, refused = self.counters.judged, self.counters.refused_early
            judged[step.model] = judged.get(step.model, 0) + outcome.num_judged
            if step.model != self._target:
                refused[step.model] = refused.get(step.model, 0) + outcome.num_judged - outcome.num_accepted
            if not request.copied:
                request.evidence.after(outcome, measured=self.scheduler.knowledge.agreement.reads_distances)
        if self._stated is None:
            self._timer.note(self._levels[step.model], request.fed, outcome)
        if num_emitted:
            assert request.plan is not None
            copied, request.num_tokens = request.copied, request.num_tokens + num_emitted
            self.scheduler.note_round(request.key, request.plan, num_tokens=num_emitted, copied=copied)
            request.plan = None
        if outcome.done:
            if self._copies is not None:
                self._copies.learn(outcome)
            self.scheduler.knowledge.profiler.note_answer(request.num_tokens)
            del self._requests[outcome.request_id]

    def _next(self, seen: Observation, request: _Request) -> tuple[Step, tuple[PendingToken, ...]]:
        """The step, and the tokens that it verifies if they were read."""
        plan = request.plan
        assert plan is not None
        judge, request.judge = request.judge, None
        num_pending = seen.num_pending
        if not num_pending:
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
            most_doubt = plan.most_doubt[index]
            if not index and waiting < len(plan.draft_doubt):
                most_doubt = plan.draft_doubt[waiting]
            if most_doubt == -inf or seen.room < 2 or num_pending >= 2 * self._most:
                return verify, ()
            if not index and most_doubt < inf and _stopped(seen.last):
                return verify, ()
            held = seen.pending_from(num_pending - waiting)
            doubted = _doubted(held, plan, index)
            if doubted > most_doubt:
                return verify, held
            draft = None if index else self.scheduler.planner.onward(plan, waiting, doubted)
            return self._write(seen, request, draft), ()
        return plan.verifies[-1], ()

    def _write(self, seen: Observation, request: _Request, draft: Draft | None = None) -> Step:
        """The next step of the lowest level: copy, draft, or hand over where there is nothing to write.

        `draft`: in place of the plan's; where it follows another one, nothing is copied.
        """
        plan = request.plan
        assert plan is not None
        follows = draft is not None and seen.last is not None and isinstance(seen.last.step, Draft)
        copies = None if follows or not plan.copies else self._copies
        copy = None if copies is None else copies.best(seen, plan.copies)
        request.copied = copy is not None and copy.judge.model == self._target
        if copy is not None:
            request.judge = copy.judge
            return copy.draft
        room, draft = seen.room, draft or plan.draft
        if draft is None or room < 2:
            if not seen.num_pending:
                return plan.verifies[0]
            return next(verify for verify in plan.verifies if seen.waiting(verify.model))
        if draft.tokens >= room:  # the verifier writes the last token of the budget itself
            return self.scheduler.planner.draft(draft.model, room - 1, draft.stop)
        return draft

    def _expect(self, seen: Observation, request: _Request, model: str, held: tuple[PendingToken, ...]) -> None:
        """Keep what the verifier is about to judge, and the tokens it is fed; the target's are in the load."""
        num_pending, timed = seen.num_pending, self._stated is None and model != self._target
        if request.copied:  # copies are no evidence for a member
            request.evidence.restart()
            return
        if num_pending and not held:
            held = seen.pending_from(num_pending - seen.waiting(model))
        waiting = len(held)
        known, first = request.evidence.num_endorsed, num_pending - waiting
        if known > num_pending:  # the request was preempted, and its pending tokens dropped
            request.evidence.restart()
            known = 0
        if known < first:
            request.evidence.note_written(seen.pending_from(known)[: first - known])
        request.evidence.before(model, held, first)
        if timed:
            request.fed = tokens_fed(seen, model, judged=waiting)


def _stopped(last: Outcome | None) -> bool:
    """Whether the latest step is a draft that ended before its last token."""
    return last is not None and isinstance(last.step, Draft) and last.num_drafted < last.step.tokens


def _doubted(held: tuple[PendingToken, ...], plan: Plan, index: int) -> float:
    """-ln of the chance that all tokens that the level below verifier `index` holds survive."""
    hazards = plan.hazards[index]
    doubts = 0.0
    for token in held:
        hazard, of_doubt = hazards.get(token.drafter, CERTAIN)
        doubts += hazard + of_doubt * doubt(token.signal.prob)
    return doubts
