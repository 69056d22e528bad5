"""What needs no second process: reading torchrun's environment, and what is refused before models are loaded."""

from math import inf

import pytest
from paceline.cli.app import check_command, is_first, is_heard, one_voice
from paceline.cli.models import check_split
from paceline.runtime.clock import SharedClock
from paceline.runtime.launched import Launched, launched
from paceline.runtime.ranks import Ranks, RanksApartError, of_a_lost_rank

TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture
def second(monkeypatch):
    """This process as the second of two."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


def test_torchrun_says_which_process_this_is():
    assert launched(TORCHRUN) == Launched(rank=1, num_ranks=2, local_rank=1, num_here=2)


@pytest.mark.parametrize("missing", TORCHRUN)
def test_a_process_of_nobody_is_alone(missing):
    assert launched({name: value for name, value in TORCHRUN.items() if name != missing}) == Launched()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"RANK": "2"}, "RANK, which torchrun sets, must be a whole number from 0 to 1, got '2'"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE, which torchrun sets, must be a whole number >= 1, got 'two'"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK, which torchrun sets, must be a whole number from 0 to 1, got '-1'"),
    ],
)
def test_what_torchrun_cannot_have_said(said, told):
    with pytest.raises(ValueError, match=told):
        launched(TORCHRUN | said)


def test_commands_that_would_be_done_twice(second):
    check_command("run")
    for name in ("compare", "record", "profile"):
        with pytest.raises(ValueError, match=f"torchrun must start `paceline run` or a single process, got `{name}`"):
            check_command(name)


def test_a_pool_with_nothing_to_share(second):
    with pytest.raises(ValueError, match='torchrun needs a member with tp_plan = "auto", got none for 2 processes'):
        check_split(None)


def test_the_first_process_alone_is_heard(monkeypatch, capsys):
    for alone in (True, False):
        for name, value in () if alone else TORCHRUN.items():
            monkeypatch.setenv(name, value)
        assert is_first() == is_heard(interrupted=True) == alone
        with one_voice():
            print("x")  # noqa: T201
        assert capsys.readouterr().out == ("x\n" if alone else "")
        if alone:
            check_command("compare")
            check_split(None)


class Told(Ranks):
    """The second of two processes, the first of which says the same number for ever."""

    def __init__(self, number):
        self.rank, self.num_ranks = 1, 2
        self._number = number

    def of_the_first(self, number):
        return self._number(number) if callable(self._number) else self._number


def test_a_shared_clock_shows_what_the_first_reads():
    clock = SharedClock((), Told(12.5))
    assert clock.now_s() == clock.now_s() == 12.5


def test_processes_that_do_different_things_are_stopped():
    Told(lambda own: own).check_alike((1, ["a"]))
    with pytest.raises(RanksApartError, match="rank 1 would do something else than rank 0"):
        Told(0).check_alike((1, ["a"]))


def test_errors_of_lost_processes_are_told_from_others():
    assert "Connection closed by peer" in of_a_lost_rank(RuntimeError("[gloo/pair.cc:5] Connection closed by peer"))
    assert of_a_lost_rank(RuntimeError("shapes cannot be multiplied")) is None
    assert of_a_lost_rank(KeyError("gloo")) is None


class Met(Ranks):
    """A rank that takes no signals over."""

    def __init__(self, rank):
        self.rank, self._group, self._interrupted = rank, None, False


def test_an_interrupt_of_the_first_comes_to_all(monkeypatch):
    """The first tells an infinite instant, which no clock shows, and all hear it at the same place."""
    wire = []
    monkeypatch.setattr("torch.distributed.broadcast", lambda told, source, group: wire.append(float(told)))
    first = Met(0)
    assert first.of_the_first(3.0) == 3.0
    first._note_interrupt()
    with pytest.raises(KeyboardInterrupt):
        first.of_the_first(4.0)
    assert first.of_the_first(5.0) == 5.0, "once"
    assert wire == [3.0, inf, 5.0]
    monkeypatch.setattr("torch.distributed.broadcast", lambda told, source, group: told.fill_(wire.pop(0)))
    second = Met(1)
    second._note_interrupt()
    assert second.of_the_first(9.0) == 3.0, "its own does not count"
    with pytest.raises(KeyboardInterrupt):
        second.of_the_first(9.0)
    assert second.of_the_first(9.0) == 5.0
