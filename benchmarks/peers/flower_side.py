"""Flower: its FedAvg strategy on its simulation runtime (Ray), one CPU a client.

    python flower_side.py WORK

As many workers as threads, of one thread each. A worker makes its images and its network once and
keeps them.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from shared import Clock, Probe, Work, answer, network, user_data
from torch import Tensor, nn


@functools.cache
def kept(text: str) -> tuple[Work, list[tuple[Tensor, Tensor]], nn.Module]:
    """What a worker process keeps from client to client."""
    work = Work.of(text)
    torch.set_num_threads(max(1, work.threads // work.processes))
    return work, user_data(work), network(work)


def train(message: Message, context: Context) -> Message:
    """One client's round: an epoch in batches, shuffled."""
    text = str(message.content["config"]["work"])
    work, users, net = kept(text)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = users[int(context.node_config["partition-id"])]
    optimizer = torch.optim.SGD(net.parameters(), work.lr)
    net.train()
    steps = 0
    for index in torch.randperm(len(y), device=x.device).split(work.batch):
        optimizer.zero_grad()
        F.cross_entropy(net(x[index]), y[index]).backward()
        optimizer.step()
        steps += 1
    counts = {"num-examples": len(y), "steps": steps}
    reply = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(counts)}
    return Message(content=RecordDict(reply), reply_to=message)


class Counting(FedAvg):
    """FedAvg that also adds up the clients' steps."""

    steps = 0

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        counts = [reply.content["metrics"]["steps"] for reply in replies if reply.has_content()]
        self.steps += sum(int(count) for count in counts)
        return super().aggregate_train(server_round, replies)


def serve(work: Work, grid: Grid) -> None:
    """All rounds, and what is to be said of them."""
    net = network(work)
    clock, probe = Clock(work.device), Probe(work, net)

    def after_round(number: int, _: ArrayRecord) -> None:
        if number:
            clock.tick()

    strategy = Counting(
        fraction_train=work.cohort / work.users,
        fraction_evaluate=0.0,
        min_train_nodes=work.cohort,
        min_available_nodes=work.users,
    )
    result = strategy.start(
        grid,
        ArrayRecord(net.state_dict()),
        num_rounds=work.rounds + 1,
        train_config=ConfigRecord({"work": work.text()}),
        evaluate_fn=after_round,
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    answer(clock, strategy.steps, probe.found(net), ["flwr", "ray"])


def main() -> None:
    work = Work.of(sys.argv[1])
    server, client = ServerApp(), ClientApp()
    # by its module's name: what a worker caches must not travel there with __main__
    client.train()(importlib.import_module("flower_side").train)

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        serve(work, grid)

    share = 1 / work.processes if work.device == "cuda" else 0.0
    run_simulation(
        server,
        client,
        num_supernodes=work.users,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": share},
            "init_args": {"num_cpus": work.processes, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main()
