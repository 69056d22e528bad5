"""Formats of quantised weights, and of keys and values: what a number takes in each.

Letters: L layers, G weights that share a scale.
"""

from dataclasses import dataclass

from ..experts import Experts
from ..quantised import WIDTHS, Arithmetic, Quantised

# Bytes of a key's or a value's number, by the formats that caches have.
KV_WIDTHS: dict[str, float] = {**WIDTHS, "fp8": 1, "int8": 1, "nvfp4": 0.5625}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """What one weight takes, and what multiplies it.

    Attributes:
        name: in the field's words.
        bytes_each: with its share of scales and zero points.
        arithmetic: see `Quantised`.
    """

    name: str
    bytes_each: float
    arithmetic: Arithmetic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeights:
    """Which weights of a decoder are quantised.

    Attributes:
        format: theirs.
        in_layers: parameters of all layers together, without routed experts.
        of_layers: L that `in_layers` was counted over.
        is_even: whether all layers have as many.
        experts: whether all routed experts are; else none is.
        in_tables: parameters of embedding and output.
    """

    format: WeightFormat
    in_layers: int
    of_layers: int
    is_even: bool
    experts: bool
    in_tables: int

    def quantised(self, layers: int, experts: Experts | None) -> Quantised | None:
        """As shapes say it; None where nothing is.

        Args:
            layers: of the model; another number than was counted over only where all have as many.
            experts: of the model.
        """
        routed = experts if self.experts else None
        in_layers = self.in_layers * layers // self.of_layers
        parameters = in_layers + self.in_tables + (0 if routed is None else routed.all_parameters)
        if not parameters:
            return None
        return Quantised(
            format=self.format.name,
            parameters=parameters,
            bytes_per_parameter=self.format.bytes_each,
            arithmetic=self.format.arithmetic,
            experts=routed is not None,
        )


def grouped(bits: int, group: int | None, *, scale_bytes: float, zero: bool = False) -> float:
    """Bytes of a weight of so many bits, if `group` of them share a scale and, maybe, a zero point of as many bits.

    Args:
        bits: of a weight.
        group: G; None: a row or a whole matrix, whose scale is below a thousandth of it and left out.
        scale_bytes: of a scale.
        zero: whether a zero point is stored beside each scale.
    """
    if group is None:
        return bits / 8
    return bits / 8 + (scale_bytes + (bits / 8 if zero else 0)) / group


# By the words that `models` takes after `@`: as these formats are usually published.
FORMATS: dict[str, WeightFormat] = {
    "fp8": WeightFormat(name="fp8", bytes_each=1, arithmetic="fp8"),
    "int8": WeightFormat(name="int8", bytes_each=1, arithmetic="int8"),
    "int4": WeightFormat(name="int4", bytes_each=grouped(4, 128, scale_bytes=2, zero=True)),
    "nvfp4": WeightFormat(name="nvfp4", bytes_each=grouped(4, 16, scale_bytes=1), arithmetic="fp4"),
    "mxfp4": WeightFormat(name="mxfp4", bytes_each=grouped(4, 32, scale_bytes=1)),
}
