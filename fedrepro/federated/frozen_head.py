"""Frozen heads: what a network of embeddings is given before the first round."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.data.federation import ClientData, Federation
from fedrepro.methods.prototypes import class_means
from fedrepro.models import FLModel, layout

SCALE = 100.0  # CLIP's own, to which its training limits it


def give_head(module: FLModel, federation: Federation, own: bool) -> list[dict[str, Tensor]]:
    """Fill the network's frozen head with the mean of the clients' heads.

    A client's head is its domain's, in words, where the encoder knows words; else the directions
    of its class means. Returned are, by client, the tensors in which its network departs from the
    common one: none, or its own head.
    """
    names = [name for name, info in layout(module).items() if info.is_fixed]
    if not names:
        return [{} for _ in federation.clients]
    classes = len(federation.classes)
    heads = [_head(client, federation.texts, classes) for client in federation.clients]
    common = torch.stack(heads).mean(dim=0)
    place = module.state_dict()
    for name in names:
        place[name].copy_(common)
    type_of = place[names[0]].dtype
    return [{name: head.to(type_of) for name in names} if own else {} for head in heads]


def _head(client: ClientData, texts: dict[str, Tensor], classes: int) -> Tensor:
    if client.domain in texts:
        return texts[client.domain]
    if texts:  # several domains pooled
        return torch.stack(list(texts.values())).mean(dim=0)
    means, _ = class_means(client.train.images.double(), client.train.labels, classes)
    return SCALE * F.normalize(means, dim=1)
