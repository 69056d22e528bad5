"""What an experiment is given and what it returns: a setting, and a finding of tables, panels and an answer."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...shipped import shipped
from .panel import Panel
from .table import Rows

MOST_PANELS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSetting:
    """What every experiment is given.

    Attributes:
        pool: folder of the pool, by default the shipped one; experiments with real models read its `prompts.jsonl`.
        trace: folder of the recording, by default the shipped one.
        seed: of whatever is drawn.
        threads: CPU threads of torch, >= 1.
        limit: prompts and recorded requests at most, >= 1; None: the experiment's default.

    Raises:
        ValueError: threads or limit below 1.
    """

    pool: Path = field(default_factory=lambda: shipped("pools", "pico"))
    trace: Path = field(default_factory=lambda: shipped("recordings", "pico.trace"))
    seed: int = 0
    threads: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads must be >= 1, got {self.threads}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be >= 1, got {self.limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an experiment returns.

    Attributes:
        question: one sentence.
        tables: at least one.
        panels: of one figure, 1 to 4.
        answer: one to four sentences, made from what was just measured.

    Raises:
        ValueError: no table, or no or too many panels.
    """

    question: str
    tables: tuple[Rows, ...]
    panels: tuple[Panel, ...]
    answer: str

    def __post_init__(self) -> None:
        if not self.tables:
            raise ValueError("tables must hold at least one table, got ()")
        if not 1 <= len(self.panels) <= MOST_PANELS:
            raise ValueError(f"panels must be 1 to {MOST_PANELS}, got {len(self.panels)}")

    def to_json(self) -> dict[str, Any]:
        """Every field; rows as lists of values, not of texts."""
        return asdict(self)
