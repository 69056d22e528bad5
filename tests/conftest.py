"""What all tests stand on: choices made by measuring go to a folder of their own, not to the user's.

A property is tried on 20 examples, and on 200 where HYPOTHESIS_PROFILE is `many`, as in `make slow`. Only a test whose
single example is dear, and the fuzzing of importers, has a number of its own.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from paceline.machine import FOLDER_VARIABLE

# No test depends on how quick the machine is.
for name, examples in {"few": 20, "many": 200}.items():
    settings.register_profile(name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))


def pytest_configure(config: pytest.Config) -> None:
    assert config.cache is not None
    os.environ.setdefault(FOLDER_VARIABLE, str(config.cache.mkdir("paceline")))
