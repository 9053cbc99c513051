"""What is kept behind the figures of prototypes, and that they are drawn from it alone."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import Scale
from fedrepro.extras import leakage as inversion
from fedrepro.methods.prototypes import class_means
from fedrepro.quantities.base import Asked, Study, study
from fedrepro.quantities.counted import likeness, with_prototypes
from fedrepro.records import federation_of
from fedrepro.report import images

MPFT = papers.load("mpft")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study("mpft", "minidigits", "smoke", 0, runs_dir=tmp_path_factory.mktemp("runs"))


def values(of: Study, experiment: str) -> pd.DataFrame:
    return pd.DataFrame(of.cells(experiment)).set_index(["method", "column"]).value.unstack()


def test_one_image_of_each_client_is_attacked_and_what_stands_for_a_class(smoke):
    figure, federation = smoke.figure("figure-9"), smoke.federation()
    arrays, names = figure.arrays, [client.name for client in federation.clients]
    attacked = [(names[0], what) for what in ("one image", "a k-means centre", "the class mean")]
    attacked += [(name, "one image") for name in names[1:]]
    assert figure.facts["rows"] == [f"{name}, {what}" for name, what in attacked]
    assert figure.facts["settings"]["steps"] == 30
    data = smoke.protocol().data.model_copy(update={"encoder": None})
    images = federation_of(data).clients[0].train
    place = (images.images == torch.from_numpy(arrays["behind"][0])).flatten(1).all(dim=1)
    (one,) = place.nonzero()[:, 0].tolist()
    z, labels = federation.clients[0].train.images, federation.clients[0].train.labels
    np.testing.assert_array_equal(arrays["prototypes"][0], z[one])
    own = z[labels == labels[one]]
    np.testing.assert_allclose(arrays["prototypes"][2], own.mean(dim=0), rtol=1e-5)


def test_numbers_of_the_attack_are_those_of_its_images(smoke):
    arrays, rows = smoke.figure("figure-9").arrays, smoke.figure("figure-9").facts["rows"]
    table = values(smoke, "figure-9")
    for index, name in enumerate(rows):
        for which, when in (("found", "after"), ("another", "of another")):
            expected = likeness(arrays[which][index], arrays["behind"][index])
            assert tuple(table.loc[name, [f"PSNR {when}", f"SSIM {when}"]]) == expected
    assert (table["MSE after"] < table["MSE before"]).all()


def test_arrays_are_computed_once(smoke, monkeypatch):
    first = smoke.figure("figure-9")
    with monkeypatch.context() as patch:
        patch.setattr(inversion, "invert", None)
        again = smoke.figure("figure-9")
        assert again.facts == first.facts and again.facts["environment"]["threads"] == 1
        for name, array in first.arrays.items():
            np.testing.assert_array_equal(again.arrays[name], array)
        with pytest.raises(TypeError):  # another seed is another attack
            replace(smoke, seed=1).figure("figure-9")
    (path,) = (smoke.store.root / "figures").glob("figure-9-*")
    path.write_bytes((whole := path.read_bytes())[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    mended = smoke.figure("figure-9")
    np.testing.assert_array_equal(mended.arrays["found"], first.arrays["found"])


def test_the_plane_holds_images_prototypes_and_their_means(smoke):
    figure, federation = smoke.figure("figure-5"), smoke.federation()
    arrays, clients = figure.arrays, federation.clients
    assert figure.facts["classes"] == list(federation.classes[:5])
    roles = np.bincount(arrays["role"])
    shown = sum(min(40, int((c.train.labels == k).sum())) for c in clients for k in range(5))
    assert roles.tolist() == [shown, 5 * len(clients), 5]
    sent = torch.stack([class_means(c.train.images, c.train.labels, 10)[0] for c in clients])
    kept = clients[1].train.labels < 5
    z, labels = clients[1].train.images[kept], clients[1].train.labels[kept]
    expected = [(z - of[labels]).norm(dim=1).mean() for of in (sent[1], sent.mean(dim=0))]
    table = values(smoke, "figure-5")
    found = table.loc[clients[1].name, ["to own prototype", "to mean of prototypes"]]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_figures_are_drawn_from_the_arrays(smoke):
    figure = smoke.figure("figure-5")
    points, roles = with_prototypes(figure, 0), np.bincount(figure.arrays["role"]).tolist()
    named = dict(zip(figure.facts["roles"], roles, strict=True))
    assert points.role.value_counts().to_dict() == named and images.plane(points).png()
    figure = smoke.figure("figure-9")
    drawn = images.inversions(figure, smoke.cells("figure-9"))
    assert len(drawn.axes) == 3 * len(figure.facts["rows"])
    for column, key in enumerate(("found", "behind", "another")):
        shown = np.moveaxis(drawn.axes[column].images[0].get_array(), 2, 0)
        np.testing.assert_array_equal(shown, figure.arrays[key][0])


def test_what_cannot_be_had_is_one_line(smoke):
    assert set(MPFT.experiment("figure-9").steps) == set(get_args(Scale))
    with pytest.raises(FedReproError, match="table-1-pacs has no arrays"):
        smoke.figure("table-1-pacs")
    attack, protocol = MPFT.experiment("figure-9"), smoke.protocol()
    with pytest.raises(FedReproError, match=r"figure-9 works on embeddings; set data\.encoder"):
        inversion.attack(Asked(MPFT, attack, protocol.changed(**{"data.encoder": None})))
    with pytest.raises(FedReproError, match="leave tested_on as it is"):
        study("mpft", "pacs", "smoke", changes={"tested_on": "home"}).announce(["table-1-pacs"])
