"""Which members read the same weights: a slim member is some of the target's own layers."""

from collections.abc import Mapping

from torch import nn


def weight_shares(models: Mapping[str, nn.Module]) -> dict[str, dict[str, float]]:
    """By member, the share of its bytes of weights that each other member reads as well; those without any left out."""
    bytes_of = {
        name: {weight.data_ptr(): weight.nbytes for weight in model.parameters()} for name, model in models.items()
    }
    shares: dict[str, dict[str, float]] = {}
    for name, weights in bytes_of.items():
        total = sum(weights.values())
        common = {
            other: sum(weights[place] for place in weights.keys() & theirs.keys()) / total
            for other, theirs in bytes_of.items()
            if other != name
        }
        shares[name] = {other: share for other, share in common.items() if share}
    return shares
