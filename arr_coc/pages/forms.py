"""Forms of a random domain: fields in sections, with a heading and a footer."""

from __future__ import annotations

from .letters import TextColumn
from .maker import PAGES, PageMaker
from .pairs import Look, PairWriter, ask_fields
from .sheet import Style


def draw_look(maker: PageMaker, layout: str, size: float) -> Look:
    """A random appearance for a layout: one family for labels, the same or another for values."""
    random = maker.random
    family = maker.family(mono=0.12)
    columns = 2 if layout.startswith("two") else 3 if layout.startswith("three") else 1
    mode = layout.split("columns ")[-1]
    ink = maker.ink()
    draw = random.random()
    face, colour, factor = family.regular, ink, 1.0
    if draw < 0.15:
        face, factor = maker.fonts.draw(random, "hand").regular, 1.2
        colour = random.choice(((20, 30, 120), (10, 10, 10), (30, 60, 150)))
    elif draw < 0.4:
        face = maker.fonts.draw(random, "mono").regular
    elif draw < 0.5:
        face = maker.family().regular
    elif draw < 0.62:
        face = family.bold
    label_face = family.bold if face is not family.bold and random.random() < 0.35 else family.regular
    small = random.uniform(0.7, 0.95) if mode.endswith("above") else random.choice((1.0, 1.0, 0.9))
    return Look(
        mode=mode,
        columns=columns,
        case=random.choice(("plain", "plain", "upper", "title")),
        label=Style(label_face, max(size * small, 9), random.choice((ink, ink, maker.accent()))),
        value=Style(face, size * factor, colour),
        colon=random.choice(("", "", ":") if mode.startswith("boxed a") else (":", ":", "", "", " :")),
        rule=random.choice(((0, 0, 0), (120, 120, 120), (180, 180, 180), maker.accent())),
        leading=random.uniform(1.9, 2.6),
        label_share=random.uniform(0.28, 0.42) if columns == 1 else random.uniform(0.36, 0.5),
        mark=random.choice(("cross", "tick", "radio", "fill")),
    )


@PAGES.register("form")
def form(maker: PageMaker) -> None:
    """A form of a random domain with filled fields."""
    random = maker.random
    width, height = random.choice(((724, 1024), (724, 1024), (791, 1024), (1024, 724), (640, 1024), (800, 620)))
    sheet = maker.open(width, height, maker.paper())
    layout = maker.arrange("form")
    size = random.choice((11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 18.0, 20.0))
    size = min(size, 15.0) if "two" in layout else min(size, 13.0) if "three" in layout else size
    look = draw_look(maker, layout, size)
    domain = maker.names.domain()
    margin = random.randint(24, 70)
    x, y, inner = float(margin), float(random.randint(24, 60)), float(width - 2 * margin)
    y = _heading(maker, look, domain, x, y, inner)
    writer = PairWriter(maker, look)
    bottom = height - random.randint(50, 100)
    count = random.randint(6, 24) * (look.columns if look.columns < 3 else 2)
    fields = maker.names.draw(domain, count)
    while fields and y + size * 5 < bottom:
        size_of_part = random.randint(3, 9) * look.columns
        part, fields = fields[:size_of_part], fields[size_of_part:]
        y = _section(maker, look, x, y, inner, first=not writer.shown)
        before = len(writer.shown)
        y = writer.grid(part, x, y, inner, bottom, empty=0.05) + size * random.uniform(0.4, 1.6)
        if len(writer.shown) == before:
            break
    if random.random() < 0.35 and y + size * 4 < bottom:
        note = look.label.sized(max(9, size * 0.8))
        _, y = sheet.paragraph(maker.words.text(random.randint(1, 5)), x, y + size * 1.2, inner, note)
    if y < height * 0.8 and random.random() < 0.75:
        sheet.height = int(max(y + size * random.uniform(3, 6), width * 0.45))
    _footer(maker, look, x, sheet.height - 16, inner)
    ask_fields(maker, writer.shown, domain)
    hand = maker.fonts.use(look.value.face.family) == "hand"
    if random.random() < (0.6 if hand else 0.12):
        maker.questions.gist("handwriting there", "yes" if hand else "no")
    if random.random() < 0.5 and not any(shown.options for shown in writer.shown):
        maker.questions.gist("how many fields", str(len(writer.shown)))


def _heading(maker: PageMaker, look: Look, domain: str, x: float, y: float, width: float) -> float:
    """Writes an organisation's name, the title and a line of explanation; returns the next y."""
    random, size = maker.random, look.value.size
    align = random.choice(("left", "middle", "middle"))
    face = look.label.face if random.random() < 0.6 else maker.family(display=0.2).bold
    heading = Style(face, random.uniform(1.3, 2.0) * min(size, 16), look.label.colour)
    small = look.label.sized(max(9.0, size * 0.8))
    column = TextColumn(maker, small, heading, x, y + small.size, width, 1.25)
    if random.random() < 0.4:
        column.write(maker.values.company(), align=align, after=0.1)
    if random.random() < 0.93:
        maker.title = column.write(maker.shown(maker.names.title(domain), upper=0.35), heading, align, after=0.1)
    if random.random() < 0.3:
        column.write(maker.words.sentence(), align=align)
    y = column.y - small.size * 0.7
    if random.random() < 0.4:
        maker.sheet.across(x, x + width, y, look.rule, random.choice((1, 2, 3)))
    return y + size * 0.6


def _section(maker: PageMaker, look: Look, x: float, y: float, width: float, first: bool) -> float:
    """Writes an optional section heading; returns the y of its fields."""
    random, size = maker.random, look.value.size
    if random.random() < (0.6 if first else 0.25):
        return y
    text = maker.one("section")
    style = look.label.sized(min(size, 16) * random.uniform(1.0, 1.25))
    base = y + style.size * 1.1
    if random.random() < 0.35:
        maker.sheet.rectangle(x, y, x + width, base + style.size * 0.5, fill=maker.tint())
        maker.sheet.write(text, x + 6, base, style.inked((0, 0, 0)))
    else:
        maker.sheet.write(text.upper() if look.case == "upper" else text, x, base, style)
        if random.random() < 0.5:
            maker.sheet.line((x, base + 5), (x + width, base + 5), colour=look.rule)
    return base + style.size * 0.8


def _footer(maker: PageMaker, look: Look, x: float, y: float, width: float) -> None:
    random, values = maker.random, maker.values
    if random.random() < 0.5:
        return
    numbers = {"n": random.randint(1, 3), "m": random.randint(3, 9), "code": values.code(), "date": values.date()}
    firm = {"company": values.company(), "phone": values.phone(), "url": values.url()}
    style, align = look.label.sized(10), random.choice(("left", "middle", "right"))
    maker.sheet.paragraph(maker.one("footer").format(**numbers, **firm), x, y, width, style, align=align)
