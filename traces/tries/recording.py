"""A recording of contexts: a token trie of each request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...arguments import ArgumentError
from ...counted import counted
from ..recording import AboutRecording
from ..shapes.named import Named
from ..shifted_decisions import shifted_name
from .meta import TrieMeta
from .shifted import shifted_requests
from .summary import TrieSummary, summary_of
from .trie import TrieRequest


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrieRecording:
    """A recording of contexts; see `Recording`.

    Attributes:
        meta: what it says of itself.
        requests: in file order; those of a stored recording are read as they are asked for.
    """

    meta: TrieMeta
    requests: Sequence[TrieRequest]

    def __repr__(self) -> str:
        return f"{self.about.name}: {self.about.holds}"

    @property
    def about(self) -> AboutRecording:
        """See `Recording`."""
        meta = self.meta
        kind = "SYNTHETIC" if meta.kind == "synthetic" else "recorded"
        nodes = sum(request.num_nodes for request in self.requests)
        return AboutRecording(
            name=meta.name,
            kind=meta.kind,
            holds=f"{kind}, {counted(len(self.requests), 'request')}, {counted(nodes, 'context')}",
            models=meta.model_names,
            lookups=(meta.ngram.name,) if meta.ngram else (),
            drafts_only=False,
            costs=tuple(sorted(meta.costs)),
            all_defaults=True,
            hardware=meta.hardware,
            tokenizer_sha256=meta.tokenizer_sha256,
            sampling=meta.sampling.words,
            remarks=meta.remarks,
        )

    def known_shapes(self) -> Mapping[str, Named]:
        """See `Recording`: every model's."""
        return {model.name: Named(model, "") for model in self.meta.models}

    def with_shapes(self, texts: Sequence[str]) -> "TrieRecording":
        """See `Recording`: refused, it holds them."""
        raise ArgumentError(f"`models` is for imported recordings; {self.meta.name} holds the shapes of its models")

    def shifted(self, shifts: Mapping[str, float], *, seed: int) -> "TrieRecording":
        """See `Recording`."""
        requests = shifted_requests(self.meta, self.requests, shifts, seed)
        meta = self.meta.model_copy(update={"name": shifted_name(self.meta.name, shifts)})
        return replace(self, meta=meta, requests=requests)

    def summary(self, path: Path | None = None) -> TrieSummary:
        """See `Recording`."""
        return summary_of(self.meta, self.requests, path)
