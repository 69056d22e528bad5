"""The closure as it is defined, enumerated path by path over any functions that answer "next token after this"."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paceline.traces.meta import Closure

Context = tuple[int, ...]
NextToken = Callable[[Context], int]


@dataclass(frozen=True)
class Definition:
    """Models (smallest first, target last), the closure, and where texts end; contexts are tokens after a prompt."""

    models: Sequence[NextToken]
    closure: Closure
    max_new_tokens: int
    eos: int

    def open_ended(self, context: Context) -> bool:
        return len(context) < self.max_new_tokens and context[-1:] != (self.eos,)

    def trunk(self) -> list[Context]:
        contexts: list[Context] = [()]
        while self.open_ended(contexts[-1]):
            contexts.append((*contexts[-1], self.models[-1](contexts[-1])))
        return contexts

    def contexts(self) -> set[Context]:
        return self.monotone() if self.closure.kind == "monotone" else self.full()

    def run_of(self, model: NextToken, context: Context, most: int) -> Iterator[Context]:
        """Every context that 1..most of the model's own tokens lead to."""
        for _ in range(most):
            if not self.open_ended(context):
                return
            context = (*context, model(context))
            yield context

    def monotone(self) -> set[Context]:
        """A first run of any length, then runs of strictly smaller models."""
        trunk = self.trunk()
        found = set(trunk)

        def visit(context: Context, above: int, left: int) -> None:
            for index in range(above):
                for reached in self.run_of(self.models[index], context, min(self.closure.run, left)):
                    found.add(reached)
                    visit(reached, index, left - (len(reached) - len(context)))

        for start in trunk:
            for index in range(len(self.models) - 1):
                for reached in self.run_of(self.models[index], start, self.closure.reach):
                    if reached[: len(start) + 1] in trunk:
                        break
                    found.add(reached)
                    visit(reached, index, self.closure.reach - (len(reached) - len(start)))
        return found

    def full(self) -> set[Context]:
        """Any model's token at any step."""
        trunk = self.trunk()
        found = set(trunk)

        def visit(context: Context, left: int) -> None:
            if left == 0 or not self.open_ended(context):
                return
            for model in self.models:
                child = (*context, model(context))
                if child not in trunk:
                    found.add(child)
                    visit(child, left - 1)

        for start in trunk:
            visit(start, self.closure.reach)
        return found
