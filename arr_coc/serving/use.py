"""All that a server keeps of its use and takes from it: examples, feedback, versions of its scorer."""

from ..data import feedback
from ..evaluation.prediction_loop import model_identity
from ..journal import Journal
from . import example
from .encodings import EncodingStore
from .ended import Ended
from .engine import Engine
from .example_log import ExampleLog
from .feedback_desk import FeedbackDesk
from .metrics import Metrics
from .redaction import load_hook
from .use_settings import UseSettings
from .version_watch import VersionWatch


class Use:
    """The logs of one server and the watch over its scorer's versions, those that are wanted.

    Args:
        engine: that answers.
        store: of images; it keeps them as they were sent where a log needs that.
        metrics: where what is kept is counted.
        settings: what is wanted.

    Raises:
        ValueError: no such hook, or versions that are damaged or another model's.
        OSError: a folder cannot be made.
    """

    def __init__(self, engine: Engine, store: EncodingStore, metrics: Metrics, settings: UseSettings) -> None:
        store.keeps_content = settings.keeps_images
        hook, registry = load_hook(settings.redact), metrics.registry
        wanted = settings.examples is not None or settings.versions is not None
        weights = model_identity(engine.model)["weights_sha256"] if wanted else ""
        self.examples: ExampleLog | None = None
        self.desk: FeedbackDesk | None = None
        self.versions: VersionWatch | None = None
        if settings.examples is not None:
            limit = settings.examples_bytes
            journal = Journal(settings.examples, example.JOURNAL, limit=limit, forgets=True, durable=False)
            self.examples = ExampleLog(journal, settings, weights, hook, registry)
        if settings.feedback is not None:
            limit = settings.feedback_bytes
            journal = Journal(settings.feedback, feedback.JOURNAL, limit=limit, forgets=False, durable=True)
            self.desk = FeedbackDesk(journal, store, settings.remembered_bytes, hook, lambda: engine.version)
        if settings.versions is not None:
            self.versions = VersionWatch(engine, settings.versions, settings.versions_seconds, weights, registry)

    def watch(self, ended: Ended) -> None:
        """Told of every answer."""
        for log in (self.examples, self.desk):
            if log is not None:
                log.watch(ended)

    def start(self) -> None:
        """Starts what works beside the event loop."""
        if self.versions is not None:
            self.versions.start()

    def stop(self) -> None:
        """Ends it; what waits to be written is written."""
        for part in (self.versions, self.examples, self.desk):
            if part is not None:
                part.stop()
