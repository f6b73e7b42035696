"""Which registers of an outer stage hold what, and where they go: the operands of its tile operations.

``Z[k1, n2]`` and its strips of columns are `outer_stage`'s. The accumulators of a product lie as `tile.layout` says, by
row group; outputs are mirrored (`operands.mirrored`), so lane group g has output q = 8 y + g, or q's mirror.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.outer_spec import Spec


def column_tiles(spec: Spec) -> int:
    """Tiles of eight columns in a strip."""
    return spec.strip // 8


def groups_at(factor: int, stride: int) -> tuple[tuple[int, int], ...]:
    """For every row group of mirrored outputs: which of three lane rows, and what is added to it.

    Row 0 is ``g stride`` (outputs q), row 1 that of the mirror of the first group, where output 0's is factor / 2, row
    2 ``(factor - g) stride``.
    """
    half = factor // 16
    up = tuple((0, 8 * y * stride) for y in range(half))
    return up + tuple((1 if y == 0 else 2, 0 if y == 0 else -8 * y * stride) for y in range(half))


def result_runs(spec: Spec, groups: tuple[tuple[int, int], ...], single: bool) -> list[tuple]:
    """Runs of eight columns of a thread's accumulators: (row, row constant, column constant, registers).

    The column constant is added to 8 t, or (after a single factor of a strip of 32) to 8 t as well.
    """
    tiles = column_tiles(spec)
    runs = []
    for y, (which, constant) in enumerate(groups):
        at = 2 * tiles * y
        if not single:  # tile 4 c + i: columns 32 c + 8 t + 2 i + e
            for c in range(tiles // 4):
                registers = tuple(at + 2 * (4 * c + i) + e for i in range(4) for e in range(2))
                runs.append((which, constant, 32 * c, registers))
        elif spec.strip == 64:  # tile j: columns 8 t + 32 e + j
            runs += [(which, constant, 32 * e, tuple(at + 2 * j + e for j in range(8))) for e in range(2)]
        else:  # tile j: columns 8 t + 4 e + j
            runs.append((which, constant, 0, tuple(at + 2 * j + e for e in range(2) for j in range(4))))
    return runs


def rounded_pieces(
    runs: list[tuple], stride: int, first: int
) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Where the packed runs go: four registers each, from register ``first`` on."""
    return tuple(
        (which, row * stride + column, tuple(range(first + 4 * i, first + 4 * i + 4)))
        for i, (which, row, column, _) in enumerate(runs)
    )


def group_pieces(runs: list[tuple], first: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """As :func:`rounded_pieces`, with a lane offset of its own for each row group (at most four)."""
    groups = list(dict.fromkeys(run[:2] for run in runs))
    return tuple(
        (groups.index(run[:2]), run[2], tuple(range(first + 4 * i, first + 4 * i + 4)))
        for i, run in enumerate(runs)
    )


def listed_pieces(spec: Spec) -> tuple:
    """As :func:`strip_pieces` for four rows, with a lane offset of its own for each; pieces and registers."""
    words = spec.strip // 16
    return tuple((e, 0, tuple(range(words * e, words * (e + 1)))) for e in range(4)), 4 * words


def strip_pieces(spec: Spec, factor: int, stride: int) -> tuple:
    """A lane's loads: rows t + 4 e of each 16, its columns of a strip; pieces and registers."""
    words = spec.strip // 16
    pieces = tuple((0, 4 * e * stride, tuple(range(words * e, words * (e + 1)))) for e in range(factor // 4))
    return pieces, words * factor // 4


def copied_pieces(spec: Spec, factor: int, stride: int, halves: int) -> tuple[tuple[int, int, int], ...]:
    """A warp's copies of ``factor`` rows of a strip, rows ``stride`` elements apart, into groups of the exchange.

    Each brings 32 times ``halves`` elements; lane i begins at element ``i halves`` of them.
    """
    pieces = []
    for start in range(0, factor * spec.strip, 32 * halves):
        row, column = divmod(start, spec.strip)
        pieces.append((0, 2 * row * spec.group_words + column, row * stride + column))
    return tuple(pieces)


def to_b(spec: Spec, factor: int) -> list[tuple[int, int, int]]:
    """Loaded registers as a B operand: two rows of one column each; see `operands.rows_read`."""
    words, columns = spec.strip // 16, spec.strip // 8
    return [
        ((4 * k + 2 * r) * words + j // 2, (4 * k + 2 * r + 1) * words + j // 2, j % 2)
        for k in range(factor // 16)
        for j in range(columns)
        for r in range(2)
    ]


def exchange(tile: Any, spec: Spec, factor: int) -> tuple[Any, Any, Any]:
    """Accumulators of the first factor to shared memory: their order for packing, and the store of each part.

    A lane's words go where the next factor's threads find eight neighbouring columns; see `result_runs`.
    """
    tiles, count = column_tiles(spec), factor * spec.strip // 32
    groups = factor // 8
    picks: list[int] = []
    pieces: list[tuple[int, int, tuple[int, ...]]] = []
    for y in range(groups):
        at = 2 * tiles * y
        for word in range(tiles):  # two neighbouring columns of the lane's 2 strip / 8
            columns = (2 * word, 2 * word + 1)
            picks += [at + 2 * (x % tiles) + x // tiles for x in columns]
    for part in range(2):
        for y, (which, row) in enumerate(groups_at(factor, spec.group_words)):
            first = (part * groups + y) * tiles
            constant = row + part * spec.part_words
            if spec.strip == 64 and not spec.copied:
                pieces += [(which, constant + 4 * i, (first + i, first + i + 4)) for i in range(4)]
            else:
                pieces += [(which, constant + 4 * i, (first + i,)) for i in range(tiles)]
    order = tuple(picks) + tuple(count + p for p in picks)
    return tile.select(order), tile.pack(count), tile.store_shared_pieces(tuple(pieces))


def matrices(tile: Any, spec: Spec, factor: int) -> tuple[Any, Any]:
    """The B operand of one row of the other factor, both parts, out of the exchange: load, and registers in order.

    Lane 8 i + r names row r + 8 (i & 1) of the words of column tile i >> 1.
    """
    tiles, k_tiles = column_tiles(spec), factor // 16
    constants: list[int] = []
    picks: dict[tuple[int, ...], int] = {}
    for part in range(2):
        for k in range(k_tiles):
            for pair in range(tiles // 2):
                at = 4 * len(constants)
                constants.append(part * spec.part_words + 16 * k * spec.row_words + 8 * pair)
                for i in range(4):
                    picks[part, k, 2 * pair + (i >> 1), i & 1] = at + i
    order = [
        picks[part, k, n, r]
        for part in range(2)
        for k in range(k_tiles)
        for n in range(tiles)
        for r in range(2)
    ]
    return tile.load_transposed(tuple(constants)), tile.select(tuple(order))


def flat(runs: list[tuple], count: int, parts: int = 2) -> tuple[int, ...]:
    """Registers of runs one after the other, of the real and then of the imaginary parts."""
    one = [r for run in runs for r in run[3]]
    return tuple(one) + tuple(count + r for r in one) if parts == 2 else tuple(one)


def loaded_runs(spec: Spec, factor: int, stride: int) -> tuple[list[tuple], list[int]]:
    """Loaded rows, as float32, in runs of eight columns; and those floats in the order of a packed B operand.

    A strip of 32 columns gives a lane four columns a row, so there are runs for 64 only; see `_check`.
    """
    columns = spec.strip // 8
    runs = [(0, 4 * e * stride, 0, tuple(range(columns * e, columns * (e + 1)))) for e in range(factor // 4)]
    order = [
        (4 * k + 2 * r + half) * columns + j
        for k in range(factor // 16)
        for j in range(columns)
        for r in range(2)
        for half in range(2)
    ]
    return runs, order
