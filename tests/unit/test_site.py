"""The documentation's site has every page and every public name; `make docs` checks its links."""

import importlib
import pathlib
import re

import pytest
import yaml

import tf_dynemb

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
DOCUMENTED = [
    name
    for page in sorted((DOCS / "reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]
# Named on a page of their own, or by their members.
MODULES = {"compat", "distribute", "initializers", "keras", "policies", "serving", "snapshot", "storage"}


def pages_in(nav) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_in(part)]


def test_every_page_is_in_the_navigation_once():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages_in(nav)) == PAGES


def test_every_public_name_is_in_the_reference_once():
    assert len(set(DOCUMENTED)) == len(DOCUMENTED)
    here = {name.removeprefix("tf_dynemb.").removeprefix("policies.") for name in DOCUMENTED}
    assert set(tf_dynemb.__all__) - MODULES <= here


@pytest.mark.parametrize("module", sorted(MODULES - {"compat", "keras"}))
def test_every_public_name_of_a_module_is_in_the_reference(module):
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    names = getattr(tf_dynemb, module).__all__
    at_top = [name for name in names if f"::: tf_dynemb.{name}\n" in text]
    missing = [name for name in names if f"tf_dynemb.{module}.{name}" not in text]
    assert set(missing) <= set(at_top)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_what_the_reference_names_exists_and_is_described(name):
    module, _, attribute = name.rpartition(".")
    assert getattr(importlib.import_module(module), attribute).__doc__


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_pages(page):
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if not link.startswith(("http:", "https:")):
            target = ((DOCS / page).parent / link).resolve()
            assert target.exists() and target.is_relative_to(DOCS), link


def test_the_sources_name_pages_by_their_titles():
    """A reader of a docstring has the site, and no repository."""
    titles = {re.search(r"^# (.+)$", (DOCS / page).read_text(), re.MULTILINE)[1] for page in PAGES}
    named = {}
    for path in (ROOT / "tf_dynemb").rglob("*.py"):
        text = re.sub(r"\s+", " ", path.read_text())
        named |= dict.fromkeys(re.findall(r"[Pp]age \\?[\"']([^\"'\\]+)\\?[\"']", text), path.name)
    assert len(named) > 5
    assert {title: path for title, path in named.items() if title not in titles} == {}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstrings_name_no_files_of_the_repository(name):
    module, _, attribute = name.rpartition(".")
    thing = getattr(importlib.import_module(module), attribute)
    members = [getattr(thing, member) for member in dir(thing) if not member.startswith("_")]
    for text in (each.__doc__ or "" for each in (thing, *members)):
        assert re.findall(r"\b(?:docs|cc|tests|examples)/\S+", text) == []


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        assert link.startswith("http") or (ROOT / link).exists(), link
