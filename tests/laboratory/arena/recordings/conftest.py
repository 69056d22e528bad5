from functools import lru_cache

import pytest
from paceline_laboratory.training.texts import read_stdlib


@pytest.fixture(scope="module", autouse=True)
def stdlib_read_once():
    """Reading the standard library takes seconds and gives the same texts every time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline_laboratory.training.texts.read_stdlib", lru_cache(read_stdlib))
        yield
