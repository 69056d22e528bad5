"""An imported recording: rounds of each request, drafter by drafter."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...base.errors import counted
from ..meta import NgramInfo
from ..recording import AboutRecording, chosen, tagged
from ..shapes import DecoderShape, Named, named_shapes
from ..shapes_given import asked_shapes
from ..shifted import shifted_name, shifted_rounds
from .check import RoundsSummary, summary_of
from .rounds import LOSSY, OF_TREES, TREES, TRUST, DrafterInfo, RoundsMeta, RoundsRequest

TIMED = "timed"  # the cost of recordings that hold seconds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RoundsRecording:
    """An imported recording; see `Recording`."""

    meta: RoundsMeta  # its `meta.json`
    requests: tuple[RoundsRequest, ...]  # in file order
    decoders: tuple[DecoderShape, ...] = ()  # of the given shapes, where known

    def __repr__(self) -> str:
        return f"{self.about.name}: {self.about.holds}"

    @property
    def about(self) -> AboutRecording:
        meta = self.meta
        rounds = sum(len(rounds.start) for request in self.requests for rounds in request.rounds.values())
        size = f"{counted(len(self.requests), 'request')}, {counted(rounds, 'round')}"
        return AboutRecording(
            name=meta.name,
            kind=meta.kind,
            holds=f"IMPORTED from {meta.source}, {size}",
            models=meta.model_names,
            lookups=self._lookups(),
            drafts_only=True,
            costs=(TIMED,) if self.timed else (),
            windows={one.name: one.window for one in meta.drafters if one.window is not None},
            longest={one.name: self.window(one) for one in meta.drafters},
            drafted={one.name: self._drafted(one) for one in meta.drafters},
            unknown_kinds=tuple(one.name for one in meta.drafters if one.by_start),
            all_defaults=False,
            hardware=meta.hardware,
            source=meta.source,
            remarks=tuple(
                note
                for note in meta.notes
                if note.startswith(LOSSY)
                or any(note in (TREES.format(name), OF_TREES.format(name)) for name in meta.drafter_names)
            ),
            trust=TRUST[meta.form],
            notes=meta.notes,
            software=meta.software,
            drafts_by=meta.drafts_by,
        )

    @property
    def timed(self) -> bool:
        """Whether the seconds of any answer or round are known."""
        return any(
            request.wall_s
            or any(rounds.draft_s is not None and rounds.verify_s is not None for rounds in request.rounds.values())
            for request in self.requests
        )

    def window(self, drafter: DrafterInfo) -> int:
        """Tokens that a drafter drafts in a round; if unknown, the most of any round, drafted or accepted; >= 1."""
        return self._drafted(drafter) if drafter.window is None else drafter.window

    def _drafted(self, drafter: DrafterInfo) -> int:
        ran = [request.rounds[drafter.name] for request in self.requests if drafter.name in request.rounds]
        return max([1, *(int(max(rounds.drafted.max(), rounds.accepted.max())) for rounds in ran if len(rounds.start))])

    def _lookups(self) -> dict[str, NgramInfo]:
        """Prompt lookup, if every request has the ids of its prompt and output, and no other member has its name."""
        known = all(request.prompt and request.output for request in self.requests)
        rule = self.meta.ngram
        return {rule.name: rule} if known and rule.name not in self.meta.model_names else {}

    def __getitem__(self, ids: Iterable[str]) -> "RoundsRecording":
        return replace(self, requests=chosen(self.meta.name, self.requests, ids))

    def of_tags(self, *tags: str) -> "RoundsRecording":
        return replace(self, requests=tagged(self.meta.name, self.requests, tags))

    def known_shapes(self) -> Mapping[str, Named]:
        meta = self.meta
        recorded = {model.name: Named(model, "") for model in meta.models}
        others = [name for name in meta.model_names if name not in recorded]
        known = recorded[meta.target].shape if meta.target in recorded else None
        return {**named_shapes(others, meta.target, known=known, served=meta.served_model), **recorded}

    def with_shapes(self, texts: Sequence[str]) -> "RoundsRecording":
        meta = self.meta
        shapes, derived, decoders = asked_shapes(texts, meta.target, meta.model_names, meta.models, meta.served_model)
        given = {shape.name: shape for shape in (*meta.models, *shapes, *(each.shape for each in derived))}
        notes = (*meta.notes, *(each.words for each in derived))
        meta = meta.model_copy(update={"models": tuple(given.values()), "notes": notes})
        return replace(self, meta=meta, decoders=decoders)

    def shifted(self, shifts: Mapping[str, float], *, seed: int) -> "RoundsRecording":
        requests = shifted_rounds(self.meta, self.requests, shifts, seed)
        meta = self.meta.model_copy(update={"name": shifted_name(self.meta.name, shifts)})
        return replace(self, meta=meta, requests=requests)

    def summary(self, path: Path | None = None) -> RoundsSummary:
        return summary_of(self.meta, self.requests, path)
