"""What a training writes is whole, and a full disk is an error of the file that was asked for."""

import errno
import os
from pathlib import Path

import pytest
import torch
from paceline_laboratory.training.pool import write_pool_file
from paceline_laboratory.training.recipe import read_recipe
from paceline_laboratory.training.texts import Item, write_prompts
from paceline_laboratory.training.training import read_tensors, write_tensors

WRITERS = {
    "tensors": lambda path: write_tensors({"a": torch.ones(99)}, path),
    "prompts": lambda path: write_prompts({"math": [Item(tag="math", prompt="x", completion="")]}, path),
    "pool": lambda path: write_pool_file(read_recipe("tiny"), path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_keeps_what_was_there_and_is_told_by_name(tmp_path, monkeypatch, write):
    path = tmp_path / "state"
    path.write_text("old")
    (tmp_path / "state.part").write_text("mine")

    def half(file, data):
        with file.open("wb") as stream:
            stream.write(data[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space left on device") as told:
        write(path)
    assert told.value.filename == str(path)
    assert path.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state", "state.part"]
    assert (tmp_path / "state.part").read_text() == "mine"


def test_tensors_come_back(tmp_path):
    write_tensors({"a": torch.arange(6).reshape(2, 3).T}, tmp_path / "state")
    assert torch.equal(read_tensors(tmp_path / "state")["a"], torch.arange(6).reshape(2, 3).T)
