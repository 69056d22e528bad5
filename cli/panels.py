"""Layout of help: commands by purpose, and the options of a long command by subject.

An option that takes one value may be given once: of two values the first would be lost silently.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# What each command is for. `tests/cli/test_panels.py` checks that each is in exactly one section.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Compare": ("recommend", "compare", "sweep", "collect", "best", "tune", "arena"),
    "Serve": (
        "simulate",
        "whatif",
        "workload",
        "cluster",
        "metrics",
        "timeline",
        "report",
        "observe",
        "serve",
        "proxy",
    ),
    "Record": ("trace", "prompts", "record"),
    "Models": ("run", "agree", "validate", "profile", "pool", "experiment"),
    "Kit": ("policy", "plugin", "settings", "doctor"),
}
MOST_IN_ONE = 20  # options of a command in one section
# Sections of a longer command; options in none are those of the replay, or of the command itself.
REPLAY = "Replay"
PANELS: Mapping[str, tuple[str, ...]] = {
    "Seconds": (
        *(
            "cost",
            "engine",
            "efficiency",
            "scale",
            "tensor_parallel",
            "extrapolate",
            "models",
            "on",
            "measured_on",
            "decide_s",
        ),
        "allow_foreign_profile",
    ),
    "Load": (
        *("workload", "cluster", "rate", "find_rate", "slo", "observed", "concurrency", "active_sessions"),
        *("time_scale", "limit", "max_prompt_tokens", "max_output_tokens", "max_wait_s", "zero_tokens", "tag"),
        *("horizon_s", "columns"),
    ),
    "Output": ("detail", "by_tag", "why", "regret", "out", "events", "log", "figure", "html", "json", "help"),
}
HEADINGS = (REPLAY, *PANELS)
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


class PanelledCommand(TyperCommand):
    """A command whose help has its options in panels, where it has many, and which takes one value once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own, whose types are private
        """As typer does; raises `typer.BadParameter` for an option of one value that is given more often."""
        if not ctx.resilient_parsing:
            given: list[Any] = self.make_parser(ctx).parse_args(args=list(args))[2]
            for option, times in Counter(given).items():
                if times > 1 and option.param_type_name == "option" and not (option.multiple or option.is_flag):
                    raise typer.BadParameter(f"must be given once, got it {times} times", ctx=ctx, param=option)
        return TyperCommand.parse_args(self, ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        """Write them; see `PANELS`."""
        options = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        if len(options) <= MOST_IN_ONE:
            TyperCommand.format_options(self, ctx, formatter)
            return
        panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in HEADINGS}
        for one in options:
            record = one.get_help_record(ctx)
            if record is not None:
                panels[_PANEL_OF.get(one.name or "", REPLAY)].append(record)
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        records = [record for one in arguments if (record := one.get_help_record(ctx)) is not None]
        for panel, rows in {"Arguments": records, **panels}.items():
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


class SectionedGroup(TyperGroup):
    """Commands in the sections of `SECTIONS`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        """Write them, each with its purpose."""
        limit = formatter.width - 6 - max(map(len, self.commands))
        placed = {name for names in SECTIONS.values() for name in names}
        others = tuple(name for name in self.commands if name not in placed)
        for section, names in {**SECTIONS, "Others": others}.items():
            rows = [(name, self.commands[name].get_short_help_str(limit)) for name in names if name in self.commands]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)
