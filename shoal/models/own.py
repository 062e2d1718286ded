"""The settings of a user's own module (``kind: my_module:Net``), which follows no rule of ours."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from .. import registry
from ..errors import ConfigError, nearest

GIVEN = ("shape", "outputs")
"""Parameters that are no settings: they are given the input's shape and the number of outputs."""

_EMPTY = inspect.Parameter.empty
_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_own(target: Callable[..., Any]) -> bool:
    """Whether the function or class is a user's, to be called with all its named parameters as settings.

    One that is configured by further parts (see the registry) follows the registry's rule instead.
    """
    if getattr(target, "__module__", "").partition(".")[0] == __name__.partition(".")[0]:
        return False
    try:
        return not any(setting.part for setting in registry.settings_of(target).values())
    except (NameError, TypeError, AttributeError):  # annotations that cannot be evaluated
        return True


def parameters_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function, or of a class when it is called."""
    try:
        return dict(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        raise ConfigError(
            f"model.kind: the parameters of {target!r} are not known; wrap it in a function of your own"
        ) from None


def resolve_own(target: Callable[..., Any], given: Mapping[str, Any], reserved: Sequence[str]) -> dict[str, Any]:
    """The settings with the defaults filled in, as JSON values, checked against the annotations if there are any.

    Defaults that JSON cannot say (a class, a function) are left to the target. ``reserved`` are names of
    settings that the target never sees. Raises `ConfigError`.
    """
    kind, every, hints = given["kind"], parameters_of(target), _hints(target)
    known = {n: p for n, p in every.items() if n not in (*GIVEN, *reserved) and p.kind not in _VARIADIC}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in every.values())
    resolved: dict[str, Any] = {"kind": kind}
    for name, parameter in known.items():
        if parameter.kind is _POSITIONAL_ONLY and (name in given or parameter.default is _EMPTY):
            raise ConfigError(f"model.{name}: {kind} takes it by position only; settings are given by name")
        if name in given:
            resolved[name] = _checked(name, given[name], parameter, hints)[1]
        elif parameter.default is _EMPTY:
            raise ConfigError(f"model.{name}: this setting is required by {kind}")
        elif parameter.kind is not _POSITIONAL_ONLY and _is_plain(parameter.default):
            resolved[name] = _listed(parameter.default)
    for name in (n for n in given if n != "kind" and n not in known):
        if name in GIVEN and name in every:
            raise ConfigError(f"model.{name}: comes from the data and the stream; leave it out")
        if not takes_any:
            raise ConfigError(f"model.{name}: no such setting; {nearest(name, [*known, *reserved])}")
        resolved[name] = given[name]
    return resolved


def build_own(target: Callable[..., Any], settings: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Calls the target with resolved settings and with those of `GIVEN` that it takes. Raises `ConfigError`."""
    every, hints = parameters_of(target), _hints(target)
    arguments = {}
    for name, value in settings.items():
        parameter = every.get(name)
        if name == "kind" or (parameter is not None and _is_default(value, parameter)):
            continue  # its own default, which may be no JSON value, or not of the annotated type
        arguments[name] = value if parameter is None else _checked(name, value, parameter, hints)[0]
    try:
        return target(**arguments, **given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model: {settings['kind']} cannot be built: {error}") from error


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _checked(name: str, value: Any, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[Any, Any]:
    """The value as the annotation wants it, and as JSON."""
    if name not in hints or _is_default(value, parameter):
        return value, _listed(value)
    try:
        adapter = pydantic.TypeAdapter(
            hints[name], config=pydantic.ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())
        )
    except pydantic.errors.PydanticUserError:
        return value, _listed(value)
    try:
        checked = adapter.validate_python(value)
    except pydantic.ValidationError as error:
        raise registry.explain(error, f"model.{name}", (), hints[name]) from None
    return checked, _listed(value) if checked == value else adapter.dump_python(checked, mode="json")


def _is_default(value: Any, parameter: inspect.Parameter) -> bool:
    return _is_plain(parameter.default) and bool(_listed(value) == _listed(parameter.default))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _listed(value: Any) -> Any:
    """The value as JSON has it: tuples become lists."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return {key: _listed(item) for key, item in value.items()} if isinstance(value, dict) else value
