"""Tables and lines of `paceline agree`: how far both worlds took the same steps."""

from collections.abc import Callable, Iterable, Sequence

from ..base.errors import counted
from ..runs.agreement import Agreement, Difference, RecordExit
from .tables import Grid, table

Decode = Callable[[list[int]], str]


def agreement_table(agreements: Iterable[Agreement]) -> Grid:
    """One row per policy: what was compared, and where the worlds first differ."""
    return table(map(_agreement_cells, agreements), texts=("first difference",))


def total_line(agreements: Sequence[Agreement]) -> str:
    """What was compared over all policies, and how many of them differ."""
    num_steps, num_tokens = (sum(row.num_steps for row in agreements), sum(row.num_tokens for row in agreements))
    differ = sum(row.difference is not None for row in agreements)
    verdict = f"policies that differ: {differ} of {len(agreements)}" if differ else "no difference"
    return f"compared {counted(num_steps, 'step')}, {counted(num_tokens, 'token')}: {verdict}"


def prefix_line(agreements: Sequence[Agreement]) -> str:
    """What was compared of prefix caches, operation by operation, over all policies."""
    asked = sum(row.num_asked_tokens for row in agreements)
    hit = sum(row.num_hit_tokens for row in agreements)
    evicted = sum(row.num_evicted_blocks for row in agreements)
    return (
        f"prefix caches alike in both worlds: {hit:,} of {counted(asked, 'token')} found, "
        f"{counted(evicted, 'block')} evicted"
    )


def record_exit_line(agreement: Agreement, left: RecordExit) -> str:
    """Where a policy left the record, and how much of the run is before that."""
    return (
        f"{agreement.policy}: left the record at step {left.step} of request {left.request_id} "
        f"({agreement.num_left} of {counted(agreement.num_requests, 'request')} left it; "
        f"{agreement.num_steps:,} of {counted(agreement.num_replayed, 'step')} compared)"
    )


def difference_text(agreement: Agreement, difference: Difference, decode: Decode) -> str:
    """The first difference of a policy with its surroundings, in lines; `decode` gives the text of token ids."""
    parts = {
        "both had committed": _text(difference.committed, decode),
        "simulator": difference.replayed.did,
        "runtime": difference.ran.did,
        "simulator commits next": _text(difference.replayed.tokens, decode),
        "runtime commits next": _text(difference.ran.tokens, decode),
    }
    width = max(len(name) for name in parts)
    first = (
        f"{agreement.policy}: request {difference.request_id}, step {difference.step}, after "
        f"{counted(difference.num_committed, 'committed token')}; answers differ in "
        f"{agreement.num_other_answers} of {counted(agreement.num_requests, 'request')}"
    )
    return "\n".join([first, *(f"  {name:<{width}}  {part}" for name, part in parts.items())])


def _agreement_cells(agreement: Agreement) -> dict[str, str]:
    first = agreement.difference
    return {
        "policy": agreement.policy,
        "requests": f"{agreement.num_requests:,}",
        "steps compared": f"{agreement.num_steps:,}",
        "tokens compared": f"{agreement.num_tokens:,}",
        "first difference": "none" if first is None else f"request {first.request_id}, step {first.step}",
    }


def _text(tokens: Sequence[int], decode: Decode) -> str:
    """Tokens as quoted text and as ids, since different tokens may read alike."""
    return f"{decode(list(tokens))!r} {list(tokens)}" if tokens else "nothing"
