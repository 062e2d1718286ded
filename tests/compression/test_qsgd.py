"""Stochastic quantisation: its mean, its error, its levels and its bytes, from the paper's formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shoal import registry
from shoal.compression.qsgd import Qsgd
from shoal.errors import ConfigError
from shoal.randomness import Moment
from shoal.setup import assemble, resolve_config

WHEN = Moment(0, 1)
DRAWS = 10_000


def made(compression: Qsgd, change: Any, seed: int = 0, start: Any = None) -> np.ndarray:
    """The change that the server sees, in double precision."""
    vector = torch.as_tensor(np.asarray(change), dtype=torch.float32)
    begin = torch.zeros_like(vector) if start is None else start
    rng = np.random.default_rng(seed)
    message, kept = compression.encode(begin, begin + vector, [], {}, WHEN, rng)
    assert kept == {}
    return compression.decode(begin, message, [], WHEN).double().numpy()


def draws(compression: Qsgd, change: np.ndarray) -> np.ndarray:
    """Ten thousand independent draws of the same bucket: it stands in the message so many times."""
    assert compression.bucket == len(change)
    return made(compression, np.tile(change, DRAWS)).reshape(DRAWS, len(change))


CHANGE = np.random.default_rng(5).normal(size=16).astype(np.float32)


@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_mean_of_ten_thousand_draws_is_the_change(bits: int, norm: Any) -> None:
    found = draws(Qsgd(bits=bits, bucket=16, norm=norm), CHANGE)
    scale = np.linalg.norm(CHANGE) if norm == "l2" else np.abs(CHANGE).max()
    step = scale / (2 ** (bits - 1) - 1) if bits > 1 else 2 * scale
    # A draw lies within a step, so its deviation is at most step / 2: five standard errors.
    assert np.abs(found.mean(0) - CHANGE).max() < 5 * step / 2 / np.sqrt(DRAWS) + 1e-6


@pytest.mark.parametrize("bits", [2, 3, 5])
def test_the_error_is_that_of_the_paper(bits: int) -> None:
    s, n, squared = 2 ** (bits - 1) - 1, len(CHANGE), float(np.square(CHANGE, dtype=np.float64).sum())
    found = draws(Qsgd(bits=bits, bucket=16), CHANGE)
    error = np.square(found - CHANGE).sum(1).mean()
    # Exactly: each coordinate is a coin between two levels that are |v| / s apart.
    place = s * np.abs(CHANGE.astype(np.float64)) / np.sqrt(squared)
    share = place - np.floor(place)
    assert error == pytest.approx(float((share * (1 - share)).sum()) * squared / s**2, rel=0.05)
    assert error <= min(n / s**2, np.sqrt(n) / s) * squared


def test_with_one_bit_every_coordinate_is_an_end_of_the_bucket() -> None:
    compression = Qsgd(bits=1, bucket=4, norm="max")
    found = draws(compression, np.array([0.5, -2.0, 0.0, 1.0], dtype=np.float32))
    assert np.unique(found).tolist() == [-2.0, 2.0]
    assert (found[:, 1] == -2).all()
    # (1 + v / 2) / 2 of the draws are at the upper end; a standard error is at most 0.005.
    assert (found > 0).mean(0) == pytest.approx([0.625, 0, 0.5, 0.75], abs=0.025)


@pytest.mark.parametrize("settings", [{"bits": 1}, {"bits": 2, "norm": "max"}, {"bits": 16}, {"bucket": None}])
def test_zeros_stay_zeros(settings: dict[str, Any]) -> None:
    start = torch.randn(100, generator=torch.Generator().manual_seed(0))
    found = made(Qsgd(**{"bucket": 32, **settings}), np.zeros(100), start=start)
    assert np.array_equal(found, start.double().numpy())


def test_a_zero_among_others_stays_zero_from_two_bits_on() -> None:
    change = np.tile([0.0, 1.0, -3.0, 0.0], 1000)
    for bits in (2, 5, 8, 16):
        found = made(Qsgd(bits=bits, bucket=4), change).reshape(-1, 4)
        assert not found[:, [0, 3]].any()


@pytest.mark.parametrize("bits", [1, 2, 8, 16])
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_no_level_is_outside_the_grid(bits: int, norm: Any) -> None:
    # A bucket of one is its own norm, and so at the outermost level, which must neither be passed nor wrap round.
    rng = np.random.default_rng(2)
    change = (rng.normal(size=5000) * 10.0 ** rng.integers(-30, 30, 5000)).astype(np.float32)
    assert np.array_equal(made(Qsgd(bits=bits, bucket=1, norm=norm), change), change.astype(np.float64))


def test_the_scale_is_rounded_up() -> None:
    # The norm of (1, 1) is 1.41421356..., and the nearest float32 lies below it.
    compression = Qsgd(bits=8, bucket=2)
    message, _ = compression.encode(torch.zeros(2), torch.ones(2), [], {}, WHEN, np.random.default_rng(0))
    (scale,) = np.frombuffer(message[:4], "<f4").astype(np.float64)
    assert np.float64(np.float32(np.sqrt(2.0))) < np.sqrt(2.0) < scale < np.sqrt(2.0) * (1 + 2e-7)


@pytest.mark.parametrize(
    ("settings", "size", "expected"),
    [
        ({"bits": 8}, 62_006, 62_006 + 4 * 122),
        ({"bits": 1}, 62_006, 7751 + 4 * 122),
        ({"bits": 3, "bucket": 10}, 25, 10 + 4 * 3),
        ({"bits": 12, "bucket": None}, 1001, 1502 + 4),
    ],
)
def test_the_message_has_the_bytes_of_its_formula(settings: dict[str, Any], size: int, expected: int) -> None:
    compression = Qsgd(**settings)
    vector = torch.randn(size, generator=torch.Generator().manual_seed(0))
    message, _ = compression.encode(torch.zeros(size), vector, [], {}, WHEN, np.random.default_rng(0))
    assert len(message) == expected
    with pytest.raises(ValueError, match=rf"has {expected + 1} bytes; {expected} were expected"):
        compression.decode(torch.zeros(size), message + b"\0", [], WHEN)


def test_buckets_have_scales_of_their_own() -> None:
    change = np.concatenate([np.full(6, 1e-3), np.full(6, 1e3)]).astype(np.float32)
    found = made(Qsgd(bits=8, bucket=6, norm="max"), change)
    assert found == pytest.approx(change.astype(np.float64), rel=1e-6)


@pytest.mark.parametrize("wrong", [{"bits": 0}, {"bits": 32}, {"bucket": 0}, {"norm": "l1"}])
def test_wrong_settings_are_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=rf"local\.compression\.{name}"):
        registry.resolve("compression", {"kind": "qsgd", **wrong}, "local.compression")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"bits": 1}, "n = 512"),
        ({"bits": 1, "bucket": None}, "n = the coordinates of the model"),
        ({"bits": 1, "norm": "max"}, None),
        ({"bits": 2}, None),
    ],
)
def test_one_bit_of_a_euclidean_norm_is_warned_of(settings: dict[str, Any], told: str | None) -> None:
    local = {"compression": {"kind": "qsgd", **settings}}
    notes = assemble(resolve_config({"stream": {"kind": "static", "clients": 2}, "local": local})).notes
    warned = [note for note in notes if note.startswith("local.compression: one bit")]
    assert len(warned) == (told is not None)
    assert told is None or told in warned[0]
