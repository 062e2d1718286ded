"""Need: chance inside the model. Here: dropout of a user's own module, with masks from the fit's named stream."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from example_lab import config, digits, on_digits, play, prove
from torch import nn

from shoal.data.dataset import inputs
from shoal.randomness import Moment


class Dropped(nn.Sequential):
    """Softmax regression on inputs of which half are dropped; written with torch's own layer."""

    def __init__(self, shape, outputs, share: float = 0.5):
        flat, classifier = nn.Flatten(), nn.Linear(int(np.prod(shape)), outputs)
        super().__init__(flat, nn.Dropout(share), classifier)


DROPPED = {"kind": "test_example_dropout:Dropped"}


def test_the_laws():
    prove(config(model=DROPPED, local={"epochs": 2}))


def test_the_mask_is_drawn_from_the_named_stream_of_the_step():
    run = play(config(model=DROPPED, rounds=1, stream={"sizes": [40]}, local={"batch_size": 64}))
    rows = run.setup.stream.holding(0, 1).train
    order = Moment(0, 1).random("fit", 0).permutation(len(rows))
    x = inputs(digits().batch(rows[order])).flatten(1).numpy()
    mask = Moment(0, 1).random("fit/dropout/0/0", 0).random(x.shape, dtype=np.float32) >= 0.5
    linear = nn.Linear(64, 10)
    torch.nn.utils.vector_to_parameters(run.states[0].bank["global"].vector, linear.parameters())
    F.cross_entropy(linear(torch.from_numpy(x * mask * 2)), digits().wanted(rows[order])).backward()
    with torch.no_grad():
        expected = torch.cat([(p - 0.1 * p.grad).reshape(-1) for p in linear.parameters()])
    torch.testing.assert_close(run.bank["global"].vector, expected, rtol=1e-5, atol=1e-7)
    assert 0.4 < mask.mean() < 0.6


def test_an_anchors_gradient_sees_the_same_mask():
    # A full batch at the anchor itself: the two gradients cancel, and only the mean gradient is left.
    svrg = {"learner": {"kind": "test_example_svrg:Svrg"}, "batch_size": 64}
    noisy = play(config(model=DROPPED, rounds=1, local=svrg))
    still = play(config(model={**DROPPED, "share": 0.0}, rounds=1, local=svrg))
    torch.testing.assert_close(noisy.bank["global"].vector, still.bank["global"].vector, rtol=1e-4, atol=1e-6)


def drawing(x, rng):
    """An augmentation of a user's own, by import path: draws numbers, and changes nothing."""
    rng.random(7)
    return x


def test_an_augmentation_does_not_change_which_rows_a_step_takes():
    own = "test_example_dropout:drawing"
    plain, drawn = (play(config(local={"epochs": 3, "augment": names})) for names in ([], [own]))
    assert torch.equal(plain.bank["global"].vector, drawn.bank["global"].vector)


def test_on_digits(tmp_path):
    assert on_digits(tmp_path / "run", model=DROPPED).summary["acc"] > 0.5
