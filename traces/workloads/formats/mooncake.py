"""Mooncake's traces (FAST'25): an object a line with times in milliseconds and hashes of blocks of 512 tokens."""

from collections.abc import Iterator

from ..arrival import Arrival
from ..exact_seconds import PS_PER_S
from .format import Reading, WorkloadFormat
from .objects import check_keys, count_of, ids_of, objects_of, time_of

UNIT_TOKENS = 512
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_PS_PER_MS = PS_PER_S // 1000


def read_mooncake(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file, called by their line."""
    for line, found in objects_of(reading):
        check_keys(reading, line, found, _KEYS, _KEYS)
        arrives_ps = time_of(reading, line, "timestamp", found["timestamp"], unit_ps=_PS_PER_MS)
        prompt = count_of(reading, line, "input_length", found["input_length"])
        output = count_of(reading, line, "output_length", found["output_length"])
        blocks = ids_of(reading, line, "hash_ids", found["hash_ids"])
        wanted = -(-prompt // UNIT_TOKENS)
        if len(blocks) != wanted:
            rule = f"must be one for each {UNIT_TOKENS} tokens of input_length {prompt} begun, {wanted}"
            raise reading.error(line, "hash_ids", rule, len(blocks))
        tokens = reading.lengths(line, prompt, output, names=("input_length", "output_length"))
        if tokens is not None:
            yield line, Arrival(str(line), arrives_ps, *tokens, blocks=blocks)


MOONCAKE = WorkloadFormat(
    name="mooncake",
    keys=_KEYS,
    sees=lambda keys: bool({"input_length", "hash_ids"} & keys),
    read=read_mooncake,
    unit_tokens=lambda _: UNIT_TOKENS,
    is_json=True,
)
