"""Questions about rendered pages as a stream: nothing on disk, and no end unless one is asked for."""

from collections.abc import Iterator

from torch.utils.data import IterableDataset, get_worker_info

from .formats.rendered import Rendered
from .records import Record


class RecordStream(IterableDataset[Record]):
    """The records of rendered pages, page by page; each is a function of its number alone.

    DataLoader deals pages among its workers. Processes see the same stream, of which accelerate keeps each one's share:
    every page is then drawn in every process. Where that costs too much, `source.read()` is the same records by number.

    Args:
        source: which pages; a stream may name more of them than it will ever reach, since none is drawn ahead.
        start: the first page, for going on with an interrupted run.

    Raises:
        ValueError: `start` is negative.
    """

    def __init__(self, source: Rendered, *, start: int = 0) -> None:
        if start < 0:
            raise ValueError(f"start: expected a page number of at least 0; got {start}")
        self.source, self.start = source, start

    def __iter__(self) -> Iterator[Record]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for page in range(self.start + worker, self.source.pages, workers):
            for place in range(self.source.questions):
                yield self.source.record(page * self.source.questions + place)
