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


_GERMAN = """
total: Summe; Gesamt; Gesamtbetrag; Rechnungsbetrag; Total; Zu zahlen | Endbetrag | Gesamtsumme
subtotal: Zwischensumme; Netto; Nettobetrag; Summe netto | Warenwert | Betrag ohne MwSt
tax: MwSt 19 %; MwSt; USt 7 %; Mehrwertsteuer; USt. 19% | Umsatzsteuer | enth. MwSt
discount: Rabatt; Nachlass | Skonto | Abzug
cash: Bar; BAR; Barzahlung; Gegeben | Bargeld | Bar erhalten
change: Rückgeld; Zurück | Wechselgeld | Rückgabe
date: Datum; Verkaufsdatum | Belegdatum | Tag
time: Uhrzeit; Zeit; Uhr | Druckzeit | Kassenzeit
cashier: Bediener; Es bediente Sie; Kassierer | Kellner | Verkäufer
table: Tisch; Tisch-Nr. | Tischnummer | Platz
number: Bon-Nr.; Beleg-Nr.; Rechnung Nr.; Belegnummer | Bonnummer | Kassenbon-Nr.
phone: Tel.; Telefon; Tel | Fon | Rufnummer
taxid: USt-IdNr.; Steuernummer; St.-Nr. | USt-ID | UID-Nr.
quantity: Menge; Anzahl; Stück | Stk. | Anz.
item: Artikel; Bezeichnung; Beschreibung; Leistung | Posten | Ware
price: Einzelpreis; Preis; E-Preis | Stückpreis | Preis/Stk.
amount: Betrag; Gesamtpreis; G-Preis; Summe EUR | Wert | Preis gesamt
items sold: Anzahl Artikel; Artikelanzahl | Artikelzahl | Stückzahl
invoice: Rechnung; RECHNUNG | Faktura | Honorarrechnung
invoice number: Rechnungsnummer; Rechnungsnr.; Rechnungs-Nr.; Re.-Nr. | Belegnr. | Nummer der Rechnung
invoice date: Rechnungsdatum; Ausgestellt am | Re.-Datum | Ausstellungsdatum
due date: Fällig am; Zahlbar bis; Fälligkeit | Zahlungsziel | Fälligkeitsdatum
customer: Rechnung an; Kunde; Rechnungsempfänger | Empfänger | Auftraggeber
ship to: Lieferadresse; Lieferung an | Versand an | Lieferanschrift
order number: Bestellnummer; Auftragsnr.; Bestell-Nr. | Auftragsnummer | Ihre Bestellung
customer number: Kundennummer; Kundennr.; Kd.-Nr. | Kunden-ID | Debitor
shipping: Versand; Versandkosten | Fracht | Lieferkosten
terms: Zahlungsbedingungen | Konditionen | Zahlungsart
contact: Ansprechpartner; Sachbearbeiter | Bearbeiter | Ihr Kontakt
bank: Bank; Bankverbindung | Kreditinstitut | Geldinstitut
iban: IBAN; Konto | Kontonummer | IBAN-Nr.
"""
_FRENCH = """
total: Total; Total TTC; Montant total; Net à payer | Total à payer | Somme totale
subtotal: Sous-total; Total HT; Montant HT | Total hors taxes | Prix HT
tax: TVA; TVA 20 %; TVA 10 %; Montant TVA | Taxe | dont TVA
discount: Remise; Réduction | Rabais | Ristourne
cash: Espèces; Reçu; ESPECES | Comptant | Payé en espèces
change: Rendu; Monnaie | Rendu monnaie | À rendre
date: Date; Date de vente | Date du ticket | Jour
time: Heure; H | Heure de vente | Imprimé à
cashier: Caissier; Servi par; Vendeur | Serveur | Hôtesse
table: Table; Table n° | No de table | Place
number: Ticket n°; Facture n°; N° de ticket | Reçu n° | Ticket no
phone: Tél; Tél.; Téléphone | Tel : | Appel
taxid: N° TVA; SIRET; TVA intracom. | SIREN | No de TVA
quantity: Qté; Quantité | Nombre | Nb
item: Désignation; Article; Description | Produit | Libellé
price: Prix unitaire; PU; P.U. HT | Prix/unité | Tarif
amount: Montant; Total ligne; Prix total | Valeur | Montant net
items sold: Nombre d'articles; Nb articles | Articles | Nb de pièces
invoice: Facture; FACTURE | Note d'honoraires | Facture client
invoice number: Facture n°; N° de facture; Numéro de facture | Réf. facture | No facture
invoice date: Date de facture; Date d'émission | Émise le | Facturé le
due date: Échéance; Date d'échéance; À payer avant | Date limite | Payable le
customer: Facturé à; Client; Adressé à | Destinataire | Acheteur
ship to: Livré à; Adresse de livraison | Lieu de livraison | Expédié à
order number: Commande n°; N° de commande | Bon de commande | Réf. commande
customer number: N° client; Code client | Réf. client | Compte client
shipping: Frais de port; Livraison | Frais de transport | Port
terms: Conditions de paiement | Modalités | Règlement
contact: Contact; Votre contact | Interlocuteur | Suivi par
bank: Banque; Domiciliation | Établissement | Votre banque
iban: IBAN; Compte | No de compte | RIB
"""
_SPANISH = """
total: Total; TOTAL A PAGAR; Importe total; Total EUR | Total factura | Suma total
subtotal: Subtotal; Base imponible; Importe neto | Total sin IVA | Neto
tax: IVA; IVA 21 %; IVA 10%; Cuota IVA | Impuesto | Impuestos
discount: Descuento; Dto. | Rebaja | Bonificación
cash: Efectivo; Entregado; EFECTIVO | Contado | Recibido
change: Cambio; CAMBIO | Vuelta | Devuelto
date: Fecha; Fecha de venta | Fecha ticket | Día
time: Hora; HORA | Hora de venta | Hora impresión
cashier: Cajero; Le atendió; Vendedor | Camarero | Dependiente
table: Mesa; Mesa nº | Número de mesa | Puesto
number: Ticket nº; Nº ticket; Factura simplificada | Recibo nº | Nº recibo
phone: Tel.; Teléfono; Tfno. | Telf. | Llámenos
taxid: CIF; NIF; N.I.F. | C.I.F. | NIF/CIF
quantity: Cant.; Cantidad | Uds. | Unidades
item: Descripción; Artículo; Concepto | Producto | Detalle
price: Precio; Precio unitario; P. unit. | Precio/ud. | Tarifa
amount: Importe; Total línea | Valor | Neto de línea
items sold: Nº de artículos; Artículos | Total artículos | Piezas
invoice: Factura; FACTURA | Minuta | Factura comercial
invoice number: Nº factura; Factura nº; Número de factura | Ref. factura | Núm. factura
invoice date: Fecha de factura; Fecha de emisión | Emitida el | Facturado el
due date: Vencimiento; Fecha de vencimiento | Pagar antes de | Fecha límite
customer: Cliente; Facturar a; Datos del cliente | Destinatario | Comprador
ship to: Enviar a; Dirección de entrega | Entregar en | Lugar de entrega
order number: Pedido nº; Nº pedido | Orden nº | Ref. pedido
customer number: Nº cliente; Código cliente | Ref. cliente | Cuenta cliente
shipping: Gastos de envío; Portes | Transporte | Envío
terms: Forma de pago | Condiciones | Condiciones de pago
contact: Contacto; Atención | Persona de contacto | Gestor
bank: Banco; Entidad | Entidad bancaria | Caja
iban: IBAN; Cuenta | Nº de cuenta | C/C
"""


def _parsed(text: str) -> dict[str, dict[Split, tuple[str, ...]]]:
    table: dict[str, dict[Split, tuple[str, ...]]] = {}
    for line in text.strip().splitlines():
        concept, parts = line.split(":", 1)
        lists = [tuple(term.strip() for term in part.split(";")) for part in parts.split("|")]
        table[concept] = dict(zip(SPLITS, lists, strict=True))
    return table


TERMS = _parsed(_TERMS)
"""Terms by concept and split."""

FOREIGN = {"German": _parsed(_GERMAN), "French": _parsed(_FRENCH), "Spanish": _parsed(_SPANISH)}
"""The same in other languages; English ones where a concept is missing."""


def term(random: Random, concept: str, split: Split, language: str = "English") -> tuple[str, ...]:
    """All terms of a concept in a drawn order: the first is for the page."""
    terms = FOREIGN.get(language, TERMS).get(concept, TERMS[concept])[split]
    return tuple(random.sample(terms, len(terms)))
