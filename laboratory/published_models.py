"""Shapes of published models, and the families of them that the members of a recording are priced as."""

from dataclasses import dataclass

from ..sim.cost.devices import device_sheet
from ..sim.cost.roofline import RooflineCost
from ..sim.cost.what_if.other_model import Price
from ..traces.meta import ModelInfo

DTYPE = "bfloat16"
BYTES = 2


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
    """Smallest target first; bfloat16 throughout. Shapes are those of the models' published configurations."""
    tiny = _model("llama-160m", 162_417_408, layers=12, hidden=768, kv_heads=12, head=64)
    tiny_llama = _model("tinyllama-1.1b", 1_100_048_384, layers=22, hidden=2048, kv_heads=4, head=64)
    small = _model("llama-3.2-1b", 1_235_814_400, layers=16, hidden=2048, kv_heads=8, head=64)
    medium = _model("llama-3.1-8b", 8_030_261_248, layers=32, hidden=4096, kv_heads=8, head=128)
    seven = _model("llama-2-7b", 6_738_415_616, layers=32, hidden=4096, kv_heads=32, head=128)
    seventy = _model("llama-3.1-70b", 70_553_706_496, layers=80, hidden=8192, kv_heads=8, head=128)
    largest = _model("llama-3.1-405b", 405_853_388_800, layers=126, hidden=16384, kv_heads=8, head=128)
    return (
        Family(name="7B (160M, 1.1B)", device="h100", num_devices=1, drafter=tiny, middle=tiny_llama, target=seven),
        Family(name="70B (1B, 8B)", device="h100", num_devices=4, drafter=small, middle=medium, target=seventy),
        Family(name="405B (1B, 8B)", device="h200", num_devices=8, drafter=small, middle=medium, target=largest),
        Family(
            name="405B (8B, 70B)",
            device="h200",
            num_devices=8,
            drafter=medium,
            middle=seventy,
            target=largest,
            middle_devices=8,
        ),
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


def _model(name: str, parameters: int, *, layers: int, hidden: int, kv_heads: int, head: int) -> ModelInfo:
    return ModelInfo(
        name=name,
        parameters=parameters,
        layers=layers,
        hidden_size=hidden,
        kv_bytes_per_token=2 * layers * kv_heads * head * BYTES,
        dtype=DTYPE,
    )
