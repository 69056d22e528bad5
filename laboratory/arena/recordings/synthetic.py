"""Synthetic recordings of the arena: what their agreement depends on is stated, tag by tag."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ....traces.synthetic.generator import make_trace
from ....traces.synthetic.spec import SyntheticSpec
from ....traces.tries.store import write_trace
from ..asked.code_version import code_version
from .joined import as_one, in_turn
from .source import QuickSource, Shelf


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSource(QuickSource):
    """A recording of several tags, a request of each in turn.

    Attributes:
        spec: of every tag but for its acceptance: `requests` and `tokens` are those of one tag.
        acceptance: by tag, S rates of equal next tokens with the target on the trunk (S members below the target).
    """

    spec: SyntheticSpec
    acceptance: Mapping[str, tuple[float, ...]]

    def recipe(self) -> object:
        """The spec, the rates by tag, in their order, and the code that draws."""
        rates = [list(each) for each in self.acceptance.items()]
        return {"spec": asdict(self.spec), "acceptance": rates, "code": code_version([make_trace.__module__])}

    def make(self, out: Path, *, name: str, shelf: Shelf) -> None:
        """Write it; every tag has a seed of its own."""
        del shelf
        recordings = [make_trace(spec) for spec in self.specs(name)]
        origin = f"one of each in turn: {'; '.join(each.meta.origin for each in recordings)}"
        requests = in_turn([each.requests for each in recordings])
        write_trace(as_one(recordings, requests, name=name, origin=origin), out)

    def specs(self, name: str) -> tuple[SyntheticSpec, ...]:
        """One for each tag."""
        return tuple(
            replace(self.spec, name=f"{name}-{tag}", tags=(tag,), acceptance=rates, seed=self.spec.seed + number)
            for number, (tag, rates) in enumerate(self.acceptance.items())
        )


def flat() -> SyntheticSource:
    """Members agree independently of all that was before, on and off the trunk."""
    rates = {"easy": (0.85, 0.93), "usual": (0.65, 0.82), "hard": (0.4, 0.62)}
    return SyntheticSource(spec=_spec(requests=28, seed=100, depth_decay=0.0, reach=32), acceptance=rates)


def deep() -> SyntheticSource:
    """The longer a run of agreement, and the further off the trunk, the more often the next token is another."""
    rates = {"easy": (0.7, 0.78), "usual": (0.55, 0.7), "hard": (0.35, 0.5)}
    return SyntheticSource(spec=_spec(requests=16, seed=200, depth_decay=0.1, run_decay=0.08), acceptance=rates)


def bursty() -> SyntheticSource:
    """Easy and hard stretches: agreement at neighbouring tokens has correlation 0.6."""
    rates = {"easy": (0.8, 0.9), "usual": (0.6, 0.75), "hard": (0.35, 0.55)}
    return SyntheticSource(spec=_spec(requests=28, seed=300, autocorrelation=0.6, reach=24), acceptance=rates)


def ladder() -> SyntheticSource:
    """Four models that agree from little to much, with the memory that real texts have."""
    rates = {"easy": (0.55, 0.75, 0.92), "usual": (0.4, 0.6, 0.85), "hard": (0.25, 0.5, 0.75)}
    spec = _spec(requests=16, seed=400, models=("draft", "mid", "slim", "target"), autocorrelation=0.15)
    return SyntheticSource(spec=spec, acceptance=rates)


def _spec(
    *,
    requests: int,
    seed: int,
    models: tuple[str, ...] = ("draft", "mid", "target"),
    depth_decay: float = 0.05,
    run_decay: float = 0.0,
    autocorrelation: float = 0.0,
    reach: int = 16,
) -> SyntheticSpec:
    """Of one tag; its acceptance is set by tag. A probability tells of it about as much as in `pico`.

    With the reach of the shipped recordings, a router that drafts far on easy text at steep prices leaves the record of
    the flat one in 8% of its decisions; so the longer a recording's runs of agreement, the further it reaches.
    """
    return SyntheticSpec(
        requests=requests,
        tokens=128,
        models=models,
        acceptance=(0.5,) * (len(models) - 1),
        depth_decay=depth_decay,
        run_decay=run_decay,
        autocorrelation=autocorrelation,
        reach=reach,
        run=reach // 2,
        seed=seed,
    )
