"""CLIP encoders through open_clip, with the user's weights."""

import importlib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.errors import FedReproError, Missing, one_line
from fedrepro.data.embeddings import EMBEDDERS, Embedder, enlarged
from fedrepro.data.manifest import data_root, file_hash, hash_of

MODELS = {  # open_clip's architecture and the release of its weights
    "clip-vit-b-32": ("ViT-B-32", "laion2b_s34b_b79k"),
    "clip-convnext-base": ("convnext_base", "laion400m_s13b_b51k"),
}
ENDINGS = (".safetensors", ".bin", ".pt")
PROMPT_VERSION = 1  # raised whenever the prompts change

PROMPTS: dict[str, list[str]] = yaml.safe_load(
    Path(__file__).with_name("clip_prompts.yaml").read_text(encoding="utf-8")
)
STYLES = {"photo": "real", "art_painting": "painting", "cartoon": "clipart"}  # PACS's domains


def load(name: str, root: Path | None, device: torch.device) -> Embedder:
    """The encoder with the weights under the data root. FedReproError: open_clip or the weights
    are missing, or the weights belong to another network."""
    architecture, release = MODELS[name]
    load_torchvision()  # open_clip imports it, and finds it loaded
    try:
        package = importlib.import_module("open_clip")
    except ImportError:
        raise FedReproError(
            f"encoder {name} needs open_clip, which is not installed; pip install 'fedrepro[clip]'"
        ) from None
    folder = data_root(root) / "encoders"
    path = next(filter(Path.is_file, (folder / f"{name}{ending}" for ending in ENDINGS)), None)
    if path is None:
        mend = f"put open_clip's {architecture} {release} there as {name}{ENDINGS[0]}"
        raise Missing(f"encoder {name} has no weights under {folder}; {mend}")
    model = package.create_model(architecture, pretrained=None)
    try:
        package.load_checkpoint(model, str(path), weights_only=True)  # runs no code of the file
    except Exception as error:  # each format of weights has its own
        why = f"{architecture} ({one_line(error)})"
        raise FedReproError(f"{path} does not have the weights of {why}; get {release}") from None
    hash = hash_of(name, file_hash(path), PROMPT_VERSION)
    return wrap(model, package.get_tokenizer(architecture), hash, device, name)


EMBEDDERS |= dict.fromkeys(MODELS, load)


def wrap(
    model: Any, tokenize: Any, hash: str, device: torch.device, name: str = "clip"
) -> Embedder:
    """An open_clip model as an `Embedder`."""
    model = model.requires_grad_(False).to(device).eval()
    visual = model.visual
    size = visual.image_size[0] if isinstance(visual.image_size, tuple) else visual.image_size
    mean, std = (
        torch.tensor(values, device=device).view(3, 1, 1)
        for values in (visual.image_mean, visual.image_std)
    )

    def images(x: Tensor) -> Tensor:
        found: Tensor = model.encode_image((enlarged(x.to(device), size) - mean) / std)
        return found.cpu()

    def text(domain: str, classes: tuple[str, ...]) -> Tensor:
        rows = []
        for words in (name.replace("_", " ").lower() for name in classes):
            spoken = f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
            prompts = [prompt.format(spoken) for prompt in prompts_of(domain)]
            found = F.normalize(model.encode_text(tokenize(prompts).to(device)), dim=-1)
            rows.append(F.normalize(found.mean(dim=0), dim=-1))
        head: Tensor = torch.stack(rows) * model.logit_scale.exp()
        return head

    width = images(torch.zeros(1, 3, size, size)).shape[1]
    return Embedder(name, width, hash, images, text=text, side=size)


def prompts_of(domain: str) -> list[str]:
    """The prompts of a domain of PACS or DomainNet; those for photographs for any other."""
    style = domain.split("-")[0]
    return PROMPTS.get(STYLES.get(style, style), PROMPTS["real"])
