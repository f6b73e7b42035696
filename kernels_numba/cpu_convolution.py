"""The fused convolution's kernels on the CPU body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import warp_filter
from kernels_numba.call_filter import Untransformed
from kernels_numba.families import FLOAT_TYPES
from kernels_numba.host_arrays import _aligned, _bits
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import ELEMENT_TYPES

if TYPE_CHECKING:
    from kernels_numba.fftconv import FFTConv


def run(
    convolve: FFTConv, u: Any, pregate: Any, postgate: Any, second: Any, blocks: int
) -> tuple[NDArray, NDArray, Counters]:
    """The results under both output gates, the second empty where there is no gate ``second``; and what was counted."""
    from kernels_numba.launch import vocabulary_of
    from kernels_numba.tile.cpu_vocabularies import tile
    from kernels_numba.tile.machine import POISON, Buffer, Machine

    twice, family, spectrum = second is not None, convolve.family, convolve.spectrum
    spec = convolve.spec(pregate=pregate is not None, postgate=postgate is not None, twice=twice)
    grid, per_worker = convolve.grid(family.workers(spec), blocks)
    found = None
    if isinstance(spectrum, Untransformed):
        found = warp_filter.chosen(spec, spectrum.kind, convolve.items, convolve.pairs, blocks)
        words, scales = _bits(spectrum.source), _bits(spectrum.tables)
    if found:
        spec, per_worker = found
        family = warp_filter.family(spec)
    else:
        words, scales = spectrum.on_host()
    machine = Machine()
    kernel = family.build(tile(machine, spec.dtype, vocabulary_of(family, spec)), spec)
    stored = ELEMENT_TYPES[spectrum.dtype]
    poison = np.float32(np.nan) if spectrum.dtype in FLOAT_TYPES else POISON
    size = int(np.prod(convolve._scalars))
    results = [_aligned(np.full(n, poison, poison.dtype)) for n in (size, size if twice else 0)]
    constants = convolve.family.operands(*convolve._operand_key(spec))
    buffers = [
        Buffer("u", _bits(u)),
        Buffer("pregate", _bits(pregate)),
        Buffer("postgate", _bits(postgate)),
        Buffer("postgate2", _bits(second)),
        Buffer("taps" if found else "spectrum", words.reshape(-1)),
        Buffer("filter tables" if found else "scales", scales),
        *(Buffer(name, found) for name, found in zip(("constants", "tables"), constants, strict=False)),
        Buffer("y", results[0]),
        Buffer("y2", results[1]),
    ]
    scalars = [convolve.items, per_worker, convolve.pairs, *convolve._scalars]
    if found and isinstance(spectrum, Untransformed):
        scalars[-1] = spectrum.with_taps(scalars[-1])
    counters = machine.run(kernel, grid, spec.warps, spec.shared_bytes // 4, [*buffers, *scalars])
    y, y2 = (x.view(stored).reshape(convolve.shape if x.size else (0,)) for x in results)
    return y, y2, counters
