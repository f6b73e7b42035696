"""Attention of a few new query tokens over a cache of keys and values, in one kernel launch.

:func:`decode_attention` has the meaning of ``reference.decode_attention`` for fp16 and bf16 arrays: q [B, T, Hq, D],
caches [B, L, Hkv, D], or [pages, page, Hkv, D] with a block table. Logits, weights and sums are float32, the result is
rounded to half precision once.

The softmax shifts all rows by phi, known beforehand ("async"): partial sums of the keys need nothing of each other.
Rows any of whose logits leaves (a, b) about phi are recomputed with their maximum ("sync"), on the GPU and in the same
launch; `calibrate_phi` finds phi, a and b in a sample. `split_decode.py` has the kernel.

For speed, prepare once and call often::

    attend = DecodeAttention(q.shape, k.shape, "fp16", phi=-5.0, bounds=(-12.0, 12.0))
    y = attend(q, k, v, seqlens=lengths)     # a few microseconds on the host, on the caller's current stream
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from kernels_numba import split_decode
from kernels_numba.arrays import Adapter, adapter_of, check_place, half_dtype
from kernels_numba.attention_checks import (
    check_host_integers,
    check_scheme,
    check_shapes,
    check_splits,
    fit_strides,
    positive,
    table_columns,
)
from kernels_numba.device import Device, device
from kernels_numba.fftconv import HostCopyWarning
from kernels_numba.host_arrays import _aligned, _bits, _write
from kernels_numba.splits import choose_splits, clustered
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import HALF_TYPES
from kernels_numba.workspace import Workspaces

NAMES = ("q", "k", "v", "out", "lengths", "table", "partials", "arrivals")
CPU_SPLITS, _NOTHING = 2, (0, 0)


def _unread(x: Any) -> int:
    return 0


_UNKNOWN: tuple[Callable[[Any], int], Callable[[Any], int], tuple[int, ...]] = (_unread, _unread, ())


def decode_attention(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    phi: float | None = None,
    bounds: tuple[float, float] | None = None,
    seqlens: Any = None,
    block_table: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    splits: int | None = None,
    variant: str = "async",
    out: Any = None,
) -> Any:
    """Attention of ``q [B, T, Hq, D]`` over the caches: y [B, T, Hq, D], an array of the kind and dtype of q.

    Args:
        q: the last T (1 to 8) tokens of each sequence, fp16 or bf16, contiguous; NumPy, PyTorch, CuPy or Numba.
        k_cache: keys [B, L, Hkv, D], dtype of q; [pages, page, Hkv, D] with a block table. Hq is 1 to 16 times Hkv,
            D 64 to 256 in steps of 8. Each head of a key is contiguous; heads, keys and sequences lie in any order, so
            [B, Hkv, L, D] transposed will do, but pages follow one another.
        v_cache: values, shaped and typed as the keys, with their strides.
        phi: the shift of "async", of logits after scale and soft cap.
        bounds: (a, b), open: a row any of whose logits has ``x - phi`` outside is recomputed with its maximum. Float32
            holds the exponentials, so a is at least -60 and b at most 40.
        seqlens: keys of each sequence [B], int32 or int64, where q is; None: L each. 0 gives zeros. On a GPU they are
            not looked at before the launch; there, what is below 0 or above L counts as 0 or L.
        block_table: [B, blocks], int32 or int64, where q is: page ``block_table[b, j // page]`` holds key j. Entries
            past a sequence's end are not read; on a GPU a page that does not exist is taken for the last one.
        scale: of the logits; None: 1 / sqrt(D).
        softcap: bound on the size of logits, positive; None: no cap.
        splits: parts that the keys are taken in; None: as many as keep the GPU full (`choose_splits`).
        variant: "async" or "sync".
        out: where to put the result, shaped and typed as q.

    Raises:
        TypeError: an argument is not an array, or its dtype is not accepted (nothing is converted silently).
        ValueError: a shape, length, setting, device or memory layout is not accepted.
        LaunchError: the GPU refused the kernel, or an earlier kernel failed.

    Source: Hong et al., FlashDecoding++, arXiv 2311.01282, section 3, whose paper leaves out what happens to rows out
    of range across splits; Milakov and Gimelshein, arXiv 1805.02867, for the joining of partial results.
    """
    adapter = adapter_of(q, "q")
    dtype = half_dtype(q, adapter, "q")
    blocks = None if block_table is None else table_columns(block_table)
    attend = _prepared(
        tuple(q.shape), tuple(getattr(k_cache, "shape", ())), dtype, blocks,
        phi, None if bounds is None else tuple(bounds), scale, softcap, splits, variant,
    )  # fmt: skip
    return attend(q, k_cache, v_cache, seqlens=seqlens, block_table=block_table, out=out)


class DecodeAttention:
    """Attention prepared for one shape and scheme; calling it launches one kernel.

    Args:
        queries: shape of q, (B, T, Hq, D).
        caches: shape of the caches, (B, L, Hkv, D), or (pages, page, Hkv, D) if ``blocks`` is given.
        dtype: "fp16" or "bf16".
        blocks: columns of the block table; None: contiguous caches.

    The other settings are those of :func:`decode_attention`. A call checks its arrays, allocates the output
    unless ``out`` is given, and nothing else. On a GPU it runs on the caller's current stream and can be captured
    in a CUDA graph, after one call outside, which compiles and allocates: with more than two splits (more than one
    below compute capability 9.0), partial results take B Hkv splits rows (D' + 2) 4 bytes for each of four streams (D'
    is D rounded up to 64; see `workspace_bytes`), allocated once and kept. A fifth stream costs four more of these; two
    streams never share one.
    """

    def __init__(
        self,
        queries: tuple[int, ...],
        caches: tuple[int, ...],
        dtype: str = "fp16",
        *,
        blocks: int | None = None,
        phi: float | None = None,
        bounds: tuple[float, float] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        splits: int | None = None,
        variant: str = "async",
    ) -> None:
        if dtype not in HALF_TYPES:
            raise TypeError(f"dtype: expected one of {', '.join(HALF_TYPES)}; got {dtype!r}")
        self.shape, self.cache_shape = check_shapes(queries, caches, blocks)
        self.dtype, self.variant, self.blocks = dtype, variant, blocks
        self.phi, self.bounds = check_scheme(phi, bounds, variant)
        *_, heads, size = self.shape
        self.kv_heads = self.cache_shape[2]
        self.page = self.cache_shape[1] if blocks is not None else 0
        self.room = self.cache_shape[1] * (blocks if blocks is not None else 1)
        self.scale = 1 / math.sqrt(size) if scale is None else positive(scale, "scale", signed=True)
        self.softcap = None if softcap is None else positive(softcap, "softcap")
        self.splits = check_splits(splits)
        self.group = heads // self.kv_heads
        self.chosen_splits: int | None = None  # by the last launch that was prepared
        _, keys, kv_heads, _ = self.cache_shape
        self._contiguous = (keys * kv_heads * size, kv_heads * size, size, 1)
        self._launches: dict[tuple, tuple[Callable[..., None], Workspaces | None]] = {}
        self._known: dict[type, tuple[int | None, Adapter, dict[str, Any]]] = {}

    def __call__(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        seqlens: Any = None,
        block_table: Any = None,
        out: Any = None,
    ) -> Any:
        """Attention of ``q`` over the caches; see :func:`decode_attention`."""
        kind = type(q)
        known = self._known.get(kind)
        at_q = known[2]["q"](q) if known else 0
        if not at_q:
            known, at_q = self._learn(q)
        index, adapter, readers = known  # type: ignore[misc]
        y = adapter.empty_like(q) if out is None else out
        if index is None:
            self._run_on_host(adapter, q, k_cache, v_cache, seqlens, block_table, y)
            return y
        at_y = readers["q"](y) if type(y) is kind else 0
        read_k, read_v, strides = readers.get("caches", _UNKNOWN)
        at_k = read_k(k_cache) if type(k_cache) is kind else 0
        at_v = read_v(v_cache) if type(v_cache) is kind else 0
        if not (at_k and at_v and at_y) or (at_q | at_k | at_v | at_y) & 15:
            at_q = self._admit("q", q, known)
            at_k, at_v, at_y, strides = self._admit_all(k_cache, v_cache, y, known)
        at_n = at_t = length_bytes = entry_bytes = 0
        if seqlens is not None:
            read = readers.get("seqlens")
            at_n = (read and type(seqlens) is kind and read(seqlens)) or self._admit(
                "seqlens", seqlens, known
            )
            length_bytes = seqlens.dtype.itemsize
        if block_table is not None or self.blocks is not None:
            at_t, entry_bytes = self._table(block_table, known)
        key = (index, length_bytes, entry_bytes, strides)
        launch, spaces = self._launches.get(key) or self._launch(key)
        stream = adapter.stream(index)
        partials, arrivals = spaces.of(stream) if spaces else _NOTHING
        launch(stream, at_q, at_k, at_v, at_y, at_n, at_t, partials, arrivals)
        return y

    # ---- arguments -----------------------------------------------------------------------------------------
    def _learn(self, q: Any) -> tuple[tuple, int]:
        """Check a query in full; how to check arrays like it quickly, and its address."""
        adapter = adapter_of(q, "q")
        known = (adapter.index(q), adapter, {})  # type: ignore[var-annotated]
        address = self._admit("q", q, known)
        self._known[type(q)] = known
        return known, address

    def _admit_all(self, k: Any, v: Any, out: Any, known: Any) -> tuple[int, int, int, tuple[int, ...]]:
        """Addresses of caches and output, checked in full, and the strides of both caches."""
        addresses = (
            self._admit("k_cache", k, known),
            self._admit("v_cache", v, known),
            self._admit("out", out, known),
        )
        adapter = adapter_of(k, "k_cache")
        strides, others = adapter.strides(k), adapter_of(v, "v_cache").strides(v)
        if others != strides:
            raise ValueError(
                f"v_cache: expected the strides of k_cache, {strides}; got {others}; copy one of them"
            )
        if type(k) is type(v) and type(adapter) is type(known[1]):
            # In one piece, so that a call on another thread never mixes two layouts.
            known[2]["caches"] = (adapter.strided_reader(k), adapter.strided_reader(v), strides)
        return *addresses, strides

    def _table(self, table: Any, known: Any) -> tuple[int, int]:
        """Address of the block table and bytes of an entry."""
        if (table is None) != (self.blocks is None):
            raise ValueError(
                "block_table: prepared for contiguous caches" if self.blocks is None
                else f"block_table: prepared for pages of {self.page} keys, so a table [B, {self.blocks}] is needed"
            )  # fmt: skip
        read = known[2].get("block_table")
        return (read and read(table)) or self._admit("block_table", table, known), table.dtype.itemsize

    def _admit(self, role: str, x: Any, known: Any) -> int:
        """Address of an argument that fits, checked in full; raises for one that does not."""
        index, mine, readers = known
        adapter = adapter_of(x, role)
        whole = role in ("seqlens", "block_table")
        accepted = ("int32", "int64") if whole else (self.dtype,)
        batch = self.shape[0]
        expected = {
            "q": self.shape,
            "out": self.shape,
            "seqlens": (batch,),
            "block_table": (batch, self.blocks),
        }.get(role, self.cache_shape)
        if tuple(x.shape) != expected:
            raise ValueError(f"{role}: expected shape {expected}, as prepared; got {tuple(x.shape)}")
        if adapter.dtype_name(x) not in accepted:
            raise TypeError(
                f"{role}: expected {' or '.join(accepted)}{'' if whole else ' (as prepared)'}, got "
                f"{adapter.dtype_name(x)}; convert it, nothing is converted silently"
            )
        check_place(adapter, x, role, index, "q")
        cache = role in ("k_cache", "v_cache")
        if not (fit_strides(adapter.strides(x), self.page) if cache else adapter.contiguous(x)):
            raise ValueError(
                f"{role}: expected {'contiguous heads, at multiples of 8 elements' if cache else 'a contiguous array'}"
                f"{', and pages one after the other' if cache and self.page else ''}; got strides "
                f"{adapter.strides(x)}; copy it, e.g. with .contiguous()"
            )
        address = adapter.pointer(x)
        if index is not None and not whole and address % 16:
            raise ValueError(f"{role}: expected an array on a 16-byte boundary; copy it, e.g. with .clone()")
        if type(mine) is type(adapter) and (whole or role == "q"):
            readers[role] = adapter.reader(x)
        return address

    # ---- launching -----------------------------------------------------------------------------------------
    def spec(self, *, lengths: bool = False, where: Device | None = None, **settings: Any) -> Any:
        """The kernel that this attention runs, on a device."""
        limit = where.shared_bytes_per_block if where else None
        return split_decode.make_spec(
            self.shape[3],
            self.group,
            self.shape[1],
            self.dtype,
            sync=self.variant == "sync",
            capped=self.softcap is not None,
            lengths=lengths,
            page=self.page,
            **({"shared_limit": limit} if limit else {}),
            **settings,
        )

    def units(self, spec: Any) -> int:
        """Sequences times key heads times tiles of rows: what has a reduction of its own."""
        return self.shape[0] * self.kv_heads * spec.row_tiles

    def _grid(self, spec: Any, splits: int) -> tuple[int, int, int]:
        tiles, batch = self.kv_heads * spec.row_tiles, self.shape[0]
        return (splits, tiles, batch) if spec.cluster > 1 else (tiles, splits, batch)

    def splits_on(self, spec: Any, where: Device, blocks_per_sm: int) -> int:
        """The split count for a GPU with room for so many blocks on an SM."""
        if self.splits is not None:
            return self.splits
        gpu = (where.sm_count or 1, blocks_per_sm, where.capability)
        return choose_splits(self.units(spec), self.room, spec, *gpu)

    def workspace_bytes(self, spec: Any, splits: int) -> int:
        """Bytes of device memory that one stream's partial results take."""
        units = self.units(spec)
        return 0 if splits == spec.cluster else 4 * units * (splits * spec.record_words + 1)

    def _launch(
        self, key: tuple[int, int, int, tuple[int, ...]]
    ) -> tuple[Callable[..., None], Workspaces | None]:
        """The launch for a GPU and the sizes of integers; made at first use."""
        from kernels_numba import launch

        if key in self._launches:
            return self._launches[key]
        index, length_bytes, entry_bytes, strides = key
        spec = self.spec(lengths=length_bytes > 0, where=device(index))
        loaded = launch.load(split_decode, spec, index)
        splits = self.chosen_splits = self.splits_on(spec, device(index), loaded.blocks_per_sm)
        if clustered(splits, device(index).capability):
            spec = replace(spec, cluster=splits)
            loaded = launch.load(split_decode, spec, index)
        spaces = None
        if splits > spec.cluster:
            units = self.units(spec)
            spaces = Workspaces(index, units * splits * spec.record_words, units)
        arguments = (*NAMES, *self._scalars(splits, strides, length_bytes // 4, entry_bytes // 4))
        self._launches[key] = (loaded.launcher(self._grid(spec, splits), arguments, NAMES), spaces)
        return self._launches[key]

    def _scalars(
        self, splits: int, strides: tuple[int, ...], length_words: int, entry_words: int
    ) -> tuple[Any, ...]:
        pages = self.cache_shape[0] if self.page else 0
        row = (self.blocks or 0) * entry_words
        numbers = (self.phi, *self.bounds, self.scale, self.softcap or 1.0)
        sizes = (self.kv_heads, self.room, splits, *strides[:3])
        return (*sizes, length_words, entry_words, row, pages, *map(float, numbers))

    def _run_on_host(
        self, adapter: Adapter, q: Any, k: Any, v: Any, seqlens: Any, table: Any, out: Any
    ) -> None:
        """Host arrays: on the CPU body, or on a GPU by way of copies."""
        known = self._known[type(q)]
        for role, x in (("k_cache", k), ("v_cache", v), ("out", out)):
            self._admit(role, x, known)
        if not adapter_of(out, "out").host(out).flags.writeable:
            raise ValueError("out: the array is read-only; copy it, or leave out away for a new array")
        if not device().is_gpu:
            self.run_cpu(q, k, v, seqlens=seqlens, block_table=table, out=out)
            return
        from kernels_numba.launch import DeviceBuffer, device_index

        warnings.warn(
            "arrays in host memory are copied to the GPU and back; keep them there (CuPy, PyTorch, Numba) "
            "for speed",
            HostCopyWarning,
            stacklevel=3,
        )
        index = device_index()
        lengths, entries = check_host_integers(seqlens, table, self)
        host = [np.ascontiguousarray(adapter_of(x, "q").host(x)) for x in (q, k, v)]
        there = [DeviceBuffer.of(x, index) for x in host]
        small = [None if x is None else DeviceBuffer.of(x, index) for x in (lengths, entries)]
        result = DeviceBuffer(index, self.shape, HALF_TYPES[self.dtype])
        key = (index, 0 if lengths is None else 4, 0 if entries is None else 4, self._contiguous)
        launch, spaces = self._launch(key)
        pointers = [x.pointer for x in (*there, result)] + [0 if x is None else x.pointer for x in small]
        launch(0, *pointers, *(spaces.of(0) if spaces else (0, 0)))
        _write(out, adapter_of(out, "out"), result.host())

    def run_cpu(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        seqlens: Any = None,
        block_table: Any = None,
        out: Any = None,
        **settings: Any,
    ) -> tuple[Any, Counters]:
        """Run the kernel on the CPU body (2 splits unless prepared with another number); y and what was counted."""
        from kernels_numba.tile.cpu_vocabularies import tile
        from kernels_numba.tile.machine import POISON, Buffer, Machine

        lengths, table = check_host_integers(seqlens, block_table, self)
        spec = self.spec(lengths=lengths is not None, **settings)
        machine = Machine()
        kernel = split_decode.build(tile(machine, spec.dtype, split_decode.VOCABULARY), spec)
        splits, units = self.splits or CPU_SPLITS, self.units(spec)
        result = _aligned(np.full(int(np.prod(self.shape)), POISON, np.int16))
        poison = np.full(2 * units * splits * spec.record_words, POISON, np.int16)
        nothing = np.zeros(1, np.int32)
        arrivals = np.zeros(units, np.int32)
        buffers = [
            Buffer("q", _bits(q)),
            Buffer("k", _bits(np.ascontiguousarray(adapter_of(k_cache, "k_cache").host(k_cache)))),
            Buffer("v", _bits(np.ascontiguousarray(adapter_of(v_cache, "v_cache").host(v_cache)))),
            Buffer("out", result),
            Buffer("lengths", nothing if lengths is None else lengths),
            Buffer("table", nothing if table is None else table.reshape(-1)),
            Buffer("partials", _aligned(poison).view(np.int32)),
            Buffer("arrivals", arrivals),
        ]
        scalars = self._scalars(splits, self._contiguous, 1, 1)
        scalars = tuple(np.float32(x) if isinstance(x, float) else x for x in scalars)
        grid, words = self._grid(spec, splits), spec.shared_bytes // 4
        given = [*buffers, *scalars]
        counters = machine.run(kernel, grid, spec.warps, words, given, cluster=spec.cluster)
        assert not arrivals.any()
        values = result.view(HALF_TYPES[spec.dtype]).reshape(self.shape)
        if out is None:
            return values, counters
        _write(out, adapter_of(out, "out"), values)
        return out, counters


@lru_cache(maxsize=64)
def _prepared(queries: tuple, caches: tuple, dtype: str, blocks: int | None, *scheme: Any) -> DecodeAttention:
    """The prepared attention of a shape and scheme, kept so that its workspace is."""
    names = ("phi", "bounds", "scale", "softcap", "splits", "variant")
    return DecodeAttention(queries, caches, dtype, blocks=blocks, **dict(zip(names, scheme, strict=True)))
