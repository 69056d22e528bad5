"""Policies made of others (`guarded`, `per-tag`, `per-turn`), and a guard that rejects lossy steps.

docs/policies.md describes them. `per-turn` decides for every request (a turn of a conversation) by that request alone,
and needs no plain rounds. TensorRT-LLM (#12905) and a proposal for llama.cpp (#22931) do it by acceptance, one for
mlx-lm (#1557) by measured milliseconds per token.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..base.errors import check_least, check_within
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.seen import Observation
from ..decoding.steps import Commit, Outcome, Step, Verify
from .about import DECLARED, OWN, About, about_of, members_run_by
from .blocks import RunningRatio
from .estimates import MemberSeconds
from .fixed import Chain


class MadeOf:
    """A policy made of others.

    Args:
        parts: the policies.
        tags: with a policy of their own.

    Attributes:
        about: lossless if all parts are, with the needs of all; None if one has none.
        most_pending: tokens that the parts may have pending, at most, as far as declared.
        most_off_trunk: of these, tokens that may follow one another, at most.
        trees: token trees that the parts may draft, as far as declared.
        named_tags: with a policy of their own, here or within one of the parts.

    Raises:
        ValueError: a part is an oracle, which would not be shown the future here.
    """

    about: About | None

    def __init__(self, parts: Sequence[Policy], tags: Iterable[str] = ()) -> None:
        self.about = _about(parts)
        self.most_pending = max(getattr(part, "most_pending", 0) for part in parts)
        self.most_off_trunk = max(getattr(part, "most_off_trunk", getattr(part, "most_pending", 0)) for part in parts)
        trees = [tree for part in parts for tree in getattr(part, "trees", ())]
        self.trees = tuple(dict.fromkeys(trees))
        self.named_tags = frozenset(tags).union(*(getattr(part, "named_tags", ()) for part in parts))


def check_step_by_step(parts: Iterable[Policy]) -> None:
    """Raise ValueError for a part that works ahead: seconds of what runs at once cannot be added up."""
    for part in parts:
        about = about_of(part)
        if about is not None and about.works_ahead:
            raise ValueError(
                f"a policy that works ahead cannot be judged by its seconds, step by step, got {type(part).__name__}"
            )


def _about(parts: Sequence[Policy]) -> About | None:
    abouts = [about_of(part) for part in parts]
    known = [about for about in abouts if about is not None]
    if any(about.oracle for about in known):
        raise ValueError("an oracle cannot be part of another policy")
    if len(known) < len(abouts):
        return None
    papers = dict.fromkeys(about.paper for about in known)
    return About(
        paper="; ".join(paper for paper in papers if paper and not paper.startswith(OWN)),
        lossless=all(about.lossless for about in known),
        members="; ".join(dict.fromkeys(about.members for about in known)),
        observes=frozenset().union(*(about.observes for about in known)),
        works_ahead=any(about.works_ahead for about in known),
        runs=_runs(parts),
    )


def _runs(parts: Sequence[Policy]) -> frozenset[str] | None:
    """The members that any part runs; None where one does not declare them."""
    runs = [members_run_by(part) for part in parts]
    said = [one for one in runs if one is not None]
    return frozenset().union(*said) if len(said) == len(runs) else None


class Guarded(MadeOf):
    """Another policy, with plain decoding in its place while its predicted gain is negative.

    The first `trial` rounds are plain, to know what is to be beaten. One judgement serves all requests; with
    `per-tag,default=guarded(policy=...)` there is one for each tag.

    Args:
        policy: asked where it is not set aside. It learns from its own steps only, so it does not see the
            end of a request that ends while it is set aside.
        margin: least gain, seconds per token of plain decoding over those of the policy less 1, > -1.
        trial: rounds before a judgement, >= 1.
        retry: plain rounds before the policy is tried again, >= 1.
        memory: rounds that the averages reach back, >= 1.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds.

    Attributes:
        wrapped: the policy.
        falls: how often the policy was set aside. `MadeOf` has the others.

    Raises:
        ValueError: an option out of range, or a policy that works ahead.
    """

    about: About | None = About(
        paper=f"{OWN}: plain decoding as long as drafts lose",
        lossless=True,
        members="what its policy needs",
    )

    def __init__(
        self,
        pool: Pool,
        *,
        policy: Policy,
        margin: float = 0.0,
        trial: int = 8,
        retry: int = 64,
        memory: int = 32,
        costs: str | None = None,
    ) -> None:
        check_within("margin", margin, "(-1, inf)")
        check_least("trial", trial, 1)
        check_least("retry", retry, 1)
        check_step_by_step((policy,))
        self.wrapped = policy
        self._plain = Verify(pool.target)
        self._margin, self._trial, self._retry, self._memory = margin, trial, retry, memory
        self._seconds = MemberSeconds(pool, costs)
        self._plain_pace = RunningRatio(memory=memory)  # seconds per token, as the next
        self._pace = RunningRatio(memory=memory)
        self._open: dict[str, _Request] = {}
        self._pause = trial
        self.falls = 0
        super().__init__((policy,))

    def decide(self, seen: Observation) -> Step:
        """The policy's step, or plain decoding."""
        request_id = seen.request_id
        request = self._open.get(request_id)
        if request is None:
            request = self._open[request_id] = _Request()
        if not seen.num_pending and request.between_rounds:
            request.between_rounds = False
            request.plain = self._pause > 0
            self._pause -= request.plain
        if request.plain:
            return self._plain
        return self.wrapped.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Charge the round; the policy learns from its own steps."""
        request = self._open[outcome.request_id]
        request.seconds += self._seconds.charge(outcome)
        if not request.plain:
            self.wrapped.learn(outcome)
        if outcome.num_emitted:
            pace = self._plain_pace if request.plain else self._pace
            pace.note(request.seconds, outcome.num_emitted)
            request.seconds = 0.0
            request.between_rounds = True
            if not request.plain:
                self._judge()
        if outcome.done:
            del self._open[outcome.request_id]

    def _judge(self) -> None:
        """Set the policy aside where its gain is below the margin; its averages begin again when it comes back."""
        # In a large batch whole rounds of the policy may end before the first plain one does.
        if self._pace.num_rounds < self._trial or self._pause > 0 or not self._plain_pace.num_rounds:
            return
        if self._plain_pace.rate < (1.0 + self._margin) * self._pace.rate:
            self._pause = self._retry
            self._pace = RunningRatio(memory=self._memory)
            self.falls += 1


@dataclass(slots=True)
class _Request:
    between_rounds: bool = True
    plain: bool = True
    seconds: float = 0.0


class OnlyLossless:
    """Passes on the steps of a policy not known to be lossless, as long as they are.

    A lossy rule below the target is no lossy step, since the target judges what it kept.
    """

    def __init__(self, policy: Policy, about: About | None = None) -> None:
        self.wrapped = policy
        self.about = about
        for name in DECLARED:
            if hasattr(policy, name):
                setattr(self, name, getattr(policy, name))

    def decide(self, seen: Observation) -> Step:
        """The policy's step; raises ValueError if it is a Commit, or the target would judge by a lossy rule."""
        step = self.wrapped.decide(seen)
        if isinstance(step, Commit) or (
            isinstance(step, Verify) and step.model == seen.pool.target and not step.rule.lossless
        ):
            raise ValueError(f"{step} is lossy, and only lossless policies were asked for")
        return step

    def learn(self, outcome: Outcome) -> None:
        """The policy learns."""
        self.wrapped.learn(outcome)


class PerTag(MadeOf):
    """The policy of a request's tag, or the default one.

    Every policy sees its own requests only, so that what it learns is of their tag. As text:
    `per-tag,default=draft:4/target,code=mid:3/target`.

    Args:
        default: for tags that are not named.
        tags: policy by tag.
    """

    about: About | None = About(
        paper=f"{OWN}: a policy for each kind of text", lossless=True, members="what its policies need"
    )

    def __init__(self, pool: Pool, /, *, default: Policy, **tags: Policy) -> None:
        self._default = default
        self._tags = tags
        self._open: dict[str, Policy] = {}
        super().__init__((default, *tags.values()), tags)

    def decide(self, seen: Observation) -> Step:
        """As the policy of its tag."""
        request_id = seen.request_id
        policy = self._open.get(request_id)
        if policy is None:
            policy = self._open[request_id] = self._tags.get(seen.tag, self._default)
        return policy.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """The policy of its tag learns."""
        self._open[outcome.request_id].learn(outcome)
        if outcome.done:
            del self._open[outcome.request_id]


LEAST = {"acceptance": 0.3, "speed": 1.0}


class PerTurn(MadeOf):
    """Another policy at the beginning of every request, until too few of its tokens are accepted, or it is too slow.

    Each policy learns from its own steps only, so it does not see the end of
    a request that ends under the other one.

    Args:
        policy: begins every request.
        then: ends the requests in which it fell below; default the target alone.
        by: `speed`, tokens per second in parts of what the target alone would write (by the line of `MemberSeconds`, so
            that no plain round is needed), or `acceptance`, the share of judged tokens that the target accepted.
        least: of either, over the latest `window` rounds of the request; below it the other policy takes over. Default
            1 by speed, where it must be >= 0, and 0.3 by acceptance, where it must be in [0, 1].
        after: rounds of a request before it is looked at first, >= 1.
        window: latest rounds that count, `after` or more.
        costs: of forwards, as `draft:1/target:10`, instead of measured seconds.

    Attributes:
        falls: requests that went over so far. `MadeOf` has the others.

    Raises:
        ValueError: an option out of range, costs where acceptance decides, token trees there (of which a path stays and
            no share), or a policy that works ahead where speed does.
    """

    about: About | None = About(
        paper=f"{OWN}: another policy for the rest of a request in which the first one loses",
        lossless=True,
        members="what its policies need",
    )

    def __init__(
        self,
        pool: Pool,
        *,
        policy: Policy,
        then: Policy | None = None,
        by: str = "speed",
        least: float | None = None,
        after: int = 16,
        window: int = 32,
        costs: str | None = None,
    ) -> None:
        if by not in LEAST:
            raise ValueError(f"by must be acceptance or speed, got {by!r}")
        if by == "acceptance" and costs is not None:
            raise ValueError(f"costs goes with by=speed, got {costs!r}")
        if by == "acceptance" and len(getattr(policy, "trees", ())):
            raise ValueError(f"a policy of token trees goes with by=speed, got {type(policy).__name__} by acceptance")
        if by == "speed":
            check_step_by_step((policy,))
        least = LEAST[by] if least is None else least
        check_within("least", least, "[0, 1]" if by == "acceptance" else "[0, inf)")
        check_least("after", after, 1)
        check_least("window", window, after)
        self._first = policy
        self._then: Policy = Chain(pool, pool.target) if then is None else then
        self._by_speed, self._least, self._after, self._window = by == "speed", least, after, window
        self._target = pool.target
        self._seconds = MemberSeconds(pool, costs)
        self._open: dict[str, _Turn] = {}
        self.falls = 0
        super().__init__((policy, self._then))

    def decide(self, seen: Observation) -> Step:
        """As the request's present policy, which changes between rounds only."""
        turn = self._open.get(seen.request_id)
        if turn is None:
            turn = self._open[seen.request_id] = _Turn(self._first, deque(maxlen=self._window))
        elif turn.falls and not seen.num_pending:
            turn.falls, turn.policy = False, self._then
        return turn.policy.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """The policy that decided learns; at the end of a round it is judged."""
        turn = self._open[outcome.request_id]
        turn.policy.learn(outcome)
        turn.seconds += self._seconds.charge(outcome)
        if outcome.done:
            del self._open[outcome.request_id]
        elif outcome.num_emitted and turn.policy is self._first and not turn.falls:
            self._judge(turn, outcome)

    def _judge(self, turn: "_Turn", outcome: Outcome) -> None:
        if self._by_speed:
            turn.rounds.append((outcome.num_emitted, turn.seconds))
        else:
            turn.rounds.append((outcome.num_accepted, outcome.num_judged))
        turn.seconds = 0.0
        if len(turn.rounds) >= self._after:
            # Seconds of the target alone turn tokens into seconds; none where a Commit came before any verification.
            unit = self._seconds.verify_s(self._target, 1) if self._by_speed else 1.0
            brought, out_of = (sum(column) for column in zip(*turn.rounds, strict=True))
            turn.falls = unit is not None and brought * unit < self._least * out_of
            self.falls += turn.falls


@dataclass(slots=True)
class _Turn:
    policy: Policy
    rounds: deque[tuple[int, float]]
    seconds: float = 0.0
    falls: bool = False
