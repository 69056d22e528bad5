"""How drafters begin: as layers of their target, without embeddings, which are the target's."""

import copy
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from ....runtime.features.input_layer import INPUT, give_input
from ...training.architectures import layers_of


def begin_student(target: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """A model of some of the target's layers, evenly from the first on, and its final norm."""
    last = len(layers_of(target)) - 1
    return _of_layers(target, [place * last // max(1, num_layers - 1) for place in range(num_layers)])


def begin_feature_student(target: PreTrainedModel) -> PreTrainedModel:
    """A model of the target's last layer and final norm, whose input layer adds embedding and state."""
    student = _of_layers(target, [len(layers_of(target)) - 1])
    one = torch.eye(int(target.config.hidden_size))
    give_input(student, torch.cat([one, one], dim=-1))
    student.get_submodule(INPUT).requires_grad_()
    return student


def drafter_config(target: PreTrainedModel, num_layers: int) -> PreTrainedConfig:
    """The target's config with so many layers and without embeddings of its own."""
    config: Any = copy.deepcopy(target.config)
    config.num_hidden_layers, config.tie_word_embeddings = num_layers, True
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:num_layers]
    made: PreTrainedConfig = config
    return made


def _of_layers(target: PreTrainedModel, sources: list[int]) -> PreTrainedModel:
    config: Any = drafter_config(target, len(sources))
    config.vocab_size, config.pad_token_id = 1, None
    student: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for layer, source in zip(layers_of(student), sources, strict=True):
        layer.load_state_dict(layers_of(target)[source].state_dict())
    student.base_model.norm.load_state_dict(target.base_model.norm.state_dict())
    return student
