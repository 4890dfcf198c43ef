"""Mistakes of whoever runs a program, told in one line."""

import pickle
import sys
import zipfile
from collections.abc import Callable


def fault_of_input(error: Exception) -> str | None:
    """One line about what was asked for, a file, or a disk; None where the fault is ours.

    Our own code raises ValueError and OSError. The others are how libraries speak of damaged files.
    """
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    kinds: tuple[type[Exception], ...] = (
        ValueError, OSError, SafetensorError, StrictDataclassError, zipfile.BadZipFile, pickle.UnpicklingError,
    )  # fmt: skip
    return (" ".join(str(error).split()) or type(error).__name__) if isinstance(error, kinds) else None


def run_module(main: Callable[[], object]) -> None:
    """What `python -m` does of a module with a `main`: exit code 2 and one line for a mistake in what was asked for."""
    try:
        main()
    except Exception as error:
        message = fault_of_input(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2) from None
