"""A public check for policies: run one through toy models and see that it keeps the contract."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from random import Random

from ..decoding.contract import PolicyError
from ..decoding.ledger import OpRecord, StepRecord
from ..decoding.loop import Loop
from ..decoding.policy import Policy
from ..decoding.pool import Member, Pool
from ..decoding.prefill import Start, prefill_before
from ..decoding.session import Session
from .about import about_of
from .toy_world import EOS, VOCABULARY, ToyWorld

STEPS_PER_TOKEN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check saw, over both ways in which requests may begin.

    Attributes:
        num_requests: requests finished.
        num_steps: steps the policy decided.
        num_tokens: tokens committed.
        lossless: every request committed exactly what the target alone writes.
        says_lossless: whether the policy says of itself that it always does; None if it says nothing.
    """

    num_requests: int
    num_steps: int
    num_tokens: int
    lossless: bool
    says_lossless: bool | None = None

    @property
    def contradicted(self) -> bool:
        """Whether a policy that says it is lossless was not."""
        return bool(self.says_lossless) and not self.lossless


class _Count:
    """A ledger that only counts, and ends a policy that never ends."""

    def __init__(self, name: str, most: int) -> None:
        self.steps = 0
        self._name = name
        self._most = most

    def note_op(self, record: OpRecord) -> None:
        """Not counted."""

    def note_step(self, record: StepRecord) -> None:
        """Count what the policy decided, and stop a run away."""
        self.steps += not record.prefill
        if self.steps > self._most:
            raise PolicyError(self._name, record.request_id, None, f"more than {self._most} steps and still not done")

    def note_failed(self, *_: object) -> None:
        """Never: toy models do not fail."""

    def note_preempted(self, *_: object) -> None:
        """Never: toy models have no memory to run short of."""


def check_pool() -> Pool:
    """The pool a check offers: prompt lookup, draft, mid, slim, target."""
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
        PolicyError: an illegal step, an exception, or no progress.
        ValueError: an oracle; toy models have no future to show it.
    """
    pool = check_pool() if pool is None else pool
    about = about_of(build(pool))
    if about is not None and about.oracle:
        raise ValueError(f"policy {name} sees ahead, which only a recording can grant; toy models cannot check it")
    steps = tokens = requests = 0
    lossless = True
    for (batch, ends), start in product(((1, 0.0), (1, 0.1), (4, 0.02), (16, 0.3)), (Start.prefill, Start.draft)):
        world = ToyWorld(pool, seed=seed, ends=ends)
        sessions = _sessions(pool, Random(seed + batch), start, count=16)
        budget = sum(session.budget for session in sessions)
        ledger = _Count(name, most=STEPS_PER_TOKEN * budget)
        loop = Loop(pool=pool, policy=build(pool), name=name, world=world, ledger=ledger)
        _drive(loop, world, sessions, batch)
        steps += ledger.steps
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
    waiting = list(reversed(sessions))
    for _ in range(min(batch, len(waiting))):
        loop.admit(waiting.pop())
    now_s = 0.0
    while True:
        op = loop.next_op(now_s)
        if op is not None:
            results = op.run(world)
            loop.finish(op, results, start_s=now_s, now_s=now_s + results.duration_s)
            now_s += results.duration_s
        elif not loop.finished:  # a Commit finishes requests without an operation
            return
        while loop.finished:
            loop.finished.pop()
            if waiting:
                loop.admit(waiting.pop())
