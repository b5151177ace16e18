"""Every Python block of the documentation runs."""

import os
import pathlib
import re
import unittest.mock

import pytest
from keras_rs_here import need_keras_rs

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block, tmp_path, monkeypatch, request):
    if "tf_dynemb.redis" in block:
        request.getfixturevalue("redis_of_examples")
    if "keras_rs" in block:
        need_keras_rs()
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "block.py"  # a file, so that tf.function finds its source
    path.write_text(block)
    with unittest.mock.patch.dict(os.environ):  # what a block sets is for it alone
        exec(compile(block, str(path), "exec"), {"__name__": "block"})
