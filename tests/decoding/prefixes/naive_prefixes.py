"""A prefix cache by its definition: every question is answered by going through all blocks."""

from itertools import takewhile


class NaivePrefixes:
    """Blocks are whole texts, up to and with their own tokens."""

    def __init__(self, num_blocks, block_tokens):
        self.num_blocks = num_blocks
        self.size = block_tokens
        self.cached = []  # texts, oldest first
        self.queue = []  # those that nobody refers to, in the order of eviction
        self.held = {}  # by request, the texts of its blocks
        self.num_evicted = 0

    def leading(self, text):
        ends = range(self.size, len(text) + 1, self.size)
        return list(takewhile(self.cached.__contains__, (text[:end] for end in ends)))

    def look_up(self, request, text):
        usable = text[:-1]
        blocks = self.leading(usable)
        start = self.size * len(blocks)
        others = [block for block in self.cached if len(block) == start + self.size and block[:start] == text[:start]]
        self.held[request] = blocks
        self.queue = [block for block in self.queue if block not in blocks]
        return start + max([equal(block[start:], usable[start:]) for block in others], default=0)

    def enter(self, request, text):
        blocks = self.held[request]
        ends = range(self.size * (len(blocks) + 1), len(text) + 1, self.size)
        new = [text[:end] for end in ends]
        shared = list(takewhile(self.cached.__contains__, new))
        self.queue = [block for block in self.queue if block not in shared]
        new = new[len(shared) :][: self.num_blocks - len(self.cached) + len(self.queue)]
        for _ in range(len(self.cached) + len(new) - self.num_blocks):
            self.cached.remove(self.queue.pop(0))
            self.num_evicted += 1
        self.cached += new
        self.held[request] = blocks + shared + new
        return len(shared), len(new)

    def release(self, request):
        for block in reversed(self.held.pop(request, [])):
            if not any(block in blocks for blocks in self.held.values()):
                self.queue.append(block)


def equal(one, other):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
