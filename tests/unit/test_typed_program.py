"""What the type checker is shown is a program that works."""

import typed_program

import tf_dynemb


def test_it_runs(tmp_path):
    assert typed_program.tables() == (4, "users", ["/CPU:0"])
    typed_program.lookups()
    typed_program.layers()
    keys, of_users = typed_program.collections()
    assert list(keys) == ["seen"] and of_users["users"].values().shape == (2, 2)
    assert len(typed_program.optimizers()) == 4
    assert typed_program.training(str(tmp_path)) == 5


def test_it_has_every_public_name():
    text = open(typed_program.__file__).read()
    base_classes = {"FrequencyRestrictPolicy", "RestrictPolicy", "compat", "initializers"}
    assert [n for n in tf_dynemb.__all__ if f"tf_dynemb.{n}" not in text and n not in base_classes] == []
