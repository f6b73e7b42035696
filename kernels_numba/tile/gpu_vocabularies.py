"""Vocabularies of the GPU body: the operations that some kernels need beside those of all.

Operations of linear layers have short names that mean something else elsewhere, so they are not in every tile. A family
says which vocabulary it is written in as ``VOCABULARY``; kernels of float32 sequences with half products use the same
words as the others, in another sense ("wide").
"""

from __future__ import annotations

from functools import cache

from kernels_numba.tile.gpu import GpuTile
from kernels_numba.tile.gpu_bins import GpuBins
from kernels_numba.tile.gpu_clusters import GpuClusters
from kernels_numba.tile.gpu_filter import GpuFilter
from kernels_numba.tile.gpu_float import GpuFloat
from kernels_numba.tile.gpu_float_maps import GpuFloatMaps
from kernels_numba.tile.gpu_group_sums import GpuGroupSums
from kernels_numba.tile.gpu_lines import GpuLines
from kernels_numba.tile.gpu_maps import GpuMaps
from kernels_numba.tile.gpu_neighbours import GpuNeighbours
from kernels_numba.tile.gpu_probes import GpuProbes
from kernels_numba.tile.gpu_products import GpuProducts
from kernels_numba.tile.gpu_real import GpuReal
from kernels_numba.tile.gpu_records import GpuRecords
from kernels_numba.tile.gpu_rows import GpuRows
from kernels_numba.tile.gpu_samples import GpuSamples
from kernels_numba.tile.gpu_streams import GpuStreams
from kernels_numba.tile.gpu_taps import GpuTaps
from kernels_numba.tile.gpu_turns import GpuTurns
from kernels_numba.tile.gpu_weights import GpuWeights
from kernels_numba.tile.gpu_wide import GpuWide


class GpuFloats(GpuSamples, GpuBins, GpuReal, GpuFloat, GpuFilter, GpuTaps, GpuTile):
    """For fp32 convolutions, the transforms of filters, and short filters."""


class GpuLinear(GpuClusters, GpuGroupSums, GpuProducts, GpuStreams, GpuTile):
    """For linear layers."""


class GpuLayers(GpuMaps, GpuProducts, GpuStreams, GpuTile):
    """For convolution layers in two dimensions."""


class GpuFloatLayers(GpuFloatMaps, GpuFloat, GpuProducts, GpuStreams, GpuTile):
    """For convolution layers in two dimensions in fp32."""


class GpuAttention(GpuRows, GpuWeights, GpuLines, GpuRecords, GpuNeighbours, GpuTile):
    """For attention and softmax."""


class GpuOuter(GpuTurns, GpuTile):
    """For the outer stages of long transforms."""


class GpuProbe(GpuProbes, GpuProducts, GpuRows, GpuTile):
    """For measuring a GPU."""


VOCABULARIES: dict[str, type[GpuTile]] = {
    "": GpuTile,
    "wide": GpuWide,
    "float": GpuFloats,
    "linear": GpuLinear,
    "attention": GpuAttention,
    "outer": GpuOuter,
    "probe": GpuProbe,
    "layers": GpuLayers,
    "float-layers": GpuFloatLayers,
}


@cache
def tile(dtype: str, vocabulary: str = "") -> GpuTile:
    """The operations for one half-precision type."""
    return VOCABULARIES[vocabulary](dtype)
