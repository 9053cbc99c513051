"""Frozen encoders at work: a domain's images -> its embeddings, computed once and kept by hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.errors import FedReproError, choices
from fedrepro.base.places import modules_of
from fedrepro.base.progress import counted
from fedrepro.base.threads import free_threads, side_by_side
from fedrepro.data.cache import cache_path, cache_root, is_whole, write_signed
from fedrepro.data.domains import DomainArrays
from fedrepro.data.encoders import ENCODERS, load_encoder
from fedrepro.data.transforms import normalise

EMBEDDING_VERSION = 1  # raised whenever the embeddings of the same images change
BATCH = 64
PIXELS = 8  # side of the picture that stands for an embedding where there is no encoder
NO_TEXT = "no text encoder: the frozen head is made of the clients' class means"
EXTRAS = "fedrepro.extras"  # a package whose modules may register encoders


@dataclass(frozen=True)
class Embedder:
    """images: float (b, 3, H, W) in [0, 1] -> embeddings (b, size), a gradient passes back to the
    images. text: of a domain, its words for the K classes -> a head (K, size); None without a text
    encoder. hash: of all that they depend on. deviations: clauses to print beside numbers made
    with it. side: of the images it works on, in pixels, to which others are enlarged; None: any."""

    name: str
    size: int
    hash: str
    images: Callable[[Tensor], Tensor]
    deviations: tuple[str, ...] = ()
    text: Callable[[str, tuple[str, ...]], Tensor] | None = None
    side: int | None = None


# Each makes the encoder of that name from data root, cache and device.
Maker = Callable[[str, Path | None, Path | None, torch.device], Embedder]
EMBEDDERS: dict[str, Maker] = {}


def embedder(name: str, root: Path | None = None, cache: Path | None = None) -> Embedder:
    """An encoder by name, ready to run on the machine's first GPU, else on its CPU.

    Raises:
        FedReproError: unknown name, missing or altered weights, a package that is not installed.
    """
    if name not in EMBEDDERS:
        modules_of(EXTRAS)
    if name not in EMBEDDERS:
        near = choices(name, EMBEDDERS)
        raise FedReproError(f"no encoder is called {name!r}; choose from {near}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return EMBEDDERS[name](name, root, cache, device)


def _pixels(name: str, root: Path | None, cache: Path | None, device: torch.device) -> Embedder:
    """The picture itself, averaged down: nothing learnt, so that a path can be checked in no time
    without a file."""

    def images(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, PIXELS).flatten(1)

    clause = f"no encoder: {PIXELS}x{PIXELS} pixels take the embedding's place"
    return Embedder(name, 3 * PIXELS**2, f"pixels-{PIXELS}", images, (clause, NO_TEXT))


def _convolutional(
    name: str, root: Path | None, cache: Path | None, device: torch.device
) -> Embedder:
    """One of `data.encoders`: the mean over space of the features of a torchvision network."""
    encoder = load_encoder(name, root, cache)
    recipe = encoder.recipe
    network = getattr(load_torchvision().models, recipe.architecture)(weights=None)
    network.load_state_dict(encoder.tensors)
    features = _padded_as_trained(network.features).eval().requires_grad_(False)
    # in the memory format that is a quarter faster on a CPU
    features = features.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def images(x: Tensor) -> Tensor:
        x = enlarged(x.to(device), recipe.size).contiguous(memory_format=torch.channels_last)
        found: Tensor = features(normalise(255 * x, recipe.normalise)).mean(dim=(2, 3))
        return found.cpu()

    clauses = (*encoder.deviations, f"frozen {name} in place of CLIP", NO_TEXT)
    return Embedder(name, recipe.features, encoder.hash, images, clauses, side=recipe.size)


EMBEDDERS |= {"pixels": _pixels, **dict.fromkeys(ENCODERS, _convolutional)}


def _padded_as_trained(features: nn.Module) -> nn.Module:
    """TensorFlow's padding: one pixel at the bottom and right of a 3x3 convolution of stride 2."""
    for parent in list(features.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2):
                layer.padding = (0, 0)
                setattr(parent, name, nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), layer))
    return features


def enlarged(x: Tensor, size: int) -> Tensor:
    """Images in [0, 1] (b, 3, H, H) at the size an encoder takes."""
    if x.shape[-1] == size:
        return x
    return F.interpolate(x, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)


@dataclass(frozen=True)
class Embeddings:
    """Those of a domain's images that are asked for: float32 (n, d) by the images' indices (n,).

    rows: int64 (m,), the indices of the images that were embedded, ascending; values: (m, d).
    """

    rows: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]

    def __getitem__(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        missing = np.setdiff1d(indices, self.rows)
        if len(missing):
            raise IndexError(f"{len(missing)} images were not embedded, {missing[0]} among them")
        return self.values[np.searchsorted(self.rows, indices)]


def embed_domain(
    arrays: DomainArrays,
    encoder: Embedder,
    rows: npt.NDArray[np.int64],
    cache: Path | None = None,
) -> DomainArrays:
    """The domain with `Embeddings` of the images `rows` in place of images, from the cache or
    computed now; the cache keeps what was ever asked for.

    The hash becomes one of images and encoder; nothing is augmented.
    """
    key = json.dumps([arrays.hash, encoder.hash, EMBEDDING_VERSION])
    hash = hashlib.sha256(key.encode()).hexdigest()
    path = cache_path(cache_root(cache), f"{arrays.name}-{encoder.name}", encoder.size, hash)
    found = _read(path, encoder.size)
    missing = np.setdiff1d(rows, found.rows)
    if len(missing):
        values = encode(arrays.images[missing], encoder, f"embedding {arrays.name}")
        together = np.concatenate([found.rows, missing])
        order = np.argsort(together)
        found = Embeddings(together[order], np.concatenate([found.values, values])[order])
        facts = {"domain": arrays.name, "encoder": encoder.name}
        write_signed(path, {"rows": found.rows, "embeddings": found.values}, facts)
    further = tuple(f"{arrays.name}: {clause}" for clause in encoder.deviations)
    deviations = (*arrays.deviations, *further)
    return replace(arrays, images=cast(Any, found), hash=hash, deviations=deviations)


def _read(path: Path, size: int) -> Embeddings:
    """What the cache holds; nothing where it holds no whole file of this kind."""
    with suppress(OSError, SafetensorError):
        if is_whole(path):
            with safe_open(str(path), framework="np") as file:
                return Embeddings(file.get_tensor("rows"), file.get_tensor("embeddings"))
    return Embeddings(np.empty(0, dtype=np.int64), np.empty((0, size), dtype=np.float32))


def encode(images: npt.NDArray[np.uint8], encoder: Embedder, label: str) -> npt.NDArray[np.float32]:
    """Embeddings float32 (n, d) of images uint8 (n, C, H, H), n > 0, with a bar named `label`.

    Every batch is whole, the last one filled up with its last image, and on a CPU each is one
    thread's, as many at once as there are cores: then the bits of an embedding depend neither on
    which others are asked for with it nor on the number of threads.
    """

    @torch.no_grad()
    def one(batch: int) -> Tensor:
        part = torch.from_numpy(np.array(images[batch * BATCH : (batch + 1) * BATCH]))
        whole = torch.cat([part, part[-1:].expand(BATCH - len(part), -1, -1, -1)]).float() / 255
        return encoder.images(whole.expand(-1, 3, -1, -1))[: len(part)]

    batches = range(-(-len(images) // BATCH))
    count = 1 if torch.cuda.is_available() else free_threads()
    shown = batches if encoder.side is None else counted(label, len(batches))
    found = side_by_side(one, batches, count)
    parts = [part for _, (_, part) in zip(shown, found, strict=True)]
    return torch.cat(parts).float().numpy()
