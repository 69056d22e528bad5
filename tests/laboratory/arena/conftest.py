"""A short recording to play on."""

from dataclasses import replace

import pytest
from paceline.base.files import shipped
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.arena.play import RecordingStage


@pytest.fixture(scope="session")
def trace():
    """Eight requests of the shipped recording, in its order, of all of its tags."""
    whole = read_trace(shipped("recordings", "pico.trace"))
    return replace(whole, requests=whole.requests[::7][:8])


@pytest.fixture
def stage(trace):
    return RecordingStage(trace)
