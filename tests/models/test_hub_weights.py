"""``weights: hub:...`` from the hub's own cache on this machine; nothing here touches the network."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shoal.errors import ConfigError
from shoal.models.factory import build_models, resolve_model
from shoal.models.hub_weights import hub_file
from shoal.models.mlp import mlp
from shoal.randomness import generator

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache laid out as `huggingface_hub` lays it, with one repository in it, and no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--owner--nets"
    file = place / "snapshots" / REVISION / "small" / "net.safetensors"
    file.parent.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(REVISION)
    torch.manual_seed(3)
    save_file(mlp((4,), 3, hidden=[5]).state_dict(), file)
    from shoal.models import hub_weights

    hub_weights._fetched.cache_clear()
    return file


@pytest.mark.parametrize("revision", ["", "@main", f"@{REVISION}"])
def test_a_model_starts_from_a_file_of_the_hub(cached: Path, revision: str) -> None:
    given = f"hub:owner/nets/small/net.safetensors{revision}"
    settings = resolve_model({"kind": "mlp", "hidden": [5], "weights": given})
    model = build_models(settings, (4,), 3, (), 0)[0]["main"]
    torch.manual_seed(3)
    wanted = mlp((4,), 3, hidden=[5])
    torch.testing.assert_close(
        model.initial(generator(0, "a")).vector,
        torch.cat([dict(wanted.named_parameters())[name].detach().flatten() for name in model.space.names]),
        rtol=0,
        atol=0,
    )


def test_a_key_and_a_revision_are_told_apart(cached: Path) -> None:
    path, key = hub_file("hub:owner/nets/small/net.safetensors@main#encoder")
    assert path.name == cached.name
    assert path.read_bytes() == cached.read_bytes()
    assert key == "encoder"


@pytest.mark.parametrize("given", ["hub:nets.safetensors", "hub:owner/nets", "hub:/x/y.safetensors", "hub:a/b/c@"])
def test_another_form_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="hub:OWNER/NAME/FILE"):
        hub_file(given)


def test_what_is_not_there_is_named(cached: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot load other\.safetensors of owner/nets, revision newest, from the hub"
    ):
        hub_file("hub:owner/nets/other.safetensors")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from shoal.models import hub_weights

    hub_weights._fetched.cache_clear()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'shoal\[hub\]'"):
        hub_file("hub:owner/nets/small/net.safetensors")
