"""Values in the formats of documents: amounts, dates, numbers, names, addresses and others.

A `Values` draws its formats once, as a document writes all dates in one format. `split` determines the possible formats
and names.
"""

from __future__ import annotations

import calendar
import datetime
import re
import string
from collections.abc import Callable
from functools import lru_cache, partialmethod
from random import Random

from faker.providers.address import Provider as _World
from faker.providers.address.de_DE import Provider as _GermanPlaces
from faker.providers.address.en_US import Provider as _Places
from faker.providers.job import Provider as _Jobs
from faker.providers.person.de_DE import Provider as _GermanPeople
from faker.providers.person.en_GB import Provider as _BritishPeople
from faker.providers.person.en_US import Provider as _People
from faker.providers.person.es_ES import Provider as _SpanishPeople
from faker.providers.person.fr_FR import Provider as _FrenchPeople

from .splits import Split, Words, alternatives, listed, pool, pools, share

_GROUPINGS = ((",", "."), (",", "."), (",", "."), ("", "."), (".", ","), ("", ","), (" ", ","), ("'", "."), (" ", "."))
MONTHS = calendar.month_name[1:]
_LANDS = (_People, _BritishPeople, _GermanPeople, _FrenchPeople, _SpanishPeople)


@lru_cache(maxsize=1)
def _names() -> dict[str, tuple[str, ...]]:
    """Names by kind, from faker."""
    _, cities = pools()["city"]
    made = (f"{last}{end}" for last in list(_People.last_names)[::4] for end in _Places.city_suffixes[::6])
    return {
        "first name": tuple(dict.fromkeys(name for land in _LANDS for name in land.first_names)),
        "last name": tuple(dict.fromkeys(name for land in _LANDS for name in land.last_names)),
        "city": tuple(dict.fromkeys((*cities, *_GermanPlaces.cities, *made))),
        "country": tuple(country for country in dict.fromkeys(_World.countries) if country.isascii()),
        "state": tuple(_Places.states),
        "job": tuple(job for job in dict.fromkeys(_Jobs.jobs) if len(job) < 32 and "/" not in job),
    }


class Values:
    """Draws values of a split in fixed formats."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split, self.words = random, split, Words(random, split)
        self.reformat()

    def _one(self, name: str) -> str:
        """One of a pool of pools.txt, or of faker's names."""
        names = _names()
        return self.random.choice(share(names[name], self.split, name) if name in names else pool(name, self.split))

    def reformat(self) -> None:
        """Draws new formats."""
        self.currency = self._one("currency") if self.random.random() < 0.7 else ""
        if self.split == "train" and self.random.random() < 0.4:
            self.currency = self.random.choice(("{}", "${}"))
        self.grouping = self.random.choice(share(_GROUPINGS[2:], self.split, "grouping", 3))
        if self.split == "train" and self.random.random() < 0.4:
            self.grouping = (",", ".")
        self.negative = self._one("negative")
        self.date_format = self._one("date")
        self.time_format = self._one("time")
        self.phone_format = self._one("phone")
        self.mail_company = ""

    # numbers

    def grouped(self, amount: float, decimals: int = 2) -> str:
        """A number with the document's separators."""
        thousands, point = self.grouping
        whole, _, rest = f"{abs(amount):,.{decimals}f}".partition(".")
        text = whole.replace(",", thousands) + (point + rest if rest else "")
        return self.negative.format(text) if amount < 0 else text

    def money(self, amount: float, decimals: int = 2, *, bare: bool = False) -> str:
        """An amount with the document's currency, or without one."""
        form = "{}" if bare or not self.currency else self.currency
        if amount < 0:
            return self.negative.format(form.format(self.grouped(-amount, decimals)))
        return form.format(self.grouped(amount, decimals))

    def price(self) -> float:
        return round(self.random.choice((3.0, 9.0, 25.0, 120.0)) * self.random.lognormvariate(0, 0.5), 2)

    def amount(self) -> str:
        """An amount of money of any size, sometimes negative."""
        size = 10 ** self.random.uniform(0.5, 6)
        decimals = 0 if size > 1e4 and self.random.random() < 0.5 else 2
        return self.money(-size if self.random.random() < 0.06 else size, decimals)

    def number(self) -> str:
        draw = self.random.random()
        if draw < 0.5:
            return str(self.random.randint(0, 10 ** self.random.randint(1, 3)))
        return self.grouped(10 ** self.random.uniform(1, 6), self.random.choice((0, 0, 1, 2)))

    def count(self) -> str:
        return str(self.random.randint(0, self.random.choice((5, 20, 100))))

    def percent(self) -> str:
        """Such as 7.5% or 20 %."""
        share_ = self.grouped(self.random.uniform(0.5, 99), self.random.choice((0, 0, 1, 2)))
        return share_ + self.random.choice(("%", "%", " %"))

    def measure(self) -> str:
        unit = self._one("unit")
        size = self.grouped(10 ** self.random.uniform(0, 3.5), self.random.choice((0, 0, 1, 2)))
        return f"{size}{'' if unit == '%' or self.random.random() < 0.2 else ' '}{unit}"

    def year(self) -> str:
        return str(self.random.randint(1950, 2030))

    # dates and times

    def day(self, first: int = 1975, last: int = 2030) -> datetime.datetime:
        """Any day and time."""
        start, end = datetime.datetime(first, 1, 1), datetime.datetime(last, 12, 31)
        return start + datetime.timedelta(seconds=self.random.randrange(int((end - start).total_seconds())))

    def date(self, when: datetime.datetime | None = None) -> str:
        """A date in the document's format."""
        return _written(when or self.day(), self.date_format)

    def time(self, when: datetime.datetime | None = None) -> str:
        """A time of day in the document's format."""
        return _written(when or self.day(), self.time_format)

    # people and places

    first_name, last_name = partialmethod(_one, "first name"), partialmethod(_one, "last name")
    city, country = partialmethod(_one, "city"), partialmethod(_one, "country")
    state, job = partialmethod(_one, "state"), partialmethod(_one, "job")

    def person(self) -> str:
        """A full name in one of several orders."""
        first, last = self.first_name(), self.last_name()
        draw = self.random.random()
        if draw < 0.6:
            return f"{first} {last}"
        initial = f"{self.random.choice(string.ascii_uppercase)}."
        forms = [f"{first} {initial} {last}", f"{initial} {last}", f"{last}, {first}", f"Dr. {first} {last}"]
        forms += [f"{first[0]}. {initial} {last}", f"{first} {last}-{self.last_name()}"]
        return self.random.choice(forms)

    def company(self) -> str:
        name = self.last_name() if self.random.random() < 0.55 else self.words.noun().capitalize()
        if self.random.random() < 0.15:
            name = self.words.made_up().capitalize()
        suffix, trade, two = self._one("suffix"), self._one("trade"), f"{name} & {self.last_name()}"
        forms = (f"{name} {suffix}", f"{name} {trade} {suffix}", f"{name} {trade}", two, f"{two} {suffix}")
        return self.random.choices(forms, (30, 35, 15, 10, 10))[0]

    def shop(self) -> str:
        kind, name = self._one("shop"), f"{self.words.adjective().capitalize()} {self.words.noun().capitalize()}"
        made_up = f"{self.words.made_up().capitalize()} {kind}"
        names = (f"{name} {kind}", f"{name} {kind}", f"{self.last_name()}'s {kind}", f"The {name}", made_up)
        return self.random.choice(names)

    def street(self) -> str:
        number = str(self.random.randint(1, self.random.choice((60, 400, 9999))))
        name = self.last_name() if self.random.random() < 0.6 else self.words.noun().capitalize()
        if self.random.random() < 0.15:
            return f"{name}{self.random.choice(('straße', 'weg', 'gasse', 'platz'))} {number}"
        return f"{number} {name} {self._one('street')}"

    def postcode(self) -> str:
        """A postcode of a random country."""
        forms = ("#####", "#####", "#####-####", "@@# #@@", "####", "@#@ #@#", "@@## #@@")
        return self.filled(self.random.choice(forms))

    def address(self) -> list[str]:
        """Lines of an address, two to four."""
        lines, city, code = [self.street()], self.city(), self.postcode()
        if self.random.random() < 0.2:
            extra = self.random.choice(("Suite {}", "Apt. {}", "Floor {}", "Unit {}", "Lot {}", "P.O. Box {}"))
            lines.insert(self.random.randint(0, 1), extra.format(self.random.randint(1, 400)))
        american = f"{city}, {self.random.choice(_Places.states_abbr)} {self.filled('#####')}"
        forms = ([american], [f"{code} {city}"], [city, code], [f"{city} {code}"])
        lines += self.random.choices(forms, (45, 30, 10, 15))[0]
        return lines + [self.country()] * (self.random.random() < 0.25)

    def full_address(self) -> str:
        """An address on one line."""
        return ", ".join(self.address())

    def place(self) -> str:
        """A town, sometimes with its state or country."""
        around = self.random.choice(("", "", "", f", {self.state()}", f", {self.country()}"))
        return self.city() + around

    # contacts and codes

    def filled(self, form: str) -> str:
        """A format with # replaced by digits and @ by capital letters."""
        signs = {"#": string.digits, "@": string.ascii_uppercase}
        text = "".join(self.random.choice(signs[char]) if char in signs else char for char in form)
        return "1" + text[1:] if form[0] == "#" and text[0] == "0" else text

    def phone(self) -> str:
        """A telephone number in the document's format."""
        return self.filled(self.phone_format)

    def code(self) -> str:
        """An identifier of letters and digits."""
        return self.filled(self._one("code"))

    def iban(self) -> str:
        """An IBAN, in groups of four or without spaces."""
        text = self.random.choice(("DE", "GB", "FR", "NL", "ES", "CH", "AT"))
        text += self.filled("#" * self.random.choice((18, 20, 22)))
        return " ".join(re.findall(".{1,4}", text)) if self.random.random() < 0.7 else text

    def email(self) -> str:
        first, last = self.first_name, self.last_name
        names = (f"{first()}.{last()}", f"{first()}{self.random.randint(1, 99)}", f"{first()[0]}{last()}")
        who = self.random.choice((*names, self.words.noun(), "info", "office", "sales", "contact"))
        return f"{_ascii(who)}@{self._domain()}".lower()

    def url(self) -> str:
        start = self.random.choice(("www.", "www.", "https://", "http://www.", ""))
        page = f"/{self.words.noun()}" if self.random.random() < 0.25 else ""
        host = _ascii(self.words.noun() + self.random.choice(("", self.words.noun())))
        return f"{start}{host}.{self.random.choice(('com', 'org', 'net', 'co.uk', 'de', 'io', 'eu'))}{page}"

    def _domain(self) -> str:
        form = self._one("mail")
        if not self.mail_company:
            self.mail_company = _ascii(self.last_name().lower() if self.random.random() < 0.5 else self.words.noun())
        return form.format(c=self.mail_company)

    # words

    def options(self) -> tuple[str, ...]:
        """Options of which one is ticked."""
        return self.random.choice(alternatives("choice", self.split))

    def choice(self) -> str:
        """One of `options`."""
        return self.random.choice(self.options())

    def words_(self) -> str:
        """One to three capitalised words."""
        text = self.words.thing()
        return text.title() if self.random.random() < 0.5 else text.capitalize()

    def note(self) -> str:
        """A remark of a few words or a sentence."""
        return self.words.sentence() if self.random.random() < 0.4 else f"{self.words.adjective()} {self.words.thing()}"

    def product(self) -> str:
        noun, adjective = self.words.noun(), self.words.adjective()
        names = (self._one("product"), f"{adjective} {noun}", f"{noun} {self.words.noun()}", noun)
        (text,) = self.random.choices(names, (35, 25, 25, 15))
        if self.random.random() < 0.15:
            text += " " + self.random.choice(listed("sizes of products"))
        return text.title() if self.random.random() < 0.7 else text.capitalize()


def _ascii(text: str) -> str:
    table = str.maketrans("äöüéèêáàíóúñçßâîô", "aoueeeaaiouncsaio")
    return re.sub("[^a-z0-9.]", "", text.lower().translate(table))


def _written(when: datetime.datetime, form: str) -> str:
    ending = "th" if 10 < when.day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(when.day % 10, "th")
    half = "am" if when.hour < 12 else "pm"
    form = form.replace("{th}", ending).replace("{ap}", half).replace("{a.m.}", f"{half[0]}.m.")
    # Not every system's strftime has these.
    bare = {"%-d": str(when.day), "%-m": str(when.month), "%-I": str((when.hour + 11) % 12 + 1)}
    for code, text in bare.items():
        form = form.replace(code, text)
    return when.strftime(form)


_METHODS = {"words": "words_", "address": "full_address", "first": "first_name", "last": "last_name"}
KINDS: dict[str, Callable[[Values], str]] = {
    kind: getattr(Values, _METHODS.get(kind, kind)) for kind in listed("kinds of values")
}
"""Functions that draw a value, by kind."""
