"""Names of fields of real documents, by domain, with the kind of value that each has and other words for it.

A line of a domain: `Name = synonym = synonym ~ kind of value`, see `values.KINDS`. The page prints one of the names, a
question may use another; all of them are held out together.
"""

# ruff: noqa: E501, SIM905 (lists are readable as running text)
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from ..splits import Split
from .pools import Words, share
from .terms import TERMS


@dataclass(frozen=True)
class Field:
    """What a document has a place for: its names, the printed one first, and the kind of its value."""

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

_CORE = ("general",)  # domains of which training knows every name: what nearly every document says
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
    """The fields of a domain that a split shows, with those of their names that no other split has among its terms."""
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
    """The fields of all domains that a split shows."""
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
    """Draws fields of a split: of a domain, of any, or with names that no list holds."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split, self.words = random, split, Words(random, split)

    def invented(self) -> Field:
        """A field whose name is made of dictionary or made-up words."""
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
        """A domain's name."""
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
        """So many fields with different names, each with its names in a drawn order."""
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
