"""Causal convolutions of sequences that come in chunks, or are long beside their filter; overlap-save on tiles.

:class:`FFTConvStream` has the meaning of ``reference.FFTConvStream``: whatever the chunks, the results together are the
causal convolution of the whole. It keeps the last samples of every sequence and no more; memory is of the order of the
filter. Long chunks go through overlapping windows (`windows.py`), read and written in place; the outputs that need
samples of earlier chunks come from one tile a sequence, which is put together first.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import windows
from kernels_numba.arrays import adapter_of
from kernels_numba.device import device
from kernels_numba.fftconv import FFTConv, HostCopyWarning
from kernels_numba.host_arrays import _aligned, _bits, _write
from kernels_numba.long_plans import TYPES
from kernels_numba.planes import DevicePlanes, HostPlanes
from kernels_numba.tile.layout import HALF_TYPES

ONE = {"fp16": 0x3C00, "bf16": 0x3F80}
"""The bits of 1."""
GATES = ("pregate", "postgate")


class FFTConvStream:
    """A causal convolution of sequences that arrive in chunks, fp16 or bf16.

    Args:
        k: the filter, ``[H, K]``, or ``[K]`` for all, of any real float type; K at most 12288.
        shape: the leading shape of the chunks, ``(B, H)``.
        dtype: of the sequences, "fp16" or "bf16".
        tile: N, one of `windows.TILES` and at least twice K; None for the one that costs least by measured times.

    One object serves one stream of work at a time: its state is in the memory of the GPU it is used on, and changes
    with every call. `state` waits for it and copies it to the host.

    Raises TypeError, ValueError: as `fftconv`; and for a tile or a filter that does not fit.
    """

    def __init__(
        self, k: Any, shape: tuple[int, ...], *, dtype: str = "fp16", tile: int | None = None
    ) -> None:
        if dtype not in TYPES:
            raise ValueError(f"dtype: streams take {' and '.join(TYPES)} sequences; got {dtype!r}")
        if len(shape) != 2 or not all(isinstance(n, (int, np.integer)) and n > 0 for n in shape):
            raise ValueError(f"shape: expected (B, H), two sizes of at least 1; got {shape!r}")
        self.shape = (int(shape[0]), int(shape[1]))
        self.taps = int(k.shape[-1])
        self.tile, self.lag = windows.tile_of(self.taps, tile), windows.lag_of(self.taps)
        self.new = self.tile - self.lag
        self.spectrum = windows.prepare_windows(k, tile=self.tile, dtype=dtype, channels=self.shape[1])
        if self.spectrum.channels != self.shape[1]:
            raise ValueError(f"k: {self.spectrum.channels} filters for {self.shape[1]} channels")
        self.dtype, self.rows = dtype, self.shape[0] * self.shape[1]
        self._head = FFTConv(self.spectrum, batch=self.shape[0])
        self._launches: dict[tuple, Any] = {}
        self._buffers: dict[str, Any] = {}
        self._place: int | None = None
        self._saved = np.zeros((*self.shape, self.taps - 1), HALF_TYPES[dtype])
        self._fresh = True

    @property
    def workspace(self) -> int:
        """Bytes beside input, output and spectrum, whatever L is: with both gates, the past and three tiles."""
        return 2 * self.rows * (2 * self.lag + 3 * self.tile)

    def describe(self) -> str:
        """The tile and why, in words."""
        cost = {n: windows.INNER_TIME[n] * n / (n - self.lag) for n in windows.tiles_of(self.taps)}
        others = ", ".join(f"{n}: {cost[n]:.2f}" for n in sorted(cost))
        return (
            f"Overlap-save of {self.taps} taps in tiles of {self.tile} samples, {self.new} of them new; picoseconds "
            f"for a sample by tile (by times measured on an H200): {others}. Workspace {self.workspace:,} bytes."
        )

    # ---- state ------------------------------------------------------------------------------------------------
    @property
    def state(self) -> NDArray[Any]:
        """A copy of the last ``K - 1`` samples, after the gate, ``[B, H, K - 1]``; zeros at the start."""
        if self._fresh:
            return self._saved.copy()
        past, gate = (self._host(name) for name in ("past", "past pregate"))
        product = (past.astype(np.float32) * gate.astype(np.float32)).astype(past.dtype)
        return product[..., self.lag - self.taps + 1 :].copy()

    def reset(self) -> None:
        """Start again, with zeros in the past."""
        self._saved[...] = 0
        self._fresh = True

    def restore(self, state: Any) -> None:
        """Continue from a `state` saved before, of this stream or of another of the same filter."""
        past = adapter_of(state, "state").host(state)
        if past.shape != self._saved.shape:
            raise ValueError(f"state: expected shape {self._saved.shape}; got {past.shape}")
        if past.dtype != self._saved.dtype:
            raise TypeError(
                f"state: expected {self._saved.dtype}; got {past.dtype}, which is not converted silently"
            )
        self._saved, self._fresh = past.copy(), True

    def _host(self, name: str) -> NDArray[Any]:
        planes = self._buffers[name]
        if isinstance(planes, HostPlanes):
            words = planes.words
        else:
            from kernels_numba.launch import synchronize

            synchronize(planes.keep.where.index)
            words = planes.keep.host()
        return words.view(HALF_TYPES[self.dtype]).reshape(*self.shape, -1)

    def _load_state(self) -> None:
        """What was saved or reset to, into the buffers."""
        past, pad = self._buffers["past"], self.lag - self.taps + 1
        past.fill(0, self.lag if not self._saved.any() else pad, 0)
        if self._saved.any():
            past.copy(pad, self._planes(self._saved), 0, self.taps - 1)
        self._buffers["past pregate"].fill(0, self.lag, ONE[self.dtype])
        self._fresh = False

    # ---- memory -----------------------------------------------------------------------------------------------
    def _planes(self, x: Any) -> Any:
        """Host values in the memory that is computed in."""
        words = _aligned(np.ascontiguousarray(x).reshape(-1).view(np.int16))
        width = words.size // self.rows
        if self._place is None:
            return HostPlanes(self.rows, width, words)
        from kernels_numba.launch import DeviceBuffer

        room = DeviceBuffer.of(words, self._place)
        return DevicePlanes(self.rows, width, room.pointer, self._stream, self._place, room)

    def _empty(self, width: int) -> Any:
        if self._place is None:
            return HostPlanes(self.rows, width, _aligned(np.zeros(self.rows * width, np.int16)))
        from kernels_numba.launch import DeviceBuffer

        room = DeviceBuffer(self._place, (self.rows, width), np.int16)
        return DevicePlanes(self.rows, width, room.pointer, self._stream, self._place, room)

    def _settle(self, place: int | None, stream: int) -> None:
        """Use the memory of one place from now on; what is kept moves there."""
        self._stream = stream
        if self._place != place or not self._buffers:
            if self._buffers and not self._fresh:
                self._saved, self._fresh = self.state, True
            self._place = place
            widths = {"past": self.lag, "past pregate": self.lag, "tile": self.tile}
            self._buffers = {name: self._empty(width) for name, width in widths.items()}
        for planes in self._buffers.values():
            planes.stream = stream
        if self._fresh:
            self._load_state()

    def _room(self, name: str) -> Any:
        if name not in self._buffers:
            self._buffers[name] = self._empty(self.tile)
        return self._buffers[name]

    # ---- running ----------------------------------------------------------------------------------------------
    def __call__(self, u: Any, *, pregate: Any = None, postgate: Any = None, out: Any = None) -> Any:
        """Convolve the next chunk, ``[B, H, any]``, gated or not; a chunk that is refused changes nothing."""
        adapter = adapter_of(u, "u")
        index = adapter.index(u)
        y = adapter.empty_like(u) if out is None else out
        given = {"u": u, "pregate": pregate, "postgate": postgate, "out": y}
        given = {name: x for name, x in given.items() if x is not None}
        for name, x in given.items():
            self._check(name, x, u, index)
        samples = int(u.shape[-1])
        if not samples:
            return y
        through_gpu = index is None and device().is_gpu
        if through_gpu:
            from kernels_numba.launch import device_index

            warnings.warn(
                "arrays in host memory are copied to the GPU and back", HostCopyWarning, stacklevel=2
            )
            index = device_index()
        self._settle(index, 0 if through_gpu or index is None else adapter.stream(index))
        if index is None or through_gpu:
            planes = {name: self._planes(_bits(x)) for name, x in given.items()}
        else:
            planes = {
                name: DevicePlanes(self.rows, samples, adapter_of(x, name).pointer(x), self._stream, index, x)
                for name, x in given.items()
            }
        self._run(planes, samples)
        if index is None or through_gpu:
            result = planes["out"]
            words = result.words if index is None else result.keep.host()
            _write(y, adapter_of(y, "out"), words.view(HALF_TYPES[self.dtype]))
        return y

    def _check(self, name: str, x: Any, u: Any, index: int | None) -> None:
        adapter = adapter_of(x, name)
        if len(x.shape) != 3 or tuple(x.shape) != (*self.shape, u.shape[-1]):
            raise ValueError(f"{name}: expected shape {(*self.shape, 'any')}, as u; got {tuple(x.shape)}")
        if adapter.dtype_name(x) != self.dtype:
            raise TypeError(
                f"{name}: expected {self.dtype}, got {adapter.dtype_name(x)}; convert it, nothing is converted silently"
            )
        if adapter.index(x) != index:
            raise ValueError(f"{name} and u are in different places; move them to one")
        if not adapter.contiguous(x):
            raise ValueError(f"{name}: expected a contiguous (row-major) array; copy it")
        if name == "out" and index is None and not adapter.host(x).flags.writeable:
            raise ValueError("out: the array is read-only; copy it, or leave out away for a new array")

    def _run(self, given: dict[str, Any], samples: int) -> None:
        """A chunk: the tile that needs the past, then windows over the rest."""
        first = samples if samples <= self.new else self.lag
        gated = "pregate" in given or self._gated
        names = ["u"] + [g for g in GATES if g in given or (g == "pregate" and gated)]
        for name in names:
            self._fill(name, given, first, samples)
        self._gated = "pregate" in given or (samples < self.lag and gated)
        self._tile(tuple(g in names for g in GATES))
        given["out"].copy(0, self._buffers["tile"], 0, first)
        if first < samples:
            self._windows(given, samples)

    _gated = False
    """Whether samples of the past have a gate."""

    def _fill(self, name: str, given: dict[str, Any], first: int, samples: int) -> None:
        """The tile of one array: its past, the first new samples, zeros; and the past moved on."""
        room = self._room("tile" if name == "u" else f"tile {name}")
        if name == "postgate":
            room.copy(0, given[name], 0, first)
            room.fill(first, self.tile - first, 0)
            return
        past = self._buffers["past" if name == "u" else "past pregate"]
        end, unused = self.lag + first, self.lag - self.taps + 1
        room.fill(
            0, unused, 0 if name == "u" else ONE[self.dtype]
        )  # nothing before what `state` holds is used
        room.copy(unused, past, unused, self.lag - unused)
        if name in given:
            room.copy(self.lag, given[name], 0, first)
        else:
            room.fill(self.lag, first, ONE[self.dtype])
        room.fill(end, self.tile - end, 0)
        if samples < self.lag:
            past.copy(0, room, samples, self.lag)
        elif name in given:
            past.copy(0, given[name], samples - self.lag, self.lag)
        else:
            past.fill(0, self.lag, ONE[self.dtype])

    def _tile(self, gates: tuple[bool, ...]) -> None:
        """Convolve the tiles, in place."""
        rooms = [self._buffers["tile"]] + [
            self._buffers[f"tile {g}"] if on else None for g, on in zip(GATES, gates, strict=True)
        ]
        if self._place is None:
            shape = (*self.shape, self.tile)
            x, before, after = (
                None if r is None else r.words.view(HALF_TYPES[self.dtype]).reshape(shape) for r in rooms
            )
            self._head.run_cpu(x, pregate=before, postgate=after, out=x)
            return
        launch = self._head._launch((self._place, 0, *gates, False))  # type: ignore[arg-type]
        x, before, after = (0 if r is None else r.pointer for r in rooms)
        launch(self._stream, x, before, after, x)

    def _windows(self, given: dict[str, Any], samples: int) -> None:
        """All but the first outputs of a long chunk, a batch element after the other."""
        rows = windows.Rows(self.shape[1], samples, self.tile, self.new)
        each = self.shape[1] * samples
        names = ("u", *GATES, "out")
        if self._place is None:
            from kernels_numba.tile.machine import Machine

            none = np.empty(0, np.int16)
            halves = next(v for v in (8, 4, 2, 1) if samples % v == 0)
            for b in range(self.shape[0]):
                u, before, after, y = (
                    given[n].words[b * each : (b + 1) * each] if n in given else none for n in names
                )
                windows.run_cpu(self.spectrum, rows, u, before, after, y, halves=halves, machine=Machine())
            return
        pointers = [given[n].pointer if n in given else 0 for n in names]
        low = 0
        for pointer in pointers:
            low |= pointer & 15
        halves = next(v for v in (8, 4, 2, 1) if samples % v == 0 and low % (2 * v) == 0)
        gates = ("pregate" in given, "postgate" in given)
        key = (samples, halves, gates, self._place)
        if key not in self._launches:
            self._launches[key] = windows.launcher(self.spectrum, rows, halves, gates, self._place)
        for b in range(self.shape[0]):
            self._launches[key](self._stream, *(p + 2 * b * each for p in pointers))


def partial_fftconv(
    u: Any,
    k: Any,
    *,
    tile: int | None = None,
    pregate: Any = None,
    postgate: Any = None,
    out: Any = None,
) -> Any:
    """Convolve ``u [B, H, L]`` with ``k [H, K]`` or ``[K]`` as ``fftconv(mode="causal")``, tile by tile.

    Beside input, output and the spectrum of one tile it takes `FFTConvStream.workspace` bytes, whatever L is. ``tile``
    is N, None for the one that costs least. To call often, keep a `FFTConvStream` and ``reset`` it. Errors are its own.
    """
    if len(u.shape) != 3:
        raise ValueError(f"u: expected sequences [B, H, L], got shape {tuple(u.shape)}")
    dtype = adapter_of(u, "u").dtype_name(u)
    stream = FFTConvStream(k, tuple(u.shape[:2]), dtype=dtype, tile=tile)
    return stream(u, pregate=pregate, postgate=postgate, out=out)
