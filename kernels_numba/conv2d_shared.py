"""Passes that share spectra: which tiling is best for all of them, and what is transformed once.

The forward pass makes the spectra of x and of w; the gradient of the input needs that of w, the gradient of the weights
that of x, in the same tiles. That of dy serves both gradients where one tile holds the map: several tiles overlap for
the one, and are blocks side by side for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kernels_numba.conv2d_dispatch import Cost, Rates, best, costs, direct_seconds, plans, rates_for, seconds
from kernels_numba.conv2d_geometry import Geometry, Pair
from kernels_numba.conv2d_plan import NONE, Kept, Plan

W, X, DY = frozenset({"w"}), frozenset({"x"}), frozenset({"dy"})


@dataclass(frozen=True)
class Gradients:
    """Plans of both gradients."""

    inputs: Plan
    weights: Plan

    @property
    def shared(self) -> bool:
        """Whether the spectrum of dy that the first makes is what the second needs."""
        a, b = self.inputs, self.weights
        one = a.tile == b.tile and a.tiles == b.tiles == a.part_count == b.part_count == 1
        return (
            one
            and not (a.fused or b.fused)
            and a.batches == b.batches == 1
            and a.down.first == a.across.first == 0
        )

    def kept(self, *, kept: bool) -> tuple[Kept, Kept]:
        """What the first pass and the second are given; ``kept``: the spectra of x and w are there already."""
        given = (W, X) if kept else (NONE, NONE)
        return given[0], given[1] | (DY if self.shared else NONE)

    def costs(self, *, kept: bool) -> list[Cost]:
        """What the launches of both do."""
        first, second = self.kept(kept=kept)
        return costs(self.inputs, first) + costs(self.weights, second)

    def seconds(self, rates: Rates, *, kept: bool) -> float:
        """Time of both."""
        first, second = self.kept(kept=kept)
        return seconds(self.inputs, rates, first) + seconds(self.weights, rates, second)

    @property
    def bytes(self) -> int:
        """Device memory of the workspaces that are held at once."""
        return max(self.inputs.bytes, self.weights.bytes)


def inputs_of(plan: Plan, **limits: Any) -> Plan:
    """The gradient of the input of a layer whose forward pass kept the spectrum of w: in the same tiles.

    Raises ``ValueError`` where ``memory`` does not suffice.
    """
    return plans(
        plan.geometry, "input_gradient", plan.dtype, tile=plan.tile, parts=plan.parts, fused=False, **limits
    )[0]


def weights_of(plan: Plan, memory: int | None = None, **limits: Any) -> Plan:
    """The gradient of the weights of a layer whose forward pass kept the spectrum of x, as it was left.

    Raises ``ValueError`` where ``memory`` does not suffice.
    """
    found = replace(plan, which="weight_gradient")
    if memory is not None and found.bytes > memory:
        raise ValueError(
            f"memory: with the spectrum of x kept this layer needs {found.bytes} bytes; got a limit of {memory}. Allow "
            "more, or leave out keep: images then go in groups"
        )
    return found


def of_forward(plan: Plan, **limits: Any) -> Gradients:
    """Both gradients of a layer whose forward pass kept its spectra."""
    return Gradients(inputs_of(plan, **limits), weights_of(plan, **limits))


@lru_cache(maxsize=1024)
def plan_to_keep(
    geometry: Geometry, dtype: str, tile: Pair | None, sm_count: int | None, **limits: Any
) -> Plan:
    """The plan of a forward pass whose spectra are kept: with both gradients it is the fastest."""
    rates = rates_for(sm_count)
    found = plans(geometry, "forward", dtype, tile=tile, fused=False, **limits)
    whole = [plan for plan in found if plan.batches == 1]
    if not whole:
        raise ValueError(
            f"keep: images go in groups of {found[0].images} here, so their spectra are not all there at once; "
            "allow more memory"
        )

    def total(plan: Plan) -> tuple[float, int]:
        gradients = of_forward(plan, shared_limit=plan.shared_limit)
        return seconds(plan, rates) + gradients.seconds(rates, kept=True), plan.bytes

    return min(whole, key=total)


@lru_cache(maxsize=1024)
def plans_of_gradients(
    geometry: Geometry, dtype: str, tile: Pair | None, sm_count: int | None, **limits: Any
) -> Gradients:
    """The fastest way to both gradients: each in the tiles that are best for it, or in one whole map with one dy."""
    rates = rates_for(sm_count)
    inputs, weights = (
        plans(geometry, which, dtype, tile=tile, **limits) for which in ("input_gradient", "weight_gradient")
    )
    pairs = [Gradients(best(inputs, rates), best(weights, rates))]
    weights = plans(geometry, "weight_gradient", dtype, tile=tile, fused=False, **limits)
    pairs += [pair for a in inputs for b in weights if (pair := Gradients(a, b)).shared]
    return min(pairs, key=lambda pair: (pair.seconds(rates, kept=False), pair.bytes))


def direct_is_faster(found: Gradients, sm_count: int | None) -> bool:
    """Whether the library's two gradients take less than these, which have no spectra yet."""
    rates, plan = rates_for(sm_count), found.inputs
    direct = sum(
        direct_seconds(plan.geometry, rates, which, plan.dtype)
        for which in ("input_gradient", "weight_gradient")
    )
    return direct < found.seconds(rates, kept=False)
