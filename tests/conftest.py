"""What all tests stand on: choices made by measuring go to a folder of their own, not to the user's."""

import os

import pytest
from paceline.machine import FOLDER_VARIABLE


def pytest_configure(config: pytest.Config) -> None:
    assert config.cache is not None
    os.environ.setdefault(FOLDER_VARIABLE, str(config.cache.mkdir("paceline")))
