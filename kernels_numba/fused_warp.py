"""The fused order-2 convolution: one warp carries two real sequences through the whole Monarch transform.

Two real sequences that share a filter are one complex sequence z = u1 + i u2, and the real and imaginary part
of its convolution are the two answers. With N = N1 N2 and z as a matrix [n1, n2] (row-major), one warp does

    1. Z[k1, n2]  = sum_n1 F1[k1, n1] z[n1, n2]        contract rows, then multiply by the twiddle w^(k1 n2)
    2. Z[k1, k2]  = sum_n2 Z[k1, n2] F2[n2, k2]        contract columns, then times the filter's spectrum
    3. Y[k1, n2]  = sum_k2 Z[k1, k2] conj F2[k2, n2]   contract columns, then multiply by the inverse twiddle
    4. y[n1, n2]  = sum_k1 conj F1[n1, k1] Y[k1, n2]   contract rows

in registers: nothing but the input, the output and the filter's spectrum touches device memory (the
decomposition of Fu et al., "FlashFFTConv", arXiv 2311.05908, section 3).

Two things make it cheap (docs/kernels.md has the derivation):

*Half the products.* A DFT factor is used as a real matrix [cosines; sines] applied to the real and the
imaginary part: outputs q and its mirror differ only in one sign, so four products of half the height replace
four of the full height. In stages 2 to 4 the outputs are numbered q + 1/2 (mirror n - 1 - q, so every output
has one); the half step is a phase that disappears into the constants multiplied just before. Stage 1 has no
such constants, so its outputs 0 and n/2, their own mirrors, are selected apart.

*Permutations are constants.* The contraction index may run in any order if the constant operand follows, so
lanes load and store what is contiguous, and every other order is absorbed in the constants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.operands import columns_to_a, rows_of_tile_to_b
from kernels_numba.warp_operands import kept_axes, operand_key, operands
from kernels_numba.warp_operands import spectrum_of_plan as spectrum_layout
from kernels_numba.warp_pieces import copy_pieces, output_pieces
from monarch import Plan

FACTORS = (*((n1, 16) for n1 in range(16, 128, 16)), (16, 32), (32, 32), (48, 32))
"""The factors this kernel takes: as many points as a warp's registers hold,"""
PACKINGS = {"pair": FACTORS}
"""and with which packing."""
HALVES_PER_COPY = 8


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel.

    ``rows_in`` and ``rows_out``: rows of the [N1, N2] matrix that can hold signal, and that are wanted,
    rounded up to what a tile operation can skip. ``halves``: elements per global access (8, 4, 2 or 1, by
    alignment). ``guarded``: some accesses are masked, because L < N or the last pair has one sequence only.
    """

    n1: int
    n2: int
    dtype: str
    rows_in: int
    rows_out: int
    halves: int = HALVES_PER_COPY
    guarded: bool = False
    pregate: bool = False
    postgate: bool = False
    scaled: bool = False
    """Outputs are multiplied by their channel's scale."""
    sequences: str = ""
    """What sequences are stored in, if not in the type of the products: "fp32"."""
    twice: bool = False
    """The result is stored twice, under two gates."""
    warps: int = 4
    kept: tuple[int, ...] = ()
    """Of each axis, frequencies that are transformed to and from, if the spectrum is zero at others."""

    @property
    def n(self) -> int:
        """Transform length N."""
        return self.n1 * self.n2

    @property
    def kept1(self) -> int:
        """Of N1 the k1 that are kept."""
        return self.kept[0] if self.kept else self.n1

    @property
    def kept2(self) -> int:
        """Of N2 the k2 that are kept."""
        return self.kept[1] if self.kept else self.n2

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        gates += "_twice" if self.twice else ""
        shape = f"{self.n1}x{self.n2}_in{self.rows_in}_out{self.rows_out}"
        guard = ("_guarded" if self.guarded else "") + ("_scaled" if self.scaled else "")
        guard += f"_kept{self.kept1}x{self.kept2}" if self.kept else ""
        return f"fftconv_{shape}_{self.sequences}{self.dtype}_v{self.halves}{gates}{guard}_w{self.warps}"

    # ---- shared memory, in words ---------------------------------------------------------------------------
    @property
    def sequence_words(self) -> int:
        """One sequence's live rows."""
        return self.rows_in * self.n2 // 2

    @property
    def output_words(self) -> int:
        """One sequence's wanted rows (the output gate), and room for all that a warp's copies bring."""
        copy = 32 * self.halves
        return -(-self.rows_out * self.n2 // copy) * copy // 2

    @property
    def stage_words(self) -> int:
        """One buffer of a warp: two sequences, and their input gates."""
        return 2 * self.sequence_words * (2 if self.pregate else 1)

    @property
    def warp_words(self) -> int:
        """Two buffers, and the output gates of the pair at work."""
        return 2 * self.stage_words + 2 * self.output_words * (int(self.postgate) + int(self.twice))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (constant_words(self) + self.warps * self.warp_words)


def make_spec(
    plan: Plan,
    dtype: str,
    *,
    halves: int = HALVES_PER_COPY,
    guarded: bool | None = None,
    pregate: bool = False,
    postgate: bool = False,
    scaled: bool = False,
    twice: bool = False,
    shared_limit: int = LARGEST_SHARED_BYTES,
    warps: int = 4,
    kept: tuple[int, ...] = (),
) -> Spec:
    """The kernel for a plan. Raises ``ValueError`` when this kernel cannot run the plan."""
    if plan.factors not in PACKINGS.get(plan.packing, ()):
        raise ValueError(
            f"plan: factors {plan.factors} with packing {plan.packing!r} have no fused kernel yet; accepted "
            f"are {FACTORS} with packing 'pair'"
        )
    n1, n2 = plan.factors
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    rows_in = 16 * -(-signal // (16 * n2))
    rows_out = n1 // 2 if wanted <= plan.n // 2 else n1
    if guarded is None:
        guarded = signal < plan.n or wanted < plan.n
    spec = Spec(
        n1, n2, dtype, rows_in, rows_out, halves, guarded, pregate, postgate, scaled, "", twice, warps, kept
    )
    while spec.shared_bytes > shared_limit and spec.warps > 1:
        spec = replace(spec, warps=spec.warps // 2)
    return spec


def constant_words(spec: Spec) -> int:
    """Words of the constant operands in shared memory."""
    n1, n2, kept1, kept2 = spec.n1, spec.n2, spec.kept1, spec.kept2
    return (kept1 * spec.rows_in + n1 * kept1 + 2 * n2 * kept2) // 2 + 2 * kept1 * n2


# ---- the kernel --------------------------------------------------------------------------------------------
def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: buffers of half elements ``u``, ``pre``, ``post``, ``post2``; of words ``spectrum``
    [H, N], of float32 ``scales`` [H], of words ``constants``; of half elements ``y`` and, under the gate ``post2``,
    ``out2``; then the number of items (H times pairs), the items per warp, pairs per channel, batch size, channels,
    and the sequence length L.
    """
    n1, n2 = spec.n1, spec.n2
    row_tiles, column_tiles, kept1, kept2 = n1 // 16, n2 // 8, spec.kept1, spec.kept2
    in_tiles, k1_tiles, k2_tiles, bin_tiles = spec.rows_in // 16, kept1 // 16, n2 // 16, kept2 // 8
    # Registers of the real (or imaginary) parts of a packed matrix, between stages and of the bins.
    packed, packed_bins = kept1 * n2 // 64, kept1 * kept2 // 64
    read = spec.rows_in * n2 // 64
    kept = spec.rows_out * n2 // 64
    warps, halves, guarded = spec.warps, spec.halves, spec.guarded
    gated_in, gated_out, twice = spec.pregate, spec.postgate, spec.twice
    log_columns = n2.bit_length() - 1
    column_mask = n2 - 1
    row_words = n2 // 2
    row_step = 4 * row_words
    # 16-byte chunks of a row change places in every second pair of rows, so that four rows read together by a
    # half-warp fall on different banks.
    swizzle = 2 if n2 == 32 else 0
    # The output gate is read by eight rows at once, half a row each: rows four apart must differ if n2 = 16.
    gate_mask, gate_shift = (2, 0) if n2 == 32 else (4, 2)

    at_t1 = kept1 * spec.rows_in // 2
    at_f2 = at_t1 + kept1 * n2
    at_f3 = at_f2 + n2 * kept2 // 2
    at_t2 = at_f3 + n2 * kept2 // 2
    at_f4 = at_t2 + kept1 * n2
    total = constant_words(spec)
    constant_rounds = total // 128
    sequence_words, stage_words, warp_words = spec.sequence_words, spec.stage_words, spec.warp_words
    copy_rows = tile.copy_pieces(copy_pieces(spec, swizzle), halves, guarded=guarded)
    pre_at = 4 * spec.sequence_words
    gate_copies, gate_words = spec.output_words * 2 // (32 * halves), spec.output_words
    second_gate = 2 * gate_words
    bins, unguarded = kept1 * kept2, not guarded

    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    scaled, one = spec.scaled, tile.one
    barrier, warp_sync, commit = tile.barrier, tile.warp_sync, tile.commit
    wait_all, wait_gate, wait_input = tile.wait(0), tile.wait(1), tile.wait(2 if gated_out else 1)
    copy, copy_constants = tile.copy_async(halves), tile.copy_words_async
    chunk = column_tiles // 2  # words of a lane's contiguous columns
    load_rows = tile.load_shared(4 * in_tiles * chunk, chunk)
    load_f1 = tile.load_shared(k1_tiles * in_tiles * 4, 4)
    load_twiddle = tile.load_shared(2 * packed, 4)
    load_f2 = tile.load_shared(k2_tiles * bin_tiles * 2, 4)  # as many as of its inverse
    load_f4 = tile.load_shared(row_tiles * k1_tiles * 4, 4)
    load_spectrum, load_scale = tile.load_global(2 * packed_bins, 4), tile.load_float
    stage1 = tile.dft_rows(k1_tiles, column_tiles, in_tiles, inverse=False, self_paired=True)
    stage2 = tile.dft_columns(k1_tiles, bin_tiles, k2_tiles, inverse=False)
    stage3 = tile.dft_columns(k1_tiles, column_tiles, bin_tiles // 2, inverse=True)
    stage4 = tile.dft_rows(row_tiles, column_tiles, k1_tiles, inverse=True, lower_half=spec.rows_out < n1)
    pack, scale, multiply = tile.pack(2 * packed), tile.scale(4 * kept), tile.multiply_complex(packed)
    pack_bins, multiply_bins = tile.pack(2 * packed_bins), tile.multiply_complex(packed_bins)
    gate_in, gate_out, join = tile.multiply(read), tile.multiply(2 * kept), tile.join
    # Words of four rows, two columns each -> B operand registers: two rows of one column each.
    to_b = tile.pair_halves(
        tuple(
            ((4 * k + 2 * r) * chunk + j // 2, (4 * k + 2 * r + 1) * chunk + j // 2, j % 2)
            for k in range(in_tiles)
            for j in range(column_tiles)
            for r in range(2)
        )
    )
    to_a, bins_to_a = tile.select(columns_to_a(kept1, n2)), tile.select(columns_to_a(kept1, kept2))
    transpose = tile.transpose(rows_of_tile_to_b(kept1, n2))
    # The mirrored columns run backwards: their halves swap while rounding, their registers are stored
    # backwards.
    pack_out = tile.pack(2 * kept, swap=tuple(i for i in range(2 * kept) if i % column_tiles >= chunk))
    real, imaginary = output_pieces(spec, 0, n2), output_pieces(spec, kept, n2)
    store_real = tile.store_pieces(real, min(halves, 2 * chunk), guarded=guarded)
    store_imaginary = tile.store_pieces(imaginary, min(halves, 2 * chunk), guarded=guarded)
    load_gate = tile.load_pieces(
        output_pieces(spec, 0, row_words)
        + tuple((o, c + spec.output_words, r) for o, c, r in output_pieces(spec, kept, row_words)),
        2 * kept,
    )

    def kernel(
        u, pre, post, post2, spectrum, scales, words, y, out2, items, per_warp, pairs, batch, channels, length
    ):
        index = small(lane())
        w = small(warp())
        g = small(index >> 2)
        t = small(index & 3)
        c = small(4 * index)
        r = w
        while r < constant_rounds:
            copy_constants(r * 128 + c, words, r * 128 + c)
            r = small(r + warps)
        commit()
        wait_all()
        barrier()

        mine = small(total + w * warp_words)
        gate = small(mine + 2 * stage_words)
        # Lane offsets: where this lane reads its rows, and where its four kinds of output pieces lie.
        column = small(g * chunk)
        read_at = small(mine + t * row_words + (((column >> 2) ^ (t & swizzle)) << 2) + (column & 3))
        left = small(2 * chunk * t)
        right = small(n2 - 2 * chunk - left)
        up = small(g * n2)
        swap_up = small((g & gate_mask) >> gate_shift)
        swap_down = small(((7 - g) & gate_mask) >> gate_shift)
        left_up = small(gate + (up >> 1) + (((left >> 3) ^ swap_up) << 2) + ((left & 7) >> 1))
        right_up = small(gate + (up >> 1) + (((right >> 3) ^ swap_up) << 2) + ((right & 7) >> 1))
        left_down = small(gate - (up >> 1) + (((left >> 3) ^ swap_down) << 2) + ((left & 7) >> 1))
        right_down = small(gate - (up >> 1) + (((right >> 3) ^ swap_down) << 2) + ((right & 7) >> 1))

        # Where this lane's copies come from and go to; see `copy_pieces`.
        copy_from = small(index * halves)
        copy_column = small(copy_from & column_mask)
        copy_row = small(copy_from >> log_columns)
        copy_chunk = small((copy_column >> 3) ^ (copy_row & swizzle))
        copy_to = small(2 * (copy_row * row_words + (copy_chunk << 2)) + (copy_column & 7))
        copy_to_swapped = small(
            2 * (copy_row * row_words + ((copy_chunk ^ swizzle) << 2)) + (copy_column & 7)
        )

        first = small((block() * warps + w) * per_warp)
        last = small(min(first + per_warp, items))
        if first < last:
            h = small(divide(first, pairs))
            p = small(first - h * pairs)
            next_h = h
            next_p = p
            k = load_spectrum(spectrum, int64(h) * bins + c, 128)
            s = load_scale(scales, h) if scaled else one
            # Copies run one turn ahead of the work: turn first - 1 only starts those of the first pair.
            item = small(first - 1)
            other_sequence = int64(channels) * length
            while item < last:
                base = (2 * int64(p) * channels + h) * length
                second = small(2 * p + 1 < batch)
                if gated_out:
                    if item >= first:
                        for q in range(2):
                            end = small(length * (second if q else 1))
                            for i in range(gate_copies):
                                e = small((i * 32 + index) * halves)
                                row = small(e >> log_columns)
                                col = small(e & column_mask)
                                to = small(gate + q * gate_words + row * row_words)
                                to = small(to + (((col >> 3) ^ ((row & gate_mask) >> gate_shift)) << 2))
                                to = small(2 * to + (col & 7))
                                source = base + q * other_sequence + e
                                copy(to, post, source, (e < end) | unguarded)
                                if twice:
                                    copy(to + 2 * second_gate, post2, source, (e < end) | unguarded)
                    commit()
                if item + 1 < last:
                    buffer = small(2 * (mine + ((item + 1) & 1) * stage_words))
                    next_base = (2 * int64(next_p) * channels + next_h) * length
                    for q in range(2):
                        end = small(length * (2 * next_p + q < batch))
                        source = next_base + q * other_sequence
                        to0 = small(buffer + q * (2 * sequence_words) + copy_to)
                        to1 = small(buffer + q * (2 * sequence_words) + copy_to_swapped)
                        copy_rows(u, source, end, copy_from, to0, to1, to1, to1)
                        if gated_in:
                            copy_rows(
                                pre,
                                source,
                                end,
                                copy_from,
                                to0 + pre_at,
                                to1 + pre_at,
                                to1 + pre_at,
                                to1 + pre_at,
                            )
                commit()
                if item >= first:
                    wait_input()
                    warp_sync()
                    at = small(read_at + (item & 1) * stage_words)
                    u1 = load_rows(at, row_step)
                    u2 = load_rows(at + sequence_words, row_step)
                    if gated_in:
                        v1 = gate_in(u1, load_rows(at + 2 * sequence_words, row_step))
                        v2 = gate_in(u2, load_rows(at + 3 * sequence_words, row_step))
                        x = join(to_b(v1), to_b(v2))
                    else:
                        x = join(to_b(u1), to_b(u2))
                    z1 = multiply(pack(stage1(load_f1(c, 128), x)), load_twiddle(at_t1 + c, 128))
                    z2 = multiply_bins(pack_bins(stage2(to_a(z1), load_f2(at_f2 + c, 128))), k)
                    z3 = multiply(
                        pack(stage3(bins_to_a(z2), load_f2(at_f3 + c, 128))), load_twiddle(at_t2 + c, 128)
                    )
                    y4 = stage4(load_f4(at_f4 + c, 128), transpose(z3))
                    z4 = pack_out(scale(y4, s)) if scaled else pack_out(y4)
                    other = base + other_sequence
                    limit = small(length * second)
                    if gated_out:
                        wait_gate()
                        warp_sync()
                        z5 = gate_out(z4, load_gate(left_up, right_up, left_down, right_down))
                        store_real(y, base, length, up + left, up + right, left - up, right - up, z5)
                        store_imaginary(y, other, limit, up + left, up + right, left - up, right - up, z5)
                        if twice:
                            u0, u1 = small(left_up + second_gate), small(right_up + second_gate)
                            d0, d1 = small(left_down + second_gate), small(right_down + second_gate)
                            z5 = gate_out(z4, load_gate(u0, u1, d0, d1))
                            store_real(out2, base, length, up + left, up + right, left - up, right - up, z5)
                            store_imaginary(
                                out2, other, limit, up + left, up + right, left - up, right - up, z5
                            )
                    else:
                        store_real(y, base, length, up + left, up + right, left - up, right - up, z4)
                        store_imaginary(y, other, limit, up + left, up + right, left - up, right - up, z4)
                    warp_sync()
                h = next_h
                p = next_p
                if item >= first and p == 0 and item + 1 < last:
                    k = load_spectrum(spectrum, int64(h) * bins + c, 128)
                    if scaled:
                        s = load_scale(scales, h)
                next_p = small(next_p + 1)
                if next_p == pairs:
                    next_p = small(0)
                    next_h = small(next_h + 1)
                item = small(item + 1)

    return kernel


SIGNATURE = ("HALVES",) * 4 + ("WORDS", "FLOATS", "WORDS") + ("HALVES",) * 2 + ("INT",) * 6
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks of four warps per SM that the compiler must leave registers for (measured fastest on an H200)."""
    return 2 if spec.pregate or spec.postgate or spec.n > 1024 else 3


def workers(spec: Spec) -> int:
    """Who takes items: every warp of a block."""
    return spec.warps


__all__ = [
    "FACTORS",
    "PACKINGS",
    "build",
    "kept_axes",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "spectrum_layout",
]
