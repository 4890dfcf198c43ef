"""Fetches transformers' own tests, of the installed release: `python tests/conformance/distribution.py`.

They are in its source distribution, which pip downloads once into build/conformance. Only the files that define tests
for models of any author are unpacked; none of them is part of this repository.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "transformers_tests"
"""What the unpacked folder is called: "tests" would be taken for this repository's."""
FILES = tuple(f"test_{kind}_common.py" for kind in ("modeling", "configuration", "processing", "image_processing"))


def tests_folder() -> Path:
    """The folder to import `PACKAGE` from."""
    return ROOT / "build" / "conformance" / f"transformers-{version('transformers')}"


def fetch() -> None:
    """Downloads and unpacks the tests, unless they are there already.

    Raises:
        subprocess.CalledProcessError: pip could not download the distribution.
        KeyError: the distribution holds no such tests.
    """
    target = tests_folder() / PACKAGE
    if (target / "__init__.py").exists():
        return
    name = f"transformers-{version('transformers')}"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-binary", "transformers", "--no-deps", "--disable-pip-version-check", "--quiet"]
        command = ["pip", "download", *options, "--dest", folder, name.replace("-", "==")]
        subprocess.run([sys.executable, "-m", *command], check=True)
        with tarfile.open(Path(folder) / f"{name}.tar.gz") as archive:
            for file in FILES:
                member = archive.getmember(f"{name}/tests/{file}")
                member.name = file
                archive.extract(member, target, filter="data")
    (target / "__init__.py").touch()  # last: an interrupted download is begun anew


if __name__ == "__main__":
    fetch()
