"""Train a small Hyena language model on Python's own library, by `monarch.torch` and by `torch.fft`.

The text comes with Python (its language reference, ``pydoc_data.topics``, and the modules of its standard library: some
five million bytes), a token is a byte, and nothing is downloaded. For each seed the same model sees the same batches
twice: its long convolutions run by `monarch.torch.fftconv` ("fused"), and by `torch.fft` ("torch"). Two seeds tell how
far apart two runs are that differ in nothing but chance, which is what the difference between the two convolutions is
to be compared with.

    python examples/train_hyena.py --output build/hyena
    python examples/train_hyena.py --quick --output build/hyena      (a small model; seconds on a CPU)

Results: ``hyena_training.csv`` (a row per run and logged step) and ``hyena_training.json`` (what was run, and for each
run the loss on text that was held out and tokens per second). `costmodel.training` reads both.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import platform
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from costmodel.replays import commit
from monarch.torch import fftconv, torch_fftconv
from monarch.torch.operators import Convolve, Hyena

CONVOLUTIONS: dict[str, Convolve] = {"fused": fftconv, "torch": torch_fftconv}
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
HELD_OUT = 0.1
COLUMNS = ("convolution", "seed", "step", "loss")
WARM_STEPS = 3
LOSS_SCALE = 2.0**16  # for fp16: gradients of a mean over 100 000 tokens are too small for it


@dataclass(frozen=True)
class Settings:
    """One run but for its convolution and seed."""

    width: int = 384
    layers: int = 4
    length: int = 4096
    batch: int = 32
    steps: int = 100
    rate: float = 1.5e-3
    dtype: str = "bf16"
    device: str = "cuda"
    log_every: int = 1


QUICK = Settings(
    width=16,
    layers=1,
    length=64,
    batch=8,
    steps=20,
    rate=5e-3,
    dtype="fp64",
    device="cpu",
)


class Block(nn.Module):
    """Hyena, then two dense layers, each behind a normalisation and beside a shortcut."""

    def __init__(self, width: int, length: int, convolve: Convolve) -> None:
        super().__init__()
        self.mix_norm, self.dense_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = Hyena(width, length, convolve=convolve)
        self.dense = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] to the same."""
        x = x + self.mix(self.mix_norm(x))
        return x + self.dense(self.dense_norm(x))


class Model(nn.Module):
    """Bytes [B, L] to the logits [B, L, 256] of the bytes that follow."""

    def __init__(self, settings: Settings, convolve: Convolve) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, settings.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.Sequential(
            *(Block(settings.width, settings.length, convolve) for _ in range(settings.layers))
        )
        self.norm = nn.LayerNorm(settings.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits; the embedding serves both ends."""
        return functional.linear(self.norm(self.blocks(self.embedding(tokens))), self.embedding.weight)


def text() -> bytes:
    """The documentation and the modules that ship with Python, in the order of their names."""
    from pydoc_data.topics import topics

    documents = [topics[name].encode() for name in sorted(topics)]
    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return b"\n\n".join([*(path.read_bytes() for path in modules), *documents])


def batches(data: Tensor, settings: Settings, seed: int) -> Iterator[Tensor]:
    """Random pieces of L + 1 bytes, the same ones for a seed whatever the device."""
    draw = torch.Generator().manual_seed(seed)
    offsets = torch.arange(settings.length + 1, device=data.device)
    for _ in range(settings.steps):
        starts = torch.randint(len(data) - settings.length, (settings.batch,), generator=draw)
        yield data[starts.to(data.device)[:, None] + offsets].long()


def loss_of(model: nn.Module, tokens: Tensor, settings: Settings) -> Tensor:
    """Mean cross-entropy of the next byte, in nats."""
    half = settings.dtype in ("fp16", "bf16")
    with torch.autocast(
        settings.device, TYPES[settings.dtype] if half else None, enabled=half, cache_enabled=False
    ):
        logits = model(tokens[:, :-1])
    logits = logits.float() if half else logits
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Step:
    """A training step on one batch; on a GPU a CUDA graph of all its launches, after a few steps without."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        on_gpu = settings.device == "cuda"
        self.model, self.settings = model, settings
        rate: Any = torch.tensor(settings.rate, device="cuda") if on_gpu else settings.rate
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1, capturable=on_gpu
        )
        self.scale = LOSS_SCALE if settings.dtype == "fp16" else 1.0
        self.done = 0
        self.tokens = torch.zeros(
            settings.batch, settings.length + 1, dtype=torch.long, device=settings.device
        )
        self.loss = torch.zeros((), device=settings.device)
        self.graph = torch.cuda.CUDAGraph() if on_gpu else None
        self.stream = torch.cuda.Stream() if on_gpu else None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Train on ``tokens`` [B, L + 1] and return the loss before."""
        self.tokens.copy_(tokens)
        warm = max(1, self.settings.steps // 10)
        progress = self.done / self.settings.steps
        rate = (
            min((self.done + 1) / warm, 0.1 + 0.45 * (1 + math.cos(math.pi * progress))) * self.settings.rate
        )
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.graph is None:
            self.run()
        else:
            self.on_gpu()
        self.done += 1
        return self.loss.detach().clone()

    def on_gpu(self) -> None:
        """Without a graph at first (kernels are compiled, states are made), then captured once and replayed."""
        assert self.graph is not None and self.stream is not None
        if self.done < WARM_STEPS:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.run()
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        if self.done == WARM_STEPS:
            self.optimizer.zero_grad(set_to_none=True)
            try:
                with torch.cuda.graph(self.graph, stream=self.stream):
                    self.run()
            except RuntimeError as error:  # the runs' summaries say so
                note(f"the step could not be captured, so each is launched: {str(error).splitlines()[0]}")
                self.graph = None
                self.run()
                return
        self.graph.replay()

    def run(self) -> None:
        """Forward and backward pass, clipping and the optimizer."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.model, self.tokens, self.settings)
        (loss * self.scale).backward()
        if self.scale != 1:
            torch._foreach_div_([p.grad for p in self.model.parameters() if p.grad is not None], self.scale)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.loss = loss.detach()


def train(
    settings: Settings, convolution: str, seed: int, data: Tensor, held_out: Tensor
) -> tuple[list[tuple[int, float]], dict[str, Any]]:
    """Train one model: (step, loss) as often as is logged, and a summary of the run."""
    torch.manual_seed(seed)
    model = Model(settings, CONVOLUTIONS[convolution]).to(settings.device)
    if settings.dtype == "fp64":
        model = model.double()
    step = Step(model, settings)
    losses: list[Tensor] = []
    started, last_note, first_counted = time.perf_counter(), 0.0, min(2 * WARM_STEPS, settings.steps // 2)
    for number, tokens in enumerate(batches(data, settings, seed)):
        if number == first_counted:  # kernels are compiled, and the graph is captured
            wait(settings)
            started = time.perf_counter()
        losses.append(step(tokens))
        if time.perf_counter() - last_note > 2 or number + 1 == settings.steps:
            note(
                f"seed {seed}, {convolution}: step {number + 1} of {settings.steps}, loss {losses[-1].item():.3f}"
            )
            last_note = time.perf_counter()
    wait(settings)
    seconds = time.perf_counter() - started
    tokens_per_s = (settings.steps - first_counted) * settings.batch * settings.length / seconds
    model.eval()
    with torch.no_grad():
        pieces = held_out[: len(held_out) // (settings.length + 1) * (settings.length + 1)]
        rows = pieces.view(-1, settings.length + 1)[: settings.batch].long()
        validation = loss_of(model, rows, settings).item()
    values = torch.stack(losses).tolist()
    if not all(math.isfinite(value) for value in values):
        raise SystemExit(f"seed {seed}, {convolution}: a loss is not a number; nothing is written")
    summary = {
        "convolution": convolution,
        "seed": seed,
        "first_loss": values[0],
        "last_loss": sum(values[-10:]) / len(values[-10:]),
        "held_out_loss": validation,
        "tokens_per_s": tokens_per_s,
        "graph": step.graph is not None,
    }
    curve = [(number, value) for number, value in enumerate(values) if number % settings.log_every == 0]
    return curve, summary


def wait(settings: Settings) -> None:
    """For the GPU, if that is where the model is."""
    if settings.device.startswith("cuda"):
        torch.cuda.synchronize()


def note(message: str) -> None:
    """Progress goes to stderr."""
    print(message, file=sys.stderr, flush=True)


def run(settings: Settings, seeds: int, output: Path) -> dict[str, Any]:
    """Train every convolution with every seed, and write the results."""
    source = text()
    everything = torch.frombuffer(bytearray(source), dtype=torch.uint8).to(settings.device)
    edge = int(len(source) * (1 - HELD_OUT))
    rows: list[tuple[Any, ...]] = []
    runs = []
    for seed in range(seeds):
        for convolution in CONVOLUTIONS:
            curve, summary = train(settings, convolution, seed, everything[:edge], everything[edge:])
            rows += [(convolution, seed, step, f"{loss:.9g}") for step, loss in curve]
            runs.append(summary)
            note(
                f"seed {seed}, {convolution}: held-out loss {summary['held_out_loss']:.4f}, "
                f"{summary['tokens_per_s']:.0f} tokens/s"
            )
    on_gpu = settings.device.startswith("cuda")
    found = {
        "settings": asdict(settings),
        "text": {
            "source": f"pydoc_data.topics and the modules of Python {platform.python_version()}",
            "bytes": len(source),
            "sha256": hashlib.sha256(source).hexdigest(),
        },
        "where": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
        "commit": commit(),
        "runs": runs,
    }
    output.mkdir(parents=True, exist_ok=True)
    with (output / "hyena_training.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *rows])
    (output / "hyena_training.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--seeds", type=int, default=2, help="how many (2)")
    parser.add_argument("--quick", action="store_true", help="a small model in float64 on the CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="where (cuda; with --quick cpu)")
    parser.add_argument("--dtype", choices=TYPES, help="of the signals; the halves by autocast (bf16)")
    for name in ("width", "layers", "length", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, help=f"({getattr(Settings, name)})")
    options = parser.parse_args(arguments)
    chosen = QUICK if options.quick else Settings()
    given = {k: v for k, v in vars(options).items() if v is not None and k in asdict(chosen)}
    settings = replace(chosen, **given)
    if settings.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --quick trains a small model on the CPU")
    if settings.steps < 2 or options.seeds < 1:
        parser.error("at least 2 steps and 1 seed")
    found = run(settings, options.seeds, options.output)
    speed = {
        name: max(r["tokens_per_s"] for r in found["runs"] if r["convolution"] == name)
        for name in CONVOLUTIONS
    }
    print(f"{found['where']}: " + ", ".join(f"{name} {value:.0f} tokens/s" for name, value in speed.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
