"""Prints the oldest releases that setup.py states, as constraints for pip: `python .ci/oldest.py > oldest.txt`."""

import re
from importlib.metadata import requires

for requirement in requires("arr-coc") or ():
    name, release = re.match(r"([\w.-]+)(?:\[\w+\])?.*?>=([\w.]+)", requirement).groups()
    print(f"{name}=={release}")
