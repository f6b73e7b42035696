"""The tile layer on the GPU: each operation is a Numba intrinsic that emits LLVM IR and inline PTX.

A fragment is a ``UniTuple`` of registers. Loops over registers run in Python while the code is generated, so
that Numba's type inference sees one call per tile operation and the machine code is straight-line. A complex
fragment is one tuple: the real parts' registers first, then the imaginary parts'.

Pure arithmetic is emitted without side effects, which lets the compiler schedule it; memory operations and
``.sync`` instructions are marked as what they are. The CPU body (`cpu.py`) has the same names and arguments.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic, register_jitable

from kernels_numba.tile.gpu_correlation import GpuCorrelation
from kernels_numba.tile.gpu_emit import (
    F32,
    I32,
    I64,
    asm,
    butterfly,
    pack_tuple,
    special_register,
    statement,
    unpack,
)
from kernels_numba.tile.gpu_group_sequences import GpuGroupSequences
from kernels_numba.tile.gpu_held import GpuHeld
from kernels_numba.tile.gpu_memory import GpuMemory
from kernels_numba.tile.gpu_moves import GpuMoves
from kernels_numba.tile.gpu_prefetch import GpuPrefetch
from kernels_numba.tile.gpu_swaps import GpuSwaps
from kernels_numba.tile.gpu_words import GpuWords

PTX = {
    "fp16": {
        "mma": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "pack": "cvt.rn.f16x2.f32",
        "fma": "fma.rn.f16x2",
        "neg": "neg.f16x2",
    },
    "bf16": {
        "mma": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "pack": "cvt.rn.bf16x2.f32",
        "fma": "fma.rn.bf16x2",
        "neg": "neg.bf16x2",
    },
}
# -0.0 twice: a * b + (-0.0) is the correctly rounded product with the right sign of zero in both formats
# (mul.rn.bf16x2 exists only from sm_90 on).
NEGATIVE_ZEROS = 0x80008000


@intrinsic
def lane(typing_context):
    """Lane index in the warp, 0..31."""

    def codegen(context, builder, signature, args):
        thread = asm(builder, I32, [], "mov.u32 $0, %tid.x;", "=r")
        return builder.zext(builder.and_(thread, ir.Constant(I32, 31)), I64)

    return types.int64(), codegen


@intrinsic
def warp(typing_context):
    """Warp index in the block, the same in all lanes."""

    def codegen(context, builder, signature, args):
        thread = asm(builder, I32, [], "mov.u32 $0, %tid.x;", "=r")
        index = builder.lshr(thread, ir.Constant(I32, 5))
        # A shuffle tells the compiler that the value is uniform: branches on it need no reconvergence code.
        uniform = asm(
            builder, I32, [index], "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", "=r,r", convergent=True
        )
        return builder.zext(uniform, I64)

    return types.int64(), codegen


@intrinsic
def divide(typing_context, a, b):
    """Quotient of non-negative 32-bit integers (without Python's sign and zero checks)."""

    def codegen(context, builder, signature, args):
        quotient = builder.udiv(*(builder.trunc(x, I32) for x in args))
        return builder.zext(quotient, I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def opaque(typing_context, value):
    """A 32-bit value that LLVM cannot see through: it does not unroll a loop of so many turns.

    The assembler does as it likes: it unrolls what is short, or begins where it knows, but not a warp's share of work.
    """

    def codegen(context, builder, signature, args):
        return asm(builder, I32, [args[0]], "mov.b32 $0, $1;", "=r,r", effect=True)

    return types.int32(types.int32), codegen


class GpuTile(
    GpuCorrelation, GpuGroupSequences, GpuHeld, GpuMemory, GpuMoves, GpuPrefetch, GpuSwaps, GpuWords
):
    """What all vocabularies share, for one half-precision type ("fp16" or "bf16") or for "fp32"."""

    name = "gpu"
    small = types.int32
    int64 = types.int64
    one = 1.0
    lane = staticmethod(lane)
    warp = staticmethod(warp)
    divide = staticmethod(divide)
    opaque = staticmethod(opaque)
    subroutine = staticmethod(register_jitable)
    """As :meth:`function`, but left to the compiler, and free to assign to its arguments."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.ptx = PTX.get(dtype, {})

    def function(self, function: Any) -> Any:
        """A Python function that a kernel calls in several places; it becomes part of the kernel at each."""
        return register_jitable(inline="always")(function)

    # ---- places and order ----------------------------------------------------------------------------------
    @cached_property
    def block(self) -> Any:
        """Block index."""
        return special_register("ctaid.x")

    @cached_property
    def barrier(self) -> Any:
        """All warps of the block meet here."""
        return statement("bar.sync 0;", convergent=True)

    @cached_property
    def warp_sync(self) -> Any:
        """Shared-memory writes of the warp's lanes become visible to its other lanes."""
        return statement("bar.warp.sync 0xffffffff;", convergent=True)

    @cached_property
    def commit(self) -> Any:
        """Close a group of asynchronous copies."""
        return statement("cp.async.commit_group;")

    def wait(self, pending: int) -> Any:
        """Wait until at most ``pending`` groups of this lane's asynchronous copies are under way."""
        return statement(f"cp.async.wait_group {pending};")

    def follow(self, *, overlap: bool) -> Any:
        """Order of launches that overlap (compute capability 9): wait for the one before, and let the next one start.

        From here on what the launch before wrote is visible, and the next may begin as blocks of this one end. Without
        ``overlap`` nothing.
        """
        return statement("griddepcontrol.wait; griddepcontrol.launch_dependents;" if overlap else "")

    # ---- products ------------------------------------------------------------------------------------------
    def dft_rows(
        self,
        row_tiles: int,
        column_tiles: int,
        k_tiles: int,
        *,
        inverse: bool,
        self_paired: int = 0,
        lower_half: bool = False,
    ) -> Any:
        """Contract the rows of complex data with a DFT factor in cosine/sine form: ``op(factor, data)``.

        ``factor`` is the A operand of the real matrix [cosines; sines] [16 row_tiles, 16 k_tiles], ``data`` a
        complex B operand. Four real products of half the height give output q and its mirror by one addition
        each (see ``docs/kernels.md``). Returns complex float32 accumulators by row group: the first half of
        the groups holds the outputs q, the second half their mirrors (``lower_half`` returns the first half
        alone). ``self_paired``: row 0 of the sines holds the alternating signs of output n/2, which has no
        mirror; a number says after how many rows of the first group the next such row comes (8: it is the only one).
        """
        groups, half = 2 * row_tiles, row_tiles
        period = 8 if self_paired is True else self_paired
        pairs = [
            ((y * column_tiles + n) * 2 + e, ((y + half) * column_tiles + n) * 2 + e, period > 0 and y == 0)
            for y in range(half)
            for n in range(column_tiles)
            for e in range(2)
        ]
        count = groups * column_tiles * 2
        kept = count // 2 if lower_half else count

        @intrinsic
        def product(typing_context, factor, data):
            result = types.UniTuple(types.float32, 2 * kept)

            def codegen(context, builder, signature, args):
                a = unpack(builder, args[0], row_tiles * k_tiles * 4)
                b = unpack(builder, args[1], 2 * k_tiles * column_tiles * 2)
                middle = len(b) // 2
                shape = (row_tiles, column_tiles, k_tiles)
                p = self._real_product(builder, a, b[:middle], shape)
                q = self._real_product(builder, a, b[middle:], shape)
                special = None
                if period:
                    thread = asm(builder, I32, [], "mov.u32 $0, %tid.x;", "=r")
                    group = builder.and_(thread, ir.Constant(I32, 4 * (period - 1)))
                    special = builder.icmp_unsigned("==", group, ir.Constant(I32, 0))
                re, im = butterfly(builder, p, q, pairs, inverse=inverse, special=special)
                return pack_tuple(context, builder, signature.return_type, re[:kept] + im[:kept])

            return result(factor, data), codegen

        return product

    def dft_columns(self, row_tiles: int, column_tiles: int, k_tiles: int, *, inverse: bool) -> Any:
        """Contract the columns of complex data with a DFT factor in cosine/sine form: ``op(data, factor)``.

        ``data`` is a complex A operand, ``factor`` the B operand of the real matrix [cosines, sines]
        [16 k_tiles, 8 column_tiles]; outputs fill the first half of the column tiles, mirrors the second.
        """
        groups, half = 2 * row_tiles, column_tiles // 2
        pairs = [
            ((y * column_tiles + n) * 2 + e, (y * column_tiles + n + half) * 2 + e, False)
            for y in range(groups)
            for n in range(half)
            for e in range(2)
        ]
        count = groups * column_tiles * 2

        @intrinsic
        def product(typing_context, data, factor):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                a = unpack(builder, args[0], 2 * row_tiles * k_tiles * 4)
                b = unpack(builder, args[1], k_tiles * column_tiles * 2)
                middle = len(a) // 2
                shape = (row_tiles, column_tiles, k_tiles)
                p = self._real_product(builder, a[:middle], b, shape)
                q = self._real_product(builder, a[middle:], b, shape)
                re, im = butterfly(builder, p, q, pairs, inverse=inverse, special=None)
                return pack_tuple(context, builder, signature.return_type, re + im)

            return result(data, factor), codegen

        return product

    def mma(self, row_tiles: int, column_tiles: int, k_tiles: int, *, chains: int = 1) -> Any:
        """Real product: ``op(a, b)`` of an A and a B operand; float32 accumulators by row group.

        ``chains``: as many sums that do not wait for each other, added at the end.
        """
        count = 4 * row_tiles * column_tiles

        @intrinsic
        def product(typing_context, a, b):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                left = unpack(builder, args[0], row_tiles * k_tiles * 4)
                right = unpack(builder, args[1], k_tiles * column_tiles * 2)
                c: list = []
                for first in range(chains):
                    steps = range(first, k_tiles, chains)
                    some_left = [
                        left[(m * k_tiles + k) * 4 + r]
                        for m in range(row_tiles)
                        for k in steps
                        for r in range(4)
                    ]
                    some_right = [
                        right[k * column_tiles * 2 + r] for k in steps for r in range(column_tiles * 2)
                    ]
                    part = self._real_product(
                        builder, some_left, some_right, (row_tiles, column_tiles, len(steps))
                    )
                    c = part if not c else [builder.fadd(x, y) for x, y in zip(c, part, strict=True)]
                return pack_tuple(context, builder, signature.return_type, c)

            return result(a, b), codegen

        return product

    def _real_product(self, builder: Any, a: list, b: list, shape: tuple[int, int, int]) -> list:
        """A x B from zero; accumulators in row-group order."""
        row_tiles, column_tiles, k_tiles = shape
        text = self.ptx["mma"] + " {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
        four = ir.LiteralStructType([F32] * 4)
        zero = ir.Constant(F32, 0.0)
        tiles = {(m, n): [zero] * 4 for m in range(row_tiles) for n in range(column_tiles)}
        for k in range(k_tiles):
            for m in range(row_tiles):
                for n in range(column_tiles):
                    left = a[(m * k_tiles + k) * 4 :][:4]
                    right = b[(k * column_tiles + n) * 2 :][:2]
                    result = asm(
                        builder,
                        four,
                        [*left, *right, *tiles[m, n]],
                        text,
                        "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3",
                        convergent=True,
                    )
                    tiles[m, n] = unpack(builder, result, 4)
        return [
            tiles[y // 2, n][2 * (y % 2) + e]
            for y in range(2 * row_tiles)
            for n in range(column_tiles)
            for e in range(2)
        ]

    # ---- arithmetic on registers ---------------------------------------------------------------------------
    def pack(self, count: int, *, swap: tuple[int, ...] = ()) -> Any:
        """Round ``2 count`` float32 to ``count`` registers of two halves, those in ``swap`` reversed."""

        @intrinsic
        def rounded(typing_context, values):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                floats = unpack(builder, args[0], 2 * count)
                words = []
                for i in range(count):
                    low, high = floats[2 * i], floats[2 * i + 1]
                    if i in swap:
                        low, high = high, low
                    words.append(self.round_pair(builder, low, high))
                return pack_tuple(context, builder, signature.return_type, words)

            return result(values), codegen

        return rounded

    def round_pair(self, builder: Any, low: Any, high: Any) -> Any:
        """One register of two halves from two float32; for use in code generation."""
        return asm(builder, I32, [high, low], self.ptx["pack"] + " $0, $1, $2;", "=r,f,f")

    def scale(self, count: int) -> Any:
        """Multiply ``count`` float32 by one float32: ``op(values, factor)``."""

        @intrinsic
        def scaled(typing_context, values, factor):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                products = [builder.fmul(v, args[1]) for v in unpack(builder, args[0], count)]
                return pack_tuple(context, builder, signature.return_type, products)

            return result(values, types.float32), codegen

        return scaled

    def _fma(self, builder: Any, a: Any, b: Any, c: Any) -> Any:
        return asm(builder, I32, [a, b, c], self.ptx["fma"] + " $0, $1, $2, $3;", "=r,r,r,r")

    def _multiply(self, builder: Any, a: Any, b: Any) -> Any:
        return self._fma(builder, a, b, ir.Constant(I32, NEGATIVE_ZEROS))

    def multiply(self, count: int) -> Any:
        """Elementwise product of two fragments of halves."""

        @intrinsic
        def product(typing_context, a, b):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                left, right = (unpack(builder, x, count) for x in args)
                words = [self._multiply(builder, x, y) for x, y in zip(left, right, strict=True)]
                return pack_tuple(context, builder, signature.return_type, words)

            return result(a, b), codegen

        return product

    def complex_product(self, builder: Any, xr: Any, xi: Any, yr: Any, yi: Any) -> tuple[Any, Any]:
        """Real and imaginary part of x y, registers of two halves; for use in code generation."""
        minus = asm(builder, I32, [xi], self.ptx["neg"] + " $0, $1;", "=r,r")
        return (
            self._fma(builder, xr, yr, self._multiply(builder, minus, yi)),
            self._fma(builder, xr, yi, self._multiply(builder, xi, yr)),
        )

    def multiply_complex(self, count: int) -> Any:
        """Elementwise complex product of two fragments of ``count`` real and ``count`` imaginary registers.

        Each part is one rounded product and one fused multiply-add.
        """

        @intrinsic
        def product(typing_context, a, b):
            result = types.UniTuple(types.int32, 2 * count)

            def codegen(context, builder, signature, args):
                left, right = (unpack(builder, x, 2 * count) for x in args)
                re, im = [], []
                for i in range(count):
                    pair = self.complex_product(builder, left[i], left[i + count], right[i], right[i + count])
                    re.append(pair[0])
                    im.append(pair[1])
                return pack_tuple(context, builder, signature.return_type, re + im)

            return result(a, b), codegen

        return product

    def multiply_mirror(self, count: int, *, mirror_first: bool = False) -> Any:
        """``op(x, a, m, b)``: x a + conj(m) b elementwise, complex fragments of ``count`` registers a part.

        One rounded product and three fused multiply-adds for each part, those of conj(m) b last or first: sums are
        rounded as they grow, so the lesser ones had better come first.
        """

        @intrinsic
        def product(typing_context, x, a, m, b):
            result = types.UniTuple(types.int32, 2 * count)

            def codegen(context, builder, signature, args):
                x, a, m, b = (unpack(builder, v, 2 * count) for v in args)
                re: list = []
                im: list = []
                for i in range(count):
                    j = i + count
                    x_less, m_less = (
                        asm(builder, I32, [v], self.ptx["neg"] + " $0, $1;", "=r,r") for v in (x[j], m[j])
                    )
                    for out, own, mirrored in (
                        (re, [(x[i], a[i]), (x_less, a[j])], [(m[i], b[i]), (m[j], b[j])]),
                        (im, [(x[i], a[j]), (x[j], a[i])], [(m[i], b[j]), (m_less, b[i])]),
                    ):
                        first, *rest = mirrored + own if mirror_first else own + mirrored
                        total = self._multiply(builder, *first)
                        for left, right in rest:
                            total = self._fma(builder, left, right, total)
                        out.append(total)
                return pack_tuple(context, builder, signature.return_type, re + im)

            return result(x, a, m, b), codegen

        return product
