"""The experiment's panels, and its answer in sentences."""

from collections.abc import Mapping, Sequence

from ...reports.interval import Interval
from ..findings.panel import Panel, Series
from .grid import SPECULATING, STEPS, Served
from .interaction import LESS, MORE, Interaction
from .on_models import InBothWorlds, term
from .serving import ATTENTION, CACHE, OFF, TWO
from .sizes import AtSize
from .uncached import Uncached


def panels(found: Sequence[Served], without: Sequence[Uncached], batches: Sequence[AtSize]) -> tuple[Panel, ...]:
    """Terms and speed-ups by workload, speed-ups by batch, and what drafts without prefix caches cost."""
    names = tuple(one.load.name for one in found)
    speed_ups = {
        "no sharing": [one.interaction(TWO, CACHE, OFF).without for one in found],
        CACHE: [one.interaction(TWO, CACHE, OFF).together for one in found],
        ATTENTION: [one.interaction(TWO, ATTENTION, OFF).together for one in found],
    }
    sizes = tuple(map(str, (one.size for one in batches)))
    by_batch = {
        "no sharing": [one.interaction.without for one in batches],
        CACHE: [one.interaction.together for one in batches],
    }
    terms = {chain: [one.interaction(chain, CACHE, OFF).term for one in found] for chain in SPECULATING}
    slower = {chain: [one.slowdown for one in without if one.chain == chain] for chain in SPECULATING}
    return (
        _panel("speculation beside a prefix cache over without", "interaction term", names, terms),
        _panel(f"{TWO} over the target alone", "speed-up", names, speed_ups),
        _panel(f"{TWO}, rollouts, at most so many at a time", "speed-up", sizes, by_batch, x_label="batch"),
        _panel("drafts without prefix caches over with", "time", names, slower),
    )


def _panel(
    title: str, y_label: str, names: tuple[str, ...], lines: Mapping[str, Sequence[Interval]], *, x_label: str = ""
) -> Panel:
    """Bars with intervals."""
    series = tuple(
        Series(
            name=name,
            x=tuple(map(float, range(len(names)))),
            y=tuple(one.mean for one in intervals),
            error=tuple(one.half_width for one in intervals),
        )
        for name, intervals in lines.items()
    )
    return Panel(title=title, x_label=x_label, y_label=y_label, series=series, kind="bar", categories=names)


def answer(
    found: Sequence[Served],
    without: Sequence[Uncached],
    batches: Sequence[AtSize],
    models: Mapping[tuple[str, str], InBothWorlds],
) -> str:
    """What was found, in sentences."""
    pairs = [(one, chain) for one in found for chain in SPECULATING]
    cache, attention = ([one.interaction(chain, *step) for one, chain in pairs] for step in STEPS)
    dear = max(without, key=lambda one: one.slowdown.mean)
    cost = f"{100 * (dear.slowdown.mean - 1):.0f}% ({dear.load}, {dear.chain})"
    smallest, largest = batches[0], batches[-1]
    return (
        f"A prefix cache makes speculation worth {_counted(cache)}, of {len(pairs)} pairs of workload and chain; the "
        f"interaction term is {_range(cache)}. Attention that reads common texts once makes it worth "
        f"{_counted(attention)}, {_range(attention)} over the cache alone. Rollouts served at most "
        f"{smallest.size} at a time have a term of {smallest.interaction.term.mean:.2f} under {TWO}, at most "
        f"{largest.size} {largest.interaction.term.mean:.2f}. Members below the target that keep no prefix cache of "
        f"their own cost up to {cost}. {_on_models(models)}"
    )


def _on_models(models: Mapping[tuple[str, str], InBothWorlds]) -> str:
    alike = [one for one in models.values() if one.agreement.difference is None]
    steps = sum(one.agreement.num_steps for one in models.values())
    terms = [
        f"{chain} {term(models, chain, 'measured'):.2f}, simulated {term(models, chain, 'simulated'):.2f}"
        for chain in SPECULATING
    ]
    return (
        f"On the models {len(alike)} of {len(models)} runs took the same {steps:,} steps and found the same tokens as "
        f"their replay; measured terms of the cache are: {'; '.join(terms)}."
    )


def _counted(terms: Sequence[Interaction]) -> str:
    more, less = (sum(term.words == words for term in terms) for words in (MORE, LESS))
    return f"more in {more}, less in {less}, and chance leaves {len(terms) - more - less} open"


def _range(terms: Sequence[Interaction]) -> str:
    means = [term.term.mean for term in terms]
    return f"{min(means):.2f} to {max(means):.2f}"
