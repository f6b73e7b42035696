"""Convolution of many sequences with one filter per channel, fused into one kernel launch.

:func:`fftconv` has the meaning of ``reference.fftconv``: for u [B, H, L] in fp16, bf16 or fp32,
``y = postgate * ((u * pregate) conv k)``, circular, causal or two-sided. For fp16 and bf16 products are of
half-precision operands with float32 accumulation, and results are rounded to half precision at every stage;
``reference.fftconv_bound`` says how far that is from exact. For fp32 all arithmetic is fp32, to
``reference.fft32_bound``.

Magnitudes in half precision: transforms are unitary, so an intermediate value is at most sqrt(N) times the
largest input. In fp16 inputs below 2000 can therefore never overflow at N = 1024, and ordinary (noise-like) data
never come near. The spectrum of the filter is divided by a power of two per channel, so that filters of any size are
representable.

For speed, prepare once and call often::

    spectrum = prepare_filter(k, length=L, mode="causal", dtype="fp16")
    convolve = FFTConv(spectrum, batch=B)
    y = convolve(u)                    # a few microseconds on the host, on the caller's current stream
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from kernels_numba import warp_filter
from kernels_numba.arrays import Adapter, adapter_of, check_contiguous, check_place
from kernels_numba.call_filter import Untransformed, prepare_for_call
from kernels_numba.device import Device, device
from kernels_numba.families import FLOAT_TYPES, family_of, fitted, sequences_together
from kernels_numba.host_arrays import _write
from kernels_numba.spectrum import Spectrum
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import COMPLEX_TYPES, ELEMENT_TYPES, HALF_TYPES
from monarch import Plan

MAX_ITEMS, CPU_BLOCKS, KEPT_CONSTANTS = 2**31 - 1, 2, 32


class HostCopyWarning(UserWarning):
    """Arrays in host memory were copied to the GPU and back."""


def fftconv(
    u: Any,
    k: Any,
    *,
    mode: str = "circular",
    pregate: Any = None,
    postgate: Any = None,
    plan: Plan | None = None,
    products: str | None = None,
    tile: int | str | None = "auto",
    out: Any = None,
) -> Any:
    """Convolve every sequence of ``u`` with its channel's filter: ``y = postgate * ((u * pregate) conv k)``.

    Args:
        u: input [B, H, L] (or [H, L]), fp16, bf16, fp32, complex64 or complex32 (PyTorch's, of two fp16; in NumPy
            records of "real" and "imag"), contiguous; NumPy, PyTorch, CuPy or Numba.
        k: filter [H, K] (or [K] for all channels) of any real float type, or complex for complex sequences. Where
            kernels run on a GPU it is transformed there, in fp32 (fp64 taps are rounded first), for fp32 sequences in
            fp64; else by NumPy in float64. The spectrum is rounded to the type of the products. Or a
            :class:`Spectrum` from :func:`prepare_filter`, which costs nothing here.
        mode: "circular" (any L; K <= L), "causal" (output n uses inputs up to n) or "two-sided" (tap (K - 1) // 2
            is lag 0). The transform is the shortest that a kernel has: L itself or 2 L - 1 points for circular,
            else what `monarch.convolution_length` says, at most 2^24.
        pregate: gate on the input, shaped and typed as ``u``.
        postgate: gate on the output, shaped and typed as ``u``.
        plan: a plan of `kernels_numba.families`; by default the one measured fastest.
        products: "fp16" or "bf16" for fp32 and complex64 sequences whose products are of halves: inputs are rounded to
            that type, and results are of its accuracy, stored as fp32. "fp32" for fp16 and bf16 sequences too long for
            one kernel: everything between input and output is fp32. By default the type of the sequences.
        tile: causal convolutions with a short filter can be done in tiles of so many samples (`partial_fftconv`); None
            for the whole at once. "auto": what `partial_choice.choose_tile` says, which also says why.
        out: where to put the result, shaped and typed as ``u`` (``u`` itself is allowed).

    Returns:
        y [B, H, L], an array of the same kind as ``u``.

    Raises:
        TypeError: an argument is not an array, or its dtype is not accepted (nothing is converted silently).
        ValueError: a shape, length, mode, device or memory layout is not accepted.
        LaunchError: the GPU refused the kernel, or an earlier kernel failed.
    """
    adapter = adapter_of(u, "u")
    dtype = _dtype_of(u, adapter, "u")
    batch, channels, length = _shape_of(u)
    if isinstance(k, Spectrum):
        if plan is not None and plan.with_(signal=None, wanted=None) != k.plan.with_(
            signal=None, wanted=None
        ):
            raise ValueError(
                f"plan: the spectrum was prepared for {k.plan}, not {plan}; prepare it with this plan"
            )
        if mode not in ("circular", k.mode):
            raise ValueError(
                f"mode: the spectrum was prepared for {k.mode}, not {mode}; prepare it with this mode"
            )
        if products not in (None, k.products):
            raise ValueError(
                f"products: the spectrum was prepared for {k.products}, not {products}; prepare it with these products"
            )
        spectrum = k
    else:
        tiled = _tile_of(u, k, mode, dtype, tile) if plan is None and products in (None, dtype) else None
        if tiled is not None:
            from kernels_numba.stream import partial_fftconv

            return partial_fftconv(u, k, tile=tiled, pregate=pregate, postgate=postgate, out=out)
        spectrum = prepare_for_call(
            k, length=length, mode=mode, dtype=dtype, plan=plan, channels=channels, products=products
        )
    convolve = FFTConv(spectrum, batch=batch)
    return convolve(u, pregate=pregate, postgate=postgate, out=out)


class FFTConv:
    """A convolution prepared for one filter, batch size and length; calling it launches one kernel.

    Args:
        spectrum: the filter, from :func:`prepare_filter`.
        batch: B.
        workspace: bytes that a long transform may allocate for its intermediate, by default 512 MiB; one that fits on
            chip needs none.

    A call checks its arrays, allocates the output unless ``out`` is given, and nothing else. On a GPU it runs
    on the caller's current stream and can be captured in a CUDA graph (after one call outside, which
    compiles).
    """

    def __new__(cls, spectrum: Spectrum, *, batch: int, workspace: int | None = None) -> FFTConv:
        """For a spectrum of a long plan a `long_conv.LongFFTConv`, which is one."""
        if cls is FFTConv and getattr(spectrum, "outer", False):
            from kernels_numba.long_conv import LongFFTConv

            cls = LongFFTConv
        return object.__new__(cls)

    def __init__(self, spectrum: Spectrum, *, batch: int, workspace: int | None = None) -> None:
        self._prepare(spectrum, batch)
        self.family = family_of(spectrum.plan, spectrum.products)

    def _prepare(self, spectrum: Spectrum, batch: int) -> None:
        """Check the arguments; what all convolutions know."""
        if not isinstance(spectrum, Spectrum):
            raise TypeError(
                f"spectrum: expected what prepare_filter makes, got {type(spectrum).__name__}; "
                "FFTConv(prepare_filter(k, length=L), batch=B)"
            )
        if not isinstance(batch, (int, np.integer)) or batch < 1:
            raise ValueError(f"batch: expected a whole number of sequences, at least one; got {batch!r}")
        self.spectrum = spectrum
        self.scaled = spectrum.scaled
        self.shape = (batch, spectrum.channels, spectrum.length)
        self.complex = spectrum.dtype in COMPLEX_TYPES
        # What a kernel is told of a complex sequence: as many real numbers, two neighbours each.
        self._scalars = (batch, spectrum.channels, spectrum.length * (2 if self.complex else 1))
        self.together = sequences_together(spectrum.plan, spectrum.products)
        self.pairs = -(-batch // self.together)
        self.items = self.pairs * spectrum.channels
        if self.items > MAX_ITEMS:
            raise ValueError(f"u: {self.items} pairs of sequences are more than {MAX_ITEMS}; split the batch")
        self._launches: dict[tuple, Callable[..., None]] = {}
        self._known: dict[type, tuple[Callable[[Any], int], Adapter, int | None]] = {}

    def __call__(self, u: Any, *, pregate: Any = None, postgate: Any = None, out: Any = None) -> Any:
        """Convolve ``u`` [B, H, L]; see :func:`fftconv`."""
        kind = type(u)
        known = self._known.get(kind)
        at_u = known[0](u) if known else 0
        if not at_u:
            known, at_u = self._learn(u)
        read, adapter, index = known  # type: ignore[misc]
        y = adapter.empty_like(u) if out is None else out
        at_y = (type(y) is kind and read(y)) or self._address(y, "out", index)
        at_pre = at_post = 0
        if pregate is not None:
            at_pre = (type(pregate) is kind and read(pregate)) or self._address(pregate, "pregate", index)
        if postgate is not None:
            at_post = (type(postgate) is kind and read(postgate)) or self._address(
                postgate, "postgate", index
            )
        if index is None:
            self._run_on_host(adapter, u, pregate, postgate, y)
            return y
        # The lowest address bits decide how wide an access may be.
        key = (index, (at_u | at_pre | at_post | at_y) & 15, at_pre > 0, at_post > 0, False)
        launch = self._launches.get(key) or self._launch(key)
        launch(adapter.stream(index), at_u, at_pre, at_post, at_y)
        return y

    def twice(self, u: Any, first: Any, second: Any, *, pregate: Any = None) -> tuple[Any, Any]:
        """One convolution under two output gates: what calls with ``postgate=first`` and ``=second`` return."""
        adapter = adapter_of(u, "u")
        index = adapter.index(u)
        if index is None and device().is_gpu:
            return self(u, pregate=pregate, postgate=first), self(u, pregate=pregate, postgate=second)
        y, y2 = adapter.empty_like(u), adapter.empty_like(u)
        given = {"u": u, "pregate": pregate, "postgate": first, "second": second, "out": y, "out2": y2}
        at = {name: 0 if x is None else self._address(x, name, index) for name, x in given.items()}
        if index is None:
            self.run_cpu(u, pregate=pregate, postgate=first, out=y, second=(second, y2))
            return y, y2
        low_bits = 0
        for address in at.values():
            low_bits |= address & 15
        key = (index, low_bits, pregate is not None, True, True)
        launch = self._launches.get(key) or self._launch(key)
        launch(
            adapter.stream(index),
            *(at[name] for name in ("u", "pregate", "postgate", "out", "second", "out2")),
        )
        return y, y2

    def _learn(self, u: Any) -> tuple[tuple, int]:
        """Check an input in full; how to check arrays like it quickly, and its address."""
        adapter = adapter_of(u, "u")
        index = adapter.index(u)
        address = self._address(u, "u", index)
        known = self._known[type(u)] = (adapter.reader(u), adapter, index)
        return known, address

    def _address(self, x: Any, name: str, index: int | None) -> int:
        """Address of an argument that fits; raises for one that does not."""
        adapter = adapter_of(x, name)
        self._check(x, name, adapter, index)
        return adapter.pointer(x)

    def _check(self, x: Any, name: str, adapter: Adapter, index: int | None) -> None:
        shapes = [self.shape, self.shape[1:]] if self.shape[0] == 1 else [self.shape]
        if tuple(x.shape) not in shapes:
            raise ValueError(
                f"{name}: expected shape {self.shape}, [B, H, L] as prepared; got {tuple(x.shape)}"
            )
        if adapter.dtype_name(x) != self.spectrum.dtype:
            raise TypeError(
                f"{name}: expected {self.spectrum.dtype} (as u and the prepared filter), got "
                f"{adapter.dtype_name(x)}; convert it, nothing is converted silently"
            )
        check_place(adapter, x, name, index, "u")
        check_contiguous(adapter, x, name)

    def describe(self) -> str:
        """The kernel, and the bytes of its filter, of a call and of constants, in words."""
        from kernels_numba import describe

        return describe.describe(self)

    def spec(
        self,
        low_bits: int = 0,
        *,
        pregate: bool = False,
        postgate: bool = False,
        twice: bool = False,
        where: Device | None = None,
    ) -> Any:
        """The kernel this convolution runs, on a device, for arrays whose addresses end in ``low_bits``."""
        limit = where.shared_bytes_per_block if where else None
        batch, _, length = self.shape
        halves = self._halves(low_bits)
        plan, products = self.spectrum.plan, self.spectrum.products
        alone = batch % self.together != 0
        spec = self.family.make_spec(
            plan,
            products,
            halves=halves,
            guarded=length < plan.n or alone,
            pregate=pregate,
            postgate=postgate,
            scaled=self.scaled,
            twice=twice,
            **({"shared_limit": limit} if limit else {}),
            **({"marked": 1} if self.spectrum.marks else {}),
            **({"kept": self.spectrum.axes} if self.spectrum.axes else {}),
        )
        spec = fitted(spec, plan, length, alone=alone, capability=where.capability if where else None)
        wide = products in HALF_TYPES and self.spectrum.dtype in FLOAT_TYPES
        return replace(spec, sequences="fp32") if wide else spec

    def _operand_key(self, spec: Any) -> tuple:
        marks = (self.spectrum.marks,) if self.spectrum.marks else ()
        key: tuple = self.family.operand_key(spec, *marks)
        return key

    def _halves(self, low_bits: int) -> int:
        """Elements of an access, for arrays whose addresses end in ``low_bits``."""
        nbytes = ELEMENT_TYPES[self.spectrum.dtype].itemsize // (2 if self.complex else 1)
        numbers = self._scalars[-1]
        return next(v for v in (8, 4, 2, 1) if numbers % v == 0 and low_bits % (nbytes * v) == 0)

    def grid(self, workers: int, blocks: int) -> tuple[int, int]:
        """(grid, items per worker) with ``workers`` in a block: at most ``blocks`` blocks, work spread evenly."""
        return _grid(self.items, workers, blocks)

    def _launch(self, key: tuple[int, int, bool, bool, bool]) -> Callable[..., None]:
        """The launch for a GPU, the low bits of the addresses, the gates, and whether twice; made at first use."""
        if key in self._launches:
            return self._launches[key]
        index, low_bits, pregate, postgate, twice = key
        spec = self.spec(low_bits, pregate=pregate, postgate=postgate, twice=twice, where=device(index))
        sizes, found = (self.items, self.pairs, *self._scalars), None
        if isinstance(self.spectrum, Untransformed):
            found = self.spectrum.kernel(spec, self.items, self.pairs, index)
            sizes = (*sizes[:-1], self.spectrum.with_taps(sizes[-1])) if found else sizes
        spec, per_worker, words, scales = found or (spec, 0, *self.spectrum.on_device(index))
        shared = _shared_launch(self.family, spec, sizes, self._operand_key(spec), index, per_worker)

        def run(
            stream: int, at_u: int, at_pre: int, at_post: int, at_y: int, at_post2: int = 0, at_y2: int = 0
        ) -> None:
            shared(stream, at_u, at_pre, at_post, at_y, at_post2, at_y2, words, scales)

        self._launches[key] = run
        return run

    def _run_on_host(self, adapter: Adapter, u: Any, pregate: Any, postgate: Any, out: Any) -> None:
        """Host arrays: on the CPU body, or on a GPU by way of copies."""
        if not adapter_of(out, "out").host(out).flags.writeable:
            raise ValueError("out: the array is read-only; copy it, or leave out away for a new array")
        if not device().is_gpu:
            self.run_cpu(u, pregate=pregate, postgate=postgate, out=out)
            return
        from kernels_numba.launch import DeviceBuffer, device_index

        warnings.warn(
            "arrays in host memory are copied to the GPU and back; keep them there (CuPy, PyTorch, Numba) "
            "for speed",
            HostCopyWarning,
            stacklevel=4,
        )
        index = device_index()
        host = [None if x is None else adapter_of(x, "u").host(x) for x in (u, pregate, postgate)]
        there = [None if x is None else DeviceBuffer.of(x, index) for x in host]
        result = DeviceBuffer(index, self.shape, ELEMENT_TYPES[self.spectrum.dtype])
        at_u, at_pre, at_post = (0 if x is None else x.pointer for x in there)
        launch = self._launch((index, 0, pregate is not None, postgate is not None, False))
        launch(0, at_u, at_pre, at_post, result.pointer)
        _write(out, adapter_of(out, "out"), result.host())

    def run_cpu(
        self,
        u: Any,
        *,
        pregate: Any = None,
        postgate: Any = None,
        out: Any = None,
        second: tuple[Any, Any] | None = None,
        blocks: int = CPU_BLOCKS,
    ) -> tuple[Any, Counters]:
        """Run the kernel on the CPU body, on at most ``blocks`` blocks; returns y and what was counted.

        ``second``: another output gate, and where to put the result under it.
        """
        from kernels_numba.cpu_convolution import run

        values, values2, counters = run(self, u, pregate, postgate, second[0] if second else None, blocks)
        for target, found in ((out, values), *([(second[1], values2)] if second else [])):
            if target is not None:
                _write(target, adapter_of(target, "out"), found)
        return values if out is None else out, counters


def _grid(items: int, workers: int, blocks: int) -> tuple[int, int]:
    per_worker = -(-items // (workers * max(1, blocks)))
    return -(-items // (workers * per_worker)), per_worker


@lru_cache(maxsize=128)
def _shared_launch(
    family: Any, spec: Any, sizes: tuple[int, ...], key: tuple, index: int, per_worker: int
) -> Callable[..., None]:
    """The launch of a kernel on GPU ``index``, for every filter: it takes the addresses of the spectrum and its scales.

    ``sizes``: items, pairs, and what the kernel is told of the sequences; ``key``: of the family's operands;
    A kernel that transforms filters takes taps and its tables, and has room for the filters of ``per_worker`` items.
    """
    from kernels_numba import launch

    items, *scalars = sizes
    whole = warp_filter.family(spec) if getattr(spec, "taps", "") else family
    loaded, workers = launch.load(whole, spec, index), family.workers(spec)
    blocks = (device(index).sm_count or 1) * loaded.blocks_per_sm
    grid, fewest = _grid(items, workers, blocks)
    if per_worker and not 0 < warp_filter.needed(spec, items, scalars[0], fewest) <= spec.filters:
        grid = -(-items // (workers * per_worker))
    else:
        per_worker = fewest
    constants = _device_operands(family, key, index)
    pointers = (*(c.pointer for c in constants), "y", "y2", items, per_worker, *scalars)
    run = loaded.launcher(
        grid,
        ("u", "pregate", "postgate", "second", "words", "scales", *pointers),
        (*launch.POINTERS, "second", "y2", "words", "scales"),
        overlap=getattr(spec, "overlap", False),
    )
    run.constants = constants  # type: ignore[attr-defined]  # the launch knows only their addresses
    return run


@lru_cache(maxsize=KEPT_CONSTANTS)
def _device_operands(family: Any, key: tuple, index: int) -> tuple[Any, ...]:
    """The constant operands on a GPU, shared by all convolutions there that run the same kernel."""
    from kernels_numba.launch import DeviceBuffer

    return tuple(DeviceBuffer.of(words, index) for words in family.operands(*key))


def _dtype_of(x: Any, adapter: Adapter, name: str) -> str:
    found = adapter.dtype_name(x)
    if found not in ELEMENT_TYPES:
        raise TypeError(
            f"{name}: the fused kernels take {', '.join(ELEMENT_TYPES)}, got {found}; convert it (nothing is converted "
            f"silently), or use reference.fftconv, which computes in float64"
        )
    return found


def _shape_of(u: Any) -> tuple[int, int, int]:
    shape = tuple(u.shape)
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"u: expected sequences [B, H, L] or [H, L] with B, H, L >= 1, got shape {tuple(u.shape)}"
        )
    return shape


def _tile_of(u: Any, k: Any, mode: str, dtype: str, tile: int | str | None) -> int | None:
    """The tile that was asked for, or that is best; None for the whole at once."""
    if mode != "causal" or tile is None:
        return None
    if tile != "auto":
        return int(tile)
    taps = tuple(getattr(k, "shape", ()))[-1:]
    if not taps or taps[0] < 1 or len(u.shape) != 3:  # what is wrong is said where filters are prepared
        return None
    from kernels_numba.partial_choice import choose_tile

    return choose_tile(u.shape[-1], int(taps[0]), dtype)[0]
