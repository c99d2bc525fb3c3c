"""Dependencies point down: the rooms of the house, the arrows between them, and no cycle among modules.

Every import counts: at the top of a module, under `TYPE_CHECKING`, and inside of functions. The exceptions are named
below: what draws and what saves is called from objects that stand under it.
"""

import ast
import graphlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import gbplearn

PACKAGE = Path(gbplearn.__file__).parent
# For each room, the rooms that its modules may import. A room with a dot stands before the one that it lies in.
BELOW = {
    "core": set(),
    "kernels.forms": set(),
    "kernels.registry": set(),
    "edges": {"core"},
    "factors": {"core", "edges", "kernels.forms"},
    "graph": {"core", "edges", "factors"},
    "layers": {"core", "edges", "factors", "graph", "kernels.forms"},
    "engine": {"core", "edges", "factors", "graph", "kernels.registry"},
    "kernels": {"core", "edges", "factors", "graph", "engine", "kernels.forms", "kernels.registry"},
    "network": {"core", "edges", "factors", "graph", "layers", "engine"},
    "learner": {"core", "edges", "factors", "graph", "layers", "engine", "network"},
}
_LIBRARY = {*BELOW}
BELOW |= dict.fromkeys(("io", "show"), _LIBRARY)
BELOW["estimators"] = _LIBRARY
BELOW["apps"] = {*_LIBRARY, "io", "show", "estimators", "native"}
# Of these, each may import anything: the public names, and the doors to them.
DOORS = {"", "__main__", "moved", "native"}
# A method of this name may import this room, though it stands above: what it returns is made there.
LENT = {"draw": "show", "plot": "show", "_repr_html_": "show", "save": "io", "load": "io"}
# What such a method returns may be named in its signature: a module that imports nothing of the library but `core`.
NAMED = {"show.drawing"}


class Import(NamedTuple):
    """One import of a module of the package."""

    importer: str
    imported: str
    function: str | None  # the function that it stands in
    typing: bool  # only for a type checker


def modules() -> dict[str, Path]:
    """All modules by name, without the name of the package."""
    out = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return out


MODULES = modules()


def imports_of(name: str, source: str, is_package: bool) -> Iterator[Import]:
    """All imports of modules of the package, wherever they stand."""
    package = f"gbplearn.{name}".rstrip(".") if is_package else f"gbplearn.{name}".rpartition(".")[0]

    def visit(node: ast.AST, function: str | None, typing: bool) -> Iterator[Import]:
        if isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for found in found_modules(base, [alias.name for alias in node.names]):
                yield Import(name, found, function, typing)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                for found in found_modules(alias.name, []):
                    yield Import(name, found, function, typing)
        inside = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        checking = typing or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside, checking)

    yield from visit(ast.parse(source), None, False)


def found_modules(base: str, names: list[str]) -> set[str]:
    """The modules that `from base import names` loads names of; empty if it is another package."""
    if base != "gbplearn" and not base.startswith("gbplearn."):
        return set()
    short = base.removeprefix("gbplearn").lstrip(".")
    inner = {f"{short}.{n}".lstrip(".") for n in names} & MODULES.keys()
    rest = [n for n in names if f"{short}.{n}".lstrip(".") not in MODULES]
    return inner | ({short} if rest or not names else set())


def room_of(name: str) -> str:
    """The room that a module lies in."""
    return next((room for room in sorted(BELOW, key=len, reverse=True) if f"{name}.".startswith(f"{room}.")), name)


def is_lent(found: Import) -> bool:
    """Whether it is one of the exceptions."""
    if found.typing and found.imported in NAMED:
        return True
    return found.function in LENT and room_of(found.imported) == LENT[found.function]


ALL = [
    found
    for name, path in MODULES.items()
    for found in imports_of(name, path.read_text(), path.name == "__init__.py")
    if found.imported != name
]


def broken(found: Import) -> bool:
    """Whether an import goes up, or across."""
    here, there = room_of(found.importer), room_of(found.imported)
    return not (found.importer in DOORS or here == there or there in BELOW.get(here, set()) or is_lent(found))


def test_every_module_has_a_room():
    assert {room_of(name) for name in MODULES} - DOORS == set(BELOW)


def test_dependencies_point_down():
    wrong = [f"{i.importer} imports {i.imported}" for i in ALL if broken(i)]
    assert not wrong, "\n".join(wrong)


def test_what_a_signature_names_imports_nothing_above_core():
    wrong = [i for i in ALL if i.importer in NAMED and room_of(i.imported) not in ("core", "show")]
    assert not wrong
    closure = {i.imported for i in ALL if i.importer in NAMED and room_of(i.imported) == "show"}
    assert not [i for i in ALL if i.importer in closure and room_of(i.imported) not in ("core", "show")]


def test_no_module_imports_itself_by_a_detour():
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for found in ALL:
        # A package's own `__init__` shows what lies in it: that is no dependency of what lies in it.
        if not is_lent(found) and not found.importer.startswith(f"{found.imported}."):
            graph[found.importer].add(found.imported)
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize(
    ("name", "source", "wrong"),
    [
        ("layers.mine", "from ..engine.infer import infer", True),
        ("layers.mine", "from ..graph.factor import Factor", False),
        ("engine.mine", "from ..kernels.cpu.visits import visit_kernel", True),
        ("engine.mine", "from ..kernels.registry import kernels", False),
        ("graph.mine", "if TYPE_CHECKING:\n    from ..learner.learner import Learner", True),
        ("graph.mine", "def count():\n    from ..network.sequential import Sequential", True),
        ("graph.mine", "def draw():\n    from ..show.graph_drawing import draw_graph", False),
        ("graph.mine", "def count():\n    from ..show.graph_drawing import draw_graph", True),
        ("learner.mine", "import gbplearn.apps.cli", True),
        ("learner.mine", "def save():\n    from ..io.checkpoint import save", False),
        ("core.mine", "from gbplearn import Gaussian", True),
        ("show.mine", "from ..apps.cli import main", True),
    ],
)
def test_a_wrong_import_is_found(name, source, wrong):
    (found,) = imports_of(name, source, False)
    assert broken(found) == wrong


def test_types_come_with_the_package():
    assert (PACKAGE / "py.typed").is_file()


# Where what a user declared, or gave, is checked, and where a declaration becomes a family.
DECLARED = {"graph.variable", "graph.evidence", "graph.graph", "graph.factor", "network.batch"}
ENGINE_ROOMS = ("edges", "factors", "graph", "layers", "engine", "kernels", "network", "learner")


def branches_on_family(source: str) -> list[int]:
    """Lines with a condition that asks which family a belief has: `.block`, or the families' own names."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
            conditions = [node.test]
        elif isinstance(node, ast.comprehension):
            conditions = node.ifs
        elif isinstance(node, ast.match_case):
            conditions = [node.pattern]
        elif isinstance(node, (ast.BoolOp, ast.Compare)):
            conditions = [node]
        else:
            continue
        for part in (x for c in conditions for x in ast.walk(c)):
            asked = isinstance(part, ast.Attribute) and part.attr == "block"
            asked |= isinstance(part, ast.Name) and part.id in ("block", "BLOCK", "DIAGONAL", "Block", "Diagonal")
            if asked:
                found.append(part.lineno)
    return sorted(set(found))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = a if g.block else b", 1),
        ("if not slot.block and y:\n    pass", 1),
        ("z = [m for m in ms if m.block]", 1),
        ("w = s.block or t", 1),
        ("v = g.family is BLOCK", 1),
        ("if isinstance(f, Block):\n    pass", 1),
        ("p = Gaussian.point(v, block=variable.block)", 0),
        ("q = g.family.mean(g.eta, g.lam)", 0),
    ],
)
def test_a_branch_on_the_family_would_be_found(source, count):
    assert len(branches_on_family(source)) == count


@pytest.mark.parametrize("name", [n for n in MODULES if n.split(".")[0] in ENGINE_ROOMS and n not in DECLARED])
def test_only_families_ask_which_family_it_is(name):
    assert branches_on_family(MODULES[name].read_text()) == []
