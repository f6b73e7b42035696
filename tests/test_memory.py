"""What convolutions take of memory: filters, calls and constants, of every family, as `FFTConv.describe` says."""

import re
from typing import Any

import numpy as np
import pytest

from kernels_numba import FFTConv, describe, families, launch, prepare_filter
from kernels_numba.fftconv import KEPT_CONSTANTS, _device_operands
from monarch import Plan

KINDS = {
    "warp": ("fp16", None, Plan(1024, (32, 32))),
    "group": ("fp16", None, Plan(4096, (64, 64))),
    "block": ("bf16", None, Plan(4096, (16, 16, 16))),
    "block, half": ("fp16", None, Plan(8192, (16, 16, 16), packing="half")),
    "deep": ("fp16", None, Plan(16384, (8, 8, 16, 16))),
    "deep, half": ("fp16", None, Plan(65536, (16, 8, 16, 16), packing="half")),
    "any": ("fp16", None, Plan(2304, (48, 48))),
    "any first factor": ("fp16", None, Plan(4352, (17, 16, 16))),
    "any, half": ("bf16", None, Plan(7680, (80, 48), packing="half")),
    "any, complex": ("complex64", "fp16", Plan(4096, (16, 16, 16), packing="complex")),
    "fp32 by halves": ("fp32", "fp16", Plan(1024, (32, 32))),
    "float": ("fp32", None, Plan(1024, (4, 16, 16))),
    "float, half": ("fp32", None, Plan(32768, (32, 32, 16), packing="half")),
    "rounds, half": ("fp32", None, Plan(49152, (16, 8, 12, 16), packing="half")),
    "rounds, complex": ("complex64", None, Plan(18432, (16, 8, 9, 16), packing="complex")),
    "float, complex": ("complex64", None, Plan(4096, (16, 16, 16), packing="complex")),
}


def prepared(dtype: str, products: str | None, plan: Plan, *, batch: int = 2, k: Any = None) -> FFTConv:
    k = np.ones((3, 5), np.float32) if k is None else k
    return FFTConv(prepare_filter(k, length=plan.n, dtype=dtype, products=products, plan=plan), batch=batch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_takes_four_bytes_a_channel_and_bin(kind: str) -> None:
    """In fp32 eight: a complex number of the type of the products for each of N bins, with any packing."""
    dtype, products, plan = KINDS[kind]
    convolve = prepared(dtype, products, plan)
    each = 8 if products is None and dtype in families.FLOAT_TYPES else 4
    assert convolve.spectrum.words.nbytes == each * 3 * plan.n
    assert describe.spectrum_bytes(convolve) == 3 * (each * plan.n + 4)
    assert f"{each} for each channel and bin" in convolve.describe()


@pytest.mark.parametrize("kind", KINDS)
def test_constants_are_of_the_kernel_not_of_the_filter(kind: str) -> None:
    dtype, products, plan = KINDS[kind]
    one = prepared(dtype, products, plan)
    other = prepared(dtype, products, plan, batch=7, k=np.ones((1, 2), np.float32))
    assert one._operand_key(one.spec()) == other._operand_key(other.spec())
    size = describe.constant_bytes(one)
    words = one.family.operands(*one._operand_key(one.spec()))
    assert sum(x.nbytes for x in words) == size
    assert re.search(rf"constants  {size:,} bytes .*at most {KEPT_CONSTANTS} kernels", one.describe())


def test_constants_are_bounded() -> None:
    """Of every plan that a kernel takes: by the sizes of factors and twiddles, which need not be made."""
    for family in (*families.FAMILIES, *families.families("fp32")):
        for packing, lists in family.PACKINGS.items():
            longest = max(lists, key=lambda f: 8 * sum(x * x for x in f) + 8 * int(np.prod(f)))
            dtype = "fp32" if family in families.families("fp32") else "fp16"
            spec = family.make_spec(Plan.of(longest, packing=packing), dtype)
            size = sum(words.nbytes for words in family.operands(*family.operand_key(spec)))
            assert size <= describe.MOST_CONSTANT_BYTES, (family.__name__, longest, size)


def test_what_fits_on_chip_is_said() -> None:
    """Of the device that runs it (here of the GPUs with most), and what factors cost that do not fit beside points."""
    text = prepared("fp32", None, Plan(49152, (16, 8, 12, 16), packing="half")).describe()
    assert "208,888 of 232,448 bytes" in text and "up to 57344 points" in text
    assert "up to 65536 points" in prepared("fp16", None, Plan(4352, (17, 16, 16))).describe()
    text = prepared("fp16", None, Plan(6912, (432, 16))).describe()
    assert "factors of 432 do not fit beside the points: 1,492,992 bytes" in text


@pytest.mark.gpu
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_allocates_its_output_and_nothing_else(
    kind: str, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PyTorch's allocator, and by the one way in which this package allocates."""
    torch = pytest.importorskip("torch")
    dtype, products, plan = KINDS[kind]
    stored = {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp32": torch.float32,
        "complex64": torch.complex64,
    }[dtype]
    k = torch.randn(3, 50, device="cuda") / 7
    convolve = prepared(dtype, products, plan, batch=4, k=k)
    u = torch.randn(4, 3, plan.n, device="cuda").to(stored)
    gates = {"pregate": u, "postgate": u} if gated else {}
    convolve(u, **gates)  # compiles, loads, and copies the constants
    kept = _device_operands.cache_info().currsize
    y = convolve(u, **gates)
    monkeypatch.setattr(launch.DeviceBuffer, "__init__", lambda *_: pytest.fail("a call allocates"))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made = convolve(u, **gates)
    torch.cuda.synchronize()
    size = -(-made.nelement() * made.element_size() // 512) * 512  # what the allocator rounds to
    assert torch.cuda.memory_allocated() - before == size
    assert torch.cuda.max_memory_allocated() - before == size
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        convolve(u, out=y, **gates)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() == before
    monkeypatch.undo()
    # Another filter and another batch use the constants that are there.
    other = prepared(dtype, products, plan, batch=2, k=k[:1].contiguous().expand(3, 50).contiguous())
    other(u[:2].contiguous(), **{name: x[:2].contiguous() for name, x in gates.items()})
    assert _device_operands.cache_info().currsize == kept
