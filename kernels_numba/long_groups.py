"""How a long convolution is cut into groups of channels and pairs, so that its workspace is bounded.

A group's intermediate is written by the forward outer stage, convolved in place and read by the inverse one, before the
next group overwrites it. A group smaller than the L2 cache need not reach device memory; but every launch begins and
ends with idle SMs, and on an H200 that costs more than the cache gives: groups of 16, 32 and 96 MiB took 1.15, 1.08 and
1.06 times as long as all in one (131072 points, 8 sequences of 384 channels). So groups are as large as the workspace
allows; ``target`` is there for GPUs where that differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WORKSPACE = 512 * 2**20
"""Bytes that a long convolution may allocate, if not told otherwise."""
GROUP_BYTES = WORKSPACE // 2
"""Bytes of a group then, unless one pair needs more: a stream that a graph is captured on has one of its own."""


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


def grouping(
    n: int,
    channels: int,
    pairs: int,
    *,
    workspace: int = WORKSPACE,
    target: int | None = None,
    itemsize: int = 2,
) -> Grouping:
    """The groups for a workspace of so many bytes, of about ``target`` bytes each, by default half of it.

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
    target = workspace // 2 if target is None else target
    units = max(1, min(workspace, max(target, least)) // least)
    group_pairs = min(pairs, units)
    return Grouping(min(channels, units // group_pairs), group_pairs, channels, pairs, n, itemsize)
