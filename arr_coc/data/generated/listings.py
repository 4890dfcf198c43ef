"""Lists by time or name: programmes, directories, contents."""

# ruff: noqa: E501, SIM905 (lists are readable as running text)
from __future__ import annotations

import datetime
from collections.abc import Callable

from ..splits import share
from .asking import SPREAD, boxes_of
from .page import PAGES, PageMaker
from .sheet import Piece, Sheet, Style, joined

_SCHEDULES = ("time left", "time right", "rooms", "ruled", "dotted", "two lines", "boxed")


_SCHEDULE_TITLES = (
    "Programme",
    "Schedule",
    "Agenda",
    "Timetable",
    "Departures",
    "Course plan",
    "Conference programme",
    "Opening hours",
    "Events",
    "Itinerary",
    "Order of the day",
    "Calendar of events",
)


_DIRECTORY_TITLES = (
    "Directory",
    "Telephone list",
    "Staff directory",
    "Phone book",
    "Contact list",
    "Extensions",
    "Members",
    "Who is who",
    "Address list",
    "Emergency numbers",
    "Suppliers",
)


_CONTENTS_TITLES = (
    "Contents",
    "Table of contents",
    "Index",
    "List of chapters",
    "Chapters",
    "In this issue",
    "Overview of sections",
)


_ROOMS = (
    "Room {n}",
    "Hall {l}",
    "{n}",
    "Room {l}{n}",
    "Stage {l}",
    "Track {n}",
    "Floor {n}",
    "Studio {n}",
    "Lab {l}",
    "Theatre {l}",
)


@PAGES.register("schedule")
def schedule(maker: PageMaker) -> None:
    """A programme by time, with or without rooms."""
    random, values = maker.random, maker.values
    layout, asker = maker.arrange(_SCHEDULES, "schedule", 3), maker.asker
    sheet, body, bold, x, width, y = _listing(maker, _SCHEDULE_TITLES, "schedule title")
    day = values.day(2015, 2029).replace(hour=random.randint(6, 10), minute=random.choice((0, 15, 30)))
    rooms = layout in ("rooms", "ruled") or random.random() < 0.4
    form = random.choice(share(_ROOMS, maker.split, "room", 3))
    entries: list[tuple[Piece, list[Piece], Piece | None]] = []
    step = body.size * random.uniform(1.7, 2.8)
    taken: set[str] = set()
    while y + step < sheet.height - 30 and len(entries) < random.randint(6, 16):
        name = random.choice(
            (
                maker.words.thing().capitalize(),
                f"{values.person()}: {maker.words.noun()}",
                f"{maker.words.adjective()} {maker.words.noun()}".capitalize(),
                values.city(),
            )
        )
        if name.casefold() in taken:
            continue
        taken.add(name.casefold())
        time = values.time(day)
        day += datetime.timedelta(minutes=random.choice((15, 30, 45, 60, 90)))
        room_x = x + width * 0.78
        if layout == "time right":
            when = sheet.write(time, x + width, y, body, "right")
            start, room_x = x, x + width * 0.6
        else:
            when = sheet.write(time, x, y, bold)
            start = x + max(body.size * 7, when.box[2] - x + body.size)
        text, end = sheet.paragraph(
            name,
            start,
            y,
            (room_x if rooms else when.box[0] if layout == "time right" else x + width) - start - 14,
            body,
            1.2,
        )
        place = None
        if rooms:
            where = form.format(n=random.randint(1, 40), l=random.choice("ABCDEF"))
            if layout == "two lines":
                place = sheet.write(where, start, end, Style(body.face, body.size * 0.85, body.colour))
                end += body.size * 1.2
            else:
                place = sheet.write(where, room_x, y, body)
        entries.append((when, text, place))
        if layout in ("ruled", "boxed"):
            sheet.line(
                (x, round(max(end - body.size * 0.6, y + step * 0.4))),
                (x + width, round(max(end - body.size * 0.6, y + step * 0.4))),
                colour=(170, 170, 170),
            )
        y = max(y + step, end + body.size * 0.5)
    _finish(maker, y)
    times = [when.text for when, _, _ in entries]
    for when, text, place in random.sample(entries, min(5, len(entries))):
        name = joined(text)
        asker.add(asker.word("event time", name=name), when.text, [when.box], boxes_of(text))
        if place and random.random() < 0.6:
            asker.add(asker.word("event place", name=name), place.text, [place.box], boxes_of(text))
        if times.count(when.text) == 1 and random.random() < 0.5:
            asker.add(asker.word("event at", time=when.text), name, boxes_of(text), [when.box])
    for word, (when, text, _) in (("event first", entries[0]), ("event last", entries[-1])):
        asker.add(asker.word(word), joined(text), boxes_of(text), [when.box], SPREAD)
    asker.absent(asker.word("event time", name=maker.words.thing()))
    if not rooms:
        asker.absent(asker.word("event place", name=joined(entries[0][1])))
    asker.gist("how many entries", str(len(entries)))
    asker.gist("kind of page", ("schedule", "a schedule", "programme", "timetable"))


@PAGES.register("directory")
def directory(maker: PageMaker) -> None:
    """Names with numbers: telephones, or pages of chapters."""
    random, values = maker.random, maker.values
    layout, asker = (
        maker.arrange(("leaders", "plain", "ruled", "two columns", "near", "numbered"), "directory", 2),
        maker.asker,
    )
    chapters = random.random() < 0.35
    sheet, body, _, x, width, top = _listing(
        maker, *((_CONTENTS_TITLES, "contents title") if chapters else (_DIRECTORY_TITLES, "directory title"))
    )
    columns = 2 if layout == "two columns" else 1
    room = (width - 30 * (columns - 1)) / columns
    if columns == 1:
        room = min(room, body.size * random.uniform(26, 44))
    step = body.size * random.uniform(1.4, 2.2)
    entries: list[tuple[Piece, Piece]] = []
    page, bottom = random.randint(1, 9), top
    name_of: Callable[[], str] = (
        (lambda: maker.words.thing().capitalize())
        if chapters
        else values.person
        if random.random() < 0.7
        else values.company
    )
    for column in range(columns):
        left, y = x + column * (room + 30), top
        for _ in range(random.randint(6, 30)):
            name = name_of()
            number = str(page) if chapters else values.phone()
            page += random.randint(1, 14)
            start = left
            if layout == "numbered":
                start = left + body.size * 2
            if (
                y > sheet.height - 40
                or body.width(body.printable(name + number)) + body.size * 4 > room
                or any(name == one.text for one, _ in entries)
            ):
                continue
            if layout == "numbered":
                sheet.write(f"{len(entries) + 1}.", left, y, body)
            who = sheet.write(name, start, y, body)
            what = (
                sheet.write(number, who.box[2] + body.size, y, body)
                if layout == "near"
                else sheet.write(number, left + room, y, body, "right")
            )
            if layout == "leaders":
                for dot in range(round(who.box[2] + 6), round(what.box[0] - 6), 6):
                    sheet.rectangle(dot, y - 1, dot + 0.6, y, fill=body.colour)
            elif layout == "ruled":
                sheet.line((left, round(y + step * 0.3)), (left + room, round(y + step * 0.3)), colour=(180, 180, 180))
            entries.append((who, what))
            y += step
        bottom = max(bottom, y)
    _finish(maker, bottom)
    numbers = [what.text for _, what in entries]
    for who, what in random.sample(entries, min(6, len(entries))):
        asker.add(
            asker.word("chapter page" if chapters else "listed number", name=who.text), what.text, [what.box], [who.box]
        )
        if numbers.count(what.text) == 1 and not chapters and random.random() < 0.4:
            asker.add(asker.word("number of whom", number=what.text), who.text, [who.box], [what.box])
    for _ in range(2):
        other = name_of()
        if all(other != who.text for who, _ in entries):
            asker.absent(asker.word("chapter page" if chapters else "listed number", name=other))
    asker.gist("how many entries", str(len(entries)))
    asker.gist(
        "kind of page",
        ("contents", "table of contents") if chapters else ("directory", "a directory", "list", "a list"),
    )


def _listing(maker: PageMaker, titles: tuple[str, ...], salt: str) -> tuple[Sheet, Style, Style, float, float, float]:
    """A sheet with a title; returns it, the body's style, its bold, left margin, width and the first baseline."""
    random = maker.random
    width, height = random.choice(((724, 1024), (800, 800), (1024, 640), (600, 900)))
    sheet = maker.open(width, height, maker.paper())
    family = maker.family(mono=0.1)
    body = maker.style(family.regular, random.uniform(11, 17))
    margin = float(random.randint(30, 80))
    y = float(random.randint(40, 70))
    words = (
        random.choice(share(titles, maker.split, salt, 3))
        if random.random() < 0.6
        else f"{maker.words.noun()} {random.choice(share(titles, maker.split, salt, 3))}".title()
    )
    style = Style(
        maker.family(display=0.2).bold if random.random() < 0.5 else family.bold,
        body.size * random.uniform(1.3, 2.1),
        maker.accent() if random.random() < 0.3 else body.colour,
    )
    title, y = sheet.paragraph(words, margin, y, width - 2 * margin, style, 1.2, random.choice(("left", "middle")))
    maker.asker.gist("title", joined(title), title)
    if random.random() < 0.4:
        sheet.write(maker.values.date(), margin, y, body)
        y += body.size * 1.4
    return sheet, body, Style(family.bold, body.size, body.colour), margin, width - 2 * margin, y + body.size * 0.8


def _finish(maker: PageMaker, y: float) -> None:
    if y < maker.sheet.height * 0.85 and maker.random.random() < 0.6:
        maker.sheet.height = int(y + 30)
