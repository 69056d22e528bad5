"""Families of published models that the members of a recording are priced as."""

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
        num_devices: that the target is split over.
        drafter, middle, target: shapes.
        middle_devices: that the middle model is split over; the drafter runs on one.
    """

    name: str
    device: str
    num_devices: int
    drafter: ModelInfo
    middle: ModelInfo
    target: ModelInfo
    middle_devices: int = 1

    def price(self, model: ModelInfo, num_devices: int) -> Price:
        """Seconds of one of its models, by roofline.

        Raises:
            ValueError: the weights of all three do not fit into the devices together.
        """
        device = device_sheet()[self.device]
        every = (self.drafter, self.middle, self.target)
        RooflineCost(device, every, tensor_parallel=self.num_devices)  # refuses what does not fit
        return Price(cost=RooflineCost(device, (model,), tensor_parallel=num_devices), model=model.name)


def families() -> tuple[Family, ...]:
    """Smallest target first; bfloat16 throughout."""
    return (
        _family("7B (160M, 1.1B)", "h100", 1, "llama-160m", "tinyllama-1.1b", "llama-2-7b"),
        _family("70B (1B, 8B)", "h100", 4, "llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b"),
        _family("405B (1B, 8B)", "h200", 8, "llama-3.2-1b", "llama-3.1-8b", "llama-3.1-405b"),
        _family("405B (8B, 70B)", "h200", 8, "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", middle_devices=8),
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


def _family(name: str, device: str, num_devices: int, *models: str, middle_devices: int = 1) -> Family:
    known = presets()
    drafter, middle, target = (replace(known[model], dtype=DTYPE).info(model) for model in models)
    return Family(
        name=name,
        device=device,
        num_devices=num_devices,
        drafter=drafter,
        middle=middle,
        target=target,
        middle_devices=middle_devices,
    )
