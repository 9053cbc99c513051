"""The feature space hijacking attack: an image is searched whose embedding is a given prototype."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import counted
from fedrepro.data.embeddings import Embedder
from fedrepro.federated.clients import Checkpoint

LEARNING_RATE = 0.01  # of Adam, on the [0, 1] scale of pixels; the paper names neither
NOISE = 0.05  # around grey: what the encoder does not see stays as it began, and would spoil a PSNR
WINDOW = 7  # pixels, scikit-image's default for SSIM


def start(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Images (count, 3, size, size) to begin the search from: grey with a little noise."""
    return 0.5 + NOISE * (2 * torch.rand(count, 3, size, size, generator=generator) - 1)


def misses(encoder: Embedder, images: Tensor, prototypes: Tensor) -> Tensor:
    """Mean squared error (m,) of each image's embedding against its prototype."""
    return (encoder.images(images) - prototypes).square().mean(dim=1)


def invert(
    encoder: Embedder,
    prototypes: Tensor,
    size: int,
    steps: int,
    lr: float,
    generator: torch.Generator,
    checkpoint: Checkpoint | None = None,
) -> Tensor:
    """Images (m, 3, size, size) in [0, 1] whose embeddings are near prototypes (m, d).

    Descends the mean squared error by Adam from `start`, cutting the image to [0, 1] after every
    step. The images of a batch know nothing of each other. Zhang et al. 2025 (MPFT), App. G, which
    leaves start, optimiser and rate open. Equal arguments give equal bits on one CPU, whether the
    search goes on from a checkpoint or was never interrupted.

    Raises:
        FedReproError: prototypes of another length than the encoder's embeddings.
    """
    if prototypes.ndim != 2 or prototypes.shape[1] != encoder.size:
        raise FedReproError(
            f"prototypes of shape {tuple(prototypes.shape)} for {encoder.name}, whose embeddings "
            f"hold {encoder.size} values; give (m, {encoder.size})"
        )
    images = start(len(prototypes), size, generator).requires_grad_()
    optimizer = torch.optim.Adam([images], lr=lr)
    done = 0
    if checkpoint is not None and (held := checkpoint.load()) is not None:
        done = held[1]["steps"]
        moments = {name: value.clone() for name, value in held[0].items()}
        with torch.no_grad():
            images.copy_(moments.pop("images"))
        optimizer.state[images].update(moments)
    for step in counted("searching images", steps, done):
        error = misses(encoder, images, prototypes).sum()
        (images.grad,) = torch.autograd.grad(error, [images])
        optimizer.step()
        with torch.no_grad():
            images.clamp_(0, 1)
        if checkpoint is not None and checkpoint.due():
            tensors = {"images": images, **optimizer.state[images]}
            checkpoint.save(tensors, {"steps": step + 1})
    return images.detach()


def likeness(found: npt.NDArray[np.uint8], truth: npt.NDArray[np.uint8]) -> tuple[float, float]:
    """PSNR in dB (infinite for equal images) and SSIM of two images (3, H, W), scikit-image's.

    Raises:
        FedReproError: images of unequal or too small a size.
    """
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    if found.shape != truth.shape or found.ndim != 3 or min(found.shape[1:]) < WINDOW:
        raise FedReproError(
            f"images of {found.shape} and {truth.shape} cannot be compared; give two of one shape "
            f"(3, H, W), at least {WINDOW} pixels high and wide"
        )
    with np.errstate(divide="ignore"):
        ratio = peak_signal_noise_ratio(truth, found, data_range=255)
    alike = structural_similarity(truth, found, win_size=WINDOW, channel_axis=0, data_range=255)
    return float(ratio), float(alike)


def to_uint8(images: Tensor) -> npt.NDArray[np.uint8]:
    """Images in [0, 1] as they are stored."""
    return (255 * images).round().to(torch.uint8).numpy()
