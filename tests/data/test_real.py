"""The real files, where they are at hand: counts, shapes, histograms, pixels, clients."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrepro.base.protocol import DataSpec
from fedrepro.data import DATASETS, load_domain
from fedrepro.data.federation import build_federation
from fedrepro.data.manifest import collection_of, locate

# label histograms, published or recorded
HISTOGRAMS = {
    "mnist": [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
    "usps": [1553, 1269, 929, 824, 852, 716, 834, 792, 708, 821],
    "svhn": [684, 1968, 1590, 1104, 964, 909, 773, 767, 621, 620],
    "mnistm": [1575, 1802, 1605, 1630, 1565, 1443, 1562, 1658, 1562, 1598],
}
# PACS's official lists: training and validation images
PARTS = {
    "photo": (1499, 171), "art_painting": (1840, 208),
    "cartoon": (2107, 237), "sketch": (3531, 398),
}  # fmt: skip


def load(name: str, size: int, root: Path):
    located = locate(name, root)
    if located.missing:
        pytest.skip(f"{name} is not under the data root")
    return load_domain(name, size, root), located.source.name


@pytest.mark.parametrize("name", list(HISTOGRAMS))
def test_digits(real_data, name):
    size, channels = 16 if name == "usps" else 28, 1 if name in ("mnist", "usps") else 3
    domain, source = load(name, size, real_data)
    if name in ("svhn", "mnistm") and source == "official":
        pytest.skip("the recorded histogram is the subset's")
    assert np.bincount(domain.labels).tolist() == HISTOGRAMS[name]
    assert domain.images.shape == (sum(HISTOGRAMS[name]), channels, size, size)
    parts, images = np.bincount(domain.part).tolist(), domain.images
    if name == "mnist":
        assert parts == [60000, 10000] and domain.deviations == ()
        assert domain.labels[:5].tolist() == [5, 0, 4, 1, 9]
        assert domain.labels[60000:60005].tolist() == [7, 2, 1, 0, 4]
        train = images[:60000].astype(np.float32) / 255
        assert float(train.mean()) == pytest.approx(0.1307, abs=1e-4)
        assert float(train.std()) == pytest.approx(0.3081, abs=1e-4)
    if name == "usps":
        assert parts == [7291, 2007] and domain.labels[:5].tolist() == [6, 5, 4, 7, 3]
        # first test line: -0.999999 -0.999928 -0.997885 -0.973729 ... 0.001891
        assert images[7291, 0, 0, :4].tolist() == [0, 0, 0, 3]
        assert images[7291, 0, 0, 7] == int((1 + 0.001891) / 2 * 255)
        assert bool(domain.deviations) == (source != "official")
    if name == "svhn":
        assert domain.cut == (8000, 8010) and "first 10,000" in domain.deviations[0]
        assert (domain.part == 1).all()
    if name == "mnistm":
        assert parts == [12000, 4000]


@pytest.mark.parametrize("name", [*DATASETS["office10"], *DATASETS["pacs"]])
def test_folder_sets_have_the_published_counts_and_parts(real_data, name):
    domain, source = load(name, 32, real_data)
    assert tuple(np.bincount(domain.labels)) == collection_of(name).domains[name].counts
    assert any("128-pixel" in clause for clause in domain.deviations) == (source == "128-pixel tar")
    if name in PARTS and (domain.part >= 0).any():
        assert tuple(np.bincount(domain.part)[[0, 2]]) == PARTS[name]


def test_i2pfls_clients_of_office(real_data):
    table = {"caltech": 3, "amazon": 2, "webcam": 1, "dslr": 4}
    given = {"rule": "table", "clients": table, "per_client": 0.2, "every_class": True}
    for name in DATASETS["office10"]:
        load(name, 32, real_data)
    settings = {"dataset": "office10", "size": 32, "split": "every-tenth", "allocation": given}
    fed = build_federation(DataSpec(**settings), real_data)
    sizes = {c.domain: len(c.train) for c in fed.clients}
    assert sizes == {"amazon": 153, "caltech": 179, "dslr": 25, "webcam": 47}
    assert all(len(set(c.train.labels.tolist())) == 10 for c in fed.clients)


def test_office_pixels_are_pillows_and_domains_of_one_archive_differ(real_data):
    domain, source = load("amazon", 64, real_data)
    assert domain.hash != load("dslr", 64, real_data)[0].hash
    if source != "128-pixel tar":
        pytest.skip("the full release is here")
    with tarfile.open(real_data / "office10.tar") as tar:
        file = tar.extractfile("amazon/backpack/frame_0003.jpg")
        with Image.open(file) as image:
            expected = np.asarray(image.convert("RGB").resize((64, 64), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(domain.images[2], expected.transpose(2, 0, 1))
