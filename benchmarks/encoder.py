"""How fast is the grid encoder, and how much memory does it take, compared with equivalent implementations?

    python -m benchmarks.encoder [CONFIG] [--dtype bfloat16] [--image-size 1024] [--rounds 5] [--backward]
        [--batch-size 1] [--clock wall]

Three arms alternate in one process with the same random weights: attention in blocks, as on a CPU; PyTorch's fused
kernel, as on other devices; and transformers' SAM, which has a bias of [N, N] for every head. Memory is the peak of the
tensors that a pass creates, without the weights. The stem is SAM's, independent of CONFIG. `--backward` measures
forward and backward pass of a training step, under autocast unless the dtype is float32. `--clock cpu` counts CPU
seconds, for machines with other load.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch
from torch import Tensor, nn
from transformers.models.sam.configuration_sam import SamVisionConfig
from transformers.models.sam.modeling_sam import SamVisionEncoder

from arr_coc.files import run_module
from arr_coc.modeling import grid_encoder
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig, ArrCocVisionConfig
from arr_coc.modeling.grid_encoder import GridEncoder

from .costs import LiveTensors
from .timing import CLOCKS, Seconds, alternate, argument_parser, table


@dataclass(frozen=True)
class EncoderCosts:
    """By arm: seconds of a pass, peak bytes of its tensors, and the output [B, C, G, G] in float32."""

    seconds: dict[str, Seconds]
    peaks: dict[str, int]
    features: dict[str, Tensor]


def sam_of(config: ArrCocVisionConfig) -> SamVisionEncoder:
    """transformers' encoder of the same sizes; its weights have our names."""
    sizes = ("hidden_size", "image_size", "num_hidden_layers", "num_attention_heads", "patch_size", "window_size")
    more = ("mlp_dim", "global_attn_indexes", "layer_norm_eps")
    same = {name: getattr(config, name) for name in (*sizes, *more)}
    return SamVisionEncoder(SamVisionConfig(output_channels=config.out_channels, **same))


def random_encoder(config: ArrCocVisionConfig) -> GridEncoder:
    """An encoder with random position terms, as terms of zero would hide differences."""
    encoder = GridEncoder(config)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    return encoder


def _fused(encoder: GridEncoder, pixels: Tensor) -> Tensor:
    def attend(*inputs: Tensor, recompute: bool) -> Tensor:
        return grid_encoder.attend_fused(*inputs)

    with mock.patch.object(grid_encoder, "attend_in_blocks", attend):
        return encoder(pixels)


def encoder_costs(
    config: ArrCocVisionConfig,
    dtype: torch.dtype,
    *,
    rounds: int = 5,
    batch: int = 1,
    backward: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> EncoderCosts:
    """Times `rounds` alternating passes of each arm on noise.

    Args:
        config: sizes, `image_size` included.
        dtype: of weights and pixels, or of autocast with `backward`.
        rounds: number of timed rounds, after a warm-up.
        batch: images per pass.
        backward: whether to time forward and backward pass, not only forward.
        clock: see `alternate`.
    """
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    config.stem, config.stem_channels = "patchify", ()
    encoder = random_encoder(config)
    sam = sam_of(config)
    sam.load_state_dict(encoder.state_dict())
    pixels = torch.randn(batch, config.num_channels, config.image_size, config.image_size)
    if not backward:
        encoder, pixels = encoder.to(dtype), pixels.to(dtype)
        sam.to(dtype)  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "blocks": encoder,
        "fused kernel": partial(_fused, encoder),
        "transformers' SAM": lambda images: sam(images).last_hidden_state,
    }
    features = {}

    def run(name: str) -> None:
        with (
            torch.set_grad_enabled(backward),
            torch.autocast("cpu", dtype, enabled=backward and dtype != torch.float32),
        ):
            out = ways[name](pixels)
        if backward:
            (out.float() * pixels.mean()).sum().backward()
            encoder.zero_grad()
            sam.zero_grad()
        features[name] = out.detach().float()

    seconds = alternate({name: partial(run, name) for name in ways}, rounds, clock)
    peaks = {}
    for name in ways:
        with LiveTensors() as live:
            run(name)
        peaks[name] = live.peak
    return EncoderCosts(seconds, peaks, features)


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argument_parser(__doc__, "hub_configs/arr-coc-qwen3-1.7b", rounds=5, clock="wall", dtype="bfloat16")
    parser.add_argument("--image-size", type=int, help="side of the image, px (default: the config's)")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--backward", action="store_true", help="measure training")
    arguments = parser.parse_args()
    config = copy.deepcopy(ArrCocConfig.from_pretrained(arguments.model).vision_config)
    config.image_size = arguments.image_size or config.image_size
    dtype = getattr(torch, arguments.dtype)
    costs = encoder_costs(
        config,
        dtype,
        rounds=arguments.rounds,
        batch=arguments.batch_size,
        backward=arguments.backward,
        clock=CLOCKS[arguments.clock],
    )
    passes = "forward and backward" if arguments.backward else "forward"
    print(
        f"{arguments.model}, {arguments.batch_size} image(s) of {config.image_size} px, {passes}, {arguments.dtype}, "
        f"{torch.get_num_threads()} threads, {arguments.rounds} rounds, {arguments.clock} seconds"
    )
    print(table(costs.seconds, "blocks"))
    expected = costs.features["transformers' SAM"]
    for name, peak in costs.peaks.items():
        error = (costs.features[name] - expected).norm() / expected.norm()
        print(f"{name:<28}{peak / 2**20:>8.0f} MiB of tensors at the peak, {error:.1e} from SAM's numbers")


if __name__ == "__main__":
    run_module(main)
