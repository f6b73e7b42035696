"""Exact counts of the gradient in a filter whose transform is too long for one kernel, as closed forms.

The forward outer stage of both sequences of every pair (`outer_counts`, `outer_float_counts`), and the sums of their
rows (`gradient_counts`, `float_gradient_counts`), in which a row is a channel of its own. How channels and pairs are
grouped changes only how many blocks there are, each of which reads constants. A test holds them equal to the counters
of the kernels' CPU bodies. See kernels_numba/long_gradient.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from costmodel import float_gradient_counts, gradient_counts, outer_counts, outer_float_counts


def totals(gradient: Any, *, workers: int, pregate: bool = False, postgate: bool = False) -> dict[str, int]:
    """All counters of the launches up to the sums of a `LongFilterGradient`, with so many workers for the rows.

    The intermediates are called z and w, the gate of each sequence "gate".
    """
    of_u, of_dy, rows = gradient.specs(pregate=pregate, postgate=postgate)
    found: Counter[str] = Counter()
    for spec, gate, target in ((of_u, pregate, "z"), (of_dy, postgate, "w")):
        names = {"read_pregate": "read_gate", "written_workspace": f"written_{target}"}
        found.update({names.get(name, name): n for name, n in _outer(gradient, spec, gate).items()})
    for parts in gradient.parts():
        for part in parts:
            blocks, (units, *_) = gradient.sum_scalars(part, rows, workers)
            names = {"read_u": "read_z", "read_dy": "read_w"}
            one = _rows(gradient, rows, part.channels, part.pairs, units, blocks)
            found.update({names.get(name, name): n for name, n in one.items()})
    return dict(found)


def _outer(gradient: Any, spec: Any, gated: bool) -> dict[str, int]:
    batch, channels, length = gradient.shape
    shape: dict[str, Any] = {"batch": batch, "channels": channels, "length": length, "gated": gated}
    if gradient.products == "fp32":
        shape["item_bytes"] = 4 if gradient.dtype == "fp32" else 2
        how: dict[str, Any] = {"inverse": False, "live": spec.live, "strip": spec.strip}
        return outer_float_counts.totals(spec.a, spec.b, spec.n2, **how, **shape)
    how = {"strip": spec.strip, "warps": spec.warps, "inverse": False}
    how |= {"rows_in": spec.rows_in, "copied": spec.copied}
    return outer_counts.totals(spec.a, spec.b, spec.n2, **how, **shape)


def _rows(gradient: Any, spec: Any, channels: int, pairs: int, units: int, blocks: int) -> dict[str, int]:
    shape: dict[str, Any] = {
        "batch": 2 * pairs,
        "channels": gradient.split.rows * channels,
        "length": gradient.split.inner.n,
    }
    if gradient.products == "fp32":
        own: dict[str, Any] = {"together": spec.shape.together, "padding": spec.shape.padding}
        own |= {"guarded": False, "shares": 1, "per_share": pairs}
        return float_gradient_counts.totals(spec.factors, spec.parts, **own, **shape)
    return gradient_counts.of_spec(spec, units=units, blocks=blocks, **shape)
