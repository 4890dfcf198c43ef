"""Copies an environment by links to its files: `python .ci/linked.py .venv build/newest`."""

import os
import shutil
import sys

compiled = shutil.ignore_patterns("__pycache__")  # it may change meanwhile, as other processes import modules
shutil.copytree(*sys.argv[1:], symlinks=True, ignore=compiled, copy_function=os.link)
