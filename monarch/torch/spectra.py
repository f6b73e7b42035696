"""Spectra of filters that did not change: made once, used until the filter's version counter moves.

PyTorch counts the in-place changes of a tensor (``k._version``). A spectrum is kept with its filter, as long as the
filter lives, for the last few lengths, modes, types and streams it was used with, and made anew when the count differs.
A change that PyTorch does not count, through ``k.data`` or memory that another library shares, is not seen:
`forget_spectra`.

Nothing is kept where a gradient is recorded, for a filter changes between two steps; under ``torch.inference_mode``
for filters made there, which have no count; and while a CUDA graph is captured, which so contains the transform of the
filter and follows its changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

MOST = 4
"""Spectra of one filter that are kept: lengths that come and go must not fill the memory."""

_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def forget_spectra() -> None:
    """Forget all prepared spectra, and free their memory and that of workspaces."""
    from kernels_numba.long_conv import forget_workspaces

    _kept.clear()
    forget_workspaces()


def may_keep(k: torch.Tensor) -> bool:
    """Whether a spectrum of this filter can be known to be up to date later."""
    if k.is_inference():
        return False
    return not (k.is_cuda and torch.cuda.is_current_stream_capturing())


def prepared(k: torch.Tensor, batch: int, *, keep: bool, **how: Any) -> Any:
    """A `kernels_numba.FFTConv` for a filter and so many sequences; ``how`` as for `kernels_numba.prepare_filter`."""
    from kernels_numba import FFTConv

    if not (keep and may_keep(k)):
        # Without a look at the scales, which would wait for the GPU; spectra in fp32 have none.
        from kernels_numba.call_filter import prepare_for_call

        scaled = how["dtype"] not in ("fp32", "complex64")
        return FFTConv(prepare_for_call(_plain(k), scaled=scaled, **how), batch=batch)
    stream = torch.cuda.current_stream(k.device).cuda_stream if k.is_cuda else 0
    state = (k._version, k.data_ptr())
    found = _kept.get(k)
    if found is None or found[0] != state:
        found = _kept[k] = (state, {})
    spectra: dict[tuple, tuple[Any, dict[int, Any]]] = found[1]
    key = (stream, tuple(sorted((name, value) for name, value in how.items() if value is not None)))
    kept = spectra.pop(key, None) or (_spectrum(k, **how), {})
    spectra[key] = kept  # the last one used is the last to go
    while len(spectra) > MOST:
        del spectra[next(iter(spectra))]
    spectrum, convolutions = kept
    if batch not in convolutions:
        convolutions[batch] = FFTConv(spectrum, batch=batch)
    return convolutions[batch]


def _spectrum(k: torch.Tensor, **how: Any) -> Any:
    from kernels_numba import prepare_filter

    return prepare_filter(_plain(k), **how)


def _plain(k: torch.Tensor) -> torch.Tensor:
    return k.detach().resolve_conj().resolve_neg()
