"""Frozen encoders: verified, read without the power to run code, kept as safetensors."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.errors import FedReproError
from fedrepro.data import ENCODERS, encoders, fetch, load_encoder, prepare, status
from fedrepro.data.manifest import Manifest, default_manifest, parse_manifest
from fedrepro.data.readers.common import decode_image
from fedrepro.data.readers.trees import tar_files
from fedrepro.data.transforms import normalise

NAME = "mobilenetv2-imagenet"
FILE = "mobilenet_v2_imagenet.pt"


class Touch:
    """Unpickled by plain pickle, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return open, (str(self.path), "w")


def manifest(path: Path) -> Manifest:
    """The package's, but with this file's hash."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return parse_manifest(
        '[encoders]\nweights = true\nlicence = "free"\ncitation = "none"\nmanual = "By hand."\n'
        'places = [""]\nclasses = []\n'
        f'domains = {{ {NAME} = {{ folders = ["encoders"] }} }}\n'
        '[[encoders.sources]]\nname = "made"\nreader = "torch-weights"\ndeviations = ["made"]\n'
        f'files = [{{ role = "weights", names = ["{FILE}"], sha256 = "{digest}" }}]\n'
    )


def made(tmp_path: Path, content: object) -> Manifest:
    (tmp_path / "root").mkdir()
    torch.save(content, tmp_path / "root" / FILE)
    return manifest(tmp_path / "root" / FILE)


WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3).t(), "a.batches": torch.tensor(7)}


def test_weights_come_back_from_a_file_without_pickle(tmp_path: Path) -> None:
    given, root, cache = made(tmp_path, WEIGHTS), tmp_path / "root", tmp_path / "cache"
    encoder = load_encoder(NAME, root, cache, given)
    assert set(encoder.tensors) == set(WEIGHTS) and encoder.deviations == ("made",)
    for name, value in WEIGHTS.items():
        assert torch.equal(encoder.tensors[name], value)
        assert encoder.tensors[name].dtype == value.dtype
    (path,) = cache.glob("*.safetensors")
    assert path.read_bytes()[:1] != b"\x80" and set(load_file(path)) == set(WEIGHTS)
    stamp = path.stat().st_mtime_ns
    assert load_encoder(NAME, root, cache, given).hash == encoder.hash
    assert path.stat().st_mtime_ns == stamp
    path.write_bytes(path.read_bytes()[:-5])
    assert torch.equal(
        load_encoder(NAME, root, cache, given).tensors["a.batches"], WEIGHTS["a.batches"]
    )
    assert path.stat().st_mtime_ns != stamp


def test_prepare_and_status_and_fetch_know_encoders(tmp_path: Path) -> None:
    given, root, cache = made(tmp_path, WEIGHTS), tmp_path / "root", tmp_path / "cache"
    lines: list[str] = []
    rows = [prepare(["encoders"], [], root, cache, given, lines.append)[0] for _ in range(2)]
    assert [row.fresh for row in rows] == [True, False]
    assert (rows[0].domain, rows[0].size, rows[0].images) == (NAME, 224, 0)
    assert lines[0].startswith(f"{NAME} 224x224: weights, prepared")
    (row,) = status([NAME], root, cache, given)
    assert (row.present, row.hash, row.datasets, row.images) == (True, "good", ("encoders",), None)
    assert row.licence == "free" and row.note == "made"
    (fetched,) = fetch(["encoders"], root, cache, given)
    assert fetched.outcome == "manual" and "By hand." in fetched.text


def test_an_altered_file_is_not_even_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, root = made(tmp_path, WEIGHTS), tmp_path / "root"
    (root / FILE).write_bytes(pickle.dumps(Touch(tmp_path / "touched")))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(FedReproError, match="the file is cut or altered") as caught:
        load_encoder(NAME, root, tmp_path / "cache", given)
    assert FILE in str(caught.value) and "\n" not in str(caught.value)
    (row,) = status([NAME], root, tmp_path / "cache", given)
    assert row.hash == "bad"


@pytest.mark.parametrize("how", ["code", "list", "numbers", "noise"])
def test_a_file_with_anything_but_tensors_is_refused_even_with_the_right_hash(
    tmp_path: Path, how: str
) -> None:
    contents = {"code": {"a": Touch(tmp_path / "touched")}, "list": [torch.ones(1)]}
    given = made(tmp_path, contents.get(how, {"a": 1.0}))
    if how == "noise":
        (tmp_path / "root" / FILE).write_bytes(b"no archive at all")
        given = manifest(tmp_path / "root" / FILE)
    with pytest.raises(FedReproError, match=FILE) as caught:
        load_encoder(NAME, tmp_path / "root", tmp_path / "cache", given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "touched").exists()
    assert not list((tmp_path / "cache").glob("*.safetensors"))


def test_unknown_or_missing_encoders(tmp_path: Path) -> None:
    with pytest.raises(FedReproError, match="unknown encoder 'clip'; choose from mobilenetv2"):
        load_encoder("clip", tmp_path)
    with pytest.raises(FedReproError, match=r"mobilenet_v2_imagenet\.pt is missing"):
        load_encoder(NAME, tmp_path)
    assert set(default_manifest().encoders()) == set(ENCODERS)
    assert not set(ENCODERS) & set(default_manifest().domains())


def test_the_real_weights_fill_torchvisions_network(real_data: Path) -> None:
    if not default_manifest().locate(NAME, real_data).complete:
        pytest.skip(f"{NAME} is not under the data root")
    encoder = load_encoder(NAME, real_data)
    recipe = encoder.recipe
    network = getattr(load_torchvision().models, recipe.architecture)(weights=None).eval()
    network.load_state_dict(encoder.tensors)
    features = network.features(torch.zeros(1, 3, recipe.size, recipe.size)).mean((2, 3))
    assert features.shape == (1, recipe.features) and bool((features >= 0).all())
    norms = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all(bool((m.running_mean == 0).all()) for m in norms)  # folded
    assert all(np.isclose(m.running_var.numpy(), 1 - 1e-5).all() for m in norms)
    assert encoder.hash == encoders.encoder_plan(NAME, real_data).hash


def test_the_real_encoder_knows_what_it_sees(real_data: Path) -> None:
    """Photos of three kinds of things, whose ImageNet numbers should be among its first five
    guesses; by chance one in 200 would."""
    manifest = default_manifest()
    if not manifest.locate(NAME, real_data).complete or not (real_data / "office10.tar").exists():
        pytest.skip("the encoder or the photos are not under the data root")
    encoder = load_encoder(NAME, real_data)
    network = load_torchvision().models.mobilenet_v2(weights=None).eval()
    network.load_state_dict(encoder.tensors)
    things = {"backpack": 414, "laptop": 620, "mouse": 673}
    photos: dict[str, list[np.ndarray]] = {name: [] for name in things}
    for file in tar_files(real_data / "office10.tar"):
        kind = file.parts[1] if file.parts[0] == "amazon" else ""
        if len(photos.get(kind, [0] * 8)) < 8:
            photos[kind].append(decode_image(file.read(), kind, encoder.recipe.size))
    right = 0
    for kind, number in things.items():
        x = normalise(torch.from_numpy(np.stack(photos[kind])), encoder.recipe.normalise)
        with torch.no_grad():
            right += int((network(x).topk(5).indices == number).any(1).sum())
    assert right >= 20, f"{right} of 24"
