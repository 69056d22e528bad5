"""A public check for policies: runs one through toy models and checks that it keeps the contract.

In the toy world every next token is arithmetic on a checksum of the context. It has no cache, no recording and no
clock, so that the real worlds can be compared with it.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import log
from random import Random
from typing import Any
from zlib import crc32

from ..base.errors import said
from ..decoding.legal_steps import DraftEnd, Policy, breach, ruling_of
from ..decoding.loop import Loop, run_loop
from ..decoding.overlap_run import in_turns
from ..decoding.pool import Member, Pool
from ..decoding.prompt_lookup import LookupRule, looked_up
from ..decoding.results import (
    Deferred,
    Drafted,
    DraftResults,
    Failed,
    Forward,
    Judged,
    OpRecord,
    OverlapResults,
    Row,
    StepRecord,
    VerifyResults,
)
from ..decoding.rules import NO_SIGNAL, Facts, Ruling, Signal
from ..decoding.seen import Observation, ServerLoad, Start, prefill_before
from ..decoding.session import Session
from ..decoding.steps import Draft, PolicyError, Step, Verify
from ..decoding.trees import Branches, DraftTree, Growth
from ..decoding.world import DraftItem, OverlapItem, TreeItem, VerifyItem
from .about import about_of, check_declared, check_runs, decides_by_pending, members_run_by, runs_target_alone

_LOOKUP = LookupRule(max_match=3)
VOCABULARY = 40
EOS = 0
LEAST = 2.0**-10  # nats, of log-probabilities as trees add them


class ToyWorld:
    """Members that agree with the target the more often the larger they are.

    Args:
        seed: chooses another set of models.
        ends: chance, 0 to 1, that the target ends the text at a token.
        refuse: called for every row before it runs; returns that it fails or is deferred, or None to run it.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        seed: int = 0,
        ends: float = 0.02,
        refuse: Callable[[Session], Failed | Deferred | None] | None = None,
    ) -> None:
        self._pool = pool
        self._seed = seed
        self._ends = ends
        self._refuse = refuse

    def next_token(self, level: int, context: list[int]) -> int:
        """The member's token after `context`."""
        target_level = self._pool.target_level
        ends = self._unit(context, 0) < self._ends
        token = EOS if ends else 1 + int(self._unit(context, 1) * (VOCABULARY - 1))
        agrees = (level + 1) / (target_level + 1)
        if level == target_level or self._unit(context, 2 + level) < agrees:
            return token
        return 1 + (token + int(self._unit(context, 99) * (VOCABULARY - 2))) % (VOCABULARY - 1)

    def trunk(self, session: Session) -> list[int]:
        """What the target alone would write for this request."""
        tokens: list[int] = []
        while len(tokens) < session.budget and EOS not in tokens[-1:]:
            tokens.append(self.next_token(self._pool.target_level, [*session.prompt, *tokens]))
        return tokens

    def open(self, session: Session) -> None:
        """Nothing to prepare."""

    def close(self, session: Session) -> None:
        """Nothing to release."""

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Compute every draft from its whole context."""
        rows = [self._refused(session) or self._draft(session, step, level) for session, step in items]
        forward = _forward(level, rows)
        return DraftResults(rows, [forward], forward[3])

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Judge every request from its whole context."""
        rows = [self._refused(session) or self._judge(session, step, level) for session, step in items]
        forward = _forward(level, rows)
        return VerifyResults(rows, [forward], forward[3])

    def check_ahead(self) -> None:
        """Every member may."""

    def overlap(self, levels: tuple[int, ...], items: Sequence[OverlapItem]) -> OverlapResults:
        """Compute every part by its whole context."""
        return in_turns(self, levels, items)

    def _refused(self, session: Session) -> Failed | Deferred | None:
        return None if self._refuse is None else self._refuse(session)

    def check_tree(self, level: int) -> None:
        """Every member that may draft a tree can."""

    def draft_trees(self, level: int, items: Sequence[TreeItem]) -> DraftResults:
        """Let every tree grow from its whole context."""
        rows = [self._refused(session) or self._grow(session, step, level) for session, step in items]
        forward = _forward(level, rows)
        return DraftResults(rows, [forward], forward[3])

    def verify_trees(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Walk every tree by what the verifier writes itself."""
        rows = [self._refused(session) or self._walk(session, level) for session, _ in items]
        forward = _forward(level, rows)
        return VerifyResults(rows, [forward], forward[3])

    def signal(self, session: Session, index: int) -> Signal:
        """A synthetic confidence; NaN for a model-free drafter."""
        level = session.drafters[index]
        if self._pool.members[level].model_free:
            return NO_SIGNAL
        before = range(index) if session.tree is None else session.tree.path_to(index)[:-1]
        tokens = [session.tokens[place] for place in before]
        return self._signal(level, [*session.prompt, *session.emitted, *tokens])

    def _signal(self, level: int, context: list[int]) -> Signal:
        prob = 0.05 + 0.95 * self._unit(context, 50 + level)
        return Signal(prob, 3.0 * (1.0 - prob), max(0.0, 2.0 * prob - 1.0))

    def _draft(self, session: Session, step: Draft, level: int) -> Drafted:
        context = [*session.prompt, *session.emitted, *session.tokens]
        start = len(context)
        wanted = min(step.tokens, session.room)
        if self._pool.members[level].model_free:
            tokens = looked_up(context, step=step, room=session.room, rule=_LOOKUP)
            tokens = tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens
            return Drafted(tokens, [0] * len(tokens))
        ends = None if step.stop is None else DraftEnd(session, step)
        while len(context) < start + wanted:
            signal = self._signal(level, context)
            context.append(self.next_token(level, context))
            stopped = ends is not None and ends(signal)
            if context[-1] == EOS or stopped:
                break
        return Drafted(context[start:], [0] * (len(context) - start))

    def _grow(self, session: Session, step: DraftTree, level: int) -> Drafted:
        context = [*session.prompt, *session.emitted]
        growth = Growth(step.shape, room=session.room, eos=session.eos)
        while growth.asks:
            growth.take(
                [
                    self._branches(level, [*context, *(growth.tokens[at] for at in growth.path_to(node))], width)
                    for node, width in growth.asks
                ]
            )
        kept = growth.kept()
        return Drafted([growth.tokens[node] for node in kept], [0] * len(kept), 0, growth.tree(kept))

    def _branches(self, level: int, context: list[int], width: int) -> Branches:
        """The member's own token, then those after it in the vocabulary, each less probable."""
        own = self.next_token(level, context)
        tokens = [(own + rank) % VOCABULARY for rank in range(min(width, VOCABULARY))]
        sure = self._signal(level, context).prob
        return Branches(tokens, [LEAST * round(log(sure / (rank + 1)) / LEAST) for rank in range(len(tokens))])

    def _walk(self, session: Session, level: int) -> Judged:
        assert session.tree is not None
        context, path = [*session.prompt, *session.emitted], list[int]()
        while True:
            own_token = self.next_token(level, context)
            node = session.tree.child(path, own_token, session.tokens)
            if node is None:
                tvd = (0.1,) * len(path) + (0.9,) * (session.tree.beyond(path) is not None)
                return Judged(len(path), own_token, 0, tvd, path=tuple(path))
            path.append(node)
            context.append(own_token)

    def _judge(self, session: Session, step: Verify, level: int) -> Judged:
        first = session.first_unjudged(level)
        context = [*session.prompt, *session.emitted, *session.tokens[:first]]
        tvd: list[float] = []
        escalated: list[int] = []
        for index, token in enumerate(session.tokens[first:]):
            same = token == self.next_token(level, context)
            tvd.append(0.1 if same else 0.9)
            judge = session.judges[first + index]
            # Synthetic probabilities; any token but the verifier's own has at most the largest one.
            target_prob = 0.9 if same else 0.9 * self._unit(context, 70 + level)
            says = ruling_of(session, step, Facts(same, 0.5, target_prob, 0.9, 1.0, tvd[-1], judge, 0.6, 0.2, 0.9))
            if says is Ruling.refuse:
                break
            if says is Ruling.escalate:
                escalated.append(index)
            context.append(token)
        num_accepted = len(context) - session.num_prompt - len(session.emitted) - first
        own_token = self.next_token(level, context)
        return Judged(num_accepted, own_token, 0, tuple(tvd), escalated=tuple(escalated))

    def _unit(self, context: list[int], salt: int) -> float:
        data = struct.pack(f"<{len(context) + 2}q", self._seed, salt, *context)
        # One CRC is linear in its input; mixing it with a multiplication breaks the correlation between salts.
        mixed = (crc32(data) * 0x9E3779B97F4A7C15 + salt * 0xBF58476D1CE4E5B9) % 2**64
        return ((mixed ^ (mixed >> 29)) * 0x94D049BB133111EB % 2**64) / 2.0**64


def _forward(level: int, rows: Sequence[Row | Failed | Deferred]) -> Forward:
    num_rows = sum(not isinstance(row, Deferred) for row in rows)
    return (num_rows, num_rows, 1, 1e-3 * (level + 1))


STEPS_PER_TOKEN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Results of a check, over both ways in which requests may begin."""

    num_requests: int  # requests finished
    num_steps: int  # steps the policy decided
    num_tokens: int  # tokens committed
    lossless: bool  # every request committed exactly what the target alone writes
    says_lossless: bool | None = None  # whether its `about` says that it always does; None without one
    repeats: bool = True  # whether it took the same steps when all was run again

    @property
    def contradicted(self) -> bool:
        """Whether a policy declared lossless was not."""
        return bool(self.says_lossless) and not self.lossless


class _CheckedLoop(Loop):
    """Holds a policy to what its `about` promises of its steps, and to only reading the load."""

    def __init__(self, *, policy: Policy, **others: Any) -> None:  # noqa: ANN401 - as `Loop` takes them
        super().__init__(policy=policy, **others)
        self._runs = members_run_by(policy)
        self._alone, self._by_pending = runs_target_alone(policy), decides_by_pending(policy)
        self._fixed: dict[tuple[object, ...], Step] = {}

    def _ask(self, session: Session) -> tuple[Step, int]:
        before = self._figures()
        step, level = super()._ask(session)
        if self._figures() != before:
            rule = "decide changed seen.load, which belongs to all requests"
            raise breach(self._policy, self._name, session.request_id, step, rule)
        return step, level

    def check(self, session: Session, step: Step) -> int:
        """As the loop's own; also raises PolicyError for a step that the policy's `about` rules out."""
        level = super().check(session, step)
        try:
            check_runs(self._runs, step)
            if self._alone and (session.tokens or not isinstance(step, Verify)):
                raise ValueError("its `about` says target_alone, and this is no step of the target alone")
            if self._by_pending:
                before = self._fixed.setdefault(_pending_of(session), step)
                if before != step and said(before, repr) != said(step, repr):  # a stop of its own may lack an `__eq__`
                    raise ValueError("its `about` says by_pending, and it took another step where the same was pending")
        except ValueError as error:
            raise breach(self._policy, self._name, session.request_id, step, error) from error
        return level

    def _figures(self) -> list[object]:
        figures = [getattr(self.load, name) for name in ServerLoad.__slots__]
        return [list(figure) if isinstance(figure, list) else figure for figure in figures]


def _pending_of(session: Session) -> tuple[object, ...]:
    """What a policy with `About.by_pending` may go by."""
    seen = Observation(session, ServerLoad(0), lambda _session, _index: NO_SIGNAL)
    waiting = (seen.waiting(name) for name in session.pool.names if not session.pool.is_model_free(name))
    return seen.num_pending, seen.has_room, seen.found_nothing, *waiting


class _Count:
    """A ledger that keeps the steps, and stops a policy that never ends."""

    def __init__(self, name: str, most: int) -> None:
        self.steps: list[StepRecord] = []
        self._name = name
        self._most = most

    def note_op(self, record: OpRecord) -> None:
        """Not counted."""

    def note_step(self, record: StepRecord) -> None:
        """Keep a step of the policy; raise if there are too many."""
        if not record.prefill:
            self.steps.append(record)
        if len(self.steps) > self._most:
            raise PolicyError(self._name, record.request_id, None, f"more than {self._most} steps and still not done")

    def note_failed(self, *_: object) -> None:
        """Never: toy models do not fail."""

    def note_preempted(self, *_: object) -> None:
        """Never: toy models have no memory limit."""


def check_pool() -> Pool:
    """The default pool of a check: prompt lookup, draft, mid, slim, target."""
    free = (Member(name="ngram", model_free=True),)
    return Pool(free + tuple(Member(name=name) for name in ("draft", "mid", "slim", "target")))


def check_policy(
    build: Callable[[Pool], Policy], *, name: str = "policy", pool: Pool | None = None, seed: int = 0
) -> CheckReport:
    """Drive a policy through requests that end early, late, at once and at the budget, alone and in batches.

    Some begin as in engines, with the target's prefill, and some with whatever the policy does first.

    Args:
        build: makes the policy for a pool, e.g. `MyPolicy` or `lambda pool: MyPolicy(pool, window=3)`.
        name: for errors.
        pool: members to offer; default `check_pool()`.
        seed: of the requests and the toy models.

    Raises:
        PolicyError: an illegal step, one that its `about` rules out, an exception, no progress, or a changed load.
        ValueError: an oracle; toy models have no future to show it.
    """
    pool = check_pool() if pool is None else pool
    policy = build(pool)
    check_declared(policy, name)
    about = about_of(policy)
    if about is not None and about.oracle:
        raise ValueError(f"policy {name} sees ahead, which only a recording allows; toy models cannot check it")
    steps = tokens = requests = 0
    lossless = repeats = True
    for (batch, ends), start in product(((1, 0.0), (1, 0.1), (4, 0.02), (16, 0.3)), (Start.prefill, Start.draft)):
        world = ToyWorld(pool, seed=seed, ends=ends)
        taken: list[list[StepRecord]] = []
        for _ in range(2):
            sessions = _sessions(pool, Random(seed + batch), start, count=16)
            ledger = _Count(name, most=STEPS_PER_TOKEN * sum(session.budget for session in sessions))
            loop = _CheckedLoop(pool=pool, policy=build(pool), name=name, world=world, ledger=ledger)
            _drive(loop, world, sessions, batch)
            taken.append(ledger.steps)
        repeats &= taken[0] == taken[1]
        steps += len(ledger.steps)
        requests += len(sessions)
        for session in sessions:
            tokens += len(session.emitted)
            lossless &= session.emitted == world.trunk(session)
    return CheckReport(
        num_requests=requests,
        num_steps=steps,
        num_tokens=tokens,
        lossless=lossless,
        says_lossless=None if about is None else about.lossless,
        repeats=repeats,
    )


def _sessions(pool: Pool, rng: Random, start: Start, *, count: int) -> list[Session]:
    return [
        Session(
            pool=pool,
            request_id=f"r{index}",
            tag=rng.choice(("a", "b")),
            prompt=tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 12))),
            budget=1 + index if index < 4 else rng.randint(1, 40),
            eos=frozenset({EOS}),
            prefill_before=prefill_before(start, pool),
        )
        for index in range(count)
    ]


def _drive(loop: Loop, world: ToyWorld, sessions: list[Session], batch: int) -> None:
    waiting = iter(sessions)

    def admit(count: int) -> None:
        for session in islice(waiting, count):
            loop.admit(session)

    def on_finished(_now_s: float) -> None:
        count = len(loop.finished)
        loop.finished.clear()
        admit(count)

    admit(batch)
    run_loop(loop, world, on_finished=on_finished)
