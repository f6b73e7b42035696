"""Calls of convolution layers on a GPU: workspaces, launches, and calls that are made again.

Checking arguments, choosing a plan and making its launches takes the host longer than the GPU takes for a small layer.
The second time the same kind of arrays comes with the same settings, :class:`Repeated` only reads the arrays' addresses
(a reader of their library says whether they are of the same kind) and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.conv2d_plan import Kept, Plan
from kernels_numba.conv2d_run import Launches, halves_at
from kernels_numba.conv2d_steps import WHOLE, Alignment

WHOLE_BYTES = 16
"""What arrays begin at multiples of, where `WHOLE` holds."""


Spectra = dict[str, Any]
"""Spectra by operand ("x", "w", "dy"): those that are there already, or those that a pass hands out."""


@lru_cache(maxsize=256)
def launches(plan: Plan, aligned: Alignment, kept: Kept, index: int) -> Launches:
    """The launches of a plan on GPU ``index``, made once."""
    return Launches(plan.steps(aligned, kept), index)


def run_on_gpu(
    plan: Plan, arrays: dict[str, Any], y: Any, adapter: Adapter, index: int, given: Spectra
) -> Spectra:
    """One pass of arrays on GPU ``index``; ``given`` are spectra that are there already. Those of both operands."""
    addresses = {name: adapter_of(a, name).pointer(a) for name, a in arrays.items()}
    addresses["out"] = adapter_of(y, "out").pointer(y)
    # Workspaces come from the arrays' library, whose allocator knows the stream they are used on.
    spaces = {name: given[operand] for operand, name in plan.workspaces.items() if operand in given}
    for name, words in plan.words(plan.images).items():
        if name not in spaces:
            spaces[name] = adapter.empty(index, (words,), np.int32)
        addresses[name] = adapter_of(spaces[name], name).pointer(spaces[name])
    aligned = Alignment(*(halves_at(addresses.get(name, addresses["out"])) for name in ("x", "w", "dy")))
    launches(plan, aligned, frozenset(given), index)(adapter.stream(index), addresses)
    return {operand: spaces[name] for operand, name in plan.workspaces.items()}


def is_whole(*arrays: Any) -> bool:
    """Whether all arrays begin where `WHOLE` says."""
    return all(adapter_of(a, "array").pointer(a) % WHOLE_BYTES == 0 for a in arrays)


class Repeated:
    """A pass that has run before, for arrays that begin at multiples of 16 bytes: ``call(a, b, out, spectra)``.

    ``a`` and ``b`` are the operands in the order of the pass's arguments, ``spectra`` those that were ``given`` to the
    first call; those named in ``handed_out`` are put there, each in an array of its own. Returns None where it cannot:
    the arrays are of another kind than the first ones, or need an error.
    """

    def __init__(
        self,
        plan: Plan,
        arrays: dict[str, Any],
        y: Any,
        adapter: Adapter,
        index: int,
        given: Iterable[str] = (),
        handed_out: Iterable[str] = (),
    ) -> None:
        self.plan, self.adapter, self.index, self.shape = plan, adapter, index, tuple(y.shape)
        self.readers = [adapter_of(a, name).reader(a) for name, a in arrays.items()]
        self.read_out = adapter_of(y, "out").reader(y)
        words, where = plan.words(plan.images), plan.workspaces
        self.given = tuple(given)
        self.handed_out = {name: self._elements(words[where[name]]) for name in handed_out}
        apart = [where[name] for name in (*self.given, *self.handed_out)]
        names = [*arrays, "out", *apart]
        places, starts = {name: i for i, name in enumerate(names)}, dict.fromkeys(names, 0)
        at = 0
        for name, count in words.items():  # all others in one allocation, last in the list of addresses
            if name not in apart:
                places[name], starts[name] = len(names), at
                at += 4 * count
        self.elements = self._elements(at // 4)
        self.launches: list[tuple[Callable[..., None], tuple[tuple[int, int], ...]]] = [
            (start, tuple((places[name], starts[name] + offset) for name, offset in refs))
            for start, refs, _ in launches(plan, WHOLE, frozenset(self.given), index).steps
        ]

    def _elements(self, words: int) -> int:
        return words * 4 // self.plan.element_bytes

    def __call__(self, a: Any, b: Any, out: Any, spectra: Spectra) -> Any:
        """The pass, or None."""
        read_a, read_b = self.readers
        first, second = read_a(a), read_b(b)
        y = out
        if out is None and first and second:
            y = self.adapter.empty_of(a, self.shape)
        third = self.read_out(y) if y is not None else 0
        if not (first and second and third) or (first | second | third) % WHOLE_BYTES:
            return None
        for name, elements in self.handed_out.items():
            spectra[name] = self.adapter.empty_of(a, (elements,))
        apart = [self.adapter.pointer(spectra[name]) for name in (*self.given, *self.handed_out)]
        space = self.adapter.empty_of(a, (self.elements,))
        addresses = (first, second, third, *apart, self.adapter.pointer(space))
        stream = self.adapter.stream(self.index)
        for start, places in self.launches:
            start(stream, *[addresses[i] + offset for i, offset in places])
        return y


class Direct:
    """As `Repeated`, a pass by the direct library."""

    def __init__(self, which: str, geometry: Any, arrays: dict[str, Any], y: Any, adapter: Any) -> None:
        self.which, self.geometry, self.names, self.adapter = which, geometry, tuple(arrays), adapter
        self.readers = [adapter.reader(a) for a in arrays.values()]
        self.read_out = adapter.reader(y)

    def __call__(self, a: Any, b: Any, out: Any, spectra: Spectra) -> Any:
        """The pass, or None."""
        read_a, read_b = self.readers
        if not (read_a(a) and read_b(b) and (out is None or self.read_out(out))):
            return None
        result = self.adapter.conv2d(self.which, self.geometry, dict(zip(self.names, (a, b), strict=True)))
        return result if out is None else out.copy_(result)


class RepeatedGradients:
    """Both gradients that have run before: ``call(dy, (x, w), (dx, dw), spectra)``."""

    def __init__(self, first: Repeated, second: Repeated) -> None:
        self.first, self.second = first, second

    def __call__(self, dy: Any, operands: tuple[Any, Any], out: tuple[Any, Any], spectra: Spectra) -> Any:
        """Both, or None."""
        x, w = operands
        dx = self.first(dy, w, out[0], spectra)
        dw = None if dx is None else self.second(x, dy, out[1], spectra)
        return None if dw is None else (dx, dw)


_repeated: dict[tuple, Callable[..., Any]] = {}
MOST = 1024


def key_of(which: str, a: Any, b: Any, settings: tuple, out: Any, kept: Any = None) -> tuple | None:
    """What calls have in common that can be the same; None where the arguments are no arrays.

    Settings count by their text, which tells 1 from True and 1.0; ``kept`` is what is known of the spectra kept.
    """
    try:
        return which, type(a), type(b), type(out), a.shape, b.shape, a.dtype, repr(settings), kept
    except AttributeError:
        return None


def remembered(key: tuple | None) -> Any:
    """A call that was remembered, or None."""
    return _repeated.get(key) if key is not None else None


def remember(key: tuple | None, call: Callable[..., Any]) -> None:
    """Remember a call."""
    if key is None:
        return
    if len(_repeated) >= MOST:
        _repeated.clear()
    _repeated[key] = call
