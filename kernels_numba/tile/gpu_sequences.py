"""The GPU body's operations on two sequences that are transformed side by side, by the same factors and tables.

A fragment of two complex sequences is [real parts of the first, of the second, imaginary parts of the first, of the
second].
"""

from __future__ import annotations

from typing import Any

from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import pack_tuple, unpack
from kernels_numba.tile.gpu_halves import GpuHalves
from kernels_numba.tile.gpu_zeros import GpuZeros


class GpuSequences(GpuHalves, GpuZeros):
    """Operations of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    def mma_from_parts(self, row_tiles: int, column_tiles: int, k_tiles: int, kept: int) -> Any:
        """Two complex sequences by one factor, of which the real parts are wanted: ``op(factor, data)``.

        ``data``: the B operands of the first and of the second sequence, whose parts are rows. Returns the first
        ``kept`` accumulators of the first sequence, then as many of the second.
        """
        shape = (row_tiles, column_tiles, k_tiles)

        @intrinsic
        def product(typing_context, factor, data):
            result = types.UniTuple(types.float32, 2 * kept)

            def codegen(context, builder, signature, args):
                a = unpack(builder, args[0], row_tiles * k_tiles * 4)
                b = unpack(builder, args[1], 2 * k_tiles * column_tiles * 2)
                middle = len(b) // 2
                found = [self._real_product(builder, a, x, shape)[:kept] for x in (b[:middle], b[middle:])]
                return pack_tuple(context, builder, signature.return_type, found[0] + found[1])

            return result(factor, data), codegen

        return product

    def mma_first(self, row_tiles: int, column_tiles: int, k_tiles: int, kept: int) -> Any:
        """Of the product of an A and a B operand the first ``kept`` accumulators, those of its first rows."""

        @intrinsic
        def product(typing_context, a, b):
            result = types.UniTuple(types.float32, kept)

            def codegen(context, builder, signature, args):
                left, right = (
                    unpack(builder, args[0], row_tiles * k_tiles * 4),
                    unpack(builder, args[1], k_tiles * column_tiles * 2),
                )
                shape = (row_tiles, column_tiles, k_tiles)
                found = self._real_product(builder, left, right, shape)
                return pack_tuple(context, builder, signature.return_type, found[:kept])

            return result(a, b), codegen

        return product

    def multiply_complex_shared(self, count: int) -> Any:
        """``op(a, b)``: two complex sequences of ``count`` registers a part, times the same ``count`` complex ones."""

        @intrinsic
        def product(typing_context, a, b):
            result = types.UniTuple(types.int32, 4 * count)

            def codegen(context, builder, signature, args):
                left, right = unpack(builder, args[0], 4 * count), unpack(builder, args[1], 2 * count)
                re, im = [], []
                for i in range(2 * count):
                    j = i % count
                    given = left[i], left[i + 2 * count], right[j], right[j + count]
                    pair = self.complex_product(builder, *given)  # type: ignore[attr-defined]
                    re.append(pair[0])
                    im.append(pair[1])
                return pack_tuple(context, builder, signature.return_type, re + im)

            return result(a, b), codegen

        return product
