"""Frozen encoders: a domain's images -> its embeddings, computed once and stored by hash."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.errors import one_of
from fedrepro.base.files import modules_of
from fedrepro.base.progress import counted
from fedrepro.base.threads import free_threads, side_by_side
from fedrepro.data.domains import (
    ENCODERS,
    DomainArrays,
    alone,
    cache_path,
    open_arrays,
    write_signed,
)
from fedrepro.data.manifest import data_root, hash_of, locate, verify
from fedrepro.data.pictures import check, reading
from fedrepro.data.transforms import normalise

EMBEDDING_VERSION = 1  # raised whenever the embeddings of the same images change
ENCODER_VERSION = 1  # raised whenever the tensors made from the same file change
BATCH = 64
PIXELS = 8  # side of the picture that replaces an embedding if there is no encoder
SIDE, FEATURES = 224, 1280  # of MobileNetV2: side of its pictures, length of its features
NO_TEXT = "no text encoder: the frozen head is made of the clients' class means"
EXTRAS = "fedrepro.extras"  # a package whose modules may register encoders


@dataclass(frozen=True)
class Embedder:
    """A frozen encoder. images: float (b, 3, H, W) in [0, 1] -> embeddings (b, size), with
    gradients to the images. text, if it has a text encoder: the names of a domain and of K classes
    -> a head (K, size). hash: of everything they depend on. deviations: clauses to print with
    numbers made with it. side: of its images in pixels; others are enlarged; None: any."""

    name: str
    size: int
    hash: str
    images: Callable[[Tensor], Tensor]
    deviations: tuple[str, ...] = ()
    text: Callable[[str, tuple[str, ...]], Tensor] | None = None
    side: int | None = None


def embedder(name: str, root: Path | None = None) -> Embedder:
    """The encoder with a name, on the machine's first GPU, else on its CPU. FedReproError: unknown
    name, missing or altered weights, a package that is not installed."""
    if name not in EMBEDDERS:
        modules_of(EXTRAS)
    one_of(name, EMBEDDERS, "encoder")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return EMBEDDERS[name](name, root, device)


def _pixels(name: str, root: Path | None, device: torch.device) -> Embedder:
    """The picture itself, averaged down: tests the code quickly and without a file."""
    clauses = f"no encoder: {PIXELS}x{PIXELS} pixels take the embedding's place", NO_TEXT
    images = nn.Sequential(nn.AdaptiveAvgPool2d(PIXELS), nn.Flatten())
    return Embedder(name, 3 * PIXELS**2, f"pixels-{PIXELS}", images, clauses)


def load_weights(name: str, root: Path | None) -> tuple[dict[str, Tensor], str, tuple[str, ...]]:
    """An encoder's tensors by torchvision's names, on the CPU; sha256 hex over (name, the file's
    sha256, version); and clauses to print with numbers made with it. No code of the file is run.
    FedReproError: it is missing, truncated or changed."""
    located = locate(name, data_root(root))
    hashes, _ = verify(located)
    path = located.files["weights"]
    with reading(path):
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        fits = all(isinstance(value, Tensor) for value in tensors.values())
    check(fits, path, "is not a mapping of tensors")
    hash = hash_of(name, sorted(hashes.items()), ENCODER_VERSION)
    return tensors, hash, located.source.deviations


def _mobilenet(name: str, root: Path | None, device: torch.device) -> Embedder:
    """The mean over space of the features of torchvision's MobileNetV2. It was trained with
    TensorFlow's padding: its five 3x3 convolutions of stride 2 are padded at the bottom and on the
    right only, else up to 3 in 10 predictions change."""
    tensors, hash, deviations = load_weights(name, root)
    network = load_torchvision().models.mobilenet_v2(weights=None)
    network.load_state_dict(tensors)
    for layer in network.features.modules():
        if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2):
            layer.padding = (0, 0)
            layer.register_forward_pre_hook(lambda _, given: F.pad(given[0], (0, 1, 0, 1)))
    fast = torch.channels_last  # a quarter faster on a CPU
    features = network.features.eval().requires_grad_(False).to(device, memory_format=fast)

    def images(x: Tensor) -> Tensor:
        x = enlarged(x.to(device), SIDE).contiguous(memory_format=fast)
        found: Tensor = features(normalise(255 * x, "half")).mean(dim=(2, 3))
        return found.cpu()

    clauses = (*deviations, f"frozen {name} in place of CLIP", NO_TEXT)
    return Embedder(name, FEATURES, hash, images, clauses, side=SIDE)


Maker = Callable[[str, Path | None, torch.device], Embedder]  # from its name, data root and device
EMBEDDERS: dict[str, Maker] = {"pixels": _pixels, **dict.fromkeys(ENCODERS, _mobilenet)}


def enlarged(x: Tensor, size: int) -> Tensor:
    """Images in [0, 1] (b, 3, H, H) at the size an encoder takes."""
    if x.shape[-1] == size:
        return x
    return F.interpolate(x, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of some of a domain's images: float32 (n, d) by the images' indices (n,).
    rows: int64 (m,), the indices of the embedded images, ascending; embeddings: (m, d)."""

    rows: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float32]

    def __getitem__(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        missing = np.setdiff1d(indices, self.rows)
        if len(missing):
            raise IndexError(f"{len(missing)} images were not embedded, {missing[0]} among them")
        return self.embeddings[np.searchsorted(self.rows, indices)]


def embed_domain(
    arrays: DomainArrays, encoder: Embedder, rows: npt.NDArray[np.int64]
) -> DomainArrays:
    """The domain with `Embeddings` of the images `rows` instead of images, from the cache or
    computed now; the cache keeps all that were computed. The hash is then of images and encoder."""
    hash = hash_of(arrays.hash, encoder.hash, EMBEDDING_VERSION)
    own = arrays.name.encode()[:60].decode(errors="ignore")  # a file's name has 255 bytes
    path = cache_path(f"{own}-{encoder.name}", encoder.size, hash)
    empty = {"rows": np.empty(0, np.int64), "embeddings": np.empty((0, encoder.size), np.float32)}
    found = Embeddings(**(open_arrays(path) or empty))
    if len(np.setdiff1d(rows, found.rows)):
        with alone(path):
            found = Embeddings(**(open_arrays(path) or empty))
            if len(missing := np.setdiff1d(rows, found.rows)):
                values = encode(arrays.images[missing], encoder, f"embedding {arrays.name}")
                order = np.argsort(together := np.concatenate([found.rows, missing]))
                values = np.concatenate([found.embeddings, values])[order]
                found = Embeddings(together[order], values)
                write_signed(path, vars(found))
    further = tuple(f"{arrays.name}: {clause}" for clause in encoder.deviations)
    deviations = (*arrays.deviations, *further)
    return replace(arrays, images=cast(Any, found), hash=hash, deviations=deviations)


def encode(images: npt.NDArray[np.uint8], encoder: Embedder, label: str) -> npt.NDArray[np.float32]:
    """Embeddings float32 (n, d) of images uint8 (n, C, H, H), n > 0, with a bar named `label`.
    Every batch has the full size (the last one repeats its last image) and, on a CPU, one thread.
    So an embedding's bits do not depend on the other images or on the number of threads."""

    @torch.no_grad()
    def one(batch: int) -> Tensor:
        part = torch.from_numpy(np.array(images[batch * BATCH : (batch + 1) * BATCH]))
        whole = torch.cat([part, part[-1:].expand(BATCH - len(part), -1, -1, -1)]).float() / 255
        return encoder.images(whole.expand(-1, 3, -1, -1))[: len(part)]

    batches = range(-(-len(images) // BATCH))
    count = 1 if torch.cuda.is_available() else free_threads()
    shown = batches if encoder.side is None else counted(label, len(batches))
    found = side_by_side(one, batches, count)
    exact = {"enabled": True, "deterministic": True, "allow_tf32": False}  # else by chance
    with torch.backends.cudnn.flags(**exact):
        parts = [part for _, part in zip(shown, found, strict=True)]
    return torch.cat(parts).float().numpy()
