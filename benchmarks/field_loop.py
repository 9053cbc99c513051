"""The comparison's other side: federated learning as published code of the field usually writes it.

Images become PIL pictures and pass torchvision transforms one by one, every client has a
DataLoader and a deep-copied network, clients train one after another, each batch is logged through
``.item()``, and state dicts are averaged key by key. Written for this comparison alone.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.protocol import Protocol
from fedrepro.base.rng import seeded_modules, torch_stream
from fedrepro.data.federation import Federation, Samples
from fedrepro.data.transforms import epoch_batches
from fedrepro.models import FLModel, build_model, discriminator

METHODS = ("FedAvg", "ADCOL")
MU = 1.0  # weight of ADCOL's KL term, the library's default
# What of the library's defaults this loop does otherwise: in evaluation mode representations depend
# on no order of batches, so that both sides' losses can be compared.
FIELDS: Mapping[str, Mapping[str, Any]] = {"ADCOL": {"representations_in_training_mode": False}}
Losses = dict[str, float]


class PictureSet(Dataset[tuple[Tensor, int]]):
    """uint8 images (n, 3, H, W), given out one at a time as transformed PIL pictures."""

    def __init__(self, samples: Samples, size: int) -> None:
        self.images = samples.images.permute(0, 2, 3, 1).cpu().numpy()
        self.labels = samples.labels.cpu().numpy()
        t = load_torchvision().transforms
        steps = [t.Resize((size, size)), t.ToTensor(), t.Normalize((0.5,) * 3, (0.5,) * 3)]
        self.transform: Callable[[Image.Image], Tensor] = t.Compose(steps)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[i])), int(self.labels[i])


class LibraryOrder:
    """A batch sampler in the library's order: `epochs` passes per round, each round from its own
    stream."""

    def __init__(
        self, n: int, size: int, epochs: int, stream: Callable[[int], torch.Generator]
    ) -> None:
        self.n, self.size, self.epochs, self.stream = n, size, epochs, stream
        self.passes = 0

    def __iter__(self) -> Iterator[list[int]]:
        number, epoch = divmod(self.passes, self.epochs)
        if epoch == 0:
            self.generator = self.stream(number + 1)
        self.passes += 1
        batches = epoch_batches(self.n, self.size, self.generator)
        yield from (batch.tolist() for batch in batches)


class FieldLoop:
    """FedAvg or ADCOL on a federation, from the same initial network as the library's run.

    same_order: read batches in the library's order, for comparing losses; otherwise each loader
    shuffles for itself.
    """

    def __init__(
        self,
        method: str,
        protocol: Protocol,
        federation: Federation,
        seed: int,
        device: torch.device,
        same_order: bool = False,
    ) -> None:
        self.method, self.protocol, self.device = method, protocol, device
        classes, size = len(federation.classes), federation.size
        with seeded_modules(seed):
            model = build_model(protocol.model, classes, size, **protocol.model_args)
        model.to(device)
        self.models: list[FLModel] = [copy.deepcopy(model) for _ in federation.clients]
        if method == "FedAvg":
            self.global_model = model
        self.seed, self.same_order = seed, same_order
        self.generator = torch.Generator().manual_seed(seed)
        self.pictures = [PictureSet(client.train, size) for client in federation.clients]
        self.loaders = [self._loader(data, i) for i, data in enumerate(self.pictures)]
        self.plain_loaders = [DataLoader(data, protocol.batch_size) for data in self.pictures]
        self.rounds = 0
        if method == "ADCOL":
            with seeded_modules(seed, round=0):
                judge = discriminator(model.feature_size, len(federation.clients))
            self.discriminator = judge.to(device)
            self.discriminator_sgd = self._sgd(self.discriminator)

    def _loader(self, data: PictureSet, client: int) -> DataLoader[tuple[Tensor, int]]:
        size, epochs = self.protocol.batch_size, self.protocol.local_epochs
        if not self.same_order:
            return DataLoader(data, size, shuffle=True, num_workers=0, generator=self.generator)
        stream = functools.partial(torch_stream, self.seed, "batches", client)
        return DataLoader(data, batch_sampler=LibraryOrder(len(data), size, epochs, stream))

    def round(self) -> list[Losses]:
        """One round; each client's mean loss terms over the samples it trained on."""
        self.rounds += 1
        if self.method == "FedAvg":
            for model in self.models:
                model.load_state_dict(self.global_model.state_dict())
        losses = [self._train(i) for i in range(len(self.models))]
        if self.method == "FedAvg":
            self._average()
        else:
            self._train_discriminator([self._representations(i) for i in range(len(self.models))])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return losses

    def _sgd(self, module: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(module.parameters(), **self.protocol.optimizer.model_dump())

    def _train(self, i: int) -> Losses:
        model = self.models[i]
        model.train()
        optimizer = self._sgd(model)
        if self.method == "ADCOL":
            judge = copy.deepcopy(self.discriminator).eval()
            for parameter in judge.parameters():
                parameter.requires_grad = False
        sums: Losses = {}
        correct, seen = 0, 0
        for _ in range(self.protocol.local_epochs):
            for x, y in self.loaders[i]:
                x, y = x.to(self.device), y.to(self.device)
                optimizer.zero_grad()
                z, logits = model(x)
                loss = F.cross_entropy(logits, y)
                sums["ce"] = sums.get("ce", 0.0) + loss.item() * len(y)
                if self.method == "ADCOL":
                    guess = F.log_softmax(judge(z), dim=1)
                    uniform = torch.full_like(guess, 1 / guess.shape[1])
                    kl = MU * F.kl_div(guess, uniform, reduction="batchmean")
                    sums["kl"] = sums.get("kl", 0.0) + kl.item() * len(y)
                    loss = loss + kl
                loss.backward()
                optimizer.step()
                correct += (logits.argmax(1) == y).sum().item()
                seen += len(y)
        self.last_accuracy = 100 * correct / seen
        return {name: total / seen for name, total in sums.items()}

    def _average(self) -> None:
        counts = [len(pictures) for pictures in self.pictures]
        average = copy.deepcopy(self.models[0].state_dict())
        for key in average:
            if "num_batches_tracked" in key:
                continue
            average[key] = torch.zeros_like(average[key])
            for model, count in zip(self.models, counts, strict=True):
                average[key] += model.state_dict()[key] * (count / sum(counts))
        self.global_model.load_state_dict(average)

    @torch.no_grad()
    def _representations(self, i: int) -> Tensor:
        model = self.models[i]
        model.eval()
        return torch.cat([model(x.to(self.device))[0].cpu() for x, _ in self.plain_loaders[i]])

    def _train_discriminator(self, representations: list[Tensor]) -> None:
        owner = [torch.full((len(z),), i) for i, z in enumerate(representations)]
        data = TensorDataset(torch.cat(representations), torch.cat(owner))
        size = self.protocol.batch_size
        loader = DataLoader(data, size, shuffle=True, generator=self.generator)
        if self.same_order:
            stream = torch_stream(self.seed, "server", round=self.rounds)
            loader = DataLoader(
                data, batch_sampler=LibraryOrder(len(data), size, 1, lambda _: stream)
            )
        self.discriminator.train()
        total = 0.0
        for z, y in loader:
            z, y = z.to(self.device), y.to(self.device)
            self.discriminator_sgd.zero_grad()
            loss = F.cross_entropy(self.discriminator(z), y)
            loss.backward()
            self.discriminator_sgd.step()
            total += loss.item() * len(y)
        self.last_discriminator_loss = total / len(data)
