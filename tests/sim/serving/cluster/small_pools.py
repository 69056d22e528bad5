"""Recordings whose members have the shapes of models that people serve."""

from dataclasses import replace

from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.shapes import presets

LLAMA_8B = presets()["llama-3.1-8b"].info("target")
LLAMA_1B = presets()["llama-3.2-1b"].info("draft")


def recording_of(*models):
    """A small synthetic recording whose members have these shapes, smallest first."""
    names = tuple(model.name for model in models)
    spec = SyntheticSpec(
        name="small", requests=2, tokens=4, prompt_tokens=4, models=names, acceptance=(0.8,) * (len(names) - 1)
    )
    made = make_trace(spec)
    return replace(made, meta=made.meta.model_copy(update={"models": models, "costs": {}}))


def llamas():
    """Llama 3.2 1B and Llama 3.1 8B."""
    return recording_of(LLAMA_1B, LLAMA_8B)
