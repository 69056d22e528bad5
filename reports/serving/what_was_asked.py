"""What was asked of a run besides workload, cluster and policy, in words.

A reader must not take a what-if for a fact.
"""

from collections.abc import Mapping
from typing import Any


def what_was_asked(setting: Mapping[str, Any]) -> list[str]:
    """Parts of a title; empty where seconds, acceptance and tags are the cluster's, the recording's, the workload's.

    Changes of times and lengths are not among them: the workload's notes count those.

    Args:
        setting: of a `ServingAbout`.
    """
    found = []
    shifts: Mapping[str, float] = setting.get("shift_acceptance", {})
    if shifts:
        found.append("WHAT IF: " + ", ".join(f"acceptance of {name} {delta:+g}" for name, delta in shifts.items()))
    models: Mapping[str, str] | list[str] = setting.get("models", [])
    if models:
        texts = [f"{name}={text}" for name, text in models.items()] if isinstance(models, Mapping) else models
        found.append(f"shapes {', '.join(texts)}")
    seconds = []
    if "cost" in setting:
        seconds.append(f"cost {setting['cost']}")
    if "tensor_parallel" in setting:
        seconds.append(f"tensor parallel {setting['tensor_parallel']}")
    if "on" in setting:
        origin = f" from {setting['measured_on']}" if "measured_on" in setting else ""
        seconds.append(f"taken{origin} to {setting['on']}")
    factors: Mapping[str, float] = setting.get("scale", {})
    seconds += [f"{name} x{factor:g}" for name, factor in factors.items()]
    if "decide_s" in setting:
        seconds.append(f"{setting['decide_s']:g} s a decision")
    if seconds:
        found.append(", ".join(seconds))
    if "tag" in setting:
        found.append(f"all requests of tag {setting['tag'] or 'any'}")
    return found
