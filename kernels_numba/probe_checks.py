"""What the measuring kernels are given, and what they must leave: operands that make every result exact.

Random data, and never zeros: a GPU multiplies zeros with less power, hence at higher clocks, than numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import group_probes, probes
from kernels_numba.probes import MMA_TILES, NARROW_PRODUCTS, QUAD, SPAN
from kernels_numba.tile.layout import (
    HALF_TYPES,
    WARP,
    a_index,
    b_index,
    c_index,
    group_left_index,
    group_plain_right_index,
)

EXPONENTIAL_ERROR = 2.0**-20
"""Of a fixed point near 0.5: an exponential and three operations of float32, none of which a contraction magnifies."""


def source(spec: Any, n: int, workers: int, *, seed: int = 1) -> NDArray[np.int32]:
    """Words that a kernel of ``spec`` reads: random bits for streams, numbers with exact results for arithmetic."""
    draw = np.random.default_rng(seed)
    family = family_of(spec)
    count = family.source_words(spec, n, workers)
    if spec.kind in ("fma", "fma_halves"):
        return _chain_source(spec, draw)
    if spec.kind == "exp":
        x, c = draw.uniform(-1.0, 0.5, (2, count // 2)).astype(np.float32)
        return np.concatenate([x, c]).view(np.int32)
    if spec.kind in ("mma", "mma_narrow", "group"):
        return _small_integers(draw, 2 * count).astype(HALF_TYPES[spec.dtype]).view(np.int32)
    if spec.kind == "mma_tf32":
        return _small_integers(draw, count).astype(np.float32).view(np.int32)
    return draw.integers(-(2**31), 2**31, max(count, QUAD), dtype=np.int64).astype(np.int32)


def _small_integers(draw: np.random.Generator, count: int) -> NDArray:
    """Without zeros; thousands of products of two of them are exact in float32 sums."""
    return draw.choice(np.array([-3, -2, -1, 1, 2, 3]), count)


def _chain_source(spec: probes.Spec, draw: np.random.Generator) -> NDArray[np.int32]:
    """X, a = -1 and b: x becomes b - x and then x again, without rounding; a and b are the first register of a quad."""
    kind = np.dtype(np.float32) if spec.kind == "fma" else HALF_TYPES[spec.dtype]
    each = 4 // kind.itemsize
    grid = 64 if spec.dtype == "bf16" else 256
    x = draw.integers(grid, 2 * grid, WARP * spec.depth * each) / grid
    b = draw.integers(2 * grid, 3 * grid, SPAN * each) / grid  # above every x, so never a zero
    return np.concatenate([x, np.full(b.size, -1.0), b]).astype(kind).view(np.int32)


def family_of(spec: Any) -> Any:
    """The module of a spec."""
    return group_probes if spec.kind == "group" else probes


def _by_lane(words: NDArray, registers: int) -> NDArray:
    """Words as quads of every lane lie in memory, [.., registers, 32]."""
    return (
        words.reshape(*words.shape[:-1], registers // QUAD, WARP, QUAD)
        .swapaxes(-1, -2)
        .reshape(*words.shape[:-1], registers, WARP)
    )


def _in_memory(registers: NDArray) -> NDArray[np.int32]:
    """The inverse of `_by_lane`, flat."""
    count = registers.shape[0]
    return registers.reshape(count // QUAD, QUAD, WARP).swapaxes(-1, -2).reshape(-1).view(np.int32)


def problem(
    spec: Any, given: NDArray[np.int32], left: NDArray[np.int32], n: int, workers: int, turns: int
) -> str | None:
    """What is wrong with ``target`` after a launch on ``given``; None where it is right.

    Reading kernels are checked by the exclusive or of all that they read, so ``turns`` must be odd.
    """
    if turns % 2 == 0 and spec.kind in ("read", "shared", "fma", "fma_halves"):
        raise ValueError(
            f"turns: got {turns}; accepted: an odd number, since after an even one nothing is left to see"
        )
    if spec.kind == "copy":
        return None if np.array_equal(left, given) else "the copy differs from what was copied"
    if spec.kind == "write":
        same = (left.reshape(-1, SPAN) == given[:SPAN]).all()
        return None if same else "not every tile was written"
    if spec.kind == "read":
        found, wanted = (np.bitwise_xor.reduce(x.reshape(-1, SPAN), axis=0) for x in (left, given))
        return (
            None if np.array_equal(found, wanted) else "the words that were read are not those of the source"
        )
    family = family_of(spec)
    mine = left.reshape(workers, family.result_words(spec))
    if spec.kind == "shared":
        wanted = np.bitwise_xor.reduce(given.reshape(workers, spec.depth, SPAN), axis=1)
    elif spec.kind in ("launch", "barrier"):
        wanted = np.broadcast_to(np.int32(n), mine.shape)
    elif spec.kind == "exp":
        return _exponential_problem(given, mine)
    else:
        once = _arithmetic(
            spec, given, turns
        )  # what every block leaves; a block of warps that do the same, every warp
        mine, wanted = left.reshape(-1, once.size), once
        return None if (mine == wanted).all() else f"{spec.name}: wrong result"
    return None if np.array_equal(mine, wanted) else f"{spec.name}: wrong result"


def _exponential_problem(given: NDArray[np.int32], mine: NDArray[np.int32]) -> str | None:
    c = given.reshape(2, -1)[1].view(np.float32).astype(np.float64)
    x = np.ascontiguousarray(mine).view(np.float32).astype(np.float64)
    wrong = np.abs(x + np.exp(x) - c) / (1 + np.exp(x))  # Newton's distance from x = c - e^x
    worst = float(wrong.max())
    return None if worst <= EXPONENTIAL_ERROR else f"fixed points of c - e^x are {worst:.2g} off"


def _arithmetic(spec: Any, given: NDArray[np.int32], turns: int) -> NDArray[np.int32]:
    if spec.kind in ("fma", "fma_halves"):
        kind = np.dtype(np.float32) if spec.kind == "fma" else HALF_TYPES[spec.dtype]
        x, b = given[: WARP * spec.depth], given[-SPAN:].reshape(WARP, QUAD)[:, 0]
        left = (
            np.ascontiguousarray(_by_lane(x, spec.depth))
            .view(kind)
            .reshape(spec.depth, WARP, -1)
            .astype(np.float64)
        )
        right = np.ascontiguousarray(b).view(kind).reshape(WARP, -1).astype(np.float64)
        found = np.ascontiguousarray((right - left).astype(kind)).reshape(spec.depth, -1)
        return _in_memory(found.view(np.int32))  # after an odd number of steps
    if spec.kind == "group":
        return _group_products(spec, given, turns)
    row, column, k = MMA_TILES
    half = HALF_TYPES[spec.dtype]
    if spec.kind == "mma":
        a = _by_lane(given[: WARP * 4 * row * k], 4 * row * k)
        b = _by_lane(given[a.size :], 2 * k * column)
        left, right = np.empty((16 * row, 16 * k)), np.empty((16 * k, 8 * column))
        left[a_index(row, k)] = np.ascontiguousarray(a).view(half).reshape(*a.shape, 2)
        right[b_index(k, column)] = np.ascontiguousarray(b).view(half).reshape(*b.shape, 2)
        rows, columns = c_index(2 * row, column)
        sums = (turns * (left @ right))[rows, columns].transpose(0, 2, 1).reshape(-1, WARP)
        return _in_memory(sums.astype(np.float32))
    return _narrow_products(spec, given, turns)


def _narrow_products(spec: Any, given: NDArray[np.int32], turns: int) -> NDArray[np.int32]:
    """PTX ISA, fragments of m16n8k8: lane 4 g + t, and for halves two neighbours a register."""
    tf32 = spec.kind == "mma_tf32"
    per_a, per_b = (4, 2) if tf32 else (2, 1)
    a = _by_lane(given[: WARP * per_a * NARROW_PRODUCTS], per_a * NARROW_PRODUCTS)
    b = _by_lane(given[a.size :], per_b * NARROW_PRODUCTS)
    kind = np.dtype(np.float32) if tf32 else HALF_TYPES[spec.dtype]
    sums = np.empty((4 * NARROW_PRODUCTS, WARP), np.float32)
    group, thread = np.arange(WARP) >> 2, np.arange(WARP) & 3
    for i in range(NARROW_PRODUCTS):
        left, right = np.empty((16, 8)), np.empty((8, 8))
        for r in range(per_a):
            row = group + 8 * (r % 2)
            values = np.ascontiguousarray(a[per_a * i + r]).view(kind).reshape(WARP, -1)
            for e in range(values.shape[1]):
                left[row, thread + 4 * (r // 2) if tf32 else 2 * thread + e] = values[:, e]
        for r in range(per_b):
            values = np.ascontiguousarray(b[per_b * i + r]).view(kind).reshape(WARP, -1)
            for e in range(values.shape[1]):
                right[thread + 4 * r if tf32 else 2 * thread + e, group] = values[:, e]
        product = turns * (left @ right)
        for r in range(4):
            sums[4 * i + r] = product[group + 8 * (r // 2), 2 * thread + r % 2]
    return _in_memory(sums)


def _group_products(spec: group_probes.Spec, given: NDArray[np.int32], turns: int) -> NDArray[np.int32]:
    """The sums of the four warps, one after the other; reshaped to the block's warps by the caller."""
    k = group_probes.DEPTH
    halves = given.view(HALF_TYPES[spec.dtype]).astype(np.float64)
    left, right = np.empty((group_probes.ROWS, k)), np.empty((k, spec.columns))
    left[group_left_index(k)] = halves[: left.size]
    right[group_plain_right_index(k, spec.columns)] = halves[left.size :]
    product = turns * (left @ right)
    parts = []
    for warp in range(group_probes.WARPS):
        rows, columns = c_index(2, spec.columns // 8)
        mine = product[16 * warp : 16 * warp + 16][rows, columns]  # [row group x tile, 32, 2]
        registers = mine.reshape(2, spec.columns // 8, WARP, 2).transpose(1, 0, 3, 2).reshape(-1, WARP)
        parts.append(_in_memory(registers.astype(np.float32)))
    return np.concatenate(parts)
