"""A profile that was interrupted goes on where it was, unless what it has measured is of no use any more."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from paceline.base.files import FOLDER_VARIABLE
from paceline.runtime.profiling import forwards as forward_shapes
from paceline.runtime.profiling.forwards import ShapeGrid
from paceline.runtime.profiling.operations import measure_operations
from paceline.studies import profile_check as unfinished
from paceline.studies.profile import profile

from ...tiny_models import random_prompts, tiny_pool_of_four

POOL = tiny_pool_of_four()
PROMPTS = random_prompts(4, seed=3)
GRID = ShapeGrid(rows=(1, 3), new_tokens=(1, 6), context_tokens=(0, 20), most_tokens=84, away_s=(0.001,))
GIVEN = {"grid": GRID, "repeats": 3, "most_drift": 9.0}
NUM_GROUPS = 4 * 4  # of rows and tokens held, in four rounds


@pytest.fixture(scope="module", autouse=True)
def operations():
    """They are measured once for all profiles here: forwards come before them, and a journal keeps no other thing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.studies.profile.measure_operations", once(measure_operations))
        yield


def once(measure):
    found = []

    def measured(*args, **options):
        if not found:
            found.append(measure(*args, **options))
        return found[0]

    return measured


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """The journal of a profile that was interrupted in its third round; groups timed from here on are counted."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    real = forward_shapes._time_group
    timed = []

    def times(forward, name, rows, context, counts):
        if len(timed) == 10 * 4:
            raise KeyboardInterrupt
        timed.append((name, rows, context))
        return real(forward, name, rows, context, counts)

    monkeypatch.setattr(forward_shapes, "_time_group", times)
    with pytest.raises(KeyboardInterrupt):
        profile(POOL, PROMPTS, **GIVEN)
    (path,) = (tmp_path / "unfinished").iterdir()
    assert not (tmp_path / "profiles").exists()
    timed.clear()
    monkeypatch.setattr(forward_shapes, "_time_group", lambda *args: timed.append(args[1:4]) or real(*args))
    return path, timed


def same_again(monkeypatch, ratio=1.0):
    """Measuring again finds every member as quick as then, times a ratio."""

    def again(forwards, shapes):
        return {
            name: [(shape, shape._replace(seconds=ratio * shape.seconds)) for shape in shapes if shape.member == name]
            for name in forwards
        }

    monkeypatch.setattr(unfinished, "measure_again", again)


def test_it_goes_on_where_it_was_and_says_so(interrupted, monkeypatch, capsys):
    path, timed = interrupted
    same_again(monkeypatch)
    known = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert len(known) == 10
    made = profile(POOL, PROMPTS, **GIVEN).profile
    assert len(timed) == 4 * (NUM_GROUPS - 10)
    assert "an interrupted profile is gone on with: 10 groups of shapes of the last " in capsys.readouterr().err
    assert len(made.shapes) == 4 * 2 * 2 * 2
    assert not path.exists()  # what is finished is no more to be gone on with


@pytest.mark.parametrize(
    ("ratio", "older_s", "options", "says"),
    [
        (1.2, 0, {"most_drift": 0.1}, "'s forwards take 1.20 times as long as then"),
        (0.5, 0, {"most_drift": 0.1}, "'s forwards take 0.50 times as long as then"),
        (1.0, 3700, {}, "an interrupted profile is begun anew: it is 62 min old"),
        (1.0, 0, {"restart": True}, ""),
        (
            1.0,
            0,
            {
                "grid": ShapeGrid(
                    rows=(1, 3), new_tokens=(1, 6), context_tokens=(0, 21), most_tokens=84, away_s=(0.001,)
                )
            },
            "",
        ),
    ],
)
def test_what_is_of_no_use_is_begun_anew(interrupted, monkeypatch, capsys, ratio, older_s, options, says):
    path, timed = interrupted
    same_again(monkeypatch, ratio)
    header, *lines = path.read_text().splitlines(keepends=True)
    begun_at = (datetime.now(UTC) - timedelta(seconds=older_s)).isoformat()
    path.write_text(json.dumps(json.loads(header) | {"begun_at": begun_at}) + "\n" + "".join(lines))
    with monkeypatch.context() as patch:
        patch.setattr("paceline.studies.profile._refuse_drift", lambda *_: None)  # a test's machine is busy
        profile(POOL, PROMPTS, **GIVEN | options)
    assert len(timed) == 4 * NUM_GROUPS
    told = capsys.readouterr().err
    assert says in told
    assert "gone on with" not in told


def test_a_grid_beyond_memory_keeps_what_fits_and_names_the_rest(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    of_target = POOL.target.kv_bytes_per_token
    monkeypatch.setattr(forward_shapes, "total_bytes", lambda device: 2 * of_target * 64)
    made = profile(POOL, PROMPTS, **GIVEN)
    shapes = {shape.key for shape in made.profile.shapes}
    assert ("target", 3, 1, 20) in shapes
    assert ("target", 3, 6, 20) not in shapes
    assert ("draft", 3, 6, 20) in shapes
    assert made.profile.meta.left_out == ("target: 3 x 6 and more after 20",)
    assert "left out, as memory is short: target: 3 x 6 and more after 20" in made.lines()
