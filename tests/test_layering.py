"""Holds the import rule of the design: imports in `compilecut` point one way.

A module may import the modules before it in `ORDER` and nothing else of the package. The checks
read the source (`ast`), so they see imports inside functions too, and each check is shown a bad
snippet here, so that a green run means something.
"""

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

PACKAGE = Path(__file__).parents[1] / "src" / "compilecut"
FILES = sorted(PACKAGE.rglob("*.py"))

# Lowest first; names in one group don't know each other. Add a new module here, as low as it fits.
ORDER = (
    ("_errors",),
    ("_compat",),
    ("_jaxpr",),
    ("_bits", "_stacking", "_testing", "_units"),
    ("_chunking",),
    ("_report", "_arguments"),
    ("_check",),
    ("_match",),
    ("_plan",),
    ("_emit",),
    ("_state_groups",),
    ("_fold_report",),
    ("_packed_step",),
    ("_packed",),
    ("_fold",),
    ("_init",),
    ("_stacked", "_chunks", "testing"),
    ("__init__",),
)
RANK = {name: rank for rank, group in enumerate(ORDER) for name in group}
# What a user's tests import has no business in the machinery above the jaxpr tools.
TESTING_MAY_IMPORT = {"_errors", "_compat", "_jaxpr", "_bits", "_testing"}


def top_module(file: Path) -> str:
    """The first name under `compilecut`: `_jaxpr` for `_jaxpr/walk.py`."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(tree: ast.AST, file: Path) -> Iterator[tuple[int, str]]:
    """Yields line and absolute dotted name of everything imported, relative imports resolved."""
    package = ("compilecut", *file.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*start, *filter(None, [node.module])))
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def upward_imports(tree: ast.AST, file: Path) -> list[str]:
    """Imports that point up or sideways."""
    here = top_module(file)
    found = []
    for line, name in imported_names(tree, file):
        parts = name.split(".")
        if parts[0] != "compilecut" or len(parts) < 2 or parts[1] == here:
            continue
        there = parts[1]
        if there not in RANK:  # a name such as `__version__`, read from the top: also upward
            there = "__init__"
        if RANK[there] >= RANK[here] or (here == "testing" and there not in TESTING_MAY_IMPORT):
            found.append(f"{file.name}:{line} {here} imports {name}")
    return found


def private_jax(tree: ast.AST, file: Path) -> list[str]:
    """Uses of non-public JAX or of its version, which belong in `_compat.py`."""
    names = [
        (line, name)
        for line, name in imported_names(tree, file)
        if name.startswith("jax._src") or name in ("jax.__version__", "jax.__version_info__")
    ]
    names += [
        (node.lineno, f"{node.value.id}.{node.attr}")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("jax", "jaxlib")
        and node.attr in ("_src", "__version__", "__version_info__")
    ]
    return [f"{file.name}:{line} {name}" for line, name in names]


def _is_primitive_name(node: ast.AST) -> bool:
    """Whether an expression reads `<something called primitive>.name`."""
    if not (isinstance(node, ast.Attribute) and node.attr == "name"):
        return False
    owner = node.value
    label = getattr(owner, "attr", None) or getattr(owner, "id", "")
    return label in ("primitive", "prim", "p") or label.endswith("_p")


def primitives_by_name(tree: ast.AST, file: Path) -> list[str]:
    """Comparisons and look-ups of a primitive's name; printing one in a message is fine."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                asked = [node.left, *node.comparators]
            case ast.Subscript():
                asked = [node.slice]
            case ast.Match():
                asked = [node.subject]
            case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
                asked = [key]
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith", value=value)):
                asked = [value]
            case _:
                continue
        found += [f"{file.name}:{node.lineno}" for each in asked if _is_primitive_name(each)]
    return found


CHECKS = (upward_imports, private_jax, primitives_by_name)


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_source_keeps_the_rules(file: Path):
    assert top_module(file) in RANK, f"{file} is a new module: give it a place in ORDER"
    tree = ast.parse(file.read_text())
    for check in CHECKS:
        if check is private_jax and file == PACKAGE / "_compat.py":
            continue
        assert check(tree, file) == [], check.__doc__


@pytest.mark.parametrize(
    ("check", "where", "snippet"),
    [
        (upward_imports, "_jaxpr/walk.py", "from .._stacked import stacked_init"),
        (upward_imports, "_jaxpr/walk.py", "from .. import _stacked"),
        (upward_imports, "_jaxpr/walk.py", "def f():\n    import compilecut._plan"),
        (upward_imports, "_stacked.py", "from . import _chunks"),
        (upward_imports, "_stacked.py", "from compilecut import stacked_init"),
        (upward_imports, "testing.py", "from ._init import plan"),
        (private_jax, "_plan.py", "from jax._src import core"),
        (private_jax, "_plan.py", "import jax._src.core as c"),
        (private_jax, "_plan.py", "import jax\njax._src.core"),
        (private_jax, "_plan.py", "import jax\nnew = jax.__version__ > '0.11'"),
        (primitives_by_name, "_plan.py", "eqn.primitive.name == 'add'"),
        (primitives_by_name, "_plan.py", "eqn.primitive.name in ('add', 'mul')"),
        (primitives_by_name, "_plan.py", "RULES[primitive.name]"),
        (primitives_by_name, "_plan.py", "RULES.get(scan_p.name)"),
        (primitives_by_name, "_plan.py", "match prim.name:\n    case 'add': pass"),
        (primitives_by_name, "_plan.py", "eqn.primitive.name.startswith('random_')"),
    ],
)
def test_each_check_can_fail(check, where: str, snippet: str):
    assert check(ast.parse(snippet), PACKAGE / where)


@pytest.mark.parametrize(
    ("check", "where", "snippet"),
    [
        (upward_imports, "_stacked.py", "from ._jaxpr import walk\nfrom ._errors import no_sites"),
        (upward_imports, "_jaxpr/walk.py", "from . import trace\nfrom .trace import to_jaxpr"),
        (private_jax, "_plan.py", "import jax\nfrom jax.extend import core"),
        (primitives_by_name, "_plan.py", "f'{eqn.primitive.name}'; eqn.primitive is add_p"),
    ],
)
def test_each_check_lets_good_code_pass(check, where: str, snippet: str):
    assert check(ast.parse(snippet), PACKAGE / where) == []


def test_import_is_light():
    """`import compilecut` starts no backend and loads no optional library."""
    program = """
        import sys
        import compilecut, jax
        optional = {"flax", "optax", "haiku", "matplotlib", "chex", "typer", "pytest"}
        assert not optional & set(sys.modules), optional & set(sys.modules)
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 3)  # an error once a backend is up
        assert jax.device_count() == 3
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)
