"""Every input file, spoiled in every way: one line that names what is wrong, and nothing written or touched."""

import pytest

from .bad_files import READ, file_cases
from .case import faults

FILES = [*READ, "logs"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_spoiled_file_is_refused(world, logs, work, name):
    cases = file_cases(world, logs)
    chosen = [case for file, found in cases.items() if file == name or file.startswith(f"{name}/") for case in found]
    assert len(chosen) >= 16
    assert faults(chosen, world, work) == []
