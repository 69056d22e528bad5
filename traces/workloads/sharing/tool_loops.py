"""`react` and `rewoo`: the same tool calls, with the model asked after each of them, or before and after all."""

from dataclasses import dataclass
from random import Random

from ..arrival import Arrival
from ..generated.lengths import Length
from .growing_line import DrawnLine
from .seconds import Seconds
from .session_kind import Place, check_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalls:
    """What both do.

    Attributes:
        steps: calls of tools.
        system: tokens that all prompts begin with, >= 0: the instruction and worked examples.
        prompt: tokens of the question.
        output: tokens that the model writes for each call, and for the answer.
        observation: tokens that a tool returns.
        wait: seconds that a tool takes.
    """

    steps: Length
    system: int
    prompt: Length
    output: Length
    observation: Length
    wait: Seconds

    def draw(self, rng: Random) -> tuple[int, list[int], list[int], list[int]]:
        """(tokens of the question, of each output, of each observation, picoseconds of each call) of a session."""
        steps, prompt = self.steps.draw(rng), self.prompt.draw(rng)
        check_requests(steps)
        outputs = [self.output.draw(rng) for _ in range(steps + 1)]
        observations = [self.observation.draw(rng) for _ in range(steps)]
        return prompt, outputs, observations, [self.wait.draw_ps(rng) for _ in range(steps)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReAct:
    """Reasoning and acting in turns (Yao et al. 2023, arXiv:2210.03629).

    The model writes a thought and an action, the tool returns an observation, and all of it is sent again for the next
    thought; the last request writes the answer. With N calls N + 1 requests read a prompt that grows by as much each
    time: the tokens sent grow with the square of N, those that a prefix cache does not hold with N.

    Attributes:
        calls: see `ToolCalls`.
    """

    calls: ToolCalls

    @property
    def num_requests(self) -> int | None:
        """See `SessionKind`."""
        return self.calls.steps.least + 1 if self.calls.steps.is_given else None

    def begin(self, place: Place, rng: Random) -> Arrival:
        """See `SessionKind`."""
        prompt, outputs, observations, waits_ps = self.calls.draw(rng)
        return DrawnLine(place, self.calls.system, [prompt, *observations], outputs, waits_ps).begin()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReWOO:
    """Reasoning without observation (Xu et al. 2023, arXiv:2305.18323): plan, call the tools, solve.

    The planner writes all calls at once, each of which may name the results of earlier ones; the tools are called one
    after another, and no model is asked between; the solver reads question, plan and results, and writes the answer. So
    two requests do what N + 1 of `react` do, with the same tokens written and the same calls: the tokens sent grow
    with N. The solver's prompt goes on from the planner's text here; where it has an instruction of its own, it shares
    less.

    Attributes:
        calls: see `ToolCalls`.
    """

    calls: ToolCalls

    @property
    def num_requests(self) -> int | None:
        """See `SessionKind`."""
        return 2

    def begin(self, place: Place, rng: Random) -> Arrival:
        """See `SessionKind`."""
        prompt, outputs, observations, waits_ps = self.calls.draw(rng)
        plan, answer = sum(outputs[:-1]), outputs[-1]
        line = DrawnLine(place, self.calls.system, [prompt, sum(observations)], [plan, answer], [sum(waits_ps)])
        return line.begin()
