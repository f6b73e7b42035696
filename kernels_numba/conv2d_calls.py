"""Calls of convolution layers on a GPU: workspaces, launches, and calls that are made again.

Checking arguments, choosing a plan and making its launches takes the host longer than the GPU takes for a small layer.
The second time the same kind of arrays comes with the same settings, :class:`Repeated` only reads the arrays' addresses
(a reader of their library says whether they are of the same kind) and launches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.conv2d_plan import Plan
from kernels_numba.conv2d_run import Launches, halves_at
from kernels_numba.conv2d_steps import WHOLE, Alignment

WHOLE_BYTES = 16
"""What arrays begin at multiples of, where `WHOLE` holds."""


@lru_cache(maxsize=256)
def launches(plan: Plan, aligned: Alignment, kept_x: bool, index: int) -> Launches:
    """The launches of a plan on GPU ``index``, made once."""
    return Launches(plan.steps(aligned, kept_x=kept_x), index)


def run_on_gpu(
    plan: Plan, arrays: dict[str, Any], y: Any, adapter: Adapter, index: int, kept: Any = None
) -> dict[str, Any]:
    """One pass of arrays on GPU ``index``; ``kept`` is the spectrum of x. The workspaces that it used."""
    addresses = {name: adapter_of(a, name).pointer(a) for name, a in arrays.items()}
    addresses["out"] = adapter_of(y, "out").pointer(y)
    # Workspaces come from the arrays' library, whose allocator knows the stream they are used on.
    spaces = {}
    for name, words in plan.words(plan.images).items():
        given = kept is not None and name == "B"
        spaces[name] = kept if given else adapter.empty(index, (words,), np.int32)
        addresses[name] = adapter_of(spaces[name], name).pointer(spaces[name])
    aligned = Alignment(*(halves_at(addresses.get(name, addresses["out"])) for name in ("x", "w", "dy")))
    launches(plan, aligned, kept is not None, index)(adapter.stream(index), addresses)
    return spaces


def is_whole(*arrays: Any) -> bool:
    """Whether all arrays begin where `WHOLE` says."""
    return all(adapter_of(a, "array").pointer(a) % WHOLE_BYTES == 0 for a in arrays)


class Repeated:
    """A pass that has run before, for arrays that begin at multiples of 16 bytes: ``call(a, b, out)``.

    ``a`` and ``b`` are the operands in the order of the pass's arguments. Returns None where it cannot: the arrays are
    of another kind than the first ones, or need an error.
    """

    def __init__(self, plan: Plan, arrays: dict[str, Any], y: Any, adapter: Adapter, index: int) -> None:
        self.adapter, self.index, self.shape = adapter, index, tuple(y.shape)
        self.readers = [adapter_of(a, name).reader(a) for name, a in arrays.items()]
        self.read_out = adapter_of(y, "out").reader(y)
        words = plan.words(plan.images)
        self.elements = sum(words.values()) * 4 // plan.element_bytes
        names = [*arrays, "out"]
        starts = {name: 0 for name in names}
        at = 0
        for name, count in words.items():  # all in one allocation, last in the list of addresses
            starts[name] = at
            at += 4 * count
        places = {name: names.index(name) if name in names else len(names) for name in starts}
        self.launches: list[tuple[Callable[..., None], tuple[tuple[int, int], ...]]] = [
            (start, tuple((places[name], starts[name] + offset) for name, offset in refs))
            for start, refs, _ in launches(plan, WHOLE, False, index).steps
        ]

    def __call__(self, a: Any, b: Any, out: Any) -> Any:
        """The pass, or None."""
        read_a, read_b = self.readers
        first, second = read_a(a), read_b(b)
        y = out
        if out is None and first and second:
            y = self.adapter.empty_of(a, self.shape)
        third = self.read_out(y) if y is not None else 0
        if not (first and second and third) or (first | second | third) % WHOLE_BYTES:
            return None
        space = self.adapter.empty_of(a, (self.elements,))
        addresses = (first, second, third, self.adapter.pointer(space))
        stream = self.adapter.stream(self.index)
        for start, places in self.launches:
            start(stream, *[addresses[i] + offset for i, offset in places])
        return y


class Direct:
    """As `Repeated`, a pass by the direct library: ``call(a, b, out)``."""

    def __init__(self, which: str, geometry: Any, arrays: dict[str, Any], y: Any, adapter: Any) -> None:
        self.which, self.geometry, self.names, self.adapter = which, geometry, tuple(arrays), adapter
        self.readers = [adapter.reader(a) for a in arrays.values()]
        self.read_out = adapter.reader(y)

    def __call__(self, a: Any, b: Any, out: Any) -> Any:
        """The pass, or None."""
        read_a, read_b = self.readers
        if not (read_a(a) and read_b(b) and (out is None or self.read_out(out))):
            return None
        result = self.adapter.conv2d(self.which, self.geometry, dict(zip(self.names, (a, b), strict=True)))
        return result if out is None else out.copy_(result)


_repeated: dict[tuple, Callable[[Any, Any, Any], Any]] = {}
MOST = 1024


def key_of(which: str, a: Any, b: Any, settings: tuple, out: Any) -> tuple | None:
    """What calls have in common that can be the same; None where the arguments are no arrays.

    Settings count by their text, which tells 1 from True and 1.0.
    """
    try:
        return which, type(a), type(b), type(out), a.shape, b.shape, a.dtype, repr(settings)
    except AttributeError:
        return None


def again(key: tuple | None, a: Any, b: Any, out: Any) -> Any:
    """The result of a call that was remembered, or None."""
    call = _repeated.get(key) if key is not None else None
    return None if call is None else call(a, b, out)


def remember(key: tuple | None, call: Callable[[Any, Any, Any], Any]) -> None:
    """Remember a call."""
    if key is None:
        return
    if len(_repeated) >= MOST:
        _repeated.clear()
    _repeated[key] = call
