"""Words that receipts, invoices and letters have for the same thing: those of training | of validation | of the test."""

# ruff: noqa: E501, SIM905 (lists are readable as running text)
from __future__ import annotations

from random import Random

from ..splits import SPLITS, Split

_TERMS = """
total: Total; TOTAL; Grand total; Total due; Amount due; Total amount; Balance due; Net total; TOTAL SALES; Total incl. tax; Bill total; To pay; Total (incl. GST) | Amount payable; Final total; Total to pay | Sum total; Please pay; Balance to pay
subtotal: Subtotal; Sub total; Sub-total; SUBTOTAL; Total excl. tax; Net; Total before tax; Food total | Goods total; Net sales | Items total; Sum of items
tax: Tax; VAT; GST; Sales tax; TAX; Tax total; VAT 20%; GST 6%; Tax 8.25%; HST; SST 6%; Tax amount; GST @6%; VAT amount; MwSt 19% | Value added tax; State tax; PST 7% | IVA 21%; County tax; Total VAT
service: Service charge; Svc charge; Service; Service charge 10%; Svc Chrg 10%; SERVICE CHG | Service fee; Serv. 12.5% | Service 15%; Staff charge
tip: Tip; Gratuity; TIP | Tip 18%; Suggested gratuity | Tips; Gratuity 20%
discount: Discount; DISCOUNT; Savings; Member discount; Coupon; Less discount | Promotion; You save | Price reduction; Offer
rounding: Rounding; Rounding adj; Rounding adjustment; ROUNDING | Rnd adj. | Rounded
cash: Cash; CASH; Cash tendered; Amount tendered; Cash paid; Paid cash; Tender | Cash received; Cash given | Tendered; Received
change: Change; CHANGE; Change due; Your change; CHANGE DUE; Balance | Change returned; Cash back | Change given; Returned
card: Visa; VISA; Mastercard; Credit card; Debit; Card; AMEX; EFTPOS; Debit card | Maestro; Credit | Card payment; Contactless
date: Date; DATE; Date of sale; Bill date; Invoice date; Order date | Sales date; Printed | Trans. date; Day
time: Time; TIME; Order time; Closed at | Hour; Time of sale | Printed at; Clock
cashier: Cashier; CASHIER; Server; Waiter; Served by; Clerk; Operator; Sales person; Staff | Host; Associate | Attendant; Your server
table: Table; TABLE; Table No; Tbl; Table # | Table no. | Seat; Place
guests: Guests; Pax; Covers; GUESTS; No. of guests | Persons; Diners | People; Cust
number: Receipt No; Receipt #; Bill No; Invoice No; Check #; Check; Order #; Trans #; Ticket; Order; TRN; Document No | Bill #; Slip No | Receipt ID; Chk
register: Register; Till; Terminal; POS; Reg; Lane | Counter; Station | Cash desk; Pump
phone: Tel; Phone; Tel.; TEL; Ph; Telephone; Tel No; Phone No | Call; Ph. | T; Dial
taxid: GST Reg No; VAT No; GST ID; GST Reg; Tax ID; ABN; VAT Reg No; Co. Reg No | VAT ID; Tax Reg. No | TIN; UID
quantity: Qty; QTY; Quantity; No.; Units; Pcs | Count; Cnt | Nos; Number
item: Item; Description; ITEM; Product; Article; Items | Goods; Particulars | Name of item; Purchase
price: Price; Unit price; PRICE; U.Price; Each; Rate; @ | Unit cost; Price/unit | Per unit; Cost
amount: Amount; Total; AMOUNT; Line total; Amt; Total (RM); Ext. price; Value | Sum; Net amount | Charge; Line amount
items sold: Items; Item count; No. of items; Total items; Total qty; ITEMS SOLD | Number of items; Qty sold | Article count; Pieces sold
invoice: Invoice; INVOICE; Tax invoice; Sales invoice; TAX INVOICE; Bill; Statement of account; Commercial invoice | Proforma invoice; Fee note | Service invoice; Statement of charges
invoice number: Invoice number; Invoice No.; Invoice #; INVOICE NO; Inv. No.; Bill number; Invoice ID; Document number; No. | Invoice ref.; Bill No. | Invoice reference; Inv #
invoice date: Invoice date; Date; Date of issue; Issued; Dated; Billing date; DATE; Date issued | Date of invoice; Issue date | Invoiced on; Made out on
due date: Due date; Due; Payment due; Due by; Pay by; Terms due date; Due on; DUE DATE | Payable by; Payment due date | Please pay by; Deadline
customer: Bill to; Billed to; Customer; Sold to; Client; Invoice to; BILL TO; To; Bill To | Charged to; Purchaser | Invoiced to; Invoice recipient
ship to: Ship to; Deliver to; Delivery address; SHIP TO; Shipping address | Dispatch to; Consignee | Goods to; Send to
seller: From; Seller; Issued by; Vendor; Supplier | Company; Merchant | Provider; Sold by
order number: PO number; Purchase order; Order number; P.O. #; Order No.; Your order; Contract no. | Order ref.; PO ref. | Job number; Order reference
customer number: Customer No.; Customer number; Account number; Customer ID; Client No.; Account No. | Acct. ref.; Customer ref. | Client ID; Debtor no.
terms: Terms; Payment terms; TERMS; Terms of payment | Conditions; Payment | Credit terms; Settlement terms
bank: Bank; Bank name; Bank details | Our bank; Paying bank | Banker; Account with
iban: IBAN; Account; IBAN No.; Account no. | Bank account; A/C | Acc. no.; IBAN code
paid: Amount paid; Paid; Payments; Less payments; Deposit paid; Paid to date | Prepaid; Payment received | Already paid; Advance
balance: Balance; Balance due; Outstanding; Amount outstanding; Remaining balance | Open balance; Still due | Left to pay; Unpaid amount
shipping: Shipping; Delivery; Freight; Shipping & handling; Postage; S&H; Carriage | Courier; Delivery charge | Transport; Packing and postage
contact: Contact; Attn; Contact person; Salesperson; Account manager; Your contact; Sales rep | Attention; Handled by | Ask for; In charge
memo from: From; FROM; Sender; From: | Sent by | Originator; Written by
memo to: To; TO; Recipient; For | Addressed to | Attn.; Intended for
memo date: Date; DATE; Sent; Dated | Sent on | Date sent; Written on
memo subject: Subject; SUBJECT; Re; RE; Subj.; Topic | Regarding | Concerning; About
memo cc: Cc; CC; Copy; Copies to; c.c. | Copy to | Carbon copy; Also to
attachment: Attachment; Attachments; Enclosure; Encl.; Attached | File attached | Enclosures; Attached file
""".strip()


def _parsed() -> dict[str, dict[Split, tuple[str, ...]]]:
    table: dict[str, dict[Split, tuple[str, ...]]] = {}
    for line in _TERMS.splitlines():
        concept, parts = line.split(":", 1)
        lists = [tuple(term.strip() for term in part.split(";")) for part in parts.split("|")]
        table[concept] = dict(zip(SPLITS, lists, strict=True))
    return table


TERMS = _parsed()
"""Terms by concept and split."""


def term(random: Random, concept: str, split: Split) -> tuple[str, ...]:
    """All terms of a concept in a drawn order: the first is for the page."""
    terms = TERMS[concept][split]
    return tuple(random.sample(terms, len(terms)))
