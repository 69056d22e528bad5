"""A model that reads and says tokens by the embeddings of another one, as EAGLE's drafters do by their target's."""

from transformers import PreTrainedModel

from ..broken_rule import BrokenRuleError


def embedding_names(model: PreTrainedModel) -> set[str]:
    """Names of the weights of the token embeddings and of the output head."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    names = {module: name for name, module in model.named_modules()}
    return {f"{names[module]}.{weight}" for module in modules for weight, _ in module.named_parameters()}


def own_embeddings(model: PreTrainedModel) -> set[str]:
    """Those of `embedding_names` that weights of the model's own would hold: a tied head is no weight of its own."""
    names = embedding_names(model)
    if not model.config.tie_word_embeddings:
        return names
    table = model.get_input_embeddings().weight
    return {name for name in names if model.get_parameter(name) is table}


def share_embeddings(model: PreTrainedModel, owner: PreTrainedModel) -> None:
    """Let `model` use the token embeddings and the output head of `owner`, the very same modules, of as many tokens.

    Raises:
        BrokenRuleError: they are of another width, format or device.
    """
    table = owner.get_input_embeddings().weight
    for what, own, other in (
        ("hidden size", int(model.config.hidden_size), table.shape[1]),
        ("dtype", str(model.dtype).removeprefix("torch."), str(table.dtype).removeprefix("torch.")),
        ("device", str(model.device), str(table.device)),
    ):
        if own != other:
            raise BrokenRuleError(f"must be a member of the same {what} ({own})", str(other))
    model.set_input_embeddings(owner.get_input_embeddings())
    model.set_output_embeddings(owner.get_output_embeddings())
    model.config.vocab_size = owner.config.vocab_size
