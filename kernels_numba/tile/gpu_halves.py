"""The GPU body's products whose results tensor cores round to halves, so that no instruction has to.

In fp16 sums are halves from one step of a contraction (16 terms) to the next: each step is added up in more precision
and rounded once. A result is two registers where float32 takes four. In bf16, for which there is no such instruction,
sums are float32 and rounded at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import I32, asm, pack_tuple, unpack

MMA = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {$0,$1}, {$2,$3,$4,$5}, {$6,$7}, {$8,$9};"
TWO = ir.LiteralStructType([I32] * 2)
ONES = {"fp16": 0x3C003C00, "bf16": 0x3F803F80}
SIGNS = 0x80008000
Shape = tuple[int, int, int]


class GpuHalves:
    """Operations of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    dtype: str
    round_pair: Any
    _real_product: Any
    _fma: Any

    def half_product(self, builder: Any, a: list, b: list, shape: Shape) -> list:
        """A x B, in registers of two halves in row-group order; for use in code generation."""
        row_tiles, column_tiles, k_tiles = shape
        if self.dtype != "fp16":
            sums = self._real_product(builder, a, b, shape)
            return [self.round_pair(builder, *sums[i : i + 2]) for i in range(0, len(sums), 2)]
        tiles = {(m, n): [ir.Constant(I32, 0)] * 2 for m in range(row_tiles) for n in range(column_tiles)}
        for k in range(k_tiles):
            for (m, n), so_far in tiles.items():
                given = [*a[(m * k_tiles + k) * 4 :][:4], *b[(k * column_tiles + n) * 2 :][:2], *so_far]
                made = asm(builder, TWO, given, MMA, "=r,=r" + ",r" * 8, convergent=True)
                tiles[m, n] = unpack(builder, made, 2)
        return [tiles[y // 2, n][y % 2] for y in range(2 * row_tiles) for n in range(column_tiles)]

    def mma_halves(self, row_tiles: int, column_tiles: int, k_tiles: int) -> Any:
        """As `mma`, rounded to registers of halves."""
        shape = (row_tiles, column_tiles, k_tiles)
        return self._halves_of(shape, (1, 1), lambda builder, a, b: self.half_product(builder, a, b, shape))

    def mma_to_parts_halves(self, row_tiles: int, column_tiles: int, k_tiles: int) -> Any:
        """Two real sequences by one complex factor, rounded to registers of halves: ``op(factor, data)``.

        ``factor`` is the A operand of [real parts; imaginary parts] [16 row_tiles, 16 k_tiles], ``data`` the B operands
        of the first and of the second sequence. Returns two complex sequences.
        """
        shape, part = (row_tiles, column_tiles, k_tiles), row_tiles * column_tiles

        def both(builder: Any, a: list, b: list) -> list:
            middle = len(b) // 2
            found = [self.half_product(builder, a, x, shape) for x in (b[:middle], b[middle:])]
            return [*found[0][:part], *found[1][:part], *found[0][part:], *found[1][part:]]

        return self._halves_of(shape, (1, 2), both)

    def dft_rows_halves(self, row_tiles: int, column_tiles: int, k_tiles: int, *, inverse: bool) -> Any:
        """As `dft_rows`, rounded to registers of halves before outputs and mirrors are added up, in halves too."""
        shape, width = (row_tiles, column_tiles, k_tiles), row_tiles * column_tiles
        pairs = [(i, i + width) for i in range(width)]

        def added(builder: Any, a: list, b: list) -> list:
            middle = len(b) // 2
            p, q = (self.half_product(builder, a, x, shape) for x in (b[:middle], b[middle:]))
            return self.added_halves(builder, p, q, pairs, inverse=inverse)

        return self._halves_of(shape, (1, 2), added)

    def dft_columns_halves(self, row_tiles: int, column_tiles: int, k_tiles: int, *, inverse: bool) -> Any:
        """As `dft_columns`, rounded to registers of halves before outputs and mirrors are added up, in halves too."""
        shape, half = (row_tiles, column_tiles, k_tiles), column_tiles // 2
        starts = [y * column_tiles + n for y in range(2 * row_tiles) for n in range(half)]
        pairs = [(i, i + half) for i in starts]

        def added(builder: Any, a: list, b: list) -> list:
            middle = len(a) // 2
            p, q = (self.half_product(builder, x, b, shape) for x in (a[:middle], a[middle:]))
            return self.added_halves(builder, p, q, pairs, inverse=inverse)

        return self._halves_of(shape, (2, 1), added)

    def _halves_of(
        self, shape: Shape, parts: tuple[int, int], make: Callable[[Any, list, list], list]
    ) -> Any:
        """``op(a, b)`` by ``make``, of operands of so many ``parts``."""
        row_tiles, column_tiles, k_tiles = shape
        left, right = parts[0] * row_tiles * k_tiles * 4, parts[1] * k_tiles * column_tiles * 2
        count = max(parts) * 2 * row_tiles * column_tiles

        @intrinsic
        def product(typing_context, a, b):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                words = make(builder, unpack(builder, args[0], left), unpack(builder, args[1], right))
                return pack_tuple(context, builder, signature.return_type, words)

            return result(a, b), codegen

        return product

    def added_halves(
        self, builder: Any, p: list, q: list, pairs: list[tuple[int, int]], *, inverse: bool
    ) -> list:
        """Outputs and mirrors from W Re z and W Im z, registers of halves; for use in code generation.

        ``pairs``: registers that are an output and its mirror. Registers of real parts, then imaginary ones.
        """
        one, minus_one = (ir.Constant(I32, ONES[self.dtype] ^ sign) for sign in (0, SIGNS))
        fma = self._fma
        re: list[Any] = [None] * len(p)
        im: list[Any] = [None] * len(p)
        for i, j in pairs:
            a, e, d, b = p[i], p[j], q[i], q[j]
            plus = fma(builder, b, one, a), fma(builder, e, minus_one, d)
            minus = fma(builder, b, minus_one, a), fma(builder, e, one, d)
            if inverse:
                plus, minus = minus, plus
            re[i], im[i] = plus
            re[j], im[j] = minus
        return re + im
