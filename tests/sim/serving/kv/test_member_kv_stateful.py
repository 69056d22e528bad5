"""Any sequence of calls leaves a member's memory as the naive one has it, block for block and in the same order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from paceline.sim.serving.limits import KvLimits
from paceline.sim.serving.memory import MemberKv

from .naive_kv import NaiveKv

HEADS = st.lists(st.integers(0, 1), max_size=5)  # so that texts share prefixes, and one key follows several


class MemberKvMachine(RuleBasedStateMachine):
    texts = Bundle("texts")
    owners = Bundle("owners")

    @initialize(
        num_blocks=st.integers(1, 24),
        block_tokens=st.integers(1, 3),
        prefix_cache=st.sampled_from([True, True, True, False]),
        drop_units=st.integers(0, 2),
    )
    def start(self, **limits):
        self.limits = KvLimits(**limits)
        self.kv, self.naive = MemberKv(self.limits), NaiveKv(self.limits)
        self.num_opened = self.num_texts = 0
        self.held = {}  # owner: keys, and the tokens it has room for

    @rule(target=texts, head=HEADS)
    def write(self, head):
        self.num_texts += 1
        return (*head, *(-100 * self.num_texts - n for n in range(12)))

    @rule(target=owners, keys=texts, text_tokens=st.integers(1, 40), wanted=st.integers(0, 60), share=st.floats(0, 1))
    def open(self, keys, text_tokens, wanted, share):
        owner = self.num_opened = self.num_opened + 1
        before = self.kv.hits, self.order()
        fits, told = self.kv.fits(keys, text_tokens, wanted), self.kv.hit_tokens(keys, text_tokens)
        assert (self.kv.hits, self.order()) == before
        got = self.kv.open(owner, keys, text_tokens)
        assert got == told == self.naive.open(owner, keys, text_tokens)
        assert got < text_tokens
        self.held[owner] = [keys, got]
        assert self.reserved(owner, wanted) == fits
        self.commit_share(owner, share)
        return owner

    @rule(owner=owners, num_tokens=st.integers(0, 60))
    def reserve(self, owner, num_tokens):
        self.reserved(owner, num_tokens)

    def reserved(self, owner, num_tokens):
        before = self.kv.free_blocks, self.order()
        done = self.kv.reserve(owner, num_tokens)
        assert done == self.naive.reserve(owner, num_tokens)
        if done:
            self.held[owner][1] = max(self.held[owner][1], num_tokens)
        else:
            assert (self.kv.free_blocks, self.order()) == before
        return done

    @rule(owner=owners, share=st.floats(0, 1))
    def commit(self, owner, share):
        self.commit_share(owner, share)

    def commit_share(self, owner, share):
        keys, room = self.held[owner]
        num_tokens = round(share * min(room, len(keys) * self.limits.block_tokens))
        self.kv.commit(owner, num_tokens, keys)
        self.naive.commit(owner, num_tokens, keys)

    @rule(owner=consumes(owners))
    def close(self, owner):
        self.closed(owner)

    def closed(self, owner):
        self.kv.close(owner)
        self.naive.close(owner)

    @rule(keys=texts)
    def look(self, keys):
        assert self.kv.lookup(keys) == self.naive.lookup(keys)

    def blocks(self):
        """The node of each cached block by its path, parents first."""
        found, waiting = {}, [((), self.kv._tree.root)]
        while waiting:
            path, node = waiting.pop()
            for key in node.keys:
                path = (*path, key)
                found[path] = node
            waiting += [(path, child) for child in node.children.values()]
        return found

    def order(self):
        """The queue of eviction, block for block."""
        of_node = {}
        for path, node in self.blocks().items():
            of_node.setdefault(node, []).insert(0, path)
        return [path for node in self.kv._tree._evictable for path in of_node[node]]

    @invariant()
    def equals_the_naive(self):
        if not hasattr(self, "kv"):
            return
        kv, naive = self.kv, self.naive
        assert {path: node.num_references for path, node in self.blocks().items()} == naive.references
        assert self.order() == naive.queue
        assert kv.free_blocks == naive.free
        assert kv.available_blocks - kv.free_blocks == len(naive.queue)
        assert kv._tree.num_blocks == len(naive.references)
        private = sum(blocks - len(paths) for paths, blocks in naive.owners.values())
        assert kv.used_blocks == private + sum(num > 0 for num in naive.references.values())
        owners = len(naive.owners)
        common = [len(path) for path, num in naive.references.items() if num == owners > 1]
        assert kv.common_tokens == max(common, default=0) * kv.limits.block_tokens
        repeated = sum(num - 1 for num in naive.references.values() if num > 1)
        assert kv.repeated_tokens(naive.owners, least_tokens=0, least_owners=2) == repeated * kv.limits.block_tokens

    def teardown(self):
        if hasattr(self, "kv"):
            for owner in list(self.naive.owners):
                self.closed(owner)
            self.equals_the_naive()
            assert self.kv.used_blocks == 0


TestMemberKv = MemberKvMachine.TestCase
TestMemberKv.settings = settings(stateful_step_count=40)
