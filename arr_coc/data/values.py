"""What synthetic documents say: field names, pools of names and cities, and seeded generators of values by kind."""

# ruff: noqa: SIM905 (word pools are readable as running text, not as a thousand quoted strings)
from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

Split = Literal["train", "test"]

FIELDS: tuple[str, ...] = tuple(
    """total subtotal tax tip date time name phone city code order invoice price quantity seat gate flight train
    platform room floor table ticket bus lane dock batch lot serial model weight height width speed temp voltage pin zip
    unit account""".split()
)

FIRST_NAMES: tuple[str, ...] = tuple(
    """Aaron Abel Ada Adam Adele Adrian Agnes Ahmed Aiko Aisha Akira Alan Albert Alejandro Alex Alfred Ali Alice Alina
    Alma Amara Amelia Amir Amy Ana Anders Andrea Andrew Angela Anika Anita Anna Anton Antonio Anya Ari Arjun Arthur Asha
    Astrid Aurora Ava Axel Barbara Beatrice Bella Ben Bianca Bjorn Boris Brenda Brian Bruno Camila Carl Carlos Carmen
    Carol Cecilia Chen Chiara Chloe Chris Clara Claude Colin Connor Cora Cyrus Daisy Dalia Dana Daniel Daria David
    Deborah Denis Derek Diana Diego Dimitri Dina Dmitri Donald Dora Dylan Edgar Edith Edward Elena Eli Elias Elif Elisa
    Ella Emil Emily Emma Enzo Eric Erika Ernest Esther Ethan Eva Evelyn Fabian Fatima Felix Fernando Fiona Flora
    Francesca Frank Freya Gabriel Gemma George Gina Giulia Gloria Gordon Grace Greta Gustav Hana Hannah Hans Harold
    Harry Hassan Hector Heidi Helen Henry Hiro Hugo Ian Ibrahim Ida Igor Ines Ingrid Ira Irene Iris Isaac Isabel Ivan
    Ivy Jack Jacob Jada James Jamila Jan Jane Jasmine Jason Javier Jean Jenna Jerome Jesse Jin Joan Joel Johan John
    Jonas Jorge Josef Joy Juan Judith Julia Jun Kai Kamal Karen Karim Karl Kate Keiko Kenji Kevin Khalid Kim Kira Klaus
    Kofi Kurt Kwame Kyle Lara Lars Laura Layla Lea Leila Lena Leo Leon Li Liam Lidia Lin Linda Lisa Liu Lola Louis Lucas
    Lucia Luigi Luis Luka Luna Lydia Magda Maja Malik Manuel Mara Marco Margaret Maria Marina Mario Mark Marta Martin
    Mateo Matilda Maya Mei Mia Michael Miguel Mila Milan Mina Miriam Mohan Mona Monica Nadia Naomi Natasha Nathan Nia
    Nico Nikolai Nils Nina Noah Noor Nora Oleg Olga Oliver Olivia Omar Oscar Otto Owen Pablo Paola Patrick Paul Pedro
    Penny Petra Philip Pia Pierre Priya Quentin Quinn Rachel Rafael Rahul Raj Ramon Rania Ravi Raymond Rebecca Rene Rita
    Robert Rocco Roger Rosa Ruben Ruth Ryan Sabine Salma Sam Samir Sandra Sara Sasha Sean Selma Sergei Simon Sofia Sonia
    Stefan Stella Sunil Susan Sven Tadeo Tamara Tara Tariq Teresa Theo Thomas Tina Tobias Tom Uma Ursula Usha Valeria
    Vera Victor Viktor Vincent Viola Wanda Wei Wendy William Xavier Ximena Yan Yara Yasmin Yuki Yusuf Yvonne Zach Zahra
    Zara Zelda Zoe Zoran""".split()
)

CITIES: tuple[str, ...] = tuple(
    name.strip()
    for name in """Aachen,Aarhus,Aberdeen,Abu Dhabi,Accra,Adelaide,Aleppo,Algiers,Almaty,Amman,Amsterdam,Ankara,Antwerp,
    Athens,Atlanta,Auckland,Austin,Baghdad,Baku,Baltimore,Bamako,Bangkok,Barcelona,Basel,Basra,Beijing,Beirut,Belfast,
    Belgrade,Bergen,Berlin,Bern,Bilbao,Birmingham,Bogota,Bologna,Bonn,Bordeaux,Boston,Brasilia,Bratislava,Bremen,
    Brisbane,Bristol,Brno,Bruges,Brussels,Bucharest,Budapest,Buenos Aires,Buffalo,Busan,Cairo,Calgary,Cali,Cambridge,
    Canberra,Cancun,Cape Town,Caracas,Cardiff,Casablanca,Catania,Chennai,Chicago,Cluj,Cologne,Colombo,Cordoba,Cork,
    Cusco,Dakar,Dallas,Damascus,Darwin,Delhi,Denver,Detroit,Dhaka,Dijon,Doha,Dortmund,Dresden,Dubai,Dublin,Dundee,Durban,
    Edinburgh,El Paso,Essen,Exeter,Fez,Florence,Frankfurt,Fresno,Fukuoka,Galway,Gdansk,Geneva,Genoa,Ghent,Glasgow,Goa,
    Granada,Graz,Grenoble,Guadalajara,Haifa,Halifax,Hamburg,Hanoi,Hanover,Harare,Havana,Helsinki,Hiroshima,Ho Chi Minh,
    Hobart,Hong Kong,Honolulu,Houston,Hue,Hull,Hyderabad,Ibadan,Incheon,Innsbruck,Istanbul,Izmir,Jaipur,Jakarta,Jeddah,
    Jerusalem,Juba,Kabul,Kampala,Karachi,Kathmandu,Katowice,Kazan,Khartoum,Kiel,Kigali,Kingston,Kinshasa,Kobe,Kolkata,
    Kosice,Krakow,Kuwait,Kyiv,Kyoto,La Paz,Lagos,Lahore,Las Vegas,Lausanne,Leeds,Leicester,Leiden,Leipzig,Liege,Lille,
    Lima,Limerick,Linz,Lisbon,Liverpool,Ljubljana,Lodz,London,Los Angeles,Luanda,Lublin,Lucerne,Lusaka,Luxor,Lviv,Lyon,
    Madison,Madrid,Malaga,Malmo,Managua,Manchester,Manila,Maputo,Marseille,Mecca,Medan,Melbourne,Memphis,Mexico City,
    Miami,Milan,Minsk,Mombasa,Monaco,Monterrey,Montreal,Moscow,Multan,Mumbai,Munich,Muscat,Nagoya,Nairobi,Nancy,Nantes,
    Naples,Nashville,New Orleans,New York,Newcastle,Nice,Nicosia,Odessa,Oran,Orlando,Osaka,Oslo,Ottawa,Oulu,Oxford,
    Padua,Palermo,Panama City,Paris,Parma,Perth,Phoenix,Pisa,Pittsburgh,Plovdiv,Plymouth,Porto,Porto Alegre,Portland,
    Poznan,Prague,Pretoria,Puebla,Pune,Quebec,Quito,Rabat,Reims,Rennes,Reykjavik,Riga,Rio,Riyadh,Rome,Rosario,Rotterdam,
    Rouen,Sacramento,Saint Louis,Salerno,Salt Lake,Salvador,Salzburg,San Diego,San Jose,San Juan,Santa Fe,Santiago,
    Santos,Sao Paulo,Sapporo,Sarajevo,Seattle,Sendai,Seoul,Seville,Shanghai,Sheffield,Shenzhen,Singapore,Skopje,Sofia,
    Split,Stockholm,Strasbourg,Stuttgart,Surabaya,Sydney,Taipei,Tallinn,Tampa,Tampere,Tangier,Tashkent,Tbilisi,
    Tel Aviv,Tirana,Tokyo,Toledo,Toronto,Toulouse,Trento,Trieste,Tripoli,Tucson,Tunis,Turin,Turku,Ulm,Uppsala,Utrecht,
    Valencia,Vancouver,Varna,Venice,Verona,Vienna,Vilnius,Warsaw,Washington,Wellington,Winnipeg,Wroclaw,Wuhan,Xian,
    Yangon,Yerevan,Yokohama,York,Zagreb,Zaragoza,Zurich""".split(",")
)

TITLES: tuple[str, ...] = tuple(
    name.strip()
    for name in """Receipt,RECEIPT,Invoice,INVOICE,Boarding pass,BOARDING PASS,Order summary,Ticket,TICKET,
    Delivery note,Packing list,Thank you,Your booking,Reservation,Report,Summary,Statement,Details,Data sheet,
    Label,Shipping,Bill,
    Guest check,Cash & Carry,Joe's Cafe,Corner Shop,Grand Hotel,Parking,Check in,Departures,Arrivals,Inspection,
    Test record,Stock card,Work order,Order #12,Copy #2,Customer copy,Airport,Central Station,Museum,Library card,
    Membership,Warehouse,Lab sample,Station log,Form A,Page 1,Account info,Contact,Payment,Transfer,Quote""".split(",")
)

_HELD_OUT_EVERY = 8  # every eighth name and city appears in the test split only


def held_out(pool: tuple[str, ...]) -> tuple[str, ...]:
    """The members of a pool that training never shows."""
    return pool[::_HELD_OUT_EVERY]


def training_part(pool: tuple[str, ...]) -> tuple[str, ...]:
    """The members of a pool that training may show: some words are both a name and a city, and held out as either."""
    hidden = {*held_out(FIRST_NAMES), *held_out(CITIES)}
    return tuple(word for word in pool if word not in hidden)


_TRAIN_NAMES, _TRAIN_CITIES = training_part(FIRST_NAMES), training_part(CITIES)
_ONSETS = "b c d f g h j k l m n p q r s t v w x y z br ch cl cr dr fl gr kn pl pr sh sl sp st str th tr wh".split()
_VOWELS = "a e i o u y ai au ea ee ei ia ie oa oo ou".split()
_CODAS = ("", "", "", *"b ck d f g l ll m n nd ng p r rt s sk ss st t tt v x z".split())


def pick(rng: np.random.Generator, items: tuple[str, ...] | list[str] | str) -> str:
    """One item, uniformly."""
    return items[int(rng.integers(len(items)))]


def letters(rng: np.random.Generator, alphabet: str, length: int) -> str:
    """`length` characters drawn uniformly and independently."""
    return "".join(alphabet[i] for i in rng.integers(len(alphabet), size=length))


def made_up_word(rng: np.random.Generator) -> str:
    """A capitalised word of 3 to 9 letters that is in no pool: pronounceable or plain random letters, half each."""
    if rng.random() < 0.5:
        return letters(rng, string.ascii_lowercase, int(rng.integers(3, 9))).capitalize()
    word = "".join(pick(rng, _ONSETS) + pick(rng, _VOWELS) + pick(rng, _CODAS) for _ in range(int(rng.integers(1, 4))))
    return word.ljust(3, "n")[:9].capitalize()


def _digits(rng: np.random.Generator, length: int) -> str:
    return pick(rng, "123456789") + letters(rng, string.digits, length - 1)


def _amount(rng: np.random.Generator, split: Split) -> str:
    whole = int(_digits(rng, int(rng.choice([1, 2, 3, 4], p=[0.25, 0.4, 0.25, 0.1]))))
    sign = "$" if rng.random() < 0.35 else ""
    return f"{sign}{whole:,}.{rng.integers(100):02d}"


def _date(rng: np.random.Generator, split: Split) -> str:
    return f"{rng.integers(1, 32):02d}/{rng.integers(1, 13):02d}/{rng.integers(100):02d}"


def _time(rng: np.random.Generator, split: Split) -> str:
    return f"{rng.integers(24):02d}:{rng.integers(60):02d}"


def _number(rng: np.random.Generator, split: Split) -> str:
    length = int(rng.integers(1, 9))
    return letters(rng, string.digits, length) if length > 2 and rng.random() < 0.15 else _digits(rng, length)


def _code(rng: np.random.Generator, split: Split) -> str:
    text = letters(rng, string.ascii_uppercase + string.digits, int(rng.integers(3, 7)))
    if len(text) < 6 and rng.random() < 0.12:
        cut = int(rng.integers(1, len(text)))
        text = f"{text[:cut]}-{text[cut:]}"
    return text


def _seat(rng: np.random.Generator, split: Split) -> str:
    letter, number = pick(rng, string.ascii_uppercase), str(rng.integers(1, 100))
    return letter + number if rng.random() < 0.7 else number + letter


def _name(rng: np.random.Generator, split: Split) -> str:
    if split == "test":
        return pick(rng, FIRST_NAMES)
    return made_up_word(rng) if rng.random() < 0.5 else pick(rng, _TRAIN_NAMES)


def _city(rng: np.random.Generator, split: Split) -> str:
    if split == "test":
        return pick(rng, CITIES)
    if rng.random() < 0.5:
        return pick(rng, _TRAIN_CITIES)
    return " ".join(made_up_word(rng)[:7] for _ in range(1 + int(rng.random() < 0.15)))


def _phone(rng: np.random.Generator, split: Split) -> str:
    return f"{_digits(rng, int(rng.choice([3, 3, 4])))}-{letters(rng, string.digits, 4)}"


KINDS: dict[str, Callable[[np.random.Generator, Split], str]] = {
    "amount": _amount, "date": _date, "time": _time, "number": _number, "code": _code, "seat": _seat, "name": _name,
    "city": _city, "phone": _phone,
}  # fmt: skip
KIND_NAMES: tuple[str, ...] = tuple(KINDS)

KIND_PATTERNS: dict[str, str] = {
    "amount": r"\$?\d{1,3}(,\d{3})?\.\d{2}",
    "date": r"\d{2}/\d{2}/\d{2}",
    "time": r"\d{2}:\d{2}",
    "number": r"\d{1,8}",
    "code": r"(?=.{2,6}$)[A-Z0-9]+(-[A-Z0-9]+)?",
    "seat": r"[A-Z]\d{1,2}|\d{1,2}[A-Z]",
    "name": r"[A-Z][a-z]+",
    "city": r"[A-Z][a-z]+( [A-Z][a-z]+)*",
    "phone": r"\d{3,4}-\d{4}",
}
"""Full-match regular expressions of the values of each kind."""

_PLAUSIBLE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("total", "subtotal", "tax", "tip", "price"), ("amount",)),
    "date": ("date",),
    "time": ("time",),
    "name": ("name",),
    "city": ("city",),
    "phone": ("phone",),
    **dict.fromkeys(("code", "order", "invoice", "ticket", "batch", "lot", "serial", "model"), ("code", "number")),
    **dict.fromkeys(("seat", "gate", "dock", "table", "room"), ("seat", "number")),
    **dict.fromkeys(("flight", "train", "bus", "unit"), ("code", "seat", "number")),
}


def plausible_kinds(field: str) -> tuple[str, ...]:
    """The kinds a reader would expect of a field; fields without an entry are plain numbers."""
    return _PLAUSIBLE.get(field, ("number",))


def sample_value(rng: np.random.Generator, field: str, *, split: Split) -> str:
    """A value for `field`: of a plausible kind half of the time, else of any kind, so that values cannot be guessed."""
    kinds = plausible_kinds(field) if rng.random() < 0.5 else KIND_NAMES
    return KINDS[pick(rng, kinds)](rng, split)


def sample_pairs(
    rng: np.random.Generator, count: int, *, split: Split, fields: Sequence[str] = FIELDS
) -> list[tuple[str, str]]:
    """`count` pairs (field, value), or as many as there are `fields`; fields are distinct and so are values."""
    pairs: list[tuple[str, str]] = []
    seen: set[str] = set()
    for index in rng.permutation(len(fields))[:count]:
        field = fields[index]
        value = sample_value(rng, field, split=split)
        while value in seen:
            value = sample_value(rng, field, split=split)
        seen.add(value)
        pairs.append((field, value))
    return pairs
