"""Vocabularies of the CPU body: what some kernels need beside the operations of all; see `gpu_vocabularies.py`."""

from __future__ import annotations

from kernels_numba.tile.cpu import CpuTile
from kernels_numba.tile.cpu_bins import CpuBins
from kernels_numba.tile.cpu_clusters import CpuClusters
from kernels_numba.tile.cpu_filter import CpuFilter
from kernels_numba.tile.cpu_float import CpuFloat
from kernels_numba.tile.cpu_float_maps import CpuFloatMaps
from kernels_numba.tile.cpu_group_sums import CpuGroupSums
from kernels_numba.tile.cpu_lines import CpuLines
from kernels_numba.tile.cpu_maps import CpuMaps
from kernels_numba.tile.cpu_neighbours import CpuNeighbours
from kernels_numba.tile.cpu_probes import CpuProbes
from kernels_numba.tile.cpu_products import CpuProducts
from kernels_numba.tile.cpu_real import CpuReal
from kernels_numba.tile.cpu_records import CpuRecords
from kernels_numba.tile.cpu_rows import CpuRows
from kernels_numba.tile.cpu_samples import CpuSamples
from kernels_numba.tile.cpu_streams import CpuStreams
from kernels_numba.tile.cpu_taps import CpuTaps
from kernels_numba.tile.cpu_turns import CpuTurns
from kernels_numba.tile.cpu_weights import CpuWeights
from kernels_numba.tile.cpu_wide import CpuWide
from kernels_numba.tile.machine import Machine


class CpuFloats(CpuSamples, CpuBins, CpuReal, CpuFloat, CpuFilter, CpuTaps, CpuTile):
    """For fp32 convolutions, the transforms of filters, and short filters."""


class CpuLinear(CpuClusters, CpuGroupSums, CpuProducts, CpuStreams, CpuTile):
    """For linear layers."""


class CpuLayers(CpuMaps, CpuProducts, CpuStreams, CpuTile):
    """For convolution layers in two dimensions."""


class CpuFloatLayers(CpuFloatMaps, CpuFloat, CpuProducts, CpuStreams, CpuTile):
    """For convolution layers in two dimensions in fp32."""


class CpuAttention(CpuRows, CpuWeights, CpuLines, CpuRecords, CpuNeighbours, CpuTile):
    """For attention and softmax."""


class CpuOuter(CpuTurns, CpuTile):
    """For the outer stages of long transforms."""


class CpuProbe(CpuProbes, CpuProducts, CpuRows, CpuTile):
    """For measuring a GPU."""


VOCABULARIES: dict[str, type[CpuTile]] = {
    "": CpuTile,
    "wide": CpuWide,
    "float": CpuFloats,
    "linear": CpuLinear,
    "attention": CpuAttention,
    "outer": CpuOuter,
    "probe": CpuProbe,
    "layers": CpuLayers,
    "float-layers": CpuFloatLayers,
}


def tile(machine: Machine, dtype: str, vocabulary: str = "") -> CpuTile:
    """The operations for one half-precision type, bound to a machine."""
    return VOCABULARIES[vocabulary](machine, dtype)
