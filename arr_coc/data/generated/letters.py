"""Running text: letters, memos, agreements and emails, with facts in their sentences."""

# ruff: noqa: E501, SIM905 (lists are readable as running text)
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .asking import TWO_PLACES, boxes_of
from .page import PAGES, PageMaker
from .pools import share
from .sheet import Piece, Pieces, Style, find, joined
from .terms import term
from .values import KINDS, Values

_FACTS = """
The meeting will take place on {date} in {city}. # date: When is the meeting?; On which day will the meeting take place?; What is the date of the meeting? # city: Where is the meeting?; In which city does the meeting take place?
Your appointment with {person} is at {time}. # person: With whom is the appointment?; Who will see me? # time: At what time is the appointment?; When do I have to be there?
We have received your payment of {amount} on {date}. # amount: How much was received?; What payment was received?; How much did they receive? # date: When was the payment received?; On which day did the money arrive?
Please contact {person} at {phone} if you have any questions. # person: Whom can I contact with questions?; Who answers questions?; Who should be contacted? # phone: Under which number can questions be asked?; What number should I call with questions?
The total cost of the project is {amount}. # amount: What does the project cost?; How much is the total cost of the project?; What is the cost of the project?
The contract with {company} ends on {date}. # company: With which company is the contract?; Whose contract ends? # date: When does the contract end?; Until when does the contract run?
Your reference number is {code}. # code: What is the reference number?; Which reference number was given?; What's my reference number?
Deliveries will be made by {company} between {time} and noon. # company: Who makes the deliveries?; Which company delivers? # time: From what time on are deliveries made?; When do deliveries begin?
Sales increased by {percent} compared with {year}. # percent: By how much did sales increase?; What was the increase in sales? # year: With which year are sales compared?; Compared to when did sales increase?
{person} will take over as {job} in {month}. # person: Who takes over?; Who will take over the position? # job: As what will the person take over?; Which position changes hands? # month: In which month is the change?; When will it be taken over?
The shipment left {city} and weighs {measure}. # city: From where did the shipment leave?; Which city did the shipment leave? # measure: How much does the shipment weigh?; What is the weight of the shipment?
The new office is located at {street}, {city}. # street: What is the street of the new office?; At which street address is the new office? # city: In which city is the new office?; Where is the new office?
We are pleased to offer you the position of {job} with a salary of {amount}. # job: Which position is offered?; What job is offered? # amount: What salary is offered?; How much would the salary be?
The deadline for applications is {date}. # date: What is the deadline for applications?; Until when can one apply?; When do applications close?
Further details can be found at {url}. # url: Where can further details be found?; Which website has further details?; What is the web address?
Please send the documents to {email}. # email: Where should the documents be sent?; To which e-mail address do I send the documents?; What e-mail address is given for the documents?
The study was carried out by {company} in {year}. # company: Who carried out the study?; Which company made the study? # year: In which year was the study carried out?; When was the study made?
Of all members, {percent} voted in favour. # percent: How many voted in favour?; What share of the members voted in favour?; What percentage voted yes?
The train to {city} departs at {time}. # city: Where does the train go?; To which city does the train go? # time: When does the train depart?; At what time does the train leave?
The warranty covers {term} from the date of purchase. # term: How long is the warranty?; For how long does the warranty last?; What is the period of the warranty?
A deposit of {amount} is required. # amount: How much is the deposit?; What deposit is required?; How high is the required deposit?
Mr. {last} was born in {city}. # city: Where was Mr. {last} born?; In which city was Mr. {last} born?; What is the birthplace of Mr. {last}?
The company {company} employs {count} people. # company: Which company is mentioned?; Who employs the people? # count: How many people are employed?; How many people does the company employ?
The test of the {noun} showed a value of {number}. # number: Which value did the test show?; What was the result of the test?; What did the test of the {noun} show?
The {noun} was invented by {person} in {year}. # person: Who invented the {noun}?; By whom was the {noun} invented? # year: When was the {noun} invented?; In which year was the {noun} invented?
The price of the {noun} has risen to {amount}. # amount: To how much has the price risen?; What is the new price of the {noun}?; How much does the {noun} cost now?
{person} and {first} will speak about the {noun}. # person: Who will speak together with {first}?; Which speaker is named first? # noun: What will they speak about?; What is the talk about?
The flood of {year} destroyed {count} houses in {city}. # year: In which year was the flood?; When was the flood? # count: How many houses were destroyed?; How many houses did the flood destroy? # city: Where was the flood?; In which town were houses destroyed?
Orders above {amount} are shipped free of charge. # amount: From which amount on is shipping free?; Above what sum is shipping free?; When is shipping free, above which amount?
The room with number {code} is booked for {person}. # code: Which room is booked?; What is the number of the room? # person: For whom is the room booked?; Who has the room?
Your password must be changed within {term}. # term: Within what time must the password be changed?; How long is left to change the password?; By when must the password be changed?
The library opens at {time} and has {number} books. # time: When does the library open?; At what time does the library open? # number: How many books does the library have?; What number of books is there?
"""
_LAW = (
    "This {a} shall be governed by and construed in accordance with the laws of the State of {state}.", "This {a} is governed by the laws of {state}, without regard to its conflict of laws principles.",
    "The laws of the State of {state} shall govern the validity and interpretation of this {a}.", "The parties submit to the exclusive jurisdiction of the courts of {state}.",
    "This {a} will be construed under the laws of {state} and any dispute will be brought there.", "Governing Law. {state} law applies to this {a}.", "In all respects this {a} shall be interpreted according to {state} law.",
    "Any claim arising hereunder is subject to the law of {state}.", "The validity of this {a} is determined by the laws in force in {state}.",
)  # fmt: skip
_OPENINGS = (
    'This {T} (the "{a}") is made and entered into as of {date} by and between {one} and {two}.', 'This {T} (this "{a}"), dated as of {date}, is between {one}, a {state} corporation, and {two}.',
    'THIS {T} is entered into on {date} between {one} ("Disclosing Party") and {two} ("Receiving Party").', "This {a} is effective as of {date} and is made between {one} and {two}.",
    "On {date}, {one} and {two} have agreed as follows in this {T}.", "Between {one} (hereinafter the first party) and {two} (hereinafter the second party) the following {T} is concluded on {date}.",
    "{one} of the one part and {two} of the other part made this {T} on {date}.", "WHEREAS {one} and {two} wish to cooperate, they conclude this {T} dated {date}.",
)  # fmt: skip
_TERM = (
    "The obligations under this {a} shall remain in effect for a period of {term} from the date hereof.", "This {a} shall terminate {term} after its effective date.", "The term of this {a} is {term}.",
    "The Receiving Party shall keep the information confidential for {term}.", "This {a} runs for {term} and may be renewed in writing.", "Unless ended earlier, this {a} stays in force for {term}.",
    "The parties are bound by this {a} during {term}.", "Duration: {term}.",
)  # fmt: skip
_NOTICE = (
    "Either party may terminate this {a} upon {notice} prior written notice.", "This {a} may be ended by giving {notice} notice to the other party.", "Notice of termination must be given {notice} in advance.",
    "A party that wishes to leave shall tell the other {notice} before.", "Termination requires {notice} notice in writing.", "Each side can withdraw with {notice} notice.",
)  # fmt: skip
_CLAUSES = (
    "The Receiving Party shall not disclose any Confidential Information to third parties without prior written consent.", "No failure or delay in exercising any right shall operate as a waiver thereof.",
    "This {a} constitutes the entire understanding between the parties and supersedes all prior discussions.", "Neither party may assign this {a} without the consent of the other.",
    "If any provision of this {a} is held invalid, the remaining provisions shall continue in full force.", "Nothing contained herein shall be construed as granting any licence or other right.",
    "All notices under this {a} shall be in writing and delivered by registered mail.", "The parties acknowledge that a breach may cause irreparable harm for which damages are no adequate remedy.",
    "Each party shall bear its own costs in connection with this {a}.", "Amendments to this {a} are valid only if signed by both parties.", "Information that is publicly known is not confidential.",
    "Upon request, all documents shall be returned or destroyed.", "The headings are for convenience only and do not affect the meaning.", "This {a} may be executed in counterparts, each of which is an original.",
)  # fmt: skip
_AGREEMENTS = (
    "NON-DISCLOSURE AGREEMENT",
    "CONFIDENTIALITY AGREEMENT",
    "Service Agreement",
    "Lease Agreement",
    "MUTUAL NON-DISCLOSURE AGREEMENT",
    "Purchase Agreement",
    "License Agreement",
    "Consulting Agreement",
    "Letter of Intent",
    "Loan Agreement",
    "Partnership Contract",
    "Employment Contract",
    "Distribution Contract",
)
_SALUTATIONS = (
    "Dear {title} {last},",
    "Dear {first},",
    "Dear Sir or Madam,",
    "To whom it may concern:",
    "Dear {title} {last}:",
    "Hello {first},",
    "Hi {first},",
    "Dear colleagues,",
    "Good day {title} {last},",
    "{title} {last},",
)
_ENDINGS = (
    "Sincerely,",
    "Yours sincerely,",
    "Best regards,",
    "Kind regards,",
    "Yours faithfully,",
    "Sincerely yours,",
    "With best wishes,",
    "Respectfully,",
    "Cordially,",
    "Many thanks,",
    "Yours truly,",
    "Warm regards,",
)
_MEMOS = (
    "MEMORANDUM",
    "Memo",
    "INTEROFFICE MEMORANDUM",
    "Internal Memorandum",
    "Inter-Office Correspondence",
    "Office Memo",
    "File Note",
    "Circular",
)
_MONTHS = "January February March April May June July August September October November December".split()
_LETTER_LAYOUTS = (
    "block",
    "date right",
    "letterhead middle",
    "subject first",
    "letterhead right",
    "two-line head",
    "foot address",
)
_MEMO_LAYOUTS = ("stacked", "columns", "ruled", "boxed", "two by two", "head middle")
_AGREEMENT_LAYOUTS = ("numbered", "plain", "articles", "lettered", "justified heads", "bold numbers")
_EMAIL_LAYOUTS = ("print", "app", "quoted", "card", "plain text", "pane")


@dataclass(frozen=True)
class _Fact:
    template: str
    questions: tuple[tuple[str, tuple[str, ...]], ...]  # by slot

    def __str__(self) -> str:
        return self.template


def _parsed() -> tuple[_Fact, ...]:
    facts = []
    for line in _FACTS.strip().splitlines():
        template, *asked = line.split(" # ")
        pairs = (part.split(":", 1) for part in asked)
        facts.append(
            _Fact(
                template,
                tuple((slot.strip(), tuple(q.strip() for q in questions.split(";"))) for slot, questions in pairs),
            )
        )
    return tuple(facts)


FACTS = _parsed()
"""Sentences with places for values, and questions about these."""

_SLOTS: dict[str, Callable[[Values], str]] = {
    **KINDS,
    "month": lambda values: values.random.choice(_MONTHS), "term": lambda values: duration(values), "noun": lambda values: values.words.noun(),
    "count": lambda values: str(values.random.randint(2, 999)), "amount": lambda values: values.money(10 ** values.random.uniform(1, 6), values.random.choice((0, 2))),
}  # fmt: skip


def duration(values: Values) -> str:
    """Such as `two (2) years`, `30 days`."""
    number = values.random.choice((1, 2, 3, 5, 10, 6, 12, 18, 30, 60, 90))
    unit = "days" if number >= 30 else "months" if number in (6, 12, 18) else "years"
    word = {
        1: "one",
        2: "two",
        3: "three",
        5: "five",
        10: "ten",
        30: "thirty",
        60: "sixty",
        90: "ninety",
        6: "six",
        12: "twelve",
        18: "eighteen",
    }[number]
    unit = unit[:-1] if number == 1 else unit
    return values.random.choice((f"{number} {unit}", f"{word} ({number}) {unit}", f"{word} {unit}"))


class Writing:
    """Paragraphs with facts, written down a column; asks about the facts that were written."""

    def __init__(self, maker: PageMaker, style: Style, x: float, width: float, leading: float) -> None:
        self.maker, self.style, self.x, self.width, self.leading = maker, style, x, width, leading
        self.facts = list(share(FACTS, maker.split, "fact"))
        maker.random.shuffle(self.facts)

    def write(self, text: str, y: float) -> tuple[list[Piece], float]:
        """A paragraph; its pieces and where the next baseline would be."""
        return self.maker.sheet.paragraph(text, self.x, y, self.width, self.style, self.leading)

    def paragraph(self, y: float, bottom: float, facts: int) -> float:
        """A paragraph of sentences, so many of them facts; returns the baseline after it, y where it does not fit."""
        random, values = self.maker.random, self.maker.values
        sentences, asked = [], []
        for _ in range(random.randint(1, 4)):
            sentences.append(self.maker.words.sentence())
        for _ in range(min(facts, len(self.facts))):
            fact = self.facts.pop()
            filled = {slot: _SLOTS[slot](values) for slot in re.findall(r"\{(\w+)\}", fact.template)}
            text = fact.template.format(**filled)
            sentences.append(text)
            asked.append((fact, filled, text))
        random.shuffle(sentences)
        text = " ".join(sentences)
        lines = self.style.wrap(text, self.width)
        if y + len(lines) * self.style.size * self.leading > bottom:
            return y
        pieces, end = self.write(text, y)
        for fact, filled, sentence in asked:
            self._ask(fact, filled, find(pieces, self.style.printable(sentence)))
        return end

    def _ask(self, fact: _Fact, filled: dict[str, str], sentence: Pieces) -> None:
        asker, random = self.maker.asker, self.maker.random
        for slot, questions in fact.questions:
            answer = find(sentence, self.style.printable(filled[slot]))
            if answer:
                asker.add(
                    random.choice(questions).format(**filled), joined(answer), boxes_of(answer), boxes_of(sentence[:1])
                )

    def absent(self, count: int) -> None:
        """Asks about facts that were not written."""
        random, values = self.maker.random, self.maker.values
        for fact in self.facts[:count]:
            _, questions = random.choice(fact.questions)
            filled = {slot: _SLOTS[slot](values) for slot in re.findall(r"\{(\w+)\}", fact.template)}
            self.maker.asker.absent(random.choice(questions).format(**filled))


def _open(maker: PageMaker) -> tuple[Style, Style, float, float, float]:
    """A sheet for text: the body's style, its bold, the left margin, the width and the leading in em."""
    random = maker.random
    width, height = random.choice(((724, 1024), (724, 1024), (791, 1024)))
    maker.open(width, height, maker.paper())
    family = maker.family(mono=0.2)
    size = random.uniform(10.5, 17)
    body = maker.style(family.regular, size)
    margin = float(random.randint(36, 96))
    return body, Style(family.bold, size, body.colour), margin, width - 2 * margin, random.choice((1.2, 1.3, 1.4, 1.6))


@PAGES.register("letter")
def letter(maker: PageMaker) -> None:
    """A letter of a person or a company."""
    random, values = maker.random, maker.values
    body, bold, x, width, leading = _open(maker)
    sheet, layout = maker.sheet, maker.arrange(_LETTER_LAYOUTS, "letter", 3)
    step, y = body.size * leading, float(random.randint(36, 70))
    asker, middle, right = maker.asker, x + width / 2, x + width
    company = values.company()
    head = Style(
        bold.face, body.size * random.uniform(1.2, 2.0), maker.accent() if random.random() < 0.4 else body.colour
    )
    anchor, align = (
        (middle, "middle")
        if layout in ("letterhead middle", "two-line head")
        else (right, "right")
        if layout == "letterhead right"
        else (x, "left")
    )
    shop = [sheet.write(company, anchor, y, head, align)]
    asker.add(asker.word("letter company"), company if shop[0].text == company else shop[0].text, boxes_of(shop))
    for line in [", ".join(values.address())] if layout == "two-line head" else values.address():
        y += step
        sheet.write(line, anchor, y, body, align)
    y += step * random.uniform(1.2, 3)
    date = [
        sheet.write(
            values.date(values.day(1985, 2029)),
            right if layout == "date right" else x,
            y,
            body,
            "right" if layout == "date right" else "left",
        )
    ]
    asker.add(asker.word("letter date"), joined(date), boxes_of(date))
    y += step * random.uniform(1.2, 2.4)
    first, last = values.first_name(), values.last_name()
    title = random.choice(("Mr.", "Ms.", "Mrs.", "Dr."))
    receiver = [sheet.write(f"{title} {first} {last}" if random.random() < 0.5 else f"{first} {last}", x, y, body)]
    asker.add(asker.word("letter receiver"), receiver[0].text, boxes_of(receiver))
    address = []
    for line in values.address():
        y += step
        address.append(sheet.write(line, x, y, body))
    asker.add(asker.word("letter address"), joined(address), boxes_of(address), boxes_of(receiver))
    y += step * 2
    subject: list[Piece] = []
    if random.random() < 0.55:
        label = term(random, "memo subject", maker.split)[0] + ":" if random.random() < 0.6 else ""
        text = (
            maker.words.thing().capitalize()
            if random.random() < 0.6
            else f"{maker.names.invented().name} {values.code()}"
        )
        shown, y = sheet.paragraph(f"{label} {text}".strip(), x, y, width, bold, leading)
        subject = find(shown, bold.printable(text))
        asker.add(asker.word("letter subject"), joined(subject), boxes_of(subject))
        y += step
    salutation = random.choice(share(_SALUTATIONS, maker.split, "salutation", 3)).format(
        title=title, first=first, last=last
    )
    sheet.write(salutation, x, y, body)
    y += step * 1.6
    writing = Writing(maker, body, x, width, leading)
    bottom = sheet.height - step * 9
    for _ in range(random.randint(1, 7)):
        end = writing.paragraph(y, bottom, random.choice((1, 1, 2)))
        y = end + step * 0.6 if end > y else y
    sheet.write(random.choice(share(_ENDINGS, maker.split, "ending", 3)), x, y + step * 0.5, body)
    y += step * 3.5
    writer = values.person()
    if random.random() < 0.3:
        hand = Style(maker.fonts.draw(random, "hand").regular, body.size * 1.7, (20, 30, 110))
        sheet.write(writer, x, y - step * 1.2, hand)
    signed = [sheet.write(writer, x, y, body)]
    asker.add(asker.word("letter writer"), signed[0].text, boxes_of(signed))
    if random.random() < 0.6:
        job = [sheet.write(values.job(), x, y + step, body)]
        asker.add(asker.word("letter position"), job[0].text, boxes_of(job), boxes_of(signed))
    else:
        asker.absent(asker.word("letter position"))
    if not subject:
        asker.absent(asker.word("letter subject"))
    writing.absent(2)
    asker.gist("kind of page", ("letter", "a letter"))
    asker.gist("language", "English")


@PAGES.register("memo")
def memo(maker: PageMaker) -> None:
    """A memo: who writes to whom, when and about what, and a few paragraphs."""
    random, values = maker.random, maker.values
    body, bold, x, width, leading = _open(maker)
    sheet, layout, asker = maker.sheet, maker.arrange(_MEMO_LAYOUTS, "memo", 2), maker.asker
    step, y = body.size * leading, float(random.randint(40, 80))
    if random.random() < 0.5:
        sheet.write(maker.shown(values.company(), upper=0.5), x, y, bold)
        y += step * 1.5
    text = random.choice(share(_MEMOS, maker.split, "memo", 2))
    style = Style(bold.face, body.size * random.uniform(1.2, 2.0), body.colour)
    title = [
        sheet.write(
            text,
            x + width / 2 if layout == "head middle" else x,
            y + style.size * 0.6,
            style,
            "middle" if layout == "head middle" else "left",
        )
    ]
    y += style.size + step * 1.2
    y = _head_fields(maker, body, bold, layout, x, y, width, step)
    if layout == "ruled" or random.random() < 0.4:
        sheet.line(
            (x, round(y - step * 0.5)),
            (x + width, round(y - step * 0.5)),
            colour=body.colour,
            width=random.choice((1, 2)),
        )
    y += step
    writing = Writing(maker, body, x, width, leading)
    for _ in range(random.randint(1, 5)):
        end = writing.paragraph(y, sheet.height - step * 3, random.choice((0, 1, 2)))
        y = end + step * 0.6 if end > y else y
    writing.absent(2)
    asker.gist("kind of page", ("memo", "a memo", "memorandum"))
    asker.gist("title", joined(title), title)
    if y < sheet.height * 0.75 and random.random() < 0.5:
        sheet.height = int(y + 60)


def _head_fields(
    maker: PageMaker,
    body: Style,
    bold: Style,
    layout: str,
    x: float,
    y: float,
    width: float,
    step: float,
    what: str = "memo",
) -> float:
    """To, from, date and subject; asks about them and about what is missing."""
    random, values, asker, sheet = maker.random, maker.values, maker.asker, maker.sheet
    fields = [
        ("memo to", values.person(), "person"),
        ("memo from", values.person(), "person"),
        ("memo date", values.date(), "date"),
        ("memo subject", maker.words.thing().capitalize(), "words"),
    ]
    if random.random() < 0.3:
        fields.insert(3, ("memo cc", values.person(), "person"))
    else:
        asker.absent(asker.named("cc", "words", term(random, "memo cc", maker.split)[0]))
    if random.random() < 0.3:
        random.shuffle(fields)
    label_style = bold if random.random() < 0.5 else body
    upper = random.random() < 0.4
    stop = body.size * random.uniform(5, 9)
    half = width / 2
    top = lowest = y
    for i, (concept, value, kind) in enumerate(fields):
        left = x + (i % 2) * half if layout == "two by two" else x
        names = term(random, concept, maker.split)
        printed = (names[0].upper() if upper else names[0]).rstrip(":") + ":"
        label = sheet.write(printed, left, y, label_style)
        start = max(left + (stop if layout != "stacked" else 0), label.box[2] + body.size * 0.6)
        room = (left + half - 12 if layout == "two by two" else x + width) - start
        shown, end = sheet.paragraph(value, start, y, room, body, 1.25)
        asker.value(
            [names[0].rstrip(":")], kind if concept not in ("memo to", "memo from") else "words", [label], shown
        )
        if random.random() < 0.5:
            word = {
                "memo from": "letter writer",
                "memo to": "letter receiver",
                "memo date": "letter date",
                "memo subject": "letter subject",
            }.get(concept)
            if word:
                asker.add(asker.word(word).replace("letter", what), joined(shown), boxes_of(shown), [label.box])
        lowest = max(lowest, end, y + step)
        if layout != "two by two" or i % 2 or i == len(fields) - 1:
            y = lowest + step * 0.25
    if layout == "boxed":
        sheet.rectangle(x - 8, top - step, x + width + 8, y - step * 0.8, outline=body.colour)
    return y


@PAGES.register("agreement")
def agreement(maker: PageMaker) -> None:
    """A page of an agreement between two parties."""
    random, values = maker.random, maker.values
    body, bold, x, width, leading = _open(maker)
    sheet, layout, asker = maker.sheet, maker.arrange(_AGREEMENT_LAYOUTS, "agreement", 2), maker.asker
    step, y = body.size * leading, float(random.randint(50, 90))
    name = random.choice(share(_AGREEMENTS, maker.split, "agreement", 3))
    short = "Contract" if "ontract" in name else "Agreement"
    title, y = sheet.paragraph(
        name.upper() if random.random() < 0.5 else name,
        x,
        y,
        width,
        Style(bold.face, body.size * random.uniform(1.1, 1.6), body.colour),
        1.2,
        "middle",
    )
    y += step
    one, two, state = values.company(), values.company(), values.state()
    date = values.date(values.day(1990, 2029))
    if random.random() < 0.15:
        date = f"the {random.randint(4, 20)}th day of {random.choice(_MONTHS)}, {random.randint(1990, 2029)}"
    text = random.choice(share(_OPENINGS, maker.split, "opening", 3)).format(
        T=name, a=short, date=date, one=one, two=two, state=values.state()
    )
    pieces, y = sheet.paragraph(text, x, y, width, body, leading)
    spots = {key: find(pieces, body.printable(value)) for key, value in (("date", date), ("one", one), ("two", two))}
    if spots["date"]:
        asker.add(asker.word("agreement date"), joined(spots["date"]), boxes_of(spots["date"]))
    if spots["one"] and spots["two"]:
        asker.add(
            asker.word("other party", first=one), joined(spots["two"]), boxes_of(spots["two"]), boxes_of(spots["one"])
        )
        both = tuple(joined(spots["one"]) + sign + joined(spots["two"]) for sign in (" and ", ", "))
        asker.add(asker.word("agreement parties"), both, boxes_of([*spots["one"], *spots["two"]]), kind=TWO_PLACES)
    y = _clauses(maker, body, bold, layout, short, state, x, y + step * 0.6, width, leading)
    if random.random() < 0.6 and y + step * 8 < sheet.height:
        y = _signatures(maker, body, one, two, x, y + step * 2, width, step)
    _page_number(maker, body, x, width)
    asker.gist(
        "kind of page",
        (short.lower(), "agreement" if short == "Contract" else "contract"),
    )
    asker.gist("title", joined(title), title)


def _clauses(
    maker: PageMaker,
    body: Style,
    bold: Style,
    layout: str,
    short: str,
    state: str,
    x: float,
    y: float,
    width: float,
    leading: float,
) -> float:
    random, values, asker, sheet, step = maker.random, maker.values, maker.asker, maker.sheet, body.size * leading
    length, notice = duration(values), f"{random.choice((10, 14, 30, 60, 90))} days"
    special = [
        ("governing law", _LAW, state, 0.75),
        ("agreement term", _TERM, length, 0.6),
        ("notice period", _NOTICE, notice, 0.5),
    ]
    clauses: list[tuple[str, str, str]] = []
    for word, pool, value, often in special:
        if random.random() < often:
            clauses.append((random.choice(share(pool, maker.split, word, 3)), word, value))
        else:
            asker.absent(asker.word(word))
    plain = share(_CLAUSES, maker.split, "clause", 4)
    clauses += [(text, "", "") for text in random.sample(plain, min(len(plain), random.randint(2, 8)))]
    clauses += [(maker.words.text(random.randint(1, 3)), "", "") for _ in range(random.randint(0, 4))]
    random.shuffle(clauses)
    for i, (text, word, value) in enumerate(clauses):
        filled = text.format(a=short, state=state, term=length, notice=notice)
        if random.random() < 0.4 and word:
            filled = f"{maker.words.sentence()} {filled}"
        start = {
            "numbered": f"{i + 1}. ",
            "articles": f"Article {i + 1}. ",
            "lettered": f"({chr(97 + i % 26)}) ",
            "bold numbers": f"{i + 1}.0 ",
        }.get(layout, "")
        if y + (len(body.wrap(start + filled, width)) + 1) * step > sheet.height - 60:
            if word:
                asker.absent(asker.word(word))
            continue
        if layout == "justified heads" and random.random() < 0.6:
            sheet.write(f"{i + 1}. {maker.words.noun().capitalize()}", x, y, bold)
            y += step
        pieces, y = sheet.paragraph(start + filled, x, y, width, body, leading)
        y += step * 0.5
        answer = find(pieces, body.printable(value)) if word else []
        if answer:
            asker.add(asker.word(word), joined(answer), boxes_of(answer))
    return y


def _signatures(
    maker: PageMaker, body: Style, one: str, two: str, x: float, y: float, width: float, step: float
) -> float:
    """Both parties' signature blocks beside each other."""
    random, values, asker, sheet = maker.random, maker.values, maker.asker, maker.sheet
    for left, company in ((x, one), (x + width * 0.53, two)):
        pieces, base = sheet.paragraph(company, left, y, width * 0.45, body, 1.2)
        name = values.person()
        sheet.line((left, round(base + step * 1.6)), (left + width * 0.4, round(base + step * 1.6)), colour=body.colour)
        if random.random() < 0.5:
            hand = Style(maker.fonts.draw(random, "hand").regular, body.size * 1.5, (20, 30, 110))
            sheet.write(name, left + 10, base + step * 1.4, hand)
        label = sheet.write(random.choice(("By:", "Name:")), left, base + step * 2.7, body)
        signer = sheet.write(name, label.box[2] + 6, base + step * 2.7, body)
        title = sheet.write("Title:", left, base + step * 3.8, body)
        position = body.printable(values.job())
        fitting = body * min(1.0, (left + width * 0.46 - title.box[2]) / body.width(position))
        job = sheet.write(position, title.box[2] + 6, base + step * 3.8, fitting)
        asker.add(asker.word("who signs", name=joined(pieces)), signer.text, [signer.box], boxes_of(pieces))
        if random.random() < 0.5:
            asker.add(asker.word("title of", name=signer.text), job.text, [job.box], [signer.box])
    return y + step * 7


def _page_number(maker: PageMaker, body: Style, x: float, width: float) -> None:
    if maker.random.random() < 0.5:
        return
    number = str(maker.random.randint(1, 30))
    form = maker.random.choice(("{}", "- {} -", "Page {}", "{}"))
    piece = maker.sheet.write(form.format(number), x + width / 2, maker.sheet.height - 26, body, "middle")
    maker.asker.add(maker.asker.word("page number"), number, [piece.part(number).box])


@PAGES.register("email")
def email(maker: PageMaker) -> None:
    """An e-mail on a screen or printed."""
    random, values = maker.random, maker.values
    layout = maker.arrange(_EMAIL_LAYOUTS, "email", 2)
    width, height = random.choice(((1024, 640), (1024, 768), (724, 1024), (900, 700)))
    dark = random.random() < 0.25 and layout in ("app", "card", "pane")
    paper, ink = ((32, 33, 36), (228, 228, 232)) if dark else ((255, 255, 255), (20, 20, 20))
    sheet = maker.open(width, height, paper)
    maker.sharp = True
    family = maker.family(mono=0.5 if layout == "plain text" else 0.05)
    body = Style(family.regular, random.uniform(11.5, 16), ink)
    bold = Style(family.bold, body.size, ink)
    leading, x = random.choice((1.3, 1.4, 1.5)), float(random.randint(24, 70))
    inner, step, y = width - 2 * x, body.size * leading, float(random.randint(30, 56))
    if layout == "pane":
        x += 190
        inner -= 190
        _folders(maker, body, height)
    subject = (
        maker.words.thing().capitalize()
        if random.random() < 0.5
        else f"{random.choice(('Re', 'Fwd', 'Invoice', 'Question', 'Update'))}: {maker.words.thing()}"
    )
    asker = maker.asker
    if layout in ("app", "card", "pane"):
        y = _app_head(maker, body, bold, subject, x, y, inner, step)
    else:
        y = _head_fields(
            maker, body, bold, "stacked" if layout == "plain text" else "columns", x, y, inner, step, "e-mail"
        )
    sheet.line((x, round(y - step * 0.4)), (x + inner, round(y - step * 0.4)), colour=(150, 150, 150))
    y += step * 0.8
    sheet.write(
        random.choice(share(_SALUTATIONS, maker.split, "salutation", 3)).format(
            title="Mr.", first=values.first_name(), last=values.last_name()
        ),
        x,
        y,
        body,
    )
    y += step * 1.5
    writing = Writing(maker, body, x, inner, leading)
    for _ in range(random.randint(1, 4)):
        end = writing.paragraph(y, height - step * 3, random.choice((1, 1, 2)))
        y = end + step * 0.6 if end > y else y
    sheet.write(random.choice(share(_ENDINGS, maker.split, "ending", 3)), x, y, body)
    sheet.write(values.first_name(), x, y + step, body)
    writing.absent(2)
    asker.gist("kind of page", ("email", "an email", "e-mail"))


def _folders(maker: PageMaker, body: Style, height: int) -> None:
    shade = tuple(max(0, c - 12) if maker.sheet.paper[0] > 128 else c + 12 for c in maker.sheet.paper)
    maker.sheet.rectangle(0, 0, 190, height, fill=(shade[0], shade[1], shade[2]))
    for i, name in enumerate(("Inbox", "Sent", "Drafts", "Archive", "Spam", "Trash")):
        piece = maker.sheet.write(name, 20, 50 + i * body.size * 2.2, body)
        if name in ("Inbox", "Drafts", "Spam"):
            count = maker.sheet.write(str(maker.random.randint(1, 99)), 172, 50 + i * body.size * 2.2, body, "right")
            maker.asker.add(
                maker.asker.word("folder", name=name),
                count.text,
                [count.box],
                [piece.box],
            )


def _app_head(
    maker: PageMaker, body: Style, bold: Style, subject: str, x: float, y: float, width: float, step: float
) -> float:
    """Subject in large print, the sender with a round picture, the time at the right."""
    random, values, asker, sheet = maker.random, maker.values, maker.asker, maker.sheet
    title, y = sheet.paragraph(
        subject, x, y + body.size * 0.5, width, Style(bold.face, body.size * 1.5, bold.colour), 1.25
    )
    side = body.size * 2.6
    sheet.ellipse(x, y - body.size * 0.4, x + side, y - body.size * 0.4 + side, fill=maker.accent())
    sender = sheet.write(values.person(), x + side + 10, y + body.size * 0.6, bold)
    address = sheet.write(values.email(), x + side + 10, y + body.size * 0.6 + step, body)
    time = sheet.write(
        values.time() if random.random() < 0.6 else values.date(), x + width, y + body.size * 0.6, body, "right"
    )
    asker.add(asker.word("letter writer").replace("letter", "e-mail"), sender.text, [sender.box])
    asker.add(asker.word("letter subject").replace("letter", "e-mail"), joined(title), boxes_of(title))
    asker.add(
        asker.word("sender's address"),
        address.text,
        [address.box],
        [sender.box],
    )
    asker.add(
        asker.word("mail time"),
        time.text,
        [time.box],
    )
    asker.absent(asker.word("attached"))
    return y + step * 2.6
