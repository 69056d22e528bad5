"""Find slim verifiers of a pool's target and put them into its file: what `paceline pool search-slim` does."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..arguments import ArgumentError
from ..counted import counted
from ..reports.tables.grid import Grid, table
from ..reports.tables.printed import Printed
from ..runtime.pools.pool_file import read_pool_file
from ..runtime.prompts import PROMPTS_FILE, Prompt, prompts_of, read_prompts
from ..runtime.slim.find_slims import find_slims
from ..runtime.slim.frontier import VERIFIED_TOKENS, Frontier, SlimFound
from ..runtime.slim.mask_search import Budget
from ..runtime.slim.masks import slim_name
from ..runtime.slim.pool_text import add_slims, check_names, masks_of
from ..runtime.timing.forward_seconds import hardware
from ..shipped import is_shipped, pool_path
from ..whole_files import place_of, write_whole
from .pool import load_pool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SlimsFound(Printed):
    """Slim verifiers that were found and written; prints as `paceline pool search-slim` does.

    Attributes:
        out: pool file that holds them now.
        frontier: what was measured.
        meta: what was asked for and where it was measured.
        pool: name of the pool.
        target: name of its target.
    """

    out: Path
    frontier: Frontier
    meta: dict[str, Any]
    pool: str
    target: str

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/slim.md): what was asked for, every mask of the frontier, and the target."""
        figures = asdict(self.frontier)
        target = {"name": self.target, "num_layers": self.frontier.num_layers, "seconds": figures.pop("target_s")}
        verified = {"verified_tokens": VERIFIED_TOKENS}
        return {"pool": self.pool, "out": str(self.out), **self.meta, **figures, "target": target, **verified}

    def tables(self) -> Sequence[Grid]:
        """Masks from the fastest to the target."""
        frontier = self.frontier
        title = (
            f"pool {self.pool}: {counted(frontier.num_trials, 'mask')} tried on "
            f"{counted(frontier.num_tokens, 'token')} of {counted(self.meta['prompts'], 'prompt')}; "
            f"ms of a forward of {VERIFIED_TOKENS} tokens"
        )
        target = {
            "member": self.target,
            "layers left out": "none",
            "share": "0%",
            "TVD": "0.0000",
            "unequal argmax": "0.0%",
            "ms": f"{1000 * frontier.target_s:.3f}",
            "of target": "100%",
        }
        rows = [*map(_cells, self._fastest_first()), target]
        return [table(rows, texts=("layers left out", "found by", "dominated"), title=title)]

    def lines(self) -> Sequence[str]:
        """Which members the file has now."""
        return [f"{self.out}: {', '.join(each.name for each in self.frontier.found)} written"]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each mask from the fastest on; columns as in docs/slim.md, `found[]`."""
        return [asdict(row) for row in self._fastest_first()]

    def _fastest_first(self) -> list[SlimFound]:
        return sorted((*self.frontier.found, *self.frontier.baselines), key=lambda row: (row.seconds, row.tvd))


def find_slim(
    pool: Path | str | None,
    prompts: str | Path | Sequence[Prompt | str] | None = None,
    *,
    shares: Sequence[float] = (0.45,),
    trials: int = 60,
    random_trials: int | None = None,
    max_new_tokens: int = 64,
    limit: int | None = 48,
    seed: int = 0,
    threads: int = 1,
    chat: bool = False,
    out: Path | None = None,
    replace: bool = False,
) -> SlimsFound:
    """Search masks of layers that keep the target's distributions, and write the best of each share as a member.

    Random search, then Bayesian (which needs the extra `search`); all masks where they are no more than `trials`.

    Args:
        pool: a pool.toml or its folder; None is the shipped pool, whose file is not written to.
        prompts: whose continuations by the target distances are measured on; None takes those beside the pool file.
        shares: of the target's layers to leave out, each in (0, 1).
        trials: masks to try for each share, >= 1.
        random_trials: of these drawn evenly, before the search learns; a third if None.
        max_new_tokens: longest continuation, >= 1.
        limit: only the first so many prompts, >= 1; all if None.
        seed: of the draws, >= 0.
        threads: CPU threads of torch, >= 1.
        chat: put prompts as questions of a dialogue, by the chat template of the pool's tokenizer.
        out: pool file to write; the one that was read if None.
        replace: replace slim verifiers of the same names.

    Raises:
        PoolFileError: a broken pool file, or a name that is taken.
        ValueError: a file that cannot be written, or shares, trials or prompts that cannot be searched with.
        ModuleNotFoundError: Bayesian search without the extra `search`.
    """
    file, content = read_pool_file(pool_path(pool))
    target_file = _writable(file if out is None else out, file, shipped_pool=is_shipped(file))
    check_names(file, content, [slim_name(share) for share in shares], replace=replace)
    requests = (_own_prompts(file) if prompts is None else prompts_of(prompts))[:limit]
    drawn = max(1, trials // 3) if random_trials is None else random_trials
    budget = Budget(trials=trials, random_trials=drawn, seed=seed)
    models = load_pool(file, threads=threads, chat=chat)
    baselines = masks_of(content)
    frontier = find_slims(models, requests, shares, budget, max_new_tokens=max_new_tokens, baselines=baselines)
    sizes = {member.name: member.num_parameters for member in models.members}
    write_whole(target_file, add_slims(file, content, frontier.found, sizes, folder=target_file.parent))
    asked = {"prompts": len(requests), "max_new_tokens": max_new_tokens, "threads": threads, "chat": chat}
    measured = hardware(None if models.target.model is None else models.target.model.device)
    meta = {**asked, **asdict(budget), "hardware": measured}
    return SlimsFound(out=target_file, frontier=frontier, meta=meta, pool=models.name, target=models.target.name)


def _own_prompts(file: Path) -> tuple[Prompt, ...]:
    """Those beside the pool file."""
    path = file.parent / PROMPTS_FILE
    if not path.is_file():
        raise ArgumentError(f"`prompts` must be given for a pool without {PROMPTS_FILE} beside its file, got none")
    return read_prompts(path)


def _writable(out: Path, file: Path, *, shipped_pool: bool) -> Path:
    """Refuse, before a long search, a file that could not be written after it."""
    if out.is_dir():
        raise ArgumentError(f"`out` must name a file, got the folder {out}")
    if not out.parent.is_dir():
        raise ArgumentError(f"`out` {out}: no folder {out.parent}")
    own = out.exists() and out.samefile(file)
    if own and shipped_pool:
        raise ArgumentError(f"`out` must name another file than the shipped pool's, got {out}")
    if out.exists() and not own:
        raise ArgumentError(f"`out` {out}: exists already, and is not the pool file")
    if not os.access(place_of(out).parent, os.W_OK):
        raise ArgumentError(f"`out` {out}: cannot be written")
    return out


def _cells(row: SlimFound) -> dict[str, str]:
    return {
        "member": row.name,
        "layers left out": " ".join(map(str, row.skip_layers)),
        "share": f"{row.share:.0%}",
        "TVD": f"{row.tvd:.4f}",
        "unequal argmax": f"{row.disagreement:.1%}",
        "ms": f"{1000 * row.seconds:.3f}",
        "of target": f"{row.seconds_share:.0%}",
        "found by": row.how,
        "dominated": "yes" if row.dominated else "no",
    }
