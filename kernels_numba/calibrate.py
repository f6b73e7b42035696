"""Find phi, a and b in a saved sample of logits: ``python -m kernels_numba.calibrate sample.npy``.

Reads a .npy file of logits [rows, keys], or an .npz with ``logits``, or with ``q`` [B, T, Hq, D] and ``k``
[B, L, Hkv, D]. Exit code 0: use what is printed; 1: the technique should stay off; 2: the file was not understood.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from kernels_numba.calibration import MOST_FALLBACK, calibrate_phi


def _read(path: str) -> dict[str, NDArray]:
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return {"logits": found}
    with found:
        if "logits" in found:
            return {"logits": found["logits"]}
        if {"q", "k"} <= set(found.files):
            return {"q": found["q"], "k": found["k"]}
        raise ValueError(f"{path}: expected arrays named logits, or q and k; got {', '.join(found.files)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kernels_numba.calibrate",
        description="Find phi, a and b of the asynchronised softmax in a saved sample of logits; exit code 1 when it "
        "should stay off.",
    )
    parser.add_argument("sample", help=".npy with logits [rows, keys], or .npz with logits, or with q and k")
    parser.add_argument("--coverage", type=float, default=0.9999, help="share of logits inside (%(default)s)")
    parser.add_argument(
        "--most-fallback", type=float, default=MOST_FALLBACK, help="share of rows (%(default)s)"
    )
    parser.add_argument("--scale", type=float, help="of the logits of q and k (1 / sqrt(D))")
    parser.add_argument("--softcap", type=float, help="of the logits of q and k (none)")
    parser.add_argument("--tight", action="store_true", help="bounds at the range found")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    try:
        found = calibrate_phi(
            **_read(chosen.sample),
            scale=chosen.scale,
            softcap=chosen.softcap,
            coverage=chosen.coverage,
            most_fallback=chosen.most_fallback,
            tight=chosen.tight,
        )
    except (OSError, ValueError, TypeError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(found)) if chosen.json else found)
    return 0 if found.usable else 1


if __name__ == "__main__":
    sys.exit(main())
