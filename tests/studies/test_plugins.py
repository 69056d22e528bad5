"""Packages that `plugin new` writes install, pass their own tests, and are found by name."""

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from math import inf, nan
from random import Random

import numpy as np
import paceline
import pytest
from paceline.base import by_name
from paceline.base.errors import innermost, is_foreign
from paceline.sim.cost.base import CostModel
from paceline.sim.cost.by_name import ForeignCost, make_cost
from paceline.studies.doctor import doctor
from paceline.studies.plugins import KINDS, new_plugin
from paceline.studies.setting import open_recording
from paceline.traces.importers.steps import POSITIONS
from paceline.traces.workloads import Arrival
from paceline.traces.workloads.registered import OfClass

from ..cli.command_line import done, refused, run

# The first setuptools that builds wheels by itself; an older one needs a place of its own to build in.
BUILDS = (70, 1)


def has_own_builder():
    if importlib.util.find_spec("setuptools") is None:
        return False
    version = importlib.metadata.version("setuptools").split(".")
    return tuple(map(int, version[:2])) >= BUILDS


# How each kind is used once it is installed, and what that prints.
USED = {
    "policy": (("policy", "check", "my-policy"), "keeps the contract"),
    "router": (
        (
            "simulate",
            "--cluster",
            "mine/cluster.toml",
            "--workload",
            "poisson:rate=9,requests=9",
            "--policy",
            "plain",
            "--json",
            "-",
        ),
        '"router": "my-router"',
    ),
    "cost": (("compare", "--trace", "pico", "--cost", "my-cost,start_s=0.02"), "cost my-cost (start_s=0.02)"),
    "workload": (
        ("simulate", "--cluster", "mine/cluster.toml", "--workload", "my-workload:requests=9", "--policy", "plain"),
        "my-workload",
    ),
    "importer": (
        ("trace", "import", "auto", "mine/tests/example.jsonl", "--out", "x.trace"),
        "saw logs of my-importer",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_installs_passes_its_own_test_and_is_used(kind, tmp_path):
    """In a folder of installed packages that holds nothing else; paceline and pytest are those that run here."""
    done("plugin", "new", kind, f"my-{kind}", "--out", tmp_path / "mine")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check")
    isolation = ("--no-build-isolation",) if has_own_builder() else ()
    run([*pip, *isolation, "--target", tmp_path / "site", tmp_path / "mine"], tmp_path)
    installed = {"PYTHONPATH": str(tmp_path / "site")}
    passed = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine"], tmp_path, **installed)
    assert " passed" in passed
    words, told = USED[kind]
    assert told in run([sys.executable, "-m", "paceline", *words], tmp_path, **installed)
    listed = json.loads(run([sys.executable, "-m", "paceline", "doctor", "--json", "-"], tmp_path, **installed))
    assert listed["plugins"] == [{"kind": kind, "name": f"my-{kind}", "unusable": ""}]


def written(kind, folder, monkeypatch):
    """A new package whose modules are found; it is not installed."""
    made = new_plugin(kind, f"my-{kind}", folder / "mine")
    monkeypatch.syspath_prepend(folder / "mine")
    module = importlib.import_module(f"paceline_my_{kind}")
    monkeypatch.delitem(sys.modules, module.__name__)
    assert made.folder == str(folder / "mine")
    return module


def test_a_new_cost_is_sound_and_used_by_the_name_of_its_class(tmp_path, monkeypatch):
    cls = written("cost", tmp_path, monkeypatch).MyCost
    paceline.check_cost(cls)
    called = "paceline_my_cost:MyCost,start_s=0.02"
    assert "cost my-cost (start_s=0.02)" in done("compare", "--trace", "pico", "--policy", "plain", "--cost", called)


def test_a_new_workload_is_sound_and_used_by_the_name_of_its_class(tmp_path, monkeypatch):
    paceline.check_workload(written("workload", tmp_path, monkeypatch).MyWorkload, requests=9)
    file = tmp_path / "mine" / "paceline_my_workload" / "__init__.py"
    told = done("workload", f"{file}:MyWorkload,requests=9", "--rate", "20")
    assert "times of arrival are scaled by" in told
    assert "given by paceline_workload_file___init__:MyWorkload, seed 0" in told


def test_a_new_importer_is_sound_and_used_by_the_name_of_its_format(tmp_path, monkeypatch):
    example = tmp_path / "mine" / "tests" / "example.jsonl"
    format_name = "paceline_my_importer:MY_IMPORTER"
    paceline.check_importer(written("importer", tmp_path, monkeypatch).MY_IMPORTER, [example])
    told = done("trace", "import", format_name, example, "--out", tmp_path / "a.trace")
    assert "imported from my-importer (rounds known in order), 2 requests" in told


def test_a_new_router_is_sound(tmp_path, monkeypatch):
    paceline.check_router(written("router", tmp_path, monkeypatch).MyRouter, weight=2.0)


BROKEN = """
raise KeyError("x")
"""
EMPTY = """
class Mine:
    pass


def function(seed):
    return Mine()
"""
CLUSTER = "[[replicas]]\ndevice = 'cpu-roofline'\n[router]\nname = 'bad'\n"
# What each kind is named in.
NAMED = {
    "policy": ("compare", "--trace", "pico", "--policy", "bad"),
    "router": ("simulate", "--cluster", "c.toml", "--workload", "poisson:rate=9,requests=9"),
    "cost": ("compare", "--trace", "pico", "--cost", "bad"),
    "workload": ("workload", "bad:requests=3"),
    "importer": ("trace", "import", "bad", "c.toml", "--out", "x.trace"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_bad_packages_are_refused_by_name(kind, tmp_path, monkeypatch):
    """Registered and broken, no such thing, or under a name of ours."""
    ours = next(iter(KINDS[kind].own()))
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "bad_broken.py").write_text(BROKEN)
    (tmp_path / "bad_empty.py").write_text(EMPTY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    said = {
        "bad_broken:Mine": f"{kind} 'bad': loading bad_broken:Mine raised KeyError: 'x' (bad_broken.py:2)",
        "bad_nowhere:Mine": f"{kind} 'bad': loading bad_nowhere:Mine raised ModuleNotFoundError",
        "bad_empty:Mine": f"{kind} 'bad': bad_empty:Mine is not a ",
        "bad_empty:function": f"{kind} 'bad': bad_empty:function is not a ",
    }
    for place, told in said.items():
        points = [EntryPoint(name=name, value=place, group=KINDS[kind].group) for name in ("bad", ours)]
        monkeypatch.setattr(
            by_name, "entry_points", lambda group, points=points: [p for p in points if p.group == group]
        )
        assert told in refused(*NAMED[kind])
        reasons = KINDS[kind].of_packages()
        assert told in str(reasons["bad"])
        assert str(reasons[ours]) == f"{kind} {ours!r} is paceline's own: name {place} as module:Class"
    assert {one.name for one in doctor().plugins if one.unusable} == {"bad", ours}
    monkeypatch.delitem(sys.modules, "bad_empty")
    assert not (tmp_path / "x.trace").exists()


class Flat(CostModel):
    name = "flat"
    seconds = 1.0

    def __init__(self, recording):
        pass

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return type(self).seconds


class Growing(Flat):
    seconds = 0.0

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        Growing.seconds += 1
        return Growing.seconds


class Nameless(Flat):
    name = None


class Timeless(Flat):
    lookup_s = None


class Raising(Flat):
    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return 1 / (context_tokens > 100_000)


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        (Nameless, "cost 'Nameless': must have a name, which tables show"),
        (Timeless, "cost 'Timeless': lookup_s must be seconds >= 0 and finite, got None"),
        (type("Looks", (Flat,), {"lookups_s": lambda self, n: None}), "lookups_s(1) must be seconds >= 0 and finite"),
        (type("Lined", (Flat,), {"unlined": lambda self: None}), "unlined() must be a text"),
        (type("Noted", (Flat,), {"notes": lambda self: "mine"}), "notes() must be a tuple of texts, got 'mine'"),
        (type("Noted", (Flat,), {"notes": lambda self: None}), "notes() must be a tuple of texts, got None"),
        (type("Noted", (Flat,), {"notes": lambda self: 1 / 0}), "notes() raised ZeroDivisionError: division by zero"),
        (type("Drafts", (Flat,), {"draft_terms": lambda self, model: 5}), "draft_terms('draft') must be DraftTerms"),
        (Growing, "must be the same each time"),
        (Raising, "raised ZeroDivisionError: division by zero"),
        (lambda recording: object(), "its class must derive from paceline.sim.cost.base.CostModel"),
        *(
            (type("Bad", (Flat,), {"seconds": bad}), "must be seconds above 0, got ")
            for bad in (0, -1.0, inf, nan, "1")
        ),
    ],
)
def test_a_cost_that_breaks_the_contract_is_told(cost, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        paceline.check_cost(cost)


def test_a_sound_cost_passes_and_one_outside_a_package_is_checked_before_it_is_used(tmp_path):
    paceline.check_cost(Flat)
    paceline.check_cost(type("Numpys", (Flat,), {"seconds": np.float32(0.5)}))
    (tmp_path / "mine.py").write_text(
        "from paceline.sim.cost.base import CostModel\n\n\nclass Zero(CostModel):\n    name = 'zero'\n\n"
        "    def __init__(self, recording):\n        pass\n\n"
        "    def forward_s(self, model, **shape):\n        return 0.0\n"
    )
    called = f"{tmp_path / 'mine.py'}:Zero"
    told = refused("compare", "--trace", "pico", "--cost", called)
    assert "new_tokens=1, context_tokens=0) must be seconds above 0, got 0.0" in told
    told = refused("compare", "--trace", "pico", "--cost", f"{called},x=1")
    assert told.endswith("unknown option 'x'; it takes no options")
    assert "--extrapolate is for measured tables" in refused(
        "compare", "--trace", "pico", "--cost", called, "--extrapolate"
    )


LINED_COST = """
from math import inf, nan

from numpy import float32, int64
from paceline.sim.cost.base import ContextLine, CostModel, CostRangeError


class Lined(CostModel):
    name = "lined"

    def __init__(self, recording, line: str = ""):
        self.line = line

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        if context_tokens > 1000 * num_rows:
            raise CostRangeError("no more than 1,000 tokens are known")
        assert not context_tokens % num_rows
        return 0.01 + 1e-6 * context_tokens

    def unlined(self):
        return ""

    def context_line(self, model, *, num_rows, new_tokens, context_tokens):
        start = context_tokens // 64 * 64
        return eval(self.line.replace(";", ","))
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ContextLine(start; start + 64; 0.01 + 1e-6 * start; 1e-6)", ""),
        ("ContextLine(0; inf; 0.01; 1e-6)", ""),
        ("ContextLine(int64(0); int64(10**9); float32(0.01); float32(1e-6))", ""),
        ("ContextLine(0; 0.5; 0.01; 1e-6)", ""),
        ("None", "must be a ContextLine of numbers around the tokens held, got None"),
        ("ContextLine(0; inf; '0.01'; 0)", "must be a ContextLine of numbers around the tokens held"),
        ("ContextLine(start + 64; inf; 0.01; 1e-6)", "must be a ContextLine of numbers around the tokens held"),
        ("ContextLine(0; inf; 0.5; 1e-6)", "must be the 0.01 s of forward_s at 0 tokens held, got 0.5"),
        ("ContextLine(0; inf; 0.01; 0.0)", "of forward_s at 998 tokens held, got 0.01"),
        ("ContextLine(0; inf; nan; 0.0)", "must be the 0.01 s of forward_s at 0 tokens held, got nan"),
        ("1 / 0", "raised ZeroDivisionError: division by zero ("),
    ],
)
def test_the_lines_of_a_cost_are_those_of_its_forwards(tmp_path, line, told):
    """Under load forwards are read off lines: other lines would give other seconds than `compare`, in silence."""
    path = tmp_path / "mine.py"
    path.write_text(LINED_COST.replace("self.line = line", f"self.line = {line!r}"))
    cost = make_cost(f"{path}:Lined", open_recording("pico"))
    asked = {"num_rows": 2, "new_tokens": 4, "context_tokens": 0}
    if not told:
        found = cost.context_line("target", **asked)
        assert found.start == 0
        assert {type(number) for number in found} <= {int, float}
        if found.end > 10**6:  # it is longer than what the cost knows
            assert cost.context_line("target", **asked | {"context_tokens": 1000}) == found
        return
    with pytest.raises(ValueError, match=re.escape(told)) as raised:
        cost.context_line("target", **asked)
    assert str(raised.value).startswith(f"cost '{path}:Lined': context_line('target', num_rows=2, new_tokens=4, ")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (0.01, ""),
        (np.float32(0.25), ""),
        *((bad, f"got {bad!r}") for bad in (-0.01, 0, float("nan"), float("inf"), None, "0.01")),
        ("raises", "raised ZeroDivisionError"),
    ],
)
def test_seconds_of_a_shared_text_are_checked(given, told):
    class Shared(CostModel):
        name, knows_reads = "shared", True

        def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
            return 0.01

        def shared_forward_s(self, model, *, num_rows, new_tokens, context_tokens, read_tokens):
            return given if given != "raises" else 1 / 0

    cost = ForeignCost(Shared(), "target", "shared")
    asked = {"num_rows": 2, "new_tokens": 2, "context_tokens": 80, "read_tokens": 50}
    if not told:
        assert cost.shared_forward_s("target", **asked) == given
        return
    rule = r"cost 'shared': shared_forward_s\('target', num_rows=2, .*, read_tokens=50\) .*" + re.escape(told)
    with pytest.raises(ValueError, match=rule):
        cost.shared_forward_s("target", **asked)


def test_an_async_method_is_refused_in_one_line(tmp_path):
    """Python adds three lines of its own about what was never awaited."""
    (tmp_path / "mine.py").write_text(LATE_COST.replace("def forward_s", "async def forward_s"))
    called = f"{tmp_path / 'mine.py'}:Late"
    asked = [sys.executable, "-m", "paceline", "compare", "--trace", "pico", "--policy", "plain", "--cost", called]
    ran = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "must be seconds above 0, got <coroutine object Late.forward_s>" in ran.stderr


LATE_COST = """
from paceline.sim.cost.base import CostModel


class Late(CostModel):
    name = "late"

    def __init__(self, recording, given: str = ""):
        self.left, self.given = 60, given

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        self.left -= 1
        return 0.01 if self.left >= 0 else {"none": None, "text": "0.01", "nan": float("nan")}[self.given]
"""


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("none", "must be seconds above 0, got None"),
        ("text", "must be seconds above 0, got '0.01'"),
        ("nan", "must be seconds above 0, got nan"),
        ("raises", "/mine.py:13)"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ["compare", "--trace", "pico"],
        ["simulate", "--cluster", "h100", "--workload", "poisson:rate=50,requests=20"],
        ["compare", "--cluster", "h100", "--workload", "poisson:rate=50,requests=20", "--scale", "draft=2"],
    ],
)
def test_a_cost_that_gives_no_number_late_in_a_run_is_told(tmp_path, command, given, shown):
    (tmp_path / "mine.py").write_text(LATE_COST)
    called = f"{tmp_path / 'mine.py'}:Late,given={given}"
    told = refused(*command, "--policy", "draft:2/target", "--cost", called)
    assert f"cost '{called}': forward_s('" in told
    assert told.endswith(shown)


@pytest.mark.parametrize("scale", [{}, {"draft": 2.0}])
def test_a_cost_of_users_is_foreign_however_it_is_wrapped(tmp_path, scale):
    """Runs and seconds of foreign code are not kept for others: it may differ from call to call."""
    (tmp_path / "mine.py").write_text(LATE_COST)
    cost = make_cost(f"{tmp_path / 'mine.py'}:Late,given=none", open_recording("pico"), scale=scale)
    assert is_foreign(type(innermost(cost)))


def workload(*rows, seeds=False, **also):
    """A class that gives these requests, later ones by another seed; `also` are its attributes."""
    given = [Arrival(*row) for row in rows]

    def arrivals(self):
        return [one._replace(output_tokens=one.output_tokens + self.seed * seeds) for one in given]

    made = {"__init__": lambda self, seed: setattr(self, "seed", seed), "arrivals": arrivals, "drawn": seeds}
    return type("Mine", (), made | also)


ONE, TWO = ("a", 0, 8, 5), ("b", 7, 9, 6)


@pytest.mark.parametrize(
    ("unit", "ids", "told"),
    [
        (4, {"blocks": (1, 2, 3, 4)}, "blocks must be one for each 4 tokens of the prompt, 9, got 4"),
        (2, {"blocks": (1,), "answer": (7,)}, "blocks must be one for each 2 tokens of the prompt, 9, got 1"),
        (4, {"blocks": (1, 1)}, "block 1 must not be repeated"),
        (0, {"blocks": (1,)}, "blocks must be empty without unit_tokens, got 1"),
        (0, {"answer": (7,)}, "answer must be empty without unit_tokens, got 1"),
        (4, {"blocks": (1, 2), "answer": (7,)}, ""),
        (4, {"blocks": (1,)}, ""),
    ],
)
def test_ids_of_text_that_do_not_fit_name_their_request_in_a_run_too(unit, ids, told):
    source = OfClass(made=None, label="mine", unit_tokens=unit, drawn=False, seed=0)
    if not told:
        assert tuple(source.checked(Arrival(*TWO, **ids), 0).blocks) == ids["blocks"]
        return
    with pytest.raises(ValueError, match=f"^workload 'mine': request b: {told}$"):
        source.checked(Arrival(*TWO, **ids), 0)


class Follows:
    """Turns that give what they are told to."""

    def __init__(self, depths=(), *, reached=(), after=()):
        self.depths, self._reached, self._after = depths, reached, after

    def reached(self, depth, at_ps):
        return self._reached

    def after(self, ended_ps):
        return self._after


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (workload(), "must give a request, got none"),
        (workload(TWO, ONE), "request a: arrives_ps must be a whole number in [7, "),
        (workload(ONE, ONE), "request ids must be unique, got 'a' twice"),
        (workload(("a", 0, 0, 5)), "request a: prompt_tokens must be a whole number in [1, 2147483647], got 0"),
        (workload(("a", 0.5, 1, 5)), "request a: arrives_ps must be a whole number"),
        (workload(("", 0, 1, 5)), "request_id must be printable text, got ''"),
        (workload(("a", 0, 8, 5, "", (1, 2))), "request a: blocks must be empty without unit_tokens"),
        (
            workload(("a", 0, 8, 5, "", (1,)), unit_tokens=3),
            "request a: blocks must be one for each 3 tokens of the prompt, 8, got 1",
        ),
        (workload(("a", 0, 8, 5, "", (1, 1)), unit_tokens=4), "request a: block 1 must not be repeated"),
        (workload(ONE, unit_tokens=-1), "unit_tokens must be a whole number in [0, 2147483647], got -1"),
        (workload(ONE, drawn=True), "seed 1 must give other requests, or have drawn = False"),
        (workload(ONE, seeds=True, drawn=False), "seed 1 must give the same, or have drawn = True"),
        (workload(arrivals=lambda self: [("a", 0)]), "must give records of paceline.traces.workloads.Arrival"),
        (workload(arrivals=lambda self: 1 / 0), "arrivals raised ZeroDivisionError"),
        (workload(("a", 0, 8, 5, None)), "request a: tag must be text, got None"),
        (workload((*ONE, "", (), None, 5)), "request a: slo must be text, got 5"),
        *(
            (
                workload((*ONE, "", ids), unit_tokens=4),
                "request a: blocks must be a tuple of whole numbers in [0, 2^63)",
            )
            for ids in (None, 5, "ab", b"12345678", (1.0, 2.0), ("a", "b"), (-1, 2), (2**63, 2))
        ),
        (workload((*ONE, "", (1, 2), None, "", None), unit_tokens=4), "request a: answer must be a tuple of whole"),
        *(
            (
                workload((*ONE, "", (), Follows(depths))),
                "request a: turns: depths must be a tuple of whole numbers in [0, 5], ascending, got ",
            )
            for depths in (None, "35", (3.0,), (5, 3), (3, 3), (-1,), (6,))
        ),
        (workload((*ONE, "", (), Follows(after=None))), "request a: turns: after raised TypeError"),
        (workload((*ONE, "", (), Follows(after=[("b", 0)]))), "must give records of paceline.traces.workloads.Arrival"),
        (workload((*ONE, "", (), Follows(after=[Arrival("b", -1, 8, 5)]))), "request b: arrives_ps must be a whole"),
        (
            workload((*ONE, "", (), Follows((3,), reached=[Arrival("b", 9**15, 0, 5)]))),
            "request b: prompt_tokens must be a whole number in [1, 2147483647], got 0",
        ),
        (workload((*ONE, "", (), Follows((3,), reached=None))), "request a: turns: reached raised TypeError"),
    ],
)
def test_a_workload_that_breaks_the_contract_is_told(given, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        paceline.check_workload(given)


def test_sound_workloads_pass():
    paceline.check_workload(workload(ONE, TWO))
    paceline.check_workload(workload(ONE, TWO, seeds=True))
    paceline.check_workload(workload(("a", 0, 8, 5, "", (1, 2)), unit_tokens=4))


OWN_WORKLOAD = """
import numpy as np
from paceline.traces.workloads import Arrival


class Turns:
    def __init__(self, depths):
        self.depths = depths

    def reached(self, depth, at_ps):
        return [Arrival(f"after-{depth}", at_ps, 8, 8)]

    def after(self, ended_ps):
        return []


class Mine:
    unit_tokens = 16
    drawn = False

    def __init__(self, seed, ids: str = ""):
        kinds = {"tuple": tuple, "list": list, "array": np.array, "numpy": lambda ids: tuple(map(np.int64, ids))}
        self.ids = kinds[ids]

    def arrivals(self):
        for number in range(6):
            blocks, answer = self.ids([1, 2 + number % 2]), self.ids([10 + number])
            turns = Turns(self.ids([3, 5])) if number == 5 else None
            yield Arrival(f"r{number}", number * 10**9, 40, 20, "", blocks, turns, "", answer)


"""
OWN_POLICY = """
import numpy as np
from paceline.decoding.steps import Commit, Draft, Verify


class Mine:
    def __init__(self, pool, kind: str = "", commits: bool = False):
        kind = int if kind == "int" else getattr(np, kind)
        self.commits, self.steps = commits, (Draft("draft", kind(3)), Commit(kind(1)), Verify("target"))

    def decide(self, seen):
        draft, commit, verify = self.steps
        if not seen.num_pending and seen.has_room:
            return draft
        return commit if self.commits and seen.num_pending > 2 else verify

    def learn(self, outcome):
        pass
"""


def served(tmp_path, policy, workload):
    """Figures of a run under load, from its JSON."""
    out = tmp_path / "run.json"
    done("simulate", "--cluster", "h100", "--policy", policy, "--workload", workload, "--json", out)
    return json.loads(out.read_text())["rows"][0]["runs"]


@pytest.mark.parametrize("ids", ["list", "array", "numpy"])
def test_ids_of_a_workload_may_be_of_any_integers(tmp_path, ids):
    (tmp_path / "mine.py").write_text(OWN_WORKLOAD)
    given = [served(tmp_path, "draft:2/target", f"{tmp_path / 'mine.py'}:Mine,ids={kind}") for kind in ("tuple", ids)]
    assert given[0] == given[1]
    assert given[0][0]["requests"] == 8


@pytest.mark.parametrize("kind", ["uint8", "int64"])
@pytest.mark.parametrize("commits", ["false", "true"])
def test_steps_of_a_policy_may_be_of_any_integers(tmp_path, kind, commits):
    """A text longer than 255 tokens is beyond the integers of eight bits."""
    (tmp_path / "mine.py").write_text(OWN_POLICY)
    policy = f"{tmp_path / 'mine.py'}:Mine,commits={commits},kind="
    given = [
        served(tmp_path, policy + one, "poisson:rate=50,requests=20,prompt=200..300,output=60") for one in ("int", kind)
    ]
    assert given[0] == given[1]


def test_a_workload_without_a_request_is_refused_where_it_is_served(tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def __init__(self, seed): ...\n    def arrivals(self): return []\n"
    )
    mine = f"{tmp_path / 'mine.py'}:Mine"
    for words in (
        ("simulate", "--cluster", "h100", "--policy", "plain"),
        ("compare", "--cluster", "h100"),
        ("workload",),
    ):
        asked = (mine,) if words == ("workload",) else ("--workload", mine)
        assert refused(*words, *asked) == f"workload {mine!r}: arrivals must give a request, got none"


def router(pick, **also):
    return type("Mine", (), {"__init__": lambda self, setting: setattr(self, "setting", setting), "pick": pick, **also})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (router(lambda self, arrival, seen: 1), "pick must give 0 to 0, got 1"),
        (
            router(lambda self, arrival, seen: self.draw.randrange(self.setting.num_replicas), draw=Random(0)),
            "must pick the same each time",
        ),
        (router(lambda self, arrival, seen: "a"), "pick raised TypeError"),
        (router(lambda self, arrival, seen: seen.cached_tokens(0) * 0), "does not say reads_prefixes = True"),
        (router(lambda self, arrival, seen: len(seen.signals) - 1, reads_signals=False), "says reads_signals = False"),
    ],
)
def test_a_router_that_breaks_the_contract_is_told(given, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        paceline.check_router(given)


@pytest.mark.parametrize("cls", KINDS["router"].own().values())
def test_our_own_routers_pass(cls):
    paceline.check_router(cls)


def test_our_own_importers_pass_and_one_that_fails_otherwise_is_told(tmp_path):
    log = tmp_path / "log.jsonl"
    rows = [{"id": name, "drafters": {"eagle": [3, 2, 1, 1, 1]}} for name in "ab"]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    paceline.check_importer(POSITIONS, [log])

    def careless(files, ongoing):
        names = [json.loads(line)["id"] for line in files[0].read_text().splitlines()]
        return (one for one in POSITIONS.read(files, ongoing) if one.request_id in names)

    with pytest.raises(ValueError, match=r"damaged log.jsonl \(copy \d+\) by TraceFormatError, got JSONDecodeError"):
        paceline.check_importer(POSITIONS.model_copy(update={"read": careless}), [log])
    with pytest.raises(ValueError, match="must have files that no other format tells, got positions's"):
        paceline.check_importer(POSITIONS.model_copy(update={"name": "mine"}), [log])


def test_packages_are_never_overwritten(tmp_path):
    made = new_plugin("policy", "mine", tmp_path / "mine")
    assert sorted(made.files) == sorted(
        str(path.relative_to(tmp_path / "mine")) for path in (tmp_path / "mine").rglob("*") if path.is_file()
    )
    with pytest.raises(ValueError, match="exists already; a package is never overwritten"):
        new_plugin("router", "mine", tmp_path / "mine")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("policy", "adaptive"), "NAME must be a new one, policy adaptive is there already"),
        (("router", "round-robin"), "NAME must be a new one, router round-robin is there already"),
        (("policy", "draft"), "NAME must be another one, got 'draft': the class Draft would hide what its code needs"),
        (("policy", "none"), "NAME must be another one, got 'none': the class None would hide what its code needs"),
        (("policy", "My_x"), "NAME must be lower-case letters, digits and single hyphens"),
        (("polcy", "mine"), "KIND 'polcy' is not known; did you mean policy?"),
        (("cost", "h100"), "NAME must be a new one, cost h100 is there already"),
        (("workload", "poisson"), "NAME must be a new one, workload poisson is there already"),
        (("importer", "auto"), "NAME must be a new one, importer auto is there already"),
    ],
)
def test_what_will_not_do(words, told, tmp_path):
    assert told in refused("plugin", "new", *words, "--out", tmp_path / "mine")
    assert not list(tmp_path.iterdir())
