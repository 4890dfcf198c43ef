"""Screens: dashboards, windows with a table, profiles, and terminals."""

from __future__ import annotations

from collections.abc import Callable

from .fields import Field
from .maker import PAGES, PageMaker
from .pairs import Look, PairWriter, ask_fields
from .question_writer import spoken
from .screen_parts import ScreenSheet, draw_dialog, draw_list, draw_settings, draw_two_buttons
from .sheet import Style
from .tables import Table, TableLook


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
    drawn = Table(maker, columns, random.randint(4, most))
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
        draw_two_buttons(screen, screen.right - 30, y + size * 2)


@PAGES.register("screen")
def screen(maker: PageMaker) -> None:
    """A screen of an app."""
    shown = ScreenSheet(maker)
    shown.frame()
    drawing = {"dashboard": _dashboard, "window": _window, "profile": _profile}
    {"settings": draw_settings, "list": draw_list, "dialog": draw_dialog, **drawing}[shown.kind](shown)
    maker.questions.gist("kind of page", ("screen", "a screen", "screenshot", "a screenshot"))


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
    questions.gist("kind of page", ("terminal", "a terminal", "screenshot"))


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
        drawn = Table(maker, 3, random.randint(3, 7))
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
