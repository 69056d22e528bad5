import pytest
from paceline.runtime.recording.finished import Parts


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive at all"])
def test_a_damaged_part_is_named(tmp_path, content):
    parts = Parts(tmp_path / "t.part", "fingerprint")
    (tmp_path / "t.part" / "000000.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"000000\.npz: cannot be read .*; remove it to record this request again"):
        parts.read(0)


def test_the_part_of_another_recording_is_refused(tmp_path):
    Parts(tmp_path / "t.part", "one")
    with pytest.raises(ValueError, match="fingerprint must be that of this pool"):
        Parts(tmp_path / "t.part", "other")
