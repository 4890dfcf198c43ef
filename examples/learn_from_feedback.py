"""A server's users correct answers about fields that the model does not know, and its scorer learns them.

    python examples/learn_from_feedback.py --out runs/feedback

Pages with new field names are rendered, and a simulated user says of every answer whether it is right, what would be,
and where that stands, the field's name beside it included. About 100 of the corrections are learned, the other third is
held out; `arr-coc learn` promotes the scorer if it is better on those and no worse on the fields that the model knew.
Then it is measured on further pages, in fonts that training never saw: of the split in which decisions are made, so
that the test split stays unseen. Killed, the same command goes on.
"""

import argparse
import io
from pathlib import Path

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.data.feedback import JOURNAL, Feedback
from arr_coc.data.formats import Rendered
from arr_coc.data.records import Record
from arr_coc.evaluating.comparison import describe, describe_change
from arr_coc.evaluating.evaluation import score_strategies
from arr_coc.journal import Journal, journal_files, read_journal
from arr_coc.learning.adapted_fetcher import adapted_fetcher
from arr_coc.learning.learn import Lesson, learn
from arr_coc.learning.versions import Versions
from arr_coc.modeling.image_loading import load_image

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--out", default="runs/feedback", help="folder of the feedback and of the scorer's versions")
parser.add_argument("--model", default="hub_configs/arr-coc-tiny")
parser.add_argument("--fields", default="vendor,balance,deposit,branch,refund,mileage", help="four at least, by commas")
parser.add_argument("--feedback", type=int, default=150, help="answers that the user speaks of, a page each")
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--rest", type=int, default=600, help="pages, four questions each, that shall not be forgotten")
parser.add_argument("--pages", type=int, default=60, help="to measure on at the end, four questions each")
arguments = parser.parse_args()

model = ArrCocForConditionalGeneration.from_pretrained(arguments.model).eval()
side, fields = model.config.vision_config.image_size, tuple(arguments.fields.split(","))
out = Path(arguments.out)


def correct(record: Record, log: Journal) -> None:
    """What the user says of one answer."""
    stream = io.BytesIO()
    image = load_image(record.picture)
    image.save(stream, "PNG")
    said, truth = model.generate(image, record.question), record.answers[0]
    answer = None if said == truth else truth
    boxes = (*record.boxes, *record.label_boxes)  # without the name the value cannot be told from others
    feedback = Feedback(stream.getvalue(), record.question, said == truth, said, answer, boxes)
    log.append(feedback.content())


log = Journal(out / "said", JOURNAL, limit=2**30, forgets=False, durable=True)
heard = sum(1 for _ in read_journal(log.folder, JOURNAL)) if journal_files(log.folder, JOURNAL) else 0
asked = Rendered(arguments.feedback, 1, seed=0, size=side, fields=fields).read()
for record in asked[heard:]:
    correct(record, log)
log.close()
right = sum(bool(entry.content["right"]) for entry in read_journal(log.folder, JOURNAL))
print(f"feedback: on {arguments.feedback} answers, {right} of them right", flush=True)

lesson = Lesson(
    feedback=out / "said",
    original=Rendered(200, 3, seed=1, size=side),
    rest=Rendered(arguments.rest, 4, seed=2, size=side, split="validation"),
    model=arguments.model,
    steps=arguments.steps,
)
versions = Versions(out / "versions")
learned = learn(lesson, versions)
print("\n".join(learned.decision.lines()))
print(f"in use: {versions.current().version}", flush=True)

strategy, own = model.config.fetcher_config.strategy, model.model.fetcher
fresh = Rendered(arguments.pages, 4, seed=3, size=side, split="validation", fields=fields).read()
before = score_strategies(model, fresh, [strategy])[strategy]
model.model.fetcher = adapted_fetcher(own, versions.adapter(versions.current().version))
after = score_strategies(model, fresh, [strategy])[strategy]
print("new fields, before:", describe(before))
print("new fields, after: ", describe(after))
print("change:", describe_change(before, after))
