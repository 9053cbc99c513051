"""I2PFL: draws, and augmented prototypes over a client's data."""

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from tests import toys


def test_a_client_keeps_the_means_of_its_mixtures():
    run = toys.start("I2PFL", (8, 7), fields={"augmented_over": "client", "alpha": 0.4}, rounds=2)
    kept, remember = [], type(run.method).remember

    def heard(client):
        kept.append((client, client.generator.get_state(), remember(run.method, client)))
        return kept[-1][2]

    object.__setattr__(run.method, "remember", heard)
    run.one_round()
    client, start, memory = kept[0]
    z, y = client.features(), client.labels
    lam, partner = run.method.drawn(8, torch.Generator().set_state(start)).unbind(dim=1)
    wanted = torch.zeros(toys.CLASSES, z.shape[1])
    for i in range(8):
        others = [z[j] for k in range(toys.CLASSES) if k != y[i] for j in range(8) if y[j] == k]
        other = others[int(partner[i] * len(others))]
        wanted[y[i]] += (lam[i] * z[i] + (1 - lam[i]) * other) / (y == y[i]).sum()
    torch.testing.assert_close(memory["augmented"], wanted)
    assert memory["counts"].tolist() == [3, 3, 2]
    assert torch.equal(run.clients[0].memory["augmented"], memory["augmented"])


def test_without_a_memory_the_first_round_has_no_alignment_and_the_second_has():
    run = toys.start("I2PFL", fields={"augmented_over": "client"})
    curve = run.run(Silent())
    first, second = (toys.logged(curve, "term", number)["apa"] for number in (1, 2))
    assert first == 0 < second
    with pytest.raises(FedReproError, match="mixup"):
        methods.create("I2PFL", augmented_over="client", mixup="images")
