"""`python -m arr_coc.cli` is `arr-coc`."""

import sys

from . import main

sys.exit(main())
