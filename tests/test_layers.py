"""No arrow runs back up: what each part of the library imports lies below it."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS: tuple[tuple[str, ...], ...] = (
    ("arr_coc.cli",),
    ("arr_coc.demo", "arr_coc.serving"),
    ("arr_coc.explaining", "arr_coc.extracting", "arr_coc.learning"),
    ("arr_coc.training", "arr_coc.publishing"),
    ("arr_coc.assembling",),
    ("arr_coc.evaluation",),
    ("arr_coc.attached",),
    ("arr_coc.data", "arr_coc.loading", "arr_coc.metrics", "arr_coc.model_summary", "arr_coc.viewing"),
    ("arr_coc.adapters", "arr_coc.auto_classes", "arr_coc.journal", "arr_coc.probes"),
    ("arr_coc.families", "arr_coc.files", "arr_coc.pages"),
    ("arr_coc.version", "arr_coc.modeling"),
)
"""From the top down; a part imports itself and parts of lower layers. Beside them is arr_coc itself, the user's
door: it may import any part of the library, and no part imports it."""

TRAVELS_WITH = {"torch", "transformers", "numpy", "PIL", "huggingface_hub", "safetensors"}
"""What modeling/ may import beside itself and the standard library: it runs where nothing else is installed. The last
two come with transformers, which cannot do without them."""


def layer_of(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def part_of(module: str) -> str:
    """The part that a module is in: "arr_coc.data.formats.base" is in "arr_coc.data"."""
    package, _, rest = module.partition(".")
    return f"arr_coc.{rest.partition('.')[0]}" if package == "arr_coc" and rest else package


def sources() -> dict[str, Path]:
    """Every module of the project by the name under which it is installed."""
    modules = {}
    for folder, package in {"arr_coc": "arr_coc", "modeling": "arr_coc.modeling"}.items():
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            modules[".".join((package, *(name for name in inside if name != "__init__")))] = path
    return modules


def imports(module: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Every module that a module's code names in an import, wherever the import is."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                for _ in range(node.level - 1):
                    package = package.rpartition(".")[0]
                base = f"{package}.{base}" if base else package
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in modules else base


MODULES = sources()


def goes_down(part: str, imported: str) -> bool:
    if part == "arr_coc":
        return imported != "arr_coc.cli"
    return part == imported or (imported != "arr_coc" and layer_of(imported) > layer_of(part))


def test_every_part_has_one_layer_and_no_arrow_runs_back_up() -> None:
    listed = [part for parts in LAYERS for part in parts]
    assert len(listed) == len(set(listed))
    assert set(listed) == {part_of(module) for module in MODULES} - {"arr_coc"}
    arrows = {
        (module, part_of(imported))
        for module, path in MODULES.items()
        for imported in imports(module, path, MODULES)
        if part_of(imported).partition(".")[0] == "arr_coc"
    }
    assert len(arrows) > 100
    wrong = [f"{module} imports {part}" for module, part in sorted(arrows) if not goes_down(part_of(module), part)]
    assert wrong == []


def test_class_names_are_unique_and_modeling_imports_in_no_loop() -> None:
    """Five classes were named `Reading`: a reader of one file could not tell which one it meant."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in MODULES.values()]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert len(names) > 300 and {name for name, count in names.items() if count > 1} == set()
    files = {name: path for name, path in MODULES.items() if name.startswith("arr_coc.modeling.")}
    graph = {name: {*imports(name, path, MODULES)} & files.keys() for name, path in files.items()}
    assert len(graph) < 39 and sum(map(len, graph.values())) > 100
    assert [*TopologicalSorter(graph).static_order()][-1] == "arr_coc.modeling.modeling_arr_coc"


@pytest.mark.parametrize(
    ("module", "code", "imported", "down"),
    [
        ("arr_coc.evaluation.suite", "def f():\n    from arr_coc.cli import main", "arr_coc.cli", False),
        ("arr_coc.evaluation.suite", "from ..training.cache import CachedEncoder", "arr_coc.training", False),
        ("arr_coc.publishing.building", "from .. import ArrCocModel", "arr_coc", False),
        ("arr_coc.publishing.building", "from .. import modeling", "arr_coc.modeling", True),
        ("arr_coc.data.collator", "import arr_coc.evaluation.strategies", "arr_coc.evaluation", False),
        ("arr_coc.data.formats.published", "from ..fields import shorten", "arr_coc.data", True),
        ("arr_coc.modeling.prompt", "from ..data import fields", "arr_coc.data", False),
    ],
)
def test_an_arrow_is_seen_in_every_form(module: str, code: str, imported: str, down: bool, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    (target,) = imports(module, path, MODULES)
    assert part_of(target) == imported and goes_down(part_of(module), imported) is down


@pytest.mark.parametrize("path", sorted((ROOT / "modeling").glob("*.py")), ids=lambda path: path.stem)
def test_what_travels_with_the_weights_needs_nothing_else(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1 and node.module and "." not in node.module, ast.unparse(node)
            continue
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        allowed = TRAVELS_WITH | sys.stdlib_module_names
        assert {name.partition(".")[0] for name in named} <= allowed, ast.unparse(node)
