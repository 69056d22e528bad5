"""Every option of every command, given what it cannot be: one line, exit code 2, nothing written or touched."""

import pytest

from ..cli.command_line import paceline
from .bad_options import LONG_RUNS, SOUND, leaves, option_cases
from .case import faults, refresh

CASES = option_cases()


def test_there_are_a_thousand():
    assert sum(map(len, CASES.values())) >= 1000
    assert set(CASES) == {name for name, _ in leaves()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SOUND if name in CASES])
def test_the_sound_calls_are_sound(world, work, name):
    """What is refused is refused for what was spoiled."""
    refresh(world, work)
    assert paceline(*name.split(), *SOUND[name]).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_bad_option_is_refused(world, work, name):
    assert faults(CASES[name], world, work) == []


def test_long_runs_are_commands():
    assert set(LONG_RUNS) <= set(CASES)
