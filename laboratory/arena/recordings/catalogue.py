"""Every recording of the arena by its name: what it is, and how it is made."""

from collections.abc import Mapping
from dataclasses import dataclass

from .imported import hsd, spec_bench
from .phases import StaleSource, TurnoverSource
from .pools.recipe import pool_recipe
from .shipped_source import ShippedSource
from .source import Source
from .synthetic import bursty, deep, flat, ladder
from .trained_source import TrainedSource

TRAINED = (
    "llama-plain",
    "neox-near",
    "gpt2-middle",
    "gpt2-weak",
    "qwen3-strong",
    "gemma-specialists",
    "mixed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One recording.

    Attributes:
        what: one line that says what is special about it.
        source: makes it.
    """

    what: str
    source: Source


def catalogue() -> Mapping[str, Entry]:
    """By name, in the order in which the page lists them."""
    return {
        "pico": Entry(what="the shipped recording", source=ShippedSource(title="pico")),
        "pico-coupled": Entry(what="the shipped recording, sampled", source=ShippedSource(title="pico-coupled")),
        **{name: Entry(what=pool_recipe(name).what, source=TrainedSource(pool=name)) for name in TRAINED},
        "llama-stale": Entry(
            what="as llama-plain; after half of the requests the draft is one trained to agree in 40%, not 70%",
            source=StaleSource(fresh="llama-plain", stale=TrainedSource(pool="llama-plain", goals={"draft": 0.4})),
        ),
        "mixed-stale": Entry(
            what="as mixed; after half of the requests the draft is one trained to agree in 35%, not 63%",
            source=StaleSource(fresh="mixed", stale=TrainedSource(pool="mixed", goals={"draft": 0.35})),
        ),
        "qwen3-turnover": Entry(
            what="as qwen3-strong, dialogues and edits first, then word problems and translations",
            source=TurnoverSource(recording="qwen3-strong", phases=(("dialogue", "edit"), ("math", "translation"))),
        ),
        "synth-flat": Entry(what="synthetic: agreement independent of all else", source=flat()),
        "synth-deep": Entry(what="synthetic: agreement falls along a run and off the trunk", source=deep()),
        "synth-bursty": Entry(what="synthetic: agreement with autocorrelation 0.6", source=bursty()),
        "synth-ladder": Entry(what="synthetic: four models, from little agreement to much", source=ladder()),
        "specbench": Entry(what="imported: Vicuna-7B on Spec-Bench, every ninth request", source=spec_bench()),
        "hsd": Entry(what="imported: Llama-3.1-8B on GSM8K with EAGLE-3, every second request", source=hsd()),
    }
