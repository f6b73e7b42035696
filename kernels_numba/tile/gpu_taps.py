"""The GPU body's operations on short filters: sums of a few neighbours of halves, in float32."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import F32, I16, I32, asm, pack_tuple, unpack
from kernels_numba.tile.layout import edge_words

FUSED = "fma.rn.f32 $0, $1, $2, $3;"


class GpuTaps:
    """Short filters; :class:`kernels_numba.tile.gpu_vocabularies.GpuFloats` inherits them."""

    dtype: str

    def _floats(self, builder: Any, words: list) -> list:
        """The halves of some registers as float32, in order."""
        found = []
        for word in words:
            if self.dtype == "bf16":
                bits = builder.shl(word, ir.Constant(I32, 16)), builder.and_(word, ir.Constant(I32, -(2**16)))
                found += [builder.bitcast(x, F32) for x in bits]
                continue
            for part in (word, builder.lshr(word, ir.Constant(I32, 16))):
                found.append(asm(builder, F32, [builder.trunc(part, I16)], "cvt.f32.f16 $0, $1;", "=f,h"))
        return found

    def _windows(
        self, builder: Any, x: Any, edge: Any, shape: tuple[int, int, int], ahead: bool
    ) -> list[list]:
        """For each chunk its halves, and those of its edge before or after them, as float32."""
        chunks, words, taps = shape
        more = edge_words(taps)
        inner, outer = unpack(builder, x, chunks * words), unpack(builder, edge, chunks * more)
        found = []
        for i in range(chunks):
            own = self._floats(builder, inner[i * words : (i + 1) * words])
            other = self._floats(builder, outer[i * more : (i + 1) * more])
            found.append(own + other if ahead else other[2 * more - (taps - 1) :] + own)
        return found

    def filter_taps(self, chunks: int, words: int, taps: int, *, ahead: bool) -> Any:
        """``op(x, edge, weights)``: sums of ``taps`` neighbours, float32, of ``chunks`` pieces of ``words`` registers.

        Element i of a piece has the elements up to i, the last weight for itself; the ``edge`` of a piece (see
        `layout.edge_words`) are the halves before it. With ``ahead`` i and those after it, the last weight for i again,
        and the edge is what follows.
        """

        @intrinsic
        def filtered(typing_context, x, edge, weights):
            result = types.UniTuple(types.float32, 2 * chunks * words)

            def codegen(context, builder, signature, args):
                weights = unpack(builder, args[2], taps)
                ordered = weights[::-1] if ahead else weights
                out = []
                for window in self._windows(builder, args[0], args[1], (chunks, words, taps), ahead):
                    for i in range(2 * words):
                        total = builder.fmul(ordered[0], window[i])
                        for t in range(1, taps):
                            given = [ordered[t], window[i + t], total]
                            total = asm(builder, F32, given, FUSED, "=f,f,f,f")
                        out.append(total)
                return pack_tuple(context, builder, signature.return_type, out)

            return result(x, edge, weights), codegen

        return filtered

    def add_taps(self, chunks: int, words: int, taps: int) -> Any:
        """``op(sums, dy, x, edge)``: for each tap the sum, in float32, of dy times the element of x that it weighs."""

        @intrinsic
        def added(typing_context, sums, dy, x, edge):
            result = types.UniTuple(types.float32, taps)

            def codegen(context, builder, signature, args):
                sums, changes = unpack(builder, args[0], taps), unpack(builder, args[1], chunks * words)
                windows = self._windows(builder, args[2], args[3], (chunks, words, taps), False)
                for number, window in enumerate(windows):
                    change = self._floats(builder, changes[number * words : (number + 1) * words])
                    for i, value in enumerate(change):
                        for t in range(taps):
                            given = [value, window[i + t], sums[t]]
                            sums[t] = asm(builder, F32, given, FUSED, "=f,f,f,f")
                return pack_tuple(context, builder, signature.return_type, sums)

            return result(sums, dy, x, edge), codegen

        return added

    def over_lanes(self, count: int) -> Any:
        """``op(values)``: each float32 summed over the warp's lanes, the same sum in all of them (butterfly)."""

        @intrinsic
        def total(typing_context, values):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                sums = unpack(builder, args[0], count)
                for distance in (16, 8, 4, 2, 1):
                    text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"
                    others = [asm(builder, F32, [x], text, "=f,f", convergent=True) for x in sums]
                    sums = [builder.fadd(x, y) for x, y in zip(sums, others, strict=True)]
                return pack_tuple(context, builder, signature.return_type, sums)

            return result(values), codegen

        return total
