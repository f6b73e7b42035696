"""Where the registers of the order-3 kernel lie in memory: pieces for the tile layer's gathers and scatters."""

from __future__ import annotations

from typing import Any, Protocol

from kernels_numba.block_spec import STRIP_WORDS, Spec


class _OuterStage(Protocol):
    """What the pieces of the outer stage ask of a spec, of order 3 or 4; see `block_spec.Spec`."""

    @property
    def n1(self) -> int: ...
    @property
    def q(self) -> int: ...
    @property
    def unit(self) -> int: ...
    @property
    def half(self) -> bool: ...
    @property
    def halves(self) -> int: ...
    @property
    def fold(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def rows_in(self) -> int: ...
    @property
    def rows_out(self) -> int: ...
    @property
    def row_stride(self) -> int: ...


class _Exchange(_OuterStage, Protocol):
    """What those of the first exchange ask for beside that."""

    @property
    def n2(self) -> int: ...
    @property
    def n3(self) -> int: ...
    @property
    def row_words(self) -> int: ...
    @property
    def row_pair_words(self) -> int: ...
    @property
    def pair_words(self) -> int: ...
    @property
    def beside(self) -> bool: ...


def copy_pieces(spec: _OuterStage) -> Any:
    """A warp's copies of one strip of one sequence: each brings 32 times ``halves`` elements, so some rows.

    A row of a strip is 32 points. Of a lane's four places the others are those with another swizzle, for rows where
    its bits differ: of a row of 32 elements every second pair of rows is swizzled, of 64 every row in its own way.
    """
    width = 32 * spec.unit
    starts = range(0, spec.rows_in * width, 32 * spec.halves)
    pieces = []
    for start in starts:
        row, column = divmod(start, width)
        place = row & 3 if spec.half else (row >> 1) & 1
        # Half a row, with copies of one element: 16 points, so the strip's other n2.
        within = column // 32 * spec.row_stride * 2 if spec.half else 0
        pieces.append((place, width * row + column, spec.unit * row_offset(spec, row) + within))
    return tuple(pieces)


def first_exchange_pieces(spec: _Exchange) -> Any:
    """Where a lane's results of the outer stage go: for a row (a k1), four columns of both parts, 16 bytes at once."""
    outer = spec.rows // 8 * 4
    return tuple(
        (
            0,
            first_exchange_row(spec, y) + 4 * h,
            tuple(part * outer + y * 4 + 2 * h + j for j in range(2) for part in range(2)),
        )
        for y in range(spec.rows // 8)
        for h in range(2)
    )


def first_exchange_reads(spec: _Exchange) -> Any:
    """A k1 as B operand: for a pair of rows n2 (a register), two columns n3 of both parts."""
    row_tiles, column_tiles = spec.n2 // 16, spec.n3 // 8
    registers = row_tiles * column_tiles * 2
    return tuple(
        (
            0,
            (8 * k + 4 * r) * spec.row_pair_words + 32 * h,
            tuple(
                part * registers + (k * column_tiles + 2 * h + j) * 2 + r
                for j in range(2)
                for part in range(2)
            ),
        )
        for k in range(row_tiles)
        for r in range(2)
        for h in range(column_tiles // 2)
    )


def second_exchange_reads(spec: Spec) -> Any:
    """A strip as B operand: for a pair of k1 (a register), four columns of one part.

    With right-angle packing for a k1's two parts, four columns of one sequence.

    With an outer factor of 8 a lane's second register is the other part of the columns, further on in the exchange.
    """
    tiles = spec.rows // 16
    registers = tiles * 4 * 2
    return tuple(
        (
            0,
            ((8 * k + 4 * r) * spec.pair_words if spec.fold == 1 else r * spec.strips * STRIP_WORDS)
            + 32 * part,
            tuple(part * registers + (k * 4 + j) * 2 + r for j in range(4)),
        )
        for k in range(tiles)
        for r in range(2)
        for part in range(2)
    )


def second_exchange_pieces(spec: Spec) -> Any:
    """Where a lane's inner results go: (lane offset 0/1 rows upwards plus/minus, 2/3 mirrored rows; ...).

    The fragment is (low, high): registers of two k1 for columns e = 0 and e = 1 of each packed register, each
    [real, imaginary][row group][column tile].
    """
    column_tiles, inner = spec.n3 // 8, spec.q // 64
    half_rows, half_columns = spec.n2 // 16, column_tiles // 2
    pieces = []
    for part in range(2):
        for group in range(spec.n2 // 8):
            mirror = group >= half_rows
            row = spec.n2 - 8 - 8 * (group - half_rows) if mirror else 8 * group
            row_at = row * STRIP_WORDS if spec.n3 == 32 else row // 2 * STRIP_WORDS
            for j in range(half_columns):
                register = part * inner + group * column_tiles + j
                low, high = register, 2 * inner + register
                pieces.append((2 * mirror, row_at + 32 * part + 8 * j, (low, high)))
                low, high = low + half_columns, high + half_columns
                back = 8 * (spec.n3 // 8 - 1 - j)
                pieces.append((2 * mirror + 1, row_at + 32 * part + back, (high, low)))
    return tuple(pieces)


def row_offset(spec: _OuterStage, row: int) -> int:
    """Samples from the first row of the outer stage's matrix to another: n1, and the part of the columns."""
    return row % spec.n1 * spec.q + row // spec.n1 * (spec.q // spec.fold)


def output_pieces(spec: _OuterStage, first_register: int) -> Any:
    """Where a lane's outputs lie: (lane offset: 0 rows upwards, 1 mirrored rows; constant; registers).

    A lane has eight columns of a row, in four registers of one sequence; with half-length packing in four registers
    of two samples each, and four more (:func:`woven`) eight samples on.
    """
    half = spec.rows // 16
    pieces = []
    for group in range(spec.rows_out // 8):
        mirror = group >= half
        row = spec.n1 - 1 - spec.lanes * (group - half) if mirror else spec.lanes * group
        start = first_register + 4 * group
        pieces.append((int(mirror), spec.unit * row * spec.q, tuple(range(start, start + 4))))
    return tuple(pieces)


def woven(spec: _OuterStage) -> tuple[int, ...]:
    """Accumulators in the order in which half-length packing rounds them: a register is a point's two samples.

    Registers of the first four columns of all row groups, then those of the last four.
    """
    groups = spec.rows_out // 8
    real = [8 * group + 4 * part + i for part in range(2) for group in range(groups) for i in range(4)]
    return tuple(x for i in real for x in (i, 8 * groups + i))


def first_exchange_row(spec: _Exchange, group: int) -> int:
    """Where the k1 of a row group's first slot lies; two k1 that are worked on together are neighbours.

    For pairs of sequences those are neighbouring slots; for one sequence a slot and its mirror; with right-angle
    packing a k1 of both sequences.
    """
    if not spec.beside:
        return spec.lanes * group * spec.row_words
    half = spec.rows // 16
    return spec.lanes * (group % half) * spec.pair_words + group // half * spec.row_words


def rows_to_b(spec: _OuterStage, part: int) -> Any:
    """A lane's words of four rows a tile -> registers of a B operand: two rows of one column each.

    A word is two columns of one sequence; with half-length packing one column's real (part 0) and imaginary part.
    """
    columns = range(4)
    return tuple(
        ((4 * k + 2 * r) * 4 + j, (4 * k + 2 * r + 1) * 4 + j, part)
        if spec.half
        else ((4 * k + 2 * r) * 2 + j // 2, (4 * k + 2 * r + 1) * 2 + j // 2, j % 2)
        for k in range(spec.rows_in // 16)
        for j in columns
        for r in range(2)
    )


def mirror_registers(rows: int, columns: int) -> tuple[int, ...]:
    """Registers of a tile's mirrored rows and columns: the other halves of row groups and column tiles."""
    groups, tiles = rows // 8, columns // 8
    inner = groups * tiles
    return tuple(
        part * inner + (y + groups // 2) % groups * tiles + (j + tiles // 2) % tiles
        for part in range(2)
        for y in range(groups)
        for j in range(tiles)
    )


def joined_halves(spec: Spec, half: int) -> Any:
    """Columns ``half`` of the packed registers of two k1, (even, uneven) [real parts, imaginary parts], as pairs.

    Pairs of two k1 by part; with right-angle packing of a k1's two parts by sequence.
    """
    inner = spec.q // 64
    if spec.right_angle:
        return tuple(
            (2 * inner * s + i, 2 * inner * s + inner + i, half) for s in range(2) for i in range(inner)
        )
    return tuple((i, i + 2 * inner, half) for i in range(2 * inner))
