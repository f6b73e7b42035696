"""The GPU body's operations on row fragments: sums of values by weight, and what scales them; see `gpu_rows.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from kernels_numba.tile.gpu_emit import F32, I32, asm, load_shared_words, shared_address, unpack
from kernels_numba.tile.gpu_rows import binary, floats, fma, number, operation

KEYS = 16
WEIGHT_STRIDE = 20
"""Words from one row's weights of a tile of keys to the next one's: lanes then write to different banks."""


class GpuWeights:
    """Operations on row fragments; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    dtype: str
    _decay: Callable[..., Any]

    def spread(self, rows: int) -> Any:
        """``op(x)``: query registers as a row fragment of the first ``rows`` queries."""

        def body(builder: Any, x: Any) -> list:
            result = []
            for row in range(rows):
                value = builder.extract_value(x, 2 * (row // 8) + row % 2)
                text = f"shfl.sync.idx.b32 $0, $1, {row % 8 // 2}, 31, 0xffffffff;"
                result.append(asm(builder, F32, [value], text, "=f,f", convergent=True))
            return result

        return operation(floats(rows), (None,), body)

    def scale_rows(self, rows: int, per: int) -> Any:
        """``op(values, factors)``: ``per`` registers of each row times the row's factor."""

        def body(builder: Any, values: Any, factors: Any) -> list:
            by_row = unpack(builder, factors, rows)
            found = unpack(builder, values, rows * per)
            return [binary(builder, "mul.rn", x, by_row[i // per]) for i, x in enumerate(found)]

        return operation(floats(rows * per), (None, None), body)

    def quotient(self, count: int) -> Any:
        """``op(values, total)``: values / total; zeros where the total is zero."""

        def body(builder: Any, values: Any, total: Any) -> list:
            inverse = binary(builder, "div.rn", number(1.0), total)
            nothing = builder.fcmp_ordered("==", total, number(0.0))
            products = [binary(builder, "mul.rn", x, inverse) for x in unpack(builder, values, count)]
            return [builder.select(nothing, number(0.0), x) for x in products]

        return operation(floats(count), (None, types.float32), body)

    # ---- parts of a row, from warps or splits ------------------------------------------------------------------
    def join_numbers(self, parts: int) -> Any:
        """``op(joined, numbers)``: (m, l) joined so far and those of ``parts`` more -> their factors, m and l.

        The shift m is the largest of the parts that have weight; a part's factor, by which its sums are multiplied, is
        e^(its shift - m), or 1 where they agree or it has no weight. l is the sum of the scaled l, in order.
        """

        def body(builder: Any, joined: Any, numbers: Any) -> list:
            found = unpack(builder, joined, 2) + unpack(builder, numbers, 2 * parts)
            shifts, totals = found[::2], found[1::2]
            weighty = [builder.fcmp_unordered("!=", x, number(0.0)) for x in totals]
            top, some = shifts[0], weighty[0]
            for shift, has in zip(shifts[1:], weighty[1:], strict=True):
                larger = builder.or_(builder.fcmp_ordered(">", shift, top), builder.not_(some))
                top = builder.select(builder.and_(has, larger), shift, top)
                some = builder.or_(some, has)
            factors, total = [], number(0.0)
            for shift, each, has in zip(shifts, totals, weighty, strict=True):
                moved = builder.and_(has, builder.fcmp_unordered("!=", shift, top))
                factors.append(builder.select(moved, self._decay(builder, shift, top), number(1.0)))
                total = fma(builder, each, factors[-1], total)
            return [*factors, top, total]

        return operation(floats(parts + 3), (None, None), body)

    def join_sums(self, parts: int, per: int) -> Any:
        """``op(sums, more, factors)``: ``per`` sums and those of ``parts`` more, times their factors, added up.

        ``factors``: what `join_numbers` gave.
        """

        def body(builder: Any, sums: Any, more: Any, factors: Any) -> list:
            own = unpack(builder, sums, per)
            others = unpack(builder, more, parts * per)
            first, *scales = unpack(builder, factors, parts + 1)
            result = []
            for i, x in enumerate(own):
                total = binary(builder, "mul.rn", x, first)
                for part, factor in enumerate(scales):
                    total = fma(builder, others[part * per + i], factor, total)
                result.append(total)
            return result

        return operation(floats(per), (None, None, None), body)

    def weigh(self, rows: int, widths: tuple[int, ...], stride: int, *, careful: bool = False) -> Any:
        """``op(sums, weights, values, lane)``: add, for each row, 16 values each times its weight, in float32.

        ``weights`` is a word offset in shared memory: row r's weight of key j at ``20 r + j``. ``values``: the keys'
        rows of halves, ``stride`` words each; of every block of ``32 width`` elements a lane has ``width`` (2 or 4)
        neighbouring ones. Keys are added in order. ``careful``: a negative weight marks a value that is not
        there, whatever it is.
        """
        per = sum(widths)

        def body(builder: Any, sums: Any, weights: Any, values: Any, lane: Any) -> list:
            totals = unpack(builder, sums, rows * per)
            at, base = shared_address(builder, weights), shared_address(builder, values)
            index = builder.trunc(lane, I32)
            places = {w: builder.add(base, builder.mul(index, ir.Constant(I32, 2 * w))) for w in set(widths)}
            for quad in range(KEYS // 4):
                found = [self._value(builder, places, widths, 4 * stride * (4 * quad + i)) for i in range(4)]
                for row in range(rows):
                    offset = 4 * (WEIGHT_STRIDE * row + 4 * quad)
                    four = [builder.bitcast(x, F32) for x in load_shared_words(builder, at, offset, 4)]
                    for weight, value in zip(four, found, strict=True):
                        absent = builder.fcmp_ordered("<", weight, number(0.0)) if careful else None
                        for j in range(per):
                            old = totals[row * per + j]
                            new = fma(builder, weight, value[j], old)
                            totals[row * per + j] = builder.select(absent, old, new) if careful else new
            return totals

        return operation(floats(rows * per), (None, *(types.int64,) * 3), body)

    def weigh_products(self, tiles: int, blocks: int, stride: int, *, careful: bool = False) -> Any:
        """``op(sums, weights, values, lane)``: as :meth:`weigh`, for 8 ``tiles`` rows, on tensor cores.

        The weights, rounded to TF32 (11 bits, the exponents of float32), are one operand, the values, exact in TF32,
        the other. The values' 16-byte chunks have changed places: chunk c of key j lies at c ^ 2 (j & 3). Of each of
        the ``blocks`` of 64 elements, lane 4 g + t has elements 8 g + 2 i + y of rows 8 n + 2 t + e, in register
        ``((n blocks + block) 4 + i) 4 + 2 y + e``. ``careful``: by multiply-adds, without rounding the weights.
        """
        count = 16 * tiles * blocks

        def body(builder: Any, sums: Any, weights: Any, values: Any, lane: Any) -> list:
            totals = unpack(builder, sums, count)
            index = builder.trunc(lane, I32)
            g, t = builder.lshr(index, ir.Constant(I32, 2)), builder.and_(index, ir.Constant(I32, 3))
            at, base = shared_address(builder, weights), shared_address(builder, values)
            if careful:
                self._weigh_one_by_one(builder, totals, (at, base, g, t), (tiles, blocks, stride))
                return totals
            turned = builder.xor(g, builder.shl(t, ir.Constant(I32, 1)))
            offset = builder.add(
                builder.mul(t, ir.Constant(I32, 4 * stride)), builder.shl(turned, ir.Constant(I32, 4))
            )
            place = builder.add(base, offset)
            offset = builder.add(
                builder.mul(g, ir.Constant(I32, 4 * WEIGHT_STRIDE)), builder.shl(t, ir.Constant(I32, 2))
            )
            mine = builder.add(at, offset)
            four = ir.LiteralStructType([F32] * 4)
            text = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
            text += " {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
            for step in range(2):
                right = []
                for n in range(tiles):
                    for h in range(2):
                        (word,) = load_shared_words(
                            builder, mine, 4 * (8 * n * WEIGHT_STRIDE + 8 * step + 4 * h), 1
                        )
                        right.append(asm(builder, I32, [word], "cvt.rna.tf32.f32 $0, $1;", "=r,r"))
                for block in range(blocks):
                    left = []
                    for h in range(2):
                        words = load_shared_words(
                            builder, place, 4 * (8 * step + 4 * h) * stride + 128 * block, 4
                        )
                        left.append([x for word in words for x in self.halves_to_floats(builder, word)])
                    for i in range(4):
                        a = [left[0][2 * i], left[0][2 * i + 1], left[1][2 * i], left[1][2 * i + 1]]
                        a = [builder.bitcast(x, I32) for x in a]
                        for n in range(tiles):
                            first = ((n * blocks + block) * 4 + i) * 4
                            operands = [*a, *right[2 * n : 2 * n + 2], *totals[first : first + 4]]
                            result = asm(
                                builder,
                                four,
                                operands,
                                text,
                                "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3",
                                convergent=True,
                            )
                            totals[first : first + 4] = unpack(builder, result, 4)
            return totals

        return operation(floats(count), (None, *(types.int64,) * 3), body)

    def _weigh_one_by_one(
        self, builder: Any, totals: list, lanes: tuple, shape: tuple[int, int, int]
    ) -> None:
        at, base, g, t = lanes
        tiles, blocks, stride = shape
        mine = builder.add(at, builder.mul(t, ir.Constant(I32, 8 * WEIGHT_STRIDE)))
        places = [
            builder.add(base, builder.shl(builder.xor(g, ir.Constant(I32, 2 * k)), ir.Constant(I32, 4)))
            for k in range(4)
        ]
        for quad in range(KEYS // 4):
            weights = [
                load_shared_words(builder, mine, 4 * ((8 * n + e) * WEIGHT_STRIDE + 4 * quad), 4)
                for n in range(tiles)
                for e in range(2)
            ]
            for k in range(4):
                for block in range(blocks):
                    words = load_shared_words(
                        builder, places[k], 4 * (4 * quad + k) * stride + 128 * block, 4
                    )
                    found = [x for word in words for x in self.halves_to_floats(builder, word)]
                    for j, four in enumerate(weights):
                        weight = builder.bitcast(four[k], F32)
                        absent = builder.fcmp_ordered("<", weight, number(0.0))
                        for d, value in enumerate(found):
                            r = (((j // 2) * blocks + block) * 4 + d // 2) * 4 + 2 * (d % 2) + j % 2
                            new = fma(builder, weight, value, totals[r])
                            totals[r] = builder.select(absent, totals[r], new)

    def scale_queries(self, tiles: int, blocks: int) -> Any:
        """``op(sums, factors)``: sums in the order of :meth:`weigh_products` times their rows' query registers."""
        count = 16 * tiles * blocks

        def body(builder: Any, sums: Any, factors: Any) -> list:
            by_query = unpack(builder, factors, 2 * tiles)
            return [
                binary(builder, "mul.rn", x, by_query[2 * (r // (16 * blocks)) + r % 2])
                for r, x in enumerate(unpack(builder, sums, count))
            ]

        return operation(floats(count), (None, None), body)

    def _value(self, builder: Any, places: dict[int, Any], widths: tuple[int, ...], offset: int) -> list:
        found: list = []
        for width in widths:
            for word in load_shared_words(builder, places[width], offset, width // 2):
                found += self.halves_to_floats(builder, word)
            offset += 64 * width
        return found

    def halves_to_floats(self, builder: Any, word: Any) -> list:
        """The two halves of a register as float32."""
        if self.dtype == "bf16":
            low = builder.shl(word, ir.Constant(I32, 16))
            high = builder.and_(word, ir.Constant(I32, 0xFFFF0000))
            return [builder.bitcast(x, F32) for x in (low, high)]
        pair = ir.LiteralStructType([F32, F32])
        text = "{.reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b;}"
        return unpack(builder, asm(builder, pair, [word], text, "=f,=f,r"), 2)
