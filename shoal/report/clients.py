"""One row per client: how often it trained, what went wrong with it, and how well it is served; also as a CSV file."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import write_atomically
from ..metrics.functions import lower_is_better
from .lead import lead_metric
from .load import Line, Run
from .series import further_metrics, number

COUNTS = {"rejected": "rejected", "failed": "failed", "straggler": "stragglers", "skipped": "skipped"}
"""Records that name a client, and the columns that count the rounds in which they came."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""A text that is nothing but a number: a spreadsheet reads it as that number, and runs nothing."""


def client_table(run: Run) -> list[dict[str, Any]]:
    """One row per client that took part or is a target, worst served first.

    Each row has ``client`` (its number), ``name`` (in the data; empty where it has none), ``rounds`` in which it took
    part, ``trained`` (rounds in which its update reached the bank), ``rejected``, ``failed``, ``stragglers`` and
    ``skipped`` (rounds in which that happened), ``train_rows`` of round 1 where the stream tells them, and where
    clients are targets ``test_rows``, ``accuracy``, ``loss`` and the further metrics, all of the last round that was
    measured (``None`` where there is no number).

    Sorted by accuracy (by loss where real values are learned), worst first and those without a number last; without
    either, by what went wrong and then by number.
    """
    if "clients" not in run.kept:
        run.kept["clients"] = _table(run)
    found: list[dict[str, Any]] = run.kept["clients"]
    return found


def _table(run: Run) -> list[dict[str, Any]]:
    measured = _measured(run)
    seen = _seen(run)
    columns = dict.fromkeys(name for found in measured.values() for name in found)
    held = rows_held(run)
    rows: list[dict[str, Any]] = []
    for client in sorted({*seen, *measured}):
        counts = seen.get(client, {})
        row: dict[str, Any] = {"client": client, "name": name_of(run, client)}
        row |= {name: len(counts.get(name, ())) for name in ("rounds", "trained", *COUNTS.values())}
        if held:
            row["train_rows"] = held[client] if 0 <= client < len(held) else None
        row |= {name: measured.get(client, {}).get(name) for name in columns}
        rows.append(row)
    lead = lead_metric([run])
    return sorted(rows, key=lambda row: _worst_first(row, lead))


def rows_held(run: Run) -> list[int]:
    """The training rows of each client in round 1, by number; empty where the stream does not tell them."""
    found = run.stream.get("client_rows")
    whole = isinstance(found, list) and all(isinstance(n, int) and n >= 0 for n in found)
    return list(found) if whole and isinstance(found, list) else []


def name_of(run: Run, client: int) -> str:
    """The name that a client has in the data; empty where it has none."""
    names = run.names["client"]
    return names[client] if 0 <= client < len(names) else ""


def called(run: Run, client: int) -> str:
    """A client for people: ``client 3``, or ``client 3 (Oslo)``."""
    name = name_of(run, client)
    return f"client {client} ({name})" if name and name != str(client) else f"client {client}"


def write_clients(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a client table as CSV: UTF-8, commas, CRLF, quotes doubled (RFC 4180), the columns as in `client_table`.

    A text that a spreadsheet would take for a formula (it begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage
    return) gets an apostrophe in front of it, which makes it plain text there, unless it is a plain number such as
    ``-3``. Numbers are written as numbers.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    head = list(dict.fromkeys(name for row in rows for name in row))
    writer.writerow([_harmless(name) for name in head])
    for row in rows:
        writer.writerow([_harmless(row.get(name)) for name in head])
    write_atomically(path, text.getvalue().encode())


def _harmless(value: Any) -> Any:
    if value is None:
        return ""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    # With spaces before it a formula is still one for some programs.
    return f"'{value}" if value.lstrip(" ").startswith(_FORMULA) else value


def _seen(run: Run) -> dict[int, dict[str, set[int]]]:
    """Client -> column -> the rounds in which it is so; the warm-up is left out."""
    found: dict[int, dict[str, set[int]]] = {}
    for line in run.lines:
        round, record = line.get("round"), line.get("record")
        if not isinstance(round, int) or round < 1:
            continue
        if record == "round":
            for client in line.get("participants") or ():
                found.setdefault(int(client), {}).setdefault("rounds", set()).add(round)
            for client in reached(line):
                found.setdefault(client, {}).setdefault("trained", set()).add(round)
        elif record in COUNTS and isinstance(line.get("client"), int):
            column = COUNTS[str(record)]
            found.setdefault(line["client"], {}).setdefault(column, set()).add(round)
            # A client that holds no rows is skipped before it is a participant, but it was asked.
            found[line["client"]].setdefault("rounds", set()).add(round)
    return found


def reached(record: Line) -> set[int]:
    """The clients whose updates reached the bank in a round, by its record."""
    groups = (*(record.get("trained") or {}).values(), *(record.get("trained_tasks") or {}).values())
    return {int(client) for clients in groups for client in clients}


def _measured(run: Run) -> dict[int, dict[str, Any]]:
    """Client -> metric -> value in the last round in which that metric was measured; the mean of several targets."""
    found: dict[int, dict[str, Any]] = {}
    for metric in dict.fromkeys(("accuracy", "loss", *further_metrics([run]))):
        lines = [line for line in run.metrics.get(metric, []) if isinstance(line.get("client"), int)]
        last = max((line["round"] for line in lines if isinstance(line.get("round"), int)), default=None)
        if (
            metric == "accuracy"
            and all(number(line.get("value")) is None for line in lines)
            and lead_metric([run]) == "loss"
        ):
            continue
        values: dict[int, list[float]] = {}
        for line in lines:
            if line.get("round") != last:
                continue
            client, value = line["client"], number(line.get("value"))
            row = found.setdefault(client, {})
            if not metric.startswith("validation_"):
                row["test_rows"] = max(int(number(line.get("rows")) or 0), row.get("test_rows", 0))
            values.setdefault(client, [])
            if value is not None:
                values[client].append(value)
        for client, some in values.items():
            found[client][metric] = math.fsum(some) / len(some) if some else None
    return found


def _worst_first(row: Mapping[str, Any], lead: str) -> tuple[bool, float, int, int]:
    value = row.get(lead)
    trouble = sum(row[name] for name in ("rejected", "failed"))
    size = 0.0 if value is None else -float(value) if lower_is_better(lead) else float(value)
    return value is None, size, -trouble, row["client"]
