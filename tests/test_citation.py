"""``CITATION.cff``: what GitHub and reference managers read, and that it is about this version."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import shoal

ROOT = Path(__file__).parent.parent
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = ("cff-version", "message", "title", "authors")


def test_it_is_a_citation_of_this_version() -> None:
    assert all(CITATION[name] for name in REQUIRED)
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    assert str(CITATION["version"]) == PROJECT["version"] == shoal.__version__
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["title"].startswith("Shoal: ")


@pytest.mark.parametrize("number", ["2009.06557", "2203.13321", "2311.06921", "2306.12768"])
def test_the_papers_behind_it_are_referenced(number: str) -> None:
    (paper,) = [paper for paper in CITATION["references"] if number in paper["url"]]
    assert paper["identifiers"] == [{"type": "other", "value": f"arXiv:{number}"}]
    assert paper["type"] == "article"
    assert paper["title"]
    assert paper["year"] == 2000 + int(number[:2])
    assert all(set(author) == {"given-names", "family-names"} for author in paper["authors"])
