"""I2PFL: draws, and augmented prototypes over a client's data."""

import numpy as np
import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from tests import toys


def test_draws():
    method = methods.create("I2PFL", alpha=0.4)
    drawn = method.draw(4000, torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, 2) and drawn.dtype == torch.float32
    # Beta(a, a) has variance 1 / (4 (2a + 1)), the uniform draw 1/12
    assert drawn.var(dim=0).tolist() == pytest.approx([1 / (4 * 1.8), 1 / 12], abs=0.01)
    assert torch.equal(drawn, method.draw(4000, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("fields", [{"mixup": "none"}, {"apa": 0.0}])
def test_nothing_is_drawn_where_nothing_is_mixed(fields):
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert methods.create("I2PFL", **fields).draw(9, generator) is None
    assert torch.equal(before, generator.get_state())


def start(**fields):
    return toys.start("I2PFL", fields=fields)


ALIGNED = {"mixup": "images"}, {"mixup": "none"}, {"augmented_constant": False}, {"alpha": 0.1}


@pytest.mark.parametrize("fields", ALIGNED)
def test_each_reading_of_the_alignment_changes_the_network(fields):
    networks = []
    for chosen in ({}, fields):
        run = start(**chosen)
        run.one_round()
        networks.append(np.concatenate([v.flatten() for v in run.server.model.values()]))
    assert not np.allclose(*networks)


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
    run = start(augmented_over="client")
    found = run.run(Silent()).query("measure == 'term' and subject == 'apa'")
    by_round = found.groupby("round").value.sum()
    assert by_round[1] == 0 and by_round[2] > 0
    with pytest.raises(FedReproError, match="mixup"):
        methods.create("I2PFL", augmented_over="client", mixup="images")
