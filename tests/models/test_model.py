"""`Model`, `set_mode` and `place_constants`."""

import pytest
import torch
from torch import nn

from shoal.models.base import Dropout, Model, image_shape, place_constants, set_mode
from shoal.models.mlp import mlp
from shoal.randomness import generator


def backbone():
    """A frozen convolution with BatchNorm, and a trainable head."""
    body = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten())
    body.requires_grad_(False)
    return nn.Sequential(body, nn.Linear(12, 2))


# ---- Model ---------------------------------------------------------------------------------------------------------


def test_initial_depends_on_its_generator_alone():
    model = Model("main", lambda: mlp((5,), 3), seed=1)
    torch.manual_seed(1)
    first = model.initial(generator(0, "a"))
    torch.manual_seed(2)
    torch.rand(7)
    before = torch.get_rng_state()
    again = model.initial(generator(0, "a"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.vector, again.vector)
    assert not torch.equal(first.vector, model.initial(generator(0, "b")).vector)
    assert first.model == "main"
    assert first.vector.std() > 0


def test_initial_is_what_torch_draws_after_that_seed():
    entry = Model("main", lambda: nn.Linear(3, 2)).initial(generator(4, "x"))
    torch.manual_seed(int(generator(4, "x").integers(0, 2**32)))
    layer = nn.Linear(3, 2)
    assert torch.equal(entry.vector, torch.cat([layer.weight.detach().flatten(), layer.bias.detach()]))


def test_building_a_model_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    Model("main", backbone).build()
    assert torch.equal(torch.get_rng_state(), before)


def test_copies_share_constants_and_nothing_else():
    model = Model("main", backbone, seed=3)
    one, two = model.build(), model.build()
    assert one[0][0].weight is two[0][0].weight
    assert one[0][0].weight.is_contiguous(memory_format=torch.channels_last)
    assert one[1].weight is not two[1].weight
    assert one[1].weight.data_ptr() != two[1].weight.data_ptr()
    assert one[0][1].running_mean is not two[0][1].running_mean
    assert torch.equal(Model("main", backbone, seed=3).build()[0][0].weight, one[0][0].weight)
    assert not torch.equal(Model("main", backbone, seed=4).build()[0][0].weight, one[0][0].weight)


def test_entries_hold_no_constants():
    model = Model("main", backbone)
    entry = model.initial(generator(0, "x"))
    assert entry.vector.numel() == 12 * 2 + 2
    assert entry.buffers.floats is None
    assert entry.buffers.counters is None


def test_entries_hold_buffers():
    model = Model("main", lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    buffers = model.initial(generator(0, "x")).buffers
    assert buffers.floats.tolist() == [0, 0, 0, 1, 1, 1]
    assert buffers.counters.tolist() == [0]
    assert buffers.counters.dtype == torch.int64


def test_heads_of_several_sizes_stand_on_one_backbone():
    def make(outputs):
        def build():
            torch.rand(outputs)  # another random state before the backbone
            body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).requires_grad_(False)
            body[1].running_mean.normal_()
            return nn.Sequential(body, nn.Linear(3, outputs))

        return build

    main = Model("main", make(5))
    apart, other = Model("main-2", make(2)).build(), Model("main-2", make(2), like=main).build()
    module = main.build()
    assert not torch.equal(apart[0][0].weight, module[0][0].weight)
    assert other[0][0].weight is module[0][0].weight
    assert torch.equal(other[0][1].running_mean, module[0][1].running_mean)
    assert other[1].weight.shape == (2, 3)
    trainable = Model("main-2", lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), like=main).build()
    assert trainable[0].weight is not module[0][0].weight


@pytest.mark.parametrize(
    ("layer", "coupled"),
    [
        (nn.BatchNorm1d(3), True),
        (nn.BatchNorm1d(3, affine=False), True),
        (nn.BatchNorm1d(3).requires_grad_(False), False),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False)).requires_grad_(False), False),
        (nn.LayerNorm(3), False),
        (nn.GroupNorm(1, 3), False),
    ],
)
def test_batch_coupled(layer, coupled):
    assert Model("main", lambda: nn.Sequential(nn.Linear(2, 3), layer)).batch_coupled is coupled


def test_models_that_cannot_be_trained_are_refused():
    with pytest.raises(ValueError, match="model 'm' has no trainable parameter"):
        Model("m", lambda: nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ValueError, match="model 'm' has no trainable parameter"):
        Model("m", nn.ReLU)
    with pytest.raises(ValueError, match=r"float64; trainable parameters must be float32"):
        Model("m", lambda: nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="layer '1' is a Dropout2d"):
        Model("m", lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout2d()))


def test_dropout_is_replaced_in_every_copy():
    model = Model("main", lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)))
    assert isinstance(model.build()[1], Dropout)


# ---- set_mode --------------------------------------------------------------------------------------------------------


def test_a_frozen_backbone_is_constant_in_training_mode():
    module = Model("main", backbone).build()
    set_mode(module, True)
    modes = {name: m.training for name, m in module.named_modules()}
    assert modes == {"": True, "0": False, "0.0": False, "0.1": False, "0.2": False, "0.3": False, "1": True}
    x = torch.randn(8, 2, 4, 4)
    before = {n: b.clone() for n, b in module.named_buffers()}
    alone = module(x[:1])
    torch.testing.assert_close(module(x)[:1], alone)
    assert all(torch.equal(b, before[n]) for n, b in module.named_buffers())
    set_mode(module, False)
    assert not any(m.training for m in module.modules())
    set_mode(module, True)
    assert module[1].training


def test_trainable_layers_follow_the_mode():
    module = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.BatchNorm1d(2))
    set_mode(module, True)
    module(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    assert int(module[1].num_batches_tracked) == 1
    set_mode(module, False)
    module(torch.ones(2, 2))
    assert int(module[1].num_batches_tracked) == 1


# ---- place_constants -----------------------------------------------------------------------------------------------


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.inner.register_buffer("shift", torch.zeros(2), persistent=False)
        self.register_buffer("mask", None, persistent=False)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        x = self.inner(x) + self.inner.shift
        return x if self.mask is None else x * self.mask


def test_constants_are_in_place_and_then_gone():
    module, x = Shifted(), torch.randn(3, 2)
    plain, own = module(x), module.inner.shift
    constants = {"inner.shift": torch.tensor([[1.0, -1.0]]), "mask": torch.tensor([0.0, 2.0])}
    with place_constants(module, constants):
        torch.testing.assert_close(module(x), (plain + torch.tensor([1.0, -1.0])) * torch.tensor([0.0, 2.0]))
        assert module.inner.shift is constants["inner.shift"]
        with place_constants(module, {"mask": torch.ones(2)}):
            torch.testing.assert_close(module(x), plain + torch.tensor([1.0, -1.0]))
        assert module.mask is constants["mask"]
    assert module.inner.shift is own
    assert module.mask is None
    assert torch.equal(module(x), plain)


def test_constants_are_gone_after_an_error():
    module = Shifted()
    own = module.inner.shift
    with pytest.raises(RuntimeError, match="boom"), place_constants(module, {"inner.shift": torch.ones(2)}):
        raise RuntimeError("boom")
    assert module.inner.shift is own


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("inner.shif", r"no non-persistent buffer of this name; did you mean 'inner.shift'\?"),
        ("elsewhere.shift", "no non-persistent buffer"),
        ("inner.weight", "no non-persistent buffer"),
        ("mean", "'mean': this buffer is persistent"),
    ],
)
def test_wrong_names_change_nothing(name, message):
    module = Shifted()
    own = module.inner.shift
    with (
        pytest.raises(ValueError, match=message),
        place_constants(module, {"inner.shift": torch.ones(2), name: torch.ones(2)}),
    ):
        pass
    assert module.inner.shift is own
    with pytest.raises(ValueError, match="it has none"), place_constants(nn.Linear(1, 1), {"x": torch.ones(1)}):
        pass


# ---- image_shape -----------------------------------------------------------------------------------------------------


def test_image_shape():
    assert image_shape("net", (3, 8, 9), 8) == (3, 8, 9)
    with pytest.raises(ValueError, match="net needs images of at least 9x9; got 8x9"):
        image_shape("net", (3, 8, 9), 9)
    for shape in ((8,), (8, 9), (0, 8, 9)):
        with pytest.raises(ValueError, match="net takes images of shape"):
            image_shape("net", shape)
