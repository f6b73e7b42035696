"""The tile layer's operations for groups of four warps against plain NumPy, and the two bodies against each other.

Where operands lie in shared memory is written down again from the PTX ISA's text for ``wgmma`` (matrices in core
matrices of 8 rows of 16 bytes, no swizzle); nothing here uses the layer's own index maps for it.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny_groups
from hardware import HALF, assert_same_halves, slots_a
from numpy.typing import NDArray
from tiny_groups import COLUMNS, DATA, FACTOR, KERNELS, PARTS_DATA, PARTS_TABLE, STORED, TABLE, TEAMS
from tiny_kernels import Data, Tiny, data_for

from kernels_numba.tile.cpu import CpuTile
from kernels_numba.tile.machine import KernelError, Machine

cases = pytest.mark.parametrize(
    "spec",
    [Tiny(**{**vars(spec), "dtype": dtype}) for spec in KERNELS.values() for dtype in ("fp16", "bf16")],
    ids=lambda spec: f"{spec.name}-{spec.dtype}",
)
ROWS = 32


def halves_at(data: Data, word: int, count: int, dtype: str) -> NDArray[np.float64]:
    return data.w[word : word + count].view(HALF[dtype]).astype(float)


def left_factor(data: Data, dtype: str) -> NDArray:
    """[64, 32]: core matrices [16 columns, row group, 8 columns], rows of 8 halves."""
    flat = halves_at(data, FACTOR, 1024, dtype).reshape(2, 8, 2, 8, 8)
    return flat.transpose(1, 3, 0, 2, 4).reshape(64, ROWS)


def right_factor(data: Data, dtype: str) -> NDArray:
    """[16, 16]: core matrices [column group, 8 rows], each 8 columns of 8 contracted halves."""
    flat = halves_at(data, FACTOR, 128, dtype).reshape(2, 2, 8, 8)
    return flat.transpose(1, 3, 0, 2).reshape(16, COLUMNS)


def complex_data(data: Data, dtype: str) -> NDArray:
    """[32, 16]: core matrices [real or imaginary, column group, row group], rows of 8 halves."""
    flat = halves_at(data, DATA, 512, dtype).reshape(2, 2, 4, 8, 8)
    parts = flat.transpose(0, 2, 3, 1, 4).reshape(2, ROWS, COLUMNS)
    return parts[0] + 1j * parts[1]


def fragment(words: NDArray[np.int32], dtype: str) -> NDArray:
    """Words [registers, 32] of a complex packed C of two row groups -> [16, 16]."""
    halves = np.ascontiguousarray(words).view(HALF[dtype]).astype(float).reshape(2, 2, 2, 8, 4, 2)
    parts = halves.transpose(0, 1, 3, 2, 4, 5).reshape(2, 16, COLUMNS)
    return parts[0] + 1j * parts[1]


def quads(data: Data, word: int) -> NDArray[np.int32]:
    """Eight registers read by 16-byte loads from ``word`` on."""
    return data.w[word : word + 256].reshape(2, 32, 4).transpose(0, 2, 1).reshape(8, 32)


def butterfly(p: NDArray, q: NDArray, *, inverse: bool) -> tuple[NDArray, NDArray]:
    """Outputs and mirrors from [cosines; sines] applied to the real part (p) and the imaginary part (q)."""
    (a, e), (d, b) = p, q
    plus, minus = (a + b) + 1j * (d - e), (a - b) + 1j * (d + e)
    return (minus, plus) if inverse else (plus, minus)


def expected(spec: Tiny, data: Data, team: int, rank: int) -> NDArray:
    """What a warp's fragment holds, before rounding (of small integers: exactly)."""
    what, _, where = spec.name.partition(":")
    table = fragment(quads(data, TABLE + 256 * rank), spec.dtype)
    if what.startswith("rows"):
        mine = left_factor(data, spec.dtype)[16 * rank : 16 * rank + 16].reshape(2, 8, ROWS)
        z = complex_data(data, spec.dtype)
        p, q = mine @ z.real, mine @ z.imag
        plus, minus = butterfly(p, q, inverse=what == "rows")
        if what == "rows_times" and rank == 0:  # row 0: the two outputs that are their own mirrors
            plus[0], minus[0] = p[0, 0] + 1j * q[0, 0], p[1, 0] + 1j * q[1, 0]
        z = np.concatenate([plus] if where == "lower" else [plus, minus])
        return z if what == "rows" else z * table
    warp = 4 * team + rank
    words = quads(data, 256 * (7 - warp if where == "second" else warp)).reshape(2, 4, 32)
    slots = tuple(np.moveaxis(slots_a(1, 1), -1, 0))
    re, im = (
        np.ascontiguousarray(x).view(HALF[spec.dtype]).astype(float).reshape(4, 32, 2)[slots] for x in words
    )
    factor = right_factor(data, spec.dtype)
    p, q = (np.split(x @ factor, 2, axis=1) for x in (re, im))
    plus, minus = butterfly(np.stack(p), np.stack(q), inverse=False)
    return np.concatenate([plus, minus], axis=1) * table


def sequences(spec: Tiny, data: Data, found: NDArray[np.int32], rank: int) -> tuple[NDArray, NDArray]:
    """Two real sequences of 8 columns by a complex factor and a table, or their parts back: found, and expected."""
    halves, mine = (
        np.ascontiguousarray(found).view(HALF[spec.dtype]).astype(float),
        slice(16 * rank, 16 * rank + 16),
    )
    at = DATA if spec.name == "from_parts" else PARTS_DATA
    x = halves_at(data, at, 256, spec.dtype).reshape(2, ROWS, 8)  # core matrices [sequence, row group]
    if spec.name == "from_parts":
        return halves[:4].reshape(2, 16, 8), left_factor(data, spec.dtype)[mine] @ x
    core = halves_at(data, FACTOR, 2048, spec.dtype).reshape(2, 2, 8, 2, 8, 8)
    real, imaginary = core.transpose(0, 2, 4, 1, 3, 5).reshape(2, 64, ROWS)[:, mine]
    words = np.ascontiguousarray(data.w[PARTS_TABLE + 128 * rank :][:128].reshape(32, 4).T)
    table = words.view(HALF[spec.dtype]).astype(float).reshape(2, 16, 8)
    got = halves.reshape(2, 2, 16, 8)  # [sequence, part]
    return got[:, 0] + 1j * got[:, 1], (real @ x + 1j * (imaginary @ x)) * (table[0] + 1j * table[1])


def check(spec: Tiny, data: Data, out: NDArray[np.int16]) -> None:
    words = out.view(np.int32)
    for team in range(TEAMS):
        for rank in range(4):
            start = 1024 * team + 256 * rank
            found = words[start : start + 256].reshape(8, 32)
            if spec.name == "store_matrices":
                other = quads(data, 256 * (4 * team + (rank + 1) % 4))
                lying = np.concatenate([other[list(registers)] for _, registers in STORED]).reshape(-1)
                assert np.array_equal(found, lying.reshape(2, 32, 4).transpose(0, 2, 1).reshape(8, 32))
                continue
            if "parts" in spec.name:
                got, wanted = sequences(spec, data, found, rank)
            elif spec.name == "rows:lower":
                wanted = expected(spec, data, team, rank)
                halves = np.ascontiguousarray(found[:4]).view(HALF[spec.dtype]).astype(float)
                parts = halves.reshape(2, 2, 8, 4, 2).transpose(0, 2, 1, 3, 4).reshape(2, 8, COLUMNS)
                got = parts[0] + 1j * parts[1]
            else:
                got, wanted = fragment(found, spec.dtype), expected(spec, data, team, rank)
            unit = float(np.finfo(np.float16).eps if spec.dtype == "fp16" else 2.0**-7)
            # Sums of small integers are exact; they are rounded once, and a product with a table once or twice more.
            assert np.all(np.abs(got - wanted) <= 3 * unit * np.abs(wanted).max())
            assert np.abs(wanted).max() > 10


@cases
def test_operation(spec: Tiny) -> None:
    data = data_for(spec)
    out, counters = tiny_groups.run_cpu(spec, data)
    check(spec, data, out)
    if spec.name in ("rows", "rows:lower", "rows_times:global"):
        assert counters.mma_m16n8k16 == TEAMS * 4 * 2 * 2 * 2  # teams, warps, parts, column and row tiles
        # A warp's own 16 rows of the factor, and a quarter of the data.
        assert counters.shared_read_bytes == TEAMS * (64 * ROWS * 2 + 2 * ROWS * COLUMNS * 2)
    assert counters.bank_conflicts == 0
    with pytest.raises(AssertionError):
        check(spec, data, np.roll(out, 64))


@cases
def test_compiles(spec: Tiny) -> None:
    pytest.importorskip("numba.cuda")
    from kernels_numba.launch import compile_spec
    from kernels_numba.tile.compile import disassemble

    sass = disassemble(compile_spec(tiny_groups, spec, (9, 0)))
    wanted = {"rows": 2, "rows:lower": 2, "rows_times:shared": 2, "rows_times:global": 2}
    wanted |= {"columns_times:registers": 2, "store_matrices": 0}
    # Of both sequences one is stored; of the other an empty product is left, which ends its group.
    wanted |= {
        "to_parts:shared": 4,
        "to_parts:global": 4,
        "of_both:first": 3,
        "of_both:second": 3,
        "from_parts": 2,
    }
    assert len(re.findall(r"\bHGMMA\b", sass)) == wanted[spec.name]
    assert ("STSM.16.M88.4" in sass) == (spec.name == "store_matrices")
    # What products read was written by ordinary stores: without this fence the tensor cores may read what was before.
    assert "FENCE.VIEW.ASYNC" in sass


@pytest.mark.gpu
@cases
@pytest.mark.parametrize("seed", range(2))
def test_bodies_agree(spec: Tiny, seed: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit on small integers, whose sums have no rounding."""
    from kernels_numba import device

    if device().capability != tiny_groups.CAPABILITY:
        pytest.skip(f"needs compute capability {tiny_groups.CAPABILITY}; {device()}")
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path / "cache"))
    data = data_for(spec, seed)
    gpu, cpu = tiny_groups.run_gpu(spec, data), tiny_groups.run_cpu(spec, data)[0]
    if spec.name == "store_matrices":  # moves words, which may be NaNs of any bits, and has to keep them
        assert np.array_equal(gpu, cpu)
    else:
        assert_same_halves(gpu, cpu, spec.dtype)


# ---- what the machine refuses --------------------------------------------------------------------------------
def refuses(kernel: Callable[[CpuTile], Any], message: str, *, warps: int = 8) -> None:
    machine = Machine()
    tile = CpuTile(machine, "fp16")
    meet = tile.team_barrier(4)
    with pytest.raises(KernelError, match=re.escape(message)):
        machine.run(lambda: kernel(tile, meet), 1, warps, 256, [])  # type: ignore[call-arg]


def put(tile: CpuTile, at: int) -> None:
    tile.store_shared_pieces(((0, 0, (0,)),))(at + tile.lane(), 0, 0, 0, np.ones((1, 32), np.int32))


def product(tile: CpuTile, at: int) -> None:
    tile.group_dft_columns_times(16, 1, inverse=False, table="registers")(
        np.zeros((8, 32), np.int32), at, np.zeros((8, 32), np.int32), 0
    )


def test_teams_meet_apart_and_the_block_together() -> None:
    """A team may pass its barrier any number of times; words are then its own until the block meets."""
    order = []
    machine = Machine()
    tile = CpuTile(machine, "fp16")
    meet = tile.team_barrier(4)

    def kernel() -> None:
        team, rank = divmod(tile.warp(), 4)
        for turn in range(1 + team):
            put(tile, 32 * rank + 128 * team)
            meet(team)
            order.append((team, turn))
            tile.load_shared(1, 1)(32 * ((rank + 1) % 4) + 128 * team + tile.lane(), 0)
            meet(team)
        tile.barrier()
        tile.load_shared(1, 1)(128 * (1 - team) + tile.lane(), 0)

    counters = machine.run(kernel, 1, 8, 256, [])
    assert sorted(order) == [(0, 0)] * 4 + [(1, 0)] * 4 + [(1, 1)] * 4
    assert counters.barriers == 2 + 4 + 1


def test_a_team_barrier_does_not_order_other_teams() -> None:
    def kernel(tile: CpuTile, meet: Callable) -> None:
        team = tile.warp() // 4
        if tile.warp() == 0:
            put(tile, 0)
        meet(team)
        if tile.warp() == 4:
            tile.load_shared(1, 1)(tile.lane(), 0)

    refuses(kernel, "another warp wrote, without a barrier between")


def test_a_wrong_team_is_refused() -> None:
    refuses(lambda tile, meet: meet(1 - tile.warp() // 4), "is in team 0 and waits at the barrier of team 1")


def test_different_barriers_are_refused() -> None:
    def kernel(tile: CpuTile, meet: Callable) -> None:
        if tile.warp() == 0:
            tile.barrier()
        else:
            meet(tile.warp() // 4)

    refuses(kernel, "wait at different barriers", warps=4)


@pytest.mark.parametrize(
    ("fenced", "met", "message"),
    [
        (False, True, "did not fence"),
        (True, False, "written without a barrier between"),
        (True, True, None),
    ],
)
def test_products_read_what_was_fenced_before_a_barrier(fenced: bool, met: bool, message: str | None) -> None:
    def kernel(tile: CpuTile, meet: Callable) -> None:
        for i in range(4):
            put(tile, 32 * i if tile.warp() == 0 else 128 + 32 * (tile.warp() - 1) % 128)
            if tile.warp():
                break
        if fenced:
            tile.fence_async()
        if met:
            meet(0)
        if tile.warp() == 0:
            product(tile, 0)

    if message:
        refuses(kernel, message, warps=4)
    else:
        machine = Machine()
        tile = CpuTile(machine, "fp16")
        meet = tile.team_barrier(4)
        machine.run(lambda: kernel(tile, meet), 1, 4, 256, [])


def test_overwriting_what_a_product_reads_is_refused() -> None:
    def kernel(tile: CpuTile, meet: Callable) -> None:
        if tile.warp() == 0:
            for i in range(4):
                put(tile, 32 * i)
        tile.fence_async()
        meet(0)
        if tile.warp() == 0:
            product(tile, 0)
        if tile.warp() == 1:
            put(tile, 0)

    refuses(kernel, "another warp uses, without a barrier between", warps=4)
