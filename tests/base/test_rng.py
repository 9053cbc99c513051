"""Seeds of every stream, and networks that are drawn without touching the global generator."""

import torch

from fedrepro.base.rng import seeded_modules, stream_seed


def test_streams_differ_by_every_part_of_the_key_and_never_change():
    # fmt: off
    keys = [
        (0, "batches", 0, 1), (1, "batches", 0, 1), (0, "augmentation", 0, 1),
        (0, "batches", 1, 1), (0, "batches", 0, 2), (0, "batches", None, 1),
    ]
    # fmt: on
    assert len({stream_seed(*key) for key in keys}) == len(keys)
    # Old records stay re-runnable only while the key's hash is what it was.
    assert stream_seed(0, "batches", 0, 1) == 8232848184240901661


def test_module_initialisation_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    weights = []
    for _ in range(2):
        with seeded_modules(1):
            weights.append(torch.nn.Linear(3, 3).weight)
    assert torch.equal(*weights)
    assert torch.equal(before, torch.get_rng_state())
