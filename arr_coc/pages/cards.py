"""Small documents: business cards, ID cards, labels, tickets and name badges."""

from __future__ import annotations

from dataclasses import replace

from .fields import Field
from .letters import TextColumn
from .maker import PAGES, PageMaker, on
from .pairs import Look, PairWriter, ask_absent, ask_fields
from .sheet import Colour, Style, find, joined
from .splits import listed, pairs

_CONTACTS = pairs("contacts")
_WIDE = ("address", "person", "company", "email", "url", "iban", "words")


def _card(maker: PageMaker, width: int, height: int) -> tuple[Colour, Colour]:
    """Opens a sheet with a coloured ground; returns ink and accent."""
    dark = maker.random.random() < 0.15
    paper = (30, 32, 40) if dark else maker.tint() if maker.random.random() < 0.4 else (255, 255, 255)
    maker.open(width, height, paper)
    accent = maker.accent()
    bright: Colour = (min(accent[0] + 120, 255), min(accent[1] + 120, 255), min(accent[2] + 120, 255))
    return ((240, 240, 240), bright) if dark else (maker.ink(), accent)


@PAGES.register("business card")
def business_card(maker: PageMaker) -> None:
    """A business card."""
    random, values = maker.random, maker.values
    layout = maker.arrange("business card")
    width = random.choice((640, 720, 800))
    ink, accent = _card(maker, width, int(width * random.uniform(0.55, 0.64)))
    sheet, questions = maker.sheet, maker.questions
    family = maker.family(mono=0.05)
    small = Style(family.regular, width * random.uniform(0.021, 0.028), ink)
    face = maker.family(mono=0, display=0.3).bold if random.random() < 0.5 else family.bold
    name_style = Style(face, small.size * random.uniform(1.5, 2.2), ink)
    align = layout if layout in ("middle", "right") else "left"
    if layout == "bar left":
        sheet.rectangle(0, 0, 22, sheet.height, fill=accent)
    elif layout == "bar top":
        sheet.rectangle(0, 0, width, 18, fill=accent)
    column = TextColumn(maker, small, small, 40, sheet.height * random.uniform(0.14, 0.2), width - 80, 1.4)
    company = "company", values.company(), Style(family.bold, small.size * 1.25, accent)
    lines = [("person", values.person(), name_style), ("job", values.job(), small)]
    for kind, text, style in [*lines, company] if layout in ("name under", "split") else [company, *lines]:
        questions.ask(f"card {kind}", column.write(text, style, align))
    column.y = max(column.y + small.size, sheet.height * 0.52)
    if layout in ("two sides", "split"):
        column.x, column.width = width * 0.52, width * 0.48 - 40
    for line in values.address() if random.random() < 0.75 else []:
        column.write(line, align=align)
    labelled = random.random() < 0.75
    for kind, name in _CONTACTS.items():
        value = {"email": values.email, "website": values.url}.get(kind, values.phone)()
        label = f"{maker.one(f'contact {kind}')}{random.choice((':', ' '))}".replace("::", ":") if labelled else ""
        text, unclear = f"{label} {value}", kind in ("mobile", "fax") and not labelled
        full = column.y > sheet.height - 14 or small.width(small.printable(text)) > column.width
        if random.random() < 0.4 or unclear or full:
            questions.lack("card contact", name=name)
            continue
        pieces = column.write(text, align=align)
        questions.ask(
            "card contact", find(pieces, small.printable(value)), find(pieces, small.printable(label)), name=name
        )


def _writer(maker: PageMaker, ink: Colour, size: float, layout: str = "", columns: int = 2) -> PairWriter:
    """A writer of a card's fields, whose labels are above their values or beside them."""
    random = maker.random
    family = maker.family(mono=0.15)
    above = random.random() < 0.5 if not layout else layout != "simple"
    label = Style(family.regular, size * (0.72 if above else 1.0), ink)
    value = Style(family.bold if random.random() < 0.6 else family.regular, size, ink)
    case = random.choice(("plain", "upper", "plain"))
    if above:
        return PairWriter(
            maker, Look("above", label, value, columns, case, leading=1.9, whole_rows=() if layout else _WIDE)
        )
    return PairWriter(maker, Look("after", label, value, 2 if layout else 1, case, ":", leading=1.45))


def _fields(maker: PageMaker, domain: str, least: int, most: int) -> list[Field]:
    drawn = maker.names.draw(domain, maker.random.randint(least, most))
    chosen = {"choice": (maker.values.choice(),)}  # there is no room for boxes to tick
    return [replace(each, lines=chosen.get(each.kind, ())) for each in drawn if each.kind != "note"]


@PAGES.register("id card")
def id_card(maker: PageMaker) -> None:
    """An identity card or licence with a picture and fields."""
    random, values = maker.random, maker.values
    layout = maker.arrange("id card")
    width = random.choice((720, 800, 860))
    ink, accent = _card(maker, width, int(width * 0.64))
    sheet = maker.sheet
    writer = _writer(maker, ink, width * random.uniform(0.022, 0.03))
    face, size, top = writer.look.value.face, writer.look.value.size, 0.0
    head = Style(face, width * random.uniform(0.032, 0.045), ink)
    if "band" in layout:
        top = head.size * 2.1
        sheet.rectangle(0, 0, width, top, fill=accent)
        head = head.inked(on(accent))
    issuer = random.choice((values.state(), values.country(), values.company()))
    text = f"{issuer}{random.choice((' ', ' - '))}{maker.one('card head')}"
    maker.title, end = sheet.paragraph(maker.shown(text, upper=0.5), 24, head.size * 1.4, width - 48, head, 1.15)
    x, y, room = 28.0, max(top, end - head.size * 0.6) + size * 0.6, width - 56.0
    if layout != "no picture":
        side = width * 0.24
        left = width - side - 28 if layout == "picture right" else 28.0
        _portrait(maker, left, y, side)
        x, room = (28.0, width * 0.6) if left > x else (left + side + 24, width - side - 80)
    domain = random.choice(listed("domains of id cards"))
    writer.grid(_fields(maker, domain, 5, 9), x, y, room, sheet.height, tall=5.5)
    ask_fields(maker, writer.shown, domain)


def _portrait(maker: PageMaker, x: float, y: float, side: float) -> None:
    sheet, shade = maker.sheet, maker.random.randint(150, 210)
    dark, bottom = (shade - 60, shade - 60, shade - 55), y + side * 1.2
    sheet.rectangle(x, y, x + side, bottom, fill=(shade, shade, shade + 10))
    sheet.ellipse(x + side * 0.3, y + side * 0.2, x + side * 0.7, y + side * 0.68, fill=dark)
    sheet.ellipse(x + side * 0.12, y + side * 0.74, x + side * 0.88, bottom + side * 0.3, fill=dark)
    sheet.rectangle(x, bottom, x + side, bottom + side * 0.32, fill=sheet.paper)


@PAGES.register("label")
def label(maker: PageMaker) -> None:
    """A label of a parcel, a product or a sample."""
    random, values = maker.random, maker.values
    layout = maker.arrange("label")
    width = random.choice((560, 640, 720))
    ink, _ = _card(maker, width, int(width * random.uniform(0.6, 1.2)))
    sheet, questions = maker.sheet, maker.questions
    writer = _writer(maker, ink, width * random.uniform(0.028, 0.042), columns=1)
    small, value = writer.look.label, writer.look.value
    y, x = value.size * 2, 26.0
    sent = layout in ("address", "parcel", "boxed parcel")
    domain = "shipping note" if sent else random.choice(("order", "technical report", "patient record"))
    if sent:
        for concept, who, where in (
            ("seller", "who sent", "sender's place"),
            ("ship to", "who receives", "where sent"),
        ):
            mark = sheet.write(maker.shown(maker.term(concept)[0], upper=0.5) + ":", x, y, small)
            style = value if concept == "ship to" else Style(small.face, value.size * 0.85, ink)
            lines = [values.person() if random.random() < 0.6 else values.company(), *values.address()]
            name, *address = sheet.lines_from(lines, x, y + value.size * 1.3, style, 1.25)
            questions.ask(who, name, mark)
            questions.ask(where, address, [mark, name])
            y = address[-1].base + style.size * 1.1
            sheet.across(x, width - x, y, ink)
            y += value.size * 1.4
    else:
        head = Style(value.face, value.size * random.uniform(1.4, 2), ink)
        title, y = sheet.paragraph(values.product(), x, y + head.size * 0.4, width - 52, head, 1.15)
        questions.gist("largest", joined(title), title)
    bars = random.random() < 0.6
    bottom = sheet.height - (width * 0.2 if bars else 20)
    drawn = [field for field in _fields(maker, domain, 2, 6) if field.kind != "address"]
    y = writer.grid(drawn, x, y - value.size * 0.7, width - 52, bottom, tall=2.6)
    if not bars:
        sheet.height = int(min(sheet.height, max(y + 20, width * 0.4)))
    elif y < bottom:
        _bar_code(maker, x, bottom + 6, width - 2 * x, width * 0.11, ink, small)
    if writer.shown:
        ask_fields(maker, writer.shown, domain)
    else:
        ask_absent(maker, [], domain)


def _bar_code(maker: PageMaker, x: float, y: float, width: float, height: float, ink: Colour, style: Style) -> None:
    at = x
    while at < x + width:
        wide = maker.random.choice((1, 1, 2, 3))
        maker.sheet.rectangle(at, y, at + wide - 1, y + height, fill=ink)
        at += wide + maker.random.choice((1, 2, 3))
    text = maker.values.filled("#### #### ####")
    maker.sheet.write(text, x + width / 2, y + height + style.size * 1.1, style, "middle")


@PAGES.register("ticket")
def ticket(maker: PageMaker) -> None:
    """A ticket or pass."""
    random = maker.random
    layout = maker.arrange("ticket")
    tall = layout == "tall"
    width = 460 if tall else random.choice((760, 860, 960))
    ink, accent = _card(maker, width, int(width * (1.5 if tall else random.uniform(0.34, 0.46))))
    sheet = maker.sheet
    columns = {"tall": 1, "stub": 3}.get(layout, 4)
    writer = _writer(maker, ink, 20 if tall else width * random.uniform(0.02, 0.027), layout, columns)
    value = writer.look.value
    head = Style(maker.family(mono=0, display=0.3).bold, value.size * random.uniform(1.6, 2.2), ink)
    if layout in ("boarding", "row"):
        sheet.rectangle(0, 0, width, head.size * 2, fill=accent)
        head = head.inked(on(accent))
    text = maker.shown(maker.one("ticket head"), upper=0.5)
    maker.title, _ = sheet.paragraph(text, 26, head.size * 1.4, width - 40, head, 1.1)
    y = head.size * 2 + value.size * 0.6
    if random.random() < 0.5 and not tall:
        name = maker.words.thing().title() if random.random() < 0.6 else maker.values.company()
        sheet.write(name, 26, y + value.size, value * 1.3)
        y += value.size * 1.8
    domain = random.choice(("travel booking", "event registration"))
    right = width * 0.74 if layout == "stub" else width - 26
    drawn = [field for field in _fields(maker, domain, 5, 12) if field.kind != "address"]
    writer.grid(drawn, 26, y, right - 38, sheet.height, tall=4.4)
    if layout == "stub":
        for at in range(0, sheet.height, 10):
            sheet.line((right + 10, at), (right + 10, at + 5), colour=ink)
        for i, shown in enumerate(random.sample(writer.shown, min(2, len(writer.shown)))):
            style = value * 0.9
            line, room = style.wrap(shown.text, width - right - 40)[0], width - right - 40
            sheet.paragraph(line, right + 26, head.size * 2 + value.size * (2 + 2 * i), room, style)
    if layout == "framed":
        sheet.rectangle(6, 6, width - 7, sheet.height - 7, outline=accent, width=2)
    ask_fields(maker, writer.shown, domain)


@PAGES.register("badge")
def badge(maker: PageMaker) -> None:
    """A name badge: a name in large print, a company or place, a job."""
    random, values = maker.random, maker.values
    layout = maker.arrange("badge")
    width, height = (480, 680) if layout == "tall" else (720, 480)
    ink, accent = _card(maker, width, height)
    sheet, questions = maker.sheet, maker.questions
    family = maker.family(mono=0.03, display=0.15)
    small = Style(family.regular, random.uniform(20, 28), ink)
    if layout.startswith("band"):
        top = 0 if layout == "band top" else height - 90
        sheet.rectangle(0, top, width, top + 90, fill=accent)
    elif layout == "frame":
        sheet.rectangle(8, 8, width - 9, height - 9, outline=accent, width=5)
    kind_style = Style(family.bold, 30, on(accent) if layout.startswith("band") else accent)
    y = height - 34.0 if layout == "band bottom" else 56.0
    role = sheet.write(maker.one("badge").upper(), width / 2, y, kind_style, "middle")
    name, big = values.person(), Style(family.bold, 60, ink)
    big *= min(1.0, (width - 50) / big.width(big.printable(name)))
    column = TextColumn(maker, small, small, 20, 110 + (height - 180) * 0.3, width - 40, 1.3)
    person = column.write(name, big, "middle", after=0.2)
    company = column.write(values.company(), align="middle", after=0.3)
    questions.ask("card person", person)
    questions.ask("card company", company)
    if random.random() < 0.6 and column.y + small.size < height - 90:
        style = Style(family.italic, small.size * 0.9, ink)
        questions.ask("card job", column.write(values.job(), style, "middle"))
    else:
        questions.lack("card job")
    questions.lack("card contact", name=random.choice(("phone number", "e-mail address", "website")))
    questions.gist("largest", joined(person), person)
    if random.random() < 0.4:
        label, below = (person[0], company) if layout == "band bottom" else (role, person)
        questions.beside("under", label, below)
