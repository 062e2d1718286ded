"""The work on pfl-research: one of two processes that torchrun starts. See `benchmarks/peers.py`.

pfl takes a user's rows in the order in which it is given them, so that they are shuffled where it asks for them. Only
the first process has turns; the other one waits for it.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.distributed
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from work import Given, Turns


class Net(nn.Module):
    """The module with what pfl asks of it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Weighted]:
        return {"loss": Weighted(F.cross_entropy(self(x), y, reduction="sum").item(), len(y))}


class Takes(TrainingProcessCallback):
    """Turns, for all processes at once."""

    def __init__(self, given: Given) -> None:
        self.first = get_framework_module().distributed.global_rank == 0
        self.played, self.ends = 0, np.cumsum((0, *given.work.turns)).tolist()
        self.turns = Turns(given.work) if self.first else None

    def _wait(self) -> None:
        if self.played in self.ends[:-1]:
            if self.turns is not None:
                self.turns.before()
            if torch.distributed.is_initialized():
                torch.distributed.barrier()

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: ANN
        self.played += 1
        if self.turns is not None:
            self.turns.after()
        self._wait()
        return False, Metrics()


def main(folder: str) -> None:
    torch.set_num_threads(1)
    given = Given(folder)
    work = given.work
    np.random.seed(work.seed)  # noqa: NPY002  (pfl draws from this one, the same in all processes)
    net = Net(given.model())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    takes = Takes(given)
    torch.manual_seed(work.seed + takes.first)

    def rows_of(user: int) -> PyTorchTensorDataset:
        order = torch.randperm(work.rows)
        tensors = [given.x[user].index_select(0, order), given.y[user].index_select(0, order)]
        return PyTorchTensorDataset(tensors, user_id=str(user))

    users = FederatedDataset(rows_of, get_user_sampler("minimize_reuse", list(range(work.clients))))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=work.sampled,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=work.rows),
        callbacks=[takes],
        send_metrics_to_platform=False,
    )
    if takes.turns is not None:
        takes.turns.end(**given.ended(net.module))
    # A process that ends while the other one is at work may abort, and torchrun then ends both.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
