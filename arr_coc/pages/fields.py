"""Names of fields of real documents by domain, with synonyms and kinds of values.

A line of a domain: `Name = synonym = synonym ~ kind of value`, see `values.KINDS`. The page prints one of the names, a
question can use another; all are held out together. Terms of receipts, invoices and letters for the same concept are
listed as: training | validation | test.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from .splits import SPLITS, Split, Words, share

# ruff: noqa: E501, SIM905 (lists are readable as running text)


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
"""The same in other languages; English for missing concepts."""


def term(random: Random, concept: str, split: Split, language: str = "English") -> tuple[str, ...]:
    """All terms of a concept in random order; the first is for the page."""
    terms = FOREIGN.get(language, TERMS).get(concept, TERMS[concept])[split]
    return tuple(random.sample(terms, len(terms)))


# ruff: noqa: E501, SIM905 (lists are readable as running text)


@dataclass(frozen=True)
class Field:
    """A field of a document: its names, the printed one first, and the kind of its value."""

    names: tuple[str, ...]
    kind: str

    @property
    def name(self) -> str:
        """The printed name."""
        return self.names[0]

    def __str__(self) -> str:
        return "/".join(sorted(self.names))


_DOMAINS = """
general: Name = Full name = Name in full ~ person; Date = Dated ~ date; Address = Postal address ~ address; Phone = Tel = Telephone = Phone number = Tel. No. ~ phone;
  E-mail = Email = Email address ~ email; Fax = Fax number = Fax No. ~ phone; City = Town ~ city; Country ~ country; Website = Web site = Web page ~ url;
  Reference = Ref. = Our ref. = Reference number ~ code; From ~ person; To ~ person; Subject = Re ~ words; Date of birth = DOB = Born = Birth date ~ date;
  First name = Given name = Forename ~ first; Last name = Surname = Family name ~ last; Signature = Signed by ~ person; Comments = Remarks ~ note; Mobile = Cell phone = Mobile phone ~ phone; Company = Company name = Firm ~ company;
  Title = Job title = Position ~ job; Status ~ choice; Time ~ time; Number = No. ~ number; Department = Dept. ~ words; Place of birth = Birthplace ~ place;
  Nationality = Citizenship ~ country; Contact = Contact person = Contact name ~ person; Postcode = ZIP = ZIP code = Postal code ~ postcode; State ~ state; Type ~ words;
  Location ~ place; Page count = No. of pages = Number of pages ~ count; Prepared by = Author ~ person; Approved by = Approval by ~ person; Issued on = Date of issue = Issue date ~ date; Valid until = Expiry date = Expires ~ date;
  Start date = Begins on ~ date; End date = Ends on ~ date; Occupation = Profession ~ job; Age ~ count; Sex = Gender ~ choice; Marital status ~ choice; Language ~ words; Category ~ words; Description ~ note; Purpose ~ note; Priority = Urgency ~ choice
application form: Applicant = Name of applicant ~ person; Application number = Application No. ~ code; Received on = Date received ~ date; Reason for application ~ note; Annual income = Yearly income ~ amount; Monthly rent ~ amount;
  Household size = People in household ~ count; Previous address = Former address ~ address; Current employer = Employer ~ company; Employed since = Date hired ~ date; Guarantor ~ person; Guarantor's phone ~ phone; Next of kin ~ person;
  Emergency contact ~ person; Emergency number ~ phone; Relationship ~ words; Passport number = Passport No. ~ code; Driver's licence = Driving licence No. ~ code; Social security number = SSN ~ code; Tax ID = TIN = Tax number ~ code;
  Years at address ~ count; Monthly expenses ~ amount; Savings ~ amount; Preferred contact ~ choice; Residency status ~ choice; Visa type ~ words; Referee = Reference person ~ person; Decision ~ choice; Caseworker = Case officer ~ person; Processing fee ~ amount; Witness = Witnessed by ~ person
patient record: Patient = Patient name = Name of patient ~ person; Patient ID = MRN = Medical record number ~ code; Physician = Doctor = Attending physician ~ person; Date of admission = Admitted = Admission date ~ date; Date of discharge = Discharged ~ date;
  Diagnosis ~ words; Allergies ~ words; Blood type = Blood group ~ code; Height ~ measure; Weight ~ measure; Pulse = Heart rate ~ number; Blood pressure = BP ~ code; Temperature = Temp. ~ measure; Ward ~ words; Room ~ code; Insurance provider = Insurer ~ company;
  Member ID ~ code; Next appointment = Follow-up ~ date; Medication = Drug ~ words; Dose = Dosage ~ measure; Frequency ~ words; Pharmacy ~ company; Specimen = Sample ~ words; Collected on = Collection date ~ date; Laboratory = Lab ~ company; Result ~ measure; Reference range ~ code; Referred by = Referring doctor ~ person;
  Nurse ~ person; Surgeon ~ person; Procedure ~ words; Symptoms ~ note; Smoker ~ choice; Copay = Co-payment ~ amount; Vaccine ~ words; Batch = Lot number ~ code
shipping note: Sender = Shipper = Consignor ~ company; Recipient = Consignee = Receiver ~ company; Tracking number = Tracking No. = Consignment No. ~ code; Ship date = Shipped on = Date shipped ~ date; Delivery date = Delivered on ~ date; Ship to = Deliver to ~ address; Ship from ~ address;
  Carrier = Shipped via ~ company; Gross weight ~ measure; Net weight ~ measure; Number of parcels = Pieces = Packages ~ count; Volume ~ measure; Declared value ~ amount; Customs code = HS code = Tariff code ~ code; Port of loading = Loading port ~ city; Port of discharge ~ city; Vessel = Ship ~ words; Voyage = Voyage No. ~ code; Container = Container No. ~ code;
  Seal number = Seal ~ code; Freight = Freight charges ~ amount; Incoterms = Terms of delivery ~ words; Driver = Driver's name ~ person; Licence plate = Vehicle No. ~ code; Bill of lading = B/L No. ~ code; Dimensions = Size ~ measure; Country of origin = Origin ~ country; Destination ~ place; Pallets ~ count; Dispatch time ~ time; Weighed by ~ person; Handling instructions ~ note; Dock ~ code
school record: Student = Pupil = Student name ~ person; Student ID = Student number ~ code; Teacher = Class teacher ~ person; Class = Form ~ code; Grade = Year group ~ count; School = Name of school ~ company; Principal = Head teacher ~ person; Term = Semester ~ words; School year = Academic year ~ year; GPA = Grade point average ~ number;
  Absences = Days absent ~ count; Course = Course title ~ words; Credits ~ count; Instructor = Lecturer ~ person; Mark = Score ~ number; Exam date = Date of exam ~ date; Enrolled on = Enrolment date ~ date; Degree ~ words; Major = Field of study ~ words; Parent = Guardian ~ person; Tuition = Tuition fee ~ amount; Scholarship ~ amount; Conduct = Behaviour ~ words; Class size ~ count; Homeroom ~ code; Graduation = Graduates on ~ date; Thesis title = Topic ~ note; Supervisor = Advisor ~ person; Seat number ~ code
bank statement: Account holder = Account name ~ person; Account number = Account No. = A/C No. ~ code; IBAN ~ iban; BIC = SWIFT = SWIFT code ~ code; Sort code = Routing number ~ code; Opening balance = Balance brought forward ~ amount; Closing balance = New balance ~ amount; Available credit ~ amount; Credit limit ~ amount; Interest rate = Rate of interest ~ percent;
  Statement date = Date of statement ~ date; Statement period ~ words; Branch = Branch office ~ city; Minimum payment = Minimum amount due ~ amount; Payment due date = Pay by ~ date; Overdraft ~ amount; Total deposits = Deposits ~ amount; Total withdrawals = Withdrawals ~ amount; Fees = Bank charges ~ amount; Card number = Card No. ~ code; Loan amount ~ amount; Loan term = Term of loan ~ measure; Beneficiary = Payee ~ person; Payer = Remitter ~ person; Transaction ID ~ code; Exchange rate ~ number; Relationship manager ~ person; Cheque number = Check No. ~ code; Standing order ~ amount; Last login ~ date
insurance policy: Policy number = Policy No. ~ code; Insured = Policyholder = Name of insured ~ person; Premium = Annual premium ~ amount; Sum insured = Coverage = Insured amount ~ amount; Deductible = Excess ~ amount; Claim number = Claim No. ~ code; Date of loss = Loss date = Date of accident ~ date; Agent = Broker ~ person; Underwriter ~ company; Effective date = In force from ~ date;
  Renewal date = Renews on ~ date; Beneficiaries ~ person; Vehicle = Vehicle make ~ words; Registration number = Reg. No. ~ code; VIN = Chassis number ~ code; Year of manufacture = Model year ~ year; Mileage = Odometer ~ measure; No-claims bonus = No-claims discount ~ percent; Adjuster = Loss adjuster ~ person; Settlement = Amount paid ~ amount; Third party ~ person; Police report No. ~ code; Cause of damage ~ note; Repair shop = Garage ~ company; Estimate = Estimated cost ~ amount; Roof type ~ words; Floor area = Living area ~ measure; Year built = Built in ~ year
employment record: Employee = Employee name = Name of employee ~ person; Employee ID = Staff number = Personnel No. ~ code; Manager = Line manager = Reports to ~ person; Hire date = Date of hire = Joined on ~ date; Salary = Base salary ~ amount; Gross pay = Gross salary ~ amount; Net pay = Take-home pay ~ amount; Overtime = Overtime hours ~ measure; Hours worked ~ number; Hourly rate = Rate per hour ~ amount; Pay period ~ words; Pay date = Payment date ~ date;
  Bonus ~ amount; Deductions = Total deductions ~ amount; Pension = Pension contribution ~ amount; Vacation days = Annual leave = Holidays ~ count; Sick days = Sick leave ~ count; Contract type = Type of contract ~ choice; Notice period ~ measure; Shift ~ choice; Cost centre ~ code; Office ~ city; Division = Business unit ~ words; Team ~ words; Last working day = Leaving date ~ date; Reason for leaving ~ note; Performance rating = Rating ~ number; Trainer ~ person; Union member ~ choice; Tax class = Tax code ~ code; Payroll number ~ code
order: Order number = Order No. = Order # ~ code; Order date = Ordered on = Date ordered ~ date; Customer = Client = Customer name ~ company; Customer number = Customer ID = Client No. ~ code; Salesperson = Sales rep = Account executive ~ person; Purchase order = PO number = P.O. No. ~ code; Payment terms = Terms ~ words; Payment method = Paid by ~ choice; Shipping method ~ words; Quantity = Qty ~ count; Unit price = Price each ~ amount; Discount = Rebate ~ percent;
  Delivery address ~ address; Billing address = Bill to ~ address; Requested delivery = Required by ~ date; Project = Project name ~ words; Buyer = Purchaser ~ person; Vendor = Supplier ~ company; Quote number = Quotation No. ~ code; Quote valid until ~ date; Warranty = Guarantee ~ measure; Serial number = S/N = Serial No. ~ code; Model = Model No. ~ code; Colour = Color ~ words; Material ~ words; SKU = Item number = Article No. ~ code; Stock = In stock ~ count; Warehouse ~ city; Lead time ~ measure; Voucher code = Coupon ~ code; Deposit = Down payment ~ amount; Backorder ~ count; Reorder level ~ count
advertising contract: Advertiser = Name of advertiser ~ company; Agency = Agency name ~ company; Product = Product name ~ product; Station = Broadcast station ~ code; Market ~ city; Flight dates = Flight ~ words; Flight start = First air date ~ date; Flight end = Last air date ~ date; Contract number = Contract No. = Contract # ~ code; Gross amount = Gross total ~ amount; Net amount = Net total ~ amount; Commission = Agency commission ~ amount; Spots = Number of spots = Total spots ~ count; Rate = Unit rate ~ amount; Demographic = Target group ~ code; Revision = Revision No. ~ count; Campaign = Campaign name ~ words; Billing cycle = Billing period ~ words; Traffic contact ~ person; Property = Channel ~ words; Copy length = Spot length ~ measure; Impressions ~ number; Estimate number = Est. No. ~ code; Brand = Trademark ~ words; Headline ~ words; Circulation ~ number; Issue = Issue No. ~ count
utility bill: Meter number = Meter No. ~ code; Meter reading = Current reading ~ number; Previous reading = Last reading ~ number; Consumption = Usage ~ measure; Supply address = Service address ~ address; Tariff = Price plan ~ words; Billing date = Bill date ~ date; Amount due = Total amount due ~ amount; Due date = Payment due ~ date; Standing charge = Basic charge ~ amount; Previous balance = Last bill ~ amount; Payments received ~ amount; Unit rate per kWh ~ amount; Customer service = Helpline ~ phone; Estimated annual usage ~ measure; Supplier number ~ code; Technician = Engineer ~ person; Next reading ~ date; Late fee = Late payment charge ~ amount; Direct debit ~ choice; Gas used ~ measure; Water used ~ measure; Carbon factor ~ number
permit: Permit number = Permit No. = Licence No. ~ code; Holder = Permit holder = Licensee ~ person; Issuing authority = Issued by = Authority ~ company; Inspector = Inspected by ~ person; Inspection date = Date of inspection ~ date; Site address = Property address ~ address; Parcel number = Plot No. ~ code; Zoning = Zone ~ code; Owner = Property owner ~ person; Contractor = Builder ~ company; Estimated value ~ amount; Fee = Permit fee ~ amount; County = District ~ city; Registrant = Name of registrant ~ company; Foreign principal ~ company; Registration date = Registered on ~ date; Nature of activity = Activities ~ note; Capacity = Maximum occupancy ~ count; Fire marshal ~ person; Violation = Offence ~ words; Fine = Penalty ~ amount; Court date = Hearing date ~ date; Judge ~ person; Plaintiff = Claimant ~ company; Defendant = Respondent ~ company; Case number = Case No. = Docket No. ~ code; Attorney = Counsel = Lawyer ~ person; Clerk ~ person; Case type ~ words; Notary = Notary public ~ person
travel booking: Passenger = Traveller = Passenger name ~ person; Flight number = Flight No. ~ code; Departure = Departs = Departure time ~ time; Arrival = Arrives = Arrival time ~ time; Departure city = Flying from ~ city; Arrival city = Flying to ~ city; Gate = Boarding gate ~ code; Seat = Seat No. ~ code; Booking reference = PNR = Confirmation code ~ code; Boarding time = Boards at ~ time; Terminal ~ code; Baggage = Luggage allowance ~ measure; Fare = Ticket price ~ amount; Travel class = Cabin ~ choice; Hotel = Hotel name ~ company; Check-in = Check-in date ~ date; Check-out = Check-out date ~ date; Nights = Number of nights ~ count; Guests = Number of guests ~ count; Room type ~ words; Room number = Room No. ~ code; Rate per night = Nightly rate ~ amount; City tax = Tourist tax ~ amount; Car type = Vehicle class ~ words; Pick-up location = Pick-up ~ place; Drop-off location = Drop-off ~ place; Platform = Track ~ code; Coach = Carriage ~ code; Train number = Train No. ~ code; Meal = Meal preference ~ words; Frequent flyer No. ~ code; Layover = Stopover ~ city
technical report: Project manager = Project lead ~ person; Sample ID = Specimen No. ~ code; Test method = Method ~ words; Tested by = Operator ~ person; Test date = Date tested ~ date; Humidity = Relative humidity ~ percent; Pressure ~ measure; Speed ~ measure; Voltage ~ measure; Power ~ measure; Current ~ measure; Density ~ measure; Yield ~ percent; Tolerance ~ measure; Firmware = Firmware version ~ code; Software version = Version ~ code; Machine = Machine No. ~ code; Part number = Part No. ~ code; Drawing number = Drawing No. ~ code; Scale ~ code; Checked by = Reviewer ~ person; Defects = Defects found ~ count; Inspector's stamp ~ code; Calibration due = Next calibration ~ date; Runtime = Operating hours ~ measure; Setpoint ~ number; Alarm ~ words; Viscosity ~ measure; Hardness ~ number; Shelf life = Best before ~ date; Moisture = Moisture content ~ percent; Tar content = Tar ~ measure; Filter type ~ words; Cigarette length ~ measure; Circumference ~ measure; Laboratory notebook ~ code; Budget ~ amount; Requested by = Requester ~ person; Distribution = Distribution list ~ words; Date completed = Completed on ~ date
event registration: Event = Event name ~ words; Venue = Event venue ~ company; Doors open = Admission from ~ time; Starts at = Start time ~ time; Ends at = End time ~ time; Organiser = Organizer = Host ~ company; Speaker = Keynote speaker ~ person; Ticket number = Ticket No. ~ code; Ticket type ~ words; Section ~ code; Row ~ code; Admission = Entry fee ~ amount; Table number ~ count; Dress code ~ words; Attendees = Participants ~ count; Chairperson = Chair ~ person; Minutes taken by = Secretary ~ person; Session ~ words; Track name ~ words; Workshop ~ words; Badge number = Badge No. ~ code; Dietary needs ~ words; T-shirt size ~ choice; Team name ~ words; Coach name ~ person; Rank = Final rank ~ count; Finish time ~ time; Distance ~ measure; Sponsor ~ company; Prize money ~ amount; Referee name ~ person; Parking = Parking space ~ code
real estate listing: Asking price = List price ~ amount; Bedrooms ~ count; Bathrooms ~ count; Lot size = Plot size ~ measure; Landlord = Lessor ~ person; Tenant = Lessee ~ person; Rent = Monthly payment ~ amount; Security deposit = Bond ~ amount; Lease start = Commencement ~ date; Lease end = Termination ~ date; Heating = Heating type ~ words; Garage spaces ~ count; Storeys = Floors ~ count; Energy class = Energy rating ~ code; Listing agent = Realtor ~ person; Listed on = Date listed ~ date; Property type ~ words; Property tax = Annual taxes ~ amount; HOA fee = Service fee ~ amount; Available from = Vacant from ~ date; Pets = Pets allowed ~ choice; Furnished ~ choice; Listing ID = MLS number ~ code; School district ~ city; View ~ words; Orientation ~ words; Notary fee ~ amount; Mortgage = Mortgage amount ~ amount; Ceiling height ~ measure; Balcony ~ choice
"""

_CORE = ("general",)  # domains with all names in training, as nearly every document has them
_TITLES = """Registration Form; Application Form; Data Sheet; Record; Statement; Notice; Certificate; Request; Report; Questionnaire; Information Sheet; Order
Form; Declaration; Confirmation; Summary; Claim Form; Transmittal Sheet; Enrolment Form; Cover Sheet; Permit; Consent Form; Checklist; Details; Survey; Profile;
Worksheet; Referral; Agreement Summary; Voucher; Ledger Card"""


@lru_cache(maxsize=1)
def domains() -> dict[str, tuple[Field, ...]]:
    """Fields by domain."""
    table: dict[str, tuple[Field, ...]] = {}
    for line in _DOMAINS.strip().replace("\n  ", " ").splitlines():
        domain, entries = line.split(":", 1)
        pairs = (entry.split("~") for entry in entries.split(";"))
        table[domain] = tuple(Field(tuple(n.strip() for n in names.split("=")), kind.strip()) for names, kind in pairs)
    return table


@lru_cache(maxsize=64)
def fields_of(domain: str, split: Split) -> tuple[Field, ...]:
    """A split's fields of a domain, without names that are terms of another split."""
    fields = domains()[domain]
    own = share(fields, split, "field", core=len(fields) // 2 if domain in _CORE else 0)
    others = {
        name.casefold()
        for terms in TERMS.values()
        for other, names in terms.items()
        if other != split
        for name in names
    }
    kept = (Field(tuple(name for name in field.names if name.casefold() not in others), field.kind) for field in own)
    return tuple(field for field in kept if field.names)


@lru_cache(maxsize=4)
def all_fields(split: Split) -> tuple[Field, ...]:
    """A split's fields of all domains."""
    return tuple(field for domain in domains() for field in fields_of(domain, split))


_INVENTED_KINDS = (
    "amount",
    "number",
    "date",
    "code",
    "words",
    "person",
    "measure",
    "percent",
    "company",
    "count",
    "time",
)
_ENDINGS = ("number", "date", "code", "name", "type", "rate", "total", "level", "ID", "fee", "No.", "status", "class")


class FieldNames:
    """Draws fields of a split: of a domain, of any domain, or with invented names."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split, self.words = random, split, Words(random, split)

    def invented(self) -> Field:
        """A field with a name of dictionary words or made-up words."""
        draw = self.random.random()
        name = self.words.thing() if draw < 0.6 else self.words.noun()
        kind = self.random.choice(_INVENTED_KINDS)
        if draw > 0.75:
            ending = self.random.choice(_ENDINGS)
            name = f"{name} {ending}"
            kind = {"number": "code", "date": "date", "code": "code", "name": "person", "type": "words", "rate": "percent",
                    "total": "amount", "level": "number", "ID": "code", "fee": "amount", "No.": "code", "status": "choice",
                    "class": "code"}[ending]  # fmt: skip
        return Field((name[0].upper() + name[1:],), kind)

    def domain(self) -> str:
        """The name of a random domain."""
        return self.random.choice(list(domains()))

    def title(self, domain: str) -> str:
        """A heading for a document of a domain."""
        pool = tuple(" ".join(title.split()) for title in _TITLES.split(";"))
        ending = self.random.choice(share(pool, self.split, "title"))
        draw = self.random.random()
        if draw < 0.3:
            return f"{self.words.noun()} {ending}".title()
        if draw < 0.5:
            return f"{self.words.adjective()} {self.words.noun()} {ending}".title()
        start = domain.rsplit(" ", 1)[0]
        return domain.title() if draw > 0.93 or start == "general" and draw > 0.9 else f"{start} {ending}".title()

    def draw(self, domain: str, count: int) -> list[Field]:
        """`count` fields with different names, each with its names in random order."""
        pools = (
            (fields_of(domain, self.split), 0.5),
            (fields_of("general", self.split), 0.22),
            (all_fields(self.split), 0.08),
        )
        drawn: dict[str, Field] = {}
        taken: set[str] = set()
        while len(drawn) < count:
            draw, field = self.random.random(), None
            for pool, weight in pools:
                if draw < weight:
                    field = self.random.choice(pool)
                    break
                draw -= weight
            field = field or self.invented()
            if taken & {name.casefold() for name in field.names}:
                field = self.invented()
            if field.name.casefold() in taken:
                continue
            taken.update(name.casefold() for name in field.names)
            names = self.random.sample(field.names, len(field.names))
            drawn[names[0]] = Field(tuple(names), field.kind)
        return list(drawn.values())
