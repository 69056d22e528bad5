"""Ways of requests through rounds, shared by those that go alike.

The rounds of a request one after another, until it is done: those of a recorded answer, again and again.

Paths that several replicas of a run share, since their policies are equal.
"""

from bisect import bisect_right
from collections import OrderedDict

from ...decoding.legal_steps import Policy
from ...decoding.pool import Pool
from ...decoding.steps import PolicyError
from ..recorded import RecordedAnswers, UnrecordedContextError
from ..rounds_once import FixedRounds
from .numbers import TabledRequest
from .round_shapes import Lacking, RoundShapes, UnfitRoundError

# Paths, and ends of requests, that are kept.
MOST_PATHS, MOST_ENDS = 1024, 8192


class RoundPath:
    """The rounds from one place of a recorded answer on, for a request without end.

    Attributes:
        shapes: of the rounds, one after another; see `RoundShapes`.
        texts: tokens that have come out where each begins.
        positions: in the recorded answer where each begins.
        needs: tokens still to come with which, and with any more, each is as it is.
        most_needed: of these.
    """

    def __init__(self, rounds: FixedRounds, shapes: RoundShapes, lacking: Lacking, position: int) -> None:
        self.shapes: list[int] = []
        self.texts = [0]
        self.positions = [position]
        self.needs: list[int] = []
        self.most_needed = 1
        self._rounds = rounds
        self._shapes = shapes
        self._lacking = lacking

    def extend(self, request: TabledRequest, tokens: int) -> None:
        """Have rounds until so many tokens are out; raises UnfitRoundError, and what `FixedRounds.round` does."""
        while self.texts[-1] < tokens:
            position = self.positions[-1]
            room = request.most_answer - position
            played = self._rounds.round(request.arrival.request_id, request.recorded_id, position, room)
            shape = self._shapes.of(played, self._lacking)
            self._lacking = self._shapes.shapes[shape].after
            self.shapes.append(shape)
            self.texts.append(self.texts[-1] + played.committed)
            self.positions.append(0 if played.ends else position + played.committed)
            self.needs.append(min(played.needs, room))
            self.most_needed = max(self.most_needed, self.needs[-1])


class RoundPaths:
    """Paths of a run, of replicas whose policies are equal.

    Args:
        rounds: of their policies.
        pool: the members.

    Attributes:
        rounds: see above.
        shapes: of all rounds.
    """

    def __init__(self, rounds: FixedRounds, pool: Pool) -> None:
        self.rounds = rounds
        self.shapes = RoundShapes(pool)
        self._paths: OrderedDict[tuple[str, int], RoundPath] = OrderedDict()
        self._ends: OrderedDict[tuple[str, int, int, Lacking], tuple[list[int], list[int], list[int]]] = OrderedDict()
        self._fresh: Lacking = (*[None] * pool.target_level, 1)

    def of(self, request: TabledRequest) -> tuple[list[int], list[int], list[int]]:
        """Shapes, texts and positions of the rounds that a request has still to run.

        Returns:
            `[N]`, `[N + 1]` tokens of prompt and answer where each round begins, and after the last, and `[N + 1]`
            positions.

        Raises:
            UnfitRoundError: a round is not laid out in slots, or it is an error to come to it.
        """
        try:
            return self._of(request)
        except (PolicyError, UnrecordedContextError) as error:
            raise UnfitRoundError from error

    def _of(self, request: TabledRequest) -> tuple[list[int], list[int], list[int]]:
        key = request.recorded_id, request.position
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = RoundPath(self.rounds, self.shapes, self._fresh, request.position)
            if len(self._paths) > MOST_PATHS:
                self._paths.popitem(last=False)
        left = request.most_tokens - request.num_text
        path.extend(request, left)
        needs, begins = path.needs, path.texts
        count = bisect_right(begins, left - path.most_needed)
        while count < len(needs) and left - begins[count] >= needs[count]:
            count += 1
        base = request.num_text
        shapes, texts = path.shapes[:count], [base + tokens for tokens in begins[: count + 1]]
        positions = path.positions[: count + 1]
        self._end(request, shapes, texts, positions)
        return shapes, texts, positions

    def _end(self, request: TabledRequest, shapes: list[int], texts: list[int], positions: list[int]) -> None:
        """Append the last rounds, which the end of the request may cut; the same for all that come to them alike."""
        lacking = self.shapes.shapes[shapes[-1]].after if shapes else self._fresh
        base, left = texts[-1], request.most_tokens - texts[-1]
        key = request.recorded_id, positions[-1], left, lacking
        found = self._ends.get(key)
        if found is None:
            found = self._ends[key] = self._played(request, positions[-1], left, lacking)
            if len(self._ends) > MOST_ENDS:
                self._ends.popitem(last=False)
        shapes += found[0]
        texts += [base + tokens for tokens in found[1]]
        positions += found[2]

    def _played(
        self, request: TabledRequest, position: int, left: int, lacking: Lacking
    ) -> tuple[list[int], list[int], list[int]]:
        """Shapes of the rounds that bring so many tokens; tokens that are out after each, and positions after each."""
        shapes: list[int] = []
        texts: list[int] = []
        positions: list[int] = []
        tokens = 0
        while tokens < left:
            room = min(request.most_answer - position, left - tokens)
            played = self.rounds.round(request.arrival.request_id, request.recorded_id, position, room)
            shape = self.shapes.of(played, lacking)
            lacking = self.shapes.shapes[shape].after
            tokens += played.committed
            position = 0 if played.ends else position + played.committed
            shapes.append(shape)
            texts.append(tokens)
            positions.append(position)
        return shapes, texts, positions


class SharedPaths:
    """Makes `RoundPaths` for policies of one run, the same for policies of the same class with equal attributes."""

    def __init__(self) -> None:
        self._made: list[tuple[Policy, RoundPaths]] = []

    def of(self, policy: Policy, name: str, pool: Pool, answers: RecordedAnswers) -> RoundPaths:
        """Paths of a policy; arguments and errors as of `FixedRounds`. Pool and answers are those of the run."""
        for other, paths in self._made:
            if _are_equal(policy, other):
                return paths
        paths = RoundPaths(FixedRounds(policy=policy, name=name, pool=pool, answers=answers), pool)
        self._made.append((policy, paths))
        return paths


def _are_equal(policy: Policy, other: Policy) -> bool:
    ours, theirs = getattr(policy, "__dict__", None), getattr(other, "__dict__", None)
    if type(policy) is not type(other) or ours is None:
        return False
    try:
        return bool(ours == theirs)
    except ValueError:  # of arrays, of which nobody can say in a word whether they are equal
        return False
