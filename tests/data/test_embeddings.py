"""Frozen encoders: read without the power to run code; what is kept; what is said if one lacks."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.protocol import DataSpec
from fedrepro.data import embeddings, fetch, prepare, status
from fedrepro.data.domains import DATASETS, load_domain
from fedrepro.data.embeddings import load_weights
from fedrepro.data.federation import build_federation
from fedrepro.data.manifest import Collection, locate
from fedrepro.data.pictures import decode_image, files_in
from fedrepro.data.transforms import normalise
from fedrepro.extras import clip
from tests.data.made import collection, one_line

NAME, FILE = "mobilenetv2-imagenet", "mobilenet_v2_imagenet.pt"


def test_a_federation_holds_embeddings_where_images_were():
    shares = {"test_share": 0.3, "validation": 0.2, "test_limit": 20}
    spec = DataSpec(dataset="minidigits", size=28, normalise="none", **shares)
    images = build_federation(spec)
    federation = build_federation(spec.model_copy(update={"encoder": "pixels"}))
    assert federation.size == 192 and federation.texts == {}
    for one, other in zip(federation.clients, images.clients, strict=True):
        assert torch.equal(one.train.labels, other.train.labels)
        assert one.train.images.dtype == torch.float32
        expected = F.adaptive_avg_pool2d(other.train.images.float() / 255, 8).flatten(1)
        torch.testing.assert_close(one.train.images, expected)
    moved = {name for name in images.hashes if federation.hashes[name] != images.hashes[name]}
    assert moved == {f"data/{domain}" for domain in images.domains}
    for domain, clauses in federation.deviations.items():
        assert clauses[-2].startswith(f"{domain}: no encoder: 8x8 pixels")
        assert clauses[-1] == f"{domain}: {embeddings.NO_TEXT}"


def test_images_are_embedded_when_asked_for_and_once_for_each_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDREPRO_CACHE", str(tmp_path))
    arrays, calls = embeddings.replace(load_domain("mini-scanned", 8), name="😀" * 63), []

    def images(x):
        calls.append(len(x))
        return x.mean(dim=(2, 3))

    encoder = embeddings.Embedder("one", 3, "a", images)
    some, more = np.arange(5, 150), np.array([4, 7, 250])
    first = embeddings.embed_domain(arrays, encoder, some)
    assert calls == [embeddings.BATCH] * 3  # 145 images; the last batch is filled up
    with pytest.raises(IndexError, match="2 images were not embedded, 4 among them"):
        first.images[more]
    both = embeddings.embed_domain(arrays, encoder, more)
    assert first.hash == both.hash and len(calls) == 4  # 7 is not embedded again
    every = np.concatenate([more, some])
    grey = np.asarray(arrays.images[every], dtype=np.float32).mean(axis=(1, 2, 3)) / 255
    np.testing.assert_allclose(both.images[every][:, 0], grey, rtol=1e-5)
    np.testing.assert_array_equal(both.images[some], first.images[some])
    embeddings.embed_domain(arrays, encoder, every)
    assert len(calls) == 4
    other = embeddings.embed_domain(arrays, embeddings.Embedder("one", 3, "b", images), more)
    assert len(calls) == 5 and other.hash != first.hash


def test_an_embedding_does_not_depend_on_what_is_asked_with_it(real_data, monkeypatch):
    monkeypatch.setattr(embeddings, "BATCH", 4)
    images = load_domain("mini-scanned", 28).images[:6]
    encoder, rows = embeddings.embedder(NAME, real_data), np.array([5, 2])
    whole = embeddings.encode(images, encoder, "all")
    np.testing.assert_array_equal(embeddings.encode(images[rows], encoder, "few"), whole[rows])


class Touch(NamedTuple):
    """Unpickled by plain pickle, it makes a file."""

    path: str

    def __reduce__(self):
        return open, (self.path, "w")


def made(root: Path, content: object) -> Collection:
    torch.save(content, root / FILE)
    files = {"weights": (FILE, (root / FILE).read_bytes())}
    return collection(NAME, "torch-weights", files, deviations=["made"])


def test_weights_are_read_where_their_hash_is_right(tmp_path, known):
    weights = {"a.weight": torch.arange(6.0).reshape(2, 3).t(), "a.batches": torch.tensor(7)}
    known["encoders"] = made(tmp_path, weights)
    tensors, _, deviations = load_weights(NAME, tmp_path)
    assert set(tensors) == set(weights) and deviations == ("made",)
    assert all(torch.equal(tensors[name], value) for name, value in weights.items())
    (row,) = status([NAME], tmp_path)
    assert (row.present, row.hash, row.images, row.note) == (True, "good", None, "made")
    assert "By hand." in fetch(NAME, tmp_path)
    assert list(prepare(["encoders"], [], tmp_path)) == [f"{NAME}: weights, used as released"]
    (tmp_path / FILE).write_bytes(b"altered")
    assert status([NAME], tmp_path)[0].hash == "bad"
    with one_line("the file is incomplete or changed"):
        load_weights(NAME, tmp_path)


def test_a_file_with_anything_but_tensors_is_refused_even_with_the_right_hash(tmp_path, known):
    for content in ({"a": Touch(str(tmp_path / "touched"))}, [torch.ones(1)], {"a": 1.0}):
        known["encoders"] = made(tmp_path, content)
        with one_line(FILE):
            load_weights(NAME, tmp_path)
    assert not (tmp_path / "touched").exists()


def test_the_real_encoder_knows_what_it_sees(real_data):
    """Photos of three kinds of things, whose ImageNet numbers should be among its first five
    guesses; by chance one in 200 would. And its features are those of the embedder."""
    if locate(NAME, real_data).missing or not (real_data / "office10.tar").exists():
        pytest.skip("the encoder or the photos are not under the data root")
    network = load_torchvision().models.mobilenet_v2(weights=None).eval()
    network.load_state_dict(load_weights(NAME, real_data)[0])
    padded = 0  # explicitly, layer by layer
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d) and layer.stride == (2, 2):
            layer.padding, padded = (0, 0), padded + 1
            layer.register_forward_pre_hook(lambda _, given: F.pad(given[0], (0, 1, 0, 1)))
    things, photos = {"backpack": 414, "laptop": 620, "mouse": 673}, []
    for file in files_in(real_data / "office10.tar"):
        kind = file.parts[1] if file.parts[0] == "amazon" else ""
        if kind in things and [seen for seen, _ in photos].count(kind) < 8:
            image = decode_image(file.read(), kind, embeddings.SIDE)
            photos.append((kind, torch.from_numpy(image.copy())))
    x = torch.stack([image for _, image in photos])
    numbers = torch.tensor([things[kind] for kind, _ in photos])
    with torch.no_grad():
        z = normalise(x, "half")
        right = int((network(z).topk(5).indices == numbers[:, None]).any(1).sum())
        features = network.features(z[:2]).mean(dim=(2, 3))
    assert right >= 20, f"{right} of 24"
    found = embeddings.embedder(NAME, real_data).images(x[:2] / 255)
    assert padded == 5 and found.shape == (2, 1280)
    torch.testing.assert_close(found, features, rtol=1e-3, atol=1e-4)


def test_what_lacks_is_one_clear_line(monkeypatch, tmp_path):
    def lacks(name, message):
        with one_line(message):
            embeddings.embedder(name, tmp_path)

    lacks("vgg", r"no encoder 'vgg'; choose from .*clip")
    lacks(NAME, r"mobilenet_v2_imagenet\.pt is missing")
    monkeypatch.setitem(sys.modules, "open_clip", None)  # importing it fails
    lacks("clip-vit-b-32", r"needs open_clip.*pip install 'fedrepro\[clip\]'")
    linear = SimpleNamespace(
        create_model=lambda *_, **__: torch.nn.Linear(2, 2),
        load_checkpoint=lambda model, path, **_: model.load_state_dict(load_file(path)),
    )
    monkeypatch.setitem(sys.modules, "open_clip", linear)
    lacks("clip-vit-b-32", r"has no weights under .*clip-vit-b-32\.safetensors")
    (tmp_path / "encoders").mkdir()
    save_file({"other": torch.zeros(3)}, tmp_path / "encoders" / "clip-vit-b-32.safetensors")
    lacks("clip-vit-b-32", "does not have the weights of ViT-B-32")


class Made(torch.nn.Module):
    """As much of an open_clip model as is used."""

    logit_scale = torch.tensor(2.0)
    visual = SimpleNamespace(image_size=(8, 8), image_mean=(0.5,) * 3, image_std=(0.25,) * 3)
    encode_image = staticmethod(lambda x: x.mean(dim=(2, 3)))
    encode_text = staticmethod(torch.Tensor.float)


def test_the_text_head_by_hand():
    def tokenize(prompts: list[str]) -> torch.Tensor:
        return torch.tensor([[len(p), p.count("a"), 1] for p in prompts])

    for domain in (*DATASETS["pacs"], *DATASETS["domainnet-50"]):
        assert all(prompt.count("{}") == 1 for prompt in clip.prompts_of(domain))
    made = clip.wrap(Made(), tokenize, "hash", torch.device("cpu"))
    assert made.size == 3 and made.text is not None
    torch.testing.assert_close(made.images(torch.full((2, 3, 4, 4), 0.75)), torch.ones(2, 3))
    head = made.text("sketch", ("dog", "elephant"))
    for row, words in zip(head, ("a dog", "an elephant"), strict=True):
        tokens = tokenize([p.format(words) for p in clip.PROMPTS["sketch"]]).float()
        mean = (tokens / tokens.norm(dim=1, keepdim=True)).mean(dim=0)
        torch.testing.assert_close(row, torch.tensor(2.0).exp() * mean / mean.norm())
