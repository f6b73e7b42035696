"""Spectra of a layer that its forward pass keeps for both gradients."""

from __future__ import annotations

from typing import Any

from kernels_numba.arrays import Adapter
from kernels_numba.conv2d_geometry import Geometry, Pair
from kernels_numba.conv2d_plan import Plan

Place = tuple[str, int | None]
"""A library and the index of a GPU; of host memory "" and None."""


def place_of(adapter: Adapter, index: int | None) -> Place:
    """Where arrays of a library are."""
    return ("" if index is None else adapter.library), index


class Conv2dSpectra:
    """The spectra of a layer's input and filters, kept by the forward pass for its gradients.

    Give the same object as ``keep`` to `conv2d` and then, with the same x and w, to `conv2d_input_gradient`,
    `conv2d_weight_gradient` or `conv2d_gradients`, as often as wanted. They need not transform w and x again; they do
    not notice if x or w have changed since. ``bytes`` of device (or host) memory are held until :meth:`clear`, the next
    forward pass with this object, or until the object goes.
    """

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.place: Place | None = None
        self.x: Any = None
        self.w: Any = None

    @property
    def x_bytes(self) -> int:
        """Memory that the spectrum of x holds."""
        return 0 if self.plan is None else 4 * self.plan.words(self.plan.images)["A"]

    @property
    def w_bytes(self) -> int:
        """Memory that the spectrum of w holds."""
        return 0 if self.plan is None else 4 * self.plan.words(self.plan.images)["B"]

    @property
    def bytes(self) -> int:
        """Memory that is held."""
        return self.x_bytes + self.w_bytes

    def hold(self, plan: Plan, place: Place, x: Any, w: Any) -> None:
        """Keep the spectra that a forward pass has made."""
        self.plan, self.place, self.x, self.w = plan, place, x, w

    @property
    def known(self) -> tuple[Plan | None, Place | None]:
        """What decides which calls it fits."""
        return self.plan, self.place

    def clear(self) -> None:
        """Let the memory go."""
        self.plan = self.place = self.x = self.w = None

    def plan_for(self, geometry: Geometry, dtype: str, place: Place, tile: Pair | None) -> Plan:
        """The forward pass that kept them.

        Raises ``ValueError`` where it was not of this layer, dtype, place and tile.
        """
        if self.plan is None:
            raise ValueError("keep: it holds no spectra; give it to conv2d first, with this layer's x and w")
        kept = self.plan.geometry
        for name in ("x_shape", "w_shape", "stride", "dilation", "before", "after", "groups"):
            mine, other = getattr(kept, name), getattr(geometry, name)
            if mine != other:
                named = {"before": "padding before", "after": "padding after"}.get(name, name)
                raise ValueError(
                    f"keep: it holds the spectra of another layer, with {named} {mine}; got {other}. Give it to conv2d "
                    "with this layer's x and w first"
                )
        if self.plan.dtype != dtype:
            raise ValueError(
                f"keep: it holds spectra of {self.plan.dtype}, and this layer is in {dtype}; give it to conv2d in "
                f"{dtype} first"
            )
        if self.place != place:
            raise ValueError(
                f"keep: its spectra are in {_text(self.place)} and the arrays in {_text(place)}; give it to conv2d "
                "with arrays there first"
            )
        if tile not in (None, self.plan.tile):
            rows, columns = self.plan.tile
            raise ValueError(
                f"tile: the spectra that keep holds are of tiles of {rows} x {columns}; got {tile}. Leave tile out"
            )
        return self.plan


def _text(place: Place | None) -> str:
    library, index = place or ("", None)
    return "host memory" if index is None else f"GPU {index}, of {library}"
