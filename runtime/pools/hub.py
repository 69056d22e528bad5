"""Asks the model hub once whether it answers: transformers repeats each request for half a minute."""

from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError

from ..refusals import in_one_line
from .pool_file import PoolFileError
from .published import TOKENIZER, pool_that_fetches

_CONFIG = "config.json"
_LONGEST_S = 10.0


def check_hub(file: Path, field: str, hub_id: str) -> None:
    """Raises PoolFileError if neither the hub nor its cache can give a model; `field` of the pool file names it.

    What the hub answers, as that it has no such model, is for transformers to say.
    """
    if any(isinstance(try_to_load_from_cache(hub_id, name), str) for name in (_CONFIG, TOKENIZER)):
        return
    try:
        get_hf_file_metadata(hf_hub_url(hub_id, _CONFIG), timeout=_LONGEST_S)
    except HfHubHTTPError:
        return
    # The client raises whatever its transport does.
    except Exception as error:
        pool = pool_that_fetches(hub_id)
        instead = "" if pool is None else f"; `paceline pool fetch {pool}` gets its weights without the hub"
        why = f"the model hub does not answer ({in_one_line(error)}), and its cache has none{instead}"
        raise PoolFileError(file, field, f"cannot be loaded: {why}", hub_id) from error
