"""The CPU's machine refuses what a GPU leaves undefined, runs the same way every time, and says what went wrong."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.tile.cpu import CpuTile
from kernels_numba.tile.machine import LANES, Buffer, KernelError, Machine

WORDS = 256


class Bench:
    """A machine, its operations, and one buffer of each kind; kernels are closures over it."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.tile = CpuTile(self.machine, "fp16")
        self.h = Buffer("h", np.arange(512, dtype=np.int16))
        self.w = Buffer("w", np.arange(WORDS, dtype=np.int32))
        self.out = Buffer("out", np.zeros(512, np.int16))

    def run(self, kernel: Callable[[], Any], *, warps: int = 1, grid: int = 1) -> None:
        self.machine.run(kernel, grid, warps, WORDS, [])

    def fill(self, start: int = 0, *, wait: bool = True) -> None:
        """Copy 128 words to shared memory, four consecutive ones by each lane."""
        self.tile.copy_words_async(start + 4 * self.tile.lane(), self.w, 4 * self.tile.lane())
        self.tile.commit()
        if wait:
            self.tile.wait(0)()

    def read(self, offsets: Any = 0, width: int = 4) -> NDArray[np.int32]:
        return self.tile.load_shared(width, width)(offsets, 0)

    def put(self, offsets: Any, value: int = 1) -> None:
        """Every lane writes one word."""
        fragment = np.full((1, 32), value, np.int32)
        self.tile.store_shared_pieces(((0, 0, (0,)),))(offsets, 0, 0, 0, fragment)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def refuses(bench: Bench, kernel: Callable[[], Any], message: str, **launch: int) -> None:
    with pytest.raises(KernelError, match=re.escape(message)):
        bench.run(kernel, **launch)


# ---- control flow --------------------------------------------------------------------------------------------
def test_divergent_branch(bench: Bench) -> None:
    def kernel() -> None:
        if bench.tile.lane() < 3:
            raise AssertionError("no lane may decide alone")

    refuses(bench, kernel, "differs between the lanes")


def test_divergent_loop(bench: Bench) -> None:
    def kernel() -> None:
        i = bench.tile.lane()
        while i < 40:
            i += 32

    refuses(bench, kernel, "differs between the lanes")


def test_uniform_branch(bench: Bench) -> None:
    seen = []

    def kernel() -> None:
        if bench.tile.lane() < 32:
            seen.append(bool((bench.tile.lane() >> 5) == 1))

    bench.run(kernel)
    assert seen == [False]


OPERATIONS: list[Callable] = [
    lambda x: x.__iadd__(5),
    lambda x: x.__isub__(5),
    lambda x: x.__imul__(5),
    lambda x: x.__ifloordiv__(5),
    lambda x: x.__imod__(5),
    lambda x: x.__ilshift__(5),
    lambda x: x.__irshift__(5),
    lambda x: x.__ior__(5),
    lambda x: x.__iand__(5),
    lambda x: x.__ixor__(5),
]
PLAIN: list[Callable] = [
    lambda x: x + 5,
    lambda x: x - 5,
    lambda x: x * 5,
    lambda x: x // 5,
    lambda x: x % 5,
    lambda x: x << 5,
    lambda x: x >> 5,
    lambda x: x | 5,
    lambda x: x & 5,
    lambda x: x ^ 5,
]


@pytest.mark.parametrize(("assign", "plain"), list(zip(OPERATIONS, PLAIN, strict=True)))
def test_augmented_assignment_makes_a_new_value(bench: Bench, assign: Callable, plain: Callable) -> None:
    """As for the integers that these are on a GPU: ``y = x; x += 1`` leaves y alone."""
    x = bench.tile.lane()
    changed = assign(x)
    assert list(changed) == [plain(i) for i in range(32)]
    assert list(x) == list(LANES) == list(range(32))
    again = assign(changed)
    assert list(changed) == [plain(i) for i in range(32)]
    assert list(again) == [plain(plain(i)) for i in range(32)]


def test_lane_indices_cannot_be_overwritten() -> None:
    with pytest.raises(ValueError, match="read-only"):
        LANES[3] = 0


# ---- shared memory: between warps ----------------------------------------------------------------------------
def test_barriers_in_place(bench: Bench) -> None:
    """Two warps: each brings 128 words, reads the other's, and overwrites its own."""

    def kernel() -> None:
        me = bench.tile.warp()
        bench.fill(128 * me)
        bench.tile.barrier()
        bench.read(128 * (1 - me) + 4 * bench.tile.lane())
        bench.tile.barrier()
        bench.fill(128 * me)

    bench.run(kernel, warps=2, grid=3)
    assert bench.machine.counters.barriers == 2 * 3


def test_missing_barrier_before_reading(bench: Bench) -> None:
    def kernel() -> None:
        if bench.tile.warp() == 0:
            bench.fill()
        else:
            bench.read(4 * bench.tile.lane())

    refuses(bench, kernel, "another warp wrote, without a barrier", warps=2)


@pytest.mark.parametrize("reader", [0, 1])
def test_missing_barrier_before_writing(bench: Bench, reader: int) -> None:
    """One warp overwrites what the other reads, whichever of them comes first."""

    def kernel() -> None:
        if bench.tile.warp() == 0:
            bench.fill()
        bench.tile.barrier()
        if bench.tile.warp() == reader:
            bench.read(4 * bench.tile.lane())
        else:
            bench.fill()

    refuses(bench, kernel, "without a barrier between", warps=2)


def test_two_warps_write_the_same_words(bench: Bench) -> None:
    refuses(bench, bench.fill, "another warp uses, without a barrier", warps=2)


def test_writing_what_several_warps_read(bench: Bench) -> None:
    def kernel() -> None:
        if bench.tile.warp() == 0:
            bench.fill()
        bench.tile.barrier()
        bench.read(4 * bench.tile.lane())
        if bench.tile.warp() == 2:
            bench.fill()

    refuses(bench, kernel, "another warp uses, without a barrier", warps=3)


def test_a_barrier_that_one_warp_misses(bench: Bench) -> None:
    def kernel() -> None:
        if bench.tile.warp() != 1:
            bench.tile.barrier()

    refuses(bench, kernel, "barrier", warps=3)


def test_a_barrier_after_a_warp_has_ended(bench: Bench) -> None:
    def kernel() -> None:
        if bench.tile.warp() != 0:
            bench.tile.barrier()

    refuses(bench, kernel, "another warp of its block never reaches", warps=2)


def test_a_warp_that_waits_once_more(bench: Bench) -> None:
    def kernel() -> None:
        bench.tile.barrier()
        if bench.tile.warp() == 1:
            bench.tile.barrier()

    refuses(bench, kernel, "barrier", warps=2)


def test_different_barriers_after_the_other_block_has_ended(bench: Bench) -> None:
    """Nobody is left who could open any of them, and no warp that ended is missed at one."""
    meet = bench.tile.team_barrier(2)

    def kernel() -> None:
        if bench.tile.block() == 0:
            meet(0) if bench.tile.warp() == 0 else bench.tile.barrier()

    with pytest.raises(KernelError, match="different barriers"):
        bench.machine.run(kernel, 2, 4, WORDS, [], cluster=2)


# ---- shared memory: between lanes ----------------------------------------------------------------------------
def test_missing_warp_sync_before_reading(bench: Bench) -> None:
    def kernel() -> None:
        bench.fill()
        bench.read(4 * bench.tile.lane())  # each lane what it copied itself
        bench.read(124 - 4 * bench.tile.lane())

    refuses(bench, kernel, "another lane wrote, without warp_sync")


def test_missing_warp_sync_before_reading_single_elements(bench: Bench) -> None:
    """Two lanes that copy one element each share a word, so neither may read it yet."""

    def kernel() -> None:
        bench.tile.copy_async(1)(bench.tile.lane(), bench.h, bench.tile.lane(), True)
        bench.read(bench.tile.lane() >> 1, width=1)

    refuses(bench, kernel, "another lane wrote, without warp_sync")


def test_missing_warp_sync_before_writing(bench: Bench) -> None:
    def kernel() -> None:
        bench.put(bench.tile.lane())
        bench.tile.warp_sync()
        bench.read(31 - bench.tile.lane(), width=1)
        bench.put(bench.tile.lane())

    refuses(bench, kernel, "another lane uses, without warp_sync")


def test_missing_warp_sync_before_writing_what_several_lanes_read(bench: Bench) -> None:
    def kernel() -> None:
        bench.put(bench.tile.lane())
        bench.tile.warp_sync()
        bench.read(bench.tile.lane() * 0 + 31, width=1)  # lane 31 is the last to read word 31, and its writer
        bench.put(bench.tile.lane())

    refuses(bench, kernel, "another lane uses, without warp_sync")


def test_missing_warp_sync_between_writes(bench: Bench) -> None:
    def kernel() -> None:
        bench.put(bench.tile.lane())
        bench.put(31 - bench.tile.lane())

    refuses(bench, kernel, "another lane uses, without warp_sync")


def test_two_lanes_write_one_word(bench: Bench) -> None:
    refuses(bench, lambda: bench.put(bench.tile.lane() >> 1), "another lane uses, without warp_sync")


def test_warp_sync_in_place(bench: Bench) -> None:
    def kernel() -> None:
        for _ in range(2):
            bench.put(bench.tile.lane(), 7)
            assert (bench.read(bench.tile.lane(), width=1) == 7).all()
            bench.tile.warp_sync()
            assert (bench.read(31 - bench.tile.lane(), width=1) == 7).all()
            bench.tile.warp_sync()
            bench.put(31 - bench.tile.lane())
            bench.tile.warp_sync()

    bench.run(kernel)


# ---- shared memory: order, bounds, alignment -----------------------------------------------------------------
def test_missing_wait(bench: Bench) -> None:
    def kernel() -> None:
        bench.fill(wait=False)
        bench.read(4 * bench.tile.lane())

    refuses(bench, kernel, "before its copy was waited for")


def test_waiting_for_too_few_groups(bench: Bench) -> None:
    def kernel() -> None:
        bench.fill(0, wait=False)
        bench.fill(128, wait=False)
        bench.tile.wait(1)()
        bench.read(4 * bench.tile.lane())
        bench.read(128 + 4 * bench.tile.lane())

    refuses(bench, kernel, "before its copy was waited for")
    assert bench.machine.counters.shared_read_bytes == 2 * 512  # the first group was there


def test_missing_commit(bench: Bench) -> None:
    def kernel() -> None:
        bench.tile.copy_words_async(4 * bench.tile.lane(), bench.w, 4 * bench.tile.lane())
        bench.tile.wait(0)()
        bench.read(4 * bench.tile.lane())

    refuses(bench, kernel, "before its copy was waited for")


def test_uninitialised_shared_memory(bench: Bench) -> None:
    refuses(bench, bench.read, "before it was written")


GATHERED = {
    "uninitialised": ("before it was written", lambda bench, gather: gather(0)),
    "not waited for": (
        "before its copy was waited for",
        lambda bench, gather: (bench.fill(wait=False), gather(0)),
    ),
    "another lane's": (
        "another lane wrote, without warp_sync",
        lambda bench, gather: (bench.fill(), gather(0)),
    ),
    "another warp's": (
        "another warp wrote, without a barrier",
        lambda bench, gather: gather(0) if bench.tile.warp() else bench.fill(),
    ),
    "then overwritten": (
        "a lane writes shared memory that another lane uses",
        lambda bench, gather: (
            bench.fill(),
            bench.tile.warp_sync(),
            gather(0),
            bench.put(4 * bench.tile.lane()),
        ),
    ),
    "out of bounds": (
        f"accessed at {WORDS - 124}..{WORDS}",
        lambda bench, gather: gather(WORDS - 124),
    ),
}


@pytest.mark.parametrize("what", GATHERED)
def test_gathered_halves_are_checked(bench: Bench, what: str) -> None:
    """Every lane gathers two halves of the first word that the next lane copied."""
    message, kernel = GATHERED[what]
    low = 8 * ((np.arange(32) + 1) % 32)
    offsets = np.broadcast_to(low | (low + 1) << 16, (4, 32)).astype(np.int32)
    _, gather = bench.tile.gather_halves(4)
    warps = 2 if "warp" in what else 1
    refuses(bench, lambda: kernel(bench, lambda base: gather(base, offsets)), message, warps=warps)


def test_gathering_in_place(bench: Bench) -> None:
    """What may be: after warp_sync, and writing again after another."""
    low = 8 * ((np.arange(32) + 1) % 32)
    offsets = np.broadcast_to(low | (low + 1) << 16, (4, 32)).astype(np.int32)
    _, gather = bench.tile.gather_halves(4)
    found = []

    def kernel() -> None:
        bench.fill()
        bench.tile.warp_sync()
        found.append(gather(0, offsets))
        bench.tile.warp_sync()
        bench.put(4 * bench.tile.lane())

    bench.run(kernel)
    assert np.array_equal(found[0], np.broadcast_to(low // 2, (4, 32)))


def test_shared_memory_does_not_outlive_its_block(bench: Bench) -> None:
    def kernel() -> None:
        if bench.tile.block() == 0:
            bench.fill()
        bench.read(4 * bench.tile.lane())

    refuses(bench, kernel, "before it was written", grid=2)


@pytest.mark.parametrize("start", [-4, 132, WORDS])
def test_shared_memory_out_of_bounds(bench: Bench, start: int) -> None:
    refuses(
        bench, lambda: bench.fill(start), f"shared memory of {WORDS} words accessed at {start}..{start + 127}"
    )
    refuses(bench, lambda: bench.read(start + 4 * bench.tile.lane()), f"shared memory of {WORDS} words")


@pytest.mark.parametrize("width", [2, 4])
def test_misaligned_shared_memory(bench: Bench, width: int) -> None:
    def read() -> None:
        bench.fill()
        bench.read(width * bench.tile.lane() + 1, width=width)

    def read_next_chunk() -> None:
        bench.fill()
        bench.tile.warp_sync()
        bench.tile.load_shared(2 * width, width)(0, width + 1)

    def write() -> None:
        fragment = np.zeros((width, 32), np.int32)
        pieces = ((0, 1, tuple(range(width))),)
        bench.tile.store_shared_pieces(pieces)(width * bench.tile.lane(), 0, 0, 0, fragment)

    for kernel in (read, read_next_chunk, write):
        refuses(bench, kernel, "not aligned")


@pytest.mark.parametrize("halves", [2, 4, 8])
def test_misaligned_copy(bench: Bench, halves: int) -> None:
    lane, copy = bench.tile.lane, bench.tile.copy_async(halves)
    refuses(bench, lambda: copy(halves * lane() + 1, bench.h, halves * lane(), True), "not aligned")
    refuses(bench, lambda: copy(halves * lane(), bench.h, halves * lane() + 1, True), "'h'")


# ---- global memory -------------------------------------------------------------------------------------------
def accesses(bench: Bench, start: int) -> list[Callable[[], Any]]:
    """Every operation that touches a global buffer of 512 elements or 256 words, from ``start`` on."""
    lane, tile = bench.tile.lane, bench.tile
    fragment, pieces = np.zeros((4, 32), np.int32), ((0, 0, (0, 1, 2, 3)),)
    return [
        lambda: tile.copy_async(8)(8 * lane(), bench.h, start + 8 * lane(), True),
        lambda: tile.copy_words_async(4 * lane(), bench.w, start + 4 * lane()),
        lambda: tile.load_global(4, 4)(bench.w, start + 4 * lane(), 0),
        lambda: tile.gather(pieces, 4, 8, guarded=False)(bench.h, start, 0, 8 * lane(), 0, 0, 0),
        lambda: tile.store_pieces(pieces, 8, guarded=False)(
            bench.out, start, 0, 8 * lane(), 0, 0, 0, fragment
        ),
    ]


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("start", [-8, 264])
def test_global_memory_out_of_bounds(bench: Bench, which: int, start: int) -> None:
    refuses(bench, accesses(bench, start)[which], "elements accessed at")


@pytest.mark.parametrize("which", range(5))
def test_misaligned_global_memory(bench: Bench, which: int) -> None:
    refuses(bench, accesses(bench, 2)[which], "not aligned")


def test_load_float_out_of_bounds(bench: Bench) -> None:
    floats = Buffer("f", np.zeros(3, np.float32))
    refuses(bench, lambda: bench.tile.load_float(floats, 3), "buffer 'f' of 3 elements accessed at 3..3")


def test_an_unaligned_buffer_is_found_by_its_address(bench: Bench) -> None:
    """Offset 0 of a view that starts in the middle of an allocation is not aligned."""
    shifted = Buffer("shifted", bench.h.data[1:])
    copy = bench.tile.copy_async(8)
    refuses(bench, lambda: copy(8 * bench.tile.lane(), shifted, 8 * bench.tile.lane(), True), "not aligned")


def test_masked_lanes_touch_nothing(bench: Bench) -> None:
    lane, pieces = bench.tile.lane, ((0, 0, (0, 1, 2, 3)),)
    fragment = np.full((4, 32), 3, np.int32)

    def kernel() -> None:
        bench.tile.copy_async(8)(8 * lane(), bench.h, 8 * lane() - 256, lane() >= 32)
        store = bench.tile.store_pieces(pieces, 8, guarded=True)
        store(bench.out, 504, 8, 8 * lane(), 0, 0, 0, fragment)

    bench.run(kernel)
    assert bench.machine.counters.global_read_bytes == {"h": 0}
    assert (bench.out.data[:504] == 0).all() and (bench.out.data[504:] != 0).any()


# ---- running -------------------------------------------------------------------------------------------------
def test_runs_are_deterministic() -> None:
    """The same order of events, results and counts every time: warp by warp between barriers."""

    def once() -> tuple[list[tuple[int, int, str]], dict[str, object]]:
        bench, events = Bench(), []

        def kernel() -> None:
            me, here = bench.tile.warp(), bench.tile.block()
            events.append((here, me, "before"))
            bench.fill(128 * (me & 1)) if me < 2 else None
            bench.tile.barrier()
            events.append((here, me, "between"))
            bench.read(4 * bench.tile.lane())
            bench.tile.barrier()
            events.append((here, me, "after"))

        bench.run(kernel, warps=4, grid=2)
        return events, bench.machine.counters.as_dict()

    first = once()
    expected = [(b, w, part) for b in range(2) for part in ("before", "between", "after") for w in range(4)]
    assert first[0] == expected
    assert all(once() == first for _ in range(5))


def test_counters_add_up_over_runs(bench: Bench) -> None:
    bench.run(bench.fill, grid=2)
    bench.run(bench.fill, grid=3)
    assert bench.machine.counters.blocks == bench.machine.counters.warps == 5
    assert bench.machine.counters.global_read_bytes == {"w": 5 * 512}


@pytest.mark.parametrize("culprit", range(3))
def test_exceptions_of_the_kernel_come_out(bench: Bench, culprit: int) -> None:
    """Whatever warp fails, and while the others wait at a barrier, the caller sees its exception."""

    class Sabotage(Exception):
        pass

    def kernel() -> None:
        if bench.tile.warp() == culprit:
            raise Sabotage(f"warp {culprit}")
        bench.tile.barrier()

    with pytest.raises(Sabotage, match=f"warp {culprit}"):
        bench.run(kernel, warps=3)


def test_a_failed_run_does_not_spoil_the_next(bench: Bench) -> None:
    refuses(bench, bench.read, "before it was written")
    bench.run(bench.fill)
