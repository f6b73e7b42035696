"""The cache of machine code: nothing damaged, foreign or stale is ever run, and a kernel is compiled once."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_kernels

from kernels_numba import cache, launch
from kernels_numba.tile import compile as tile_compile

CODE, ENTRY = b"\x7fELF\n code with a\nline break \x00", "kernel_entry"


class Build:
    """A build function that counts its calls."""

    def __init__(self, code: bytes = CODE, entry: str = ENTRY) -> None:
        self.calls, self.result = 0, (code, entry)

    def __call__(self) -> tuple[bytes, str]:
        self.calls += 1
        return self.result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for this test alone."""
    where = tmp_path / "cache"
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(where))
    return where


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_built_once_then_read(folder: Path) -> None:
    build = Build()
    assert cache.fetch("key", build) == (CODE, ENTRY)
    assert cache.fetch("key", build) == (CODE, ENTRY)
    assert build.calls == 1
    assert len(entries(folder)) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_every_character_of_the_key_counts(folder: Path) -> None:
    keys = ["a|b", "a|c", "a|b ", "A|b", "", "a|b" * 1000]
    for number, key in enumerate(keys):
        assert cache.fetch(key, Build(code=bytes([number]))) == (bytes([number]), ENTRY)
    for number, key in enumerate(keys):
        unused = Build()
        assert cache.fetch(key, unused) == (bytes([number]), ENTRY)
        assert unused.calls == 0
    assert len(entries(folder)) == len(keys)


def test_what_is_on_disk_is_known(folder: Path) -> None:
    assert not cache.has("key")
    cache.fetch("key", Build())
    assert cache.has("key") and not cache.has("other")
    (entry,) = entries(folder)
    entry.write_bytes(flip(entry.read_bytes(), -2))
    assert not cache.has("key")


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "one bit of the code": lambda data: flip(data, len(data) - 1),
    "one digit of the hash": lambda data: data.replace(b'"sha256": "', b'"sha256": "0', 1),
    "code cut short": lambda data: data[:-1],
    "header alone": lambda data: data.split(b"\n", 1)[0],
    "half a header": lambda data: data[:10],
    "nothing": lambda data: b"",
    "something appended": lambda data: data + b"\x00",
    "not JSON": lambda data: b"{" + data,
    "not UTF-8": lambda data: b"\xff\xfe" + data,
    "a list": lambda data: b"[1, 2]\n" + data,
    "no hash": lambda data: json.dumps({"entry": ENTRY}).encode() + b"\n" + CODE,
    "no entry point": lambda data: data.replace(b'"entry"', b'"other"', 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_entry_is_rebuilt(folder: Path, damage: str) -> None:
    cache.fetch("key", Build())
    (path,) = entries(folder)
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    build = Build()
    assert cache.fetch("key", build) == (CODE, ENTRY)
    assert build.calls == 1
    assert path.read_bytes() == whole
    assert entries(folder) == [path]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o722])
def test_folder_that_others_can_write_is_refused(folder: Path, mode: int) -> None:
    cache.fetch("key", Build())
    folder.chmod(mode)
    build = Build()
    with pytest.raises(PermissionError, match=f"{mode:o}.*chmod 700.*{cache.FOLDER_VARIABLE}"):
        cache.fetch("key", build)
    with pytest.raises(PermissionError):
        cache.fetch("another key", build)
    assert build.calls == 0


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750])
def test_folder_that_others_can_only_read_is_used(folder: Path, mode: int) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(mode)
    assert cache.fetch("key", Build()) == (CODE, ENTRY)


@pytest.mark.skipif(os.name != "posix", reason="users of POSIX")
def test_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.fetch("key", Build())
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="can be written by others"):
        cache.fetch("key", Build())


def test_failed_build_leaves_nothing(folder: Path) -> None:
    def build() -> tuple[bytes, str]:
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        cache.fetch("key", build)
    assert entries(folder) == []


@pytest.mark.parametrize("interrupt", [OSError("disk full"), KeyboardInterrupt()])
def test_interrupted_write_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, interrupt: BaseException
) -> None:
    """An entry appears whole or not at all, and no half-written file stays behind."""

    def fail(source: Any, target: Any) -> None:
        assert not Path(target).exists()
        assert Path(source).read_bytes().endswith(CODE)
        raise interrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(type(interrupt)):
            cache.fetch("key", Build())
    assert entries(folder) == []
    assert cache.fetch("key", Build()) == (CODE, ENTRY)


def test_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "chosen"))
    assert cache.cache_folder() == tmp_path / "chosen"
    monkeypatch.delenv(cache.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "monarch-numba"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache.cache_folder() == tmp_path / ".cache" / "monarch-numba"


PROCESS = """
import sys, time
from pathlib import Path
from kernels_numba import cache
folder, start = Path(sys.argv[1]), float(sys.argv[2])
code = b"c" * 200000
def build():
    time.sleep(0.05)
    return code, "entry"
time.sleep(max(0, start - time.time()))
for key in range(8):
    assert cache.fetch(str(key), build, folder) == (code, "entry")
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    """Several processes want the same kernels at the same time: all get whole ones, nothing is left over."""
    import time

    start = time.time() + 1.0
    root = Path(__file__).parent.parent
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "cache"), str(start)]
    running = [subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE) for _ in range(4)]
    outcomes = [process.communicate(timeout=60)[1].decode() for process in running]
    assert outcomes == [""] * 4
    assert [process.returncode for process in running] == [0] * 4
    assert len(entries(tmp_path / "cache")) == 8


# ---- what the key of a kernel names --------------------------------------------------------------------------
@pytest.fixture
def compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What was compiled, in place of compiling it."""
    done: list[tuple] = []

    def compile_spec(family: Any, spec: Any, capability: tuple[int, int]) -> tile_compile.Cubin:
        done.append((family.min_blocks(spec), spec, capability))
        return tile_compile.Cubin(repr(done[-1]).encode(), "entry", capability)

    monkeypatch.setattr(launch, "compile_spec", compile_spec)
    return done


def test_a_kernel_is_compiled_once(compiled: list[tuple]) -> None:
    spec = tiny_kernels.KERNELS["multiply"]
    first = launch.machine_code(tiny_kernels, spec, (9, 0))
    assert launch.machine_code(tiny_kernels, spec, (9, 0)) == first
    assert launch.machine_code(tiny_kernels, replace(spec), (9, 0)) == first
    assert len(compiled) == 1


@pytest.mark.parametrize(
    "change", ["dtype", "warps", "family", "capability", "min_blocks", "source", "toolchain"], ids=str
)
def test_whatever_changes_the_code_changes_the_key(
    compiled: list[tuple], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    spec, capability = tiny_kernels.KERNELS["multiply"], (9, 0)
    launch.machine_code(tiny_kernels, spec, capability)
    if change == "dtype":
        spec = replace(spec, dtype="bf16")
    elif change == "warps":
        spec = replace(spec, warps=2)
    elif change == "capability":
        capability = (10, 0)
    elif change == "family":
        monkeypatch.setattr(tiny_kernels, "__name__", "another_family")
    elif change == "min_blocks":
        monkeypatch.setattr(tiny_kernels, "min_blocks", lambda spec: 2)
    elif change == "source":
        monkeypatch.setattr(launch, "_source_digest", lambda: "another")
    else:
        monkeypatch.setattr(tile_compile, "toolchain", lambda: "numba-cuda=0.31")
    launch.machine_code(tiny_kernels, spec, capability)
    assert len(compiled) == 2


def test_the_source_digest_reads_every_module() -> None:
    """Operations, constants and kernels: a change of any of them must not find old code."""
    from hashlib import sha256

    package = Path(launch.__file__).parent
    paths = [path for path in package.rglob("*.py")]
    assert {package / "launch.py", package / "tile" / "gpu.py"} <= set(paths)
    ordered = sorted([*package.glob("*.py"), *package.glob("tile/*.py")])
    assert sorted(paths) == sorted(ordered)
    assert launch._source_digest() == sha256(b"".join(path.read_bytes() for path in ordered)).hexdigest()


def test_the_toolchain_names_what_generates_code() -> None:
    found = dict(part.split("=") for part in tile_compile.toolchain().split())
    assert {"numba-cuda", "numba", "llvmlite"} <= set(found)
