"""What was run, and where: the configuration, what the variants change, and the machine and packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..loading import leaves
from .load import Runs
from .parts import Section, code, folded, note, paragraph, table


def section(runs: Runs, comparison: Mapping[str, Any]) -> Section:
    """The YAML as it stands in the folder, the settings in which the variants differ, and the environment."""
    body = "" if runs.single else _differences(runs)
    text = runs.config_text or (runs.runs[0].config_text if runs.single else "")
    if text:
        body += (
            code(text, "Configuration")
            if runs.single
            else folded("The configuration (config.yaml)", code(text, "Configuration"))
        )
    if not runs.single:
        for variant, members in runs.variants.items():
            if members[0].config_text:
                body += folded(f"Resolved, {variant}", code(members[0].config_text, f"Configuration of {variant}"))
    body += _environment(runs)
    return Section("configuration", "Configuration", body or paragraph("No configuration was found in the folder."))


def _differences(runs: Runs) -> str:
    """The settings that are not the same in all variants, from the resolved configurations."""
    settings = {variant: leaves(members[0].config) for variant, members in runs.variants.items() if members[0].config}
    every = list(dict.fromkeys(key for found in settings.values() for key in found))
    skipped = {"name", "seed", "description"}
    unlike = [
        key for key in every if key not in skipped and len({found.get(key, "") for found in settings.values()}) > 1
    ]
    if not unlike:
        return ""
    rows = [[variant, *(found.get(key, "-") for key in unlike)] for variant, found in settings.items()]
    return table("In what the variants differ", ["Variant", *unlike], rows, tuple(range(len(unlike) + 1)))


def _environment(runs: Runs) -> str:
    known = [run.environment for run in runs.runs if run.environment]
    if not known:
        return ""
    flat = [leaves({k: v for k, v in one.items() if k != "command"}) for one in known]
    names = list(dict.fromkeys(name for one in flat for name in one))
    rows = []
    for name in names:
        values = list(dict.fromkeys(one.get(name, "-") for one in flat))
        rows.append([name.removeprefix("packages."), "; ".join(values[:4])])
    found = table("Machine, packages and data", ["What", "Value"], rows, (0, 1))
    if any(len({one.get(name) for one in flat}) > 1 for name in names):
        found += note("Where the runs differ, all values are listed.")
    return folded("Machine and packages", found)
