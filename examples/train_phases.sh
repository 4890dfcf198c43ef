#!/usr/bin/env bash
# Where to look, what is seen there, and everything: the iterated schedule of examples/phases.yaml, on this machine.
#
#     examples/train_phases.sh [OUT] [SETTING ...]        e.g. examples/train_phases.sh runs/phases steps=200
#
# Several processes or GPUs: PROCESSES=4 examples/train_phases.sh; killed, the same command goes on where it stopped.
set -euo pipefail
out="${1:-runs/phases}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
launch=(python -m arr_coc.cli train)
if [ "${PROCESSES:-1}" -gt 1 ]; then
    launch=(accelerate launch --config_file "$root/accelerate/ddp.yaml" --num_processes "$PROCESSES" -m arr_coc.cli train)
fi
exec "${launch[@]}" "$root/phases.yaml" "${@:2}" --out "$out"
