"""Trains the arms one after another, or some of them; resumable.

    python examples/experiments/base-share/train.py --model MODEL [--arms base_0,base_25] [--seeds 2] [--device cuda]

All arms start from arr-coc-135m's language model and embeddings of places with a new LoRA adapter, and get the same
pages in the same order, the same steps and the same learning rates. Checkpoints are in OUT/ARM-SEED/question_answering;
what is done is skipped, and a killed training continues.
"""

import argparse
import logging
import time
from pathlib import Path

import torch
from arms import ArmStage, read_arms

from arr_coc.loading import find_device, load_model
from arr_coc.training.stages import Run

HERE = Path(__file__).parent


def stage_of(arm: str, seed: int, args: argparse.Namespace) -> ArmStage:
    """The stage that trains an arm."""
    return ArmStage(
        arms=str(args.arms_file),
        arm=arm,
        folder=str(args.pages),
        seed=seed,
        steps=args.steps,
        pages_per_step=args.batch,
        warmup=min(20, max(1, args.steps // 5)),
        evaluate_every=max(1, args.steps // 4),
        rank=16,
        learning_rate=3e-4,
        places_rate=3e-4,
        workers=0,
        bf16=args.bf16,
        measured=args.measured,
        packed=args.packed,
    )


def new_run(model: str, device: str | None) -> Run:
    """A run from the model's folder, which is loaded anew."""
    place = find_device(device)
    loaded = load_model(model, str(place))
    return Run(loaded, loaded.processor, place)


def options(description: str) -> argparse.ArgumentParser:
    """What train.py and evaluate.py have in common."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="arr-coc-135m's complete folder (arr-coc assemble)")
    parser.add_argument("--arms-file", type=Path, default=HERE / "arms.yaml", help="(arms.yaml)")
    parser.add_argument("--arms", help="names, with commas (default: all)")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each arm, seeds 0, 1, ... (2)")
    parser.add_argument("--pages", type=Path, default=Path("runs/base-share"), help="of question_pages.py")
    parser.add_argument("--out", type=Path, default=Path("runs/base-share/arms"), help="folder of the trainings")
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument("--steps", type=int, default=240, help="of a training (240)")
    parser.add_argument("--batch", type=int, default=8, help="pages of a step (8)")
    parser.add_argument("--packed", type=int, default=1, help="pages computed together; 8 on a GPU (1)")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True, help="compute in bfloat16")
    parser.add_argument("--measured", type=int, default=12, help="validation pages of a measurement (12)")
    return parser


def chosen(args: argparse.Namespace) -> list[tuple[str, int]]:
    """Arms and seeds, seed by seed: what is there early is one training of every arm.

    Raises:
        ValueError: an unknown arm.
    """
    known = read_arms(args.arms_file)
    names = args.arms.split(",") if args.arms else list(known)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--arms: expected names among {', '.join(known)}; got {', '.join(unknown)}")
    return [(name, seed) for seed in range(args.seeds) for name in names]


def main() -> None:
    """Trains from the command line."""
    args = options((__doc__ or "").split("\n")[0]).parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for arm, seed in chosen(args):
        folder = args.out / f"{arm}-{seed}"
        if (folder / "done").exists():
            continue
        torch.manual_seed(seed)
        began = time.process_time(), time.monotonic()
        stage_of(arm, seed, args).run(new_run(args.model, args.device), folder)
        spent = time.process_time() - began[0], time.monotonic() - began[1]
        (folder / "done").write_text(f"{args.steps} steps, {spent[0]:.0f} s of processors, {spent[1]:.0f} s\n")
        logging.info(f"{arm}-{seed}: {(folder / 'done').read_text().strip()}")


if __name__ == "__main__":
    main()
