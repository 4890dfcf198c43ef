"""Small documents: business cards, ID cards, labels, tickets and name badges."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import Field, term
from .forms import Shown, ask_absent, ask_fields, cased
from .maker import PAGES, PageMaker, on
from .sheet import Colour, Piece, Style, joined
from .splits import listed, pairs
from .values import KINDS

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
    align = {"middle": "middle", "right": "right"}.get(layout, "left")
    x = {"middle": width / 2, "right": width - 40.0}.get(layout, 40.0)
    if layout == "bar left":
        sheet.rectangle(0, 0, 22, sheet.height, fill=accent)
    elif layout == "bar top":
        sheet.rectangle(0, 0, width, 18, fill=accent)
    person, job, company = values.person(), values.job(), values.company()
    company_style = Style(family.bold, small.size * 1.25, accent)
    lines = [("company", company, company_style), ("person", person, name_style), ("job", job, small)]
    if layout in ("name under", "split"):
        lines = [lines[1], lines[2], lines[0]]
    y = sheet.height * random.uniform(0.1, 0.16)
    for kind, text, style in lines:
        y += style.size * 1.15
        pieces, _ = sheet.paragraph(text, x if align == "left" else 40, y, width - 80, style, 1.15, align)
        y = float(pieces[-1].boxes[0, 3]) + style.size * 0.25
        questions.ask(f"card {kind}", pieces)
    y = max(y + small.size * 1.5, sheet.height * 0.52)
    if layout in ("two sides", "split"):
        x = width * 0.52
    step = small.size * 1.4
    for line in values.address() if random.random() < 0.75 else []:
        sheet.write(line, x, y, small, align)
        y += step
    present = _contacts(maker, small, x, y, step, align)
    for kind in _CONTACTS:
        if kind not in present:
            questions.lack("card contact", name=_CONTACTS[kind])
    questions.gist("kind of page", ("business card", "a business card"))


def _contacts(maker: PageMaker, style: Style, x: float, y: float, step: float, align: str) -> list[str]:
    random, values, sheet, questions = maker.random, maker.values, maker.sheet, maker.questions
    labelled = random.random() < 0.75
    written = []
    for kind in _CONTACTS:
        if random.random() < 0.4 or y > sheet.height - 14 or kind in ("mobile", "fax") and not labelled:
            continue
        value = {"email": values.email, "website": values.url}.get(kind, values.phone)()
        label = maker.one(f"contact {kind}") if labelled else ""
        label = f"{label}{random.choice((':', ' '))}".replace("::", ":") if label else ""
        text = style.printable(f"{label} {value}")
        if style.width(text) > sheet.width - 50 - (x if align == "left" else 0):
            continue
        line = sheet.write(text, x, y, style, align)
        printed = style.printable(value)
        if printed in line.text:
            name = _CONTACTS[kind]
            labels = [line.part(style.printable(label)).box] if label and style.printable(label) in line.text else []
            questions.add(questions.word("card contact", name=name), printed, [line.part(printed).box], labels)
            written.append(kind)
        y += step
    return written


@dataclass
class _Fields:
    """Writes fields of a card and records them."""

    maker: PageMaker
    label: Style
    value: Style
    case: str
    above: bool
    shown: list[Shown]

    def write(self, field: Field, x: float, y: float, room: float) -> float:
        """Writes one field; returns the next baseline."""
        values, sheet = self.maker.values, self.maker.sheet
        texts = values.address() if field.kind == "address" else [KINDS[field.kind](values)]
        label = sheet.write(cased(field.name, self.case) + ("" if self.above else ":"), x, y, self.label)
        left = x
        if self.above:
            y += self.value.size * 1.15
        else:
            left = label.box[2] + self.value.size * 0.5
        pieces: list[Piece] = []
        inner = max(x + room - left, self.value.size * 4)
        for text in texts:
            more, y = sheet.paragraph(text, left, y, inner, self.value, 1.15)
            pieces += more
        self.shown.append(Shown(field, [label], pieces, "above" if self.above else "left"))
        return y + self.value.size * (0.45 if self.above else 0.3)


def _fields(maker: PageMaker, ink: Colour, size: float) -> _Fields:
    random = maker.random
    family = maker.family(mono=0.15)
    above = random.random() < 0.5
    label = Style(family.regular, size * (0.72 if above else 1.0), ink)
    value = Style(family.bold if random.random() < 0.6 else family.regular, size, ink)
    return _Fields(maker, label, value, random.choice(("plain", "upper", "plain")), above, [])


@PAGES.register("id card")
def id_card(maker: PageMaker) -> None:
    """An identity card or licence with a picture and fields."""
    random, values = maker.random, maker.values
    layout = maker.arrange("id card")
    width = random.choice((720, 800, 860))
    ink, accent = _card(maker, width, int(width * 0.64))
    sheet, questions = maker.sheet, maker.questions
    fields = _fields(maker, ink, width * random.uniform(0.022, 0.03))
    top = 0.0
    head = Style(fields.value.face, width * random.uniform(0.032, 0.045), ink)
    if "band" in layout:
        top = head.size * 2.1
        sheet.rectangle(0, 0, width, top, fill=accent)
        head = head.inked(on(accent))
    issuer = random.choice((values.state(), values.country(), values.company()))
    issuer += " " if random.random() < 0.5 else " - "
    text = issuer + maker.one("card head")
    text = maker.shown(text, upper=0.5)
    title, end = sheet.paragraph(text, 24, head.size * 1.4, width - 48, head, 1.15)
    x, y = 28.0, max(top, end - head.size * 0.6) + fields.value.size * 1.6
    if "picture" in layout and layout != "no picture" or "band" in layout:
        side = width * 0.24
        left = width - side - 28 if layout == "picture right" else 28.0
        box = (left, y - fields.value.size, left + side, y - fields.value.size + side * 1.2)
        shade = maker.random.randint(150, 210)
        sheet.rectangle(*box, fill=(shade, shade, shade + 10))
        dark = (shade - 60, shade - 60, shade - 55)
        top, bottom = box[1] + side * 0.2, box[1] + side * 0.68
        sheet.ellipse(left + side * 0.3, top, left + side * 0.7, bottom, fill=dark)
        top, bottom = box[1] + side * 0.74, box[3] + side * 0.3
        sheet.ellipse(left + side * 0.12, top, left + side * 0.88, bottom, fill=dark)
        sheet.rectangle(left, box[3], left + side, box[3] + side * 0.32, fill=sheet.paper)
        x = 28.0 if layout == "picture right" else left + side + 24
    room = (width - 28 - x) if layout != "picture right" else width * 0.6
    domain = random.choice(listed("domains of id cards"))
    drawn = [field for field in maker.names.draw(domain, random.randint(5, 9)) if field.kind not in ("note",)]
    column, half = 0, room / 2
    for field in drawn:
        if y > sheet.height - fields.value.size * 3.2:
            break
        wide = field.kind in _WIDE or not fields.above
        if wide:
            y, column = fields.write(field, x, y, room), 0
        elif column == 0:
            bottom, column = fields.write(field, x, y, half - 10), 1
        else:
            y, column = max(bottom, fields.write(field, x + half, y, half - 10)), 0
            continue
        if column and field is not drawn[-1] and drawn[drawn.index(field) + 1].kind in _WIDE:
            y, column = bottom, 0
    ask_fields(maker, fields.shown, domain)
    questions.gist("kind of page", ("card", "an identity card", "ID card", "a card"))
    questions.gist("title", joined(title), title)


@PAGES.register("label")
def label(maker: PageMaker) -> None:
    """A label of a parcel, a product or a sample."""
    random, values = maker.random, maker.values
    layout = maker.arrange("label")
    width = random.choice((560, 640, 720))
    ink, _ = _card(maker, width, int(width * random.uniform(0.6, 1.2)))
    sheet, questions = maker.sheet, maker.questions
    fields = _fields(maker, ink, width * random.uniform(0.028, 0.042))
    y, x = fields.value.size * 2, 26.0
    sent = layout in ("address", "parcel", "boxed parcel")
    domain = "shipping note" if sent else random.choice(("order", "technical report", "patient record"))
    if layout in ("address", "parcel", "boxed parcel"):
        for concept in ("seller", "ship to"):
            names = term(random, concept, maker.split)
            mark = sheet.write(maker.shown(names[0], upper=0.5) + ":", x, y, fields.label)
            y += fields.value.size * 1.3
            style = fields.value if concept == "ship to" else Style(fields.label.face, fields.value.size * 0.85, ink)
            name = sheet.write(values.person() if random.random() < 0.6 else values.company(), x, y, style)
            lines = []
            for line in values.address():
                y += style.size * 1.25
                lines.append(sheet.write(line, x, y, style))
            who, where = ("who receives", "where sent") if concept == "ship to" else ("who sent", "sender's place")
            questions.ask(who, name, mark)
            questions.ask(where, lines, [mark, name])
            y += style.size * 1.5
            sheet.across(x, width - x, y - style.size * 0.4, ink)
            y += style.size
    else:
        head = Style(fields.value.face, fields.value.size * random.uniform(1.4, 2), ink)
        text = values.product()
        title, y = sheet.paragraph(text, x, y + head.size * 0.4, width - 52, head, 1.15)
        questions.gist("largest", joined(title), title)
        y += fields.value.size * 0.5
    drawn = [field for field in maker.names.draw(domain, random.randint(2, 6)) if field.kind not in ("note", "address")]
    bars = random.random() < 0.6
    bottom = sheet.height - (width * 0.2 if bars else 20)
    for field in drawn:
        if y + fields.value.size * 2.6 > bottom:
            break
        y = fields.write(field, x, y, width - 52)
    if not bars:
        sheet.height = int(min(sheet.height, max(y + 20, width * 0.4)))
    if bars and y < bottom + fields.value.size:
        _bar_code(maker, x, bottom + 6, width - 2 * x, width * 0.11, ink, fields.label)
    ask_fields(maker, fields.shown, domain) if fields.shown else ask_absent(maker, [], domain)
    questions.gist("kind of page", ("label", "a label"))


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
    width = random.choice((760, 860, 960)) if layout != "tall" else 460
    ink, accent = _card(maker, width, int(width * (random.uniform(0.34, 0.46) if layout != "tall" else 1.5)))
    sheet, questions = maker.sheet, maker.questions
    fields = _fields(maker, ink, width * random.uniform(0.02, 0.027) if layout != "tall" else 20)
    fields.above = layout != "simple"
    head = Style(maker.family(mono=0, display=0.3).bold, fields.value.size * random.uniform(1.6, 2.2), ink)
    if layout in ("boarding", "row"):
        sheet.rectangle(0, 0, width, head.size * 2, fill=accent)
        head = head.inked(on(accent))
    text = maker.one("ticket head")
    title, _ = sheet.paragraph(maker.shown(text, upper=0.5), 26, head.size * 1.4, width - 40, head, 1.1)
    y = head.size * 2 + fields.value.size * 1.6
    if random.random() < 0.5 and layout != "tall":
        name = maker.words.thing().title() if random.random() < 0.6 else maker.values.company()
        sheet.write(name, 26, y, Style(fields.value.face, fields.value.size * 1.3, ink))
        y += fields.value.size * 2
    domain = random.choice(("travel booking", "event registration"))
    drawn = maker.names.draw(domain, random.randint(5, 12))
    drawn = [field for field in drawn if field.kind not in ("note", "address")]
    columns = {"tall": 1, "stub": 3, "simple": 2}.get(layout, 4)
    right = width - 26 if layout != "stub" else width * 0.74
    room = (right - 26) / columns
    fits, style = room * (0.9 if fields.above else 0.5), fields.label
    fitting = [field for field in drawn if style.width(style.printable(field.name.upper())) < fits]
    for start in range(0, len(fitting), columns):
        if y + fields.value.size * 3.2 > sheet.height:
            break
        row = fitting[start : start + columns]
        y = max(fields.write(field, 26 + i * room, y, room - 12) for i, field in enumerate(row))
        y += fields.value.size * 0.4
    if layout == "stub":
        for at in range(0, sheet.height, 10):
            sheet.line((right + 10, at), (right + 10, at + 5), colour=ink)
        for i, shown in enumerate(random.sample(fields.shown, min(2, len(fields.shown)))):
            lines = Style(fields.value.face, fields.value.size * 0.9, ink).wrap(shown.text, width - right - 50)
            base = head.size * 2 + fields.value.size * (2 + 2 * i)
            sheet.write(lines[0], right + 26, base, Style(fields.value.face, fields.value.size * 0.9, ink))
    if layout == "framed":
        sheet.rectangle(6, 6, width - 7, sheet.height - 7, outline=accent, width=2)
    ask_fields(maker, fields.shown, domain)
    questions.gist("kind of page", ("ticket", "a ticket"))
    questions.gist("title", joined(title), title)


@PAGES.register("badge")
def badge(maker: PageMaker) -> None:
    """A name badge: a name in large print, a company or place, a job."""
    random, values = maker.random, maker.values
    layout = maker.arrange("badge")
    size = (480, 680) if layout == "tall" else (720, 480)
    ink, accent = _card(maker, *size)
    sheet, questions, middle = maker.sheet, maker.questions, size[0] / 2
    family = maker.family(mono=0.03, display=0.15)
    small = Style(family.regular, random.uniform(20, 28), ink)
    word = maker.one("badge")
    if layout == "band top":
        sheet.rectangle(0, 0, size[0], 90, fill=accent)
    elif layout == "band bottom":
        sheet.rectangle(0, size[1] - 90, size[0], size[1], fill=accent)
    elif layout == "frame":
        sheet.rectangle(8, 8, size[0] - 9, size[1] - 9, outline=accent, width=5)
    on_band: Colour = on(accent)
    kind_style = Style(family.bold, 30, on_band if layout.startswith("band") else accent)
    y = 56.0 if layout != "band bottom" else size[1] - 34.0
    role = sheet.write(word.upper(), middle, y, kind_style, "middle")
    y = 90 + (size[1] - 180) * 0.3
    name = values.person()
    big = Style(family.bold, 60, ink)
    while big.width(big.printable(name)) > size[0] - 50:
        big = Style(big.face, big.size * 0.9, ink)
    person = sheet.write(name, middle, y + 20, big, "middle")
    company, end = sheet.paragraph(values.company(), 20, y + 30 + small.size * 2, size[0] - 40, small, 1.2, "middle")
    questions.ask("card person", person)
    questions.ask("card company", company)
    if random.random() < 0.6 and end + small.size < size[1] - 90:
        y, style = end + small.size * 0.5, Style(family.italic, small.size * 0.9, ink)
        job, _ = sheet.paragraph(values.job(), 20, y, size[0] - 40, style, 1.2, "middle")
        questions.ask("card job", job)
    else:
        questions.lack("card job")
    questions.lack("card contact", name=random.choice(("phone number", "e-mail address", "website")))
    questions.gist("largest", person.text, [person])
    questions.gist("kind of page", ("name badge", "badge", "a name badge", "a badge"))
    if random.random() < 0.4:
        label, below = (person, company) if layout == "band bottom" else (role, [person])
        questions.beside("under", label, below)
