"""The lower bounds of the package are those that are tested: requirements-oldest.txt has them."""

import pathlib
import re

from packaging.version import Version

from tf_dynemb import _compat

ROOT = pathlib.Path(__file__).parents[2]


def bounds_of_package():
    text = (ROOT / "pyproject.toml").read_text()
    project = text[text.index("\n[project]") : text.index("\n[tool.")]
    found = re.findall(r'"([A-Za-z_]+)(?:\[\w+\])?>=([\d.]+)"', project)
    return {name: Version(bound) for name, bound in found}


def oldest():
    lines = (ROOT / "requirements-oldest.txt").read_text().splitlines()
    return {
        name: Version(version)
        for name, version in (line.split("==") for line in lines if not line.startswith("#"))
    }


def test_the_lower_bounds_are_the_oldest_that_are_tested():
    bounds = bounds_of_package() | {"keras": Version(_compat.KERAS_VERSIONS[0])}
    assert {"numpy", "tqdm", "ray", "pyarrow", "aiohttp"} <= set(bounds)
    pins = oldest()
    assert {name: pins.get(name) for name in bounds} == bounds
