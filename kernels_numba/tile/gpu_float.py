"""The GPU body's operations on float32 points: short transforms, complex products, loads and stores.

A complex fragment of n points is one tuple: n real parts, then n imaginary parts. Every sum and product is written
with its rounding (``add.rn``, ``fma.rn``): the compiler may then not fuse what is not fused here, and the CPU body
(`cpu_float.py`) gets the same bits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import (
    F32,
    F64,
    VOID,
    asm,
    global_pointer,
    pack_tuple,
    registers,
    shared_address,
    unpack,
)
from kernels_numba.tile.points import dft_program

# (constant offset, registers): see load_floats.
FloatPieces = tuple[tuple[int, tuple[int, ...]], ...]
# (constant offset, place in shared memory, how many): see copy_floats.
CopiedFloats = tuple[tuple[int, int, int], ...]
# (constant offset, points multiplied by the first number there, and by the second): see multiply_points.
Factors = tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
POINT = ir.LiteralStructType([F32, F32])
QUAD = ir.LiteralStructType([F32] * 4)

PRODUCT = (
    "{.reg .f32 t; mul.rn.f32 t, $3, $5; neg.f32 t, t; fma.rn.f32 $0, $2, $4, t; "
    "mul.rn.f32 t, $3, $4; fma.rn.f32 $1, $2, $5, t;}"
)
CONJUGATE_PRODUCT = (
    "{.reg .f32 t; mul.rn.f32 t, $3, $5; fma.rn.f32 $0, $2, $4, t; "
    "mul.rn.f32 t, $2, $5; neg.f32 t, t; fma.rn.f32 $1, $3, $4, t;}"
)
# x a + conj(m) b: what the product x a gives, and two more terms for each part.
MIRRORED = (
    "{.reg .f32 t, m; mul.rn.f32 t, $3, $5; neg.f32 t, t; fma.rn.f32 t, $2, $4, t; fma.rn.f32 t, $6, $8, t; "
    "fma.rn.f32 $0, $7, $9, t; mul.rn.f32 t, $3, $4; fma.rn.f32 t, $2, $5, t; fma.rn.f32 t, $6, $9, t; "
    "neg.f32 m, $7; fma.rn.f32 $1, m, $8, t;}"
)


def _operations(builder: Any, double: bool) -> dict[str, Any]:
    """One function for each kind of step of a program (`points.py`)."""
    kind, suffix, letter = (F64, "f64", "d") if double else (F32, "f32", "f")

    def number(value: float) -> Any:
        return ir.Constant(kind, value if double else float(np.float32(value)))

    def run(text: str, *given: Any) -> Any:
        constraints = ",".join(["=" + letter] + [letter] * len(given))
        return asm(builder, kind, list(given), text.replace("type", suffix), constraints)

    def two(name: str, a: Any, b: Any, c: float) -> Any:
        return run(f"{name}.rn.type $0, $1, $2;", a, b)

    def negated(a: Any, b: Any, c: float) -> Any:
        return run("neg.type $0, $1;", a)

    def scaled(a: Any, b: Any, c: float) -> Any:
        return run("mul.rn.type $0, $1, $2;", a, number(c))

    def fused(a: Any, b: Any, c: float) -> Any:
        return run("fma.rn.type $0, $1, $2, $3;", a, number(c), b)

    return {
        "add": partial(two, "add"),
        "sub": partial(two, "sub"),
        "neg": negated,
        "mul": scaled,
        "fma": fused,
    }


def _quad(builder: Any, address: Any, constant: int) -> list:
    """Four floats of a table, from a constant distance on.

    Not through the read-only cache (.nc): the assembler would keep what both directions read in registers.
    """
    text = f"ld.global.v4.f32 {registers(0, 4)}, [$4+{4 * constant}];"
    return unpack(builder, asm(builder, QUAD, [address], text, "=f,=f,=f,=f,l", effect=True), 4)


class GpuFloat:
    """Operations on float32 of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    def load_floats(self, pieces: FloatPieces, count: int, *, guarded: bool) -> Any:
        """``op(source, base, limit, at)``: float32 of global memory, one or two neighbours an instruction.

        Piece (c, registers) is read from element ``base + at + c``; guarded, it is zero unless ``at + c < limit``.
        """

        @intrinsic
        def load(typing_context, source, base, limit, at):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                pointer, base, limit, at = args
                room = builder.sub(limit, at)
                address = global_pointer(
                    builder, pointer, builder.add(base, builder.sext(at, base.type)), F32
                )
                found: list = [None] * count
                for constant, names in pieces:
                    n = len(names)
                    kind = ".v2.f32" if n == 2 else ".f32"
                    text = f"ld.global.L1::no_allocate{kind} {registers(0, n)}, [${n}+{4 * constant}];"
                    outputs = ["=f"] * n
                    if guarded:
                        zeros = " ".join(f"mov.f32 ${i}, 0f00000000;" for i in range(n))
                        text = f"{{.reg .pred p; setp.gt.s32 p, ${n + 1}, {constant}; {zeros} @p {text}}}"
                        outputs = ["=&f"] * n
                    returns = POINT if n == 2 else F32
                    operands = [address, room] if guarded else [address]
                    constraints = ",".join([*outputs, "l", *(["r"] if guarded else []), "~{memory}"])
                    value = asm(builder, returns, operands, text, constraints, effect=True)
                    for name, part in zip(
                        names, unpack(builder, value, n) if n == 2 else [value], strict=True
                    ):
                        found[name] = part
                return pack_tuple(context, builder, signature.return_type, found)

            return result(source, types.int64, types.int32, types.int32), codegen

        return load

    def store_floats(self, pieces: FloatPieces, *, guarded: bool) -> Any:
        """``op(target, base, limit, at, x)``: the reverse, guarded where ``at + c < limit``.

        Otherwise everything is stored, or nothing where ``limit`` is 0.
        """

        @intrinsic
        def store(typing_context, target, base, limit, at, x):
            signature = types.void(target, types.int64, types.int32, types.int32, x)

            def codegen(context, builder, signature, args):
                pointer, base, limit, at, x = args
                room = builder.sub(limit, at) if guarded else limit
                address = global_pointer(
                    builder, pointer, builder.add(base, builder.sext(at, base.type)), F32
                )
                for constant, names in pieces:
                    n = len(names)
                    kind = ".v2.f32" if n == 2 else ".f32"
                    text = f"st.global{kind} [$0+{4 * constant}], {registers(2, n)};"
                    least = constant if guarded else 0
                    text = f"{{.reg .pred p; setp.gt.s32 p, $1, {least}; @p {text}}}"
                    values = [builder.extract_value(x, name) for name in names]
                    constraints = "l,r" + ",f" * n + ",~{memory}"
                    asm(builder, VOID, [address, room, *values], text, constraints, effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return store

    def copy_floats(self, pieces: CopiedFloats, *, guarded: bool) -> Any:
        """``op(source, base, limit, at, word)``: asynchronous copies to shared memory, one or two float32 each.

        Piece (c, place, n) goes from element ``base + at + c`` to word ``word + place``; guarded, it is zeros unless
        ``at + c < limit``. A lane sees its own copies after ``wait``.
        """

        @intrinsic
        def copy(typing_context, source, base, limit, at, word):
            signature = types.void(source, types.int64, types.int32, types.int32, types.int64)

            def codegen(context, builder, signature, args):
                pointer, base, limit, at, word = args
                room = builder.sub(limit, at)
                address = global_pointer(
                    builder, pointer, builder.add(base, builder.sext(at, base.type)), F32
                )
                to = shared_address(builder, word)
                for constant, place, n in pieces:
                    text = f"cp.async.ca.shared.global [$0+{4 * place}], [$1+{4 * constant}], {4 * n};"
                    if guarded:
                        zero = (
                            "st.shared.v2.b32 [$0+{0}], {{z, z}};" if n == 2 else "st.shared.b32 [$0+{0}], z;"
                        )
                        text = (
                            f"{{.reg .pred p; .reg .b32 z; mov.b32 z, 0; setp.gt.s32 p, $2, {constant}; @p {text} "
                            f"@!p {zero.format(4 * place)}}}"
                        )
                    asm(builder, VOID, [to, address, room], text, "r,l,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return copy

    def multiply_floats(self, count: int) -> Any:
        """Elementwise product of two fragments of float32."""

        @intrinsic
        def product(typing_context, a, b):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                left, right = (unpack(builder, x, count) for x in args)
                made = [
                    asm(builder, F32, [x, y], "mul.rn.f32 $0, $1, $2;", "=f,f,f")
                    for x, y in zip(left, right, strict=True)
                ]
                return pack_tuple(context, builder, signature.return_type, made)

            return result(a, b), codegen

        return product

    def dft_points(
        self,
        points: int,
        groups: int,
        *,
        inverse: bool,
        live: int | None = None,
        wanted: int | None = None,
        double: bool = False,
        skew: str = "",
    ) -> Any:
        """Transforms of ``points`` points, ``groups`` of them: ``op(x)``; in float64 if ``double``.

        Of each group only the first ``live`` points come (the others are zero), only the first ``wanted`` are made.
        ``skew``: see `dft_program`.
        """
        program = dft_program(points, inverse=inverse, live=live, wanted=wanted, skew=skew)
        given, kept = live or points, wanted or points

        @intrinsic
        def transform(typing_context, x):
            result = types.UniTuple(types.float64 if double else types.float32, 2 * groups * kept)

            def codegen(context, builder, signature, args):
                values = unpack(builder, args[0], 2 * groups * given)
                operations = _operations(builder, double)
                out: list = [None] * (2 * groups * kept)
                for g in range(groups):
                    real = values[g * given :][:given]
                    imaginary = values[(groups + g) * given :][:given]
                    made = program.run([*real, *imaginary], operations)
                    out[g * kept : (g + 1) * kept] = made[:kept]
                    out[(groups + g) * kept : (groups + g + 1) * kept] = made[kept:]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(x), codegen

        return transform

    def multiply_points(self, factors: Factors, count: int, *, conjugate: bool = False) -> Any:
        """``op(x, table, at)``: multiply points by complex numbers of a table, or by their conjugates.

        (c, first, second): the four floats at ``at + c`` are two numbers, one for the points ``first`` and one for the
        points ``second``. Points that are not named stay as they are.
        """
        text = CONJUGATE_PRODUCT if conjugate else PRODUCT

        @intrinsic
        def product(typing_context, x, table, at):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                values, table, at = args
                out = unpack(builder, values, 2 * count)
                address = global_pointer(builder, table, at, F32)
                for constant, *pair in factors:
                    numbers = _quad(builder, address, constant)
                    for which, points in enumerate(pair):
                        for i in points:
                            given = [out[i], out[i + count], *numbers[2 * which :][:2]]
                            made = asm(builder, POINT, given, text, "=&f,=&f,f,f,f,f")
                            out[i], out[i + count] = unpack(builder, made, 2)
                return pack_tuple(context, builder, signature.return_type, out)

            return result(x, table, types.int64), codegen

        return product

    def multiply_complex_floats(self, count: int) -> Any:
        """``op(a, b)``: elementwise product of two complex fragments of ``count`` points."""

        @intrinsic
        def product(typing_context, a, b):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                left, right = (unpack(builder, x, 2 * count) for x in args)
                re, im = [], []
                for i in range(count):
                    given = [left[i], left[i + count], right[i], right[i + count]]
                    made = unpack(builder, asm(builder, POINT, given, PRODUCT, "=&f,=&f,f,f,f,f"), 2)
                    re.append(made[0])
                    im.append(made[1])
                return pack_tuple(context, builder, signature.return_type, re + im)

            return result(a, b), codegen

        return product

    def multiply_mirrored(self, places: tuple[tuple[int, int], ...], stride: int) -> Any:
        """``op(x, table, at, word, starts)``: x a + conj(m) b, with a point m of shared memory for each of x.

        Point i takes a and b from ``at + i stride`` on, and m from ``word + starts[which] + 2 c`` on, where
        ``places[i] = (which, c)``; ``starts`` is a fragment of words.
        """
        count = len(places)

        @intrinsic
        def product(typing_context, x, table, at, word, starts):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                values, table, at, word, offsets = args
                out = unpack(builder, values, 2 * count)
                address = global_pointer(builder, table, at, F32)
                starts = [
                    shared_address(builder, builder.add(word, builder.sext(m, word.type)))
                    for m in unpack(builder, offsets, 1 + max(which for which, _ in places))
                ]
                for i, (which, place) in enumerate(places):
                    mirror = _load_point(builder, starts[which], place)
                    numbers = _quad(builder, address, i * stride)
                    given = [out[i], out[i + count], *numbers[:2], *mirror, *numbers[2:]]
                    made = asm(builder, POINT, given, MIRRORED, "=&f,=&f" + ",f" * 8)
                    out[i], out[i + count] = unpack(builder, made, 2)
                return pack_tuple(context, builder, signature.return_type, out)

            return result(x, table, types.int64, types.int64, starts), codegen

        return product

    def load_points(self, places: tuple[int, ...]) -> Any:
        """``op(word)``: points of shared memory, two words each, point i from ``word + 2 places[i]`` on."""
        count = len(places)

        @intrinsic
        def load(typing_context, word):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                address = shared_address(builder, args[0])
                points = [_load_point(builder, address, place) for place in places]
                out = [p[0] for p in points] + [p[1] for p in points]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(types.int64), codegen

        return load

    def store_points(self, places: tuple[int, ...]) -> Any:
        """``op(word, x)``: the reverse."""
        count = len(places)

        @intrinsic
        def store(typing_context, word, x):
            signature = types.void(types.int64, x)

            def codegen(context, builder, signature, args):
                address = shared_address(builder, args[0])
                for i, place in enumerate(places):
                    parts = [builder.extract_value(args[1], j) for j in (i, i + count)]
                    text = f"st.shared.v2.f32 [$0+{8 * place}], {{$1, $2}};"
                    asm(builder, VOID, [address, *parts], text, "r,f,f,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return store


def _load_point(builder: Any, address: Any, place: int) -> list:
    text = f"ld.shared.v2.f32 {{$0, $1}}, [$2+{8 * place}];"
    return unpack(builder, asm(builder, POINT, [address], text, "=f,=f,r,~{memory}", effect=True), 2)
