"""Running text with facts: agreements with clauses, and emails."""

from __future__ import annotations

from .letters import Column, duration, head_fields, open_page
from .maker import PAGES, PageMaker
from .question_writer import TWO_PLACES, boxes_of
from .sheet import Pieces, Style, find, joined
from .values import MONTHS


@PAGES.register("agreement")
def agreement(maker: PageMaker) -> None:
    """A page of an agreement between two parties."""
    column = open_page(maker)
    random, values, sheet, questions = maker.random, maker.values, maker.sheet, maker.questions
    maker.arrange("agreement")
    name = maker.one("agreement")
    short = "Contract" if "ontract" in name else "Agreement"
    title = column.write(maker.shown(name, upper=0.5), column.bold * random.uniform(1.1, 1.6), "middle", after=1)
    one, two, state = values.company(), values.company(), values.state()
    date = values.date(values.day(1990, 2029))
    if random.random() < 0.15:
        date = f"the {random.randint(4, 20)}th day of {random.choice(MONTHS)}, {random.randint(1990, 2029)}"
    text = maker.one("opening").format(T=name, a=short, date=date, one=one, two=two, state=values.state())
    opening = column.write(text, after=0.6)
    dated, first, second = (find(opening, column.body.printable(value)) for value in (date, one, two))
    if dated:
        questions.ask("agreement date", dated)
    if first and second:
        questions.ask("other party", second, first, first=one)
        both = tuple(joined(first) + sign + joined(second) for sign in (" and ", ", "))
        questions.add(questions.word("agreement parties"), both, boxes_of([*first, *second]), (), TWO_PLACES)
    _clauses(column, short, state)
    if random.random() < 0.6 and column.y + column.step * 9 < sheet.height:
        _signatures(column, one, two)
    write_number(maker, column.body, column.x + column.width / 2, "middle", 0.5)
    questions.gist("kind of page", (short.lower(), "agreement" if short == "Contract" else "contract"))
    questions.gist("title", joined(title), title)


def _clauses(column: Column, short: str, state: str) -> None:
    maker, questions = column.maker, column.maker.questions
    random = maker.random
    length, notice = duration(maker.values), f"{random.choice((10, 14, 30, 60, 90))} days"
    clauses: list[tuple[str, str, str]] = []
    for word, value, often in (
        ("governing law", state, 0.75),
        ("agreement term", length, 0.6),
        ("notice period", notice, 0.5),
    ):
        if random.random() < often:
            clauses.append((maker.one(word), word, value))
        else:
            questions.lack(word)
    plain = maker.pool("clause")
    clauses += [(text, "", "") for text in random.sample(plain, min(len(plain), random.randint(2, 8)))]
    clauses += [(maker.words.text(random.randint(1, 3)), "", "") for _ in range(random.randint(0, 4))]
    random.shuffle(clauses)
    numbering = {"numbered": "{n}. ", "articles": "Article {n}. ", "bold numbers": "{n}.0 ", "lettered": "({l}) "}
    for i, (text, word, value) in enumerate(clauses):
        filled = text.format(a=short, state=state, term=length, notice=notice)
        if random.random() < 0.4 and word:
            filled = f"{maker.words.sentence()} {filled}"
        filled = numbering.get(maker.layout, "").format(n=i + 1, l=chr(97 + i % 26)) + filled
        if column.y + (len(column.body.wrap(filled, column.width)) + 1) * column.step > maker.sheet.height - 60:
            if word:
                questions.lack(word)
            continue
        if maker.layout == "justified heads" and random.random() < 0.6:
            column.write(f"{i + 1}. {maker.words.noun().capitalize()}", column.bold)
        pieces = column.write(filled, after=0.5)
        if word and (answer := find(pieces, column.body.printable(value))):
            questions.ask(word, answer)


def _signatures(column: Column, *companies: str) -> None:
    """Both parties' signature blocks beside each other."""
    maker, questions, body, step = column.maker, column.maker.questions, column.body, column.step
    top, room = column.y + step, column.width * 0.46
    for left, company in zip((column.x, column.x + column.width * 0.53), companies, strict=True):
        own = Column(maker, body, column.bold, left, top, room, column.leading)
        named = own.write(company, after=2)
        maker.sheet.across(left, left + room * 0.87, own.y - step * 0.8, body.colour)
        name = maker.values.person()
        if maker.random.random() < 0.5:
            own.sign(name)
        signer = _after(own, maker.random.choice(("By:", "Name:")), name)
        questions.ask("who signs", signer, named, name=joined(named))
        job = _after(own, "Title:", maker.values.job())
        if maker.random.random() < 0.5:
            questions.ask("title of", job, signer, name=joined(signer))


def _after(column: Column, label: str, text: str) -> Pieces:
    """Writes a text after a label; returns its pieces."""
    pieces = column.write(f"{label} {text}", after=0.2)
    return find(pieces, column.body.printable(text))


def write_number(maker: PageMaker, style: Style, x: float, align: str, often: float) -> None:
    """Writes a page number at the bottom, with a probability, and asks for it."""
    if maker.random.random() > often:
        maker.questions.lack("page number")
        return
    number = str(maker.random.randint(1, 400))
    form = maker.random.choice(("{}", "{}", "- {} -", "Page {}", f"{{}} | {maker.words.noun().title()}"))
    piece = maker.sheet.write(form.format(number), x, maker.sheet.height - 26, style, align)
    maker.questions.ask("page number", piece.part(number))


@PAGES.register("email")
def email(maker: PageMaker) -> None:
    """An e-mail on a screen or printed."""
    random, values, words = maker.random, maker.values, maker.words
    layout = maker.arrange("email")
    width, height = random.choice(((1024, 640), (1024, 768), (724, 1024), (900, 700)))
    app = layout in ("app", "card", "pane")
    dark = random.random() < 0.25 and app
    paper, ink = ((32, 33, 36), (228, 228, 232)) if dark else ((255, 255, 255), (20, 20, 20))
    sheet = maker.open(width, height, paper)
    maker.sharp = True
    family = maker.family(mono=0.5 if layout == "plain text" else 0.05)
    body = Style(family.regular, random.uniform(11.5, 16), ink)
    margin, side = float(random.randint(24, 70)), 190.0 if layout == "pane" else 0.0
    top, bold, leading = (
        float(random.randint(30, 56)),
        Style(family.bold, body.size, ink),
        random.choice((1.3, 1.4, 1.5)),
    )
    column = Column(maker, body, bold, margin + side, top, width - side - 2 * margin, leading)
    if layout == "pane":
        _folders(maker, body, height)
    if app:
        about, thing = random.choice(("Re", "Fwd", "Invoice", "Question", "Update")), words.thing()
        _app_head(column, thing.capitalize() if random.random() < 0.5 else f"{about}: {thing}")
    else:
        head_fields(column, "stacked" if layout == "plain text" else "columns", "e-mail")
    sheet.across(column.x, column.x + column.width, column.y - column.step * 1.2, (150, 150, 150))
    greeting = maker.one("salutation").format(title="Mr.", first=values.first_name(), last=values.last_name())
    column.write(greeting, after=0.5)
    column.tell_several(random.randint(1, 4), (1, 1, 2), height - column.step * 3)
    column.write(maker.one("ending"))
    column.write(values.first_name())
    maker.questions.gist("kind of page", ("email", "an email", "e-mail"))


def _folders(maker: PageMaker, body: Style, height: int) -> None:
    red, green, blue = (max(0, c - 12) if maker.sheet.paper[0] > 128 else c + 12 for c in maker.sheet.paper)
    maker.sheet.rectangle(0, 0, 190, height, fill=(red, green, blue))
    for i, name in enumerate(("Inbox", "Sent", "Drafts", "Archive", "Spam", "Trash")):
        piece = maker.sheet.write(name, 20, 50 + i * body.size * 2.2, body)
        if name in ("Inbox", "Drafts", "Spam"):
            count = maker.sheet.write(str(maker.random.randint(1, 99)), 172, 50 + i * body.size * 2.2, body, "right")
            maker.questions.ask("folder", count, piece, name=name)


def _app_head(column: Column, subject: str) -> None:
    """The head of a mail app: subject in large print, sender with a round picture, time at the right."""
    maker, questions, sheet, body = column.maker, column.maker.questions, column.maker.sheet, column.body
    values, side = maker.values, body.size * 2.6
    title = column.write(subject, column.bold * 1.5, after=0.3)
    x, y = column.x, column.y
    sheet.ellipse(x, y - body.size, x + side, y - body.size + side, fill=maker.accent())
    sender = sheet.write(values.person(), x + side + 10, y, column.bold)
    address = sheet.write(values.email(), x + side + 10, y + column.step, body)
    when = values.time() if maker.random.random() < 0.6 else values.date()
    time = sheet.write(when, x + column.width, y, body, "right")
    for word, pieces in (("writer", [sender]), ("subject", title)):
        questions.add(questions.word(f"letter {word}").replace("letter", "e-mail"), joined(pieces), boxes_of(pieces))
    questions.ask("sender's address", address, sender)
    questions.ask("mail time", time)
    questions.lack("attached")
    column.y += column.step * 3.6
