"""The GPU body's asynchronous copies of rows to shared memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import I16, I32, I64, VOID, asm, global_pointer, shared_address_of_half

CHUNK = 8
"""Half elements of a chunk: 16 bytes, the widest load of a lane."""


class GpuCopies:
    """Copies of the vocabulary of streams, which inherits them."""

    def copy_rows(self, count: int, shared_step: int, row_step: int, *, guarded: bool) -> Any:
        """Asynchronous copies of 16 bytes: ``op(to_half, source, at, stride, rows, valid)``.

        Copy i goes from element ``at + i stride`` to half element ``to_half + i shared_step``. Guarded, it brings
        zeros where not ``valid``, or where ``i row_step`` is not below ``rows``.
        """
        return self._copies(count, shared_step, row_step, chunk=CHUNK, guarded=guarded)

    def copy_words(self, count: int, shared_step: int, row_step: int) -> Any:
        """As `copy_rows`, 4 bytes each and guarded: ``op(to_half, source, at, stride, rows, elements)``.

        ``elements`` says how many of the two there are, below one none; the others become zeros.
        """
        return self._copies(count, shared_step, row_step, chunk=2, guarded=True)

    def _copies(self, count: int, shared_step: int, row_step: int, *, chunk: int, guarded: bool) -> Any:
        partial, nbytes = chunk < CHUNK, 2 * chunk
        # Only 16 bytes can go past L1.
        text = f"cp.async.{'ca' if partial else 'cg'}.shared.global [$0+{{}}], [$1], {nbytes}, $2;"

        @intrinsic
        def copy(typing_context, to, source, at, stride, rows, valid):
            kind = types.int64 if partial else types.boolean
            signature = types.void(types.int64, source, *[types.int64] * 3, kind)

            def codegen(context, builder, signature, args):
                to, pointer, at, stride, rows, valid = args
                address = shared_address_of_half(builder, to)
                here = global_pointer(builder, pointer, at, I16)
                legal = global_pointer(builder, pointer, ir.Constant(I64, 0), I16)
                whole, none = ir.Constant(I32, nbytes), ir.Constant(I32, 0)
                if partial:
                    most, least = ir.Constant(I64, chunk), ir.Constant(I64, 0)
                    some = builder.icmp_signed(">", valid, least)
                    there = builder.select(builder.icmp_signed("<", valid, most), valid, most)
                    whole, valid = builder.shl(builder.trunc(there, I32), ir.Constant(I32, 1)), some
                for i in range(count):
                    size, source_address = whole, here
                    if guarded:
                        inside = builder.icmp_signed(">", rows, ir.Constant(I64, i * row_step))
                        inside = builder.and_(inside, valid)
                        size = builder.select(inside, size, none)
                        # A lane with nothing to copy must still name a legal address.
                        source_address = builder.select(inside, here, legal)
                    asm(
                        builder,
                        VOID,
                        [address, source_address, size],
                        text.format(2 * i * shared_step),
                        "r,l,r,~{memory}",
                        effect=True,
                    )
                    here = builder.gep(here, [stride])
                return context.get_dummy_value()

            return signature, codegen

        return copy

    def clear_halves(self, count: int, shared_step: int, most: int) -> Any:
        """``op(at_half, elements)``: zeros to ``elements`` half elements, at most ``most``, of shared memory.

        From half element ``at_half + i shared_step`` on, for ``count`` values of i.
        """

        @intrinsic
        def clear(typing_context, at, elements):
            def codegen(context, builder, signature, args):
                address = shared_address_of_half(builder, args[0])
                lines = [".reg .pred p; .reg .b16 z; mov.b16 z, 0;"]
                for e in range(most):
                    lines.append(f"setp.gt.s32 p, $1, {e};")
                    lines += [f"@p st.shared.b16 [$0+{2 * (e + i * shared_step)}], z;" for i in range(count)]
                values = [address, builder.trunc(args[1], I32)]
                asm(builder, VOID, values, "{" + " ".join(lines) + "}", "r,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return types.void(types.int64, types.int64), codegen

        return clear
