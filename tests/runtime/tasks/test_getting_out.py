"""Answers that are written to get out of the sandbox, or to be taken for right, do neither."""

import os
import socket
import tempfile
from pathlib import Path

import pytest
from paceline.runtime.sandbox import failure_of

from .sandboxes import asked, body, limits, needs_sandbox

pytestmark = [pytest.mark.slow, needs_sandbox]
SECRET = "of the user alone"
SYSCALL = "import ctypes\ncall = ctypes.CDLL(None).syscall\n"

# Each gets the path of a file that it may not read, a folder that it may not write to, the process of the tests' own
# parent, and a port that listens; it says "out" if it did what it should not be able to.
TRIES = {
    # Files that are written outside.
    "a file above": "open('../a', 'w').write('x'); return 'out'",
    "a file in the user's folder": "open(folder + '/a', 'w').write('x'); return 'out'",
    "folders made first": "import os; os.makedirs(folder); open(folder + '/a', 'w').write('x'); return 'out'",
    "a file of the system": "open('/usr/paceline', 'w').write('x'); return 'out'",
    "a file at the root": "open('/paceline', 'w').write('x'); return 'out'",
    "shared memory": "open('/dev/shm/paceline', 'w').write('x'); return 'out'",
    "a device": "open('/dev/paceline', 'w').write('x'); return 'out'",
    "a module of the library": "import json; open(json.__file__, 'a').write('x'); return 'out'",
    "the interpreter": "import sys; open(sys.executable, 'ab').write(b'x'); return 'out'",
    "functions of paths replaced": (
        "import os.path\nos.path.realpath = lambda *a, **b: os.getcwd() + '/a'\nos.path.join = lambda *a: ''\n"
        "open(folder + '/a', 'w').write('x'); return 'out'"
    ),
    "code of whatever watches": (
        "import gc, types\nfor one in gc.get_objects():\n    if isinstance(one, types.FunctionType) and "
        "one.__name__ in ('hook', 'within', 'end'): one.__code__ = (lambda *a: True).__code__\n"
        "open(folder + '/a', 'w').write('x'); return 'out'"
    ),
    "a link to it": "import os; os.symlink(folder, 'link'); open('link/a', 'w').write('x'); return 'out'",
    "another name of it": "import os; os.link('/usr/bin/env', 'env'); return 'out'",
    "written again by mount": SYSCALL + "assert not ctypes.CDLL(None).mount(None, b'/', None, 32, None); return 'out'",
    "a root of its own": "import os; os.mkdir('r'); os.chroot('r'); return 'out'",
    "owner of the library": "import os; os.chmod(os.__file__, 0o666); return 'out'",
    # Files that are read, and the environment of others.
    "the user's file": f"assert open(secret).read() == {SECRET!r}; return 'out'",
    "by way of a root": f"assert open('/proc/1/root' + secret).read() == {SECRET!r}; return 'out'",
    "the parent's environment": "assert open(f'/proc/{parent}/environ').read(); return 'out'",
    "its own parent's": "import os; assert open(f'/proc/{os.getppid()}/environ').read(); return 'out'",
    "an environment left": "import os; assert 'PACELINE_SECRET' in os.environ; return 'out'",
    "of the first strings": (
        "import ctypes\nfound = ctypes.c_char_p.in_dll(ctypes.CDLL(None), 'program_invocation_name').value\n"
        "assert b'PACELINE_SECRET' in found; return 'out'"
    ),
    "open files": (
        "import os\nfor n in range(3, 32):\n    try: told = os.pread(n, 9999, 0)\n    except OSError: continue\n"
        "    if told: return 'out'\nraise ValueError"
    ),
    "passwords": "open('/etc/passwd').read(); return 'out'",
    "homes": "import os; os.listdir('/home'); return 'out'",
    "disks": "import os; os.mknod('d', 0o60600, os.makedev(254, 0)); open('d', 'rb').read(9); return 'out'",
    "kernel": "open('/sys/kernel/profiling'); return 'out'",
    # Others are signalled, traced and started.
    "the parent by its number": "import os; os.kill(parent, 0); return 'out'",
    "the parent by a file": "import os, signal; signal.pidfd_send_signal(os.pidfd_open(parent), 0); return 'out'",
    "the parent by its group": "import os; os.killpg(os.getpgid(parent), 0); return 'out'",
    "the parent's limits": "import resource; resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1)); return 'out'",
    "the parent traced": SYSCALL + "assert ctypes.CDLL(None).ptrace(16, parent, 0, 0) == 0; return 'out'",
    "memory of the parent": "open(f'/proc/{parent}/mem', 'rb'); return 'out'",
    "a process": "import os\nif os.fork() == 0: os._exit(0)\nreturn 'out'",
    "a program": "import subprocess; subprocess.run(['/usr/bin/true']); return 'out'",
    "by another name": (
        "import sys, importlib.util\nspec = importlib.util.find_spec('_posixsubprocess')\n"
        "made = importlib.util.module_from_spec(spec); spec.loader.exec_module(made)\nimport os\nr, w = os.pipe()\n"
        "made.fork_exec([b'true'], [b'/usr/bin/true'], True, (), None, [], -1, -1, -1, -1, -1, -1, r, w, True, False, "
        "-1, None, None, None, -1, None, False); return 'out'"
    ),
    "spawned": "import os; os.posix_spawn('/usr/bin/true', ['true'], {}); return 'out'",
    "by number": SYSCALL + "found = call(57)\nassert found >= 0\nreturn 'out' if found else exit()",
    "by its second number": SYSCALL + "found = call(57 + 0x40000000)\nassert found > 0; return 'out'",
    "a thread": "import threading; threading.Thread(target=print).start(); return 'out'",
    "namespaces": SYSCALL + "assert ctypes.CDLL(None).unshare(0x10000000) == 0; return 'out'",
    "a bomb": "import os\nwhile True:\n    os.fork()",
    # Memory that no limit of addresses counts.
    "segments": SYSCALL + "assert ctypes.CDLL(None).shmget(0, 2**20, 0o1600) >= 0; return 'out'",
    "files in memory": "import os; os.memfd_create('a'); return 'out'",
    "limits raised": "import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1)); return 'out'",
    "a great folder": "for n in range(64): open(str(n), 'wb', 0).write(b'x' * 10**6)\nreturn 'out'",
    # The network.
    "this machine": "import socket; socket.create_connection(('127.0.0.1', port), 5); return 'out'",
    "other machines": "import socket; socket.create_connection(('1.1.1.1', 53), 5); return 'out'",
    "names": "import socket; socket.getaddrinfo('localhost.example', 80); return 'out'",
    "datagrams": "import socket; socket.socket(2, 2).sendto(b'x', ('10.255.255.255', 9)); return 'out'",
    "its own interface": (
        "import socket, fcntl; fcntl.ioctl(socket.socket(2, 2), 0x8914, b'lo'.ljust(16, b'\\0') + "
        "b'\\1\\0' * 8); return 'out'"
    ),
    "raw": "import socket; socket.socket(17, 3); return 'out'",
    "sockets in files": "import socket; socket.socket(1).connect('/run/dbus/system_bus_socket'); return 'out'",
}  # fmt: skip


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """What is to stay untouched."""
    secret, folder = tmp_path / "secret", tmp_path / "folder"
    secret.write_text(SECRET)
    folder.mkdir()
    monkeypatch.setenv("PACELINE_SECRET", SECRET)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "folder"))
    with socket.create_server(("127.0.0.1", 0)) as listens:
        listens.settimeout(0)
        yield str(secret), str(folder), os.getpid(), listens.getsockname()[1]
        with pytest.raises(BlockingIOError):
            listens.accept()
    assert secret.read_text() == SECRET
    assert list(folder.iterdir()) == []
    assert not Path("/dev/shm/paceline").exists()


def tried(text, machine, **how):
    tests = asked(f"assert f(*{machine!r}) == 'out'", code="def f(secret, folder, parent, port):\n")
    return failure_of(tests, body(text), limits(**{"sandbox": True, "cpu_s": 5} | how))


@pytest.mark.parametrize("name", TRIES)
def test_no_answer_gets_out(name, machine):
    assert tried(TRIES[name], machine) in {"failed", "timed out", "disk"}


@pytest.mark.parametrize("name", ["the user's file", "this machine", "the parent by its number"])
def test_without_a_sandbox_it_does(name, tmp_path, monkeypatch):
    """So the tries are sound."""
    (tmp_path / "secret").write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as listens:
        given = (str(tmp_path / "secret"), str(tmp_path), os.getpid(), listens.getsockname()[1])
        assert tried(TRIES[name], given, sandbox=False) is None


# Each is asked for what only the tests know.
FORGERIES = {
    "exit codes": "import os; os._exit(60)",
    "an end": "raise SystemExit(60)",
    "an end at the end": "import atexit, os; atexit.register(os._exit, 60)\nexit()",
    "equal to all": "class A:\n    def __eq__(self, other): return True\nreturn A()",
    "a number equal to all": (
        "class A(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "return A(1)"
    ),
    "a list equal to all": "class A(list):\n    def __eq__(self, other): return True\nreturn A()",
    "a text in a mask": "class A(str):\n    __class__ = int\n    def __eq__(self, other): return True\nreturn A()",
    "every open file": (
        "import os\nfor n in range(32):\n    for told in (b'passed\\n', b'[\"passed\"]\\n"
        "', b'[\"value\", 1, []]\\n'):\n"
        "        try: os.write(n, told)\n        except OSError: pass\nos._exit(60)"
    ),
    "no reply": "import os\nfor n in range(32):\n    try: os.write(n, b'[')\n    except OSError: pass\nos._exit(60)",
    "nonsense": (
        "import os\nfor n in range(32):\n    try: os.write(n, b'[' * 5000 + b'\\n')\n"
        "    except OSError: pass\nos._exit(60)"
    ),
    "an odd exception": (
        "import os\nfor n in range(32):\n"
        "    try: os.write(n, b'[\"raised\", [\"type\", \"print\"], null]\\n')\n"
        "    except OSError: pass\nos._exit(60)"
    ),
    "words of its own": "import json; json.dumps = lambda said: '[\"value\", [\"__import__\", \"os\"], []]'\nreturn 1",
    "an endless reply": (
        "import os\nfor n in range(3, 32):\n    try:\n        while True: os.write(n, b'1' * 65536)\n"
        "    except OSError: pass"
    ),
    "a great reply": "return 'x' * 2**25",
    "the tests in memory": (
        "import gc, re\nfor one in gc.get_objects():\n"
        "    found = re.search(r'only the tests know \\d+', repr(one)[:10**6])\n"
        "    if found: return found[0]"
    ),
    "frames": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n    for one in frame.f_locals.values():\n"
        "        if isinstance(one, dict) and 'check' in one: return one['check'].split('\"')[1]\n"
        "    frame = frame.f_back"
    ),
    "arguments": "import sys; return [one for one in sys.orig_argv if 'tests know' in one][0]",
    "operators of here": "import builtins\nbuiltins.AssertionError = None\nbuiltins.__build_class__ = None\nreturn 1",
    "an assertion": "raise AssertionError",
    "an interrupt of the tests": "import os, signal; os.kill(0, signal.SIGINT)",
    "closed files": "import os; os.closerange(0, 32)",
    "changed arguments": "given[0].append('only the tests know'); return given[0]",
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("sandbox", [True, False])
def test_no_answer_passes_by_saying_so(name, sandbox):
    known = "only the tests " + "know 8123"  # which this text does not say
    tests = asked(f'got = f([])\nassert got == "{known}" and type(got) is str')
    assert failure_of(tests, body(FORGERIES[name]), limits(sandbox=sandbox, cpu_s=5)) is not None
    assert failure_of(tests, body(f"return '{known}'"), limits(sandbox=sandbox)) is None
