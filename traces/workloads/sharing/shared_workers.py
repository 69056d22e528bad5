"""`shared-workers`: several workers that write into one context at once."""

from dataclasses import dataclass
from itertools import count
from random import Random

from ..arrival import Arrival
from ..generated.lengths import Length
from ..graphs import Node, SessionGraph, Waits
from ..sessions import Turn, runs_of
from ..texts import Text
from .session_kind import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWorkers:
    """Workers on one problem that read each other's text, as in Hogwild! inference (arXiv:2504.06261).

    The context is the problem, then what workers wrote, each at a place of its own: in round r worker w has the w-th
    place behind all that was written in the rounds before. In each round all workers read the whole context, and write
    side by side; a round begins when the one before is over.

    Hogwild! lets workers see each other's newest token at once, and turns cached keys to their new places instead of
    reading the text again. A cache that is found by prefix cannot: what worker 0 writes follows all that it has read,
    so its keys and values are those of the context; what the others write beside it has, in the context, worker 0's
    text before it, so every worker reads it again. What was read in an earlier round is found. So this is what Hogwild!
    costs on an engine without such turning, with a round in place of a token.

    Attributes:
        workers: >= 1.
        rounds: >= 1.
        prompt: tokens of the problem.
        output: tokens that a worker writes in a round.
    """

    workers: int
    rounds: int
    prompt: Length
    output: Length

    @property
    def num_requests(self) -> int | None:
        """See `SessionKind`."""
        return self.workers * self.rounds

    def begin(self, place: Place, rng: Random) -> Arrival:
        """See `SessionKind`."""
        ids = count(place.first_id)
        prompt = self.prompt.draw(rng)
        place.check_units(prompt // place.unit_tokens)
        context = Text(unit_tokens=place.unit_tokens).grown(prompt, ids)
        nodes: list[Node] = []
        for number in range(self.rounds):
            outputs = [self.output.draw(rng) for _ in range(self.workers)]
            # Rounds begin together: the first at once with the session, others with the ends of the one before.
            before = tuple(Waits(len(nodes) - 1 - worker) for worker in range(self.workers)) if number else ()
            place.check_units((context.num_tokens + sum(outputs)) // place.unit_tokens)
            written = context.grown(outputs[0], ids)
            for worker, tokens in enumerate(outputs):
                waits = before if number or not worker else (Waits(0, 0),)
                name = f"{place.number}/{number}/{worker}" if nodes else str(place.number)
                turn = Turn(
                    request_id=name,
                    wait_ps=0,
                    prompt_tokens=context.num_tokens,
                    output_tokens=tokens,
                    new_blocks=runs_of(context.ids),
                )
                answer = () if worker else written.ids[len(context.ids) :]
                nodes.append(Node(turn=turn, waits=waits, answer=answer))
            context = written.grown(sum(outputs[1:]), ids)
        return SessionGraph(nodes=tuple(nodes), tag=place.tag, slo=place.slo).begin(place.arrives_ps)
