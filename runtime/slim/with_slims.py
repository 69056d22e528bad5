"""A loaded pool with slim verifiers of its target that are in no file."""

from collections.abc import Mapping
from dataclasses import replace

from ..pools.loaded_members import describe_model
from ..pools.pool import ModelPool
from ..pools.submodel import make_submodel
from .masks import Mask


def with_slims(pool: ModelPool, masks: Mapping[str, Mask]) -> ModelPool:
    """The pool with a submodel of the target for each mask, in order of size.

    Args:
        pool: not changed.
        masks: layers to leave out, by the name of the member.

    Raises:
        ValueError: a name that is taken, a mask that does not fit, or a target without a network.
    """
    target = pool.target.model
    if target is None:
        raise ValueError(f"target must be a model with layers, got {pool.target.name} without any")
    taken = [member.name for member in pool.members if member.name in masks]
    if taken:
        raise ValueError(f"name must not be that of a member, got {taken[0]!r}")
    slims = [describe_model(name, "submodel", make_submodel(target, mask), None) for name, mask in masks.items()]
    others = sorted((*pool.members[:-1], *slims), key=lambda member: member.num_parameters)
    return replace(pool, members=(*others, pool.target))
