"""Benchmarks stand outside of the package, where no type checker sees that a name they import has moved."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IMPORT_ALL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def test_every_benchmark_finds_what_it_imports():
    names = [path.stem for path in sorted(BENCHMARKS.glob("*.py"))]
    for folder in ("beyond_chains", "sharing"):
        names += [f"{folder}.{path.stem}" for path in sorted((BENCHMARKS / folder).glob("*.py"))]
    assert "replay" in names
    ran = subprocess.run([sys.executable, "-c", IMPORT_ALL, *names], cwd=BENCHMARKS, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
