"""The page of all experiments: docs/experiments.md, written from what was just found."""

import os
from collections.abc import Mapping
from pathlib import Path

from ...traces.tries.meta import TrieMeta
from .finding import Finding
from .table import markdown_table

INTRO = """\
# Experiments

Questions about chains of models, each answered by one command on the pool and the recording that come with the package.
`make experiments` runs all of them and writes this page with every table, figure and sentence in it; nothing here is
typed by hand. `--pool`, `--trace`, `--limit`, `--seed` and `--threads` ask the same of other models and other traffic,
`--figure FILE.svg` draws, and `--json FILE` writes the numbers.

Small models on a shared CPU are what was measured. What carries over is the method, and ratios rather than seconds.
Seconds that were measured when the page was made drift with the machine; seconds that are replayed do not.
"""


def experiments_page(findings: Mapping[str, Finding | Exception], meta: TrieMeta, figures: str) -> str:
    """The whole page.

    Args:
        findings: by experiment; the error of one that failed.
        meta: of the recording.
        figures: folder of `NAME.svg` as seen from the page.
    """
    parts = [INTRO, _machine(meta), _contents(findings)]
    parts += [
        _failure(name, found) if isinstance(found, Exception) else _section(name, found, figures)
        for name, found in findings.items()
    ]
    return "\n".join(parts)


def link_between(page_path: Path, folder: Path) -> str:
    """`folder` as a link on the page."""
    return Path(os.path.relpath(folder.absolute(), page_path.absolute().parent)).as_posix()


def _machine(meta: TrieMeta) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(meta.software.items()))
    machine = meta.hardware or "an unnamed machine"
    return f"Recording `{meta.name}` ({meta.kind}, {meta.sampling.words}) of {machine}; {versions}.\n"


def _contents(findings: Mapping[str, Finding | Exception]) -> str:
    lines = []
    for name, found in findings.items():
        asked = "failed when this page was made" if isinstance(found, Exception) else found.question
        lines.append(f"- [{name}](#{name}): {asked}")
    return "\n".join([*lines, ""])


def _section(name: str, finding: Finding, figures: str) -> str:
    tables = [f"{markdown_table(rows.grid())}\n" for rows in finding.tables]
    parts = [
        f"## {name}\n",
        f"{finding.question}\n",
        f"```sh\n.venv/bin/paceline experiment {name}\n```\n",
        f"{finding.answer}\n",
        f"![{name}: {'; '.join(panel.title for panel in finding.panels)}]({figures}/{name}.svg)\n",
        *tables,
    ]
    return "\n".join(parts)


def _failure(name: str, error: Exception) -> str:
    told = " ".join(str(error).split())
    return f"## {name}\n\nFailed when this page was made: {type(error).__name__}: {told}\n"
