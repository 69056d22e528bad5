"""What comes with the package of smollm2: small files that fit together, and recordings of them."""

from paceline.base.files import shipped
from paceline.runtime.pools.heads import read_head_tokens
from paceline.runtime.pools.pool_file import read_pool_file
from paceline.studies.setting import open_recording
from safetensors import safe_open
from transformers import AutoConfig

POOLS = ("smollm2", "smollm2-feature")
RECORDINGS = ("smollm2", "smollm2-coupled")
VOCABULARY = 49_152


def weights(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no dict


def test_weights_are_small():
    files = [file for name in POOLS for file in shipped("pools", name).rglob("*.safetensors")]
    assert len(files) == 4
    assert sum(file.stat().st_size for file in files) <= 40e6


def test_members_are_those_of_the_files():
    for name in POOLS:
        file, content = read_pool_file(shipped("pools", name))
        assert content.name == name
        for entry in content.members:
            if entry.vocabulary is not None:
                folder = file.parent / entry.path
                config, held = AutoConfig.from_pretrained(folder), weights(folder)
                assert read_head_tokens(file.parent / entry.vocabulary, VOCABULARY)
                assert {key for key in held if "down_proj" in key} == {
                    f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(config.num_hidden_layers)
                }
                assert ("fc.weight" in held) == (entry.features_of is not None)
            if entry.low_rank is not None:
                assert (file.parent / entry.low_rank).is_file()


def test_recordings_are_of_four_tasks():
    _, content = read_pool_file(shipped("pools", "smollm2"))
    sizes = 0
    for name in RECORDINGS:
        recording = open_recording(name)
        assert list(recording.meta.model_names) == [entry.name for entry in content.members if entry.ngram is None]
        assert recording.meta.ngram is not None
        assert len(recording.requests) >= 40
        assert len({request.tag for request in recording.requests}) == 4
        sizes += sum(file.stat().st_size for file in shipped("recordings", f"{name}.trace").iterdir())
    assert sizes <= 12e6
