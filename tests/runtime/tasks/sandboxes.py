"""Whether this machine can make sandboxes; tests of answers under limits."""

import pytest
from paceline.base.errors import ArgumentError
from paceline.runtime.sandbox import CodeTests, ProcessLimits, check_sandbox


def _why_none():
    try:
        check_sandbox()
    except ArgumentError as error:
        return str(error)
    return ""


WHY_NONE = _why_none()
needs_sandbox = pytest.mark.skipif(bool(WHY_NONE), reason=WHY_NONE)
SANDBOXED = [pytest.param(True, marks=needs_sandbox, id="sandbox"), pytest.param(False, id="unsandboxed")]


def limits(*, sandbox, **more):
    """Long enough for a machine that is busy, where nothing is meant to run into them."""
    return ProcessLimits(sandbox=sandbox, **{"wall_s": 120, "cpu_s": 60} | more)


def asked(check, code="def f(*given):\n"):
    """Tests of a function `f`."""
    return CodeTests(entry_point="f", code=code, check=check)


def body(text):
    """Lines as those of a function."""
    return "".join(f"    {line}\n" for line in text.splitlines())
