"""Wordings of questions about the fields of real pages: by what a field means, and by its label.

A concept has labels (in normal form) under which pages print it, names that a question may call it by, and questions
of its own, with what it means in words that no label has. Names, questions and the wordings around names
(`question_writer.WORDINGS`) are divided into train, validation and test.
"""

# ruff: noqa: E501 (lists are readable as running text)
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from ..pages.question_writer import WORDINGS, QuestionWriter, spoken
from ..pages.splits import Split, share
from .field_mining import normal

_BANK = """
receipts:
  shop: company: shop; store; company; merchant; seller; business; vendor; retailer; outlet; trader: Who sold this?; Who is the seller?; Where was this bought?; Which company issued this?; Whose receipt is this?; What is the store called?; Which shop printed this receipt?; Who was paid?; At which business was the money spent?; What is the name of the company?; What is the merchant's name?; From whom was it bought?
  address: address: address; shop address; store address; company address; business address; full address; street address; location of the store: What is the address?; Where is the store?; What is the company's address?; Where is the shop located?; Which address is printed?; Where can the shop be found?; In which street and town is the shop?; Where did the purchase take place?; What is the full address of the seller?
  receipt date: date: date; date of the receipt; date of purchase; purchase date; receipt date; transaction date; day of the sale; sales date: What is the date?; When was this issued?; On which day was this bought?; When did the purchase take place?; When was it paid?; On what day was the receipt printed?; What is the date of the receipt?; Of which day is this receipt?; When was the shopping done?
  total: amount: total; total amount; grand total; amount due; amount to pay; final amount; bill total; sum to be paid; price in all: What is the total?; How much was paid in total?; How much did everything cost?; What does it all come to?; What must be paid?; How much is the bill?; How much did the customer have to pay?; What is the amount due?; How much was spent?; What is the total cost?; How much money is owed for all of it?
  invoice number: number: receipt no, invoice no, invoice #, inv no, doc no, bill no, receipt #, document no, order#, check, trans, invoice, tax invoice no, receipt, doc number: invoice number; receipt number; bill number; document number; number of the receipt; number of the invoice; transaction number: What is the invoice number?; Which number does the receipt have?; Under which number is this bill filed?; What is the document's number?; How is the receipt numbered?; Which number identifies this sale?; What number should be quoted for this purchase?
  receipt time: time: time, in, closed: time; time of purchase; time of the sale; time of day; hour of the purchase; printing time: At what time was this bought?; What time was it?; When during the day was it paid?; At which hour was the receipt printed?; What is the time on the receipt?; At what o'clock was the sale made?; What time does it give?
  phone: phone: tel, telephone, phone, tel no, phone no, contact, main, hp, mobile, tel/fax: phone number; telephone number; phone; telephone; number to call; contact number; main phone number: What is the phone number?; Which number can be called?; How can they be reached by phone?; What number should I dial?; Under which number do they answer?; How can I ring them?; What is their telephone number?
  fax: phone: fax, fax no: fax number; fax; facsimile number; number for faxes: What is the fax number?; Where can a fax be sent?; To which number should I fax?; Which number takes faxes?; What do I dial for a fax?
  tax number: number: gst id, gst id no, gst reg no, gst no, gst reg, gst registration no, tax id, abn, vat no, sst no, sst id: GST number; tax number; GST registration number; tax ID; GST ID; tax registration number: What is the seller's tax number?; Under which number is the shop registered for GST?; What is the GST registration number?; Which tax ID does the company have?; How is the company registered for tax?
  company number: number: company reg no, company no, co reg no, reg no, roc no, co no, business reg no: company number; company registration number; registration number of the company; business number: Under which number is the company registered?; What is the registration number of the business?; Which company number is printed?; How is the firm registered?
  cashier: person: cashier, user, server, served by, clerk, operator, waiter, staff, salesperson id: cashier; server; clerk; operator; person at the till; member of staff: Who was the cashier?; Who served the customer?; Who was at the till?; Which member of staff handled this?; By whom was it sold?; Who took the payment?; Who rang this up?
  table: number: table, table no, tbl: table; table number; number of the table; place of the guests: At which table did they sit?; What was the table number?; Where did the guests sit?; Which table is it?; For which table is the bill?
  subtotal: amount: sub total, subtotal, total excluding gst, total sales excluding gst, total before gst, total excl gst, net total, total amt excl gst, total sales, nett: subtotal; total before tax; amount without tax; total excluding GST; net amount; sum before tax: What is the subtotal?; How much is it without tax?; What does it come to before tax?; How much are the goods alone?; What is the amount before GST?; How much would it be if there were no tax?; What is the net sum?
  total with tax: amount: total inclusive of gst, total inclusive gst, total incl gst, total sales inclusive of gst, total sales inclusive gst, total with gst: total with tax; total including GST; total inclusive of tax; amount with tax: How much is it with tax?; What is the total including GST?; What does it come to when tax is added?; How much is the sum with GST?
  tax: amount: gst, total gst, tax total, gst payable, tax, sst, gst amount, total tax, gst amt, tax amount, service tax, vat: tax; GST; tax amount; amount of tax; GST amount; sales tax: How much tax was paid?; How much GST is in it?; What is the tax?; How much goes to the tax office?; What did the tax come to?; How much tax was charged?; How high is the GST?
  service charge: amount: service charge, svc chg, svc charge, service chg: service charge; charge for service; service fee; fee for service: How much is the service charge?; What was added for service?; How much was charged for being served?; What does the service cost?
  rounding: amount: rounding, rounding adjustment, rounding adj, rounded, round adj: rounding; rounding adjustment; amount of rounding; rounding difference: By how much was it rounded?; What is the rounding adjustment?; How much was the sum changed by rounding?; How large is the rounding?
  rounded total: amount: total rounded, rounded total, net total rounded, total after rounding, rounded total rm: rounded total; total after rounding; rounded amount; sum when rounded: What is the total after rounding?; How much is it when rounded?; What is the rounded sum?; To which amount was the total rounded?
  cash: amount: cash, cash paid, amount tendered, tendered, paid, payment, cash tendered, amount paid, cash received: cash; amount of cash; cash given; amount tendered; cash received; money handed over: How much cash was given?; How much money was handed over?; What did the customer hand over?; How much did the customer give?; What was paid in cash?; How much was received from the customer?; With how much was it paid?
  change: amount: change, change due, balance, cash change: change; change due; money returned; amount returned: How much change was given?; What did the customer get back?; How much money was returned?; How much came back?; What was handed back to the customer?; What is the change?
  card: amount: visa, mastercard, master, card, debit, credit card, visa card, amex, bank card: amount charged to the card; card payment; amount paid by card; sum on the card: How much was paid by card?; What was charged to the card?; What amount was taken from the card?; How much did the card payment come to?
  quantity: count: total qty, qty, total quantity, item count, no of items, total items, items, item, item qty: total quantity; number of items; items sold; quantity in all: How many items were bought?; How many pieces were sold?; What is the total quantity?; How many things are on the receipt?; How many articles were there?
  discount: amount: discount, total discount, disc, savings, less discount, total saving, item discount: discount; price reduction; amount saved; savings: How much was the discount?; How much was saved?; What was taken off?; By how much was the price reduced?; How much cheaper did it get?
  email: email: email, e mail, website: e-mail address; email; email address; mail address: What is the email address?; Where can I write to them by mail on the computer?; To which address do I send an email?; How can they be reached by email?
orders:
  advertiser: company: advertiser, client, customer, candidate, advertiser name, account: advertiser; client; political advertiser; committee that advertises; sponsor; customer; name of the advertiser: Who is advertising?; Who paid for the spots?; Who is the client?; On whose behalf was the time bought?; Which campaign bought the time?; For whom are the spots aired?; Who ordered the advertising?; Whose advertisement is it?; Who sponsors the spots?
  agency: company: agency, agency name, and: agency; advertising agency; media agency; buying agency: Which agency placed the order?; Who placed the buy?; Through whom was the time bought?; Which agency handles it?; Who acts for the advertiser?; What is the agency called?
  agency code: number: agency code, agy code, agency ref, agency external id, agency id: agency code; code of the agency; agency number; agency reference: Which code does the agency have?; What is the agency's code?; How is the agency coded?; Under which number is the agency kept?
  advertiser code: number: advertiser code, advertiser external id, advertiser ref, advertiser id, adv code: advertiser code; code of the advertiser; advertiser number; advertiser reference: Which code does the advertiser have?; What is the advertiser's number?; Under which number is the advertiser kept?; How is the advertiser coded?
  product: product: product, product desc, brand, product 1, product description, product/brand, prod: product; brand; product advertised; product description; name of the product: What is being advertised?; Which product is it for?; What is promoted?; What product do the spots promote?; For which brand is the time?; What do the spots advertise?
  product code: number: product codes, product 1/2, product code: product code; codes of the product; number of the product; product number: Which code does the product have?; What are the product codes?; How is the product coded?; Under which code is the product?
  estimate: number: estimate #, estimate, estimate number, est #, est, external #, estimate no, est/external #: estimate number; estimate; number of the estimate; estimate no.: Which estimate is it?; What number does the estimate have?; Under which estimate was it bought?; What is the estimate called?; Which estimate number is given?
  order number: number: order #, order / rev, order number, order no, order rev, order/rev, order: order number; number of the order; station order number; order no.: Which order is it?; What number does the order have?; How is the order numbered?; Which number identifies the order?; Under which number was it ordered?
  other order number: number: alt order #, alt order number, alternate order #, alt order, traffic order: alternate order number; alternative order number; second order number; other order number: Which other number does the order have?; What is the alternate order number?; Under which alternative number is the order kept?; What is the order's second number?
  contract number: number: contract #, contract, contract / revision, contract number, contract no, contract/revision, contract#: contract number; number of the contract; contract; contract no.: Which contract is it?; What number does the contract have?; How is the contract numbered?; Which number identifies the contract?; What is the contract's number?
  flight: dates: flight dates, contract dates, flight, order flight, schedule dates, flight date, contract period, air dates, hiatus: flight dates; dates of the flight; contract dates; campaign period; run of the schedule; period of the contract: From when to when do the spots run?; During which days are the spots on the air?; When does the campaign run?; What are the dates of the campaign?; Between which dates is the time booked?; Which period does the order cover?; In which period is it broadcast?
  invoice period: dates: invoice period, billing period, period, broadcast month, invoice month, service dates: invoice period; billing period; period that is billed; invoiced period: Which period is billed?; For which days is the invoice?; From when to when does the bill reach?; Which dates does the invoice cover?; What time span is invoiced?
  issued: date: date, date entered, order date, original date, inv date, entered, original date / rev, original date / revision, created, date created, created date, issue date, date issued: date of the order; order date; date of entry; date entered; original date: When was it entered?; When was the order made?; On which day was it drawn up?; What is the date of the order?; When was it first recorded?
  invoice date: date: invoice date, inv date, billing date, bill date: invoice date; date of the invoice; billing date; date of the bill: When was it invoiced?; When was the bill written?; On which day was the invoice issued?; What is the invoice's date?; Of which day is the bill?
  print date: date: print date, printed, run date, printed on, report date, print: print date; date of printing; printing date; day of the print: When was this printed?; On which day was the page printed?; When was the printout made?; Which day was it put on paper?
  changed: date: last modified, mod date, revised, modified, revision date, date modified, last activity: date of the last change; revision date; modification date; date last modified: When was it last changed?; When was it modified?; On which day was it revised?; What is the date of the last change?
  start: date: start date, start, from, flight start, flight start date, begin date, effective date: start date; first day; beginning; date of the start: When does it start?; On which day does it begin?; What is the first day?; From when does it run?; When is the beginning?
  end: date: end date, end, to, flight end, flight end date, enddate, expiration date, through: end date; last day; end; closing date: When does it end?; On which day is it over?; What is the last day?; Until when does it run?; When is the finish?
  station: company: property, station, stations, station name, call letters, channel, outlet, media outlet: station; TV station; property; broadcaster; channel; call letters of the station: Which station is it?; On which station do the spots run?; Who broadcasts it?; Which channel airs it?; What are the call letters?; Where is it aired?
  sales office: place: sales office, office, sales off, sls office: sales office; office of sales; office that sold it; selling office: Which office sold it?; From which office was it sold?; What is the sales office?; Which branch made the sale?
  account executive: person: account executive, primary ae, ae, account exec, acct exec, salesperson, sales person, sales rep, seller, account manager, salesman, rep: account executive; salesperson; sales representative; person in charge of sales; AE: Who sold the time?; Who looks after the account?; Who is the salesperson?; Which salesperson is named?; Who is responsible for the account?; Who made the sale?; Who is the station's contact for this order?
  buyer: person: buyer, buyer name, media buyer, buyer contact, contact name: buyer; media buyer; name of the buyer; person who buys: Who is the buyer?; Who bought the time?; Who is buying?; Which person placed the buy?; Whose name is given as buyer?
  entered by: person: entered by, created by, user name, modified by: person who entered it; author of the entry; operator; person at the keyboard: Who entered it?; By whom was the order entered?; Who typed this in?; Who recorded it?
  gross: amount: gross total, gross amount, gross, total gross, gross amt, total cost, order total, total amount, total dollars, gross billing, grand total, total: gross total; gross amount; total gross amount; amount before commission; total cost: What is the gross total?; How much is it before commission?; What do all spots cost?; How much was ordered in money?; What is the full price of the order?; How much will be billed gross?; What is the gross amount?; How much does the campaign cost?
  commission: amount: agency commission, commission, less commission, agency comm, agy comm, agency commission amount: agency commission; commission; fee of the agency; commission amount: How much does the agency get?; How high is the commission?; What is kept by the agency?; How much is taken off for the agency?; What is the agency paid?
  net: amount: net amount due, net total, net amount, net due, net, total net, net amt, amount due, balance due, invoice balance: net amount due; net total; net amount; amount after commission; amount still to pay: How much is due net?; What remains after commission?; How much has to be paid net?; What is left when the commission is taken off?; How much does the station receive?; What is the net amount?
  spots: count: total spots, spots, # spots, number of spots, spot total, totals, # of spots, spots/week: number of spots; total number of spots; spots in all; count of spots: How many spots are there?; How often is it aired?; How many spots were ordered?; What is the total number of spots?; How many times does it run?
  billing cycle: text: billing cycle, billing calendar, billing type, bill type, calendar: billing cycle; billing calendar; cycle of billing; billing rhythm: How often is it billed?; By which calendar is it billed?; When are bills sent?; What is the billing cycle?
  demographic: text: demographic, demo, primary demo, demos, demographics: demographic; target audience; audience; group that is aimed at: Which audience is targeted?; At whom are the spots aimed?; Which age group is meant?; What is the demographic?
  market: place: market, markets, dma: market; TV market; market area; area of the market: In which market is it?; Which market do the spots run in?; What area is it broadcast in?; Which city's market is it?
  invoice billing: phone: billing, billing phone: billing phone number; phone number for bills; number of the billing department; billing number: Which number should I call about a bill?; What is the billing phone?; Whom do I call about billing, under which number?; What is the number of the billing office?
  rating cost: text: cpe, cpp, cpm: CPE; cost per point; CPE code; CPE number: What is given as CPE?; What does the CPE field say?; Which CPE is printed?; What is the CPE?
  order invoice: number: invoice #, invoice, invoice number, invoice no: invoice number; number of the invoice; number of the bill; invoice no.: Which invoice is it?; What number does the invoice have?; How is the bill numbered?; Under which number was it invoiced?; Which number identifies the invoice?
  slot: text: time, time period, start/end time, air time, day/time: time slot; time period; air time; time of broadcast; hours of broadcast: At what time does it air?; When during the day is it broadcast?; Between which hours does it run?; What is the time slot?; In which hours are the spots shown?
  print time: text: printed at, printed on: time of printing; print time; moment of printing; time and day of the print: When was the page printed, with the time?; At what time was this printed?; When did it come out of the printer?; Which moment is given for the print?
  program: text: description, program, program desc, air time description: program; show; description; program title: Which program is it?; During which show is it aired?; What is the program called?; Which show is listed?; What is described?
  order phone: phone: main, phone, telephone, tel, main phone: phone number; main phone number; telephone number; main number: What is the phone number?; Which number can be called?; How can they be reached by phone?; What number should I dial?; What is the main number?
registrations:
  filer: person: name, name of registrant, registrant name, full name, i name: name; full name; name of the person; person who registers; filer's name: Who is registering?; Whose form is this?; Who filled it in?; What is the person called?; Who files the form?; What is the name of the person?; Who makes this statement?
  registrant: company: registrant, primary registrant, name of primary registrant: registrant; primary registrant; registered firm; firm that registers: Which firm is the registrant?; Who is the primary registrant?; For which registrant does the person work?; Who is registered?; What is the registrant called?
  registration number: number: registration no, registration number, reg number, reg #, registration #, license no: registration number; number of the registration; registration no.; file number: Under which number is it registered?; What number does the registration have?; Which registration is it?; How is the registration numbered?; Which file number is given?
  birth: text: year of birth, year ofbirth, yearofbirth, born, birth year, date of birth, dob: year of birth; birth year; year in which the person was born; date of birth: When was the person born?; In which year were they born?; What is the birth year?; How far back does the person's birth lie, in which year?; Which year was the person born in?
  nationality: text: nationality, nationality of registrant: nationality; country of origin; nation; national origin: Which nationality does the person have?; Of what nation is the person?; From which country does the person come?; What is the nationality?; Which country are they from?
  citizenship: text: present citizenship, citizenship, citizen of, citizen: citizenship; present citizenship; current citizenship; country of citizenship: Of which country is the person a citizen?; What citizenship does the person hold now?; Which country's passport does the person have?; What is the present citizenship?
  occupation: text: occupation, job, profession, position, employment, job title: occupation; job; profession; line of work; position: What does the person do for a living?; What is the person's job?; What work do they do?; Which profession is given?; As what does the person work?; How does the person earn a living?
  signature date: date: date of signature, signature date, date signed, signed on: date of signature; date of signing; day it was signed; signing date: When was it signed?; On which day was the form signed?; What date is at the signature?; When did they sign?; On what date was it put into force by a signature?
  foreign principal: company: foreign principal, name of foreign principal, foreign principal name: foreign principal; foreign client; government represented; principal abroad: Who is represented?; For which foreign body do they act?; On whose behalf do they act?; Which foreign principal is named?; Whom does the registrant represent?
  residence: address: residence address es, residence address, residence addressees, home address, address of residence: residence address; home address; place of residence; private address: Where does the person live?; What is the home address?; At which address do they live?; Where is the person's home?
  office: address: business address, business address es, work address, office address: business address; office address; work address; address of the firm: Where does the person work?; What is the office address?; At which address is the business?; Where is the office?
"""

_SPAN = """
start: {name} start; start of the {name}; first day of the {name}; beginning of the {name}; start date of the {name}: When does the {name} begin?; When does the {name} start?; What is the first day of the {name}?; From which date does the {name} run?; On which day does the {name} start?; What is the earlier date of the {name}?; Which date opens the {name}?; The {name} begins when?
end: {name} end; end of the {name}; last day of the {name}; end date of the {name}; close of the {name}: When does the {name} end?; What is the last day of the {name}?; Until which date does the {name} run?; On which day does the {name} end?; When is the {name} over?; What is the later date of the {name}?; Which date closes the {name}?; The {name} ends when?
"""

_KINDS = {"company": "company", "person": "person", "date": "date", "amount": "amount", "time": "time", "phone": "phone",
          "email": "email", "count": "count", "place": "place"}  # fmt: skip
"""Kinds of `QuestionWriter.named` by kinds of concepts; others have no wordings of their own."""
_LONG_FORMS = {"#": "number", "no": "number", "no.": "number", "num": "number", "inv": "invoice", "doc": "document", "acct": "account", "qty": "quantity", "amt": "amount",
               "tel": "telephone number", "reg": "registration", "rev": "revision", "est": "estimate", "agy": "agency", "desc": "description", "alt": "alternate"}  # fmt: skip
PRICE = "price"
"""The concept of fields whose label is an item that was bought."""
OWN, CORE = 0.45, 3
"""Share of a concept's own questions, and before them of those that drawn receipts are asked; names and questions that are always for training."""


@dataclass(frozen=True)
class Concept:
    """What a field means: the pages that have it, its kind, the labels it is printed under, names for it, and questions
    of its own."""

    name: str
    pages: str
    kind: str
    labels: tuple[str, ...]
    names: tuple[str, ...]
    questions: tuple[str, ...]


def _items(text: str, sign: str = ";") -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(sign) if item.strip())


@lru_cache(maxsize=1)
def concepts() -> dict[str, Concept]:
    """All concepts by name."""
    bank, pages = {}, ""
    for line in _BANK.strip().splitlines():
        if not line.startswith(" "):
            pages = line.rstrip(":")
            continue
        name, kind, *labels, names, questions = line.strip().split(": ")
        printed = _items(labels[0], ",") if labels else ()
        bank[name] = Concept(name, pages, kind, printed, _items(names), _items(questions))
    return bank


@lru_cache(maxsize=1)
def _spans() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    rows = (line.split(": ") for line in _SPAN.strip().splitlines())
    return {name: (_items(names), _items(questions)) for name, names, questions in rows}


def concept_of(label: str, pages: str) -> Concept | None:
    """The concept that is printed under a label on pages such as "receipts"."""
    return next((each for each in concepts().values() if each.pages == pages and normal(label) in each.labels), None)


def long_form(label: str) -> str:
    """A label as one would say it: "INV NO" -> "invoice number"."""
    words = re.sub(r"#", " # ", label.replace("(es)", "").strip(" :.,-")).split()
    plain = " ".join(_LONG_FORMS.get(word.lower().rstrip("."), word) for word in words)
    return spoken(plain)


class FieldAsker:
    """Asks for fields of real pages in the wordings of a split."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split, self.writer = random, split, QuestionWriter(random, split)

    def question(self, label: str, concept: str = "", part: str = "") -> str:
        """A question for a field.

        Args:
            label: as printed; empty if the page prints none.
            concept: its concept's name, if known.
            part: "start" or "end" of a range of dates.
        """
        known = concepts().get(concept)
        if concept == PRICE:
            return self.writer.word("price", item=label.lower(), itemlabel=label)
        if part:
            return self._span(label, known, part)
        if known is None:
            return self.writer.named(long_form(label), "", label)
        drawn = f"ask {concept.removeprefix('receipt ')}"  # what drawn receipts are asked
        if known.pages == "receipts" and drawn in WORDINGS and self.random.random() < OWN:
            return self.writer.word(drawn)
        if self.random.random() < OWN:
            return self.random.choice(
                share(known.questions, self.split, f"questions: {concept}", _core(known.questions))
            )
        named = label and self.random.random() < 0.45
        name = long_form(label) if named else self._name(known)
        return self.writer.named(name, _KINDS.get(known.kind, ""), label if named else "")

    def _name(self, concept: Concept) -> str:
        return self.random.choice(share(concept.names, self.split, f"names: {concept.name}", _core(concept.names)))

    def _span(self, label: str, concept: Concept | None, part: str) -> str:
        names, questions = _spans()[part]
        name = self._name(concept) if concept and self.random.random() < 0.6 else long_form(label)
        name = re.sub(r"(^dates of the | dates?$|^dates? )", "", name).strip() or "period"
        if self.random.random() < 0.6:
            return self.random.choice(share(questions, self.split, f"{part} questions", CORE)).format(name=name)
        told = self.random.choice(share(names, self.split, f"{part} names", 1)).format(name=name)
        return self.writer.named(told, "date")


def _core(pool: tuple[str, ...]) -> int:
    return min(CORE, len(pool) - 3)


def wordings(split: Split) -> Iterator[str]:
    """Every wording of a split about known concepts: what `FieldAsker` chooses from."""
    for concept in concepts().values():
        yield from share(concept.questions, split, f"questions: {concept.name}", _core(concept.questions))
        pools = [
            pool
            for pool in ("any", {"phone": "contact", "email": "contact"}.get(concept.kind, concept.kind))
            if pool in WORDINGS
        ]
        for name in share(concept.names, split, f"names: {concept.name}", _core(concept.names)):
            for pool in pools:
                for template in share(WORDINGS[pool], split, pool, min(4, len(WORDINGS[pool]) - 4)):
                    yield template.format(name=name, Name=name[0].upper() + name[1:], label=name)
