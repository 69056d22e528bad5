"""What a recording says of the members of a pool."""

from collections.abc import Iterable

from ...traces.meta import ModelInfo, NgramInfo
from ..pools.loaded_members import LoadedMember


def model_info(member: LoadedMember, *, submodel_of: str | None = None) -> ModelInfo:
    """Of a member with a model; `submodel_of` names the one whose weights it shares."""
    return ModelInfo(
        name=member.name,
        parameters=member.num_parameters,
        layers=member.num_layers,
        hidden_size=member.hidden_size,
        kv_bytes_per_token=member.kv_bytes_per_token,
        dtype=member.dtype,
        submodel_of=submodel_of,
    )


def ngram_info(members: Iterable[LoadedMember]) -> NgramInfo | None:
    """Of the prompt lookup among them; None if there is none."""
    for member in members:
        rule = member.lookup
        if rule is not None:
            return NgramInfo(
                name=member.name, max_match=rule.max_match, min_match=rule.min_match, occurrence=rule.occurrence
            )
    return None
