"""How a long convolution is cut into groups of channels and pairs, so that its workspace is bounded.

A group's intermediate is written by the forward outer stage, convolved in place and read by the inverse one, before the
next group overwrites it. A group much smaller than the L2 cache need not reach device memory; but every launch begins
and ends with idle SMs. `extra_us` weighs the one against the other, and `grouping` takes what costs less: groups as
large as the workspace allows, or groups that stay in L2.

The two constants are fitted to what an H200 took for groups of 8, 16, 32 and 96 MiB and all in one (131072 points, 8
sequences of 384 channels): 2.00, 1.65, 1.55, 1.52 and 1.44 ms. So on this GPU groups are large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WORKSPACE = 512 * 2**20
"""Bytes that a long convolution may allocate, if not told otherwise."""
GROUP_BYTES = WORKSPACE // 2
"""Bytes of a group then, unless one pair needs more: a stream that a graph is captured on has one of its own."""


LAUNCH_US = 2.4
"""Microseconds that a launch costs beside its blocks' work."""
SPARED = 0.13
"""Of the time that the bytes of an intermediate take through device memory, what is spared where they stay in L2: the
kernels are not bound by device memory alone."""
BYTES_PER_US = 4.3e6
SHARE_OF_L2 = 3
"""A group stays in L2 if that is so many times its size: sequences and spectra pass through it too."""


@dataclass(frozen=True)
class Group:
    """Channels ``channel .. channel + channels - 1`` of pairs ``pair .. pair + pairs - 1``."""

    channel: int
    channels: int
    pair: int
    pairs: int


@dataclass(frozen=True)
class Grouping:
    """Channels and pairs in a group, of ``channels`` and ``pairs`` in all; points N; bytes of a value."""

    group_channels: int
    group_pairs: int
    channels: int
    pairs: int
    n: int
    """Values of a plane of one pair and channel."""
    itemsize: int = 2

    @property
    def bytes(self) -> int:
        """Of the intermediate of one group: two planes for each pair and channel."""
        return 2 * self.itemsize * self.n * self.group_channels * self.group_pairs

    def __iter__(self) -> Iterator[Group]:
        """The groups in order: all pairs of some channels, so that a channel's spectrum is read by neighbours."""
        for channel in range(0, self.channels, self.group_channels):
            for pair in range(0, self.pairs, self.group_pairs):
                yield Group(
                    channel,
                    min(self.group_channels, self.channels - channel),
                    pair,
                    min(self.group_pairs, self.pairs - pair),
                )

    def __len__(self) -> int:
        return -(-self.channels // self.group_channels) * -(-self.pairs // self.group_pairs)


def extra_us(group_bytes: int, whole_bytes: int, l2_bytes: int) -> float:
    """Microseconds by which a grouping differs: launches, three a group, less what the L2 cache spares.

    The intermediate, ``whole_bytes`` of all groups together, is written and read twice.
    """
    launches = 3 * -(-whole_bytes // group_bytes)
    spared = SPARED * 4 * whole_bytes / BYTES_PER_US if SHARE_OF_L2 * group_bytes <= l2_bytes else 0.0
    return LAUNCH_US * launches - spared


def grouping(
    n: int,
    channels: int,
    pairs: int,
    *,
    workspace: int = WORKSPACE,
    target: int | None = None,
    itemsize: int = 2,
    l2_bytes: int = 0,
) -> Grouping:
    """The groups for a workspace of so many bytes, of about ``target`` bytes each.

    By default half of it, or what stays in an L2 cache of ``l2_bytes``, whatever costs less by `extra_us`.

    Raises ``ValueError`` if not even one pair of one channel fits, and says what it needs.
    """
    if not isinstance(workspace, int) or workspace < 1:
        raise ValueError(f"workspace: expected a number of bytes, got {workspace!r}")
    least = 2 * itemsize * n
    if least > workspace:
        raise ValueError(
            f"workspace: {workspace} bytes are too few; the intermediate of one pair of sequences of {n} points takes "
            f"{least}: allow workspace={least} or more"
        )
    if target is None:
        whole = least * channels * pairs
        sizes = [max(least, size) for size in (workspace // 2, min(workspace // 2, l2_bytes // SHARE_OF_L2))]
        target = min(sizes, key=lambda size: extra_us(min(size, whole), whole, l2_bytes))
    units = max(1, min(workspace, max(target, least)) // least)
    group_pairs = min(pairs, units)
    return Grouping(min(channels, units // group_pairs), group_pairs, channels, pairs, n, itemsize)


PAGE = 2 * 2**20
"""Device memory is given out in multiples of it."""


def what_fits(groups: Grouping, free: int) -> str:
    """What to do where a workspace does not fit into the ``free`` bytes that a GPU has left, in words."""
    least = groups.bytes // (groups.group_channels * groups.group_pairs)
    room = max(0, free // PAGE - 1) * PAGE
    if room >= least:
        return f"{free} are free: FFTConv(..., workspace={room}) fits"
    return (
        f"{free} are free, and one pair of sequences of one channel alone needs {least}: free some memory (PyTorch "
        "keeps what it has freed: torch.cuda.empty_cache()), or take a shorter transform or filter"
    )
