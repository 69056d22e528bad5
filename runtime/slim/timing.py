"""Seconds of a verification by submodels of the target, beside the target's own."""

from collections.abc import Iterable
from dataclasses import replace

from ..measure import measure_costs
from ..pools.loaded_members import describe_model
from ..pools.pool import ModelPool
from ..pools.submodel import make_submodel
from .frontier import VERIFIED_TOKENS
from .masks import Mask

# There is one point to time, so that many rounds are cheap, and ratios of neighbours are what is wanted.
REPEATS = 61


def verify_seconds(pool: ModelPool, masks: Iterable[Mask], *, show_progress: bool = True) -> dict[int, float]:
    """Median seconds of a forward of `VERIFIED_TOKENS` tokens behind a context, as `measure_costs` times it.

    They depend on how many layers are left out, not on which, so that one mask of each number is timed; all of them and
    the target take turns.

    Args:
        pool: its last member is the target.
        masks: of layers of the target.
        show_progress: draw a bar where stderr is a terminal.

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
    tables = measure_costs(timed, new_tokens=(VERIFIED_TOKENS,), repeats=REPEATS, show_progress=show_progress)
    return {int(name): table.seconds[0] for name, table in tables.items()}
