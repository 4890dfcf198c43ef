"""Says at import where the installed transformers is a later minor release than any that ARR-COC was tested with."""

import re

from transformers import __version__ as installed
from transformers.utils import logging

TESTED = (5, 24)
"""The newest minor release that the tests ran with."""


def warn_of_later_release(release: str = installed) -> None:
    """Warns once, however often this code is loaded, in one line."""
    minor = re.match(r"(\d+)\.(\d+)", release)
    if minor is not None and tuple(map(int, minor.groups())) > TESTED:
        tested, below = (".".join(map(str, (TESTED[0], number))) for number in (TESTED[1], TESTED[1] + 1))
        logging.get_logger("transformers").warning_once(
            f"ARR-COC is tested up to transformers {tested}; if something fails with {release}, "
            f'try pip install "transformers<{below}".'
        )
