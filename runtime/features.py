"""A drafter that reads hidden states (Li et al. 2024, arXiv:2401.15077): its layer, its forwards, the states it reads.

`draft.FeatureReader` feeds it texts. Letters: T new tokens of all requests, N of them kept, W hidden size, V
vocabulary.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from .caches import MemberKV, Placement, Places
from .forward import ModelForward, WrappedForward
from .refusals import BrokenRuleError, in_words

INPUT, WEIGHT = "fc", "fc.weight"


def give_input(model: PreTrainedModel, weight: Tensor | None = None) -> None:
    """Let `model` have the input layer `fc` (it is changed): of an embedding and a state side by side, without a bias.

    `weight` is `[W, 2 W]`; None leaves it without values.

    Raises:
        BrokenRuleError: a weight of another shape.
    """
    width = int(model.config.hidden_size)
    layer = nn.Linear(2 * width, width, bias=False, device="meta", dtype=model.dtype)
    if weight is not None:
        if tuple(weight.shape) != (width, 2 * width):
            raise BrokenRuleError(f"must hold {WEIGHT} of {width} x {2 * width}, not {in_words(weight.shape)}")
        layer.weight = nn.Parameter(weight.to(model.device, model.dtype), requires_grad=False)
    model.add_module(INPUT, layer.eval())


def inputs_of(model: PreTrainedModel, ids: Tensor, states: Tensor) -> Tensor:
    """`[..., W]` what the first layer reads of tokens `[...]` and of the states `[..., W]` before them."""
    embedded = model.get_input_embeddings()(ids)
    read: Tensor = model.get_submodule(INPUT)(torch.cat([embedded, states], dim=-1))
    return read


def read_input_weight(location: Path | str) -> Tensor:
    """The weight `fc.weight` in a model's folder.

    Raises:
        BrokenRuleError: no folder, or none of its files of weights holds it.
    """
    if not isinstance(location, Path):
        raise BrokenRuleError("must be a folder where features_of is given", location)
    for file in sorted(location.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as held:
                if WEIGHT in held.keys():  # noqa: SIM118 - it is no mapping
                    weight: Tensor = held.get_tensor(WEIGHT)
                    return weight
        except (OSError, SafetensorError) as error:
            raise BrokenRuleError(f"cannot be read ({error})") from error
    raise BrokenRuleError(f"must hold every weight ({WEIGHT} is missing)")


class FeatureForward(WrappedForward):
    """A model with an input layer (`give_input`), whose layers and head are `body`.

    The caller of `after` gives the states it reads.
    """

    def __init__(self, model: PreTrainedModel, body: ModelForward) -> None:
        super().__init__(body)
        self._model = model

    @torch.inference_mode()
    def after(
        self, ids: Tensor, states: Tensor, placement: Placement, cache: MemberKV, keep: Places
    ) -> tuple[Tensor, Tensor]:
        """Feed tokens, each with the state `[T, W]` before it.

        Returns:
            `[N, V]` logits after the kept tokens, and its own states `[T, W]`.
        """
        return self._inner.with_states(inputs_of(self._model, ids, states), placement, cache, keep)

    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> Tensor:
        """With states of zeros: for timing, which does not depend on states. The logits are of no use."""
        return self.with_states(ids, placement, cache, keep)[0]

    def with_states(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Places) -> tuple[Tensor, Tensor]:
        """As a call, with its own states."""
        shape, width = self.kv_shape, int(self._model.config.hidden_size)
        zeros = torch.zeros((len(ids), width), dtype=shape.dtype, device=shape.device)
        return self.after(ids, zeros, placement, cache, keep)


class KnownStates:
    """States by position in the text; mutated by forwards of the target and of the drafter.

    Of the target's states the first `Session.num_judged` hold; those after them belong to rejected tokens. The
    drafter's own begin at the position of the judged tokens' number.
    """

    def __init__(self) -> None:
        self._target: Tensor | None = None
        self._own: list[Tensor] = []

    def put_target(self, start: int, states: Tensor) -> None:
        """The target read the tokens from position `start` on, with these states `[n, W]`."""
        end, held = start + len(states), self._target
        if held is None or end > len(held):
            grown = states.new_zeros((max(64, 2 * end), states.shape[1]))
            if held is not None:
                grown[: len(held)] = held
            self._target = held = grown
        held[start:end] = states

    def begin(self, judged: int, held: int) -> None:
        """The drafter continues after `held` tokens in its cache; the target has judged `judged`.

        Forgets its own states of later tokens.
        """
        own = max(0, held - judged)
        if own > len(self._own):
            raise ValueError(f"held must be <= {judged + len(self._own)} where states end, got {held}")
        del self._own[own:]

    def before(self, start: int, count: int, judged: int) -> Tensor:
        """`[count, W]` the states before the tokens from position `start` on: zeros before the first of all."""
        if start > judged:
            return self._own[start - 1 - judged][None]
        assert self._target is not None  # there is no draft before the prefill
        known = self._target[max(0, start - 1) : start + count - 1]
        return known if start else torch.cat([known.new_zeros((1, known.shape[1])), known])

    def put_own(self, position: int, state: Tensor, judged: int) -> None:
        """Note the drafter's own state `[W]` at a position, if that is beyond the judged tokens."""
        if position >= judged:
            self._own.append(state)
