"""The project itself: what may import what, what is shipped, and that the documents tell the truth."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("monarch", "reference", "kernels_numba", "costmodel")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()

# Files that a package may ship besides its modules.
DATA_FILES = (
    "costmodel/calibrated/*.toml",
    "costmodel/gpus/*.toml",
    "costmodel/hardware_counters/*.csv",
    "costmodel/measurements/*/*.csv",
    "costmodel/models.toml",
    "costmodel/published/*.csv",
    "costmodel/report.html",
    "costmodel/training_runs/*/*.csv",
    "costmodel/training_runs/*/*.json",
    "kernels_numba/dispatch/*/*.json",
    "kernels_numba/resources*.csv",
    *(f"{package}/py.typed" for package in PACKAGES),
)


def modules(*folders: str) -> list[Path]:
    """All Python files below the folders, as paths relative to the root."""
    found = [path.relative_to(ROOT) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if "__pycache__" not in path.parts]


def imports(source: str, package: str) -> Iterator[tuple[str, bool]]:
    """(dotted name, at module level) of everything that the source imports.

    ``from a.b import c`` gives both ``a.b`` and ``a.b.c``, because ``c`` may be a module. Relative imports
    are resolved against ``package``, the dotted name of the package that holds the module. What a module
    imports under ``if TYPE_CHECKING`` is never executed, so it does not count.
    """

    def walk(node: ast.AST, top: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parents = package.split(".")
                    kept = parents[: len(parents) - child.level + 1]
                    base = ".".join([*kept, base]).rstrip(".")
                yield base, top
                yield from ((f"{base}.{alias.name}", top) for alias in child.names)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    yield from walk(ast.Module(body=[other], type_ignores=[]), top)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, top and not inside)

    return walk(ast.parse(source), True)


def imports_of(path: Path) -> set[tuple[str, bool]]:
    return set(imports((ROOT / path).read_text(), ".".join(path.parts[:-1])))


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_import_reader_sees_every_form() -> None:
    source = """
from typing import TYPE_CHECKING
import numba.cuda as c
from numba import cuda
if TYPE_CHECKING:
    import hidden
else:
    import shown
try:
    import guarded
except ImportError:
    pass
def f():
    from . import sibling
    from ..up import thing
class C:
    import inclass
"""
    found = set(imports(source, "room.inner"))
    expected = {("numba.cuda", True), ("shown", True), ("guarded", True), ("inclass", True)}
    assert expected <= found
    assert {("room.inner.sibling", False), ("room.up", False), ("room.up.thing", False)} <= found
    assert not any(within(name, "hidden") for name, _ in found)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_modules(package: str) -> None:
    assert Path(package) / "__init__.py" in modules(package)


def test_only_the_tile_layer_imports_numba_cuda() -> None:
    offenders = [
        str(path)
        for path in modules(*PACKAGES, "notebooks")
        if path.parts[:2] != ("kernels_numba", "tile")
        and any(within(name, "numba.cuda") for name, _ in imports_of(path))
    ]
    assert not offenders


def test_only_measurement_imports_reference() -> None:
    offenders = [
        str(path)
        for path in modules("monarch", "kernels_numba", "costmodel")
        if any(within(name, "reference") for name, _ in imports_of(path))
        and not (path.parts[0] == "costmodel" and "measure" in path.name)
        and not is_torch(path)
    ]
    assert not offenders


def is_torch(path: Path) -> bool:
    """`monarch.torch` is where PyTorch's users come in: the one place of `monarch` that knows who computes."""
    return path.parts[:2] == ("monarch", "torch")


# For each package: what its modules may import when they are loaded, and what only inside a function.
LAYERS = {
    "monarch": ({"numpy"}, {"costmodel"}),
    "monarch/torch": ({"numpy", "torch", "monarch"}, {"kernels_numba", "reference"}),
    "reference": ({"numpy", "monarch"}, {"ml_dtypes"}),
    "costmodel": (
        {"numpy", "sympy", "monarch"},
        {"reference", "kernels_numba", "rich", "matplotlib", "torch", "cupy", "ml_dtypes"},
    ),
}


def outside_layer(package: str, found: Iterable[tuple[str, bool]]) -> list[str]:
    """What a module of the package imports and must not."""
    at_load, inside = LAYERS[package]
    free = {*sys.stdlib_module_names, package, *at_load}
    rooted = [(name, name.partition(".")[0], top) for name, top in sorted(set(found))]
    return [name for name, root, top in rooted if root not in free and (top or root not in inside)]


def test_layers_reject() -> None:
    assert outside_layer("monarch", [("numpy.fft", True), ("costmodel", False)]) == []
    assert outside_layer("monarch", [("costmodel", True), ("scipy", False)]) == ["costmodel", "scipy"]
    assert outside_layer("costmodel", [("rich.table", True), ("rich", False)]) == ["rich.table"]


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_layer(package: str) -> None:
    paths = [path for path in modules(package) if package != "monarch" or not is_torch(path)]
    assert paths
    offenders = {str(path): outside_layer(package, imports_of(path)) for path in paths}
    assert {path: names for path, names in offenders.items() if names} == {}


def test_kernels_know_neither_the_judge_nor_the_model() -> None:
    offenders = [
        f"{path}: {name}"
        for path in modules("kernels_numba")
        for name, _ in imports_of(path)
        if within(name, "costmodel") or within(name, "reference")
    ]
    assert not offenders


BLOCKED = """
import sys
ALLOWED = {"numpy", "sympy", "mpmath", "gmpy2", "flint", "monarch", "costmodel"}
class Block:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        # Names such as _virtualenv are hooks of the interpreter's own start-up.
        if root in ALLOWED or root in sys.stdlib_module_names or root.startswith("_"):
            return None
        raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
"""


def run_python(code: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_costmodel_imports_with_numpy_and_sympy_alone() -> None:
    result = run_python(BLOCKED + "import costmodel; print(costmodel.__name__)", cwd=ROOT)
    assert (result.returncode, result.stdout.strip()) == (0, "costmodel"), result.stderr


def test_import_blocker_blocks() -> None:
    result = run_python(BLOCKED + "import rich", cwd=ROOT)
    assert result.returncode == 1
    assert "blocked: rich" in result.stderr


@pytest.mark.parametrize(
    ("package", "limit"), [(name, 150 if name == "reference" else 450) for name in PACKAGES]
)
def test_modules_are_short(package: str, limit: int) -> None:
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in modules(package)}
    assert {path: lines for path, lines in lengths.items() if lines >= limit} == {}


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_tracked_file_is_large() -> None:
    sizes = {name: (ROOT / name).stat().st_size for name in tracked_files()}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > 2 * 2**20} == {}


def test_no_built_file_is_tracked() -> None:
    built = re.compile(r"(^|/)(\.venv|build|dist|__pycache__|\.hypothesis)/|\.(pyc|cubin|whl)$")
    assert [name for name in tracked_files() if built.search(name)] == []


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constraint_lines() -> list[str]:
    return (ROOT / "constraints.txt").read_text().splitlines()


def test_constraints_are_plain_pins() -> None:
    pin = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*==\d+(\.\d+)*([a-z]+\d+)?(\.post\d+)?")
    assert [line for line in constraint_lines() if not pin.fullmatch(line)] == []
    names = [line.partition("==")[0] for line in constraint_lines()]
    assert names == sorted(set(names))


def test_constraints_pin_every_direct_dependency() -> None:
    pinned = {line.partition("==")[0] for line in constraint_lines()}
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["gpu"], *extras["plot"], *extras["notebooks"], *extras["dev"]]
    names = {normalised(re.split(r"[^A-Za-z0-9._-]", entry)[0]) for entry in wanted}
    assert names - {"monarch-numba"} - pinned == set()


def test_numpy_stays_below_2_5() -> None:
    """The kernels' compiler breaks on NumPy 2.5, so the pin and the range must both keep it out."""
    pin = next(line for line in constraint_lines() if line.startswith("numpy=="))
    version = tuple(int(part) for part in pin.partition("==")[2].split(".")[:2])
    assert version < (2, 5)
    assert any(entry.startswith("numpy") and entry.endswith("<2.5") for entry in PROJECT["dependencies"])


def test_versions_agree() -> None:
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest.group(1) == PROJECT["version"]


def test_distribution_cannot_be_uploaded() -> None:
    """PyTorch's torchmonarch also imports as `monarch`, so this one stays off package indexes."""
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_documented_make_targets_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    named = set(re.findall(r"^(?:\$ )?make ([a-z-]+)", text, re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z-]+)`", text))
    assert named
    assert named <= make_targets()


def test_make_targets_are_phony() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None and set(phony.group(1).split()) == make_targets()


def test_ci_runs_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert "make test" in script.read_text().splitlines()
    if sys.platform != "win32":
        assert script.stat().st_mode & 0o111


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def readme_commands() -> list[str]:
    return [
        line.removeprefix("$ python ")
        for block in code_blocks("console")
        for line in block.splitlines()
        if line.startswith("$ python -m costmodel ")
    ]


@pytest.mark.parametrize("command", readme_commands())
def test_readme_command_is_understood(command: str) -> None:
    """The command line knows the subcommand and every option that the README shows."""
    words = command.split()
    subcommand = words[2]
    result = subprocess.run(
        [sys.executable, *words[:3], "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, f"{subcommand}: {result.stderr}"
    for option in (word for word in words if word.startswith("-") and word != "-m"):
        assert re.search(rf"(?<![\w-]){re.escape(option)}\b", result.stdout), option


@pytest.mark.parametrize("number", range(len(code_blocks("python"))))
def test_readme_example_runs(number: int, tmp_path: Path) -> None:
    example = code_blocks("python")[number]
    # On a GPU machine the kernels note that NumPy arrays are copied there and back; that note is wanted.
    start = (
        f"import sys, warnings; sys.path.insert(0, {str(ROOT)!r}); warnings.simplefilter('error'); "
        "from kernels_numba import HostCopyWarning; warnings.simplefilter('ignore', HostCopyWarning)\n"
    )
    result = run_python(start + example, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the tools of this environment (no download)."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.xdist_group("wheel")
def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert wheel.name == f"monarch_numba-{PROJECT['version']}-py3-none-any.whl"
    code = {path.as_posix() for path in modules(*PACKAGES)}
    data = {path.relative_to(ROOT).as_posix() for pattern in DATA_FILES for path in ROOT.glob(pattern)}
    assert names == code | data
    assert any(name.startswith("costmodel/gpus/") for name in names)


USE_WHEEL = """
import importlib, pathlib, sys
home = pathlib.Path({home!r})
sys.path.insert(0, str(home))
for name in {packages!r}:
    module = importlib.import_module(name)
    assert home in pathlib.Path(module.__file__).parents, module.__file__
from costmodel.cli import main
sys.exit(main(["gpus"]))
"""


@pytest.mark.xdist_group("wheel")
def test_wheel_works_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(home), str(wheel)], check=True, timeout=120)
    result = run_python(USE_WHEEL.format(home=str(home), packages=PACKAGES), cwd=elsewhere)
    assert result.returncode == 0, result.stderr
    assert "h200-sxm" in result.stdout  # a data file that the wheel brought along
