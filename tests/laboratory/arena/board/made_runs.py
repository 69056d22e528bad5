"""Runs of an arena that nobody played."""

from hypothesis import strategies as st
from paceline_laboratory.arena.cells import ArenaCell, Split
from paceline_laboratory.arena.store import BEST_STATIC, Played

SPLIT = Split(tune=("home",), report=("away", "abroad"))
CELLS = tuple(
    ArenaCell(recording=recording, ladder=ladder, load=load)
    for recording in ("home", "away", "abroad")
    for ladder in ("even", "steep")
    for load in ("batch-1", "half")
)
POLICIES = ("specrouter", "two-level", "plain", "greedy")
SEEDS = (0, 1)


def run_of(cell, policy, seed, tokens_per_s, *, early=1.0, tokens=6_000, lossy=False):
    """A run at a speed, `early` times as slow in its first 1,000 tokens."""
    at_s = [count * early / tokens_per_s for count in (100, 1_000)]
    seconds = (tokens - 1_000 + 1_000 * early) / tokens_per_s
    arriving = cell.load == "half"
    return Played(
        cell=cell,
        policy=policy,
        seed=seed,
        tokens=tokens,
        seconds=seconds,
        seconds_at=(None, None, None) if arriving else (*at_s, None),
        mean_e2e_s=1.0,
        exact_share=None if arriving else 1.0,
        path="stepped",
        chain="draft:4/target" if policy == BEST_STATIC else "",
        lossy=lossy,
        same_share=0.75 if lossy and not arriving else None,
        divergences=6 if lossy and not arriving else None,
        think_us=9.0,
    )


SPEEDS = st.floats(0.5, 2.0)


@st.composite
def runs(draw):
    """Runs of all policies in all cells, some left out; `greedy` is lossy."""
    found = []
    for cell in CELLS:
        for policy in (BEST_STATIC, *POLICIES):
            if policy in (BEST_STATIC, "plain") or draw(st.integers(0, 4)):
                speed, early = draw(SPEEDS), draw(SPEEDS)
                found += [run_of(cell, policy, seed, speed, early=early, lossy=policy == "greedy") for seed in SEEDS]
    return found
