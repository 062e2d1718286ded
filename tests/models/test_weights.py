"""``model.weights``: every form of file, what must fit, and what a user is told."""

import hashlib
import json
import os
import pickle
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import shoal as library
from shoal.errors import ConfigError, RunError
from shoal.models.factory import build_models, resolve_model
from shoal.models.mlp import mlp
from shoal.models.resnet import resnet20
from shoal.models.resnet18 import resnet18
from shoal.models.vgg import vgg11
from shoal.models.weights import Weights, check_weights, locate
from shoal.randomness import generator

HERE = __name__
NET = {"kind": "mlp", "hidden": [5, 6]}
HEAD = ("classifier.weight", "classifier.bias")


def net(outputs=3, seed=7):
    torch.manual_seed(seed)
    return mlp((4,), outputs, hidden=[5, 6])


def built(settings, shape=(4,), outputs=3, task_outputs=()):
    return build_models(resolve_model(settings), shape, outputs, task_outputs, 0)[0]


def started(model, name="a"):
    """The state of a new entry, by name."""
    entry, module = model.initial(generator(0, name)), model.build()
    for parameter in model.space.names:
        dict(module.named_parameters())[parameter].data.copy_(model.space.view(entry.vector, parameter))
    model.buffers.write(module, entry.buffers)
    return module.state_dict()


def same(state, module, but=()):
    wanted = module.state_dict()
    assert set(state) == set(wanted)
    return [n for n in wanted if n not in but and not torch.equal(state[n], wanted[n])] == []


class Tied(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.inside = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.inside.weight
        self.register_buffer("offset", torch.zeros(4))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.top = nn.Linear(4, outputs)

    def forward(self, x):
        return self.top(self.again(self.inside(x + self.offset)) * self.mask)


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


# ---- forms ---------------------------------------------------------------------------------------------------------


def prefixed(state, prefix):
    return {prefix + name: t for name, t in state.items()}


@pytest.mark.parametrize(
    ("file", "pack"),
    [
        ("w.safetensors", lambda s: s),
        ("w.safetensors", lambda s: prefixed(s, "module.")),
        ("w.pth", lambda s: s),
        ("w.pt", lambda s: prefixed(s, "_orig_mod.module.")),
        ("w.pt", lambda s: {"state_dict": s, "epoch": 3}),
        ("w.pth", lambda s: {"model_state_dict": prefixed(s, "net."), "optimizer": {"lr": 0.1}}),
        ("w.pth", lambda s: {"model": s, "epoch": torch.tensor(9)}),
        ("w.pth", lambda s: {n: t.double() for n, t in s.items()}),
        ("w.pth", lambda s: {n: t.clone().requires_grad_() for n, t in s.items()}),
        # Averaged models, and others in the same file of which less is found.
        ("w.pth", lambda s: {**prefixed(s, "module."), "n_averaged": torch.tensor(4)}),
        ("w.pth", lambda s: {**prefixed(s, "student."), "teacher.classifier.bias": torch.zeros(3)}),
    ],
)
def test_every_form_of_file(tmp_path, file, pack):
    source, path = net(), tmp_path / file
    content = pack(source.state_dict())
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    model = built({**NET, "weights": str(path)})["main"]
    assert same(started(model, "a"), source)
    assert same(started(model, "b"), source)
    assert same(model.build().state_dict(), source)
    assert len(model.notes) == 1
    assert model.notes[0].startswith(f"weights from {file}: 6 tensors")


def test_half_precision_is_widened(tmp_path):
    source = net().to(torch.bfloat16)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    state = started(built({**NET, "weights": str(tmp_path / "w.safetensors")})["main"])
    assert {t.dtype for t in state.values()} == {torch.float32}
    assert same(state, source.float())


def test_where_a_file_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    save_file(net().state_dict(), tmp_path / "w.safetensors")
    save_file(net().state_dict(), tmp_path / "a#b.safetensors")
    for given in ("w.safetensors", "./w.safetensors", "~/w.safetensors", str(tmp_path / "w.safetensors")):
        assert locate(given)[0].resolve() == tmp_path / "w.safetensors"
        assert locate(f"{given}#k/1") == (locate(given)[0], "k/1")
    assert locate("a#b.safetensors") == (Path("a#b.safetensors"), None)
    assert locate("a#b.safetensors#c") == (Path("a#b.safetensors"), "c")


def trained(folder, **parts):
    """A short run on the digits: its ``model.safetensors`` and the tensors in it."""
    raw = {
        "rounds": 1,
        "data": {"kind": "digits", "limit": 60, "limit_test": 20},
        "stream": {"kind": "static", "clients": 2},
        "execution": {"kind": "serial"},
        **parts,
    }
    library.run(raw, out=folder)
    return folder / "model.safetensors", load_file(folder / "model.safetensors")


def test_a_runs_own_model(tmp_path):
    settings = {"kind": "resnet20", "width": 2}
    for number, freeze in enumerate([[], ["features.stage1"]]):
        path, tensors = trained(tmp_path / f"run{number}", model={**settings, "freeze": freeze})
        for given in (str(path), f"{path}#global"):
            model = built({**settings, "weights": given}, (1, 8, 8), 10)["main"]
            state = started(model)
            # Parameters, statistics and counters of the entry; what was frozen is in the file, too.
            assert {n for n in state if f"global/{n}" not in tensors} == {
                n for n in state if any(n.startswith(prefix) for prefix in freeze)
            }
            for name, value in state.items():
                assert torch.equal(value, tensors.get(f"global/{name}", tensors.get(f"_constants/main/{name}")))
            assert state["features.norm.running_mean"].abs().sum() > 0
        frozen = built({**settings, "weights": str(path), "freeze": ["features"]}, (1, 8, 8), 10)["main"].build()
        assert torch.equal(frozen.features.norm.running_mean, tensors["global/features.norm.running_mean"])


def test_one_of_several_entries(tmp_path):
    stream = {"kind": "tasks", "clients": 2, "tasks": 2, "by": "transform"}
    method = {"kind": "fedavg", "per": "task"}
    path, tensors = trained(tmp_path / "run", rounds=2, stream=stream, method=method, model=NET)
    keys = sorted({name.rpartition("/")[0] for name in tensors if not name.startswith("_")})
    assert len(keys) == 2
    for key in keys:
        state = started(built({**NET, "weights": f"{path}#{key}"}, (64,), 10)["main"])
        assert all(torch.equal(state[name], tensors[f"{key}/{name}"]) for name in state)
    with pytest.raises(ConfigError, match=rf"has 2 entries \({keys[0]}, {keys[1]}\); put #KEY behind its name"):
        built({**NET, "weights": str(path)}, (64,), 10)
    with pytest.raises(ConfigError, match=f"has no entry 'd'; it has {keys[0]}, {keys[1]}"):
        built({**NET, "weights": f"{path}#d"}, (64,), 10)


def test_keys_that_begin_alike(tmp_path):
    path, entries = tmp_path / "w.safetensors", {"a": net(seed=1), "a/b": net(seed=2)}
    tensors = {f"{key}/{name}": t for key, m in entries.items() for name, t in m.state_dict().items()}
    save_file(tensors, path, {"models": json.dumps(dict.fromkeys(entries, "main"))})
    for key, module in entries.items():
        assert same(started(built({**NET, "weights": f"{path}#{key}"})["main"]), module)


def test_one_of_several_models_in_another_file(tmp_path):
    one, two, path = net(seed=1), net(seed=2), tmp_path / "w.pt"
    torch.save({**prefixed(one.state_dict(), "student."), **prefixed(two.state_dict(), "teacher.net.")}, path)
    with pytest.raises(ConfigError, match=r"holds several models that fit; put #student or #teacher\.net behind"):
        built({**NET, "weights": str(path)})
    assert same(started(built({**NET, "weights": f"{path}#student"})["main"]), one)
    assert same(started(built({**NET, "weights": f"{path}#teacher"})["main"]), two)
    assert same(started(built({**NET, "weights": f"{path}#teacher.net"})["main"]), two)
    with pytest.raises(ConfigError, match=r"no name in .* begins with 'pupil'"):
        built({**NET, "weights": f"{path}#pupil"})


# ---- the head, frozen parts, buffers -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["another size", "no head", "half a head"])
def test_a_head_that_does_not_fit_is_new(tmp_path, state):
    source = net(outputs=8 if state == "another size" else 3)
    tensors = source.state_dict()
    if state == "no head":
        tensors = {n: t for n, t in tensors.items() if n not in HEAD}
    elif state == "half a head":
        del tensors["classifier.bias"]
    save_file(tensors, tmp_path / "w.safetensors")
    model = built({**NET, "weights": str(tmp_path / "w.safetensors")})["main"]
    plain = built(NET)["main"]
    for name in ("a", "b"):
        now, fresh = started(model, name), started(plain, name)
        assert {n: t for n, t in now.items() if n in HEAD}.keys() == set(HEAD)
        assert all(torch.equal(now[n], fresh[n]) for n in HEAD)  # as without weights: the generator is not read
        assert all(torch.equal(t, source.state_dict()[n]) for n, t in now.items() if n not in HEAD)
    assert not torch.equal(started(model, "a")["classifier.weight"], started(model, "b")["classifier.weight"])
    assert "4 tensors; the head is newly initialised (classifier." in model.notes[0]
    if state == "another size":
        assert "classifier.weight: the file has (8, 6), the model (3, 6)" in model.notes[0]


def test_heads_of_tasks_stand_on_the_same_weights(tmp_path):
    source = net(outputs=5)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    settings = {**NET, "weights": str(tmp_path / "w.safetensors")}
    models = built(settings, task_outputs=[5, 2, 5])
    assert same(started(models["main"]), source)
    small = started(models["main-2"])
    assert torch.equal(small["features.layer2.weight"], source.features.layer2.weight)
    assert small["classifier.weight"].shape == (2, 6)
    assert "newly" in models["main-2"].notes[0]
    assert "newly" not in models["main"].notes[0]
    frozen = built({**settings, "freeze": ["features"]}, task_outputs=[5, 2])
    modules = [m.build() for m in frozen.values()]
    assert modules[0].features.layer1.weight is modules[1].features.layer1.weight
    assert torch.equal(modules[0].features.layer1.weight, source.features.layer1.weight)
    assert [m.space.size for m in frozen.values()] == [7 * 5, 7 * 2]


def test_a_frozen_head_is_a_head(tmp_path):
    save_file(net(outputs=8).state_dict(), tmp_path / "w.safetensors")
    model = built({**NET, "weights": str(tmp_path / "w.safetensors"), "freeze": ["classifier"]})["main"]
    assert model.build().classifier.weight.shape == (3, 6)
    assert "newly initialised" in model.notes[0]


def test_statistics_of_batch_norm_come_from_the_file(tmp_path):
    torch.manual_seed(3)
    source = resnet20((1, 8, 8), 2, width=2)
    source(torch.randn(8, 1, 8, 8) * 3 + 1)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    settings = {"kind": "resnet20", "width": 2, "weights": str(tmp_path / "w.pth")}
    model = built(settings, (1, 8, 8), 2)["main"]
    assert same(started(model), source)  # the counters too
    frozen = built({**settings, "freeze": ["features"]}, (1, 8, 8), 2)["main"].build()
    assert torch.equal(frozen.features.norm.running_var, source.features.norm.running_var)
    # Old files have no counters; statistics must be there.
    state = {n: t for n, t in source.state_dict().items() if not n.endswith("tracked")}
    torch.save(state, tmp_path / "w.pth")
    again = started(built(settings, (1, 8, 8), 2)["main"])
    assert same(again, source, but=[n for n in again if n.endswith("tracked")])
    assert int(again["features.norm.num_batches_tracked"]) == 0
    del state["features.stage2.0.norm1.running_var"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match=r"stage2.0.norm1.running_var: the file has nothing, the model \(4,\)"):
        built(settings, (1, 8, 8), 2)


@pytest.mark.parametrize(
    ("make", "settings", "shape"),
    [
        (resnet18, {"kind": "resnet18", "stem": "imagenet"}, (3, 16, 16)),
        (lambda s, o: vgg11(s, o, hidden=[9, 9]), {"kind": "vgg11", "hidden": [9, 9]}, (3, 32, 32)),
    ],
)
def test_models_with_the_names_of_torchvision(tmp_path, make, settings, shape):
    torch.manual_seed(1)
    source = make(shape, 20)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    model = built({**settings, "weights": str(tmp_path / "w.pth")}, shape, 4)["main"]
    head = {"fc.weight", "fc.bias"} if settings["kind"] == "resnet18" else {"classifier.6.weight", "classifier.6.bias"}
    state, wanted = started(model), source.state_dict()
    assert all(torch.equal(state[n], wanted[n]) for n in wanted if n not in head)
    assert all(len(state[n]) == 4 for n in head)


def test_tied_and_further_tensors_of_own_modules(tmp_path):
    torch.manual_seed(2)
    source = Tied(3)
    source.offset.uniform_()
    source.steps += 5
    state = source.state_dict()
    assert "mask" not in state
    for kept in ("inside.weight", "again.weight"):
        one = {n: t for n, t in state.items() if n == kept or n not in ("inside.weight", "again.weight")}
        save_file(one, tmp_path / "w.safetensors")
        found = started(built({"kind": f"{HERE}:Tied", "weights": str(tmp_path / "w.safetensors")})["main"])
        assert same(found, source)
    del one["again.weight"]
    save_file(one, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"\(1 of 6 tensors\); inside.weight: the file has nothing"):
        built({"kind": f"{HERE}:Tied", "weights": str(tmp_path / "w.safetensors")})


def test_names_that_the_model_has_not_are_named(tmp_path):
    extra = {f"aux.{i}": torch.zeros(1) for i in range(7)}
    save_file({**net().state_dict(), **extra}, tmp_path / "w.safetensors")
    note = built({**NET, "weights": str(tmp_path / "w.safetensors")})["main"].notes[0]
    assert note.endswith("6 tensors; ignored, not in the model: aux.0, aux.1, aux.2, aux.3, aux.4 and 2 more")


# ---- what does not fit ---------------------------------------------------------------------------------------------


def test_what_is_missing_or_has_another_shape_is_listed(tmp_path):
    torch.save(mlp((9,), 3, hidden=[5, 7]).state_dict(), tmp_path / "w.pth")
    with pytest.raises(ConfigError) as caught:
        built({**NET, "weights": str(tmp_path / "w.pth")})
    assert str(caught.value) == (
        "model.weights: w.pth does not fit this model (3 of 6 tensors); "
        "features.layer1.weight: the file has (5, 9), the model (5, 4); "
        "features.layer2.weight: the file has (7, 5), the model (6, 5); "
        "features.layer2.bias: the file has (7,), the model (6,)"
    )
    torch.save(resnet20((1, 8, 8), 2, width=2).state_dict(), tmp_path / "w.pth")
    # 19 convolutions, and weight, bias, mean and variance of 19 norms; the head may differ, counters have no shape.
    with pytest.raises(ConfigError, match=r"\(95 of 116 tensors\).*; and 90 more$"):
        built({"kind": "resnet20", "width": 3, "weights": str(tmp_path / "w.pth")}, (1, 8, 8), 2)


def refused(path, message, settings=NET):
    with pytest.raises(ConfigError, match=f"^model.weights: .*{message}"):
        built({**settings, "weights": str(path)})


def test_files_that_cannot_be_used(tmp_path):
    refused(tmp_path / "no.pth", "there is no file .*relative paths start in the working directory")
    refused(tmp_path, "is a folder; name the file in it")
    (tmp_path / "w.npz").write_bytes(b"1")
    refused(tmp_path / "w.npz", r"needs a .safetensors, .pth or .pt file; got w.npz")
    save_file(net().state_dict(), tmp_path / "w.safetensors")
    whole = (tmp_path / "w.safetensors").read_bytes()
    for cut in (0, 4, 50, len(whole) - 1):
        (tmp_path / "w.safetensors").write_bytes(whole[:cut])
        refused(tmp_path / "w.safetensors", "is no readable safetensors file")
    torch.save(net().state_dict(), tmp_path / "w.pth")
    whole = (tmp_path / "w.pth").read_bytes()
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-30], whole[30:]):
        (tmp_path / "w.pth").write_bytes(damaged)
        refused(tmp_path / "w.pth", "holds more than tensors|is no file of PyTorch")


def test_nothing_is_unpickled(tmp_path):
    mark = tmp_path / "mark"
    for write in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
        write({"state_dict": Evil(mark)}, tmp_path / "w.pth")
        refused(tmp_path / "w.pth", "holds more than tensors")
        assert not mark.exists()
    torch.save(net(), tmp_path / "w.pth")
    refused(tmp_path / "w.pth", r"save the model's tensors alone, torch.save\(model.state_dict\(\), file\)")


@pytest.mark.parametrize("content", [[torch.zeros(2)], torch.zeros(2), {"epoch": 3}, {}, 5])
def test_contents_without_names(tmp_path, content):
    torch.save(content, tmp_path / "w.pth")
    refused(tmp_path / "w.pth", f"holds a {type(content).__name__} without tensors by name")


def test_contents_that_no_model_can_start_from(tmp_path):
    path = tmp_path / "w.pth"
    for value in (float("nan"), float("inf"), float("-inf"), 1e300):
        state = {n: t.double() for n, t in net().state_dict().items()}
        state["features.layer2.bias"][1] = value
        torch.save(state, path)
        refused(path, "holds a NaN or an infinity .as float32. in features.layer2.bias")
    state = net().state_dict()
    state["features.layer1.bias"] = torch.arange(5)
    torch.save(state, path)
    refused(path, r"features.layer1.bias: the file has values of torch.int64, the model \(5,\)")
    torch.save({"other.w": torch.ones(2)}, path)
    refused(path, "no name in w.pth is one of this model's; the file has other.w, the model features.layer1.weight")
    torch.save({"classifier.weight": torch.ones(9, 9)}, path)
    refused(path, "nothing in w.pth fits this model", {"kind": "mlp", "hidden": []})


def test_a_safetensors_file_of_another_program(tmp_path):
    path = tmp_path / "w.safetensors"
    for models in ("not json", "3", json.dumps(["a"])):
        save_file(net().state_dict(), path, {"models": models, "format": "pt"})
        assert len(Weights(str(path)).tensors) == 6


# ---- the same file -------------------------------------------------------------------------------------------------


def test_the_content_is_part_of_the_configuration(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(net().state_dict(), path)
    settings = resolve_model({**NET, "weights": str(path)})
    assert settings["weights_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert resolve_model(settings) == settings
    assert resolve_model({**NET, "weights": f"{path}#x"})["weights_sha256"] == settings["weights_sha256"]
    save_file(net(seed=8).state_dict(), path)
    for use in (resolve_model, lambda s: build_models(s, (4,), 3, (), 0)):
        with pytest.raises(ConfigError, match=r"has the SHA-256 [0-9a-f]{64}, but model.weights_sha256 says"):
            use(settings)
    with pytest.raises(ConfigError, match=r"model.weights_sha256: is of a file in model.weights, which is not set"):
        resolve_model({**NET, "weights_sha256": "0"})


def test_a_file_with_the_times_and_the_size_of_the_old_one_is_another_file(tmp_path):
    path = tmp_path / "w.safetensors"
    for moment in (time.time_ns(), 10**18):  # a second write within the clock's tick, and one that was dated back
        for seed in range(20):
            save_file(net(seed=seed).state_dict(), path)
            os.utime(path, ns=(moment, moment))
            assert check_weights(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_lies_still_is_digested_once(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_file(net().state_dict(), path)
    digest = check_weights(str(path))
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 10**10)
    assert check_weights(str(path)) == digest  # kept from here on
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert check_weights(str(path)) == digest


@pytest.fixture
def run_of(tmp_path):
    """A configuration on the digits that starts from the weights of another number of classes."""
    torch.manual_seed(4)
    save_file(mlp((64,), 4, hidden=[6]).state_dict(), tmp_path / "w.safetensors")
    return {
        "rounds": 1,
        "data": {"kind": "digits", "limit": 60, "limit_test": 20},
        "stream": {"kind": "static", "clients": 2},
        "model": {"kind": "mlp", "hidden": [6], "weights": str(tmp_path / "w.safetensors")},
        "local": {"lr": 1e-30},
        "execution": {"kind": "serial"},
    }


def test_a_run_says_where_its_numbers_come_from(tmp_path, run_of):
    result = library.run(run_of, out=tmp_path / "run")
    header = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    assert [n for n in header["notes"] if n.startswith("weights from w.safetensors: 2 tensors; the head is newly")]
    assert "weights from w.safetensors" in result.report.read_text()
    # A further run may start from what this one left: its head fits.
    raw = {**run_of, "model": {**run_of["model"], "weights": str(tmp_path / "run/model.safetensors")}}
    library.run(raw, out=tmp_path / "next")
    assert '"weights from model.safetensors: 4 tensors"' in (tmp_path / "next/metrics.jsonl").read_text()


def test_a_run_goes_on_with_no_other_file(tmp_path, run_of):
    library.run(run_of, out=tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()  # as if it had been killed before its end
    library.resume(tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    save_file(mlp((64,), 4, hidden=[6]).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises((ConfigError, RunError), match="weights_sha256"):
        library.resume(tmp_path / "run")


def test_show_prints_it(tmp_path, run_of, shoal):
    (tmp_path / "c.yaml").write_text(json.dumps(run_of))
    said = shoal("show", str(tmp_path / "c.yaml"))
    assert said.code == 0, said.err
    assert "note: weights from w.safetensors" in said.out


def test_one_of_several_runs_is_pointed_at(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "one" / "0" / "model.safetensors"
    place.parent.mkdir(parents=True)
    place.touch()
    with pytest.raises(ConfigError, match=f"of several runs each has its own, such as {place}"):
        locate(str(tmp_path / "runs" / "model.safetensors"))


def test_a_backbone_that_does_not_fit_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(resnet20((3, 16, 16), 2, width=4, blocks=1).state_dict(), file)
    backbone = {"kind": "resnet20", "width": 8, "blocks": 1, "weights": str(file)}
    settings = resolve_model({"kind": "nettailor", "backbone": backbone})
    with pytest.raises(ConfigError, match=r"^model\.backbone\.weights: model\.safetensors does not fit"):
        build_models(settings, (3, 16, 16), 2, (), 0)
