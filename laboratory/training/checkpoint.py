"""State of a run on disk: safetensors, written so that a kill leaves the old state."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save

from ...whole_files import write_whole


def write_tensors(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Replace `path` in one step; the metadata lies in the same file, so that both always fit together."""
    # Not by its own `save_file`: of a full disk that raises no OSError, and only the owner may read what it writes.
    write_whole(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata=metadata))


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read every tensor of a file."""
    tensors: dict[str, torch.Tensor] = load_file(path)
    return tensors


def save_run(
    path: Path, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], *, step: int, seconds: float
) -> None:
    """Write weights, optimizer states, the next step and the seconds spent so far."""
    tensors = {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            tensors |= {f"optimizer.{names[parameter]}.{key}": value for key, value in state.items()}
    progress = torch.tensor([float(step), seconds], dtype=torch.float64)
    write_tensors({**tensors, "progress": progress}, path)


def load_run(path: Path, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> tuple[int, float]:
    """Restore what `save_run` wrote; returns the next step and the seconds, (0, 0.0) without a file."""
    if not path.exists():
        return 0, 0.0
    tensors = read_tensors(path)
    owners = {parameter: each for each in optimizers for group in each.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        parameter.data.copy_(tensors[f"model.{name}"])
        prefix = f"optimizer.{name}."
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if state:
            owners[parameter].state[parameter] = state
    step, seconds = tensors["progress"].tolist()
    return int(step), seconds
