"""A cost model for tests in which seconds do not matter."""


class UnitCost:
    """One second a forward."""

    name = "unit"
    lookup_s = 0.0

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return 1.0

    def draft_terms(self, model):
        return None

    def notes(self):
        return ()
