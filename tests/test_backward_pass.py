"""Backward passes in one launch on the CPU body: values, when they are taken, bits."""

from typing import Any

import numpy as np
import pytest
from convolutions import filters, noise, scatter

import reference
from kernels_numba import (
    backward_block,
    backward_pass,
    backward_warp,
    fftconv_gradients,
    gradient_families,
    prepare_filter,
)
from kernels_numba.backward_pass import BackwardPass
from monarch import Plan, SparsityPattern

PAIRS = [p for p in gradient_families.default_plans().values() if p.n <= 4096]
TURNED = [p for p in gradient_families.turned_plans().values() if p.n <= 8192]
GATES: tuple[tuple[str, ...], ...] = ((), ("pregate",), ("postgate",), ("pregate", "postgate"))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that made all gradients at once."""
    names: list[str] = []
    run = BackwardPass.run_cpu

    def recorded(self: BackwardPass, *given: Any, **choices: Any) -> Any:
        gates = dict(zip(("pregate", "postgate"), (x is not None for x in given[2:]), strict=True))
        names.append(self.spec(**gates).name)
        return run(self, *given, **choices)

    monkeypatch.setattr(BackwardPass, "run_cpu", recorded)
    return names


@pytest.mark.parametrize("plan", [*PAIRS, *TURNED], ids=str)
def test_within_the_bound_of_the_reference(plan: Plan, taken: list[str]) -> None:
    """Every plan, whole and of odd length with a sequence alone, under each choice of gates in turn."""
    number = [*PAIRS, *TURNED].index(plan)
    dtype, names = ("fp16", "bf16")[number % 2], GATES[(number + 3) % 4]
    turned = plan.packing == "right-angle"
    mode, length = ("causal", plan.n // 2 - number % 3) if turned or number % 3 else ("circular", plan.n)
    u, dy = noise((3, 2, length), dtype, [number, 1]), noise((3, 2, length), dtype, [number, 2])
    gates = {name: noise(u.shape, dtype, [number, 3 + i]) for i, name in enumerate(names)}
    k = filters(2, length)
    found = fftconv_gradients(u, k, dy, mode=mode, plan=plan, **gates)
    assert len(taken) == 1 and taken[0].startswith("fftconv_back_")
    exact = reference.fftconv_gradients(dy, u, k, mode=mode, **gates)
    pairs = not turned
    bound = reference.filter_gradient_bound(plan.order, dtype, gates=len(gates)) * scatter(plan.n)
    reference.check_filter_gradient(found.k, exact.k, dy, u, bound=bound, pairs=pairs, **gates)
    bound = reference.fftconv_bound(plan.order, dtype, gates=len(gates)) * scatter(plan.n)
    before, after = gates.get("pregate"), gates.get("postgate")
    for got, right, x, gate, under in (
        (found.u, exact.u, dy, after, before),
        (found.pregate, exact.pregate, dy, after, u),
        (found.postgate, exact.postgate, u, before, dy),
    ):
        if right is None:
            assert got is None
            continue
        reference.check_close(got, right, x, k, bound=bound, pairs=pairs, pregate=gate, postgate=under)


def test_when_one_kernel_makes_all(taken: list[str]) -> None:
    """All that there are must be wanted, of a transform that the convolution and the sums have in common."""
    u, dy, gate, k = (*(noise((2, 1, 512), "fp16", i) for i in range(3)), filters(1, 512))
    for count, wanted in (
        (1, {}),
        (1, {"pregate": gate}),
        (1, {"needs": ("u", "k")}),
        (0, {"needs": ("k",)}),
        (0, {"needs": ("u",)}),
        (0, {"pregate": gate, "needs": ("u", "k")}),
        (0, {"plan": Plan.of((16, 32)), "pattern": SparsityPattern.middles(Plan.of((16, 32)), (8, 0))}),
    ):
        taken.clear()
        fftconv_gradients(u, k, dy, **wanted)  # type: ignore[arg-type]
        assert len(taken) == count, wanted
    half, taps = (
        noise((2, 1, 1024), "fp16", 3),
        filters(1, 1024),
    )  # transformed by another plan for the convolution
    for count, k_or_spectrum in (
        (1, taps),
        (0, prepare_filter(taps, length=1024, mode="causal", gradients=True)),
    ):
        taken.clear()
        fftconv_gradients(half, k_or_spectrum, half, mode="causal")
        assert len(taken) == count
    assert backward_pass.family_of(Plan.of((32, 32))) is backward_warp
    assert backward_pass.family_of(Plan.of((16, 16, 16), packing="right-angle")) is backward_block
    assert backward_pass.family_of(Plan.of((32, 32, 32))) is None
    assert not backward_pass.runs(Plan.of((64, 64)), Plan.of((16, 16, 16)), gated=False)
    turned = Plan.of((16, 16, 16), packing="right-angle")
    assert backward_pass.runs(turned, turned, gated=True)
    assert not backward_pass.runs(turned, turned, gated=True, limit=99 * 1024)
    with pytest.raises(ValueError, match="no order-3 kernel for whole backward passes"):
        backward_block.make_spec(Plan.of((32, 32, 32)), "fp16")


def test_alike_by_itself_and_beside_others(taken: list[str]) -> None:
    """Gradients that are wanted alone are the same but for the order of sums, and every run has the same bits."""
    shape = (4, 2, 4096)
    u, dy, before, after = (noise(shape, "fp16", i) for i in range(4))
    k, gates = filters(2, 4096), {"pregate": before, "postgate": after}
    one, again = (fftconv_gradients(u, k, dy, mode="causal", **gates) for _ in range(2))
    assert len(taken) == 2 and "right" in taken[0]
    assert all((a == b).all() for a, b in zip(one, again, strict=True))
    for name in ("u", "k", "pregate", "postgate"):
        alone = getattr(fftconv_gradients(u, k, dy, mode="causal", needs=(name,), **gates), name)
        other = getattr(one, name)
        assert np.abs(alone.astype(float) - other).max() <= 2e-3 * np.abs(alone).max()
    assert len(taken) == 2
