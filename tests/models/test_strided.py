"""1x1 convolutions with a stride: the same numbers, and no byte is written outside of what belongs to them."""

import glob
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from shoal.models.base import Model
from shoal.models.decomposed import FactoredConv2d
from shoal.models.resnet import resnet20
from shoal.models.strided import StridedPoint, own_strided


@pytest.mark.parametrize("stride", [2, (1, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_numbers_are_those_of_the_convolution(stride: int | tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 5, 1, stride, bias=bias).double()
    x = torch.randn(3, 4, 7, 6, dtype=torch.float64, requires_grad=True)
    wanted = plain(x)
    expected = torch.autograd.grad(wanted.square().sum(), [x, *plain.parameters()])
    assert own_strided(nn.Sequential(plain))[0] is plain
    assert type(plain) is StridedPoint
    found = plain(x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), [x, *plain.parameters()]), expected)


def test_other_convolutions_stay() -> None:
    layers = [
        nn.Conv2d(8, 4, 1, 2),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 3, 2, 1),
        nn.Conv2d(4, 4, 1, 2, groups=2),
        nn.Conv2d(4, 4, 1, 2, 1),
    ]
    assert {type(layer) for layer in own_strided(nn.Sequential(*layers))} == {nn.Conv2d}


def test_a_factored_one_gives_the_numbers_of_the_convolution() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 5, 1, 2)
    factored = FactoredConv2d(layer, 2)
    x = torch.randn(3, 4, 6, 6)
    weight = factored.theta().view(5, 1, 1, 4).permute(0, 3, 1, 2)
    torch.testing.assert_close(factored(x), nn.functional.conv2d(x, weight, factored.bias, 2))


def train() -> None:
    """Steps of a network whose projections are such convolutions, on rows that are channels-last."""
    torch.set_num_threads(1)
    model = Model("main", lambda: resnet20((3, 8, 8), 5, width=4, blocks=1, shortcut="B"))
    module = model.build()
    assert any(isinstance(layer, StridedPoint) for layer in module.modules())
    for i in range(40):
        x = torch.randn(2 + i % 9, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        nn.functional.cross_entropy(module(x), torch.zeros(len(x), dtype=torch.int64)).backward()


def test_training_writes_into_its_own_memory() -> None:
    checked = glob.glob("/lib/*/libc_malloc_debug.so*")
    if not checked:
        pytest.skip("this C library has no libc_malloc_debug.so, which checks what is written")
    told = {"LD_PRELOAD": checked[0], "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], env={**os.environ, **told}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


if __name__ == "__main__":
    train()
