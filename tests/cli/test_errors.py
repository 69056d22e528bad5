"""Bad input, a full disk, Ctrl-C or a screen of ASCII alone: one line that can be read, and an exit code."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pytest
from paceline.base.errors import as_options
from paceline.cli.errors import LONGEST_LINE, one_interrupt, one_line, run_command

from ..progress import without_progress
from .command_line import done, refused


def compare(trace, *args):
    return refused("compare", "--trace", trace, *args)


# -- numbers and names of options
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--batch", "99999999999999999999", "--batch"),
        ("--seeds", "10000000000", "'--seeds': Input should be less than or equal to 1000, got '10000000000'"),
        ("--seed", "two", "'--seed': Input should be a valid integer, unable to parse string as an integer, got 'two'"),
        ("--decide-seconds", "-1", "--decide-seconds"),
        ("--decide-seconds", "inf", "--decide-seconds must be in [0, 1e+09], got inf"),
        ("--decide-seconds", "1e308", "--decide-seconds must be in [0, 1e+09], got 1e+308"),
        ("--cost", "v100", "unknown cost 'v100': known are a10, a100, a100-40gb, a100-80gb, b200, cpu, cpu-"),
        ("--cost", "missing.json", "missing.json: file: must be a readable file, got 'No such file or directory'"),
        ("--polic", "plain", "No such option: --polic"),
    ],
)
def test_an_option_that_cannot_be(trace, option, value, told):
    assert told in compare(trace, option, value, "--log", "logs")
    assert [file.name for file in trace.parent.iterdir()] == ["small.trace"]


@pytest.mark.parametrize(("option", "values"), [("--rate", (5, 20)), ("--seeds", (2, 2)), ("--cost", ("a100", "h100"))])
def test_an_option_of_one_value_is_taken_once(trace, option, values):
    typed = [word for value in values for word in (option, value)]
    assert compare(trace, *typed).endswith(f"'{option}': must be given once, got it 2 times")
    assert "must be given once" not in compare(trace, "--policy", "nope", "--policy", "nope2", "--by-tag", "--by-tag")


def test_a_batch_larger_than_was_measured(trace):
    line = compare(trace, "--policy", "draft:4/target", "--cost", "mine.json", "--log", "logs")
    assert "mine.json" in line
    table = {"new_tokens": [1, 8], "seconds": [1.0, 2.0]}
    costs = trace.parent / "mine.json"
    costs.write_text(json.dumps(dict.fromkeys(("draft", "mid", "target"), table)))
    line = compare(trace, "--batch", "3", "--policy", "draft:4/target", "--cost", "mine.json", "--log", "logs")
    assert line == (
        "cost mine.json: target was measured for 1 to 8 new tokens a forward, asked for 12; "
        "use a smaller batch or window, another cost, or --extrapolate"
    )
    assert sorted(file.name for file in trace.parent.iterdir()) == ["mine.json", "small.trace"]


# -- synthetic recordings
@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--acceptance", "0.5,x"], "acceptance must hold numbers with commas between, got 'x'"),
        (["--models", "a,,b"], "models must hold names with commas between, got 'a,,b'"),
        (["--models", "a:1,b"], "ModelInfo.name: String should match pattern"),
        (["--tags", ""], "tags must hold names with commas between, got ''"),
    ],
)
def test_a_synthetic_recording_that_cannot_be(tmp_path, args, told):
    assert told in refused("trace", "make", "new.trace", *args)
    assert not list(tmp_path.iterdir())


def test_a_recording_is_never_overwritten(trace):
    before = (trace / "nodes.parquet").read_bytes()
    line = refused("trace", "make", trace)
    assert line == f"{trace}: exists already; a recording is never overwritten"
    assert (trace / "nodes.parquet").read_bytes() == before


# -- outputs


def test_a_wrong_output_is_refused_before_the_run(trace, monkeypatch):
    monkeypatch.setattr("paceline.studies.compare.simulate", lambda *_, **__: pytest.fail("it ran"))
    compare(trace, "--json", "no/out.json")
    (trace.parent / "logs").mkdir()
    compare(trace, "--log", "logs")


def test_a_json_file_is_untouched_when_the_run_fails(trace, tmp_path):
    (tmp_path / "out.json").write_text("old")
    compare(trace, "--json", "out.json", "--policy", "draft:9/mid:9/target", "--strict")
    assert (tmp_path / "out.json").read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.json", "small.trace"]


def test_run_logs_are_never_overwritten_and_appear_together_or_not_at_all(trace, tmp_path):
    """The first policy ends well, the second does not."""
    compare(trace, "--policy", "plain", "--policy", "draft:9/mid:9/target", "--strict", "--log", "new")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    for name in ("folder", "file"):
        assert compare(trace, "--log", name) == f"{name}: exists already; a run is never overwritten"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder", "small.trace"]


# -- lines
def test_a_line_of_a_hundred_thousand_characters_is_cut_in_the_value():
    line = one_line(f"mine.json: field must be short, got {'x' * 100_000!r} (line 3)")
    assert line.startswith("mine.json: field must be short, got 'xxxx")
    assert line.endswith("xxxx' (line 3)")
    assert len(line) < 400


def test_arguments_become_options():
    assert as_options("`decide_s` must fit `batch` and `top_k`") == "--decide-seconds must fit --batch and --top-k"


def test_fields_of_files_stay_what_they_are():
    rule = "must be there (`detailed`): `windows` x=K, `names`, `requests`, `output_tokens` or `replace`"
    told = "must be there (`detailed`): --window x=K, --drafter, --requests, --output-tokens or --replace"
    assert as_options(rule, rule=True) == told


def test_a_line_of_many_words_is_cut_in_the_middle():
    line = one_line(f"unknown 'a': known are {', '.join(map(str, range(100_000)))}; choose one")
    assert line.startswith("unknown 'a': known are 0, 1, 2")
    assert line.endswith("99999; choose one")
    assert len(line) == LONGEST_LINE


# -- memory and numbers
def test_memory_that_ends_is_told(capsys):
    def ends(**_):
        raise MemoryError("Unable to allocate 9 TiB")

    assert run_command(ends) == 2
    assert capsys.readouterr().err == "paceline: error: out of memory: Unable to allocate 9 TiB\n"


def test_contexts_that_multiply_are_refused_before_memory_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.traces.synthetic.MOST_CONTEXTS", 5000)
    options = ("--requests", "2", "--tokens", "99", "--models", "a,b,c", "--acceptance", "0.5,0.5", "--run", "99")
    assert "reach must give at most 5,000 contexts, got 99: the first" in refused(
        "trace", "make", "new.trace", *options, "--reach", "99"
    )
    assert not list(tmp_path.iterdir())


# -- places


# -- as a process
COMMAND = (sys.executable, "-m", "paceline")
LIMITED = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))  # what is longer cannot be written, as on a full disk
runpy.run_module("paceline", run_name="__main__")
"""
FULL = Path("/dev/full")
ON_WINDOWS = """
import sys
import uvicorn.protocols.http.h11_impl
import paceline.cli.serving, paceline.runtime.sandbox
import paceline.server.listening
ours = [name for name in sys.modules if name in ("paceline.server.listening", "paceline.runtime.code_process")]
for name in ours:
    del sys.modules[name]
sys.modules["resource"], sys.platform = None, "win32"
import paceline.runtime.code_process
from paceline.server.listening import allow_many
allow_many()
print(*sorted(ours))
"""


def test_no_module_needs_what_windows_lacks():
    ran = subprocess.run((sys.executable, "-c", ON_WINDOWS), capture_output=True, text=True, timeout=600)
    assert ran.stdout.split() == ["paceline.runtime.code_process", "paceline.server.listening"], ran.stderr


@pytest.mark.slow
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
    """(exit code, what it said, what it printed) of a command that is interrupted at a call; 0: never."""
    command = (sys.executable, "-c", INTERRUPTED_AT, str(call), "policy", "check", "chain,spec=draft:4/target")
    # Else sets have another order each time, and a call is another one.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    return ran.returncode, without_progress(ran.stderr), ran.stdout


@pytest.fixture(scope="module")
def num_calls():
    code, said, printed = interrupted_at(0)
    assert (code, said) == (0, "")
    return int(printed.split()[-1])


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_an_interrupt_at_any_moment_is_one_line(num_calls, share):
    """Imports take most of a second, and Ctrl-C is no defect of ours."""
    assert interrupted_at(int(share * num_calls))[:2] in ((130, "paceline: error: interrupted\n"), (0, ""))


@pytest.mark.slow
def test_an_interrupt_at_many_moments_is_one_line(num_calls):
    rng = random.Random(0)
    for call in (*(rng.randrange(num_calls) + 1 for _ in range(60)), *range(num_calls - 40, num_calls, 4)):
        assert interrupted_at(call)[:2] in ((130, "paceline: error: interrupted\n"), (0, "")), call


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


ASCII = {"LC_ALL": "POSIX"}
COMPARE = (
    "compare",
    "--trace",
    "small.trace",
    "--policy",
    "draft:9/mid:9/target",
    "--detail",
    "--by-tag",
    "--seeds",
    "2",
)
LOSSY = ("compare", "--trace", "small.trace", "--policy", "via-sd,slim=mid", "--policy", "adaptive")


def ran(*args, **environment):
    """The real command in an environment that says nothing else of languages; bytes."""
    unset = ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING", "PYTHONUTF8")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-m", "paceline", *args], capture_output=True, check=False, env={**kept, **environment}
    )


def test_tables_are_drawn_in_ascii(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = ("--models", "draft,mid,target", "--acceptance", "0.6,0.8")
    done("trace", "make", "small.trace", "--requests", "6", "--tokens", "12", *models)
    run = ran(*COMPARE, **ASCII)
    text = run.stdout.decode("ascii")
    assert (run.returncode, run.stderr) == (0, b"")
    for words in ("+-", "|draft:9/mid:9/target", "+-: 95% interval"):
        assert words in text.replace("| draft", "|draft")


@pytest.mark.parametrize("environment", [{"LANG": "C"}, {"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}], ids=str)
def test_boxes_are_drawn_where_they_are_shown(trace, environment):
    run = ran("compare", "--trace", "small.trace", "--policy", "plain", **environment)
    assert "┃" in run.stdout.decode("utf-8")


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("words", [COMPARE, LOSSY], ids=" ".join)
def test_no_line_ends_in_spaces(trace, words, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = done(*words).splitlines()
    assert [line for line in lines if line != line.rstrip()] == []


def test_json_does_not_change(trace):
    words = ("compare", "--trace", "small.trace", "--policy", "adaptive", "--json", "-")
    plain = ran(*words, **ASCII).stdout.decode("ascii")
    assert plain == done(*words)
    assert json.loads(plain)["policies"]


def test_a_name_that_cannot_be_shown_is_spelled(trace, tmp_path):
    (tmp_path / "größe.py").write_text("from paceline.policies.fixed import Plain\n", encoding="utf-8")
    # What the terminal sent is UTF-8 whatever the locale says of output.
    shows = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"}
    run = ran("compare", "--trace", "small.trace", "--policy", "größe.py:Plain", **shows)
    assert run.returncode == 0, run.stderr
    assert b"gr\\xf6\\xdfe.py:Plain" in run.stdout
    run = ran("compare", "--trace", "größe.trace", **shows)
    assert run.returncode == 2
    assert run.stderr.startswith(b"paceline: error: gr\\xf6\\xdfe.trace: ")
