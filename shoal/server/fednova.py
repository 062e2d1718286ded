"""FedNova: answers count by their change per local step, so that clients with many steps do not pull harder.

Paper: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"
(NeurIPS 2020), the normalised update. With shares ``p_i`` of the training rows, changes ``d_i = x_i - x`` and
``a_i``, the summed weight with which the gradients of client i's steps enter its change::

    x = x + (sum_i p_i a_i) (sum_i p_i d_i / a_i)
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from ..bank import Entry
from ..config import Local
from ..messages import Group
from .base import shares
from .means import Weighted, average, sent
from .sums import BLOCK


@functools.cache
def accumulated(steps: int, momentum: float = 0.0, pull: float = 0.0, implicit: bool = False) -> float:
    """``a`` after this many local steps: the sum of the absolute weights of the gradients in the change, over the rate.

    ``momentum`` is that of ``torch.optim.SGD``, ``pull`` the rate times the strength of a proximal term, which is part
    of the gradient or, ``implicit``, solved after the step. It is ``steps`` for plain SGD, ``sum_k (1 - momentum ** k)
    / (1 - momentum)`` with momentum, and ``(1 - (1 - pull) ** steps) / pull`` with an explicit term of ``pull <= 1``.
    """
    if not momentum and not pull:
        return float(steps)
    velocity = distance = total = 0.0
    for step in range(steps):  # The way of one gradient, the first one's; later ones go its beginning.
        velocity = momentum * velocity + (step == 0) - (0.0 if implicit else pull * distance)
        distance += velocity
        distance /= 1 + (pull if implicit else 0.0)
        total += abs(distance)
    return total


class FedNova(Weighted):
    """The mean change per step, times the mean number of steps; where all ``a_i`` are equal, the weighted mean's bits.

    Steps are those that a client really took (``Part.steps``). ``a_i`` follows ``local.momentum`` and the proximal term
    of ``learner: proximal``; ``mu`` is the strength of an explicit proximal term in a learner of one's own. With a mask
    both means are taken coordinate by coordinate over those who sent it. A client that took no step and changed nothing
    counts with ``a_i = 0``.

    The server's own momentum is ``server: momentum``, which sees the result as its mean.
    Deviation: the paper prints no ``a_i`` for momentum and a proximal term together; here the term's gradient goes
    through the momentum like any other, as it does in the learner, and ``a_i`` is the sum that follows.

    ``local.weight_decay`` does not enter ``a_i``: the decay counts as part of the client's loss, whose gradient a step
    takes with weight one. (Taken apart from it, as the proximal term is, it would make ``a_i`` of K steps smaller by a
    share of about ``lr weight_decay (K - 1) / 2``.)

    Raises ``ValueError`` for a local optimiser other than SGD (its change is no sum of gradients, so there is no
    ``a_i``) and for one that is kept (``local.keep``: earlier rounds' gradients enter the change), for a negative
    ``mu`` and one beside ``learner: proximal``, for a proximal term beside ``local.lr_schedule``, and for an answer
    that changed the entry without telling its steps.
    """

    def __init__(self, local: Local | None = None, *, mu: float | None = None) -> None:
        local = local or Local()
        if local.optimizer != "sgd":
            raise ValueError(
                f"fednova divides by the summed weights of a client's gradients; {local.optimizer} has none; "
                "use local.optimizer: sgd, or another mean"
            )
        if local.keep:
            raise ValueError(
                "fednova divides by the summed weights of this round's gradients; with local.keep: true those of "
                "earlier rounds enter a client's change, too. Set local.keep: false, or use another mean"
            )
        if mu is not None and not 0 <= mu < math.inf:
            raise ValueError(f"mu is the strength of the learner's proximal term, finite and >= 0; got {mu}")
        settings = local.learner if local.learner["kind"] == "proximal" else {}
        if mu is not None and settings:
            raise ValueError(f"mu is that of learner: proximal, {settings.get('mu')}; leave out the mean's mu = {mu}")
        if local.lr_schedule is not None and float(settings.get("mu", mu or 0.0)):
            raise ValueError(
                "with a proximal term fednova's weights depend on the local rate, which local.lr_schedule changes in "
                "every round; leave out the schedule, or use another mean"
            )
        self.momentum = local.momentum
        self.pull = local.lr * float(settings.get("mu", mu or 0.0))
        self.implicit = bool(settings.get("implicit", False))

    def combine(self, old: Entry, group: Group) -> Tensor:
        """The normalised mean of the parts' vectors, float32."""
        a = [accumulated(part.steps, self.momentum, self.pull, self.implicit) for part in group.parts]
        if len(set(a)) <= 1:
            return average(old, group, self.weights(group))
        parts, share = sent(old, group), shares(self.weights(group))
        out = torch.empty_like(old.vector)
        for begin in range(0, old.vector.numel(), BLOCK):
            s = slice(begin, begin + BLOCK)
            x = old.vector[s].double()
            pace, length, total = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
            for part, (vector, mask), p, a_i in zip(group.parts, parts, share, a, strict=True):
                here = torch.ones_like(x) if mask is None else mask[s].double()
                change = vector[s].double() - x if mask is None else torch.where(mask[s], vector[s].double() - x, 0.0)
                if a_i > 0:
                    pace.add_(change, alpha=p / a_i)
                elif bool(change.any()):
                    raise ValueError(
                        f"client {part.client} changed the entry and says that it took {part.steps} steps; fednova "
                        f"needs the number of local steps, Part.steps"
                    )
                length.add_(here, alpha=p * a_i)
                total.add_(here, alpha=p)
            moved = (x + pace / total * (length / total)).to(old.vector.dtype)
            out[s] = torch.where(pace == 0, old.vector[s], moved)
        return out
