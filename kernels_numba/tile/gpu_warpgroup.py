"""The GPU body's operations for groups of four warps (compute capability 9.0): ``wgmma`` and what goes with it.

A *warpgroup* product has 64 rows; warp w of the group holds rows 16 w .. 16 w + 15 of the result, in the registers of
``mma.m16n8k16``. Operands lie in shared memory as *core matrices*, 8 x 8 halves in 128 contiguous bytes (no swizzle);
two byte strides say how core matrices follow each other along the contraction and across it. A left operand may also
lie in registers. (PTX ISA, "Asynchronous warpgroup level matrix multiply-accumulate instructions".)
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import (
    F32,
    I32,
    I64,
    VOID,
    asm,
    butterfly,
    load_global_words,
    load_shared_words,
    pack_tuple,
    registers,
    shared_address,
    statement,
    unpack,
)
from kernels_numba.tile.layout import group_column_slices, group_row_slices

CORE_BYTES = 128
CONSTANT_STRIDES = (CORE_BYTES, 2 * CORE_BYTES)
"""Along and across the contraction, of operands laid out by `layout.group_left_index` and `group_right_index`."""


class GpuWarpgroup:
    """Warpgroup operations of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    dtype: str
    # What `GpuTile` has beside these:
    round_pair: Any
    complex_product: Any

    def team_barrier(self, warps: int) -> Any:
        """The ``warps`` warps of one team of the block meet: ``op(team)``."""

        @intrinsic
        def meet(typing_context, team):
            def codegen(context, builder, signature, args):
                # Barrier 0 is the block's own.
                name = builder.add(builder.trunc(args[0], I32), ir.Constant(I32, 1))
                asm(
                    builder,
                    VOID,
                    [name],
                    f"bar.sync $0, {32 * warps};",
                    "r,~{memory}",
                    effect=True,
                    convergent=True,
                )
                return context.get_dummy_value()

            return types.void(types.int64), codegen

        return meet

    @cached_property
    def fence_async(self) -> Any:
        """What this lane wrote to shared memory is to be seen by warpgroup products after the next barrier."""
        return statement("fence.proxy.async.shared::cta;")

    def store_matrices(self, pieces: tuple[tuple[int, tuple[int, ...]], ...]) -> Any:
        """``op(word, fragment)``: four registers of a fragment as four core matrices each (``stmatrix``).

        Lane l gives the place of row l % 8 of matrix l / 8; a piece adds its constant (in words).
        """

        @intrinsic
        def put(typing_context, word, fragment):
            signature = types.void(types.int64, fragment)

            def codegen(context, builder, signature, args):
                address = shared_address(builder, args[0])
                for constant, names in pieces:
                    words = [builder.extract_value(args[1], r) for r in names]
                    text = f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0+{4 * constant}], {registers(1, 4)};"
                    asm(
                        builder,
                        VOID,
                        [address, *words],
                        text,
                        "r,r,r,r,r,~{memory}",
                        effect=True,
                        convergent=True,
                    )
                return context.get_dummy_value()

            return signature, codegen

        return put

    def group_dft_rows(
        self, columns: int, k_tiles: int, *, along: int, across: int, inverse: bool, lower_half: bool = False
    ) -> Any:
        """Contract the rows of complex data in shared memory with a factor of 64 rows: ``op(factor, data)``.

        Both are word offsets. The factor is [cosines; sines] in core matrices, each warp's 16 rows 8 cosines and 8
        sines (`layout.group_left_index`). Data are core matrices of 8 rows by 8 columns, ``along`` bytes apart along
        the rows and ``across`` bytes across them: real parts of a slice (`layout.group_row_slices`), their imaginary
        parts, and so on. Returns complex float32 accumulators of this warp's two row groups: outputs q, and their
        mirrors (``lower_half``: outputs q alone).
        """
        tiles = columns // 8
        kept = 2 * tiles if lower_half else 4 * tiles

        @intrinsic
        def product(typing_context, factor, data):
            result = types.UniTuple(types.float32, 2 * kept)

            def codegen(context, builder, signature, args):
                places = [_place(builder, at) for at in args]
                parts: tuple[list, list] = ([None] * (4 * tiles), [None] * (4 * tiles))
                for chosen in group_row_slices(columns):
                    re_im = self._rows(
                        builder,
                        places,
                        chosen,
                        k_tiles,
                        (along, across),
                        inverse,
                        special=None,
                        meanwhile=None,
                    )
                    for values, into in zip(re_im, parts, strict=True):
                        for y in range(2):
                            for i, tile in enumerate(chosen):
                                at, to = 2 * (y * len(chosen) + i), 2 * (y * tiles + tile)
                                into[to : to + 2] = values[at : at + 2]
                return pack_tuple(context, builder, signature.return_type, parts[0][:kept] + parts[1][:kept])

            return result(types.int64, types.int64), codegen

        return product

    def group_dft_rows_times(
        self,
        columns: int,
        k_tiles: int,
        *,
        along: int,
        across: int,
        inverse: bool,
        self_paired: bool = False,
        table: str,
    ) -> Any:
        """As `group_dft_rows`, rounded, and multiplied by a complex table: ``op(factor, data, source, at, alone)``.

        The table's words are in lane order, of the registers in the order `layout.by_slices`: in "shared" memory from
        word ``at`` on, in "global" memory from ``source[at]`` on, or "registers", the fragment ``source``. They are
        loaded while the tensor cores work. ``self_paired``: as `dft_rows`, in the lanes whose last argument, ``alone``,
        is not 0 (it is not used otherwise).
        """

        @intrinsic
        def product(typing_context, factor, data, source, at, alone):
            result = types.UniTuple(types.int32, columns // 2)

            def codegen(context, builder, signature, args):
                places = [_place(builder, x) for x in args[:2]]
                special = builder.icmp_signed("!=", args[4], ir.Constant(I64, 0)) if self_paired else None

                def compute(chosen: list[int], meanwhile: Any) -> tuple[list, list]:
                    return self._rows(
                        builder, places, chosen, k_tiles, (along, across), inverse, special, meanwhile
                    )

                words = self._times(builder, group_row_slices(columns), compute, args[2:4], table)
                return pack_tuple(context, builder, signature.return_type, words)

            return result(types.int64, types.int64, source, types.int64, types.int64), codegen

        return product

    def group_dft_columns_times(self, columns: int, k_tiles: int, *, inverse: bool, table: str) -> Any:
        """Contract the columns of complex data in registers, and multiply: ``op(data, factor, source, at)``.

        ``data`` is each warp's complex A operand of 16 rows, ``factor`` the word offset of [cosines, sines] in core
        matrices of 8 columns by 8 contracted rows (`layout.group_right_index`). Outputs fill the first half of the
        column tiles, mirrors the second; they are rounded, and multiplied by the table, as `group_dft_rows_times` does.
        """

        @intrinsic
        def product(typing_context, data, factor, source, at):
            result = types.UniTuple(types.int32, columns // 2)

            def codegen(context, builder, signature, args):
                left = unpack(builder, args[0], 8 * k_tiles)
                right = _place(builder, args[1])
                slices = group_column_slices(columns)

                def compute(chosen: list[int], meanwhile: Any) -> tuple[list, list]:
                    width = len(chosen)
                    start = slices.index(chosen) * width * 2 * CORE_BYTES
                    steps = [
                        [(part * 4 * k_tiles + 4 * k, 0, 32 * columns * k + start) for k in range(k_tiles)]
                        for part in range(2)
                    ]
                    p, q = self._group_products(
                        builder, 8 * width, left, right, steps, CONSTANT_STRIDES, meanwhile, transposed=False
                    )
                    pairs = [
                        ((y * width + n) * 2 + e, (y * width + n + width // 2) * 2 + e, False)
                        for y in range(2)
                        for n in range(width // 2)
                        for e in range(2)
                    ]
                    return butterfly(
                        builder, _by_row_groups(p), _by_row_groups(q), pairs, inverse=inverse, special=None
                    )

                words = self._times(builder, slices, compute, args[2:], table)
                return pack_tuple(context, builder, signature.return_type, words)

            return result(data, types.int64, source, types.int64), codegen

        return product

    def _rows(
        self,
        builder: Any,
        places: list,
        chosen: list[int],
        k_tiles: int,
        strides: tuple[int, int],
        inverse: bool,
        special: Any,
        meanwhile: Any,
    ) -> tuple[list, list]:
        """One slice of a contraction of rows: real and imaginary accumulators [row group, tile, 2]."""
        width, (along, across) = len(chosen), strides
        steps = [(0, 64 * 32 * k, 2 * along * k + 2 * chosen[0] * across) for k in range(k_tiles)]
        (found,) = self._group_products(
            builder, 16 * width, places[:1], places[1], [steps], strides, meanwhile, transposed=True
        )
        half = len(found) // 2
        pairs = [
            (n * 2 + e, (width + n) * 2 + e, special is not None) for n in range(width) for e in range(2)
        ]
        p, q = _by_row_groups(found[:half]), _by_row_groups(found[half:])
        return butterfly(builder, p, q, pairs, inverse=inverse, special=special)

    def _times(self, builder: Any, slices: list, compute: Any, where: Any, table: str) -> list:
        """Slices of a product, each rounded and multiplied by its part of a complex table; registers of the whole."""
        tiles = sum(map(len, slices))
        count = 2 * tiles
        words: list[Any] = [None] * (2 * count)
        first = 0  # register of the table

        for chosen in slices:
            width = 2 * len(chosen)
            factors: list[Any] = []

            def load(first: int = first, width: int = width, factors: list = factors) -> None:
                for part in range(2):
                    factors.extend(_table_words(builder, where, table, part * count + first, width))

            re, im = compute(chosen, load)
            products = self._rounded_times(builder, re, im, factors)
            for y in range(2):
                for i, tile in enumerate(chosen):
                    register, to = y * len(chosen) + i, y * tiles + tile
                    words[to], words[count + to] = products[register], products[width + register]
            first += width
        return words

    def _rounded_times(self, builder: Any, re: list, im: list, factors: list) -> list:
        """Complex accumulators, rounded, times the registers of a table; of real parts, then of imaginary ones."""
        half, found = len(factors) // 2, []
        for i in range(half):
            value = [self.round_pair(builder, x[2 * i], x[2 * i + 1]) for x in (re, im)]
            found.append(self.complex_product(builder, *value, factors[i], factors[half + i]))
        return [pair[part] for part in range(2) for pair in found]

    def _group_products(
        self,
        builder: Any,
        columns: int,
        left: list,
        right: Any,
        steps: list,
        strides: tuple[int, int],
        meanwhile: Any,
        *,
        transposed: bool,
    ) -> list[list]:
        """Real products of 64 rows, one for each list of ``steps``, as one group; accumulators [tile, row group, 2].

        ``left`` is one place in shared memory or registers, ``right`` a place, with its ``strides``. One statement
        issues all instructions, another waits for them; between the two only what ``meanwhile`` emits, which must not
        touch the accumulators, since the tensor cores may be writing them.
        """
        found = self._begin_products(builder, columns, left, right, steps, strides, transposed=transposed)
        if meanwhile is not None:
            meanwhile()
        return self._await_products(builder, found, len(steps), pending=0)

    def _begin_products(
        self,
        builder: Any,
        columns: int,
        left: list,
        right: Any,
        steps: list,
        strides: tuple[int, int],
        *,
        transposed: bool,
    ) -> list:
        """Issue the products of `_group_products`; all their accumulators, which are not to be touched yet."""
        per = columns // 2
        kind = self.dtype.replace("fp16", "f16")
        name = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
        count = per * len(steps)
        in_registers = len(left) > 1
        lines = [
            "{.reg .pred no, yes; .reg .b32 z; .reg .b64 l, r;",
            "mov.b32 z, 0; setp.ne.b32 no, z, 0; setp.eq.b32 yes, z, 0;",
            "wgmma.fence.sync.aligned;",
        ]
        for part, instructions in enumerate(steps):
            for k, (a, left_step, right_step) in enumerate(instructions):
                lines.append(_descriptor("r", count + len(left), right_step, strides))
                if in_registers:
                    a_text, modes = registers(count + a, 4), f"1, 1, {int(transposed)}"
                else:
                    lines.append(_descriptor("l", count, left_step, CONSTANT_STRIDES))
                    a_text, modes = "l", f"1, 1, 0, {int(transposed)}"
                outputs, keep = registers(part * per, per), "yes" if k else "no"
                lines.append(f"{name} {outputs}, {a_text}, r, {keep}, {modes};")
        lines.append("wgmma.commit_group.sync.aligned;}")
        value = asm(
            builder,
            ir.LiteralStructType([F32] * count),
            [*left, right],
            " ".join(lines),
            ",".join(["=&f"] * count + ["r"] * (len(left) + 1)) + ",~{memory}",
            effect=True,
            convergent=True,
        )
        return unpack(builder, value, count)

    def _await_products(self, builder: Any, found: list, parts: int, *, pending: int) -> list[list]:
        """Accumulators of ``parts`` products, when at most ``pending`` groups begun after them are under way."""
        count, per = len(found), len(found) // parts
        value = asm(
            builder,
            ir.LiteralStructType([F32] * count),
            found,
            f"wgmma.wait_group.sync.aligned {pending};",
            ",".join(["=f"] * count + [str(i) for i in range(count)]) + ",~{memory}",
            effect=True,
            convergent=True,
        )
        found = unpack(builder, value, count)
        return [found[part * per : (part + 1) * per] for part in range(parts)]


def _table_words(builder: Any, where: Any, table: str, start: int, width: int) -> list:
    """``width`` registers of a table in lane order from register ``start`` on; see `group_dft_rows_times`."""
    source, at = where
    if table == "registers":
        return [builder.extract_value(source, start + i) for i in range(width)]
    words: list[Any] = []
    for quad in range(start // 4, (start + width) // 4):
        if table == "shared":
            words += load_shared_words(builder, shared_address(builder, at), 512 * quad, 4)
        else:
            words += load_global_words(builder, source, at, 128 * quad, 4)
    return words


def _by_row_groups(found: list) -> list:
    """Accumulators [tile, row group, 2] as [row group, tile, 2]."""
    tiles = len(found) // 4
    return [found[4 * n + 2 * y + e] for y in range(2) for n in range(tiles) for e in range(2)]


def _place(builder: Any, word: Any) -> Any:
    """Where an operand begins, as descriptors have it: in units of 16 bytes."""
    address = shared_address(builder, word)
    return builder.and_(builder.lshr(address, ir.Constant(I32, 4)), ir.Constant(I32, 0x3FFF))


def _descriptor(name: str, operand: int, step: int, strides: tuple[int, int]) -> str:
    """PTX that makes a descriptor: the place, ``step`` bytes on, and the strides along and across the contraction."""
    along, across = strides
    return (
        f"{{.reg .b32 t; add.u32 t, ${operand}, {(step >> 4) | (along >> 4) << 16}; "
        f"mov.b64 {name}, {{t, {across >> 4}}};}}"
    )
