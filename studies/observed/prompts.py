"""Which prompt each request of a workload gets: all of its tag in turn, in an order that the seed draws."""

from collections.abc import Sequence
from random import Random

from ...arguments import ArgumentError
from ...runtime.prompts import Prompt
from ...traces.workloads.arrival import Arrival


class PromptsInTurn:
    """Hands out prompts; none comes twice before all of its tag came once. Not safe for threads. Final.

    Args:
        prompts: at least one.
        seed: of their order.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        self._of_tag: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            self._of_tag.setdefault(prompt.tag, []).append(prompt)
        self._of_tag[""] = list(prompts)
        for tag, listed in self._of_tag.items():
            Random(f"{seed}/{tag}").shuffle(listed)
        self._given = dict.fromkeys(self._of_tag, 0)

    def next_for(self, arrival: Arrival) -> Prompt:
        """The next one of its tag; raises ArgumentError where no prompt has it."""
        listed = self._of_tag.get(arrival.tag)
        if listed is None:
            known = ", ".join(sorted(filter(None, self._of_tag)))
            raise ArgumentError(
                f"`prompts` must have one of each tag of the workload, has {known}, got {arrival.tag!r}; `tag` gives "
                "all requests one"
            )
        number = self._given[arrival.tag]
        self._given[arrival.tag] = number + 1
        return listed[number % len(listed)]

    @property
    def num_repeated(self) -> int:
        """Requests that got a prompt which another one had got before."""
        return sum(max(0, given - len(self._of_tag[tag])) for tag, given in self._given.items())
