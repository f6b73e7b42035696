"""Machine code on disk: compile a kernel once per machine, not once per process.

One file per kernel: a line of JSON (entry point, SHA-256 of the code) and the code. The folder must belong to
the user and be closed to everyone else, because what lies in it is executed; an entry whose hash does not
match is rebuilt. Files are written under another name and moved into place, so a reader sees all of one or
nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER_VARIABLE = "MONARCH_NUMBA_CACHE"


def cache_folder() -> Path:
    """The folder of compiled kernels: ``$MONARCH_NUMBA_CACHE``, else ``$XDG_CACHE_HOME/monarch-numba``."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monarch-numba"


def _open_folder(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix":
        found = folder.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise PermissionError(
                f"the kernel cache {folder} can be written by others than you (owner {found.st_uid}, mode "
                f"{stat.S_IMODE(found.st_mode):o}); `chmod 700` it, or name another folder in "
                f"{FOLDER_VARIABLE}"
            )
    return folder


def has(key: str, folder: Path | None = None) -> bool:
    """Whether the code for ``key`` is on disk, whole."""
    return _read(_path(key, folder or cache_folder())) is not None


def _path(key: str, folder: Path) -> Path:
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"


def fetch(key: str, build: Callable[[], tuple[bytes, str]], folder: Path | None = None) -> tuple[bytes, str]:
    """Code and entry point for ``key``, from disk or from ``build()`` (and then onto disk).

    ``key`` must name everything the code depends on. Raises ``PermissionError`` when the folder is open to
    others.
    """
    where = _open_folder(folder or cache_folder())
    path = _path(key, where)
    found = _read(path)
    if found is not None:
        return found
    code, entry = build()
    header = json.dumps({"entry": entry, "sha256": hashlib.sha256(code).hexdigest()}).encode()
    handle, temporary = tempfile.mkstemp(dir=where, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(header + b"\n" + code)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return code, entry


def _read(path: Path) -> tuple[bytes, str] | None:
    """An entry that is there, whole and unchanged."""
    try:
        header, code = path.read_bytes().split(b"\n", 1)
        meta = json.loads(header)
        if meta["sha256"] == hashlib.sha256(code).hexdigest():
            return code, meta["entry"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    return None
