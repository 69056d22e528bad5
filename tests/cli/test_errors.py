"""What a wrong input, a full disk or Ctrl-C comes to: one line that can be read, and an exit code."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pytest
from paceline.base.errors import with_options
from paceline.cli.errors import LONGEST_LINE, one_interrupt, one_line, run_command

from .command_line import paceline, refused

# -- lines


def test_a_line_of_a_hundred_thousand_characters_is_cut_in_the_value():
    line = one_line(f"mine.json: field must be short, got {'x' * 100_000!r} (line 3)")
    assert line.startswith("mine.json: field must be short, got 'xxxx")
    assert line.endswith("xxxx' (line 3)")
    assert len(line) < 400


def test_arguments_become_options():
    assert with_options("`decide_s` must fit `batch` and `top_k`") == "--decide-seconds must fit --batch and --top-k"


def test_fields_of_files_stay_what_they_are():
    rule = "must be there (`detailed`): `windows` x=K, `names`, `requests`, `output_tokens` or `replace`"
    told = "must be there (`detailed`): --window x=K, --drafter, --requests, --output-tokens or --replace"
    assert with_options(rule, rule=True) == told


def test_a_line_of_many_words_is_cut_in_the_middle():
    line = one_line(f"unknown 'a': known are {', '.join(map(str, range(100_000)))}; choose one")
    assert line.startswith("unknown 'a': known are 0, 1, 2")
    assert line.endswith("99999; choose one")
    assert len(line) == LONGEST_LINE


def test_a_short_line_stays_as_it_is():
    assert one_line("mine.json: field\nmust be  short") == "mine.json: field must be short"


@pytest.mark.parametrize(
    "args",
    [
        ("compare", "--policy", "x" * 100_000),
        ("compare", "--cost", "x" * 100_000),
        ("compare", "--json", "x" * 100_000),
        ("compare", "--scale", "x" * 100_000),
        ("trace", "inspect", "x" * 100_000),
        ("trace", "make", "x" * 100_000),
        ("trace", "make", "new.trace", "--models", ",".join(f"m{n}" for n in range(9999))),
        ("trace", "make", "new.trace", "--acceptance", "9" * 100_000),
        ("policy", "check", "x" * 100_000),
        ("x" * 100_000,),
    ],
)
def test_what_is_long_is_not_told_at_length(trace, args):
    told = refused(*args, *(("--trace", trace) if args[0] == "compare" else ()))
    assert len(told) <= LONGEST_LINE


# -- memory and numbers


def test_memory_that_ends_is_told(capsys):
    def ends(**_):
        raise MemoryError("Unable to allocate 9 TiB")

    assert run_command(ends) == 2
    assert capsys.readouterr().err == "paceline: error: out of memory: Unable to allocate 9 TiB\n"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--prompt-tokens", "10000000000"), "requests x prompt_tokens must be <= 10,000,000"),
        (("--requests", "10000000000"), "requests x tokens must be <= 10,000,000"),
        (("--tokens", "10000000000"), "requests x tokens must be <= 10,000,000"),
        (("--vocab-size", "10000000000"), "vocab_size must be < 2**31"),
        (("--reach", "10000000000"), "reach must be <= 2,147,483,647"),
        (("--run", "10000000000"), "run must be <= 2,147,483,647"),
        (
            ("--models", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", "--acceptance", ",".join(["0.5"] * 16)),
            "at most 16, got 17",
        ),
    ],
)
def test_a_synthetic_recording_of_any_size_is_refused_at_once(tmp_path, args, told):
    assert told in refused("trace", "make", "new.trace", *args)
    assert not list(tmp_path.iterdir())


def test_contexts_that_multiply_are_refused_before_memory_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.traces.synthetic.MOST_CONTEXTS", 5000)
    options = ("--requests", "2", "--tokens", "99", "--models", "a,b,c", "--acceptance", "0.5,0.5", "--run", "99")
    assert "reach must give at most 5,000 contexts, got 99: the first" in refused(
        "trace", "make", "new.trace", *options, "--reach", "99"
    )
    assert not list(tmp_path.iterdir())


def test_seeds_are_bounded(trace):
    assert "--seeds" in refused("compare", "--trace", trace, "--seeds", "10000000000")


# -- places


@pytest.mark.parametrize(
    "args",
    [
        ("trace", "make", "small.trace/inner.trace"),
        ("compare", "--trace", "small.trace", "--log", "small.trace/logs"),
        ("compare", "--trace", "small.trace", "--json", "small.trace/meta.json"),
        ("trace", "inspect", "small.trace", "--json", "small.trace/out.json"),
        ("record", "small.trace/inner", "--prompts", "p.jsonl"),
        ("run", "--out", "small.trace/inner", "--prompts", "p.jsonl"),
        ("policy", "list", "--json", "small.trace/deep/out.json"),
    ],
)
def test_nothing_is_written_into_a_recording(trace, tmp_path, args):
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "x"}\n')
    (trace / "deep").mkdir()
    before = {path: path.read_bytes() for path in trace.rglob("*") if path.is_file()}
    assert "place: must not lie inside a recording, got " in refused(*args)
    assert {path: path.read_bytes() for path in trace.rglob("*") if path.is_file()} == before


def test_a_link_to_itself_is_told_by_name(tmp_path, trace):
    (tmp_path / "loop").symlink_to("loop")
    for args in (("trace", "make"), ("compare", "--trace", trace, "--log"), ("policy", "list", "--json")):
        assert refused(*args, "loop").startswith("loop: ")
    for args in (("trace", "inspect"), ("compare", "--trace"), ("compare", "--trace", trace, "--cost", "./loop")):
        assert "loop" in refused(*args, *(() if "--cost" in args else ("loop",)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "small.trace"]


@pytest.mark.parametrize("args", [("compare", "--trace", "small.trace"), ("policy", "list")])
def test_a_neighbour_of_the_output_stays(trace, tmp_path, args):
    (tmp_path / "out.json.part").write_text("mine")
    assert paceline(*args, "--json", "out.json").code == 0
    assert (tmp_path / "out.json.part").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.json.part", "small.trace"]


# -- as a process

COMMAND = (sys.executable, "-m", "paceline")
LIMITED = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))  # what is longer cannot be written, as on a full disk
runpy.run_module("paceline", run_name="__main__")
"""
FULL = Path("/dev/full")


def test_a_full_disk_leaves_what_was_there(tmp_path, trace):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    for args, name in (
        (("policy", "list", "--json", "link.json"), "link.json"),
        (("trace", "make", "new.trace"), "new.trace"),
        (("compare", "--trace", "small.trace", "--policy", "plain", "--log", "logs"), "logs"),
    ):
        ran = subprocess.run((sys.executable, "-c", LIMITED, *args), capture_output=True, text=True, timeout=600)
        assert (ran.returncode, ran.stdout) == (2, ""), ran
        assert ran.stderr == f"paceline: error: {name}: File too large\n"
    assert (tmp_path / "real.json").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json", "small.trace"]


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is full")
@pytest.mark.parametrize("args", [("policy", "list"), ("policy", "list", "--json", "-")])
def test_a_standard_output_that_is_full_is_told_by_name(args):
    with FULL.open("w") as full:
        ran = subprocess.run((*COMMAND, *args), stdout=full, stderr=subprocess.PIPE, text=True, timeout=600)
    assert (ran.returncode, ran.stderr) == (2, "paceline: error: standard output: No space left on device\n")


def test_importing_the_command_line_leaves_the_garbage_collector_alone():
    code = "import gc, paceline.__main__; print(gc.isenabled(), gc.get_freeze_count())"
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=600)
    assert ran.stdout == "True 0\n"


def test_a_reader_that_has_read_enough_is_no_error():
    process = subprocess.Popen((*COMMAND, "policy", "list"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait(timeout=600) == 1
    assert process.stderr.read() == ""
    process.stderr.close()


# The interrupt comes at a call of a function, counted from the beginning: on any machine at the same one.
INTERRUPTED_AT = """
import atexit, os, signal, sys
from paceline.__main__ import main

seen, wanted = 0, int(sys.argv.pop(1))

def count(*_):
    global seen
    seen += 1
    if seen == wanted:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

atexit.register(lambda: print("calls", seen))
sys.setprofile(count)
main()
"""


def interrupted_at(call):
    """A command that is interrupted at a call; 0: never."""
    command = (sys.executable, "-c", INTERRUPTED_AT, str(call), "policy", "check", "chain,spec=draft:4/target")
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def num_calls():
    ran = interrupted_at(0)
    assert (ran.returncode, ran.stderr) == (0, "")
    return int(ran.stdout.split()[-1])


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_an_interrupt_at_any_moment_is_one_line(num_calls, share):
    """Imports take most of a second, and Ctrl-C is no defect of ours."""
    ran = interrupted_at(int(share * num_calls))
    assert (ran.returncode, ran.stderr) in ((130, "paceline: error: interrupted\n"), (0, ""))


@pytest.mark.slow
def test_an_interrupt_at_many_moments_is_one_line(num_calls):
    rng = random.Random(0)
    for call in (*(rng.randrange(num_calls) + 1 for _ in range(60)), *range(num_calls - 40, num_calls, 4)):
        ran = interrupted_at(call)
        assert (ran.returncode, ran.stderr) in ((130, "paceline: error: interrupted\n"), (0, "")), call


def made_a_class():
    """Python 3.11 raises another error from an interrupt there."""

    class Named:
        def __set_name__(self, owner, name):
            signal.raise_signal(signal.SIGINT)

    type("Made", (), {"field": Named()})


def called_back():
    """As Arrow does, whose text of an error is all that is left of what a callback raised."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        raise pyarrow.ArrowInvalid(f"{type(error).__name__}: {error}") from None


@pytest.mark.parametrize("interrupted", [made_a_class, called_back])
def test_an_interrupt_that_became_another_error_is_one_line(interrupted, capsys):
    assert run_command(lambda **_: interrupted()) == 130
    assert capsys.readouterr().err == "paceline: error: interrupted\n"


def test_an_interrupt_in_a_callback_is_raised_after_it(capsys):
    """Python drops what is raised there, as in the callbacks of imports."""

    class Dying:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def interrupted():
        with one_interrupt([]):
            Dying()
            time.sleep(20)

    before, handlers = sys.unraisablehook, [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)
    assert sys.unraisablehook is before
    assert capsys.readouterr().err == ""
