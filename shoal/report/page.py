"""The report: one HTML file that needs nothing else, neither files nor a network.

A section is a function ``(runs, comparison) -> Section`` in a file of its own; adding one is that file and one line
in `SECTIONS`. A section with an empty body is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from ..files import write_atomically
from . import (
    accuracy,
    concepts,
    configuration,
    confusion,
    cost,
    definitions,
    drift,
    findings,
    heat,
    orders,
    problems,
    ranking,
    served,
    server,
    shifts,
    sizes,
    timeline,
    transfer,
)
from .clients import client_table, write_clients
from .comparison import compare_runs
from .load import Runs, read
from .parts import Section, esc, tied

SECTIONS: tuple[Callable[[Runs, Mapping[str, Any]], Section], ...] = (
    findings.section,
    ranking.section,
    heat.section,
    accuracy.section,
    served.section,
    confusion.section,
    transfer.section,
    shifts.section,
    concepts.section,
    orders.section,
    drift.section,
    server.section,
    timeline.section,
    sizes.section,
    cost.section,
    problems.section,
    configuration.section,
    definitions.section,
)


def write_report(folder: Path | str, runs: Runs | None = None, comparison: Mapping[str, Any] | None = None) -> Path:
    """Writes ``report.html`` into a run's folder, or into a folder of runs, and gives its path.

    Beside the report of a single run that has begun lies ``clients.csv``, see `clients.client_table`. Runs that are
    unfinished are shown as far as they have come. ``runs`` and ``comparison`` are those of the folder, where somebody
    has them already. Raises `RunError` if there is no run.
    """
    folder = Path(folder)
    runs = read(folder) if runs is None else runs
    text = page(runs, comparison)
    if runs.single and (clients := client_table(runs.runs[0])):
        write_clients(folder / "clients.csv", clients)
    path = folder / "report.html"
    write_atomically(path, text.encode())
    return path


def page(runs: Runs, comparison: Mapping[str, Any] | None = None) -> str:
    """The whole page as HTML; the comparison of the runs is made unless it is there already."""
    comparison = compare_runs(runs) if comparison is None else comparison
    sections = [found for build in SECTIONS if (found := build(runs, comparison)).body]
    links = "".join(f'<li><a href="#{s.id}">{esc(s.title)}</a></li>' for s in sections)
    first, _ = findings.lead(runs, comparison)
    lead = f'<p class="lead">{" ".join(tied(sentence) for sentence in first)}</p>'
    facts = f'<p class="facts">{esc(_facts(runs, comparison))}</p>'
    about = f'{lead}{_description(runs)}{facts}<nav aria-label="Sections"><ul>{links}</ul></nav>'
    return Template(_text("page.html")).substitute(
        title=esc(f"{runs.name} - Shoal report"),
        name=esc(runs.name),
        about=about,
        sections="\n".join(_html(section) for section in sections),
        css=_text("page.css"),
        js=_text("page.js"),
        plotly=get_plotlyjs(),
    )


def _html(section: Section) -> str:
    title = f'<h2 id="{section.id}-title">{esc(section.title)}</h2>'
    return f'<section id="{section.id}" aria-labelledby="{section.id}-title">{title}{section.body}</section>'


def _description(runs: Runs) -> str:
    text = str(runs.config.get("description") or "").strip()
    return f'<p class="about">{esc(text)}</p>' if text else ""


def _facts(runs: Runs, comparison: Mapping[str, Any]) -> str:
    """What was run, in one line: method, variants, seeds, rounds, clients, tasks, data."""
    run = next((r for r in runs.runs if r.lines), runs.runs[0])
    config = run.config
    facts = []
    if runs.single:
        facts += [str(config.get("method", {}).get("kind", "")), f"seed {run.seed}"]
    else:
        seeds = {r.seed for r in runs.runs}
        facts += [_many(len(runs.variants), "variant"), _many(len(seeds), "seed")]
    about = comparison["about"]  # what is the same for all runs
    if "rounds" in about:
        facts.append(_many(int(about["rounds"]), "round"))
    if about.get("clients"):
        facts.append(_many(int(about["clients"]), "client"))
    if about.get("tasks"):
        order = f", {about['order']}" if about.get("order") else ""
        facts.append(_many(int(about["tasks"]), "task") + order)
    facts += [f"{part} {about[part]}" for part in ("data", "model") if about.get(part)]
    return " · ".join(fact for fact in facts if fact)


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
