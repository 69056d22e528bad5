"""KV memory as it would be written on a blackboard: every block a path of keys, every queue a list scanned in a row."""


class NaiveKv:
    def __init__(self, limits):
        self.limits = limits
        self.free = limits.num_blocks
        self.references = {}  # by path, the keys of a block and of all before it
        self.queue = []  # evictable paths, the first to go in front
        self.owners = {}  # owner: [paths, blocks]

    def lookup(self, keys):
        return next((n for n in range(len(keys)) if tuple(keys[: n + 1]) not in self.references), len(keys))

    def hit(self, keys, text_tokens):
        if not self.limits.prefix_cache:
            return 0
        within = self.lookup(keys[: (text_tokens - 1) // self.limits.block_tokens])
        return max(0, within - self.limits.drop_units)

    def refer(self, path):
        self.references[path] = self.references.get(path, 0) + 1
        if path in self.queue:
            self.queue.remove(path)

    def open(self, owner, keys, text_tokens):
        paths = [tuple(keys[: n + 1]) for n in range(self.hit(keys, text_tokens))]
        for path in paths:
            self.refer(path)
        self.owners[owner] = [paths, len(paths)]
        return len(paths) * self.limits.block_tokens

    def reserve(self, owner, num_tokens):
        more = max(0, -(-num_tokens // self.limits.block_tokens) - self.owners[owner][1])
        if more > self.free + len(self.queue):
            return False
        while self.free < more:
            self.evict(self.queue.pop(0))
        self.free -= more
        self.owners[owner][1] += more
        return True

    def evict(self, path):
        del self.references[path]
        self.free += 1

    def commit(self, owner, num_tokens, keys):
        paths = self.owners[owner][0]
        if self.limits.prefix_cache:
            for n in range(len(paths), num_tokens // self.limits.block_tokens):
                path = tuple(keys[: n + 1])
                self.free += path in self.references
                self.refer(path)
                paths.append(path)

    def close(self, owner):
        paths, blocks = self.owners.pop(owner)
        self.free += blocks - len(paths)
        for path in reversed(paths):
            self.references[path] -= 1
            assert self.references[path] >= 0
            if not self.references[path]:
                self.queue.append(path)


class NaiveOffloading(NaiveKv):
    """With a host that keeps copies, which members share."""

    def __init__(self, limits, host, name, size):
        super().__init__(limits)
        self.host, self.name, self.size = host, name, size

    def found(self, keys, text_tokens):
        """Paths of a hit, and how many of them are on the device."""
        if not self.limits.prefix_cache:
            return [], 0
        within = keys[: (text_tokens - 1) // self.limits.block_tokens]
        on_device = whole = self.lookup(within)
        while whole < len(within) and (self.name, tuple(within[: whole + 1])) in self.host.paths:
            whole += 1
        whole = max(0, whole - self.limits.drop_units)
        return [tuple(keys[: n + 1]) for n in range(whole)], min(on_device, whole)

    def open(self, owner, keys, text_tokens):
        paths, on_device = self.found(keys, text_tokens)
        for path in reversed(paths[on_device:]):
            self.host.newest(self.name, path)
        for path in paths[:on_device]:
            self.refer(path)
        self.owners[owner] = [paths[:on_device], on_device]
        num_tokens = len(paths) * self.limits.block_tokens
        assert self.reserve(owner, num_tokens)
        self.commit(owner, num_tokens, keys)
        return num_tokens

    def evict(self, path):
        super().evict(path)
        self.host.put(self.name, path, self.size)


class NaiveHost:
    def __init__(self, num_bytes):
        self.num_bytes = num_bytes
        self.paths = {}  # (member, path): bytes, the oldest in front

    def newest(self, name, path):
        self.paths[name, path] = self.paths.pop((name, path))

    def put(self, name, path, size):
        if size > self.num_bytes:
            return
        self.paths.pop((name, path), None)
        self.paths[name, path] = size
        while sum(self.paths.values()) > self.num_bytes:
            del self.paths[next(iter(self.paths))]
