"""Arrays behind the figures for which nothing is trained: computed once and kept beside the runs,
so that a figure can be drawn again."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.quantities.base import Asked, Figure
from fedrepro.records.checkpoint import FileCheckpoint
from fedrepro.records.environment import environment
from fedrepro.records.record import short_hash

Made = tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]
FOLDER = "figures"  # in the folder of runs
VERSION = 1  # raised whenever the arrays of the same data change


def kept(asked: Asked, make: Callable[[FileCheckpoint], Made], **more: Any) -> Figure:
    """The arrays of an experiment that works on embeddings, found or made now.

    make: gives arrays by name and what they are of, and may save unfinished work in the checkpoint.
    more: settings that may change the arrays, besides the data and the seed. FedReproError: a
    protocol without an encoder, missing or broken files.
    """
    experiment, data = asked.experiment, asked.protocol.data
    if data.encoder is None:
        raise FedReproError(f"{experiment.id} works on embeddings; set data.encoder")
    settings = {
        "kind": experiment.kind,
        "version": VERSION,
        "data": data.model_dump(mode="json"),
        "hashes": dict(sorted(asked.federation.hashes.items())),
        "seed": asked.seed,
        **more,
    }
    path = asked.runs / FOLDER / f"{experiment.id}-{short_hash(settings)}.safetensors"
    try:
        with safe_open(str(path), framework="np") as file:
            facts = json.loads(file.metadata()["fedrepro"])
            return Figure({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118
    except (OSError, SafetensorError):  # absent or cut: made again
        pass
    begun = FileCheckpoint(path.with_suffix(""))  # a folder beside the file while it is made
    arrays, names = make(begun)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # as the encoder's
    facts = {**names, "settings": settings, "environment": environment(device)}
    note = {"fedrepro": json.dumps(facts)}
    files.write(path, lambda file: save_file(arrays, file, metadata=note))
    shutil.rmtree(begun.path.parent, ignore_errors=True)
    return Figure(arrays, facts)


def encoder_caveats(asked: Asked) -> list[str]:
    """What the data depart in, the encoder's among it."""
    clauses = asked.federation.deviations.values()
    return list(dict.fromkeys(clause for some in clauses for clause in some))


def likeness(found: npt.NDArray[np.uint8], truth: npt.NDArray[np.uint8]) -> tuple[float, float]:
    """PSNR in dB (infinite for equal images) and SSIM of two images (3, H, W), scikit-image's."""
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    with np.errstate(divide="ignore"):
        ratio = peak_signal_noise_ratio(truth, found, data_range=255)
    alike = structural_similarity(truth, found, channel_axis=0, data_range=255)
    return float(ratio), float(alike)
