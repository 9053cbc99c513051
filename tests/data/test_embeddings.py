"""Frozen encoders at work: what is kept, what the numbers are, and what is said when one lacks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import DataSpec
from fedrepro.data import embeddings
from fedrepro.data.domains import DATASETS, load_domain
from fedrepro.data.federation import build_federation
from fedrepro.extras import clip
from tests.data.test_encoders import NAME

PIXELS = DataSpec(
    dataset="minidigits",
    size=28,
    encoder="pixels",
    test_share=0.3,
    validation=0.2,
    normalise="none",
)


@pytest.fixture(scope="module")
def federation():
    return build_federation(PIXELS)


def test_a_federation_holds_embeddings_where_images_were(federation) -> None:
    images = build_federation(PIXELS.model_copy(update={"encoder": None}))
    assert federation.size == 192 and federation.texts == {}
    for one, other in zip(federation.clients, images.clients, strict=True):
        assert torch.equal(one.train.labels, other.train.labels)
        assert one.train.images.dtype == torch.float32
        expected = F.adaptive_avg_pool2d(other.train.images.float() / 255, 8).flatten(1)
        torch.testing.assert_close(one.train.images, expected)
    for domain, clauses in federation.deviations.items():
        assert clauses[-2:] == (
            f"{domain}: no encoder: 8x8 pixels take the embedding's place",
            f"{domain}: {embeddings.NO_TEXT}",
        )
    assert federation.hashes["allocation"] == images.hashes["allocation"]
    for domain in images.domains:
        assert federation.hashes[f"data/{domain}"] != images.hashes[f"data/{domain}"]
        assert federation.hashes[f"split/{domain}"] == images.hashes[f"split/{domain}"]


def test_a_federation_embeds_the_images_it_uses_and_no_others(tmp_path: Path) -> None:
    spec = PIXELS.model_copy(update={"test_limit": 20})
    counts = build_federation(spec, cache=tmp_path).counts()
    for domain, images in counts.groupby("domain").images.sum().items():
        (path,) = tmp_path.glob(f"{domain}-pixels-*.safetensors")
        with safe_open(str(path), framework="np") as file:
            rows = file.get_tensor("rows")
        assert len(rows) == images < len(load_domain(str(domain), 28, cache=tmp_path).labels)


def counting(name: str, hash: str, calls: list[int]) -> embeddings.Embedder:
    def images(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return x.mean(dim=(2, 3))

    return embeddings.Embedder(name, 3, hash, images)


def test_embeddings_are_computed_once_for_each_encoder(tmp_path: Path) -> None:
    arrays, calls, rows = load_domain("mini-scanned", 8, cache=tmp_path), [], np.arange(5, 150)
    first = embeddings.embed_domain(arrays, counting("one", "a", calls), rows, tmp_path)
    assert calls == [embeddings.BATCH] * 3  # 145 images; the last batch is filled up
    again = embeddings.embed_domain(arrays, counting("one", "a", []), rows, tmp_path)
    np.testing.assert_array_equal(again.images[rows], first.images[rows])
    grey = np.asarray(arrays.images[[5, 149]], dtype=np.float32).mean(axis=(1, 2, 3)) / 255
    for found in (first, again):
        expected = np.repeat(grey[:, None], 3, axis=1)
        np.testing.assert_allclose(found.images[np.array([5, 149])], expected, rtol=1e-5)
    calls.clear()
    other = embeddings.embed_domain(arrays, counting("one", "b", calls), rows, tmp_path)
    assert len(calls) == 3 and other.hash != first.hash == again.hash


def test_only_images_that_are_asked_for_are_embedded_and_all_are_kept(tmp_path: Path) -> None:
    arrays, calls = load_domain("mini-scanned", 8, cache=tmp_path), []
    encoder, some, more = counting("one", "a", calls), np.array([90, 3, 7]), np.array([4, 7, 250])
    first = embeddings.embed_domain(arrays, encoder, some, tmp_path)
    with pytest.raises(IndexError, match="2 images were not embedded, 4 among them"):
        first.images[more]
    both = embeddings.embed_domain(arrays, encoder, more, tmp_path)
    assert first.hash == both.hash and len(calls) == 2  # 7 is not embedded again
    every = np.concatenate([more, some])
    grey = np.asarray(arrays.images[every], dtype=np.float32).mean(axis=(1, 2, 3)) / 255
    np.testing.assert_allclose(both.images[every][:, 0], grey, rtol=1e-5)
    np.testing.assert_array_equal(both.images[some], first.images[some])
    embeddings.embed_domain(arrays, encoder, every, tmp_path)
    assert len(calls) == 2


def test_a_cut_file_of_embeddings_is_computed_again(tmp_path: Path) -> None:
    arrays, calls, rows = load_domain("mini-scanned", 8, cache=tmp_path), [], np.arange(9)
    embeddings.embed_domain(arrays, counting("one", "a", []), rows, tmp_path)
    (path,) = tmp_path.glob("mini-scanned-one-3-*.safetensors")
    path.write_bytes(path.read_bytes()[:-7])
    embeddings.embed_domain(arrays, counting("one", "a", calls), rows, tmp_path)
    assert len(calls) == 1


def test_an_embedding_does_not_depend_on_what_is_asked_with_it(real_data: Path) -> None:
    images = load_domain("usps", 32, real_data).images[:64]
    encoder, rows = embeddings.embedder(NAME, real_data), np.array([40, 2])
    whole = embeddings.encode(images, encoder, "all")
    np.testing.assert_array_equal(embeddings.encode(images[rows], encoder, "few"), whole[rows])


def test_mobilenet_is_the_prepared_network_with_its_own_padding(real_data: Path) -> None:
    """Against the same tensors run with explicit padding, layer by layer."""
    from fedrepro.base._torchvision import load_torchvision
    from fedrepro.data.encoders import load_encoder

    x = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    found = embeddings.embedder(NAME, real_data).images(x)
    network = load_torchvision().models.mobilenet_v2(weights=None)
    network.load_state_dict(load_encoder(NAME, real_data).tensors)
    padded = 0
    for layer in network.eval().modules():
        if isinstance(layer, torch.nn.Conv2d) and layer.stride == (2, 2):
            layer.padding, padded = (0, 0), padded + 1
            layer.register_forward_pre_hook(lambda _, given: F.pad(given[0], (0, 1, 0, 1)))
    big = F.interpolate(x, size=(224, 224), mode="bicubic", antialias=True).clamp(0, 1)
    with torch.no_grad():
        expected = network.features(2 * big - 1).mean(dim=(2, 3))
    assert padded == 5 and found.shape == (2, 1280)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_mobilenet_tells_pictures_of_a_class_from_others(real_data: Path, tmp_path: Path) -> None:
    """Webcam's objects: nearest class mean over half of them names most of the rest."""
    arrays = load_domain("webcam", 128, real_data)
    encoder = embeddings.embedder(NAME, real_data)
    z = torch.from_numpy(embeddings.encode(arrays.images[::2], encoder, "webcam"))
    z = F.normalize(z, dim=1)
    y = torch.from_numpy(np.array(arrays.labels[::2]))
    half = torch.arange(len(y)) % 2 == 0
    means = torch.stack([z[half & (y == k)].mean(0) for k in range(10)])
    right = ((z[~half] @ F.normalize(means, dim=1).T).argmax(1) == y[~half]).float().mean()
    assert right > 0.9


def test_what_lacks_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(FedReproError, match="no encoder is called 'vgg'; choose one of pixels"):
        build_federation(PIXELS.model_copy(update={"encoder": "vgg"}))
    monkeypatch.setitem(sys.modules, "open_clip", None)  # importing it fails
    with pytest.raises(FedReproError, match=r"needs open_clip.*pip install 'fedrepro\[clip\]'"):
        embeddings.embedder("clip-vit-b-32", tmp_path)
    monkeypatch.setitem(sys.modules, "open_clip", SimpleNamespace())
    with pytest.raises(FedReproError, match=r"has no weights under .*clip-vit-b-32\.safetensors"):
        embeddings.embedder("clip-vit-b-32", tmp_path)
    monkeypatch.setitem(
        sys.modules, "open_clip",
        SimpleNamespace(create_model=lambda *_, **__: torch.nn.Linear(2, 2)),
    )  # fmt: skip
    (tmp_path / "encoders").mkdir()
    save_file({"other": torch.zeros(3)}, tmp_path / "encoders" / "clip-vit-b-32.safetensors")
    with pytest.raises(FedReproError, match="does not hold the weights of ViT-B-32"):
        embeddings.embedder("clip-vit-b-32", tmp_path)


def test_prompts_of_every_domain() -> None:
    for dataset in ("pacs", "domainnet-50"):
        for domain in DATASETS[dataset]:
            prompts = clip.prompts_of(domain)
            assert len(set(prompts)) == 6 and all(p.count("{}") == 1 for p in prompts)
    assert clip.prompts_of("photo") == clip.PROMPTS["real"]
    assert clip.prompts_of("sketch") == clip.prompts_of("sketch-50") == clip.PROMPTS["sketch"]
    assert clip.spoken("ice_cream") == "an ice cream" and clip.spoken("Dog") == "a dog"


class Made(torch.nn.Module):
    """As much of an open_clip model as is used."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.0))
        self.visual = SimpleNamespace(
            image_size=(8, 8), image_mean=(0.5,) * 3, image_std=(0.25,) * 3
        )

    def encode_image(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3))

    def encode_text(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.float()


def test_the_text_head_by_hand() -> None:
    def tokenize(prompts: list[str]) -> torch.Tensor:
        return torch.tensor([[len(p), p.count("a"), 1] for p in prompts])

    made = clip.wrap(Made(), tokenize, "hash", torch.device("cpu"))
    assert made.size == 3
    torch.testing.assert_close(made.images(torch.full((2, 3, 4, 4), 0.75)), torch.ones(2, 3))
    head = made.text("sketch", ("dog", "elephant"))
    for row, words in zip(head, ("a dog", "an elephant"), strict=True):
        tokens = tokenize([p.format(words) for p in clip.PROMPTS["sketch"]]).float()
        mean = (tokens / tokens.norm(dim=1, keepdim=True)).mean(dim=0)
        torch.testing.assert_close(row, torch.tensor(2.0).exp() * mean / mean.norm())


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("open_clip") is None, reason="needs the extra clip (open_clip)"
)
@pytest.mark.parametrize("name", clip.MODELS)
def test_open_clips_own_networks_with_random_weights(name: str, tmp_path: Path) -> None:
    package = clip._package(name)
    torch.manual_seed(0)
    model = package.create_model(clip.MODELS[name][0], pretrained=None)
    (tmp_path / "encoders").mkdir()
    save_file(model.state_dict(), tmp_path / "encoders" / f"{name}.safetensors")
    found = embeddings.embedder(name, tmp_path, tmp_path / "cache")
    assert found.size == 512 and found.text is not None
    assert found.images(torch.rand(2, 3, 224, 224)).shape == (2, 512)
    head = found.text("photo", ("dog", "house"))
    assert head.shape == (2, 512)
    torch.testing.assert_close(head.norm(dim=1), model.logit_scale.exp().detach().expand(2))
