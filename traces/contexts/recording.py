"""A recording of contexts: a token trie of each request."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...base.errors import ArgumentError, counted
from ..meta import ModelInfo
from ..recording import AboutRecording, chosen, tagged
from ..shapes import DecoderShape, Named
from ..shapes_given import asked_shapes
from ..shifted import shifted_name, shifted_tries
from .check import TrieSummary, summary_of
from .meta import TrieMeta
from .trie import TrieRequest


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrieRecording:
    """A recording of contexts; see `Recording`."""

    meta: TrieMeta  # its `meta.json`
    requests: Sequence[TrieRequest]  # in file order; those of a stored recording are read on demand
    # of other models, whose seconds and memory some members get; see `with_shapes`
    shapes: tuple[ModelInfo, ...] = ()
    shapes_asked: tuple[str, ...] = ()  # the texts that gave them
    shapes_derived: tuple[str, ...] = ()  # how submodels' shapes follow from them, in words
    decoders: tuple[DecoderShape, ...] = ()  # of the given shapes, where known

    def __repr__(self) -> str:
        return f"{self.about.name}: {self.about.holds}"

    @property
    def about(self) -> AboutRecording:
        meta = self.meta
        kind = "SYNTHETIC" if meta.kind == "synthetic" else "recorded"
        nodes = sum(request.num_nodes for request in self.requests)
        return AboutRecording(
            name=meta.name,
            kind=meta.kind,
            holds=f"{kind}, {counted(len(self.requests), 'request')}, {counted(nodes, 'context')}",
            models=meta.model_names,
            lookups={meta.ngram.name: meta.ngram} if meta.ngram else {},
            drafts_only=False,
            from_features="" if meta.features is None else meta.features.model,
            costs=tuple(sorted(meta.costs)),
            all_defaults=True,
            hardware=meta.hardware,
            made_shapes=meta.kind == "synthetic" and not self.shapes,
            tokenizer_sha256=meta.tokenizer_sha256,
            sampling=meta.sampling.words,
            remarks=(*meta.remarks, *self._what_if()),
        )

    def __getitem__(self, ids: Iterable[str]) -> "TrieRecording":
        return replace(self, requests=chosen(self.meta.name, self.requests, ids))

    def of_tags(self, *tags: str) -> "TrieRecording":
        return replace(self, requests=tagged(self.meta.name, self.requests, tags))

    def known_shapes(self) -> Mapping[str, Named]:
        """See `Recording`: every model's."""
        asked = {shape.name: shape for shape in self.shapes}
        return {model.name: Named(asked.get(model.name, model), "") for model in self.meta.models}

    def with_shapes(self, texts: Sequence[str]) -> "TrieRecording":
        """See `Recording`: what if members had these shapes; its tokens remain those of its own models.

        Raises, too, for a submodel that is larger than its model, or whose shape does not follow from its model's.
        """
        meta = self.meta
        shapes, derived, decoders = asked_shapes(texts, meta.model_names[-1], meta.model_names, meta.models)
        return replace(
            self,
            shapes=(*shapes, *(each.shape for each in derived)),
            shapes_asked=tuple(texts),
            shapes_derived=tuple(each.words for each in derived),
            decoders=decoders,
        )

    def shifted(self, shifts: Mapping[str, float], *, seed: int) -> "TrieRecording":
        """See `Recording`; raises ArgumentError for a recording with a drafter from the target's states."""
        if self.meta.features is not None:
            name = self.meta.features.model
            raise ArgumentError(f"`shift_acceptance` does not go with {name}, which reads the target's states")
        requests = shifted_tries(self.meta, self.requests, shifts, seed)
        # A flipped next token of a model is none of its recorded branches.
        closure = self.meta.closure.model_copy(update={"trees": ()})
        update = {"name": shifted_name(self.meta.name, shifts), "closure": closure}
        meta = self.meta.model_copy(update=update)
        return replace(self, meta=meta, requests=requests)

    def _what_if(self) -> tuple[str, ...]:
        """Notes on shapes that are not its models' own."""
        if not self.shapes:
            return ()
        asked = {shape.name for shape in self.shapes}
        kept = ", ".join(name for name in self.meta.model_names if name not in asked)
        words = (
            f"WHAT IF: shapes of {', '.join(self.shapes_asked)}; drafts and verdicts are those of the "
            f"recorded models{f', and so are the shapes of {kept}' if kept else ''}"
        )
        return ("; ".join([words, *self.shapes_derived]),)

    def summary(self, path: Path | None = None) -> TrieSummary:
        return summary_of(self.meta, self.requests, path)
