"""Screens: dashboards, tables, profiles, settings, lists of messages and dialogs, light and dark; and terminals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .fields import Field
from .maker import PAGES, PageMaker, on
from .pairs import Look, PairWriter, ask_fields
from .question_writer import TICK, TWO_PLACES, boxes_of, spoken
from .sheet import Colour, Piece, Style
from .splits import alternatives, listed
from .tables import DrawnTable, TableLook


@dataclass(frozen=True)
class ScreenColours:
    paper: Colour
    card: Colour
    ink: Colour
    faint: Colour
    rule: Colour
    accent: Colour


_SIZES = {
    "phone": ((480, 1024), (512, 1024), (576, 1024)),
    "wide": ((1024, 640), (1024, 768), (1024, 576)),
    "tall": ((768, 1024), (640, 960)),
    "side": ((1024, 640), (1024, 700)),
}
"""Widths and heights by shape, px."""


class ScreenSheet:
    """A screen's sheet, colours and styles."""

    def __init__(self, maker: PageMaker) -> None:
        self.maker, self.random, self.values, self.questions = maker, maker.random, maker.values, maker.questions
        random, accent, level = self.random, maker.accent(), self.random.randint(14, 44)
        self.kind, self.shape = maker.arrange("screen").split(" ", 1)
        width, height = random.choice(_SIZES[self.shape])
        if random.random() < 0.35:
            dim, card = (level, level, level + 4), (level + 18, level + 18, level + 24)
            bright: Colour = (min(255, accent[0] + 110), min(255, accent[1] + 110), min(255, accent[2] + 110))
            self.theme = ScreenColours(dim, card, (236, 236, 240), (165, 165, 172), (70, 70, 78), bright)
        else:
            light = (255, 255, 255) if random.random() < 0.6 else maker.tint()
            card = random.choice(((246, 247, 249), (255, 255, 255)))
            self.theme = ScreenColours(light, card, (25, 25, 28), (110, 110, 118), (212, 212, 218), accent)
        self.sheet = maker.open(width, height, self.theme.paper)
        maker.sharp = True
        family = maker.family(mono=0.04)
        size = random.uniform(16, 22) if self.shape == "phone" else random.uniform(12, 17)
        self.body, self.bold = maker.styles(family, size, self.theme.ink)
        self.small = Style(family.regular, max(9.5, size * 0.78), self.theme.faint)
        self.top, self.left, self.right = 0.0, 0.0, float(width)

    def frame(self) -> None:
        """Draws status bar or title bar, title and side bar."""
        if self.shape in ("phone", "tall"):
            self._status_bar()
        elif self.random.random() < 0.5:
            self._title_bar()
        if self.shape == "side":
            self._side_bar()
        self._title()

    def _status_bar(self) -> None:
        random, sheet, questions = self.random, self.sheet, self.questions
        style = (self.bold if random.random() < 0.5 else self.body) * 0.78
        y = style.size * 1.4
        own = random.random() < 0.8
        text = f"{random.randint(0, 23)}:{random.randint(0, 59):02d}" if own else self.values.time()
        time = sheet.write(text, 18, y, style)
        questions.ask("status time", time)
        if random.random() < 0.7:
            battery = sheet.write(f"{random.randint(1, 100)}%", sheet.width - 44, y, style, "right")
            questions.add(questions.word("battery"), (battery.text, battery.text[:-1]), [battery.box])
            top, ink = y - style.cap_height, self.theme.ink
            sheet.rectangle(sheet.width - 40, top, sheet.width - 18, y, outline=ink, radius=2)
        else:
            questions.lack("battery")
        if random.random() < 0.4:
            sheet.write(random.choice(("5G", "LTE", "4G", "Wi-Fi", "3G")), sheet.width - 100, y, style, "right")
        self.top = y + style.size * 0.8

    def _title_bar(self) -> None:
        random, sheet = self.random, self.sheet
        height = self.body.size * 2
        sheet.rectangle(0, 0, sheet.width, height, fill=self.theme.card)
        for i, colour in enumerate(((237, 106, 94), (245, 191, 79), (98, 197, 84))):
            box = (12 + i * 20, height / 2 - 6, 24 + i * 20, height / 2 + 6)
            sheet.ellipse(*box, fill=colour)
            sheet.mark("", box)
        if random.random() < 0.6:
            text, y = self.maker.words.thing().title(), height / 2 + self.small.cap_height / 2
            sheet.write(text, sheet.width / 2, y, self.small, "middle")
        self.top = height

    def _side_bar(self) -> None:
        random, sheet, questions = self.random, self.sheet, self.questions
        width = random.randint(150, 220)
        sheet.rectangle(0, self.top, width, sheet.height, fill=self.theme.card)
        entries = random.sample(self.maker.pool("menu"), min(len(self.maker.pool("menu")), random.randint(4, 8)))
        chosen, y = random.randrange(len(entries)), self.top + self.body.size * 2.5
        for i, entry in enumerate(entries):
            if i == chosen:
                top, bottom = y - self.body.size * 1.35, y + self.body.size * 0.65
                sheet.rectangle(8, top, width - 8, bottom, fill=self.theme.accent, radius=5)
                questions.ask("selected", sheet.write(entry, 20, y, self.body.inked(on(self.theme.accent, 400))))
            else:
                sheet.write(entry, 20, y, self.body)
            y += self.body.size * 2.1
        self.left = float(width)

    def _title(self) -> None:
        random, sheet, questions = self.random, self.sheet, self.questions
        text = self.maker.one("screen title") if random.random() < 0.7 else self.maker.words.thing().title()
        style = Style(self.bold.face, self.body.size * random.uniform(1.15, 1.9), self.theme.ink)
        y = self.top + style.size * 1.35
        bar = random.random() < 0.3
        if bar:
            sheet.rectangle(self.left, self.top, self.right, y + style.size * 0.65, fill=self.theme.accent)
            style = style.inked(on(self.theme.accent, 400))
        align = "middle" if random.random() < 0.3 else "left"
        x = (self.left + self.right) / 2 if align == "middle" else self.left + 22
        piece = sheet.write(text, x, y, style, align)
        questions.ask("screen title", piece)
        self.maker.title = [piece]
        self.top = y + style.size * (0.9 if bar else 0.5)


def _settings(screen: ScreenSheet) -> None:
    """Settings: names at the left, values or switches at the right; or values below names."""
    random, maker, sheet, questions = screen.random, screen.maker, screen.sheet, screen.questions
    missing, *names = random.sample(maker.pool("setting"), len(maker.pool("setting")))
    switches = random.sample(maker.pool("switch"), len(maker.pool("switch")))
    under = random.random() < 0.35
    x, right, y = screen.left + 22, screen.right - 22, screen.top + screen.body.size * 0.5
    value = screen.small if under else screen.body.inked(screen.theme.faint)
    leading = random.uniform(2.2, 2.9)
    look = Look("above" if under else "left", screen.body, value, leading=leading, label_share=0.55, right=not under)
    writer = PairWriter(maker, look)
    for _ in range(random.randint(5, 14)):
        draw = random.random()
        if draw < 0.35 and switches:
            y += screen.body.size * leading
            name, ticked = switches.pop(), random.random() < 0.5
            label = sheet.write(name, x, y - writer.look.drop, screen.body)
            _switch(screen, right, label.base, ticked)
            if random.random() < 0.6:
                box = (label.box[0], label.box[1], right, label.box[3])
                text = questions.word("switch", name=name)
                questions.add(text, "on" if ticked else "off", [box], [label.box], TICK)
        else:
            name = names.pop() if names and draw < 0.8 else maker.names.invented().name
            kind = random.choice(listed("values of settings"))
            y = writer.grid([Field((name,), kind)], x, y, right - x)
        if random.random() < 0.9:
            sheet.across(x, right, y, screen.theme.rule)
        if y > sheet.height - screen.body.size * 5:
            break
    for each in writer.shown:
        questions.ask("setting", each.value, each.label, name=each.field.name)
    for each in writer.shown[:1]:
        questions.beside("under" if under else "right", each.label[-1], each.value)
        questions.inverse(each.label[-1], each.value)
    questions.lack("setting", name=missing)


def _switch(screen: ScreenSheet, right: float, y: float, on: bool) -> None:
    size, sheet = screen.body.size, screen.sheet
    top, bottom = y - size * 0.95, y + size * 0.25
    left = right - size * 2.2
    sheet.mark("[on]" if on else "[off]", (left, top, right, bottom))
    sheet.rectangle(left, top, right, bottom, fill=screen.theme.accent if on else screen.theme.rule, radius=size * 0.6)
    start = right - size * 1.15 if on else left + 2
    sheet.ellipse(start, top + 2, start + size * 1.1 - 2, bottom - 2, fill=(255, 255, 255))


def _list(screen: ScreenSheet) -> None:
    """People or things with a line of text and a time or price each."""
    random, values, maker, sheet, questions = screen.random, screen.values, screen.maker, screen.sheet, screen.questions
    people, picture = random.random() < 0.6, random.random() < 0.6
    step = screen.body.size * random.uniform(3.3, 4.2)
    x, right, y = screen.left + 22, screen.right - 22, screen.top + step * 0.6
    start = x + (screen.body.size * 3.2 if picture else 0)
    entries: list[tuple[Piece, Piece, Piece]] = []
    while y < sheet.height - step * 0.7 and len(entries) < 12:
        name = values.person() if people else values.product()
        if any(name == entry[0].text for entry in entries):
            continue
        tail = (values.time() if random.random() < 0.8 else values.date()) if people else values.money(values.price())
        end = sheet.write(tail, right, y, screen.small if people else screen.body, "right")
        if picture:
            side = screen.body.size * 2.4
            top, colour = y - screen.body.size, maker.tint if sum(screen.theme.paper) < 300 else maker.accent
            sheet.ellipse(x, top, x + side, top + side, fill=colour())
        style = screen.bold if random.random() < 0.5 else screen.body
        if style.width(style.printable(name)) > end.box[0] - start - 10:
            name = name.split(" ")[0]
        title = sheet.write(name, start, y, style)
        text = maker.words.sentence() if people else f"{maker.words.adjective()} {maker.words.noun()}"
        line = screen.small.wrap(text, right - start - 20)[0]
        below = sheet.write(line, start, y + screen.small.size * 1.55, screen.small)
        entries.append((title, below, end))
        sheet.across(start, right, y + step * 0.62, screen.theme.rule)
        y += step
    names = [title.text for title, _, _ in entries]
    single = [entry for entry in entries if names.count(entry[0].text) == 1]
    for title, below, end in random.sample(single, min(4, len(single))):
        if people:
            questions.ask("message time", end, title, name=title.text)
            questions.ask("message from", below, title, name=title.text)
        else:
            questions.ask("price", end, title, item=title.text, itemlabel=title.text)
            questions.beside("under", title, [below])
    other = values.person() if people else values.product()
    if other not in names:
        questions.lack("message time" if people else "price", name=other, item=other, itemlabel=other)
    questions.gist("how many entries", str(len(entries)))


def _dialog(screen: ScreenSheet) -> None:
    """A box in the middle with a message and two buttons."""
    random, values, maker, sheet, questions = screen.random, screen.values, screen.maker, screen.sheet, screen.questions
    width = min(sheet.width * 0.8, screen.body.size * random.uniform(22, 30))
    left = (sheet.width - width) / 2
    top = max(screen.top + 20, sheet.height * random.uniform(0.25, 0.4))
    file = f"{maker.words.noun()}.{random.choice(('pdf', 'txt', 'docx', 'png', 'xlsx', 'zip', 'csv'))}"
    parts = {"file": file, "thing": maker.words.noun().capitalize(), "amount": values.money(values.price())}
    parts |= {"host": values.url(), "count": str(random.randint(2, 90)), "date": values.date(), "mail": values.email()}
    text = maker.one("dialog").format(**parts, size=values.measure(), code=values.code())
    inner = width - 2 * screen.body.size * 1.3
    rows = len(screen.body.wrap(text, inner))
    has_title = random.random() < 0.6
    height = screen.body.size * (3.2 + 1.35 * rows + 2.2 * has_title + 2)
    background = screen.theme.card if sum(screen.theme.paper) < 300 else (255, 255, 255)
    sheet.rectangle(left + 4, top + 5, left + width + 4, top + height + 5, fill=screen.theme.rule, radius=8)
    sheet.rectangle(left, top, left + width, top + height, fill=background, outline=screen.theme.rule, radius=8)
    x, y = left + screen.body.size * 1.3, top + screen.body.size * 2.2
    if has_title:
        head = random.choice((maker.words.thing().capitalize(), "Warning", "Confirm", "Error", "Attention", "Update"))
        title = sheet.write(head, x, y, Style(screen.bold.face, screen.body.size * 1.15, screen.theme.ink))
        y += screen.body.size * 2
        questions.ask("title", title)
    message, y = sheet.paragraph(text, x, y, inner, screen.body, 1.35)
    questions.ask("dialog asks", message)
    _buttons(screen, left + width - screen.body.size * 1.2, y + screen.body.size * 1.2)


def _buttons(screen: ScreenSheet, right: float, y: float) -> None:
    random, sheet, questions, theme, size = (
        screen.random,
        screen.sheet,
        screen.questions,
        screen.theme,
        screen.body.size,
    )
    pieces = []
    for i, name in enumerate(random.choice(alternatives("button", screen.maker.split))):
        wide = screen.bold.width(screen.bold.printable(name)) + size * 1.6
        fill, colour = (None, theme.ink) if i else (theme.accent, on(theme.accent, 400))
        top, bottom = y - size * 1.3, y + size * 0.6
        sheet.rectangle(right - wide, top, right, bottom, fill=fill, outline=theme.rule, radius=4)
        pieces.append(sheet.write(name, right - wide / 2, y, screen.bold.inked(colour), "middle"))
        right -= wide + size * 0.7
    answers = tuple(one.text + sign + two.text for one, two in (pieces[::-1], pieces) for sign in (" and ", ", "))
    questions.add(questions.word("buttons"), answers, boxes_of(pieces[::-1]), kind=TWO_PLACES)
    questions.beside("right", pieces[1], pieces[:1])


def _dashboard(screen: ScreenSheet) -> None:
    """Tiles with a number and a name."""
    random, values, maker, sheet, questions = screen.random, screen.values, screen.maker, screen.sheet, screen.questions
    columns = 2 if screen.shape in ("phone", "tall") else random.choice((3, 4))
    names = random.sample(maker.pool("tile"), min(len(maker.pool("tile")), columns * random.randint(1, 3)))
    while len(names) < columns * 2:
        names.append(maker.names.invented().name)
    gap, x = 16, screen.left + 20
    wide = (screen.right - 20 - x - gap * (columns - 1)) / columns
    high = screen.body.size * 5.2
    number = Style(screen.bold.face, min(screen.body.size * random.uniform(1.5, 2.2), wide / 7), screen.theme.ink)
    above = random.random() < 0.5
    kinds: tuple[Callable[[], str], ...] = (values.amount, values.number, values.percent, values.measure, values.count)
    for i, name in enumerate(names):
        left, top = x + (i % columns) * (wide + gap), screen.top + 16 + (i // columns) * (high + gap)
        if top + high > sheet.height:
            break
        sheet.rectangle(left, top, left + wide, top + high, fill=screen.theme.card, outline=screen.theme.rule, radius=6)
        bases = (top + high * 0.36, top + high * 0.78) if above else (top + high * 0.76, top + high * 0.46)
        value = random.choice(kinds)()
        if number.width(number.printable(value)) > wide - 28:
            value = values.count()
        label = sheet.write(name, left + 14, bases[0], screen.small)
        piece = sheet.write(value, left + 14, bases[1], number)
        questions.ask("tile", piece, label, name=spoken(name))
        if random.random() < 0.3:
            questions.beside("under" if above else "above", label, [piece])
    missing = [name for name in maker.pool("tile") if name not in names]
    questions.lack("tile", name=spoken(random.choice(missing)) if missing else maker.words.thing())


def _window(screen: ScreenSheet) -> None:
    """A table of records."""
    random, maker, sheet = screen.random, screen.maker, screen.sheet
    columns = 2 if screen.shape == "phone" else random.randint(3, 5)
    room, body = screen.right - screen.left - 40, Style(screen.body.face, min(screen.body.size, 15), screen.theme.ink)
    most = max(5, int((sheet.height - screen.top - 60) / (body.size * 2.6)))
    drawn = DrawnTable(maker, columns, random.randint(4, most))
    kind = random.choice(("horizontal rules", "head rule", "plain"))
    head = Style(screen.bold.face, body.size * 0.92, screen.theme.faint)
    look = TableLook(kind, screen.theme.rule, screen.theme.card, 0.5, head, body, body, 2.0)
    aligns = ["left", *("right" if column.numbers else "left" for column in drawn.columns)]
    drawn.write(look, screen.left + 20, screen.top + 10, room, aligns)
    drawn.ask()


def _profile(screen: ScreenSheet) -> None:
    """A form with inputs, names above or beside them."""
    random, sheet, maker, size = screen.random, screen.sheet, screen.maker, screen.body.size
    domain = maker.names.domain()
    drawn = maker.names.draw(domain, random.randint(4, 9))
    fields = [field for field in drawn if field.kind not in ("address", "note")]
    above = screen.shape == "phone" or random.random() < 0.5
    label = screen.small.sized(size * 0.85) if above else screen.body
    mode, leading = ("above boxed value", 2.6) if above else ("boxed value", random.uniform(2.0, 2.5))
    writer = PairWriter(maker, Look(mode, label, screen.body, rule=screen.theme.rule, leading=leading))
    x, width = screen.left + 30, min(screen.right - screen.left - 60, size * random.uniform(26, 44))
    y = writer.grid(fields, x, screen.top + size * 0.5, width, sheet.height)
    ask_fields(maker, writer.shown, domain)
    if y + size * 4 < sheet.height:
        _buttons(screen, screen.right - 30, y + size * 2)


_KINDS = {
    "settings": _settings,
    "list": _list,
    "dialog": _dialog,
    "dashboard": _dashboard,
    "window": _window,
    "profile": _profile,
}


@PAGES.register("screen")
def screen(maker: PageMaker) -> None:
    """A screen of an app."""
    shown = ScreenSheet(maker)
    shown.frame()
    _KINDS[shown.kind](shown)


_TERMINALS = (
    ((0, 0, 0), (230, 230, 230)),
    ((30, 30, 30), (212, 212, 212)),
    ((40, 42, 54), (248, 248, 242)),
    ((0, 43, 54), (147, 161, 161)),
    ((255, 255, 255), (0, 0, 0)),
    ((12, 12, 12), (60, 230, 90)),
    ((48, 10, 36), (240, 240, 240)),
)
"""Colours of paper and ink."""


@PAGES.register("terminal")
def terminal(maker: PageMaker) -> None:
    """A terminal with commands and what they print."""
    random, values, questions = maker.random, maker.values, maker.questions
    maker.arrange("terminal")
    paper, ink = random.choice(_TERMINALS)
    sheet = maker.open(*random.choice(((1024, 640), (900, 560), (800, 500), (1024, 768))), paper)
    maker.sharp = True
    body = Style(maker.fonts.draw(random, "mono").regular, random.uniform(12, 18), ink)
    green = body.inked(random.choice((ink, (80, 200, 120), (90, 160, 250))) if sum(paper) < 400 else ink)
    leading, x = random.choice((1.2, 1.3, 1.4)), 14.0
    mode = "left" if maker.layout == "pairs aligned" else "after"
    colon = {"pairs equals": " =", "pairs aligned": ""}.get(maker.layout, ":")
    writer = PairWriter(maker, Look(mode, body, body, colon=colon, leading=leading, label_share=0.35))
    noun, first, last = maker.words.noun, values.first_name, values.last_name
    one, two, root = f"{first().lower()}@{noun()}:~$", f"[{last().lower()}@{noun()} ~]$", f"root@{noun()}:/#"
    prompt_text = random.choice((one, two, root, f"{noun()}:~ {noun()}$", f"C:\\{noun().capitalize()}>"))
    step, y = body.size * leading, body.size * 1.6
    for i, command in enumerate(random.sample(maker.pool("command"), min(3, random.randint(2, 6)))):
        host = values.url().split("/")[-1] or "localhost"
        file = f"{noun()}.{random.choice(('py', 'log', 'txt', 'sh'))}"
        prompt = sheet.write(prompt_text, x, y, green)
        text = command.format(host=host, file=file, name=noun())
        typed = sheet.write(text, prompt.box[2] + body.size * 0.6, y, body)
        if i == 0:
            questions.ask("command", typed, prompt)
            questions.ask("prompt", prompt)
        y = _output(maker, writer, x, y + step, first=i == 0)
        if y > sheet.height - step * 6:
            break
    if y < sheet.height - step:
        end = sheet.write(prompt_text, x, y, green)
        sheet.rectangle(end.box[2] + 8, y - body.cap_height, end.box[2] + 8 + body.size * 0.55, y + 2, fill=ink)
        if random.random() < 0.6:
            sheet.height = int(min(sheet.height, max(y + step * 2, sheet.width * 0.4)))
    names = [each.field.concept for each in writer.shown]
    for each in writer.shown:
        if names.count(each.field.concept) == 1:
            questions.ask("output", each.value, each.label, name=spoken(each.field.concept))
    missing = [name for name in maker.pool("output") if name not in names]
    for name in [*random.sample(missing, min(2, len(missing))), noun()][:2]:
        questions.lack("output", name=spoken(name))


def _output(maker: PageMaker, writer: PairWriter, x: float, y: float, *, first: bool) -> float:
    """Writes what a command prints, from the baseline y on; returns the next baseline."""
    random, values, sheet, layout, body = maker.random, maker.values, maker.sheet, maker.layout, writer.look.value
    step, width = body.size * writer.look.leading, sheet.width - 2 * x
    if layout.startswith("log"):
        for _ in range(min(random.randint(3, 9), int((sheet.height - y) / step))):
            level = random.choice(("INFO", "WARN", "ERROR", "DEBUG")) + " " if layout == "log levels" else ""
            sheet.write(body.wrap(f"{values.time()} {level}{maker.words.sentence()}", width)[0], x, y, body)
            y += step
    if layout == "table" and first:
        drawn = DrawnTable(maker, 3, random.randint(3, 7))
        look = TableLook("plain", (0, 0, 0), (0, 0, 0), 0.4, body, body, body, writer.look.leading, False)
        bottom = drawn.write(look, x, y - step, width, ["left"] * 4, case=str.upper)
        drawn.ask()
        return bottom + step
    kinds = (values.number, values.percent, values.measure, values.code, values.date, values.time, values.count)
    there = [each.field.concept for each in writer.shown]
    names = [name for name in maker.pool("output") if name not in there]
    chosen = random.sample(names, min(len(names), random.randint(3, 9)))
    chosen += [maker.names.invented().name for _ in range(random.randint(0, 2) + 2 * (len(chosen) < 3))]
    fields = []
    for name in chosen:
        printed_name = name.lower().replace(" ", "_") if layout == "pairs equals" else name
        value = random.choice((*kinds, maker.words.noun, values.url))()
        fields.append(Field((printed_name,), "words", name, (value,)))
    top = y - step + writer.look.drop
    return writer.grid(fields, x, top, width, sheet.height - step, tall=2) + step - writer.look.drop
