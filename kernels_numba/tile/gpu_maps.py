"""The GPU body's operations on maps: windows of images, complex numbers of two halves in one word.

A *point* is a complex number in one 32-bit word, its real part in the low half.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import (
    F32,
    I16,
    I32,
    I64,
    VOID,
    asm,
    global_pointer,
    load_shared_words,
    pack_tuple,
    shared_address,
    unpack,
)

ONES = {"fp16": 0x3C003C00, "bf16": 0x3F803F80}
"""1.0 twice."""
LOW_SIGN, HIGH_SIGN = 0x00008000, 0x80000000
EXCHANGED = 0x1032  # selector of prmt: the halves of a register, exchanged


class GpuMaps:
    """Operations on maps; :class:`kernels_numba.tile.gpu_vocabularies.GpuLayers` inherits them."""

    ptx: dict[str, str]
    dtype: str
    # What `GpuTile` has beside these:
    round_pair: Any
    _fma: Any

    # ---- windows of images ---------------------------------------------------------------------------------
    def load_window(self, groups: int, words: int, halves: int, *, spread: bool = False) -> Any:
        """Load rows of an image: ``op(source, base, pitch, row, column, height, width, down, across)``.

        A lane takes ``2 words`` neighbouring columns of each of ``groups`` rows, 8 apart, ``halves`` in one access;
        what is not in the image, ``0 <= row < height`` and ``0 <= column < width``, is zero. Where ``halves`` is over
        1, columns and widths must be multiples of it. Element (r, c) lies at ``base + r pitch + c``. ``spread``: image
        sample i stands at row ``i down`` (and column ``i across``), zeros between; else these two are not used.
        The result is an A operand (`layout.a_index`) whose column slots are dealt so that those of a lane are
        neighbours: rows 16 m + g + 8 (r & 1), word 2 k + (r >> 1) of the lane's columns in register (m, k, r).
        """
        per = max(halves // 2, 1)
        letters = {8: "v4.b32", 4: "v2.b32", 2: "b32", 1: "b16"}[halves]
        letter = "h" if halves == 1 else "r"
        zero = " ".join(f"mov.b{16 if halves == 1 else 32} ${i}, 0;" for i in range(per))
        names = ", ".join(f"${i}" for i in range(per))
        names = "{" + names + "}" if per > 1 else names
        text = f"{{.reg .pred p; setp.ne.b32 p, ${per + 1}, 0; {zero} @p ld.global.{letters} {names}, [${per}];}}"
        constraints = ",".join([f"=&{letter}"] * per) + ",l,r,~{memory}"
        kind = I16 if halves == 1 else I32
        returns = ir.LiteralStructType([kind] * per) if per > 1 else kind

        @intrinsic
        def load(typing_context, source, base, pitch, row, column, height, width, down, across):
            result = types.UniTuple(types.int32, groups * words)

            def codegen(context, builder, signature, args):
                pointer, base, pitch, row, column, height, width, down, across = args
                found: list = [None] * (groups * words)
                columns = []
                for i in range(0, 2 * words, halves):
                    at = builder.add(column, ir.Constant(I64, i))
                    columns.append(_inside(builder, at, width, across, spread))
                for y in range(groups):
                    at, inside = _inside(
                        builder, builder.add(row, ir.Constant(I64, 8 * y)), height, down, spread
                    )
                    start = builder.add(base, builder.mul(at, pitch))
                    parts = []
                    for place, here in columns:
                        ok = builder.and_(inside, here)
                        # An address outside the buffer is formed and not used.
                        address = global_pointer(builder, pointer, builder.add(start, place), I16)
                        value = asm(
                            builder,
                            returns,
                            [address, builder.zext(ok, I32)],
                            text,
                            constraints,
                            effect=True,
                        )
                        parts += unpack(builder, value, per) if per > 1 else [value]
                    if halves == 1:
                        wide = [builder.zext(x, I32) for x in parts]
                        parts = [
                            builder.or_(wide[i], builder.shl(wide[i + 1], ir.Constant(I32, 16)))
                            for i in range(0, len(wide), 2)
                        ]
                    for w, word in enumerate(parts):
                        found[window_register(y, w, words)] = word
                return pack_tuple(context, builder, signature.return_type, found)

            return result(source, *[types.int64] * 8), codegen

        return load

    def store_window(self, groups: int, tiles: int, halves: int, *, spread: bool = False) -> Any:
        """Store accumulators to an image: ``op(target, base, pitch, row, column, height, width, down, across, c)``.

        ``c`` is float32 by row group [groups, tiles, 2]; a lane's first element is at ``row``, ``column``, the others
        8 rows and 8 columns on. Stored, rounded, is what is inside as in :meth:`load_window`; ``spread``: every
        ``down``-th row and ``across``-th column only, at ``row / down``. ``halves`` (2 or 1) go in one access.
        """

        @intrinsic
        def put(typing_context, target, base, pitch, row, column, height, width, down, across, c):
            signature = types.void(target, *[types.int64] * 8, c)

            def codegen(context, builder, signature, args):
                pointer, base, pitch, row, column, height, width, down, across, value = args
                values = unpack(builder, value, 2 * groups * tiles)
                columns = [
                    [
                        _inside(
                            builder, builder.add(column, ir.Constant(I64, 8 * n + e)), width, across, spread
                        )
                        for e in range(0, 2, halves)
                    ]
                    for n in range(tiles)
                ]
                for y in range(groups):
                    at, inside = _inside(
                        builder, builder.add(row, ir.Constant(I64, 8 * y)), height, down, spread
                    )
                    start = builder.add(base, builder.mul(at, pitch))
                    for n in range(tiles):
                        low, high = values[2 * (y * tiles + n) :][:2]
                        word = self.round_pair(builder, low, high)
                        for e, (place, here) in enumerate(columns[n]):
                            ok = builder.zext(builder.and_(inside, here), I32)
                            address = global_pointer(builder, pointer, builder.add(start, place), I16)
                            if halves == 2:
                                store = "@p st.global.b32 [$0], $1;}"
                            else:
                                part = "{v, o}" if e == 0 else "{o, v}"
                                store = f".reg .b16 v, o; mov.b32 {part}, $1; @p st.global.b16 [$0], v;}}"
                            text = "{.reg .pred p; setp.ne.b32 p, $2, 0; " + store
                            asm(builder, VOID, [address, word, ok], text, "l,r,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return put

    # ---- points ------------------------------------------------------------------------------------------
    def pack_points(self, count: int) -> Any:
        """Round ``count`` real and ``count`` imaginary parts, float32, to points: ``op(values)``."""

        @intrinsic
        def rounded(typing_context, values):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                floats = unpack(builder, args[0], 2 * count)
                words = [self.round_pair(builder, floats[i], floats[count + i]) for i in range(count)]
                return pack_tuple(context, builder, signature.return_type, words)

            return result(values), codegen

        return rounded

    def fold_mirrors(self, count: int) -> Any:
        """Points p, then their mirrors m, ``count`` of each: ``op(points)`` gives p + m, and -i (p - m), rounded."""

        @intrinsic
        def folded(typing_context, points):
            result = types.UniTuple(types.int32, 2 * count)

            def codegen(context, builder, signature, args):
                words = unpack(builder, args[0], 2 * count)
                one = ir.Constant(I32, ONES[self.dtype])
                sums, differences = [], []
                for p, m in zip(words[:count], words[count:], strict=True):
                    sums.append(self._fma(builder, p, one, m))
                    less = asm(builder, I32, [m], self.ptx["neg"] + " $0, $1;", "=r,r")
                    turned = _exchanged(builder, self._fma(builder, p, one, less))
                    differences.append(builder.xor(turned, ir.Constant(I32, HIGH_SIGN)))
                return pack_tuple(context, builder, signature.return_type, sums + differences)

            return result(points), codegen

        return folded

    def complex_columns(self, count: int, *, conjugate: bool) -> Any:
        """Operands of a complex product in real arithmetic, from points w: ``op(points)``, ``2 count`` registers.

        A product contracts halves, so x times the first ``count`` registers is the real part of x w, and times the
        others the imaginary part; with ``conjugate`` of x conj(w).
        """

        @intrinsic
        def operands(typing_context, points):
            result = types.UniTuple(types.int32, 2 * count)

            def codegen(context, builder, signature, args):
                words = unpack(builder, args[0], count)
                real, imaginary = [], []
                for word in words:
                    other = _exchanged(builder, word)
                    if conjugate:
                        real.append(word)
                        imaginary.append(builder.xor(other, ir.Constant(I32, LOW_SIGN)))
                    else:
                        real.append(builder.xor(word, ir.Constant(I32, HIGH_SIGN)))
                        imaginary.append(other)
                return pack_tuple(context, builder, signature.return_type, real + imaginary)

            return result(points), codegen

        return operands

    def store_points(self, row_groups: int, column_tiles: int) -> Any:
        """Store a matrix of points: ``op(target, at, stride, rows, columns, c)``.

        ``c`` is float32 by row group, ``column_tiles`` of real parts beside as many of imaginary ones, as products with
        `complex_columns` make it. Lane offset ``at`` and ``stride`` between rows are in words and even. Row group y is
        stored where ``8 y < rows``, columns ``8 n`` and ``8 n + 1`` of it where ``8 n < columns``.
        """
        count = 4 * row_groups * column_tiles

        @intrinsic
        def put(typing_context, target, at, stride, rows, columns, c):
            signature = types.void(target, *[types.int64] * 4, c)

            def codegen(context, builder, signature, args):
                pointer, at, stride, rows, columns, value = args
                values = unpack(builder, value, count)
                step = builder.mul(stride, ir.Constant(I64, 8))
                for y in range(row_groups):
                    inside = builder.icmp_signed(">", rows, ir.Constant(I64, 8 * y))
                    address = global_pointer(builder, pointer, at, I32)
                    for n in range(column_tiles):
                        real, imaginary = (
                            values[2 * ((2 * y + part) * column_tiles + n) :][:2] for part in range(2)
                        )
                        pair = [
                            self.round_pair(builder, *parts) for parts in zip(real, imaginary, strict=True)
                        ]
                        here = builder.icmp_signed(">", columns, ir.Constant(I64, 8 * n))
                        ok = builder.zext(builder.and_(inside, here), I32)
                        text = (
                            "{.reg .pred p; setp.ne.b32 p, $3, 0; "
                            f"@p st.global.v2.b32 [$0+{32 * n}], {{$1, $2}};}}"
                        )
                        asm(builder, VOID, [address, *pair, ok], text, "l,r,r,r,~{memory}", effect=True)
                    at = builder.add(at, step)
                return context.get_dummy_value()

            return signature, codegen

        return put

    def store_outer_points(self, row_groups: int, column_tiles: int) -> Any:
        """Store conj(g) x from products of their parts: ``op(target, at, stride, rows, columns, c)``.

        ``c`` is float32 by row group: rows 2 i and 2 i + 1 are the real and the imaginary part of g[i], columns alike
        of x[j]. Even groups of lanes store points [4 y + g / 2, 4 n + t] where ``4 y < rows`` and ``4 n < columns``.
        """
        store = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.b32 [$0], $1;}"

        @intrinsic
        def put(typing_context, target, at, stride, rows, columns, c):
            signature = types.void(target, *[types.int64] * 4, c)

            def codegen(context, builder, signature, args):
                pointer, *place, value = args
                for at, ok, re, im in _outer_points(builder, value, row_groups, column_tiles, *place):
                    address = global_pointer(builder, pointer, at, I32)
                    word = self.round_pair(builder, re, im)
                    asm(builder, VOID, [address, word, ok], store, "l,r,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return put

    def pass_outer_points(self, row_groups: int, column_tiles: int) -> Any:
        """As `store_outer_points`, for sums in parts: ``op(target, sums, at, stride, rows, columns, first, last, c)``.

        What a launch before left in ``sums``, points of two float32 in the same places, is added unless ``first``; the
        result goes there, or if ``last``, rounded, to ``target``.
        """
        load = (
            "{.reg .pred p; setp.ne.b32 p, $3, 0; mov.b32 $0, 0; mov.b32 $1, 0; "
            "@p ld.global.v2.f32 {$0, $1}, [$2];}"
        )
        keep = "{.reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.v2.f32 [$0], {$1, $2};}"
        store = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.b32 [$0], $1;}"

        @intrinsic
        def put(typing_context, target, sums, at, stride, rows, columns, first, last, c):
            signature = types.void(target, sums, *[types.int64] * 6, c)

            def codegen(context, builder, signature, args):
                pointer, partial, *place, first, last, value = args
                more, going = (builder.icmp_signed("==", x, ir.Constant(I64, 0)) for x in (first, last))
                more, going, ending = (builder.zext(x, I32) for x in (more, going, builder.not_(going)))
                for at, ok, re, im in _outer_points(builder, value, row_groups, column_tiles, *place):
                    there = global_pointer(builder, partial, builder.shl(at, ir.Constant(I64, 1)), F32)
                    operands = [there, builder.and_(ok, more)]
                    two = ir.LiteralStructType([F32, F32])
                    found = asm(builder, two, operands, load, "=&f,=&f,l,r,~{memory}", effect=True)
                    re, im = (
                        builder.fadd(x, y) for x, y in zip((re, im), unpack(builder, found, 2), strict=True)
                    )
                    operands = [there, re, im, builder.and_(ok, going)]
                    asm(builder, VOID, operands, keep, "l,f,f,r,~{memory}", effect=True)
                    address, word = (
                        global_pointer(builder, pointer, at, I32),
                        self.round_pair(builder, re, im),
                    )
                    operands = [address, word, builder.and_(ok, ending)]
                    asm(builder, VOID, operands, store, "l,r,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return put

    # ---- moves -------------------------------------------------------------------------------------------
    def move_words(self, count: int, shared_step: int) -> Any:
        """Words from shared to global memory: ``op(word, target, at, stride, valid)``, one a lane ``count`` times."""

        @intrinsic
        def move(typing_context, word, target, at, stride, valid):
            signature = types.void(types.int64, target, types.int64, types.int64, types.boolean)

            def codegen(context, builder, signature, args):
                word, pointer, at, stride, valid = args
                start = shared_address(builder, word)
                found = [load_shared_words(builder, start, 4 * i * shared_step, 1)[0] for i in range(count)]
                ok, address = builder.zext(valid, I32), global_pointer(builder, pointer, at, I32)
                text = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.b32 [$0], $1;}"
                for value in found:
                    asm(builder, VOID, [address, value, ok], text, "l,r,r,~{memory}", effect=True)
                    address = builder.gep(address, [stride])
                return context.get_dummy_value()

            return signature, codegen

        return move

    def load_matrices_across(self, tiles: int, slab_words: int) -> Any:
        """Four transposed 8 x 8 blocks of halves per tile, from shared memory: ``op(word, chunk, turn)``.

        Rows of a slab are 8 chunks of 8 halves; chunk c of a row lies at place ``c ^ turn`` of it, chunk 8 + c in the
        next slab, ``slab_words`` on. Lane 8 i + r names the first word of row r of block i and its chunk; of tile n
        it is chunk ``chunk + 2 n``. Register i of a tile holds block i transposed: lane 4 g + t has element g of rows
        2 t and 2 t + 1 (``ldmatrix.trans``).
        """
        four = ir.LiteralStructType([I32] * 4)

        @intrinsic
        def load(typing_context, word, chunk, turn):
            result = types.UniTuple(types.int32, 4 * tiles)

            def codegen(context, builder, signature, args):
                start = shared_address(builder, args[0])
                chunk, turn = (builder.trunc(x, I32) for x in args[1:])
                words = []
                for n in range(tiles):
                    here = builder.add(chunk, ir.Constant(I32, 2 * n))
                    slab = builder.lshr(here, ir.Constant(I32, 3))
                    place = builder.xor(builder.and_(here, ir.Constant(I32, 7)), turn)
                    offset = builder.add(
                        builder.mul(slab, ir.Constant(I32, 4 * slab_words)),
                        builder.shl(place, ir.Constant(I32, 4)),
                    )
                    value = asm(
                        builder,
                        four,
                        [builder.add(start, offset)],
                        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];",
                        "=r,=r,=r,=r,r,~{memory}",
                        effect=True,
                        convergent=True,
                    )
                    words += unpack(builder, value, 4)
                return pack_tuple(context, builder, signature.return_type, words)

            return result(*[types.int64] * 3), codegen

        return load


def window_register(group: int, word: int, words: int) -> int:
    """Which register of an A operand holds a word of a lane's columns, of a row group."""
    return ((group // 2) * (words // 2) + word // 2) * 4 + 2 * (word % 2) + group % 2


def _exchanged(builder: Any, word: Any) -> Any:
    return asm(builder, I32, [word], f"prmt.b32 $0, $1, $1, {EXCHANGED};", "=r,r")


def _inside(builder: Any, at: Any, limit: Any, step: Any, spread: bool) -> tuple[Any, Any]:
    """Where sample ``at`` of a spread-out axis lies in the image, and whether it is in it; 32-bit arithmetic."""
    narrow, most = builder.trunc(at, I32), builder.trunc(limit, I32)
    if not spread:
        return at, builder.icmp_unsigned("<", narrow, most)
    step = builder.trunc(step, I32)
    place = builder.udiv(narrow, step)
    whole = builder.icmp_unsigned("==", builder.mul(place, step), narrow)
    return builder.zext(place, I64), builder.and_(whole, builder.icmp_unsigned("<", narrow, most))


def _outer_points(
    builder: Any,
    value: Any,
    row_groups: int,
    column_tiles: int,
    at: Any,
    stride: Any,
    rows: Any,
    columns: Any,
) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Place, whether this lane has it (32 bits), real and imaginary part of points from products of their parts."""
    values = unpack(builder, value, 2 * row_groups * column_tiles)
    thread = asm(builder, I32, [], "mov.u32 $0, %tid.x;", "=r")
    even = builder.icmp_unsigned("==", builder.and_(thread, ir.Constant(I32, 4)), ir.Constant(I32, 0))
    step = builder.mul(stride, ir.Constant(I64, 4))
    text = "shfl.sync.bfly.b32 $0, $1, 4, 31, 0xffffffff;"
    for y in range(row_groups):
        inside = builder.and_(even, builder.icmp_signed(">", rows, ir.Constant(I64, 4 * y)))
        for n in range(column_tiles):
            low, high = values[2 * (y * column_tiles + n) :][:2]
            other_low, other_high = (
                asm(builder, F32, [x], text, "=f,f", convergent=True) for x in (low, high)
            )
            here = builder.icmp_signed(">", columns, ir.Constant(I64, 4 * n))
            ok = builder.zext(builder.and_(inside, here), I32)
            place = builder.add(at, ir.Constant(I64, 4 * n))
            yield place, ok, builder.fadd(low, other_high), builder.fsub(high, other_low)
        at = builder.add(at, step)
