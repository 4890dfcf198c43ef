"""`python -m arr_coc_cli` is `arr-coc`."""

import sys

from . import main

sys.exit(main())
