"""Any sequence of calls leaves two members and the host memory that they share as naive dictionaries have them."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from paceline.sim.serving.limits import KvLimits
from paceline.sim.serving.memory import HostTier, OffloadingKv

from .naive_kv import NaiveHost, NaiveOffloading

HEADS = st.lists(st.integers(0, 1), max_size=6)  # so that texts share prefixes, and one key follows several
MEMBERS = st.integers(0, 1)


class OffloadingMachine(RuleBasedStateMachine):
    texts = Bundle("texts")
    owners = Bundle("owners")

    @initialize(
        num_bytes=st.integers(1, 40),
        sizes=st.tuples(st.integers(1, 3), st.integers(1, 50)),
        num_blocks=st.tuples(st.integers(1, 16), st.integers(1, 16)),
        block_tokens=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        prefix_cache=st.sampled_from([True, True, True, False]),
        drop_units=st.integers(0, 2),
    )
    def start(self, num_bytes, sizes, num_blocks, block_tokens, prefix_cache, drop_units):
        limits = [
            KvLimits(num_blocks=blocks, block_tokens=tokens, prefix_cache=prefix_cache, drop_units=drop_units)
            for blocks, tokens in zip(num_blocks, block_tokens, strict=True)
        ]
        self.host, self.naive_host = HostTier(num_bytes, sizes), NaiveHost(num_bytes)
        self.members = [OffloadingKv(own, self.host, number) for number, own in enumerate(limits)]
        self.naives = [
            NaiveOffloading(own, self.naive_host, number, sizes[number]) for number, own in enumerate(limits)
        ]
        self.num_opened = self.num_texts = 0
        self.held = {}  # owner: its member, keys, and the tokens it has room for

    @rule(target=texts, head=HEADS)
    def write(self, head):
        self.num_texts += 1
        return (*head, *(-100 * self.num_texts - n for n in range(12)))

    @rule(target=owners, member=MEMBERS, keys=texts, text_tokens=st.integers(1, 20), share=st.floats(0, 1))
    def open(self, member, keys, text_tokens, share):
        kv, naive = self.members[member], self.naives[member]
        told, fits = kv.usable_tokens(keys, text_tokens), kv.fits(keys, text_tokens, text_tokens)
        paths, on_device = naive.found(keys, text_tokens)
        assert told == len(paths) * kv.limits.block_tokens < text_tokens
        used = sum(naive.references[path] > 0 for path in paths[:on_device])
        assert fits == (-(-text_tokens // kv.limits.block_tokens) - used <= naive.free + len(naive.queue))
        owner = self.num_opened = self.num_opened + 1
        if not fits:
            return None
        assert kv.open(owner, keys, text_tokens) == told == naive.open(owner, keys, text_tokens)
        assert kv.reserve(owner, text_tokens)
        assert naive.reserve(owner, text_tokens)
        self.held[owner] = member, keys, text_tokens
        self.commit_share(owner, share)
        return owner

    @rule(owner=owners, share=st.floats(0, 1))
    def commit(self, owner, share):
        if owner in self.held:
            self.commit_share(owner, share)

    def commit_share(self, owner, share):
        member, keys, room = self.held[owner]
        num_tokens = round(share * min(room, len(keys) * self.members[member].limits.block_tokens))
        self.members[member].commit(owner, num_tokens, keys)
        self.naives[member].commit(owner, num_tokens, keys)

    @rule(owner=consumes(owners))
    def close(self, owner):
        if owner in self.held:
            member, _, _ = self.held.pop(owner)
            self.members[member].close(owner)
            self.naives[member].close(owner)

    @rule(member=MEMBERS, keys=texts, text_tokens=st.integers(1, 20))
    def routers_see_the_device_alone(self, member, keys, text_tokens):
        kv = self.members[member]
        assert kv.hit_tokens(keys, text_tokens) == kv.frozen().hit_tokens(keys, text_tokens)
        assert kv.lookup(keys) == self.naives[member].lookup(keys)

    @invariant()
    def equals_the_naive(self):
        if not hasattr(self, "host"):
            return
        for kv, naive in zip(self.members, self.naives, strict=True):
            assert (kv.free_blocks, kv.available_blocks - kv.free_blocks) == (naive.free, len(naive.queue))
            assert kv._tree.num_blocks == len(naive.references)
        assert [(place.member, path_of(place)) for place in self.host._held] == list(self.naive_host.paths)
        assert self.host.used_bytes == sum(self.naive_host.paths.values()) <= self.host.most_bytes
        kept = [sum(place.member == member for place in self.host._held) for member in (0, 1)]
        assert [one - other for one, other in zip(self.host.stored, self.host.dropped, strict=True)] == kept
        assert num_places(self.host) <= sum(len(path) for _, path in self.naive_host.paths)


def path_of(place):
    path = ()
    while place.parent is not None:
        path = (place.key, *path)
        place = place.parent
    return path


def num_places(host):
    """Of blocks that are held, and of those on the way to them."""
    waiting, count = list(host._roots), -len(host._roots)
    while waiting:
        waiting += waiting.pop().children.values()
        count += 1
    return count


TestOffloading = OffloadingMachine.TestCase
TestOffloading.settings = settings(stateful_step_count=40)
