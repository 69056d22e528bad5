"""Tests of answers end within their limits, leave nothing behind, and tell how they ended."""

import os
import platform
import signal
import socket
import sys
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.runtime import code_process, sandbox
from paceline.runtime.code_process import NotDataError, packed, unpacked
from paceline.runtime.sandbox import ProcessLimits, check_can_run, failure_of

from .sandboxes import SANDBOXED, asked, body, limits, needs_sandbox

pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits are those of POSIX")
boxed = pytest.mark.parametrize("boxed", SANDBOXED)


def in_turn(names, rows):
    """The rows, every other one in the sandbox; what is limited in both ways is said by the tests of limits."""
    marked = [
        pytest.param(*row, *SANDBOXED[place % 2].values, marks=SANDBOXED[place % 2].marks)
        for place, row in enumerate(rows)
    ]
    return pytest.mark.parametrize((*names, "boxed"), marked)


@pytest.fixture(autouse=True)
def _leaves_nothing(tmp_path, monkeypatch):
    """No folder stays, and none of a process's files is outside its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


def ended(boxed, answer, check="assert f() == 1", **limited):
    return failure_of(asked(check), body(answer), limits(sandbox=boxed, **limited))


@in_turn(
    ("answer", "check"),
    [
        ("return 1", "assert f() == 1"),
        ("return given[0] + 1", "assert f(2) == 3 and f(2.5) == 3.5 and f(True) == 2"),
        ("return given", "x = {1: [(), {2, 3}, b'4', 5j, range(6), None]}; assert f(x, 'é\\ud800') == (x, 'é\\ud800')"),
        (
            "given[0].append(2); given[1]['a'] = 3; given[2].add(4)",
            "x, y, z = [], {}, set()\nf(x, y, z)\nassert (x, y, z) == ([2], {'a': 3}, {4})",
        ),
        ("return 7 ** 20_000", "assert f() == 7 ** 20_000"),
        ("raise KeyError(1)", "try: f()\nexcept LookupError: pass\nelse: raise AssertionError"),
        ("return open('none')", "try: f()\nexcept FileNotFoundError: pass\nelse: raise AssertionError"),
        ("class Mine(ValueError): pass\nraise Mine", "try: f()\nexcept ValueError: pass\nelse: raise AssertionError"),
        ("b'\\xff'.decode()", "try: f()\nexcept ValueError: pass\nelse: raise AssertionError"),
        ("open('a.txt', 'w').write('x'); return open('a.txt').read()", "assert f() == 'x'"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\nreturn A(1) == A(1)", "assert f()"),
        (
            "import os; return [*os.environ], os.listdir()",
            "names, files = f()\nassert {*names} <= {'LC_CTYPE', 'PWD'} and files == []",
        ),
        ("print('x' * 1_000_000); return 1", "print('y' * 1_000_000); assert f() == 1"),
        ("import sys; return len(sys.argv)", "import collections, hashlib, random, re, typing; f()"),
    ],
)  # fmt: skip
def test_what_is_right_passes(boxed, answer, check):
    assert ended(boxed, answer, check) is None


@in_turn(
    ("answer", "check"),
    [
        ("return 2", "assert f() == 1"),
        ("return 1", "assert f() == 1; assert False"),
        ("def (", "pass"),  # even where nobody calls it
        ("return f()", "f()"),
        ("raise SystemExit(0)", "f()"),
        ("raise KeyboardInterrupt", "f()"),
        ("import os; os._exit(0)", "f()"),
        ("import os; os.abort()", "f()"),
        ("return input()", "f()"),
        ("import numpy", "f()"),  # the standard library alone
        ("import paceline", "f()"),
        ("return 1", "raise SystemExit(0)"),
        ("return 1", "def ("),
        ("return 1", "f(1); g()"),
    ],
)
def test_what_is_wrong_fails(boxed, answer, check):
    assert ended(boxed, answer, check) == "failed"


@boxed
@pytest.mark.parametrize(
    "answer", ["return (n for n in 'a')", "return print", "return [object()]", "x = []\nx.append(x)\nreturn x"]
)
def test_what_is_no_plain_data_is_told_and_nothing_hides_it(boxed, answer):
    assert ended(boxed, answer, "try: f()\nexcept Exception: pass") == "not plain data"


DEAF = "import signal, time\nfor s in (14, 15, 24): signal.signal(s, signal.SIG_IGN)\ntime.sleep(600)"


@pytest.mark.parametrize(
    ("answer", "limit", "boxed"),
    [
        pytest.param("while True: pass", {"cpu_s": 1}, True, marks=needs_sandbox),
        ("10 ** 10 ** 9", {"cpu_s": 1}, False),  # one call, which looks at no signal
        pytest.param("10 ** 10 ** 9", {"cpu_s": 1}, True, marks=needs_sandbox),
        ("while True:\n    try:\n        pass\n    except BaseException:\n        pass", {"cpu_s": 1}, False),
        ("import time; time.sleep(600)", {"wall_s": 1.5}, False),
        pytest.param(DEAF, {"wall_s": 1.5}, True, marks=needs_sandbox),
    ],
)
@pytest.mark.one_in(3)
def test_what_computes_or_waits_without_end_is_ended(boxed, answer, limit):
    assert ended(boxed, answer, **limit) == "timed out"


@boxed
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not keep to a limit of addresses")
@pytest.mark.parametrize("answer", ["x = [0] * 10**9", "x = []\nwhile True: x.append(bytearray(2 * 10**7))"])
def test_what_takes_memory_without_end_is_ended(boxed, answer):
    assert ended(boxed, answer, memory_bytes=256 * 2**20) == "memory"


@boxed
def test_what_writes_without_end_is_ended(boxed):
    assert ended(boxed, "f = open('a', 'w')\nwhile True: f.write('x' * 65536)") == "disk"
    if boxed:
        assert ended(boxed, "for n in range(100): open(str(n), 'wb', 0).write(b'x' * 500_000)") == "disk"


@boxed
def test_nothing_of_the_environment_or_of_open_files_is_seen(boxed, monkeypatch):
    monkeypatch.setenv("PACELINE_SECRET", "x")
    with socket.socket() as kept:
        os.set_inheritable(kept.fileno(), True)  # noqa: FBT003 - it takes no name
        assert ended(boxed, "import os; return 'PACELINE_SECRET' in os.environ", "assert not f()") is None
        assert ended(boxed, f"import os; os.fstat({kept.fileno()})", "f()") == "failed"


def test_an_interrupt_kills_both_processes_and_removes_their_folders(monkeypatch):
    children = []

    class Interrupted(sandbox.subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            children.append(self)

        def wait(self, timeout=None):
            if timeout is not None:
                raise KeyboardInterrupt
            return super().wait()

    monkeypatch.setattr(sandbox.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        ended(boxed=False, answer="while True: pass")
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()) | st.binary()
    | st.complex_numbers(allow_nan=False) | st.builds(bytearray, st.binary())
    | st.builds(range, st.integers(), st.integers()),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner)
    | st.frozensets(st.integers()) | st.sets(st.text()),
)  # fmt: skip


@given(plain)
def test_plain_data_is_the_same_on_the_other_side(value):
    said = code_process.json.loads(code_process.json.dumps(packed(value)))
    back = unpacked(said)
    assert back == value
    assert kinds(back) == kinds(value)


def kinds(value):
    """Types, all the way down: True is equal to 1."""
    if isinstance(value, dict):
        return [(key, kinds(of)) for key, of in value.items()]
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(type, value))
    return (type(value), [kinds(one) for one in value]) if isinstance(value, list | tuple) else type(value)


@pytest.mark.parametrize("value", [object(), print, iter("a"), [[object()]], {"a": object()}, type, Ellipsis])
def test_what_is_no_plain_data_is_not_packed(value):
    with pytest.raises(NotDataError):
        packed(value)


def test_where_no_program_can_be_run_that_is_said_beforehand(monkeypatch):
    check_can_run(ProcessLimits(sandbox=False, wall_s=120))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ArgumentError, match=r"^`run_tests` needs /bin/false to pass an empty test .*, got 'failed'$"):
        check_can_run(ProcessLimits(sandbox=False, wall_s=120))
    monkeypatch.setattr(sandbox.os, "name", "nt")
    with pytest.raises(ArgumentError, match="`run_tests` needs the limits of a POSIX system, got nt"):
        check_can_run(ProcessLimits())


@pytest.mark.parametrize(
    ("system", "machine", "bwrap", "told"),
    [
        (
            "darwin",
            "x86_64",
            "/usr/bin/bwrap",
            "needs Linux on x86_64 or aarch64 for its sandbox, got darwin on x86_64",
        ),
        ("linux", "riscv64", "/usr/bin/bwrap", "for its sandbox, got linux on riscv64"),
        ("linux", "x86_64", None, r"needs bubblewrap 0.8 or newer \(.*apt install bubblewrap\), found no bwrap"),
        ("linux", "aarch64", "no permissions", "says 'bwrap: No permissions to create new namespace'"),
        ("linux", "aarch64", "silent", "says 'exit code 1'"),
    ],
)
def test_where_there_is_no_sandbox_the_line_says_what_to_do(
    monkeypatch, tmp_path_factory, system, machine, bwrap, told
):
    if bwrap and not bwrap.startswith("/"):
        says = "" if bwrap == "silent" else "echo 'bwrap: No permissions to create new namespace' >&2\n"
        place = tmp_path_factory.mktemp("bin") / "bwrap"
        place.write_text(f"#!/bin/sh\n{says}exit 1\n")
        place.chmod(0o755)
        bwrap = str(place)
    monkeypatch.setattr(sandbox.sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: bwrap)
    with pytest.raises(ArgumentError, match=told) as raised:
        check_can_run(ProcessLimits())
    assert str(raised.value).endswith("`run_tests` unsandboxed runs what the model wrote with your rights")


@pytest.mark.parametrize(("machine", "calls"), [("x86_64", 10), ("aarch64", 8)])
def test_the_filter_refuses_its_calls_and_allows_others(monkeypatch, machine, calls):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    mark, numbers = sandbox._MACHINES[machine]
    assert len({*numbers.values()}) == calls
    for number in range(500):
        assert verdict(mark, number) == (0x50001 if number in numbers.values() else 0x7FFF0000)
    assert verdict(mark, 0x40000000) == 0x50001
    assert verdict(0x40000003, 1) == 0x80000000  # calls as of 32 bits have other numbers


def verdict(mark, number):
    """What the kernel would do with the filter."""
    program, at, held = [*sandbox.struct.iter_unpack("=HBBI", sandbox.call_filter())], 0, 0
    while True:
        code, then, otherwise, value = program[at]
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            held = {0: number, 4: mark}[value]
        else:
            at += then if (held == value if code == 0x15 else held >= value) else otherwise
