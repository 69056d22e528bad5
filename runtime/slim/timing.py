"""Seconds of a verification by submodels of the target, beside the target's own."""

from collections.abc import Iterable
from dataclasses import replace

from ...progress import Progress, quiet
from ..pools.loaded_members import describe_model
from ..pools.pool import ModelPool
from ..pools.submodel import make_submodel
from ..timing.forward_seconds import measure_costs
from .frontier import VERIFIED_TOKENS
from .masks import Mask

# Whatever else the machine does adds seconds, and more to longer forwards: a median over a busy spell is no ratio of
# work. So there are many short spells, and the quickest counts.
SPELLS, REPEATS = 21, 3


def verify_seconds(pool: ModelPool, masks: Iterable[Mask]) -> dict[int, float]:
    """Seconds of a forward of `VERIFIED_TOKENS` tokens after a context: the quickest of what `measure_costs` says.

    They depend on how many layers are left out, not on which, so that one mask of each number is timed; all of them and
    the target take turns.

    Args:
        pool: its last member is the target.
        masks: of layers of the target.

    Returns:
        Seconds by number of layers left out; 0 is the target.
    """
    model = pool.target.model
    assert model is not None  # a pool file without is refused
    one_of = {len(mask): mask for mask in masks}
    members = [
        describe_model(str(skipped), "submodel", make_submodel(model, mask), None)
        for skipped, mask in sorted(one_of.items(), reverse=True)
    ]
    timed = replace(pool, members=(*members, replace(pool.target, name="0")))
    spells = []
    with Progress("timing forwards", SPELLS, unit="spells") as progress, quiet():
        for _ in range(SPELLS):
            tables = measure_costs(timed, new_tokens=(VERIFIED_TOKENS,), repeats=REPEATS)
            spells.append({int(name): table.seconds[0] for name, table in tables.items()})
            progress.advance()
    return {skipped: min(spell[skipped] for spell in spells) for skipped in spells[0]}
