"""The work on Flower's simulation: two Ray actors, each with one processor. See `benchmarks/peers.py`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from work import Given, Turns

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

FOLDER = "PEERS_FOLDER"
"""The environment variable that tells the actors where the work is."""

client = ClientApp()


@cache
def given() -> Given:
    """The work, read once in each process."""
    torch.set_num_threads(1)
    return Given(os.environ[FOLDER])


@client.train()
def train(message: Message, context: Context) -> Message:
    work, me = given().work, int(context.node_config["partition-id"])
    net = given().model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.train()
    x, y = given().x[me], given().y[me]
    sgd = torch.optim.SGD(net.parameters(), lr=work.lr)
    order, total = torch.randperm(work.rows), 0.0
    for begin in range(0, work.rows, work.batch):
        rows = order[begin : begin + work.batch]
        sgd.zero_grad()
        loss = F.cross_entropy(net(x[rows]), y[rows])
        loss.backward()
        sgd.step()
        total += float(loss) * len(rows)
    told = MetricRecord({"loss": total / work.rows, "num-examples": work.rows})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": told})
    return Message(content, reply_to=message)


class Timed(FedAvg):
    """Federated averaging that takes turns."""

    turns: Turns

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        self.turns.before()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        answers = list(replies)
        if any(answer.has_error() for answer in answers):
            os._exit(1)  # Flower would go on without them; why is in the log
        found = super().aggregate_train(server_round, answers)
        self.turns.after()
        return found


server = ServerApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    work = given().work
    strategy = Timed(
        fraction_train=work.sampled / work.clients,
        fraction_evaluate=0.0,
        min_train_nodes=work.sampled,
        min_available_nodes=work.clients,
    )
    strategy.turns = Turns(work)
    net = given().model()
    result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=work.rounds)
    net.load_state_dict(result.arrays.to_torch_state_dict())
    strategy.turns.end(**given().ended(net))


def play(folder: str) -> None:
    """All rounds."""
    os.environ[FOLDER] = folder
    try:
        run_simulation(
            server,
            client,
            num_supernodes=given().work.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": 2, "include_dashboard": False},
            },
        )
    except Exception:
        traceback.print_exc()
        os._exit(1)  # the server's thread would wait for its clients for ever


if __name__ == "__main__":
    import on_flower  # the actors find the client by the name of its module

    on_flower.play(sys.argv[1])
