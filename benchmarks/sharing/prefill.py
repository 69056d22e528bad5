"""Milliseconds and bytes of reading one prompt for several rollouts, with and without a prefix cache.

All requests are in one operation of the target, which ends with the first token of each. With a prefix cache one
forward reads the prompt, and a second one its last token for all other requests, as each draws its own next token. With
`--groups` all requests share only the first half of the prompt, and each group shares the second half, so that one more
forward reads the second halves of the other groups.

python benchmarks/sharing/prefill.py [--tokens 256] [--rollouts 16] [--groups 1] [--runs 15]
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.decoding.session import Session
from paceline.decoding.steps import Verify
from paceline.decoding.world import VerifyItem
from paceline.runtime.forward_kinds import SharedKind
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.studies.decode import load_pool
from paceline.traces.meta import Sampling
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.replays import in_turns
from shared.report import parser_of, show

BLOCK_TOKENS = 16


Prompt = tuple[int, ...]


def prompts_of(num_tokens: int, rollouts: int, groups: int) -> list[Prompt]:
    """The prompt of each rollout; those of one group are adjacent."""
    half = num_tokens // 2
    common = [7 + (31 * at) % 1000 for at in range(half)]
    return [
        (*common, *(7 + (31 * at + 17 * group) % 1000 for at in range(half, num_tokens)))
        for group in sorted(number % groups for number in range(rollouts))
    ]


def items_of(pool: ModelPool, prompts: Sequence[Prompt]) -> list[VerifyItem]:
    members = loaded_pool(pool)
    step = Verify(members.target)
    return [
        (Session(pool=members, request_id=str(number), tag="", prompt=prompt, budget=8, eos=frozenset()), step)
        for number, prompt in enumerate(prompts)
    ]


class Prefill(NamedTuple):
    """One operation that reads every request's prompt and writes its first token."""

    taken_s: float
    last_s: float  # of the last forward, which reads last tokens of other requests' prompts and writes their first ones
    num_fed: int  # tokens
    held_bytes: int  # in rows and taken blocks of the target


class Kind(NamedTuple):
    """The number of requests that read the prompt, and how: a `shared` of None means no prefix cache."""

    count: int
    shared: SharedKind | None


def prefill(pool: ModelPool, prompts: Sequence[Prompt], kind: Kind) -> Prefill:
    some = prompts[: kind.count]
    texts = {prompt[:end] for prompt in some for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS)}
    size = PrefixCacheSize(num_blocks=max(1, len(texts)), block_tokens=BLOCK_TOKENS)
    memory = Memory() if kind.shared is None else Memory(prefixes=size, shared_attention=kind.shared)
    world = TorchWorld(pool=pool, sampling=Sampling(mode="greedy"), memory=memory)
    items = items_of(pool, some)
    for session, _ in items:
        world.open(session)
    results = world.verify(len(pool.members) - 1, items)
    *others, last_s = [seconds for *_, seconds in results.forwards]
    fed = sum(new for _, new, _, _ in results.forwards)
    return Prefill(results.duration_s, last_s if others else 0.0, fed, world.manager.held_bytes)


def row(kind: Kind, found: Prefill, one_s: float) -> list[Cell]:
    apart_s = found.taken_s - found.last_s
    return [
        table_cell("requests", kind.count),
        table_cell("prefix cache", "off" if kind.shared is None else "on"),
        table_cell("attention", {"on": "once", "off": "row by row"}.get(kind.shared or "", "-")),
        table_cell("tokens fed", int(found.num_fed)),
        table_cell("ms", found.taken_s * 1e3, digits=1),
        table_cell("times one", found.taken_s / one_s, digits=2),
        table_cell("last tokens ms", found.last_s * 1e3, digits=1),
        table_cell("rest, times one", apart_s / one_s, digits=2),
        table_cell("MB held", found.held_bytes / 1e6, digits=1),
    ]


def main() -> None:
    parser = parser_of(__doc__)
    for name, default in (("--tokens", 256), ("--rollouts", 16), ("--groups", 1), ("--runs", 15)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    pool = load_pool(None, threads=1)
    many = options.rollouts
    prompts = prompts_of(options.tokens, many, options.groups)
    kinds = [Kind(1, None), Kind(1, "off"), Kind(many, None), Kind(many, "off"), Kind(many, "on")]
    taken = in_turns({kind: partial(prefill, pool, prompts, kind) for kind in kinds}, runs=options.runs, warm_ups=1)
    found = {kind: Prefill(*(median(column) for column in zip(*runs, strict=True))) for kind, runs in taken.items()}
    one_s = found[kinds[0]].taken_s
    what = "one prompt" if options.groups == 1 else f"{options.groups} prompts with one first half, each"
    title = f"{what} of {options.tokens} tokens, read by {pool.name}'s target, medians of {options.runs}"
    show(title, [row(kind, found[kind], one_s) for kind in kinds])


if __name__ == "__main__":
    main()
