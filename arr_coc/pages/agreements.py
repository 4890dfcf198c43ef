"""Running text with facts: agreements with clauses, and emails."""

from __future__ import annotations

from .letters import Writing, duration, head_fields, open_page
from .maker import PAGES, PageMaker
from .question_writer import TWO_PLACES, boxes_of
from .sheet import Style, find, joined
from .values import MONTHS


@PAGES.register("agreement")
def agreement(maker: PageMaker) -> None:
    """A page of an agreement between two parties."""
    random, values = maker.random, maker.values
    body, bold, x, width, leading = open_page(maker)
    maker.arrange("agreement")
    sheet, questions = maker.sheet, maker.questions
    step, y = body.size * leading, float(random.randint(50, 90))
    name = maker.one("agreement")
    short = "Contract" if "ontract" in name else "Agreement"
    text, style = maker.shown(name, upper=0.5), bold * random.uniform(1.1, 1.6)
    title, y = sheet.paragraph(text, x, y, width, style, 1.2, "middle")
    y += step
    one, two, state = values.company(), values.company(), values.state()
    date = values.date(values.day(1990, 2029))
    if random.random() < 0.15:
        date = f"the {random.randint(4, 20)}th day of {random.choice(MONTHS)}, {random.randint(1990, 2029)}"
    text = maker.one("opening").format(T=name, a=short, date=date, one=one, two=two, state=values.state())
    pieces, y = sheet.paragraph(text, x, y, width, body, leading)
    spots = {key: find(pieces, body.printable(value)) for key, value in (("date", date), ("one", one), ("two", two))}
    if spots["date"]:
        questions.ask("agreement date", spots["date"])
    if spots["one"] and spots["two"]:
        questions.ask("other party", spots["two"], spots["one"], first=one)
        both = tuple(joined(spots["one"]) + sign + joined(spots["two"]) for sign in (" and ", ", "))
        questions.add(
            questions.word("agreement parties"), both, boxes_of([*spots["one"], *spots["two"]]), (), TWO_PLACES
        )
    y = _clauses(maker, body, bold, short, state, x, y + step * 0.6, width, leading)
    if random.random() < 0.6 and y + step * 8 < sheet.height:
        y = _signatures(maker, body, one, two, x, y + step * 2, width, step)
    _page_number(maker, body, x, width)
    questions.gist("kind of page", (short.lower(), "agreement" if short == "Contract" else "contract"))
    questions.gist("title", joined(title), title)


def _clauses(
    maker: PageMaker, body: Style, bold: Style, short: str, state: str, x: float, y: float, width: float, leading: float
) -> float:
    random, values, questions, sheet = maker.random, maker.values, maker.questions, maker.sheet
    step = body.size * leading
    length, notice = duration(values), f"{random.choice((10, 14, 30, 60, 90))} days"
    special = [("governing law", state, 0.75), ("agreement term", length, 0.6), ("notice period", notice, 0.5)]
    clauses: list[tuple[str, str, str]] = []
    for word, value, often in special:
        if random.random() < often:
            clauses.append((maker.one(word), word, value))
        else:
            questions.lack(word)
    plain = maker.pool("clause")
    clauses += [(text, "", "") for text in random.sample(plain, min(len(plain), random.randint(2, 8)))]
    clauses += [(maker.words.text(random.randint(1, 3)), "", "") for _ in range(random.randint(0, 4))]
    random.shuffle(clauses)
    for i, (text, word, value) in enumerate(clauses):
        filled = text.format(a=short, state=state, term=length, notice=notice)
        if random.random() < 0.4 and word:
            filled = f"{maker.words.sentence()} {filled}"
        starts = {"numbered": f"{i + 1}. ", "articles": f"Article {i + 1}. ", "bold numbers": f"{i + 1}.0 "}
        start = {**starts, "lettered": f"({chr(97 + i % 26)}) "}.get(maker.layout, "")
        if y + (len(body.wrap(start + filled, width)) + 1) * step > sheet.height - 60:
            if word:
                questions.lack(word)
            continue
        if maker.layout == "justified heads" and random.random() < 0.6:
            sheet.write(f"{i + 1}. {maker.words.noun().capitalize()}", x, y, bold)
            y += step
        pieces, y = sheet.paragraph(start + filled, x, y, width, body, leading)
        y += step * 0.5
        answer = find(pieces, body.printable(value)) if word else []
        if answer:
            questions.ask(word, answer)
    return y


def _signatures(
    maker: PageMaker, body: Style, one: str, two: str, x: float, y: float, width: float, step: float
) -> float:
    """Both parties' signature blocks beside each other."""
    random, values, questions, sheet = maker.random, maker.values, maker.questions, maker.sheet
    for left, company in ((x, one), (x + width * 0.53, two)):
        pieces, base = sheet.paragraph(company, left, y, width * 0.45, body, 1.2)
        name = values.person()
        sheet.across(left, left + width * 0.4, base + step * 1.6, body.colour)
        if random.random() < 0.5:
            hand = Style(maker.fonts.draw(random, "hand").regular, body.size * 1.5, (20, 30, 110))
            sheet.write(name, left + 10, base + step * 1.4, hand)
        label = sheet.write(random.choice(("By:", "Name:")), left, base + step * 2.7, body)
        signer = sheet.write(name, label.box[2] + 6, base + step * 2.7, body)
        title = sheet.write("Title:", left, base + step * 3.8, body)
        position = body.printable(values.job())
        fitting = body * min(1.0, (left + width * 0.46 - title.box[2]) / body.width(position))
        job = sheet.write(position, title.box[2] + 6, base + step * 3.8, fitting)
        questions.ask("who signs", signer, pieces, name=joined(pieces))
        if random.random() < 0.5:
            questions.ask("title of", job, signer, name=signer.text)
    return y + step * 7


def _page_number(maker: PageMaker, body: Style, x: float, width: float) -> None:
    if maker.random.random() < 0.5:
        return
    number = str(maker.random.randint(1, 30))
    form = maker.random.choice(("{}", "- {} -", "Page {}", "{}"))
    piece = maker.sheet.write(form.format(number), x + width / 2, maker.sheet.height - 26, body, "middle")
    maker.questions.add(maker.questions.word("page number"), number, [piece.part(number).box])


@PAGES.register("email")
def email(maker: PageMaker) -> None:
    """An e-mail on a screen or printed."""
    random, values = maker.random, maker.values
    layout = maker.arrange("email")
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
    thing = maker.words.thing
    about = ("Re", "Fwd", "Invoice", "Question", "Update")
    subject = thing().capitalize() if random.random() < 0.5 else f"{random.choice(about)}: {thing()}"
    questions = maker.questions
    if layout in ("app", "card", "pane"):
        y = _app_head(maker, body, bold, subject, x, y, inner, step)
    else:
        shape = "stacked" if layout == "plain text" else "columns"
        y = head_fields(maker, body, bold, shape, x, y, inner, step, "e-mail")
    sheet.across(x, x + inner, y - step * 0.4, (150, 150, 150))
    y += step * 0.8
    greeting = maker.one("salutation").format(title="Mr.", first=values.first_name(), last=values.last_name())
    sheet.write(greeting, x, y, body)
    y += step * 1.5
    writing = Writing(maker, body, x, inner, leading)
    y = writing.paragraphs(random.randint(1, 4), y, height - step * 3, (1, 1, 2), step * 0.6)
    sheet.write(maker.one("ending"), x, y, body)
    sheet.write(values.first_name(), x, y + step, body)
    writing.absent(2)
    questions.gist("kind of page", ("email", "an email", "e-mail"))


def _folders(maker: PageMaker, body: Style, height: int) -> None:
    shade = tuple(max(0, c - 12) if maker.sheet.paper[0] > 128 else c + 12 for c in maker.sheet.paper)
    maker.sheet.rectangle(0, 0, 190, height, fill=(shade[0], shade[1], shade[2]))
    for i, name in enumerate(("Inbox", "Sent", "Drafts", "Archive", "Spam", "Trash")):
        piece = maker.sheet.write(name, 20, 50 + i * body.size * 2.2, body)
        if name in ("Inbox", "Drafts", "Spam"):
            count = maker.sheet.write(str(maker.random.randint(1, 99)), 172, 50 + i * body.size * 2.2, body, "right")
            maker.questions.ask("folder", count, piece, name=name)


def _app_head(
    maker: PageMaker, body: Style, bold: Style, subject: str, x: float, y: float, width: float, step: float
) -> float:
    """The head of a mail app: subject in large print, sender with a round picture, time at the right."""
    random, values, questions, sheet = maker.random, maker.values, maker.questions, maker.sheet
    title, y = sheet.paragraph(subject, x, y + body.size * 0.5, width, bold.sized(body.size * 1.5), 1.25)
    side = body.size * 2.6
    sheet.ellipse(x, y - body.size * 0.4, x + side, y - body.size * 0.4 + side, fill=maker.accent())
    sender = sheet.write(values.person(), x + side + 10, y + body.size * 0.6, bold)
    address = sheet.write(values.email(), x + side + 10, y + body.size * 0.6 + step, body)
    when = values.time() if random.random() < 0.6 else values.date()
    time = sheet.write(when, x + width, y + body.size * 0.6, body, "right")
    questions.add(questions.word("letter writer").replace("letter", "e-mail"), sender.text, [sender.box])
    questions.add(questions.word("letter subject").replace("letter", "e-mail"), joined(title), boxes_of(title))
    questions.ask("sender's address", address, sender)
    questions.ask("mail time", time)
    questions.lack("attached")
    return y + step * 2.6
