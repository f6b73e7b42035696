"""Running sums on warpgroups against plain NumPy, the two bodies against each other, and what the machine refuses.

Where operands lie is written down again from the PTX ISA (matrices of 128-byte rows, K-major, 128-byte swizzle: bits 4
to 6 of an address are XORed with bits 7 to 9), and results from its figure of the accumulators of ``wgmma``.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny_group_sums
from hardware import HALF
from numpy.typing import NDArray
from tiny_group_sums import COLUMNS, KERNELS, LEFT, RIGHT, ROWS, SLAB
from tiny_kernels import POISON, Data, Tiny, data_for

from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import KernelError, Machine

cases = pytest.mark.parametrize(
    "spec",
    [Tiny(**{**vars(spec), "dtype": dtype}) for spec in KERNELS.values() for dtype in ("fp16", "bf16")],
    ids=lambda spec: f"{spec.name}-{spec.dtype}",
)


def slab(data: Data, word: int, rows: int, dtype: str) -> NDArray[np.float64]:
    """[rows, 64], read byte address by byte address."""
    row, column = np.indices((rows, SLAB))
    address = 128 * row + 2 * column
    address ^= (address >> 7 & 7) << 4
    return data.w[word:].view(HALF[dtype])[address // 2].astype(float)


def expected(spec: Tiny, data: Data) -> NDArray[np.int16]:
    how, _, odd = spec.name.partition(":")
    y = 2 * slab(data, LEFT, ROWS, spec.dtype) @ slab(data, RIGHT, COLUMNS, spec.dtype).T
    y = (y.T if how == "turned" else y).astype(np.float32).astype(HALF[spec.dtype]).view(np.int16)
    if odd:
        y[-1], y[:, -1] = POISON, POISON
    return y


@cases
def test_sums(spec: Tiny) -> None:
    """Sums of small integers are exact, and rounded once."""
    data = data_for(spec)
    out, counters = tiny_group_sums.run_cpu(spec, data)
    wanted = expected(spec, data)
    assert np.array_equal(out[: wanted.size].reshape(wanted.shape), wanted)
    assert (out[wanted.size :] == POISON).all()
    assert np.unique(wanted).size > 50
    assert counters.mma_m16n8k16 == 2 * 4 * (COLUMNS // 8) * (SLAB // 16)
    assert counters.shared_read_bytes == 2 * 2 * SLAB * (ROWS + COLUMNS)
    assert counters.transposes == (16 if spec.name.startswith("turned") else 0)


@pytest.mark.parametrize(("name", "dtype"), [("plain", "fp16"), ("turned:odd", "bf16")])
def test_compiles(name: str, dtype: str) -> None:
    spec = Tiny(**{**vars(KERNELS[name]), "dtype": dtype})
    pytest.importorskip("numba.cuda")
    from kernels_numba.launch import compile_spec
    from kernels_numba.tile.compile import disassemble

    sass = disassemble(compile_spec(tiny_group_sums, spec, (9, 0)))
    assert len(re.findall(r"\bHGMMA\.64x16x16\.F32\S*", sass)) == 8
    assert ("MOVM" in sass) == spec.name.startswith("turned")
    # One product may be under way while the next begins.
    assert re.search(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1", sass)
    assert "FENCE.VIEW.ASYNC" in sass


@pytest.mark.gpu
@cases
@pytest.mark.parametrize("seed", range(2))
def test_bodies_agree(spec: Tiny, seed: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit on small integers, whose sums have no rounding."""
    from kernels_numba import device

    if device().capability != tiny_group_sums.CAPABILITY:
        pytest.skip(f"needs compute capability {tiny_group_sums.CAPABILITY}; {device()}")
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path / "cache"))
    data = data_for(spec, seed)
    assert np.array_equal(tiny_group_sums.run_gpu(spec, data), tiny_group_sums.run_cpu(spec, data)[0])


# ---- what the machine refuses --------------------------------------------------------------------------------
def refuses(act: Callable[[Any, Callable, NDArray], Any], message: str) -> None:
    """``act(tile, add, c)`` by four warps, after both slabs were filled with ones."""
    machine = Machine()
    tile = vocabulary(machine, "fp16", "linear")
    add, fill = tile.group_mma_add(COLUMNS, 4), tile.store_shared_pieces(((0, 0, (0,)),))

    def kernel() -> None:
        for word in range(32 * tile.warp(), tiny_group_sums.WORDS, 128):
            fill(word + tile.lane(), 0, 0, 0, np.full((1, 32), 0x3C003C00, np.int32))
        tile.fence_async()
        tile.barrier()
        act(tile, add, np.zeros((COLUMNS // 2, 32), np.float32))

    with pytest.raises(KernelError, match=re.escape(message)):
        machine.run(kernel, 1, 4, tiny_group_sums.WORDS + 256, [])


def put(tile: Any, word: int) -> None:
    tile.store_shared_pieces(((0, 0, (0,)),))(word + tile.lane(), 0, 0, 0, np.ones((1, 32), np.int32))


def test_writing_what_a_product_reads_is_refused() -> None:
    """Before it has ended, though all have met since it began; and after, if they have not."""

    def early(tile: Any, add: Callable, c: NDArray) -> None:
        c = add(c, LEFT, RIGHT)
        tile.barrier()
        put(tile, RIGHT + 32 * tile.warp())
        tile.group_wait(COLUMNS, 0)(c)

    def unmet(tile: Any, add: Callable, c: NDArray) -> None:
        tile.barrier()
        tile.group_wait(COLUMNS, 0)(add(c, LEFT, RIGHT))
        if tile.warp() == 3:
            put(tile, RIGHT)

    refuses(early, "written while a product that reads it is under way")
    refuses(unmet, "another warp uses, without a barrier between")


def test_the_older_product_ends_first() -> None:
    """With one still under way, its slab is still read; the other's may be overwritten after a barrier."""

    def kernel(tile: Any, add: Callable, c: NDArray) -> None:
        c = add(c, LEFT, RIGHT)
        c = tile.group_wait(COLUMNS, 1)(add(c, LEFT, LEFT))
        tile.barrier()
        put(tile, RIGHT + 32 * tile.warp())
        put(tile, LEFT + 32 * tile.warp())

    refuses(kernel, "written while a product that reads it is under way")


def test_sums_under_way_are_not_stored() -> None:
    def kernel(tile: Any, add: Callable, c: NDArray) -> None:
        tile.store_group(COLUMNS, 2)(None, 0, 16, 16, 16, add(c, LEFT, RIGHT))

    refuses(kernel, "stored while products onto them are under way")


def test_products_are_waited_for() -> None:
    refuses(lambda tile, add, c: add(c, LEFT, RIGHT), "ended while products of it are under way")


def test_slabs_begin_on_1024_bytes() -> None:
    refuses(lambda tile, add, c: add(c, LEFT + 32, RIGHT), "a slab begins at word 32, not on 1024 bytes")
