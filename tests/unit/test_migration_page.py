"""What the migration pages name of ours is there, and they have what the dialects have.

Their programs run in test_documentation.py and test_migration_programs.py.
"""

import ast
import itertools
import pathlib
import pkgutil
import re

import pytest
from keras_rs_here import need_keras_rs

ROOT = pathlib.Path(__file__).parents[2]

LIBRARIES = ("tfra", "torchrec", "oneembedding", "sok", "deeprec", "horovod")
PAGES = {page: (ROOT / "docs" / f"migrating-from-{page}.md").read_text() for page in LIBRARIES}

by_page = pytest.mark.parametrize("page", PAGES)


def quoted(page) -> list:
    """What stands in backquotes, outside of the blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL))


def is_named(name, cells) -> bool:
    return any(re.search(rf"`[^`]*(?<!\w){re.escape(name)}(?!\w)[^`]*`", cell) for cell in cells)


MODULES = {"tfra": "tfra", "torchrec": "torchrec", "oneembedding": "one_embedding", "sok": "sok"}


def blocks_of(text) -> list:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def names_in(program) -> set:
    """What a program uses, imports and defines; not what its strings and comments say."""
    nodes = list(ast.walk(ast.parse(program)))
    imported = {
        alias.name
        for node in nodes
        for alias in getattr(node, "names", [])
        if isinstance(alias, ast.alias)
    }
    return imported | {getattr(node, "attr", getattr(node, "id", None)) for node in nodes}


@pytest.fixture(scope="module")
def used_by_programs() -> set:
    """The names in the tests and in the programs of the documentation, which run."""
    tests = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    return set().union(*map(names_in, [*tests, *itertools.chain(*map(blocks_of, PAGES.values()))]))


@pytest.mark.parametrize("page", MODULES)
def test_public_names_of_a_dialect_are_on_its_page_and_in_a_program(page, used_by_programs):
    module = pkgutil.resolve_name(f"tf_dynemb.compat.{MODULES[page]}")
    for name in module.__all__:
        assert is_named(name, PAGES[page].splitlines()), f"{name} is not on the page"
    assert set(module.__all__) - used_by_programs == set()


def test_what_sok_exports_is_there_or_said_to_be_missing():
    names = """Init OptimizerScope DistributedEmbedding All2AllDenseEmbedding get_embedding Saver
        split_embedding_variable_from_others GraphKeys optimizers sok.tf TFDistributedEmbedding
        init filter_variables Variable DistributedVariable LocalizedVariable DynamicVariable assign
        export OptimizerWrapper SGD lookup_sparse sparse_read_and_evict all2all_dense_embedding dump load
        incremental_model_dump set_comm_tool""".split()
    missing = set()
    for row in PAGES["sok"].splitlines():
        if row.startswith("| ") and "lacks the name" in row:
            missing |= {name for name in names if f"`{name}`" in row.split("|")[1]}
    for name in names:
        try:
            pkgutil.resolve_name(f"tf_dynemb.compat.sok.{name.removeprefix('sok.')}")
        except AttributeError:
            assert name in missing
        else:
            assert name not in missing, name


@by_page
def test_names_of_ours_are_there(page):
    ours = {name for each in quoted(page) for name in re.findall(r"tf_dynemb((?:\.\w+)+)", each)}
    assert len(ours) > 7
    for name in sorted(ours, key=lambda name: "keras_rs" in name):  # which may not be there
        if "keras_rs" in name:
            need_keras_rs()
        pkgutil.resolve_name(f"tf_dynemb{name}")


def test_tests_that_the_page_on_tfra_names_are_there():
    places = [each for each in quoted("tfra") if re.match(r"(tests|cc)/.*\.(py|cc)", each)]
    assert len(places) > 30
    for place in places:
        file, _, name = place.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name}(" in text or f", {name})" in text, place
