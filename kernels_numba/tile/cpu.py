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

from kernels_numba.tile.cpu_correlation import CpuCorrelation
from kernels_numba.tile.cpu_group_sequences import CpuGroupSequences
from kernels_numba.tile.cpu_held import CpuHeld
from kernels_numba.tile.cpu_memory import CpuMemory, Fragment, parted
from kernels_numba.tile.cpu_prefetch import CpuPrefetch
from kernels_numba.tile.cpu_swaps import CpuSwaps
from kernels_numba.tile.cpu_words import CpuWords
from kernels_numba.tile.layout import HALF_TYPES, STORAGE_TYPES, WARP
from kernels_numba.tile.machine import LANES, Lanes, Machine

MMA_FLOPS = 4096
_NOTHING = np.zeros(1)


def round_half(values: NDArray[np.float64], lost: NDArray[np.float64], dtype: str) -> NDArray:
    """Round ``values + lost`` (exactly, |lost| under half an ulp of values) to half precision, once.

    float64 -> half would round twice for bf16 (through float32), so float32 is rounded to odd in between: its
    last bit is set when anything was lost, which no later rounding to nearest can mistake for a tie. NumPy itself
    rounds float64 to fp16 once.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        exact = not np.count_nonzero(lost)
        if dtype == "fp16" and exact:
            return values.astype(np.float16)
        single = values.astype(np.float32)
        if exact and (single == values).all():
            return single.astype(HALF_TYPES[dtype])
        rest = np.where(np.isfinite(single), (values - single) + lost, 0.0)
        bits = single.view(np.int32)
        toward_zero = (rest != 0) & ((rest < 0) != np.signbit(single))
        bits = np.where(toward_zero, bits - 1, bits)
        bits = np.where(rest != 0, bits | 1, bits)
        return bits.view(np.float32).astype(HALF_TYPES[dtype])


class CpuTile(CpuCorrelation, CpuGroupSequences, CpuHeld, CpuMemory, CpuPrefetch, CpuSwaps, CpuWords):
    """What all vocabularies share, for one half-precision type or for "fp32", bound to a machine."""

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
        self.half = STORAGE_TYPES[dtype]

    @staticmethod
    def subroutine(function: Callable) -> Callable:
        """As :meth:`function`, free to assign to its arguments."""
        return function

    @staticmethod
    def function(function: Callable) -> Callable:
        """A Python function that a kernel calls in several places."""
        return function

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
                for words, values in warp.pending.pop(0):
                    shared.words[words] = values
                    shared.finish_write(warp, words, self.machine.epoch)

        return wait

    def follow(self, *, overlap: bool) -> Callable[[], None]:
        """Launches follow each other on the CPU."""
        return lambda: None

    # ---- products ------------------------------------------------------------------------------------------
    # Lane l = 4 g + t; the axes are those of `layout.a_index`, `b_index` and `c_index`.
    def _left(self, words: Fragment, row_tiles: int, k_tiles: int) -> NDArray[np.float32]:
        """The matrix of an A operand."""
        halves = np.ascontiguousarray(words).view(self.half)
        axes = halves.reshape(row_tiles, k_tiles, 2, 2, 8, 4, 2)  # m, k, r >> 1, r & 1, g, t, e
        with np.errstate(invalid="ignore"):  # a signalling NaN
            matrix = axes.transpose(0, 3, 4, 1, 2, 5, 6).astype(np.float32, order="C")
        return matrix.reshape(16 * row_tiles, 16 * k_tiles)

    def _right(self, words: Fragment, k_tiles: int, column_tiles: int) -> NDArray[np.float32]:
        """The matrix of a B operand."""
        halves = np.ascontiguousarray(words).view(self.half)
        axes = halves.reshape(k_tiles, column_tiles, 2, 8, 4, 2)  # k, n, r, g, t, e
        with np.errstate(invalid="ignore"):
            matrix = axes.transpose(0, 2, 4, 5, 1, 3).astype(np.float32, order="C")
        return matrix.reshape(16 * k_tiles, 8 * column_tiles)

    @staticmethod
    def _accumulators(matrix: NDArray[np.float32]) -> Fragment:
        """Row-group order: [groups, column tiles, 2] registers by lane."""
        rows, columns = matrix.shape
        axes = matrix.reshape(rows // 8, 8, columns // 8, 4, 2)
        return axes.transpose(0, 2, 4, 1, 3).reshape(-1, WARP)

    @staticmethod
    def _summed(c: Fragment, row_groups: int) -> NDArray[np.float32]:
        """The matrix of accumulators."""
        axes = c.reshape(row_groups, -1, 2, 8, 4)
        return axes.transpose(0, 3, 1, 4, 2).reshape(8 * row_groups, -1)

    def _count_mma(self, row_tiles: int, column_tiles: int, k_tiles: int) -> None:
        self.machine.counters.mma_m16n8k16 += row_tiles * column_tiles * k_tiles

    def mma(self, row_tiles: int, column_tiles: int, k_tiles: int, *, chains: int = 1) -> Callable:
        """Real product of an A and a B operand, in several sums."""

        def product(a: Fragment, b: Fragment) -> Fragment:
            self._count_mma(row_tiles, column_tiles, k_tiles)
            self.machine.counters.fp32_flops += (chains - 1) * 4 * row_tiles * column_tiles * WARP
            left = self._left(a, row_tiles, k_tiles)
            right = self._right(b, k_tiles, column_tiles)
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
            p, q = (product(factor, part) for part in parted(data))
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
            p, q = (product(part, factor) for part in parted(data))
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
            if isinstance(c, float) and c == 0:  # -0.0, which changes nothing and loses nothing
                return round_half(product, _NOTHING, self.dtype)
            total = product + c
            back = total - product
            if self.dtype == "fp16" and (back == c).all() and (total - c == product).all():
                return total.astype(np.float16)  # nothing was lost
            # What the sum lost (Knuth's two-sum).
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
            (xr, xi), (yr, yi) = parted(self._halves(a)), parted(self._halves(b))
            re = self._fma(xr, yr, self._fma(-xi, yi, -0.0).astype(np.float64))
            im = self._fma(xr, yi, self._fma(xi, yr, -0.0).astype(np.float64))
            return self._words(np.concatenate([re, im]))

        return product

    def multiply_mirror(self, count: int, *, mirror_first: bool = False) -> Callable:
        """X a + conj(m) b: one rounded product and three fused multiply-adds for each part."""

        def product(*fragments: Fragment) -> Fragment:
            self.machine.counters.half_flops += 14 * fragments[0].size
            (xr, xi), (ar, ai), (mr, mi), (br, bi) = (parted(self._halves(f)) for f in fragments)

            def chain(*terms: tuple[NDArray, NDArray]) -> NDArray:
                total: Any = -0.0
                for left, right in terms[2:] + terms[:2] if mirror_first else terms:
                    total = self._fma(left, right, total).astype(np.float64)
                return total.astype(self.half)

            re = chain((xr, ar), (-xi, ai), (mr, br), (mi, bi))
            im = chain((xr, ai), (xi, ar), (mr, bi), (-mi, br))
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
