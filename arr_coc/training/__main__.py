"""`accelerate launch -m arr_coc.training RECIPE.yaml [NAME=VALUE ...] --out OUT`: `arr-coc train` on many devices."""

import sys

from ..cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
