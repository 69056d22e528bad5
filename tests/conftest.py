"""What all tests stand on: choices made by measuring go to a folder of their own, not to the user's."""

import os

import pytest
from hypothesis import HealthCheck, settings
from paceline.machine import FOLDER_VARIABLE

# No test depends on how quick the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    assert config.cache is not None
    os.environ.setdefault(FOLDER_VARIABLE, str(config.cache.mkdir("paceline")))
