"""The command that times: what our own fast paths save on this machine.

Book: kv_cache
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from glassformer.cli.app import ConfigFile, DeviceName, JsonOutput, app
from glassformer.cli.terminal import clean_errors, print_json
from glassformer.config import DecoderConfig, EncoderDecoderConfig
from glassformer.devices import pick_device
from glassformer.errors import ConfigError
from glassformer.functional import attend
from glassformer.generation import generate
from glassformer.inference import prepare
from glassformer.models import Decoder, EncoderDecoder
from glassformer.training import Batch, batch_loss, token_loss

__all__ = ["bench"]

Rivals = Mapping[str, Callable[[], Any]]
"""Two ways to the same result, by name."""

SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "d_model": 128,
    "n_heads": 4,
    "n_layers": 2,
    "norm": "rms",
}


@app.command()
@clean_errors
def bench(
    rounds: Annotated[int, typer.Option(help="How often each way is timed.")] = 7,
    device: DeviceName = "auto",
    json: JsonOutput = False,
    config: ConfigFile = None,
) -> None:
    """Time two ways to the same result against each other, on this machine, in half a minute.

    The two take turns, so that a busy moment hits both alike; the ratio, the median over the
    rounds, says how many times as long the first one takes. Sizes are small: a quick look, not
    the benchmark against other libraries, which is `make bench` in the repository. For example:

        glassformer bench

        glassformer bench --rounds 21 --device cpu --json
    """
    if rounds < 1:
        raise ConfigError(f"--rounds {rounds} must be at least 1")
    where = pick_device(device, given_as="--device")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        jobs: dict[str, Rivals] = {
            "training step, unequal lengths": _training(where),
            "64 tokens behind 64": _writing(where),
            "64 tokens, where the cache lies": _caching(where),
            "64 tokens, prepared for writing": _preparing(where),
            "attention to 512, there and back": _attending(where),
        }
        results = [_timed(job, rivals, rounds) for job, rivals in jobs.items()]
    if json:
        print_json({"device": str(where), "threads": torch.get_num_threads(), "jobs": results})
        return
    typer.echo(f"{'job':<34} {'first':>20} {'second':>20} {'ratio':>7}")
    for row in results:
        first, second = (f"{way['name']} {1000 * way['seconds']:.1f} ms" for way in row["ways"])
        typer.echo(f"{row['job']:<34} {first:>20} {second:>20} {row['ratio']:>6.2f}x")


def _timed(job: str, rivals: Rivals, rounds: int) -> dict[str, Any]:
    from glassformer.lab import interleaved  # which loads what counts operations

    times = interleaved(rivals, rounds)
    ways = [{"name": name, "seconds": times.median(name)} for name in rivals]
    return {"job": job, "ways": ways, "ratio": times.ratio(*rivals)}


def _training(device: torch.device) -> Rivals:
    """Loss and gradient of a translator on sentences of 5 to 60 tokens."""
    model = EncoderDecoder(EncoderDecoderConfig(**SIZES, max_len=64)).to(device)
    lengths = torch.arange(5, 61, 5)
    mask = torch.arange(60) < lengths[:, None]
    tokens = torch.randint(4, 2048, mask.shape)
    batch = Batch(tokens, tokens, mask, tokens, mask).to(device)

    def padded() -> None:
        logits = model(
            batch.source, batch.inputs, source_mask=batch.source_mask, target_mask=batch.target_mask
        )
        loss = token_loss(logits, batch.targets, target_mask=batch.target_mask)
        torch.autograd.grad(loss.total, list(model.parameters()))

    def packed() -> None:
        torch.autograd.grad(batch_loss(model, batch).total, list(model.parameters()))

    return {"padded": padded, "packed": packed}


def _decoder(device: torch.device) -> tuple[Decoder, Tensor]:
    model = Decoder(DecoderConfig(**SIZES, max_len=128)).to(device).eval()
    return model, torch.randint(4, 2048, (1, 64)).to(device)


def _writing(device: torch.device) -> Rivals:
    """Greedy text with and without remembering keys and values."""
    model, prompt = _decoder(device)

    def write(use_cache: bool) -> Callable[[], Any]:
        return lambda: generate(model, prompt, max_new_tokens=64, use_cache=use_cache)

    return {"no cache": write(False), "cache": write(True)}


def _caching(device: torch.device) -> Rivals:
    """The same text with a cache that is copied at every token, and with one that has room."""
    model, prompt = _decoder(device)

    def write(static: bool) -> Callable[[], Any]:
        cache = model.new_cache(static=static, batch_size=1 if static else None)

        def run() -> None:
            cache.reset()
            generate(model, prompt, max_new_tokens=64, cache=cache)

        return run

    return {"growing": write(False), "static": write(True)}


def _preparing(device: torch.device) -> Rivals:
    """The same text by the model, and by its copy whose weights lie ready for single tokens."""
    model, prompt = _decoder(device)
    ready = prepare(model)

    def write(model: Decoder) -> Callable[[], Any]:
        return lambda: generate(model, prompt, max_new_tokens=64)

    return {"model": write(model), "prepared": write(ready)}


def _attending(device: torch.device) -> Rivals:
    """Causal attention of 4 heads, forward and backward, with and without the stored weights."""
    qkv = [torch.randn(2, 4, 512, 32, device=device, requires_grad=True) for _ in range(3)]

    def run(eager: bool) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(attend(*qkv, is_causal=True, eager=eager).sum(), qkv)

    return {"eager": run(True), "fused": run(False)}
