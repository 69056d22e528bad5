"""Programs that a model might write end within their limits and leave nothing behind; it is told how they ended."""

import os
import signal
import socket
import sys
import tempfile
import time

import pytest
from paceline.arguments import ArgumentError
from paceline.runtime.tasks import guarded_run
from paceline.runtime.tasks.guarded_run import Limits, check_can_run, failure_of

SHORT = Limits(wall_s=1.5, cpu_s=1, memory_bytes=256 * 2**20)
PORT = 9  # nobody listens; nobody is asked either
pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits are those of POSIX")


@pytest.fixture(autouse=True)
def _leaves_nothing(tmp_path, monkeypatch):
    """No folder stays, and none of a child's files is outside its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "program",
    [
        "",
        "assert sum(range(4)) == 6",
        "open('a.txt', 'w').write('x'); assert open('a.txt').read() == 'x'",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\nassert A(1) == A(1)",
        "import collections, functools, hashlib, heapq, itertools, math, random, re, string, typing",
        "import os; assert set(os.environ) <= {'LC_CTYPE'} and os.listdir() == []",  # which Python itself sets
        "print('x' * 1_000_000)",
        "if __name__ == '__main__': 1 / 0",
    ],
)
def test_what_is_right_passes(program):
    assert failure_of(program, SHORT) is None


@pytest.mark.parametrize(
    "program",
    [
        "assert False",
        "def f(:",
        "def f(): return f()\nf()",
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "import os; os.abort()",
        "input()",
        "import numpy",  # the standard library alone
        "import paceline",
    ],
)
def test_what_is_wrong_fails(program):
    assert failure_of(program, SHORT) == "failed"


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "10 ** 10 ** 9",  # one call, which looks at no signal
        "import signal, time\nfor s in (14, 15, 24): signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)",
        "while True:\n    try:\n        pass\n    except BaseException:\n        pass",
    ],
)
def test_what_never_ends_is_ended(program):
    begun = time.monotonic()
    assert failure_of(program, SHORT) == "timed out"
    assert time.monotonic() - begun < 4


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not keep to a limit of addresses")
@pytest.mark.parametrize("program", ["x = [0] * 10**9", "x = []\nwhile True: x.append(bytearray(2 * 10**7))"])
def test_what_takes_memory_without_end_is_ended(program):
    assert failure_of(program, SHORT) == "memory"


@pytest.mark.parametrize(
    "program",
    [
        "f = open('a', 'w')\nwhile True: f.write('x' * 65536)",
        "for n in range(10**6): open(str(n), 'w').write('x')",
        "for n in range(10**6):\n    try: open(str(n), 'w')\n    except BaseException: pass",
    ],
)
def test_what_fills_the_disk_is_ended(program):
    assert failure_of(program, SHORT) == "disk"


@pytest.mark.parametrize(
    "program",
    [
        f"import socket; socket.create_connection(('localhost', {PORT}))",
        "import urllib.request; urllib.request.urlopen('http://localhost')",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(os.getppid(), 15)",
        "import ctypes",
        "import os\ntry:\n    os.fork()\nexcept BaseException:\n    pass",
        "import multiprocessing.shared_memory as s; s.SharedMemory(create=True, size=9)",
        "open('../a', 'w')",
        "open('/dev/shm/paceline', 'w')",
        "import os; open(os.fsencode('../a'), 'ab')",
        "import os; os.close(os.open('/', os.O_RDONLY)); os.open('a', os.O_WRONLY | os.O_CREAT)",
        "class P(str): pass\nopen(P('a'), 'w')",
        "import os; os.remove('a')",
        "import os; os.mkdir('a')",
        "import os; os.symlink('/', 'a')",
        "import os; os.chdir('/')",
        "import shutil; shutil.rmtree('.')",
        "import sqlite3; sqlite3.connect('a')",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (9, 9))",
    ],
)
def test_calls_that_no_answer_needs_are_refused(program):
    assert failure_of(program, SHORT) == "refused call"


def test_nothing_of_the_environment_or_of_open_files_is_seen(monkeypatch):
    monkeypatch.setenv("PACELINE_SECRET", "x")
    with socket.socket() as kept:
        os.set_inheritable(kept.fileno(), True)  # noqa: FBT003 - it takes no name
        assert failure_of("import os; assert 'PACELINE_SECRET' not in os.environ", SHORT) is None
        assert failure_of(f"import os; os.fstat({kept.fileno()})", SHORT) == "failed"


def test_an_interrupt_kills_the_program_and_removes_its_folder(monkeypatch):
    children = []

    class Interrupted(guarded_run.subprocess.Popen):
        def communicate(self, *args, **kwargs):
            children.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(guarded_run.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        failure_of("while True: pass", SHORT)
    assert children[0].returncode == -signal.SIGKILL


def test_where_no_program_can_be_run_that_is_said_beforehand(monkeypatch):
    check_can_run(SHORT)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        ArgumentError, match=r"^`run_tests` needs /bin/false -I -S to run an empty program .*, got failed"
    ):
        check_can_run(SHORT)
    monkeypatch.setattr(guarded_run.os, "name", "nt")
    with pytest.raises(ArgumentError, match="`run_tests` needs the limits of a POSIX system, got nt"):
        check_can_run(SHORT)
