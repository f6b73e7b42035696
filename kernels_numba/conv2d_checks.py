"""Arguments of convolution layers, checked: shapes, places, dtypes, and which pass makes what shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.arrays import Adapter, adapter_of, check_contiguous, check_place
from kernels_numba.conv2d_geometry import Geometry, pair
from kernels_numba.tile.layout import STORAGE_TYPES

_layers: dict[tuple, Geometry] = {}


def layer_of(x: tuple[int, ...], w: tuple[int, ...], *settings: Any) -> Geometry:
    """The layer, checked once for the same arguments: their text tells 1 from True and 1.0."""
    key = (x, w, repr(settings))
    found = _layers.get(key)
    if found is None:
        names = ("stride", "padding", "dilation", "groups")
        found = Geometry.of(x, w, **dict(zip(names, settings, strict=True)))
        if len(_layers) > 1024:
            _layers.clear()
        _layers[key] = found
    return found


def shape_of(x: Any, name: str) -> tuple[int, ...]:
    """Four axes."""
    adapter_of(x, name)
    shape = tuple(int(n) for n in x.shape)
    if len(shape) != 4:
        raise ValueError(f"{name}: expected an array of four axes, got shape {shape}")
    return shape


def groups_of(groups: Any) -> int:
    """A whole number."""
    if isinstance(groups, bool) or not isinstance(groups, (int, np.integer)) or groups < 1:
        raise ValueError(f"groups: expected a whole number, at least 1; got {groups!r}")
    return int(groups)


def tile_of(tile: Any) -> tuple[int, int] | None:
    """Rows and columns of a tile, if they are given."""
    return None if tile is None else pair(tile, "tile", "rows and columns of a tile")


def result_shape(geometry: Geometry, which: str) -> tuple[int, int, int, int]:
    """Of a pass."""
    shapes = {"forward": geometry.y_shape, "input_gradient": geometry.x_shape}
    return shapes.get(which, geometry.w_shape)


def check(a: Any, name: str, shape: tuple[int, ...], dtype: str, index: int | None, first: str) -> Adapter:
    """An array that is as its layer, and the first of its arrays, want it; its adapter."""
    adapter = adapter_of(a, name)
    if tuple(a.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape} for this layer; got {tuple(a.shape)}")
    found = adapter.dtype_name(a)
    if found not in STORAGE_TYPES:
        raise TypeError(
            f"{name}: the kernels take {', '.join(STORAGE_TYPES)}, got {found}; convert it (nothing is converted "
            "silently), or use reference.conv2d, which computes in float64"
        )
    if found != dtype:
        raise TypeError(
            f"{name}: expected {dtype}, as {first}; got {found}. Convert it, nothing is converted silently"
        )
    check_place(adapter, a, name, index, first)
    check_contiguous(adapter, a, name)
    return adapter
