"""Libraries that only an extra installs, asked for before the work that ends in them."""

import importlib


def require_extra(module: str, purpose: str) -> None:
    """Refuses where a module of the extra "eval" is missing, before hours of answers.

    Raises:
        ValueError: the module is not installed; the message names `purpose` and how to install it.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ValueError(f"{purpose}: expected {library} (pip install 'arr-coc[eval]'); got none") from error
