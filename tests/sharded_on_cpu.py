"""`python -m arr_coc.cli train ...` with FSDP among processes on a CPU.

accelerate turns FSDP on for accelerators only, although torch shards over gloo as well: here it takes these for one.
"""

import sys
from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType
from helpers import leave

from arr_coc.cli import main

_begin = PartialState.__init__


def begin(self: PartialState, *args: Any, **kwargs: Any) -> None:
    _begin(self, *args, **kwargs)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU


if __name__ == "__main__":
    PartialState.__init__ = begin  # type: ignore[method-assign]
    leave(main(["train", *sys.argv[1:]]))
