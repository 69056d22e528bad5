"""Number formats of weights: what a parameter takes, and weights that are narrower than a model's own dtype."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

# Bytes of a number, by the dtypes that models compute in.
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
# Units that multiply numbers narrower than these.
Arithmetic = Literal["fp8", "fp4", "int8"]


class Quantised(BaseModel):
    """Weights in a format narrower than the model's dtype, which all its other weights have.

    Attributes:
        format: in the field's words, e.g. "fp8".
        parameters: of the model, in this format; the others (embedding, norms, routers, mostly the output) are not.
        bytes_per_parameter: with its share of scales and zero points, above 0, at most 4.
        arithmetic: that weights and activations, quantised too, are multiplied in where the device has units for it;
            None: weights are dequantised and multiplied in the model's dtype.
        experts: whether the experts of a mixture are in this format, all of them or none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=40)
    parameters: int = Field(ge=1, le=2**63 - 1)
    bytes_per_parameter: float = Field(gt=0, le=4)
    arithmetic: Arithmetic | None = None
    experts: bool = False
