"""Families of published models that the members of a recording are priced as."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..sim.cost.devices import device_sheet
from ..sim.cost.roofline import RooflineCost
from ..sim.cost.what_if.other_model import Price
from ..traces.meta import ModelInfo
from ..traces.shapes.decoder import presets

DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Three models that stand for drafter, middle level and target, and what they run on.

    Attributes:
        name: shown.
        device: of the device sheet.
        models: shapes, the target's last.
        devices: that each is split over.
    """

    name: str
    device: str
    models: tuple[ModelInfo, ...]
    devices: tuple[int, ...]

    @property
    def target(self) -> ModelInfo:
        """The largest."""
        return self.models[-1]

    def price(self, model: ModelInfo, num_devices: int) -> Price:
        """Seconds of one of its models, by roofline.

        Raises:
            ValueError: the weights of all three do not fit into the devices together.
        """
        device = device_sheet()[self.device]
        RooflineCost(device, self.models, tensor_parallel=self.devices[-1])  # refuses what does not fit
        return Price(cost=RooflineCost(device, (model,), tensor_parallel=num_devices), model=model.name)


def families() -> tuple[Family, ...]:
    """Smallest target first; bfloat16 throughout."""
    return (
        _family("7B (160M, 1.1B)", "h100", {"llama-160m": 1, "tinyllama-1.1b": 1, "llama-2-7b": 1}),
        _family("70B (1B, 8B)", "h100", {"llama-3.2-1b": 1, "llama-3.1-8b": 1, "llama-3.1-70b": 4}),
        _family("405B (1B, 8B)", "h200", {"llama-3.2-1b": 1, "llama-3.1-8b": 1, "llama-3.1-405b": 8}),
        _family("405B (8B, 70B)", "h200", {"llama-3.1-8b": 1, "llama-3.1-70b": 8, "llama-3.1-405b": 8}),
    )


def submodel(target: ModelInfo, share: float) -> ModelInfo:
    """The target with `share` of its parameters, layers and cache, as a recorded submodel has of its own target."""
    return target.model_copy(
        update={
            "name": f"{target.name}-slim",
            "parameters": max(1, round(target.parameters * share)),
            "layers": max(1, round(target.layers * share)),
            "kv_bytes_per_token": round(target.kv_bytes_per_token * share),
        }
    )


def _family(name: str, device: str, devices: Mapping[str, int]) -> Family:
    known = presets()
    models = tuple(replace(known[model], dtype=DTYPE).info(model) for model in devices)
    return Family(name=name, device=device, models=models, devices=tuple(devices.values()))
