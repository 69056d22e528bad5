import pytest
from paceline.traces import TraceFormatError
from paceline.traces.importers import ImportOptions, read_recording


@pytest.fixture
def read(tmp_path):
    """Reads files in memory, with options as keywords."""

    def reading(format_name, *files, **options):
        return read_recording(format_name, list(files), ImportOptions(**options))

    return reading


@pytest.fixture
def refusal(read):
    """The line that says why files are refused."""

    def refused(format_name, *files, **options):
        with pytest.raises(TraceFormatError) as error:
            read(format_name, *files, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    return refused
