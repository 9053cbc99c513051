"""The adapter, its frozen head, and what a federation of embeddings does with both."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from fedrepro.base.progress import Silent
from fedrepro.models import build_model, layout, parameter_count
from tests import embedded
from tests.data.made import one_line


def test_it_has_the_half_mebibyte_of_the_papers_table_3():
    model = build_model("adapter", 7, 512)
    assert 4 * parameter_count(model) == 2**19
    fixed = [name for name, info in layout(model).items() if info.is_fixed]
    assert fixed == ["predictor.weight"]
    with one_line("reduction = 40 leaves none of 12"):
        build_model("adapter", 7, 12, reduction=40)


def heads(run):
    return [client.personal(run.server.model)["predictor.weight"] for client in run.clients]


def directions(run):
    found = []
    for x, y in ((c.data.train.images.double(), c.data.train.labels) for c in run.clients):
        found.append(100 * F.normalize(torch.stack([x[y == k].mean(0) for k in range(3)]), dim=1))
    return found


def test_the_common_head_is_the_mean_of_the_clients_class_directions_and_an_own_one_theirs():
    run = embedded.start("FedAvg")
    expected = torch.stack(directions(run)).mean(0).float()
    torch.testing.assert_close(run.server.model["predictor.weight"], expected)
    torch.testing.assert_close(heads(run), [expected] * 3)
    own = embedded.start("SOLO", head="own")
    expected = [direction.float() for direction in directions(own)]
    own.run(Silent())
    torch.testing.assert_close(heads(own), expected)


def test_a_head_in_words_goes_before_class_means():
    texts = {f"domain{i}": torch.full((3, embedded.VALUES), float(i)) for i in range(3)}
    given = replace(embedded.federation(), texts=texts)
    run = embedded.start("FedAvg", given=given)
    assert (run.server.model["predictor.weight"] == 1).all()
    own = embedded.start("SOLO", given=given, head="own")
    assert (heads(own)[2] == 2).all()


def test_embeddings_cannot_be_augmented():
    with one_line("embeddings cannot be augmented"):
        embedded.start("FedAvg", data__flip=True)
