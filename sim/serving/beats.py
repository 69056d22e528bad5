"""The fast path of the engine: whole cycles at once, of policies that pending tokens alone decide.

A round of such a policy follows from the recorded request, the place in its answer and what caches lack (`FixedRounds`),
so it is played once and is numbers from then on. While everybody decodes, blocks suffice and nobody looks, the cycles
of a batch are sums of these. Whatever else comes up ends the flight between two cycles, and `Replica` goes on from
there, step by step; nothing but speed would be lost without this module.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...decoding.pool import Pool
from ...traces.workloads.arrival import PS_PER_S
from ..played_round import FixedOp, PlayedRound
from ..rounds_answers import ON_TRUNK
from ..rounds_once import FixedRounds
from .asked import AskedPolicy
from .charges import ForwardLines, ForwardPs
from .replica import ReplicaBooks
from .replica_memory import ReplicaMemory
from .requests import NEVER, ServedRequest

MOST_LACKING = 256  # tokens that a cache which takes part may lack
LACK_BITS = 20
MOST_SLOTS = 1 << 10
MOST_TEXT = 1 << 62


class Slot(NamedTuple):
    """One operation of a round; what caches hold is counted from the start of the round's text.

    Attributes:
        level: of the member.
        drafts: whether it drafts.
        new: tokens that the row is fed.
        held: tokens that its cache holds then, less those of the text.
        drafted: tokens that it writes.
        context: pending tokens before it.
        wanted: tokens that blocks are held for, less those of the text.
        asked: of them, those that a draft asks for.
    """

    level: int
    drafts: bool
    new: int
    held: int
    drafted: int
    context: int
    wanted: int


class Shape(NamedTuple):
    """A round of requests whose caches lack so much of their text.

    Attributes:
        round: which.
        below: its slots below the target.
        target: that of the target.
        wanted: most tokens that blocks of any member are held for, less those of the text.
        most_new: tokens that a slot below the target is fed at most.
        lack: number of what caches lack where the next round begins.
    """

    round: PlayedRound
    below: tuple[Slot, ...]
    target: Slot
    wanted: int
    most_new: int
    lack: int


class UnfitError(Exception):
    """A round that cannot be flown."""


class Node:
    """A round at a place of a recorded answer, after which the next one is known once somebody was there.

    Attributes:
        shape: of the round; the next ones are its fields, or those of its slots.
        after: the next round; None: nobody with room enough was there, or the segment ends.
        times: how often it was played since the recorder was told.
    """

    __slots__ = ("after", "below", "committed", "drafted", "ends", "first_new", "held", "lack", "most_new", "needs",
                 "new", "shape", "times", "wanted")  # fmt: skip

    def __init__(self, shape: Shape, *, is_lone_draft: bool) -> None:
        played, below, target, wanted, most_new, lack = shape
        self.shape = shape
        self.committed, self.ends, self.needs = played.committed, played.ends, played.needs
        self.below = len(below)
        self.new, self.held = target.new, target.held
        # Of a lone draft below by a model, which is what most rounds have.
        self.first_new = below[0].new if is_lone_draft else 0
        self.drafted = below[0].drafted if is_lone_draft else -len(below)
        self.wanted, self.most_new, self.lack = wanted, most_new, lack
        self.after: Node | None = None
        self.times = 0


class Row:
    """A request in flight.

    Attributes:
        request: which.
        nodes: known ones of its recorded request, by place and lack.
        node: its next round.
        position: tokens of its segment.
        room: tokens that the segment may still have.
        lack: number of what its caches lack.
        text: its tokens.
        held: tokens that the blocks of every member which takes part have room for.
        until: tokens of its text with which it has to be looked at: a block is full, or others wait for them.
    """

    __slots__ = ("held", "lack", "node", "nodes", "position", "request", "room", "text", "until")

    node: Node
    until: int

    def __init__(self, request: ServedRequest, nodes: dict[int, Node], lack: int, held: int) -> None:
        self.request = request
        self.nodes = nodes
        self.lack = lack
        self.held = held
        self.begin()

    def begin(self) -> None:
        """Stand where the request stands."""
        request = self.request
        self.position = len(request.emitted)
        self.room = request.budget - self.position
        self.text = request.num_text


class Cycle(NamedTuple):
    """Picoseconds of a cycle with one slot below the target, or none, by the tokens of all texts together.

    Attributes:
        start, end: of these tokens, for which it holds.
        below_ps, below_slope: of the operation below, at `start` and for each token more.
        target_ps, target_slope: of the target's, likewise.
    """

    start: int
    end: float
    below_ps: int
    below_slope: int
    target_ps: int
    target_slope: int


class Beats:
    """Flies the requests of one replica.

    Args:
        pool: the members.
        rounds: of the policy.
        asked: the policy, whose ready requests these are.
        memory: of the replica.
        books: of the replica.
        forward_ps: picoseconds of one forward.
        lines: on which these lie; None of a cost without lines.
        num_free: model-free members, which come first in the pool.
        budget: tokens that a forward is fed at most.
        lookup_ps: of one prompt lookup.
        length_of: tokens of the recorded answer of a request, by its id; None of policies that draft.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        rounds: FixedRounds,
        asked: AskedPolicy,
        memory: ReplicaMemory,
        books: ReplicaBooks,
        forward_ps: ForwardPs,
        lines: ForwardLines | None,
        num_free: int,
        budget: int,
        lookup_ps: int,
        length_of: Callable[[str], int] | None,
    ) -> None:
        self._names = pool.names
        self._target = pool.target_level
        self._keeps = [not member.model_free for member in pool.members]
        self._rounds = rounds
        self._asked = asked
        self._memory = memory
        self._books = books
        self._forward_ps = forward_ps
        self._lines = lines
        self._num_free = num_free
        self._budget = budget
        self._lookup_ps = lookup_ps
        self._alone = length_of is not None
        self._length_of = length_of or (lambda _: 0)
        self._levels = [pool.target_level]  # that take part and have caches, as far as is known
        self._lacks: dict[tuple[int, ...], int] = {}
        self._lacking: list[tuple[int, ...]] = []
        self._by_request: dict[str, dict[int, Node]] = {}
        self._shapes: dict[tuple[PlayedRound, int], Shape] = {}
        self._nodes: list[Node] = []
        self._caching = [
            level for level, kv in enumerate(memory.members) if kv is not None and kv.limits.prefix_cache
        ]
        self._cycles: dict[int, Cycle] = {}

    def fly(self, now_ps: int, until_ps: int) -> int:
        """Let all who are ready run whole cycles that end before `until_ps`; returns when the last one ended."""
        rows = []
        for request in self._asked.ready:
            if request.place < 0:
                return now_ps
            nodes = self._by_request.get(request.recorded_id)
            if nodes is None:
                nodes = self._by_request[request.recorded_id] = {}
            text, cached = request.num_text, request.cached
            lack = self._number(tuple([text - cached[level] for level in self._levels]))
            row = Row(request, nodes, lack, self._held(request))
            node = self._node_of(row)
            if node is None:
                return now_ps
            row.node = node
            row.until = self._until(request)
            rows.append(row)
        flown = self._jumped if self._alone else self._flown
        now_ps = flown(rows, now_ps, until_ps)
        for row in rows:
            self._land(row, ends=False)
        self._asked.load.now_s = now_ps / PS_PER_S
        return now_ps

    def _held(self, request: ServedRequest) -> int:
        room = request.room_held
        return min([room[level] for level in self._levels])

    def _until(self, request: ServedRequest) -> int:
        """Tokens of the text with which a block may enter a prefix cache, or others of its session are told."""
        # The newest token is in no cache.
        until = min([request.full_at[level] for level in self._caching], default=MOST_TEXT) + 1
        return min(until, request.arrival.prompt_tokens + request.depths[0]) if request.depths else until

    def _flown(self, rows: list[Row], now_ps: int, until_ps: int) -> int:
        target, busy, cycles = self._target, self._books.busy, self._cycles
        num_rows, gaps, first_ps, ended = len(rows), list[int](), -1, list[Row]()
        while not ended:
            new = first_new = texts = 0
            drafted = rows[0].node.drafted
            is_short = False
            for row in rows:
                node, text = row.node, row.text
                new += node.new
                first_new += node.first_new
                texts += text
                if node.drafted != drafted:
                    drafted = -MOST_SLOTS
                if text + node.wanted > row.held:
                    is_short = True
            if drafted >= 0:
                times: Sequence[tuple[int, int, int]] = ()
                key = ((num_rows << 20 | new) << 20 | first_new) << 20 | drafted
                known = cycles.get(key)
                if known is None or not known[0] <= texts < known[1]:
                    known = self._cycle(key, rows, texts)
                start, _, below_ps, below_slope, target_ps, target_slope = known
                below_ps += below_slope * (texts - start)
                target_ps += target_slope * (texts - start)
                end_ps = now_ps + below_ps + target_ps
            else:
                times = self._below(rows)
                held = texts + sum([row.node.held for row in rows])
                target_ps = self._forward_ps(self._names[target], num_rows, new, held)
                end_ps = now_ps + target_ps + sum([ps for _, ps, _ in times])
            if end_ps >= until_ps or ((times or new + first_new > self._budget) and self._lags(rows, new)):
                break
            if is_short and not self._reserve(rows, times or [(0, below_ps, 0)], now_ps):
                break
            if drafted > 0:
                sums = busy[rows[0].node.shape.below[0].level]
                sums[0] += below_ps
                sums[1] += drafted
            for level, ps, forwards in times:
                if forwards:
                    busy[level][0] += ps
                    busy[level][1] += forwards
            busy[target][0] += target_ps
            busy[target][1] += 1
            if first_ps < 0:
                first_ps = end_ps
            else:
                gaps.append(end_ps - now_ps)
            now_ps = end_ps
            for row in rows:
                node = row.node
                node.times += 1
                tokens = node.committed
                row.lack = node.lack
                row.text += tokens
                row.position += tokens
                row.room = room = row.room - tokens
                after = node.after
                if after is None or after.needs > room or row.text >= row.until:
                    ended.append(row)
                else:
                    row.node = after
            if ended:
                self._note(rows, first_ps, now_ps, gaps)
                gaps = []
                ended = [row for row in ended if not self._goes_on(row, now_ps)]
        if first_ps >= 0:
            self._note(rows, first_ps, now_ps, gaps)
        return now_ps

    def _jumped(self, rows: list[Row], now_ps: int, until_ps: int) -> int:
        """As `_flown`, of the target alone: as many cycles at once as nothing changes but the length of texts."""
        num_rows, target, first_ps, recorder = len(rows), self._target, -1, self._books.recorder
        while True:
            texts = sum([row.text for row in rows])
            new = sum([row.node.new for row in rows])
            most = min([min(self._left(row), row.until - row.text) for row in rows])
            room = min([row.held - row.node.wanted - row.text for row in rows]) + 1
            key = (num_rows << 20 | new) << 40
            known = self._cycles.get(key)
            if known is None or not known[0] <= texts < known[1]:
                known = self._cycle(key, rows, texts)
            start, end, _, _, each_ps, slope_ps = known
            each_ps, more_ps = each_ps + slope_ps * (texts - start), slope_ps * num_rows
            if new != num_rows:  # somebody's cache lacks more than the newest token
                most = 1
            elif end < texts + most * num_rows:
                most = -(-(int(end) - texts) // num_rows)
            if room < 1 and (new > self._budget or not self._reserve(rows, (), now_ps)):
                break
            most = min(most, max(room, 1), _steps_before(until_ps - now_ps, each_ps, more_ps, most))
            if most < 1 or new > self._budget:
                break
            took_ps = most * each_ps + more_ps * (most * (most - 1) // 2)
            busy = self._books.busy[target]
            busy[0] += took_ps
            busy[1] += most
            if first_ps < 0:
                first_ps = now_ps + each_ps
                self._note(rows, first_ps, first_ps, [])
                if most > 1:
                    recorder.gaps(each_ps + more_ps, more_ps, most - 1, num_rows)
            else:
                recorder.gaps(each_ps, more_ps, most, num_rows)
            now_ps += took_ps
            for row in rows:
                row.request.noted_at_ps = now_ps
                row.node.times += most
                row.lack = row.node.lack
                row.text += most
                row.position += most
                row.room -= most
            going = True
            for row in rows:
                if row.node.ends or row.text >= row.until or row.node.new > 1 or self._left(row) == 1:
                    going &= self._goes_on(row, now_ps)
            if not going:
                break
        return now_ps

    def _left(self, row: Row) -> int:
        """Cycles until the segment's last one, which is one of its own."""
        return 1 if row.node.ends else min(row.room, self._length_of(row.request.recorded_id) - row.position) - 1 or 1

    def _goes_on(self, row: Row, now_ps: int) -> bool:
        """Look at a row whose next round was not known, or that has come to an end; False: the flight ends here."""
        node, request = row.node, row.request
        goes_on = True
        if node.ends or row.text >= row.until:
            goes_on = self._land(row, ends=node.ends)
            self._memory.commit(request)
            if request.depths and request.num_answer >= request.depths[0]:
                self._books.reached([request], now_ps)
                goes_on = False
            row.begin()
            row.until = self._until(request)
        if not goes_on or request.order == NEVER:
            return False
        after = None if self._alone else node.after
        if after is None or after.needs > row.room:
            after = self._node_of(row)
            if after is None:
                return False
            if not node.ends and row.room >= after.needs:
                node.after = after
        row.node = after
        return True

    def _cycle(self, key: int, rows: list[Row], texts: int) -> Cycle:
        """The picoseconds of cycles like this one, whose rows draft equally much, or nothing at all."""
        num_rows = len(rows)
        nodes = [row.node for row in rows]
        new, held = sum([node.new for node in nodes]), sum([node.held for node in nodes])
        first, end, target_ps, target_slope = self._line(self._target, num_rows, new, held, texts)
        target_ps += target_slope * (texts - first)
        below_ps = below_slope = 0
        drafted = nodes[0].drafted
        if drafted:
            slots = [node.shape.below[0] for node in nodes]
            level = slots[0].level
            first_new = sum([slot.new for slot in slots])
            lines = [(1, self._line(level, num_rows, first_new, sum([slot.held for slot in slots]), texts))]
            if drafted > 1:
                middle = num_rows * (drafted - 2) // 2
                lines.append((drafted - 1, self._line(level, num_rows, num_rows, middle, texts)))
            for repeats, line in lines:
                end = min(end, line[1])
                below_ps += repeats * (line[2] + line[3] * (texts - line[0]))
                below_slope += repeats * line[3]
        # All from where the texts stand now, which is as good a start as any.
        found = Cycle(texts, end, below_ps, below_slope, target_ps, target_slope)
        self._cycles[key] = found
        return found

    def _line(self, level: int, num_rows: int, new: int, held: int, texts: int) -> tuple[int, float, int, int]:
        """(start, end, picoseconds at the start, slope) of a forward by the tokens of all texts; `held` beside these."""
        lines, name = self._lines, self._names[level]
        if lines is None:
            return texts, texts + 1, self._forward_ps(name, num_rows, new, held + texts), 0
        start, end, start_ps, slope_ps = lines.line(name, num_rows, new, held + texts)
        return start - held, end - held, start_ps, slope_ps

    def _lags(self, rows: list[Row], new: int) -> bool:
        """Whether an operation might be fed more than the budget."""
        return new > self._budget or sum([row.node.most_new for row in rows]) > self._budget

    def _note(self, rows: list[Row], first_ps: int, now_ps: int, gaps: list[int]) -> None:
        """Write down when tokens came out: each request has its own gap before the first cycle."""
        recorder = self._books.recorder
        own: dict[int, int] = {}
        for row in rows:
            out_ps = row.request.noted_at_ps
            if out_ps < first_ps:
                own[first_ps - out_ps] = own.get(first_ps - out_ps, 0) + 1
            row.request.noted_at_ps = now_ps
        for gap_ps, count in own.items():
            recorder.gaps(gap_ps, 0, 1, count)
        if gaps:
            recorder.single_gaps(gaps, len(rows))

    def _below(self, rows: list[Row]) -> list[tuple[int, int, int]]:
        """The operations below the target of one cycle: (level, picoseconds, forwards) each."""
        found = []
        for place in range(max([row.node.below for row in rows])):
            taking = [row for row in rows if row.node.below > place]
            slots = [row.node.shape.below[place] for row in taking]
            level, drafts = slots[0][0], slots[0][1]
            if level < self._num_free:
                found.append((level, len(slots) * self._lookup_ps, 0))
                continue
            new = held = contexts = longest = 0
            shortest = 1 << 30
            for row, slot in zip(taking, slots):
                text, drafted = row.text, slot[4]
                new += slot[2]
                held += text + slot[3]
                contexts += text + slot[5]
                if drafted > longest:
                    longest = drafted
                if drafted < shortest:
                    shortest = drafted
            model, count = self._names[level], len(slots)
            if not drafts:
                found.append((level, self._forward_ps(model, count, new, held), 1))
                continue
            if shortest == 0:
                found.append(self._ragged(model, level, taking, slots))
                continue
            ps = self._forward_ps(model, count, new, held)
            if longest > 1:
                if longest == shortest:
                    middle = contexts + count * (longest - 2) // 2 if count > 1 else contexts + (longest - 2) // 2
                    ps += (longest - 1) * self._forward_ps(model, count, count, middle)
                else:
                    ps += self._later(model, [(row.text + slot.context, slot.drafted) for row, slot in zip(taking, slots)])
            found.append((level, ps, longest))
        return found

    def _ragged(self, model: str, level: int, rows: list[Row], slots: list[Slot]) -> tuple[int, int, int]:
        """A draft in which somebody found nothing."""
        pairs = [(row, slot) for row, slot in zip(rows, slots, strict=True) if slot.drafted]
        if not pairs:
            return level, 0, 0
        new, held = sum(slot.new for _, slot in pairs), sum(row.text + slot.held for row, slot in pairs)
        ps = self._forward_ps(model, len(pairs), new, held)
        ps += self._later(model, [(row.text + slot.context, slot.drafted) for row, slot in pairs])
        return level, ps, max(slot.drafted for _, slot in pairs)

    def _later(self, model: str, drafts: list[tuple[int, int]]) -> int:
        """Picoseconds of the forwards of a draft after its first one; of each row its context and its length."""
        duration_ps, done = 0, 1
        for length in sorted({drafted for _, drafted in drafts}):
            repeats = length - done
            if repeats:
                held = [context for context, drafted in drafts if drafted >= length]
                rows = len(held)
                middle = sum(held) + rows * (2 * done + repeats - 3) // 2
                duration_ps += repeats * self._forward_ps(model, rows, rows, middle)
            done = length
        return duration_ps

    # -- shapes

    def _number(self, lacking: tuple[int, ...]) -> int:
        number = self._lacks.get(lacking)
        if number is None:
            number = self._lacks[lacking] = len(self._lacking)
            self._lacking.append(lacking)
        return number

    def _node_of(self, row: Row) -> Node | None:
        """The next round of a row; None: it cannot be flown."""
        key = row.position << LACK_BITS | row.lack
        node = row.nodes.get(key)
        if node is not None and node.needs <= row.room:
            return node
        request = row.request
        try:
            played = self._rounds.round(request.request_id, request.recorded_id, row.position, row.room)
        except Exception:  # noqa: BLE001 - whoever asks the policy is told
            return None
        shape = self._shapes.get((played, row.lack))
        if shape is None:
            try:
                shape = self._shapes[played, row.lack] = self._shape(played, self._lacking[row.lack])
            except UnfitError:
                return None
        below = shape.below
        is_lone = len(below) == 1 and below[0].level >= self._num_free and below[0].drafted > 0
        node = Node(shape, is_lone_draft=is_lone)
        self._nodes.append(node)
        if row.room >= played.needs:
            row.nodes[key] = node
        return node

    def _shape(self, played: PlayedRound, lacking: tuple[int, ...]) -> Shape:
        """Raises UnfitError where members do not take turns, or a cache that takes part lacks much."""
        held = [-MOST_LACKING - 1] * len(self._keeps)
        for level, tokens in zip(self._levels, lacking, strict=True):
            held[level] = -tokens
        *below, last = played.ops
        for place, op in enumerate(below):
            if op.drafts == bool(place % 2) or op.level != below[place % 2].level:
                raise UnfitError
        slots = [self._slot(op, held) for op in below]
        target = self._slot(last, held)
        after = tuple([played.committed - held[level] for level in self._levels])
        wanted, most_new = max(slot.wanted for slot in (*slots, target)), max([slot.new for slot in slots], default=0)
        return Shape(played, tuple(slots), target, wanted, most_new, self._number(after))

    def _slot(self, op: FixedOp, held: list[int]) -> Slot:
        """An operation, after which caches hold what `held` says then."""
        level, drafts, _, asked, drafted, pending, first, accepted, _, _ = op
        if not self._keeps[level]:
            return Slot(level, drafts, 0, 0, drafted, pending, pending + asked + 1)
        if level not in self._levels:
            self._levels.append(level)
            raise UnfitError
        if held[level] < -MOST_LACKING:
            raise UnfitError
        if drafts:
            before = held[level]
            if drafted:
                held[level] = pending + drafted - 1
        else:
            before = min(held[level], first - 1)
            limit = first + accepted
            held[:] = [min(tokens, limit) for tokens in held]
            held[level] = limit
        return Slot(level, drafts, pending - before, before, drafted, pending, pending + asked + 1)

    # -- blocks

    def _reserve(self, rows: list[Row], times: Sequence[tuple[int, int, int]], now_ps: int) -> bool:
        """Hold blocks for a cycle, operation by operation; False: memory may be short, and nothing has changed."""
        most = max([row.node.wanted for row in rows])
        for level in self._levels:
            kv = self._memory.members[level]
            assert kv is not None
            if kv.available_blocks < len(rows) * (most // kv.limits.block_tokens + 2):
                return False
        in_order = sorted(rows, key=_order) if len(rows) > 1 else rows
        below = max([row.node.below for row in rows])
        for place in range(below + 1):
            for row in in_order:
                request, shape = row.request, row.node.shape
                if place < below and place >= len(shape.below):
                    continue
                slot = shape.target if place == below else shape.below[place]
                wanted = row.text + slot.wanted
                for level in (slot.level, self._target):
                    if wanted > request.room_held[level]:
                        self._memory.reserve(request, level, wanted)
            self._books.note_state(now_ps)
            if place < below:
                now_ps += times[place][1]
        for row in rows:
            row.held = self._held(row.request)
        return True

    # -- the end of a flight

    def _land(self, row: Row, *, ends: bool) -> bool:
        """Let a request be what it is after the rounds that it flew; returns whether it goes on."""
        asked, books, request = self._asked, self._books, row.request
        count = row.text - request.num_text
        if not count:
            return True
        for level, tokens in zip(self._levels, self._lacking[row.lack], strict=False):
            request.cached[level] = row.text - tokens
        asked.load.context_tokens += count
        books.num_emitted += count
        if request.earlier:
            books.num_cycled += count
        request.num_noted += count
        start = len(request.emitted)
        tokens_out = self._rounds.tokens(request.recorded_id, start, count)
        place = ON_TRUNK if request.tables is None else request.tables.trunk[start + count]
        if not request.flew(tokens_out, place, ends=ends):
            return True
        asked.ready.remove(request)
        asked.end(request)
        return False

    def close(self) -> None:
        """Tell the recorder what was judged, and count what was modelled."""
        for node in self._nodes:
            times, node.times = node.times, 0
            for op in node.shape.round.ops if times else ():
                self._asked.num_modelled += times * op.modelled
                if not op.drafts:
                    drafted, accepted, own = times * op.judged, times * op.accepted, times * op.own
                    self._books.recorder.judged(op.level, drafted, accepted, own, times)


def _order(row: Row) -> int:
    return row.request.order


def _steps_before(left_ps: float, each_ps: int, more_ps: int, most: int) -> int:
    """How many steps end before `left_ps` are over, at most `most`; the first takes `each_ps`, each other more."""
    if most * each_ps + more_ps * (most * (most - 1) // 2) < left_ps:
        return most
    low, high = 0, most  # so many end in time, and so many do not
    while high - low > 1:
        middle = (low + high) // 2
        if middle * each_ps + more_ps * (middle * (middle - 1) // 2) < left_ps:
            low = middle
        else:
            high = middle
    return low
