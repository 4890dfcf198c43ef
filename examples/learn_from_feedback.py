"""Users of a server correct answers about fields that the model does not know, and the scorer learns these fields.

    python examples/learn_from_feedback.py --out runs/feedback

It renders pages with new field names. A simulated user marks every answer as right or wrong, and gives the right answer
with the boxes of the value and of its label. About 100 of the corrections are used for training, the other third is
held out. `arr-coc learn` promotes the scorer if it is better on held-out feedback and not worse on the fields that the
model knew. The result is measured on further pages, in fonts of the validation split, so that the test split stays
unseen. After a kill, the same command resumes.
"""

import argparse
import io
from pathlib import Path

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.data.feedback import JOURNAL, Feedback
from arr_coc.data.formats import Rendered
from arr_coc.data.records import Record
from arr_coc.evaluation.strategies import describe, describe_change, score_fetchers
from arr_coc.journal import Journal, journal_files, read_journal
from arr_coc.learning.learn import Lesson, learn
from arr_coc.learning.versions import Versions, adapted_fetcher
from arr_coc.modeling.image_loading import load_image

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--out", default="runs/feedback", help="folder of the feedback and of the scorer's versions")
parser.add_argument("--model", default="hub_configs/arr-coc-tiny-2")
parser.add_argument("--fields", default="vendor,balance,deposit,branch,refund,mileage", help="at least four names")
parser.add_argument("--feedback", type=int, default=150, help="answers with feedback, one per page")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--rest", type=int, default=200, help="pages of the regression set, eight questions each")
parser.add_argument("--pages", type=int, default=60, help="pages to measure on at the end, four questions each")
parser.add_argument("--seed", type=int, default=41, help="seed of all pages")
arguments = parser.parse_args()

model = ArrCocForConditionalGeneration.from_pretrained(arguments.model).eval()
side, fields = model.config.vision_config.image_size, tuple(arguments.fields.split(","))
said, original, rest, new = range(10 * arguments.seed, 10 * arguments.seed + 4)  # seeds
out = Path(arguments.out)


def correct(record: Record, log: Journal) -> None:
    """Records the user's feedback on one answer."""
    stream = io.BytesIO()
    image = load_image(record.picture)
    image.save(stream, "PNG")
    heard, truth = model.generate(image, record.question), record.answers[0]
    answer = None if heard == truth else truth
    boxes = (*record.boxes, *record.label_boxes)  # without the label the value cannot be distinguished from others
    feedback = Feedback(stream.getvalue(), record.question, heard == truth, heard, answer, boxes)
    log.append(feedback.content())


log = Journal(out / "said", JOURNAL, limit=2**30, forgets=False, durable=True)
spoken_of = sum(1 for _ in read_journal(log.folder, JOURNAL)) if journal_files(log.folder, JOURNAL) else 0
asked = Rendered(arguments.feedback, 1, seed=said, size=side, fields=fields).read()
for record in asked[spoken_of:]:
    correct(record, log)
log.close()
right = sum(bool(entry.content["right"]) for entry in read_journal(log.folder, JOURNAL))
print(f"feedback: on {arguments.feedback} answers, {right} of them right", flush=True)

lesson = Lesson(
    feedback=out / "said",
    original=Rendered(200, 2, seed=original, size=side),
    rest=Rendered(arguments.rest, 8, seed=rest, size=side, split="validation"),
    model=arguments.model,
    steps=arguments.steps,
)
versions = Versions(out / "versions")
print("\n".join(learn(lesson, versions).lines()))
print(f"in use: {versions.current().version}", flush=True)

fresh = Rendered(arguments.pages, 4, seed=new, size=side, split="validation", fields=fields).read()
own = model.model.fetcher
fetchers = {"before": own, "after": adapted_fetcher(own, versions.adapter(versions.current().version))}
scored = score_fetchers(model, fresh, fetchers)
print("new fields, before:", describe(scored["before"]))
print("new fields, after: ", describe(scored["after"]))
print("change:", describe_change(scored["before"], scored["after"]))
