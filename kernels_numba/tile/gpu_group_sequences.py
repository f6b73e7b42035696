"""The GPU body's operations of warpgroups on two sequences that are transformed side by side; see `gpu_warpgroup.py`.

Both are worked on by the same factors and tables. A fragment of them is the registers of the first, then those of the
second, each [real parts, imaginary parts] [row group, column tile].
"""

from __future__ import annotations

from typing import Any

from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import butterfly, pack_tuple, unpack
from kernels_numba.tile.gpu_sequences import GpuSequences
from kernels_numba.tile.gpu_warpgroup import (
    CONSTANT_STRIDES,
    GpuWarpgroup,
    _by_row_groups,
    _place,
    _table_words,
)

LEFT_STEP = 64 * 32
"""Bytes of a left operand for one step of a contraction."""


class GpuGroupSequences(GpuSequences, GpuWarpgroup):
    """Operations of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    def group_to_parts_times(self, columns: int, k_tiles: int, *, along: int, across: int, table: str) -> Any:
        """Contract the rows of two real sequences with a complex factor of 64 rows: ``op(factor, data, source, at)``.

        Word offsets as `group_dft_rows` has them; ``factor`` is that of the real parts, then that of the imaginary
        ones, and the ``columns`` of the second sequence follow those of the first. Rounded and multiplied by a table,
        as `group_dft_rows_times` does, the same for both.
        """
        part_bytes, each = k_tiles * LEFT_STEP, columns // 2

        @intrinsic
        def product(typing_context, factor, data, source, at):
            result = types.UniTuple(types.int32, columns)

            def codegen(context, builder, signature, args):
                places = [_place(builder, x) for x in args[:2]]
                steps = [
                    [(0, part * part_bytes + LEFT_STEP * k, 2 * along * k) for k in range(k_tiles)]
                    for part in range(2)
                ]
                # In groups of their own: of one group ptxas 13 has taken the first products of both parts for the same.
                begun = [
                    self._begin_products(
                        builder, 2 * columns, places[:1], places[1], [step], (along, across), transposed=True
                    )
                    for step in steps
                ]
                parts = [self._await_products(builder, x, 1, pending=1 - i)[0] for i, x in enumerate(begun)]
                # There are no registers for it before.
                factors = _table_words(builder, args[2:], table, 0, columns // 2)
                words = []
                for i in range(2):
                    re, im = (_by_row_groups(x[i * each : (i + 1) * each]) for x in parts)
                    words += self._rounded_times(builder, re, im, factors)
                return pack_tuple(context, builder, signature.return_type, words)

            return result(types.int64, types.int64, source, types.int64), codegen

        return product

    def group_dft_columns_of_both(self, columns: int, k_tiles: int, *, inverse: bool, table: str) -> Any:
        """As `group_dft_columns_times`, of two sequences by the same table: ``op(data, factor, source, at)``."""
        half, count = columns // 16, 8 * k_tiles
        pairs = [
            ((y * 2 * half + n) * 2 + e, (y * 2 * half + n + half) * 2 + e, False)
            for y in range(2)
            for n in range(half)
            for e in range(2)
        ]
        steps = [
            [(part * 4 * k_tiles + 4 * k, 0, 32 * columns * k) for k in range(k_tiles)] for part in range(2)
        ]

        @intrinsic
        def product(typing_context, data, factor, source, at):
            result = types.UniTuple(types.int32, columns)

            def codegen(context, builder, signature, args):
                left, right = unpack(builder, args[0], 2 * count), _place(builder, args[1])
                factors: list[Any] = []

                def load() -> None:
                    factors.extend(_table_words(builder, args[2:], table, 0, columns // 2))

                words = []
                for i in range(2):
                    mine, meanwhile = left[i * count : (i + 1) * count], None if i else load
                    p, q = self._group_products(
                        builder, columns, mine, right, steps, CONSTANT_STRIDES, meanwhile, transposed=False
                    )
                    re, im = butterfly(
                        builder, _by_row_groups(p), _by_row_groups(q), pairs, inverse=inverse, special=None
                    )
                    words += self._rounded_times(builder, re, im, factors)
                return pack_tuple(context, builder, signature.return_type, words)

            return result(data, types.int64, source, types.int64), codegen

        return product

    def group_from_parts(self, columns: int, k_tiles: int, *, along: int, across: int) -> Any:
        """Contract the rows of two sequences' parts with a real factor of 64 rows: ``op(factor, data)``.

        Returns float32 accumulators of the first sequence, then of the second, [row group, column tile, 2].
        """
        each = columns // 2

        @intrinsic
        def product(typing_context, factor, data):
            result = types.UniTuple(types.float32, columns)

            def codegen(context, builder, signature, args):
                places = [_place(builder, x) for x in args]
                steps = [[(0, LEFT_STEP * k, 2 * along * k) for k in range(k_tiles)]]
                (found,) = self._group_products(
                    builder, 2 * columns, places[:1], places[1], steps, (along, across), None, transposed=True
                )
                values = [v for i in range(2) for v in _by_row_groups(found[i * each : (i + 1) * each])]
                return pack_tuple(context, builder, signature.return_type, values)

            return result(types.int64, types.int64), codegen

        return product
