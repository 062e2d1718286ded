"""Parts by kind: settings from signatures, nested parts, own parts by import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from torch import Tensor

from shoal import registry
from shoal.bank import Entry
from shoal.config import Local
from shoal.errors import ConfigError
from shoal.messages import Group, World
from shoal.randomness import Moment
from shoal.server.base import Calibration, Mean, ServerOptimizer
from shoal.setup import assemble, resolve_config

HERE = "test_registry"


class Scheduled(ServerOptimizer):
    """A server optimiser that asks for the world, and has a setting of every sort."""

    def __init__(
        self,
        world: World,
        *,
        lr: Annotated[float, Field(gt=0)] = 1.0,
        form: Literal["a", "b"] = "a",
        milestones: tuple[float, ...] = (0.5, 0.75),
        calibration: Calibration | None = None,
    ) -> None:
        if lr > 10:
            raise ValueError(f"lr above 10 diverges; got {lr}")
        self.world, self.lr, self.form, self.milestones, self.calibration = world, lr, form, milestones, calibration

    def step(self, old: Entry, mean: Tensor, when: Moment, reported: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        return mean, {}


class Loose:
    """A part with settings that say nothing of their type."""

    def __init__(self, *, keep=True, how=None):  # type: ignore[no-untyped-def]
        self.keep, self.how = keep, how


class Nova(Mean):
    """A mean that asks for the local settings."""

    def __init__(self, local: Local) -> None:
        self.local = local

    def combine(self, old: Entry, group: Group) -> Tensor:
        return old.vector


KIND = f"{HERE}:Scheduled"


def resolved(**settings: Any) -> dict[str, Any]:
    return registry.resolve("server", {"kind": KIND, **settings})


def test_defaults_are_written_out_and_lists_come_back_as_tuples() -> None:
    settings = resolved()
    assert settings == {"kind": KIND, "lr": 1.0, "form": "a", "milestones": [0.5, 0.75], "calibration": None}
    built = registry.build("server", {**settings, "milestones": [1, "0.5"]}, world=None)
    assert built.milestones == (1.0, 0.5)


def test_nested_parts_are_resolved_and_built() -> None:
    settings = resolved(calibration={"kind": "softplus", "beta": "1e2"})
    assert settings["calibration"] == {"kind": "softplus", "beta": 100.0, "quantile": 0.5, "window": 10}
    built = registry.build("server", settings, world=None)
    assert built.calibration.beta == 100.0
    assert resolved(calibration="p")["calibration"]["kind"] == "p"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0}, r"server.lr: Input should be greater than 0; got 0"),
        ({"form": "c"}, r"server.form: Input should be 'a' or 'b'; got 'c'"),
        ({"fom": "a"}, r"server.fom: no such setting; did you mean 'form'"),
        ({"calibration": {"kind": "softplus", "beeta": 1}}, r"server.calibration.beeta: .*did you mean 'beta'"),
        ({"calibration": 3}, r"server.calibration: needs a mapping with a 'kind'"),
    ],
)
def test_faults_name_their_place(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(**settings)


def test_what_a_constructor_refuses_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="server: lr above 10 diverges; got 11"):
        registry.build("server", resolved(lr=11), world=None)


SMALL: dict[str, Any] = {
    "data": {"kind": "digits", "limit": 200, "limit_test": 50},
    "stream": {"kind": "static", "clients": 6},
    "rounds": 1,
}
TORUS = {"kind": "torus", "rows": 4}
REGULAR = {"kind": "random-regular", "degree": 7}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": {"kind": "random", "topology": TORUS}}, "method.topology: a torus of 4 rows needs a multiple"),
        ({"method": {"kind": "random", "topology": "star"}}, "method.topology.kind: no topology is called 'star'"),
        ({"method": {"kind": "random", "topology": "listed"}}, "method.topology: topology listed needs either"),
        (
            {"method": {"kind": "random", "topology": {"kind": "sequence", "graphs": ["ring", REGULAR]}}},
            "method.topology: random-regular: degree must be below",
        ),
        (
            {"method": {"kind": "random", "topology": {"kind": "sequence", "graphs": ["ring", "star"]}}},
            "method.topology.graphs[1].kind: no topology is called 'star'",
        ),
        (
            {"method": {"kind": "random", "topology": {"kind": "sequence", "graphs": ["ring", "listed"]}}},
            "method.topology.graphs[1]: topology listed needs either",
        ),
        (
            {"method": {"kind": "dac", "awareness": {"kind": "jump", "warmup": 11}}},
            "method.awareness.warmup: at most as many losses as are kept",
        ),
        (
            {"method": {"kind": "dac", "awareness": f"{HERE}:Loose"}},
            "method.awareness.kind: test_registry:Loose gives a Loose; a kind of detector is a class derived from",
        ),
        ({"method": {"kind": "dac", "score": "cosine"}}, "method.score: no score is called 'cosine'"),
        ({"method": {"kind": "random", "per": "task"}}, "method.per: 'task' needs a stream with tasks"),
        ({"method": {"kind": "fedavg", "mean": "men"}}, "method.mean.kind: no mean is called 'men'"),
        (
            {"method": {"kind": "fedavg", "mean": f"{HERE}:Loose"}},
            "method.mean.kind: test_registry:Loose gives a Loose",
        ),
        ({"method": {"kind": "fedavg", "server": {"kind": "sgd", "lr": -1.0}}}, "method.server: lr must be positive"),
        (
            {"method": {"kind": "fedavg", "server": {"kind": "adam", "calibration": {"kind": "p", "p": 2.0}}}},
            "method.server.calibration: p is the power of v",
        ),
        ({"local": {"learner": "plan"}}, "local.learner.kind: no learner is called 'plan'"),
        ({"local": {"learner": {"kind": "ewc", "per": "task"}}}, "local.learner.per: task holds what earlier tasks"),
        ({"local": {"lr_schedule": {"kind": "plateau", "gamma": 2.0}}}, "local.lr_schedule: gamma multiplies"),
        (
            {"stream": {"kind": "static", "clients": 6, "partition": {"kind": "sizes"}}},
            "stream.partition: kind sizes needs either",
        ),
        (
            {"stream": {"kind": "static", "partition": {"kind": "column", "column": "site"}}},
            "stream.partition.column: digits has no column 'site'",
        ),
        ({"track": "tensorbord"}, "track.kind: no tracker is called 'tensorbord'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_faults_of_nested_parts_begin_with_their_path(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        assemble(resolve_config({**SMALL, **changes}))
    assert str(caught.value).startswith(message)


class Talking:
    """Raises what it is told."""

    part = "learner"

    def __init__(self, *, rate: float = 1.0, what: str = "", ours: bool = True) -> None:
        raise ConfigError(what) if ours else ValueError(what)


@pytest.mark.parametrize(
    ("what", "ours", "expected"),
    [
        ("rate: too high", True, "local.x.rate: too high"),
        ("rate: too high", False, "local.x.rate: too high"),
        ("learner.rate[0]: odd", True, "local.x.rate[0]: odd"),
        ("learner: odd", False, "local.x: odd"),
        ("rate is too high", False, "local.x: rate is too high"),
        ("rate", False, "local.x: rate"),
        ("", False, "local.x: "),
        ("rates: odd", False, "local.x: rates: odd"),
        # A fault of another part of the configuration has its own path.
        ("stream.rows: odd", True, "stream.rows: odd"),
        ("rate is too high", True, "rate is too high"),
        ("learner.a: no such setting\nlearner.b: no such setting\nmore", True,
         "local.x.a: no such setting\nlocal.x.b: no such setting\nmore"),
    ],
)  # fmt: skip
def test_what_a_constructor_says_of_its_settings_gets_the_path(what: str, ours: bool, expected: str) -> None:
    settings = {"kind": f"{HERE}:Talking", "what": what, "ours": ours}
    with pytest.raises(ConfigError) as caught:
        registry.build("learner", settings, where="local.x")
    assert str(caught.value) == expected


def test_parts_get_what_they_ask_for_and_nothing_else() -> None:
    offered = {"world": "w", "local": "l"}
    assert registry.accepted("server", KIND, **offered) == {"world": "w"}
    assert registry.accepted("mean", f"{HERE}:Nova", **offered) == {"local": "l"}
    assert registry.accepted("mean", "weighted", **offered) == {}
    assert registry.accepted("server", "adam", **offered) == {"world": "w"}  # a schedule counts the rounds


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nothing", "no server is called 'nothing'; known: "),
        ("adm", "did you mean 'adam'"),
        ("no_such_module:X", "cannot import"),
        (f"{HERE}:Missing", "cannot import"),
        (f"{HERE}:KIND", "is a str, not a class or function"),
    ],
)
def test_unknown_kinds(kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.find("server", kind)


def test_register_makes_a_class_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.PARTS, "server", dict(registry.PARTS["server"]))
    registry.register("server", "scheduled")(Scheduled)
    assert registry.find("server", "scheduled") is Scheduled
    with pytest.raises(ConfigError, match="no kind of part is called 'servers'; did you mean 'server'"):
        registry.register("servers", "x")


@pytest.mark.parametrize("part", sorted(registry.PARTS))
def test_every_registered_part_can_be_found_and_says_what_it_is(part: str) -> None:
    for kind in registry.PARTS[part]:
        target = registry.find(part, kind)
        assert (target.__doc__ or "").strip(), f"{part} {kind} has no docstring"
        assert getattr(target, "part", part) == part


class Foreign:
    """What is no part at all, whatever it is given."""

    def __init__(self, *given: Any) -> None:
        self.given = given


@pytest.mark.parametrize("part", sorted(registry.BASES))
def test_what_is_no_such_part_is_refused_when_it_is_built(part: str) -> None:
    """It would fail in the first round, or with every client in every round."""
    path = registry.BASES[part]
    base = registry.find(part, path)
    assert getattr(base, "part", None) == part
    assert all(getattr(registry.find(part, kind), "part", None) == part for kind in registry.PARTS[part])
    with pytest.raises(ConfigError, match=f"{part}.kind: {HERE}:Foreign gives a Foreign; .* derived from {path}"):
        registry.build(part, {"kind": f"{HERE}:Foreign"})


def test_a_part_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"mean.kind: {KIND} gives a Scheduled"):
        registry.build("mean", registry.resolve("mean", KIND), None)


def test_settings_without_a_type_take_anything() -> None:
    assert registry.resolve("server", {"kind": f"{HERE}:Loose"})["keep"] is True
    assert registry.resolve("server", {"kind": f"{HERE}:Loose", "keep": False, "how": [1]})["how"] == [1]


def test_a_class_inside_something_else_cannot_be_registered() -> None:
    class Inside:
        """Here."""

    with pytest.raises(ConfigError, match="a part stands in its module"):
        registry.register("server", "inside")(Inside)
