"""Seconds of a serving engine in addition to a device's published figures (`engines.toml`), and how sure they are.

The figures were fitted to measured rows of engines by `benchmarks/engines/fit.py`; docs/fidelity.md says how well they
predict rows that they were not fitted to.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ...base.errors import ArgumentError, check_within
from ...traces.meta import ModelInfo

BARE = "bare"  # without an engine: the roofline of published peaks
DEFAULT_ENGINE = "vllm"
PAGE = "docs/fidelity.md"
# By engine, releases before which it has the terms of another name: vLLM plans steps ahead since 0.14, and the few
# measured rounds of 0.8 took as long as 0.9's. Builds from its source call themselves 0.1.
RELEASES = {"vllm": (((0, 10), "vllm-0.9"), ((0, 14), "vllm-0.12"))}
# By engine, what was measured of drafts by a model of several layers, and of those copied from the text
# (docs/fidelity.md).
DRAFT_MODELS = {
    "vllm": "their seconds are of two models under 0.15 and 0.27; 0.16 to 0.24 ran them without CUDA graphs, and one "
    "that was measured took 6 to 7 times as long"
}
COPIES = {"vllm": "of a target of 70 billion under 0.23", "sglang": "of Qwen3-8B under 0.5.9"}
OFTEN = 0.1  # share of measured gains with the wrong sign above which a remark says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Factors between which nine in ten measured rows lay, over the predictions of fits that had not seen them."""

    low: float  # in [0, 1]; above 0 for plain steps
    high: float  # >= 1

    @property
    def bounds(self) -> tuple[float, float]:
        """Both."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sure:
    """How sure the seconds of a group of targets are."""

    of: str  # the group, in words
    of_rounds: str  # the group whose rounds were measured
    new: str = "new to the fit"  # what of the measured rounds fits had not seen, in words
    plain: Residuals  # of the target's own steps
    rounds: Residuals  # of an engine's seconds of a round outside forwards
    gains: int  # measured gains of speculation, >= 0
    losses: int  # of these, losses where a gain was predicted

    def words(self) -> tuple[str, ...]:
        """What readers of the seconds must know, a line each."""
        measured = (
            f"in nine of ten measurements of {self.of}, a token took {self.plain} times the predicted seconds (models "
            f"new to the engine), what a round adds {self.rounds} times ({self.new})"
        )
        if self.losses <= OFTEN * self.gains:
            return (measured,)
        lost = f"{self.losses} of {self.gains} that were measured are losses where a gain is predicted"
        return measured, f"gains of {self.of_rounds} are predicted too high: {lost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTerms:
    """Seconds and shares of peak of one engine on one class of devices."""

    name: str
    version: str  # of the fitted rows
    bandwidth: float  # share of peak memory bandwidth, in (0, 1]
    arithmetic: float  # share of the peak of 16 and 32 bit units, in (0, 1]
    narrow: float  # of the peak of fp8, fp4 and int8 units, in (0, 1]
    link: float  # of the link's bandwidth, in (0, 1]
    alike: float  # of the tokens that a row is fed beyond its first, that use no experts of their own, in [0, 1]
    step_s: float  # per forward of the target: the host's, between two of them
    # share, in [0, 1], of the heads of queries beyond the first to share one of keys and values, that read these again
    # where a row is fed several tokens: by kernels of attention that do not pack heads
    rereads: float
    width_s: float  # per layer of any member and unit of its hidden size, in place of the device's launches
    reduce_s: float  # per all-reduce and doubling of the devices, in place of the device's latency
    expert_layer_s: float  # per layer of quantised experts, in addition
    bf16_expert_layer_s: float  # per layer of experts that are not quantised
    row_s: float  # per row of the target's forward
    draft_step_s: float  # per forward of a member that drafts
    draft_row_s: float  # per row of it: its token is chosen, and judged later
    wide_s: float  # per forward of the target that feeds a row several tokens: a verification, a prompt's chunk
    draft_layer_s: float  # per forward and layer of a drafter with several layers, in addition
    # per round whose drafts are copied from the text: the host's, which then plans no step ahead; for each layer of the
    # target, whose steps then are no single CUDA graph; and for each row
    lookup_round_s: float
    lookup_layer_s: float
    lookup_row_s: float
    rounds_measured: bool  # on such a device; else rounds are the mean of other engines', or as on other devices
    dense: Sure  # of targets without experts
    mixture: Sure  # of mixtures of experts
    given: str = ""  # shares of peak given in place of the fit's, in words

    @property
    def label(self) -> str:
        """Its name in the names of costs."""
        return f"{self.name}, {self.given}" if self.given else self.name

    def sure(self, target: ModelInfo) -> Sure:
        """How sure seconds of such a target are."""
        return self.dense if target.experts is None else self.mixture

    def notes(self, target: ModelInfo) -> tuple[str, ...]:
        """What readers of its seconds must know."""
        sure = self.sure(target)
        measured, *lost = sure.words()
        notes = [f"seconds fitted to {self.name.partition('-')[0]} {self.version}; {measured}", *lost]
        if self.given:
            notes.append(f"shares of peak as given ({self.given}); ranges are still those of {self.name}'s own fit")
        return (*notes, *self.elsewhere(sure))

    def elsewhere(self, sure: Sure) -> tuple[str, ...]:
        """That no rounds were measured on such a device; () if they were."""
        if self.rounds_measured:
            return ()
        whose = "" if sure.of_rounds == sure.of else f", of {sure.of_rounds}"
        return (f"no rounds of {self.name} were measured on such a device: they are taken from elsewhere{whose}",)

    def experts_s(self, model: ModelInfo) -> float:
        """Seconds of a forward of any member in addition, for its layers of experts."""
        if model.experts is None:
            return 0.0
        narrow = model.quantised is not None and model.quantised.experts
        return model.experts.layers * (self.expert_layer_s if narrow else self.bf16_expert_layer_s)

    def drafting_s(self, layers: int) -> float:
        """Seconds of a forward of a drafter of some layers, beside its rows and what all members take by layer."""
        return self.draft_step_s + (layers * self.draft_layer_s if layers > 1 else 0.0)

    def lookup_terms(self, layers: int) -> tuple[float, float]:
        """Seconds of a round whose drafts are copied, for a target with this number of layers: (once, for each row)."""
        return self.lookup_round_s + layers * self.lookup_layer_s, self.lookup_row_s

    def plain_times(self, factor: float) -> "EngineTerms":
        """The same engine, with the target's plain steps and prompts `factor` times as long."""
        return replace(
            self,
            bandwidth=self.bandwidth / factor,
            arithmetic=self.arithmetic / factor,
            narrow=self.narrow / factor,
            link=self.link / factor,
            step_s=self.step_s * factor,
            width_s=self.width_s * factor,
            reduce_s=self.reduce_s * factor,
            expert_layer_s=self.expert_layer_s * factor,
            bf16_expert_layer_s=self.bf16_expert_layer_s * factor,
            row_s=self.row_s * factor,
        )

    def rounds_times(self, factor: float) -> "EngineTerms":
        """The same engine, with rounds' seconds beyond the target's plain step multiplied by `factor`."""
        return replace(
            self,
            draft_step_s=self.draft_step_s * factor,
            draft_row_s=self.draft_row_s * factor,
            wide_s=self.wide_s * factor,
            draft_layer_s=self.draft_layer_s * factor,
            lookup_round_s=self.lookup_round_s * factor,
            lookup_layer_s=self.lookup_layer_s * factor,
            lookup_row_s=self.lookup_row_s * factor,
        )


def of_other_rounds(engine: str, drafters: Iterable[ModelInfo], copies: Iterable[str]) -> tuple[str, ...]:
    """What is known of rounds with such drafters, and with members that copy text; () if all are heads."""
    deep, copies = [each.name for each in drafters if each.layers > 1], list(copies)
    told = DRAFT_MODELS.get(engine, "none of a model was measured, so they take vLLM's seconds by layer")
    models = f"drafts by {', '.join(deep)}: ranges are of heads of one layer; {told}"
    of = COPIES.get(engine, "not measured, but as of other engines")
    copied = f"copies by {', '.join(copies)}: ranges are of heads; seconds of a round are {of}"
    return (*([models] if deep else []), *([copied] if copies else []))


# Terms of a share of peak, by its name in options.
SHARES = {"bandwidth": ("bandwidth",), "flops": ("arithmetic", "narrow")}


def check_shares(efficiency: Mapping[str, float]) -> str:
    """Shares of peak in words; raises ArgumentError for a bad or unknown one."""
    for name, share in efficiency.items():
        if name not in SHARES:
            raise ArgumentError(f"`efficiency` must name {' or '.join(SHARES)}, got {name!r}")
        check_within(f"`efficiency` of {name}", share, "(0, 1]")
    return ", ".join(f"{name} {share:g}" for name, share in efficiency.items())


def with_shares(terms: EngineTerms, efficiency: Mapping[str, float]) -> EngineTerms:
    """The engine with given shares of peak in place of the fit's; raises as `check_shares`."""
    given = check_shares(efficiency)
    shares: dict[str, Any] = {term: share for name, share in efficiency.items() for term in SHARES[name]}
    return replace(terms, given=given, **shares)


@cache
def engines() -> Mapping[str, Mapping[str, EngineTerms]]:
    """The terms of every engine, by its name and the device's."""
    table = tomllib.loads(files(__package__).joinpath("engines.toml").read_text(encoding="utf-8"))
    found = {}
    for name, own in table["engines"].items():
        measured = own.pop("rounds_measured")
        sure = {kind: sure_of(table["sure"], name if kind in measured else "") for kind in table["classes"]}
        by_class = {
            kind: EngineTerms(
                name=name,
                dense=for_class(sure[kind]["dense"], kind),
                mixture=for_class(sure[kind]["mixture"], kind),
                **table["shared"],
                **{key: figure[kind] if isinstance(figure, dict) else figure for key, figure in own.items()},
                width_s=there["width_s"],
                rounds_measured=kind in measured,
            )
            for kind, there in table["classes"].items()
        }
        found[name] = {
            device: by_class[kind] for kind, there in table["classes"].items() for device in there["devices"]
        }
    return found


def for_class(sure: Mapping[str, Sure], kind: str) -> Sure:
    """Of a class of devices; of one without rows that of the first class."""
    return sure.get(kind) or next(iter(sure.values()))


def sure_of(table: Mapping[str, Any], engine: str) -> dict[str, dict[str, Sure]]:
    """By group of targets and class of devices, how sure seconds are.

    Of rounds it is that of `engine` if it has enough of its own, else ("" too) the wide one.
    """

    def read(one: Mapping[str, Any]) -> Sure:
        figures = {name: figure for name, figure in one.items() if name != "own"} | one.get("own", {}).get(engine, {})
        return Sure(**figures | {part: Residuals(**figures[part]) for part in ("plain", "rounds")})

    return {group: {kind: read(one) for kind, one in by_class.items()} for group, by_class in table.items()}


def of_release(engine: str, version: str) -> str:
    """The name that an engine of this version has in the table: its own, or that of older releases."""
    found = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    release = (0, 1) if found is None else (int(found[1]), int(found[2]))
    return next((name for before, name in RELEASES.get(engine, ()) if (0, 1) < release < before), engine)


def engine_terms(
    engine: str | None, device: str, *, source: str | None = None, software: Mapping[str, str] | None = None
) -> EngineTerms | None:
    """The terms of an engine on a device of the sheet; None of a bare roofline.

    Args:
        engine: its name, "bare", or None: the engine of an imported log, else vLLM, where known on the device.
        device: its name there.
        source: the format of the log that a recording was imported from, as "vllm-log"; None of one made here.
        software: versions that the log states, by name.

    Raises:
        ArgumentError: an engine that has no terms, or none on that device.
    """
    if engine == BARE:
        return None
    known = engines()
    if engine is None:
        logged = "" if source is None else source.partition("-")[0]
        named = of_release(logged, (software or {}).get(logged, ""))
        return known[named if named in known else DEFAULT_ENGINE].get(device)
    if engine not in known:
        names = f"{', '.join(known)} or {BARE}"
        raise ArgumentError(f"`engine` must be {names} (published peaks, a lower bound; {PAGE}), got {engine!r}")
    if device not in known[engine]:
        raise ArgumentError(
            f"`engine` {engine} has terms on {', '.join(known[engine])} only, got {device}; `engine` {BARE} takes "
            "published peaks, a lower bound"
        )
    return known[engine][device]
