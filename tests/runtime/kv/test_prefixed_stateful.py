"""Caches with a prefix cache under random branches, evictions and preemptions, against forwards without any cache."""

import hypothesis.strategies as st
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paceline.decoding.prefix_cache import MemberPrefixes, PrefixCacheSize
from paceline.runtime.forward import ModuleForward
from paceline.runtime.fused import FusedForward
from paceline.runtime.prefixed_kv import PrefixedMaskCache, PrefixedSlotCache

from ..tiny_decoders import CONTEXT, RaggedTexts, remembered, tiny_decoder

# Grouped heads, a window shorter than texts, tied heads, and modules with capped scores.
MODELS = {name: tiny_decoder(name) for name in ("llama", "qwen3-window", "llama-ungrouped", "gemma2")}
STOCK = {name: remembered(model) for name, model in MODELS.items()}
FORWARDS = {
    (name, kind): FusedForward(model, share_weights=False, context_tokens=CONTEXT) if kind else ModuleForward(model)
    for name, model in MODELS.items()
    for kind in (0, 1)
    if name != "gemma2" or not kind
}
TOKENS = st.integers(0, 1)


class PrefixedMachine(RuleBasedStateMachine):
    """Requests over two tokens begin with what is cached, feed on, roll back and give up, many in one forward."""

    @initialize(
        of=st.sampled_from(sorted(FORWARDS)),
        num_blocks=st.integers(1, 9),
        block_tokens=st.integers(1, 4),
        dead_share=st.none() | st.sampled_from([0.1, 0.9]),
    )
    def begin(self, of, num_blocks, block_tokens, dead_share):
        self.forward, self.stock = FORWARDS[of], STOCK[of[0]]
        size = PrefixCacheSize(num_blocks=num_blocks, block_tokens=block_tokens)
        self.tolerance = 1e-5 if of[0] == "gemma2" else 1e-9  # its norms round to float32
        shape = self.forward.kv_shape
        cache = (
            PrefixedSlotCache(shape, size)
            if dead_share is None
            else PrefixedMaskCache(shape, size, dead_share=dead_share)
        )
        self.size = block_tokens
        self.prefixes = MemberPrefixes(size)
        self.side = RaggedTexts(self.forward, cache)
        self.committed = {}  # tokens of a request's text that are never taken back
        self.count = 0

    @rule(texts=st.lists(st.lists(TOKENS, min_size=1, max_size=14), min_size=1, max_size=3), extra=st.integers(0, 2))
    def open(self, texts, extra):
        """Some requests at once: look up, read what is found, feed the rest."""
        hits, new = [], {}
        for text in texts:
            name, self.count = f"r{self.count}", self.count + 1
            hit = self.prefixes.look_up(name, tuple(text))
            hits.append((name, hit))
            self.side.texts[name] = text[: hit.num_tokens]
            self.committed[name] = len(text)
            new[name] = text[hit.num_tokens :] + [0] * extra  # drafted behind it
        self.side.cache.attach(hits)
        for name, hit in hits:
            assert self.side.cache.length(name) == hit.num_tokens
        self.feed(new)

    @precondition(lambda self: self.side.texts)
    @rule(data=st.data(), more=st.lists(TOKENS, min_size=1, max_size=6))
    def feed_some(self, data, more):
        names = data.draw(st.lists(st.sampled_from(sorted(self.side.texts)), min_size=1, max_size=3, unique=True))
        self.feed({name: more[: 1 + index] for index, name in enumerate(names)})

    def feed(self, new):
        before = {name: len(self.side.texts[name]) for name in new}
        logits = self.side.feed(new)
        for name, ours in logits.items():
            theirs, tolerance = self.stock(self.side.texts[name])[before[name] :], self.tolerance
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        self.enter(sorted(new, key=lambda name: int(name[1:])))

    def enter(self, names):
        entered = []
        for name in names:
            text = tuple(self.side.texts[name])
            blocks = self.prefixes.enter(
                name, lambda index, text=text: text[index * self.size : (index + 1) * self.size], self.committed[name]
            )
            if blocks.blocks:
                entered.append((name, blocks))
        self.side.cache.absorb(entered)

    @precondition(lambda self: self.side.texts)
    @rule(data=st.data())
    def commit(self, data):
        name = data.draw(st.sampled_from(sorted(self.side.texts)))
        self.committed[name] = data.draw(st.integers(self.committed[name], len(self.side.texts[name])))
        self.enter([name])

    @precondition(lambda self: self.side.texts)
    @rule(data=st.data())
    def roll_back(self, data):
        """Never behind what is committed, but for its last token, which a verifier may read again."""
        name = data.draw(st.sampled_from(sorted(self.side.texts)))
        text, least = list(self.side.texts[name]), self.committed[name] - 1
        kept = data.draw(st.integers(least, len(text)))
        self.side.roll_back(name, kept)
        if kept == least:
            self.feed({name: text[least : least + 1]})

    @precondition(lambda self: self.side.texts)
    @rule(data=st.data())
    def give_up(self, data):
        name = data.draw(st.sampled_from(sorted(self.side.texts)))
        self.side.cache.free(name)
        self.prefixes.release(name)
        del self.side.texts[name], self.committed[name]

    @rule()
    def truncate(self):
        self.side.cache.truncate()

    @invariant()
    def the_cache_holds_the_texts(self):
        if hasattr(self, "side"):
            for name, text in self.side.texts.items():
                assert self.side.cache.length(name) == len(text)


TestPrefixed = PrefixedMachine.TestCase
TestPrefixed.settings = settings(stateful_step_count=20)
