"""What all rooms stand on: counts, hints, interrupts, progress, and names that stand for nothing."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from paceline.base import errors as installing
from paceline.base import terminal as module
from paceline.base.errors import LABORATORY, counted, did_you_mean, install_hint, known_are
from paceline.base.files import recording_path, shipped_names
from paceline.base.terminal import Progress, held_interrupts, in_words, quiet, tracked
from paceline.policies.by_name import make_policy, own_policies
from paceline.policies.chain_text import policy_options
from paceline.policies.check import check_pool
from paceline.runtime.forced import named_config
from paceline.runtime.forced import preset_names as forced_names
from paceline.runtime.pools.published import FETCHED_BY_POOL, published_model
from paceline.sim.cost.by_name import OnDevice, make_cost
from paceline.sim.cost.roofline import device_sheet
from paceline.sim.serving.cluster import open_cluster
from paceline.sim.serving.routers import ROUTERS, own_routers
from paceline.traces import open_recording
from paceline.traces.importers.formats import choose_format, format_named, format_names
from paceline.traces.meta import WIDTHS
from paceline.traces.shapes import FORMATS, KV_WIDTHS, preset_names
from paceline.traces.shapes_given import given_shapes
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.drawn_arrivals import KINDS
from paceline.traces.workloads.drawn_sessions import SESSION_KINDS


def test_one_has_no_plural():
    assert [counted(count, "token") for count in (0, 1, 2215)] == ["0 tokens", "1 token", "2,215 tokens"]
    assert [counted(count, "policy", "policies") for count in (1, 3)] == ["1 policy", "3 policies"]


EXTRAS = ("runtime", "parallel", "gguf", "figures", "search")
BRING_TORCH = EXTRAS[:3]
INDEX = " --extra-index-url https://download.pytorch.org/whl/cpu"


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    """A folder that reads as this package's checkout, on Linux without a GPU, with its Python's pip on the path."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("")
    monkeypatch.setattr(installing, "ROOT", tmp_path)
    monkeypatch.setattr(installing, "GPU_SIGNS", ())
    monkeypatch.setattr(sys, "platform", "linux")
    put_on_path(monkeypatch, pip=str(Path(sys.executable).with_name("pip")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put_on_path(monkeypatch, **programs):
    monkeypatch.setattr(shutil, "which", programs.get)


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_checkout_is_installed_from_its_folder_and_a_wheel_by_name(checkout, monkeypatch, extra):
    here, there, end = ("", "", "")
    if extra in BRING_TORCH:
        here, there, end = (" --constraint ./constraints.txt", f" --constraint {checkout}/constraints.txt", INDEX)
    assert install_hint(extra) == f"pip install --editable '.[{extra}]'{here}{end}"
    (checkout / "a folder").mkdir()
    monkeypatch.chdir(checkout / "a folder")
    assert install_hint(extra) == f"pip install --editable '{checkout}[{extra}]'{there}{end}"
    for file in ("pyproject.toml", "constraints.txt"):
        (checkout / file).unlink()
    assert install_hint(extra) == f"pip install 'paceline[{extra}]'{end}"


def test_the_laboratory_is_a_folder_of_the_checkout(checkout, monkeypatch):
    ours = "constraints.txt"
    assert install_hint(LABORATORY) == f"pip install --editable ./laboratory --constraint ./{ours}{INDEX}"
    monkeypatch.chdir(checkout.parent)
    there = f"{checkout}/laboratory --constraint {checkout}/{ours}"
    assert install_hint(LABORATORY) == f"pip install --editable {there}{INDEX}"
    for file in ("pyproject.toml", ours):
        (checkout / file).unlink()
    assert install_hint(LABORATORY) == f"pip install --editable ./laboratory{INDEX}"


def test_a_machine_with_a_gpu_or_none_of_linux_takes_the_builds_for_it(checkout, monkeypatch):
    with monkeypatch.context() as nvidia:
        put_on_path(nvidia, **{"pip": str(Path(sys.executable).with_name("pip")), "nvidia-smi": "/usr/bin/nvidia-smi"})
        assert install_hint("runtime") == "pip install --editable '.[runtime]'"
    with monkeypatch.context() as signs:
        signs.setattr(installing, "GPU_SIGNS", (str(checkout),))
        assert install_hint("runtime") == "pip install --editable '.[runtime]'"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert install_hint("runtime") == "pip install --editable '.[runtime]'"


@pytest.mark.parametrize("found", [None, "/usr/bin/pip"])
def test_pip_is_that_of_the_python_that_runs(checkout, monkeypatch, found):
    put_on_path(monkeypatch, pip=found)
    monkeypatch.setattr(sys, "executable", str(checkout / ".venv" / "bin" / "python"))
    assert install_hint("search") == ".venv/bin/python -m pip install --editable '.[search]'"
    monkeypatch.setattr(sys, "executable", "/opt/my python")
    assert install_hint("search") == "'/opt/my python' -m pip install --editable '.[search]'"


def test_the_first_is_heard_and_the_second_raises():
    before = signal.getsignal(signal.SIGINT)
    with held_interrupts() as interrupts:
        assert not interrupts.heard()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.heard()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_hear_nothing():
    heard = []

    def look():
        with held_interrupts() as interrupts:
            heard.append(interrupts.heard())

    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert heard == [False]


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.fixture
def often(monkeypatch):
    """Lines come every hundredth of a second, and no time goes by for whoever reads the clock."""
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 5.0))


@pytest.fixture
def an_xterm(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)


def lines_after(stream, count):
    """Waits until so many lines were written."""
    deadline_s = time.monotonic() + 300
    while stream.getvalue().count("\n") < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    return stream.getvalue().splitlines()


def test_ten_seconds():
    assert module.SECONDS_BETWEEN_LINES == 10


def test_what_is_quick_says_nothing(capsys):
    with Progress("counting", 3) as progress:
        progress.advance()
    assert list(tracked("abc", "spelling", total=3)) == ["a", "b", "c"]
    assert tuple(capsys.readouterr()) == ("", "")


def test_a_single_unit_that_lasts_is_told_again_and_again(often, capsys):
    stream = StringIO()
    with redirect_stderr(stream), Progress("recording", 3, unit="requests") as progress:
        progress.advance()
        told = stream.getvalue().count("\n") + 1  # one more may be on its way
        lines = lines_after(stream, told + 3)
    assert lines[told : told + 3] == ["paceline: recording: 1 of 3 requests, 0 s, about 0 s left"] * 3
    assert tuple(capsys.readouterr()) == ("", "")


def test_the_last_line_says_how_long_it_took(often):
    stream = StringIO()
    with redirect_stderr(stream), Progress("recording", 2, unit="requests") as progress:
        lines_after(stream, 1)
        progress.advance(2)
    said = stream.getvalue()
    assert said.endswith("paceline: recording: 2 of 2 requests, 0 s\n")
    time.sleep(0.05)
    assert stream.getvalue() == said


def test_what_fails_says_no_more(often):
    stream = StringIO()
    progress = Progress("dividing", 2)
    with redirect_stderr(stream):
        progress.__enter__()
        told = lines_after(stream, 1)
        progress.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert stream.getvalue().splitlines()[-1] == told[0]


def test_one_inside_another_is_not_shown(often, capsys):
    with quiet(), Progress("inner", 2):
        time.sleep(0.05)
    assert tuple(capsys.readouterr()) == ("", "")


def test_where_nobody_reads_it_goes_on(often):
    stream = StringIO()
    with redirect_stderr(stream), Progress("writing", 2) as progress:
        stream.close()
        time.sleep(0.05)
        progress.advance()


@pytest.mark.parametrize(
    ("options", "done", "taken_s", "line"),
    [
        ({"total": 12, "unit": "requests"}, 3, 41, "x: 3 of 12 requests, 41 s, about 2 min left"),
        ({"total": 12, "unit": "policies", "alike": False}, 11, 5, "x: 11 of 12 policies, 5 s"),
        (
            {"total": 12, "unit": "searches", "at_most": True},
            6,
            30,
            "x: 6 of at most 12 searches, 30 s, about 30 s left, or less",
        ),
        ({"total": 12, "done": 8}, 10, 30, "x: 10 of 12, 30 s, about 30 s left"),
        ({"total": 12, "told_after": 5}, 4, 30, "x: 4 of 12, 30 s"),
        ({"total": 12, "told_after": 5}, 6, 30, "x: 6 of 12, 30 s, about 30 s left"),
        ({"total": 12, "done": 8, "told_after": 5}, 10, 30, "x: 10 of 12, 30 s"),
        ({"total": 12, "done": 8}, 8, 30, "x: 8 of 12, 30 s"),
        ({"total": 12}, 11.5, 46, "x: 11 of 12, 46 s, about 2 s left"),
        ({"total": 12}, 12, 7300, "x: 12 of 12, 2.0 h"),
        ({"unit": "requests"}, 1200, 20, "x: 1,200 requests, 20 s"),
        ({}, 0, 10, "x: 10 s"),
    ],
)
def test_a_line_says_how_far_and_how_long_to_go(often, options, done, taken_s, line):
    progress = Progress("x", **options)
    progress.advance_to(done)
    progress._started_at_s -= taken_s
    assert progress.line == line


def test_a_last_unit_that_takes_longer_than_others_has_no_time_left(often):
    """How long it still takes is not known, so that no promise of 0 s stands for minutes; an earlier one is over."""
    for done, told in ((11, ""), (10, ", about 14 s left")):
        progress = Progress("x", 12)
        progress.advance_to(done)
        progress._started_at_s -= 150
        progress._advanced_at_s -= 40
        assert progress.line == f"x: {done} of 12, 2 min{told}"


def test_a_total_may_change(often):
    progress = Progress("x", 12, at_most=True)
    progress._started_at_s -= 30
    progress.advance_to(6, total=8)
    assert progress.line == "x: 6 of at most 8, 30 s, about 10 s left, or less"


def test_a_note_stands_in_the_line(often):
    progress = Progress("replaying", 4)
    progress.advance_to(1, "plain")
    assert progress.line == "replaying: 1 of 4, plain, 0 s, about 0 s left"
    progress.note("ngram, seed 3 of 5")
    assert "1 of 4, ngram, seed 3 of 5, 0 s" in progress.line


def test_a_terminal_has_a_bar_and_keeps_nothing_of_it(often, an_xterm, capsys):
    stream = Terminal()
    with redirect_stderr(stream), Progress("recording", 3, unit="requests") as progress:
        progress.advance(2)
        deadline_s = time.monotonic() + 300
        while "2 of 3 requests" not in stream.getvalue() and time.monotonic() < deadline_s:
            time.sleep(0.005)
    shown = stream.getvalue()
    assert "recording" in shown
    assert "2 of 3 requests" in shown
    assert "paceline:" not in shown
    assert shown.endswith("\x1b[2K")  # the line is erased
    assert tuple(capsys.readouterr()) == ("", "")


def test_words_for_a_span():
    assert [in_words(seconds) for seconds in (0.2, 99, 130, 5999, 9000)] == ["0 s", "99 s", "2 min", "100 min", "2.5 h"]


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512, "dtype": "bfloat16",
}  # fmt: skip
ARCHITECTURES = ("LlamaForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForConditionalGeneration", "Eagle3Speculator")
POOL = Path("pool.toml")


@cache
def pico():
    return open_recording(recording_path(None))


def config(**changes):
    """Reads a config with these changes, in which NAME stands for the name."""

    def read(name):
        Path("config.json").write_text(json.dumps(LLAMA | changes).replace("NAME", name))
        given_shapes(["target=config.json"], "target")

    return read


def cluster(table):
    def read(name):
        Path("c.toml").write_text(table.replace("NAME", name))
        open_cluster("c.toml", pico())

    return read


KINDS_OF_NAMES: dict[str, tuple[Iterable[str], Callable[[str], object]]] = {
    "policy": (own_policies(), lambda name: make_policy(name, check_pool())),
    "option of a policy": (
        policy_options(own_policies()["specrouter"]),
        lambda name: make_policy(f"specrouter,{name}=1", check_pool()),
    ),
    "router": (own_routers(), ROUTERS.parse),
    "cluster": (device_sheet(), lambda name: open_cluster(name, pico())),
    "device of a cluster": (device_sheet(), cluster('[[replicas]]\ndevice = "NAME"')),
    "device like": (device_sheet(), cluster('[[replicas]]\ndevice = "m"\n[devices.m]\nlike = "NAME"')),
    "router of a cluster": (own_routers(), cluster('[[replicas]]\ndevice = "h100"\n[router]\nname = "NAME"')),
    "cost": (device_sheet(), lambda name: make_cost(name, pico())),
    "on": (device_sheet(), lambda name: make_cost("cpu", pico(), on=OnDevice(device=name))),
    "format": (format_names(), format_named),
    "format or auto": (format_names(), lambda name: choose_format(name, [Path("x")])),
    "generator": ((*KINDS, *SESSION_KINDS), lambda name: open_workload(f"{name}:rate=1")),
    "option of a generator": (("rate", "requests", "seconds"), lambda name: open_workload(f"poisson:{name}=1")),
    "preset": (preset_names(), lambda name: given_shapes([f"draft={name}"], "target")),
    "weights": (FORMATS, lambda name: given_shapes([f"llama-3.1-8b@{name}"], "target")),
    "cache": (KV_WIDTHS, lambda name: given_shapes([f"llama-3.1-8b@kv={name}"], "target")),
    "preset of a forced pool": (forced_names(), lambda name: named_config(POOL, "members[0].config", name, 64)),
    "architecture": (ARCHITECTURES, config(architectures=["NAME"])),
    "model type": (("llama", "qwen3_moe", "gemma3_text"), config(model_type="NAME")),
    "dtype": (WIDTHS, config(dtype="NAME")),
    "method of quantisation": (
        ("fp8", "compressed-tensors", "bitsandbytes"),
        config(quantization_config={"quant_method": "NAME"}),
    ),
    "recording": (shipped_names("recordings", ".trace"), lambda name: open_recording(recording_path(name))),
    "pool to fetch": (FETCHED_BY_POOL, published_model),
}


def refusal(use, name):
    """What is said of a name; None if it means something after all."""
    try:
        use(name)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", KINDS_OF_NAMES)
@pytest.mark.parametrize("name", ["zzz", "no-such-name-at-all-" * 2, "größe"])
def test_an_unknown_name_is_refused_in_one_short_line(tmp_path, monkeypatch, kind, name):
    monkeypatch.chdir(tmp_path)
    told = refusal(KINDS_OF_NAMES[kind][1], name)
    assert told is not None
    assert len(told) <= 300
    assert "\n" not in told


@pytest.mark.parametrize("kind", KINDS_OF_NAMES)
def test_a_nearly_right_name_is_told_which_one_is_meant(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    known, use = KINDS_OF_NAMES[kind]
    seen = 0
    for name in known:
        middle = len(name) // 2
        for near in (name[:middle] + name[middle + 1 :], name[:middle] + name[middle - 1 :], name + "x"):
            told = refusal(use, near)
            if told is None or near in known or near == name:  # 1.7b and 17b, say, are both names
                continue
            seen += 1
            assert name in told, near
            assert len(told) <= 300
            assert "\n" not in told
    assert seen


def test_a_long_list_is_cut_and_counted():
    names = [f"name-{number}" for number in range(100)]
    told = known_are("other", names, "or a FILE", where="a page")
    assert told.startswith("known are name-0, name-1, ")
    assert told.endswith(", ... (100 in all: a page), or a FILE")
    assert len(told) < 200
    assert known_are("other", ["a", "b"], where="a page") == "known are a, b"


def test_a_name_is_near_in_whatever_case_it_is():
    assert did_you_mean("llamaforcausallm", ["LlamaForCausalLM", "other"]) == "did you mean LlamaForCausalLM?"
    assert did_you_mean(None, ["None"]) == ""
