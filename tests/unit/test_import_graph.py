"""Arrows between the modules of the package point down: no cycle, and nobody needs `compat`."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("tf_dynemb", "tf_dynemb_cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
COMPAT = "tf_dynemb.compat."


def parents(name: str) -> set[str]:
    """The packages that a module is in."""
    parts = name.split(".")
    return {".".join(parts[:n]) for n in range(1, len(parts))}


def imported_by(name: str, source: str) -> set[str]:
    """The modules of the package that a module imports, at its top or in functions.

    Importing a.b.c runs a and a.b first, which count too, but for those that `name` is in itself.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: want absolute imports"
            for alias in node.names:
                attribute = f"{node.module}.{alias.name}"
                found.add(attribute if attribute in MODULES else node.module)
    found = {module for module in found if module in MODULES}
    return found.union(*map(parents, found)) - parents(name) - {name}


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Nodes that lead to each other, the first one twice; empty if there are none."""
    done = set()

    def visit(node, path):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for other in sorted(graph.get(node, ())):
            found = visit(other, [*path, node])
            if found:
                return found
        done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node, []))), [])


GRAPH = {name: imported_by(name, path.read_text()) for name, path in MODULES.items()}


def test_cycles_are_found():
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_are_seen_wherever_they_are():
    source = "def f():\n    from tf_dynemb.table.variable import Variable\n"
    assert imported_by("tf_dynemb.base.keys", source) == {"tf_dynemb.table", "tf_dynemb.table.variable"}


def test_no_modules_import_each_other_in_a_cycle():
    assert cycle_in(GRAPH) == []


def test_only_compat_imports_compat():
    users = {
        name: {module for module in imports if module.startswith(COMPAT)}
        for name, imports in GRAPH.items()
        if not name.startswith(COMPAT)
    }
    assert {name for name, modules in users.items() if modules} == set()


def test_no_dialect_imports_another():
    def dialects(modules) -> set[str]:
        named = {module.split(".")[2] for module in modules if module.startswith(COMPAT)}
        return named - {"options"}

    users = {name: dialects({name, *imports}) for name, imports in GRAPH.items()}
    assert {name: found for name, found in users.items() if len(found) > 1} == {}


def test_the_command_and_the_launcher_need_nothing_of_the_package():
    imported = [imports for name, imports in GRAPH.items() if name.startswith("tf_dynemb_cli")]
    assert imported
    assert set().union(*imported) <= {name for name in MODULES if name.startswith("tf_dynemb_cli")}
