"""What new users' pages broke, in ten cases or more of a kind beside the one that was told; asked of arr-coc-135m."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

from arr_coc.modeling.answers import Answer
from arr_coc.modeling.extraction import Extracted
from arr_coc.pages.fonts import pip_font_directories

pytestmark = pytest.mark.slow

UNSURE = 0.5
"""The probability below which a wrong answer is told to be one."""
PLAIN, OTHER = "NotoSans-Regular.ttf", "Roboto-Regular.ttf"
SIZE, LEFT, RIGHT = 28, 60, 460

Row = tuple[str, str]


@cache
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    (path,) = (path for folder in pip_font_directories() for path in Path(folder).rglob(name))
    return ImageFont.truetype(str(path), size)


def page(rows: Sequence[Row], face: str = PLAIN, size: int = SIZE) -> Image.Image:
    """Labels, and their values beside them."""
    image = Image.new("RGB", (900, 2 * size * (len(rows) + 2)), "white")
    for number, row in enumerate(rows):
        for x, text in zip((LEFT, RIGHT), row, strict=True):
            ImageDraw.Draw(image).text((x, 2 * size * (number + 1)), text, "black", font(face, size))
    return image


def known_to_fail(*names: str) -> Callable[[str], Any]:
    """Marks the cases that fail with the shipped weights."""
    failing = pytest.mark.xfail(reason="not mended", strict=False)
    return lambda name: pytest.param(name, marks=failing if name in names else ())


AROUND = [("Order", "KL-20417"), ("Contact", "Martin Berger"), ("Delivery", "Tuesday morning")]

# ---- symbols: 37° was 379, ±0.05 was 40.05, 14.20¹ was 14.201
SYMBOLS = {
    "Temperature": "21°",
    "Angle": "68°",
    "Tolerance": "±0.3",
    "Deviation": "±12",
    "Price": "36.50¹",
    "Area": "74²",
    "Rent": "₪740",
    "Fee": "£63.90",
    "Budget": "£2,480",
    "Cost": "¥5300",
    "Deposit": "₹640",
    "Length": "9µm",
    "Share": "4½",
    "Ratio": "6‰",
    "Salary": "₽918",
    "Fare": "₩7600",
}


@pytest.fixture(scope="module")
def symbols(shipped: Any) -> dict[str, Extracted]:
    found: dict[str, Extracted] = {}
    for at in range(0, len(SYMBOLS), 4):
        rows = [*SYMBOLS.items()][at : at + 4]
        image = page([*AROUND[:2], *rows, AROUND[2]], PLAIN if at % 8 else OTHER)
        found |= shipped.extract(image, {name: "number" for name, _ in rows})
    return found


@pytest.mark.parametrize(
    "name",
    [
        *map(
            known_to_fail(
                "Temperature",
                "Tolerance",
                "Deviation",
                "Price",
                "Area",
                "Rent",
                "Deposit",
                "Length",
                "Share",
                "Ratio",
                "Salary",
                "Fare",
            ),
            SYMBOLS,
        )
    ],
)
def test_a_symbol_is_read_or_its_number_is_none(symbols: dict[str, Extracted], name: str) -> None:
    """An answer may leave out the sign of a currency before the number."""
    found = symbols[name]
    right = found.printed in (SYMBOLS[name], SYMBOLS[name].lstrip("£¥₪₹₽₩"))
    assert right or (found.value is None and found.probability < UNSURE), found


# ---- other scripts: МОСКВА was "MOCKBA", 上海 was "City"
SCRIPTS = {
    "Russian": (PLAIN, "Накладная|Грузополучатель|Пункт назначения|Казань, площадь Тукая|Ответственный|Жукова Людмила"),
    "Ukrainian": ("Roboto-Regular.ttf", "Рахунок|Замовник: Щербина|Місто Львів|Усього до сплати|Підпис|Товарний чек"),
    "Serbian": ("OpenSans-Regular.ttf", "Рачун|Купац: Љубица Ђорђевић|Нови Сад|Укупно за уплату|Датум промета|Потпис"),
    "Greek": (PLAIN, "Απόδειξη|Αγοραστής: Ελένη|Θεσσαλονίκη|Τελική αξία|Ημέρα παράδοσης|Υπογραφή πωλητή"),
    "Greek capitals": ("OpenSans-Regular.ttf", "ΑΠΟΔΕΙΞΗ|ΑΓΟΡΑΣΤΗΣ ΕΛΕΝΗ|ΘΕΣΣΑΛΟΝΙΚΗ|ΤΕΛΙΚΗ ΑΞΙΑ|ΗΜΕΡΑ ΠΑΡΑΔΟΣΗΣ"),
    "Armenian": ("DejaVuSans-Bold.ttf", "Անդորրագիր|Քաղաք Գյումրի|Պատվիրատու|Ընդհանուր գումար|Վաճառող"),
    "Arabic": ("DejaVuSans-Bold.ttf", "إيصال استلام|اسم المشتري|مدينة جدة|القيمة النهائية|توقيع البائع|موعد التوصيل"),
    "Hebrew": ("DejaVuSans-Bold.ttf", "קבלה|שם הקונה|עיר חיפה|סך הכל|חתימת המוכר|מועד אספקה"),
    "Hindi": ("Mukta-Regular.ttf", "रसीद|ग्राहक का नाम|शहर वाराणसी|कुल राशि|विक्रेता के हस्ताक्षर|वितरण की तारीख"),
    "Chinese": ("NotoSansSC-Bold.ttf", "收据|买方地址|广州市天河区|应付总额|销售人员签字|交货日期"),
    "Japanese": ("NotoSansJP-Bold.ttf", "領収書|ご注文者|大阪市北区|税込合計|販売担当|納品日のお知らせ"),
    "Korean": ("NotoSansKR-Bold.ttf", "영수증|구매자 성명|부산광역시|총 결제 금액|판매자 서명|배송 예정일"),
}


@pytest.mark.parametrize(
    "script",
    [
        *map(
            known_to_fail(
                "Russian",
                "Ukrainian",
                "Serbian",
                "Greek",
                "Greek capitals",
                "Armenian",
                "Arabic",
                "Hebrew",
                "Hindi",
                "Korean",
            ),
            SCRIPTS,
        )
    ],
)
def test_another_script_is_unread(shipped: Any, script: str) -> None:
    face, lines = SCRIPTS[script]
    rows = [(line, "") for line in lines.split("|")]
    answer = shipped.generate(page([*rows, ("4105", "")], face), "What is the name?", return_fetch=True)
    assert answer.legibility < shipped.config.least_legibility, answer
    assert "hard to read" in answer.warning and answer.probability < UNSURE, answer


LATIN = {
    "Polish": "Łukasz Zięba",
    "Turkish": "Işık Yıldız",
    "Romanian": "Ștefan Țîrlea",
    "Czech": "Řehoř Ďurák",
    "Hungarian": "Győző Szűcs",
    "Vietnamese": "Nguyễn Phượng",
    "Latvian": "Ģirts Ķēniņš",
    "Lithuanian": "Šarūnė Ąžuolė",
    "Croatian": "Đurđa Čolić",
    "Azerbaijani": "Əli Şahin",
}


@pytest.mark.parametrize(
    "language", [*map(known_to_fail("Azerbaijani", "Polish", "Romanian", "Czech", "Vietnamese", "Lithuanian"), LATIN)]
)
def test_a_latin_letter_without_a_class_is_read_or_in_doubt(shipped: Any, language: str) -> None:
    rows = [*AROUND[::2], ("Customer", LATIN[language])]
    answer = shipped.generate(page(rows), "What is the Customer?", return_fetch=True)
    assert answer.text == LATIN[language] or answer.probability < UNSURE, answer


# ---- a field under another name: none of 12 was right
SYNONYMS = {
    "How much has to be paid?": ("Amount due", "284.90"),
    "Who is the buyer?": ("Customer", "Ingrid Solberg"),
    "When was it bought?": ("Purchase date", "14 May 2024"),
    "What is the phone number?": ("Tel.", "0117 496 0123"),
    "Where does it go?": ("Deliver to", "12 Mill Lane, Bath"),
    "What is the order number?": ("Order no.", "AX-7731"),
    "How many were ordered?": ("Qty", "18"),
    "Who sold it?": ("Vendor", "Harbour Tools Ltd"),
    "By when must it be paid?": ("Due date", "30 June 2024"),
    "What is the discount?": ("Rebate", "12.50"),
    "What is the tax?": ("VAT", "41.20"),
    "What does it cost in all?": ("Grand total", "512.75"),
}


@pytest.mark.parametrize(
    "question",
    [*map(known_to_fail("How much has to be paid?", "What is the phone number?", "What is the discount?"), SYNONYMS)],
)
def test_a_field_under_another_name(shipped: Any, question: str) -> None:
    fields = [*SYNONYMS.values()]
    at = fields.index(SYNONYMS[question])
    answer = shipped.generate(page([fields[at - 1], SYNONYMS[question], *AROUND[:1]]), question, return_fetch=True)
    assert answer.text == SYNONYMS[question][1], answer


# ---- a schema's names: iban gave "NL91", dueDate the invoice's date
NAMED = {
    "iban": ("IBAN", "NL91 ABNA 0417 1643 00"),
    "dueDate": ("Due date", "12 July 2024"),
    "invoice_date": ("Invoice date", "28 June 2024"),
    "vatNumber": ("VAT number", "GB 123 4567 89"),
    "postCode": ("Post code", "BS1 4DJ"),
    "invoiceNumber": ("Invoice number", "2024-0719"),
    "order_number": ("Order number", "PO 55 128"),
    "amountDue": ("Amount due", "1,284.00"),
    "deliveryDate": ("Delivery date", "3 July 2024"),
    "bank_name": ("Bank name", "Triodos Bank"),
    "account_holder": ("Account holder", "Van der Berg BV"),
    "swiftCode": ("SWIFT code", "TRIO NL 2U"),
}


@pytest.fixture(scope="module")
def named(shipped: Any) -> dict[str, Answer]:
    from arr_coc.serving.answers import fields_of

    encoding = shipped.encode_image(page([*NAMED.values()]))
    asked = fields_of({"properties": dict.fromkeys(NAMED, {"type": "string"})})
    answers = shipped.generate(encoding, [field.question for field in asked], return_fetch=True)
    return dict(zip(NAMED, answers, strict=True))


@pytest.mark.parametrize("name", [*map(known_to_fail("postCode", "invoice_date"), NAMED)])
def test_a_schemas_field_has_all_of_its_value(named: dict[str, Answer], name: str) -> None:
    assert named[name].text == NAMED[name][1] or named[name].probability < UNSURE, named[name]


# ---- "JJudith", "S014 3TJ"
DOUBLED = {
    "Judith Jansen": OTHER,
    "SO14 3TJ": OTHER,
    "Aaron Llewellyn": PLAIN,
    "OX10 8OO": PLAIN,
    "Willem Otto": OTHER,
    "LL57 1OO": OTHER,
    "Jill Jolliffe": PLAIN,
    "GO0D-1LO": OTHER,
    "Anna Sassoon": PLAIN,
    "IO1 5SS": PLAIN,
    "Bobby Dodds": OTHER,
    "B0O-881": OTHER,
}


WRONG = ("Willem Otto", "IO1 5SS", "B0O-881", "Judith Jansen", "Jill Jolliffe", "GO0D-1LO")


@pytest.mark.parametrize("text", [*map(known_to_fail(*WRONG), DOUBLED)])
def test_letters_are_neither_doubled_nor_exchanged_for_digits(shipped: Any, text: str) -> None:
    image = page([*AROUND[::2], ("Reference", text)], DOUBLED[text])
    answer = shipped.generate(image, "What is the Reference?", return_fetch=True)
    assert answer.text == text or answer.probability < UNSURE, answer


# ---- what is ticked: the first option, whichever was
KINDS = ("box", "cross", "filled box", "radio", "filled radio", "switch", "pill", "circled", "underlined", "check")


def marked(kind: str, chosen: int) -> Image.Image:
    """A page that asks for the way of payment; of three options one is marked."""
    image = page([("Payment", ""), ("Cash", ""), ("Cheque", ""), ("Transfer", ""), AROUND[0]])
    draw = ImageDraw.Draw(image)
    for number in range(3):
        y, on = 2 * SIZE * (number + 2) + 6, number == chosen
        box = (20, y, 44, y + 24)
        if kind in ("box", "cross", "filled box", "check"):
            draw.rectangle(box, outline="black", width=2, fill="black" if on and kind == "filled box" else None)
            if on and kind in ("box", "cross"):
                draw.line((22, y + 2, 42, y + 22), "black", 3)
                draw.line((42, y + 2, 22, y + 22), "black", 3)
            if on and kind == "check":
                draw.line([(24, y + 12), (30, y + 20), (48, y - 6)], "black", 4)
        elif kind in ("radio", "filled radio"):
            draw.ellipse(box, outline="black", width=2, fill="black" if on and kind == "filled radio" else None)
            if on and kind == "radio":
                draw.ellipse((26, y + 6, 38, y + 18), fill="black")
        elif kind in ("switch", "pill"):
            draw.rounded_rectangle((6, y, 52, y + 24), 12, "seagreen" if on else "lightgrey")
            x = 30 if on else 8
            draw.ellipse((x, y + 2, x + 20, y + 22), fill="white")
        elif on and kind == "circled":
            draw.ellipse((LEFT - 16, y - 12, LEFT + 150, y + 40), outline="navy", width=3)
        elif on:
            draw.line((LEFT, y + 34, LEFT + 130, y + 34), "black", 3)
    return image


@pytest.mark.parametrize("kind", [*map(known_to_fail("switch", "pill", "circled"), KINDS)])
def test_what_is_ticked_is_answered_or_in_doubt(shipped: Any, kind: str) -> None:
    answers = [
        shipped.generate(marked(kind, chosen), "Which payment is ticked?", return_fetch=True) for chosen in (1, 2)
    ]
    for answer, right in zip(answers, ("Cheque", "Transfer"), strict=True):
        assert answer.text == right or answer.probability < UNSURE, answer
