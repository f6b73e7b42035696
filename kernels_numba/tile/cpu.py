"""The tile layer on the CPU: the same operations over an axis of 32 lanes, in NumPy.

A fragment is an array [registers, 32] of int32 (packed halves) or float32. Storage rounding is the GPU's, bit
for bit: products of halves are accumulated in float32, rounded to half where the kernel rounds, and
half-precision multiply-adds round once. Only the order of accumulation inside a tensor-core product is the
CPU's own.

Every operation adds what it did to the machine's counters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.layout import HALF_TYPES, WARP, a_index, b_index, c_index
from kernels_numba.tile.machine import LANES, POISON, Buffer, KernelError, Lanes, Machine

Fragment = NDArray
MMA_FLOPS = 4096


def round_half(values: NDArray[np.float64], lost: NDArray[np.float64], dtype: str) -> NDArray:
    """Round ``values + lost`` (exactly, |lost| under half an ulp of values) to half precision, once.

    float64 -> half would round twice for bf16 (through float32), so float32 is rounded to odd in between: its
    last bit is set when anything was lost, which no later rounding to nearest can mistake for a tie.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        single = values.astype(np.float32)
        rest = np.where(np.isfinite(single), (values - single) + lost, 0.0)
        bits = single.view(np.int32)
        toward_zero = (rest != 0) & ((rest < 0) != np.signbit(single))
        bits = np.where(toward_zero, bits - 1, bits)
        bits = np.where(rest != 0, bits | 1, bits)
        return bits.view(np.float32).astype(HALF_TYPES[dtype])


def _lanes(value: Any) -> NDArray[np.int64]:
    """An offset per lane, from a scalar or per-lane value."""
    return np.broadcast_to(np.asarray(value, np.int64), (WARP,))


class CpuTile:
    """The vocabulary for one half-precision type, bound to a machine."""

    name = "cpu"
    one = np.float32(1)

    @staticmethod
    def small(value: Any) -> Any:
        """An index known to fit 32 bits, which a GPU then computes in 32 bits."""
        return value

    int64 = opaque = small

    def __init__(self, machine: Machine, dtype: str) -> None:
        self.machine = machine
        self.dtype = dtype
        self.half = HALF_TYPES[dtype]

    # ---- places and order ----------------------------------------------------------------------------------
    def lane(self) -> Lanes:
        """Lane indices 0..31."""
        return LANES

    def warp(self) -> int:
        """Warp index in the block."""
        return self.machine.warp.index

    def block(self) -> int:
        """Block index."""
        return self.machine.warp.block

    @staticmethod
    def divide(a: int, b: int) -> int:
        """Quotient of non-negative integers."""
        return a // b

    def barrier(self) -> None:
        """All warps of the block meet here."""
        self.machine.barrier()

    def warp_sync(self) -> None:
        """Shared-memory writes of the warp's lanes become visible to its other lanes."""
        self.machine.warp.syncs += 1

    def commit(self) -> None:
        """Close a group of asynchronous copies."""
        warp = self.machine.warp
        warp.pending.append(warp.open_group)
        warp.open_group = []

    def wait(self, pending: int) -> Callable[[], None]:
        """Wait until at most ``pending`` groups of asynchronous copies are under way."""

        def wait() -> None:
            warp, shared = self.machine.warp, self.machine.shared
            while len(warp.pending) > pending:
                for offsets, values in warp.pending.pop(0):
                    shared.halves[offsets] = values
                    shared.finish_write(warp, offsets >> 1, self.machine.epoch)

        return wait

    # ---- memory --------------------------------------------------------------------------------------------
    def copy_async(self, halves: int) -> Callable:
        """Copy ``halves`` half elements a lane from global to shared memory, zeros where not valid."""

        def copy(to: Any, source: Buffer, offset: Any, valid: Any) -> None:
            offset, to = _lanes(offset), _lanes(to)
            ok = np.broadcast_to(np.asarray(valid, bool), (WARP,))
            source.check(offset[ok], halves)
            values = np.zeros((WARP, halves), np.int16)
            values[ok] = source.data[offset[ok, None] + np.arange(halves)]
            self.machine.counters.add_bytes("global_read_bytes", source.name, int(ok.sum()) * 2 * halves)
            self._copy(to[:, None] + np.arange(halves), values, synchronous=halves == 1)

        return copy

    def copy_pieces(self, pieces: Any, halves: int, *, guarded: bool) -> Callable:
        """Several asynchronous copies; piece (which, shared constant, global constant)."""
        copy = self.copy_async(halves)

        def copies(source: Buffer, base: Any, limit: Any, index: Any, *places: Any) -> None:
            for which, shared_constant, global_constant in pieces:
                at = _lanes(index) + global_constant
                valid = (at < limit) if guarded else True
                copy(_lanes(places[which]) + shared_constant, source, base + at, valid)

        return copies

    def copy_words_async(self, to: Any, source: Buffer, offset: Any) -> None:
        """Copy four words a lane from a word buffer to shared memory."""
        offset, to = _lanes(offset), _lanes(to)
        source.check(offset, 4)
        values = source.data[offset[:, None] + np.arange(4)].view(np.int16)
        self.machine.counters.add_bytes("global_read_bytes", source.name, WARP * 16)
        self._copy(2 * to[:, None] + np.arange(8), values, synchronous=False)

    def _copy(self, offsets: NDArray, values: NDArray, *, synchronous: bool) -> None:
        machine = self.machine
        warp, shared = machine.warp, machine.shared
        words, lanes = offsets >> 1, np.broadcast_to(np.arange(WARP)[:, None], offsets.shape)
        if (offsets[:, 0] % offsets.shape[1]).any():
            raise KernelError(
                f"shared memory: a copy of {offsets.shape[1]} half elements is not aligned to its size"
            )
        # Two lanes that copy one element each may share a word; neither owns it, so both need a warp_sync.
        shared.begin_write(warp, words, lanes, machine.epoch, single_halves=synchronous)
        nbytes = offsets.shape[1] * 2
        machine.counters.shared_written_bytes += nbytes * WARP
        if synchronous:
            shared.halves[offsets] = values
            shared.finish_write(warp, words, machine.epoch)
        else:
            shared.halves[offsets] = POISON
            warp.open_group.append((offsets, values))

    def load_shared(self, count: int, width: int) -> Callable:
        """``count`` words in chunks of ``width``, chunk c at offset + c stride."""
        chunks = np.arange(count // width)[:, None, None]
        within = np.arange(width)[None, :, None]

        def load(offset: Any, stride: Any) -> Fragment:
            base = _lanes(offset)
            for chunk in range(count // width):
                self.machine.count_shared(base + chunk * int(stride), width, write=False)
            index = base + chunks * int(stride) + within
            return self.machine.shared.read(self.machine.warp, index, self.machine.epoch).reshape(count, WARP)

        return load

    def load_global(self, count: int, width: int) -> Callable:
        """As :meth:`load_shared`, from a word buffer."""
        chunks = np.arange(count // width)[:, None, None]
        within = np.arange(width)[None, :, None]

        def load(source: Buffer, offset: Any, stride: Any) -> Fragment:
            starts = _lanes(offset) + chunks * int(stride)
            source.check(starts, width)
            self.machine.counters.add_bytes("global_read_bytes", source.name, 4 * count * WARP)
            return source.data[starts + within].reshape(count, WARP)

        return load

    def load_float(self, source: Buffer, offset: Any) -> np.float32:
        """One float32 for the whole warp."""
        at = int(_lanes(offset)[0])
        source.check(np.asarray([at]), 1)
        self.machine.counters.add_bytes("global_read_bytes", source.name, 4)
        return source.data[at]

    def load_pieces(self, pieces: Any, count: int) -> Callable:
        """Gather from shared memory; piece (o, c, registers) is read at ``o + c`` words."""

        def load(*offsets: Any) -> Fragment:
            out = np.empty((count, WARP), np.int32)
            for which, constant, registers in pieces:
                base = _lanes(offsets[which]) + constant
                self.machine.count_shared(base, len(registers), write=False)
                index = base + np.arange(len(registers))[:, None]
                out[list(registers)] = self.machine.shared.read(self.machine.warp, index, self.machine.epoch)
            return out

        return load

    def store_shared_pieces(self, pieces: Any) -> Callable:
        """Scatter to shared memory; piece (o, c, registers) is written at ``o + c`` words."""

        def put(*arguments: Any) -> None:
            offsets, fragment = arguments[:4], arguments[4]
            machine = self.machine
            warp, shared = machine.warp, machine.shared
            for which, constant, registers in pieces:
                base = _lanes(offsets[which]) + constant
                machine.count_shared(base, len(registers), write=True)
                index = base + np.arange(len(registers))[:, None]
                shared.begin_write(warp, index, np.arange(WARP), machine.epoch)
                shared.words[index] = fragment[list(registers)]
                shared.finish_write(warp, index, machine.epoch)

        return put

    def gather(self, pieces: Any, count: int, halves: int, *, guarded: bool) -> Callable:
        """Load what `store_pieces` would store; zeros where masked."""
        step = np.arange(halves)

        def load(source: Buffer, base: Any, limit: Any, *offsets: Any) -> Fragment:
            out = np.zeros((count, WARP), np.int32)
            read = 0
            for which, constant, registers in pieces:
                start = _lanes(offsets[which]) + constant
                index = start[:, None] + halves * np.arange(2 * len(registers) // halves)
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                source.check(where, halves)
                values = np.zeros((WARP, index.shape[1], halves), np.int16)
                values[keep] = source.data[where[:, None] + step]
                out[list(registers)] = values.reshape(WARP, -1).view(np.int32).T
                read += where.size * 2 * halves
            self.machine.counters.add_bytes("global_read_bytes", source.name, read)
            return out

        return load

    def store_pieces(self, pieces: Any, halves: int, *, guarded: bool) -> Callable:
        """Store pieces of a fragment of halves to global memory, ``halves`` elements an instruction."""
        step = np.arange(halves)

        def put(target: Buffer, base: Any, limit: Any, *rest: Any) -> None:
            offsets, fragment = rest[:4], rest[4]
            written = 0
            for which, constant, registers in pieces:
                values = np.ascontiguousarray(fragment[list(registers)].T).view(np.int16)  # [32, 2 registers]
                start = _lanes(offsets[which]) + constant
                index = start[:, None] + halves * np.arange(values.shape[1] // halves)
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                target.check(where, halves)
                target.data[where[:, None] + step] = values.reshape(WARP, -1, halves)[keep]
                written += where.size * 2 * halves
            self.machine.counters.add_bytes("global_written_bytes", target.name, written)

        return put

    # ---- products ------------------------------------------------------------------------------------------
    def _matrix(self, words: Fragment, index: tuple, shape: tuple[int, int]) -> NDArray[np.float32]:
        matrix = np.empty(shape, np.float32)
        with np.errstate(invalid="ignore"):  # a signalling NaN
            matrix[index] = np.ascontiguousarray(words).view(self.half).reshape(*words.shape, 2)
        return matrix

    def _accumulators(self, matrix: NDArray[np.float32]) -> Fragment:
        """Row-group order: [groups, column tiles, 2] registers by lane."""
        rows, columns = c_index(matrix.shape[0] // 8, matrix.shape[1] // 8)
        return matrix[rows, columns].transpose(0, 2, 1).reshape(-1, WARP)

    def _count_mma(self, row_tiles: int, column_tiles: int, k_tiles: int) -> None:
        self.machine.counters.mma_m16n8k16 += row_tiles * column_tiles * k_tiles

    def mma(self, row_tiles: int, column_tiles: int, k_tiles: int) -> Callable:
        """Real product of an A and a B operand."""
        shape_a, shape_b = (16 * row_tiles, 16 * k_tiles), (16 * k_tiles, 8 * column_tiles)

        def product(a: Fragment, b: Fragment) -> Fragment:
            self._count_mma(row_tiles, column_tiles, k_tiles)
            left = self._matrix(a, a_index(row_tiles, k_tiles), shape_a)
            right = self._matrix(b, b_index(k_tiles, column_tiles), shape_b)
            with np.errstate(invalid="ignore", over="ignore"):
                return self._accumulators(left @ right)

        return product

    def dft_rows(
        self,
        row_tiles: int,
        column_tiles: int,
        k_tiles: int,
        *,
        inverse: bool,
        self_paired: int = 0,
        lower_half: bool = False,
    ) -> Callable:
        """Contract rows with a [cosines; sines] factor; outputs by row group, mirrors in the second half."""
        product = self.mma(row_tiles, column_tiles, k_tiles)
        period = 8 if self_paired is True else self_paired
        special = (np.arange(WARP) >> 2) % period == 0 if period else None

        def contract(factor: Fragment, data: Fragment) -> Fragment:
            p, q = (product(factor, part) for part in np.split(data, 2))
            split = p.shape[0] // 2
            a, e, d, b = p[:split], p[split:], q[:split], q[split:]
            plus, minus = self._butterfly(a, b, d, e, inverse=inverse, both=not lower_half)
            if special is not None:
                first = 2 * column_tiles  # registers of the first row group
                for part, alone in zip((*plus, *minus), (a, d, e, b), strict=False):
                    part[:first] = np.where(special, alone[:first], part[:first])
            if lower_half:
                return np.concatenate(plus)
            return np.concatenate([plus[0], minus[0], plus[1], minus[1]])

        return contract

    def dft_columns(self, row_tiles: int, column_tiles: int, k_tiles: int, *, inverse: bool) -> Callable:
        """Contract columns with a [cosines, sines] factor; mirrors in the second half of the column tiles."""
        product = self.mma(row_tiles, column_tiles, k_tiles)

        def contract(data: Fragment, factor: Fragment) -> Fragment:
            p, q = (product(part, factor) for part in np.split(data, 2))
            p, q = (x.reshape(2 * row_tiles, 2, column_tiles, WARP) for x in (p, q))
            plus, minus = self._butterfly(p[:, 0], q[:, 1], q[:, 0], p[:, 1], inverse=inverse, both=True)
            parts = [np.stack(pair, axis=1).reshape(-1, WARP) for pair in zip(plus, minus, strict=True)]
            return np.concatenate(parts)

        return contract

    def _butterfly(
        self, a: Fragment, b: Fragment, d: Fragment, e: Fragment, *, inverse: bool, both: bool
    ) -> tuple[tuple, tuple]:
        self.machine.counters.fp32_flops += (4 if both else 2) * a.size
        with np.errstate(invalid="ignore", over="ignore"):
            one, two = (a + b, d - e), (a - b, d + e)
        return (two, one) if inverse else (one, two)

    # ---- arithmetic on registers ---------------------------------------------------------------------------
    def pack(self, count: int, *, swap: tuple[int, ...] = ()) -> Callable:
        """Round pairs of float32 to registers of two halves, some in reverse order."""
        order = np.arange(2 * count).reshape(count, 2)
        for i in swap:
            order[i] = order[i, ::-1]

        def rounded(values: Fragment) -> Fragment:
            with np.errstate(over="ignore", invalid="ignore"):
                halves = values[order].astype(self.half)  # [count, 2, 32]
            return np.ascontiguousarray(halves.transpose(0, 2, 1)).view(np.int32).reshape(count, WARP)

        return rounded

    def scale(self, count: int) -> Callable:
        """Multiply float32 registers by one float32."""

        def scaled(values: Fragment, factor: np.float32) -> Fragment:
            self.machine.counters.fp32_flops += values.size
            with np.errstate(over="ignore", invalid="ignore"):
                return values * np.float32(factor)

        return scaled

    def _halves(self, words: Fragment) -> NDArray[np.float64]:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return np.ascontiguousarray(words).view(self.half).astype(np.float64)

    def _words(self, halves: NDArray) -> Fragment:
        return halves.view(np.int32)

    def _fma(self, a: NDArray, b: NDArray, c: NDArray | float) -> NDArray:
        """Halves of a b + c, rounded once; float64 in and half out. The product is exact in float64."""
        with np.errstate(invalid="ignore", over="ignore"):
            product = a * b
            total = product + c
            # What the sum lost (Knuth's two-sum).
            back = total - product
            lost = np.where(np.isfinite(total), (product - (total - back)) + (c - back), 0.0)
            return round_half(total, lost, self.dtype)

    def multiply(self, count: int) -> Callable:
        """Elementwise product of two fragments of halves."""

        def product(a: Fragment, b: Fragment) -> Fragment:
            self.machine.counters.half_flops += 2 * a.size
            return self._words(self._fma(self._halves(a), self._halves(b), -0.0))

        return product

    def multiply_complex(self, count: int) -> Callable:
        """Elementwise complex product: one rounded product and one fused multiply-add for each part."""

        def product(a: Fragment, b: Fragment) -> Fragment:
            self.machine.counters.half_flops += 6 * a.size
            xr, xi = np.split(self._halves(a), 2)
            yr, yi = np.split(self._halves(b), 2)
            re = self._fma(xr, yr, self._fma(-xi, yi, -0.0).astype(np.float64))
            im = self._fma(xr, yi, self._fma(xi, yr, -0.0).astype(np.float64))
            return self._words(np.concatenate([re, im]))

        return product

    # ---- moving registers ----------------------------------------------------------------------------------
    def select(self, picks: tuple[int, ...]) -> Callable:
        """Registers in another order."""
        order = list(picks)
        return lambda fragment: fragment[order]

    @staticmethod
    def join(a: Fragment, b: Fragment) -> Fragment:
        """Two fragments as one."""
        return np.concatenate([a, b])

    def pair_halves(self, spec: tuple[tuple[int, int, int], ...]) -> Callable:
        """``(i, j, h)``: a register of half h of register i (low) and half h of register j (high)."""
        low, high, half = (np.array(x) for x in zip(*spec, strict=True))

        def paired(fragment: Fragment) -> Fragment:
            halves = np.ascontiguousarray(fragment).view(np.int16).reshape(*fragment.shape, 2)
            both = np.stack([halves[low, :, half], halves[high, :, half]], axis=-1)
            return np.ascontiguousarray(both).view(np.int32)[..., 0]

        return paired

    def transpose(self, picks: tuple[int, ...]) -> Callable:
        """Transpose 8 x 8 blocks of halves, one per register."""
        order = list(picks)

        def transposed(fragment: Fragment) -> Fragment:
            self.machine.counters.transposes += len(order)
            halves = np.ascontiguousarray(fragment[order]).view(np.int16)
            blocks = halves.reshape(len(order), 8, 8).transpose(0, 2, 1)
            return np.ascontiguousarray(blocks).reshape(len(order), -1).view(np.int32)

        return transposed
