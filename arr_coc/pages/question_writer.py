"""Questions about a page, in natural wordings, with the boxes of their answers."""

# ruff: noqa: E501, SIM905 (lists are readable as running text)
from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from ..modeling.image_processing_arr_coc import Box
from .page import ABSENT, Question
from .sheet import Piece, Pieces, joined
from .splits import Split, share

DETAIL, SPREAD, TWO_PLACES, GIST, TICK = "detail", "spread", "two places", "gist", "tick"
"""Kinds of questions: the answer is printed in its boxes; needs a comparison; is printed in two places; is about the
whole page; is whether a box is ticked. `ABSENT`: the answer is not on the page."""

NOT_THERE = "not on the page"

_TEXT = """
any: What is the {name}?; what is the {name}; What's the {name}?; {Name}?; {name}; {Name}:; {name}?; Find the {name}.; Give me the {name}.; What does it say for {name}?; What does the form say for "{label}"?;
  What is the value of the field "{label}"?; What is the "{label}"?; What {name} is given?; Which {name} is given?; Tell me the {name}.; Read the {name}.; Read out the {name}; Please give me the {name}.; What is given as the {name}?; Can you find the {name}?; I need the {name}.;
  Show me the {name}.; Look up the {name}.; What does this page give as {name}?; What is written for {name}?; What is entered as {name}?; Which value does {name} have?; What is the value of {name}?; What's in the field {name}?; "{label}"?; What {name} does it show?; Could you tell me the {name}?; {Name} please; {Name}, please.;
  Do you see the {name}? What is it?; What stands for {name} here?; What is listed under {name}?; What is recorded as the {name}?; Extract the {name}.; Return the {name} only.; What {name} do you see?; What is filled in at "{label}"?; Which entry belongs to {name}?; Copy the {name}.; How does the page state the {name}?; What is stated as {name}?; Quote the {name}.; What has been entered for {name}?;
  What does "{label}" say?; What is shown for {name}?; state the {name}; Locate the {name} and read it.; Identify the {name}.; The {name} is what?; What do I find at "{label}"?; What would I write down as {name}?; Name the {name}.; what {name} is on this page?; Which {name} is printed?; According to this document, what is the {name}?; In this document, what is the {name}?; On this page, what is the {name}?; What information is given for "{label}"?; I'm looking for the {name}.; Please read the field {name}.; What is the exact {name}?
quoted: What does it say for "{label}"?; What is the "{label}"?; What does the form say for "{label}"?; What is the value of the field "{label}"?; "{label}"?; What is in the field "{label}"?; What is filled in at "{label}"?; What does "{label}" say?; What do I find at "{label}"?; What is entered for "{label}"?; What information is given for "{label}"?; What is given under "{label}"?; Which value has the entry "{label}"?; {label}?; {label}:; Read the field "{label}".; Find the entry "{label}".; What is written for "{label}"?; Give me the entry for "{label}".; Which entry belongs to "{label}"?
date: When is the {name}?; Which date is given as the {name}?; What date is the {name}?; On what date is the {name}?; Which day is the {name}?; What day does it give for {name}?; On which day is the {name}?; When was the {name}?; {name}: which date?; Which date stands for {name}?; What date does the page give for the {name}?; When is {name}?; What is the date for "{label}"?
person: Who is the {name}?; Who is named as {name}?; Who is given as the {name}?; Who is the {name} here?; Which person is the {name}?; Whose name is given as {name}?; Who is listed as {name}?; What is the name of the {name}?; Who is entered as the {name}?; What is the {name} called?; Who appears as {name}?; What name is written at "{label}"?; Give the name of the {name}.
company: Which company is the {name}?; What is the name of the {name}?; Who is the {name}?; Which firm is the {name}?; What company is named as {name}?; Which organisation is given as the {name}?; What is the {name} called?; Name the company that is the {name}.; Which business is the {name}?; Who is stated as {name}?
amount: How much is the {name}?; What amount is given for the {name}?; How high is the {name}?; What is the amount of the {name}?; How much does the {name} come to?; How much money is the {name}?; How much is it for {name}?; {name} amount?; What sum is given as {name}?; How much {name}?; To how much does the {name} amount?; How large is the {name}?; What figure is given for {name}?; How much was the {name}?; What does the {name} come to?
time: At what time is the {name}?; What time is given for {name}?; When is the {name}?; What time is the {name}?; At which time is {name}?; Which time does it say for {name}?; {name}: what time?; What hour is given as {name}?; What time does the page give for {name}?; At what hour is the {name}?
count: How many {name}?; How much is the {name}?; What number is given for {name}?; Which number stands for {name}?; What figure is given for {name}?; How many does it say for {name}?; How many are given under {name}?; What is the number for {name}?; What count is given for {name}?; Which number is entered at "{label}"?
place: Where is the {name}?; Which place is given as {name}?; What place is the {name}?; Which place is named for {name}?; Where is the {name}, according to this page?; What location is given for {name}?; Which town or place is the {name}?; {name}: where?; Where does it say the {name} is?
measure: How much is the {name}?; What {name} is noted?; What figure is given for the {name}?; What is the reading for {name}?; Which value was noted for {name}?; What measurement is given for {name}?; What is the measured {name}?
percent: What percentage is the {name}?; How many percent is the {name}?; How high is the {name}?; What percentage is given for {name}?; At what percentage is the {name}?; Which percentage stands for {name}?; What rate is given for {name}?; How much percent is the {name}?
contact: How can I reach them, what is the {name}?; Which {name} should I use?; What {name} can I use to contact them?; Under which {name} can they be reached?; Where do I send it, what is the {name}?; What {name} do they give?; Which {name} is listed?; To contact them, which {name}?
right: What is written to the right of "{label}"?; What is to the right of "{label}"?; What stands right of "{label}"?; What is written next to "{label}"?; What is next to "{label}"?; What is beside "{label}"?; Which text follows "{label}" on its line?; What comes after "{label}"?; What is printed beside "{label}"?; Read what is right of "{label}".; What appears to the right of {label}?; Which text is on the right of "{label}"?
under: What is written under "{label}"?; What is below "{label}"?; What is directly under "{label}"?; What stands below "{label}"?; Which text is under "{label}"?; What is printed beneath "{label}"?; Read what is under "{label}".; What appears below {label}?; What is the text underneath "{label}"?; What can be read just below "{label}"?
above: What is written above "{label}"?; What is above "{label}"?; Which text is directly above "{label}"?; What stands above "{label}"?; What is printed over "{label}"?; What appears just above "{label}"?; Read what is above "{label}".; What is the text over "{label}"?
inverse: Which field says "{label}"?; What is the label of "{label}"?; "{label}" is the value of which field?; What is "{label}"?; Which field has the value {label}?; For which field is "{label}" entered?; Under which name is "{label}" listed?; Where it says "{label}", what is the field called?; What does "{label}" stand for on this page?; Which entry reads "{label}"?
cell: What is the {column} of {row}?; What is the {column} for {row}?; What is "{columnlabel}" for "{rowlabel}"?; In the table, what is the value for "{rowlabel}" in the column "{columnlabel}"?; In the row {row}, what is the {column}?; {row}: {column}?; {column} of {row}; Which {column} does {row} have?; What {column} is given for {row}?; What does the table say for {row} under {column}?; Give me the {column} of {row}.;
  Find the {column} for {row}.; What is in the column {column} of the row {row}?; {row}, {column}; What is {row}'s {column}?; Look up {column} for {row}.; What value does {row} have in {column}?; Which entry is in row "{rowlabel}" and column "{columnlabel}"?; Read the cell at row "{rowlabel}", column "{columnlabel}".; What is the entry for {row} in {column}?; Tell me the {column} for {row}.; What stands in column {column} for {row}?; For {row}, what is the {column}?; What's the {column} of {row}?; Under {column}, what is given for {row}?; Which value is listed for {row} under "{columnlabel}"?; I want the {column} of {row}.; How does the table give the {column} of {row}?
row of: Which row has {value} under {column}?; Which {head} has a {column} of {value}?; For which {head} is the {column} {value}?; Where is the {column} {value}?; Which {head} has {value} as {column}?; {value} is the {column} of which {head}?; In which row is the {column} {value}?; Whose {column} is {value}?; What {head} goes with {column} {value}?; Which entry of the table has {column} {value}?
highest: Which {head} has the highest {column}?; Which {head} has the largest {column}?; What {head} has the greatest {column}?; Where is the {column} the highest?; Which {head} is first in {column}?; Which {head} has the most {column}?; Name the {head} with the highest {column}.; For which {head} is the {column} the largest?; highest {column}?; Who or what has the biggest {column}?; The {column} is highest for which {head}?
lowest: Which {head} has the lowest {column}?; Which {head} has the smallest {column}?; What {head} has the least {column}?; Where is the {column} the lowest?; Which {head} is last in {column}?; Name the {head} with the lowest {column}.; For which {head} is the {column} the smallest?; lowest {column}?; The {column} is lowest for which {head}?; Which {head} shows the minimum {column}?
price: What did I pay for the {item}?; How much is the {item}?; How much does the {item} cost?; What is the price of {item}?; What is the price of the {item}?; How much was the {item}?; What does the {item} cost?; price of {item}; {item}?; What did the {item} cost?; How much was paid for {item}?; What was charged for the {item}?; Find the price of "{itemlabel}".; How much for the {item}?; Give me the amount for {item}.; What amount is next to {item}?;
  What was I charged for {item}?; {item} price; Tell me what the {item} costs.; For how much was the {item} sold?; How expensive is the {item}?; What sum is listed for {item}?; Which price is printed for "{itemlabel}"?; {item}: how much?; How much did they charge for the {item}?
quantity: How many {item} were bought?; What is the quantity of {item}?; How many of {item}?; quantity of {item}; How many {item} did I buy?; Which quantity is given for {item}?; How many units of {item} are there?; What number of {item} was ordered?; How often was {item} ordered?; {item}: how many?; What is the count for {item}?; How many pieces of "{itemlabel}"?
dearest: Which item costs most?; What is the most expensive item?; Which item was the most expensive?; What was the dearest item?; Which article costs the most?; Name the item with the highest price.; What did I pay the most for?; Which line has the highest amount?; most expensive item?; What is the priciest thing on the list?; Which product is the most expensive?
cheapest: Which item costs least?; What is the cheapest item?; Which item was the cheapest?; Which article costs the least?; Name the item with the lowest price.; What did I pay the least for?; Which line has the lowest amount?; cheapest item?; What is the least expensive item?; Which product is the cheapest?
item of price: Which item costs {value}?; What costs {value}?; What was bought for {value}?; For which item was {value} paid?; Which article is {value}?; {value} is the price of what?; Which item has the price {value}?; What did I get for {value}?
ask total: How much did I pay?; What is the total?; How much is the total?; How much was the bill?; How much is it altogether?; What is the total amount?; How much does it come to?; What is the sum?; How much was the total of this receipt?; What is the amount to pay?; total?; How much did it all cost?; What was the total price?; How much was spent?; Give me the total.; What's the bottom line?; How much is owed?; Find the total.; How high is the bill?; What does everything cost together?; What is the grand total?; What's the total on this?; How much do I owe?; total amount
ask subtotal: What is the subtotal?; How much is it before tax?; What is the subtotal amount?; How much is the subtotal?; What is the sum before tax?; subtotal?; What does it come to without tax?; What's the net amount?; Find the subtotal.; What is the sum of the items?
ask tax: How much tax?; How much tax was paid?; What is the tax?; How much is the VAT?; What is the GST?; VAT amount?; What is the tax amount?; How much sales tax was charged?; What tax was charged?; tax?; How high is the tax?; How much goes to the tax office?; What is the amount of tax?; What did the tax come to?; GST?; How much of it is tax?
ask service: How much is the service charge?; What is the service charge?; Was a service charge added, and how much?; service charge?; How much was charged for service?; What did the service cost?; How high is the service charge?; What amount was added for service?; How much was added for the staff?; What's the fee for service?
ask tip: How much is the tip?; What tip was given?; How much was tipped?; tip?; What is the gratuity?; How high was the tip?; How much was left as a tip?; What gratuity was paid?
ask discount: How much is the discount?; What discount was given?; How much was taken off?; discount?; How much was saved?; By how much was it reduced?; What is the discount?; How much did I save?; What rebate was given?
ask cash: How much cash was given?; How much cash was paid?; How much did the customer hand over?; What amount was tendered?; cash?; How much was paid in cash?; What did I give in cash?; How much money was handed over?; What is the cash amount?; What was received in cash?
ask change: How much change was given?; How much change did I get?; What is the change?; change?; How much money was returned?; What did I get back?; How much was given back?; What change is due?; How much came back?
ask shop: What is the name of the store?; Where was this bought?; What is the name of the company?; Which shop is it?; Who issued the receipt?; What is the shop called?; store name?; Which business is this receipt from?; What is the name of the restaurant or shop?; At which place was this bought?; From which shop is the receipt?; Where did I buy this?; Which company issued this?; merchant?; What is the merchant's name?
ask address: What is the address?; What is the address of the company?; What is the address of the store?; Where is the shop?; address?; Where is the store located?; Which address is printed?; At which address is it?; In which street is it?; What's the shop's address?; Find the address.; Where can I find them?; What is their address?
ask phone: What is the telephone number?; What is the phone number?; phone?; Which number can I call?; What's their phone number?; Telephone number?; How can I call them?; What is the number to ring?; Give me the phone number.; Under what number can they be called?; Find the phone number.
ask date: What is the date on the receipt?; When was this receipt issued?; When was this bought?; What is the date?; On which day was it printed?; date?; On what date was this purchase made?; When did I go there?; When was it?; Which date is on it?; What day was this bought?; When was the purchase?; What date does it show?; Find the date.; Of which day is this receipt?
ask time: At what time was the receipt issued?; What time was it printed?; What is the time on the receipt?; time?; At what time was this bought?; What time is printed?; When, at what time?; What time of day was it?; At which hour was it issued?; What time does it show?; Find the time.
ask cashier: Who was the cashier?; Who served?; Who was the server?; Which employee served me?; cashier?; Who took the payment?; What is the name of the cashier?; Who waited on the table?; Who rang it up?; By whom was I served?; What was the waiter's name?
ask card: How much was paid by card?; What was charged to the card?; How much was paid with the card?; card payment?; What amount was put on the card?; How much did I pay by card?; What is the amount on the card?; How much was debited?
who invoices: Who issued the invoice?; Which company sent this invoice?; Who is the seller?; Who is the supplier?; Who sent this?; From whom is the invoice?; Who wants to be paid?; Which company is this bill from?; Who do I have to pay?; Which firm invoices?; What is the name of the vendor?
seller's address: What is the address of the seller?; What is the supplier's address?; Where is the seller located?; Which address has the company that issued it?; What address does the sender have?; Where is the vendor based?; What is the sender's address?; At which address is the supplier?
who is invoiced: Who is the customer?; Who is the invoice for?; Who was billed?; Who has to pay?; To whom is the invoice addressed?; Who is invoiced?; What is the name of the customer?; Who is the client?; Whom was this bill sent to?; Who received this invoice?; Who is the buyer?
customer's address: What is the address of the customer?; What is the customer's address?; Where does the customer live?; What is the billing address?; Which address was the invoice sent to?; Where is the client located?; At which address is the buyer?; What address is the bill sent to?
invoice total: What is the total?; How much has to be paid?; What is the total amount?; How much is the invoice?; What is the amount due?; How much is due?; What is the invoice total?; How much is it in total?; total amount?; What sum has to be paid?; How much money do they want?; What does it all come to?; What do I owe them?
ask number: What is the invoice number?; Which number has the invoice?; invoice number?; What is the number of this invoice?; Which invoice number is given?; Find the invoice number.; What's the invoice no.?; Under which number was it issued?; What number does the bill have?
ask invoice date: What is the invoice date?; When was the invoice issued?; What is the date of the invoice?; invoice date?; On which day was it issued?; Of what date is the invoice?; When was it written?; What date is on the invoice?; When was the bill made out?
ask due: What is the due date?; When is it due?; When does it have to be paid?; By when must it be paid?; due date?; Until when can I pay?; When is the payment due?; Before which date must I pay?; What is the last day to pay?
who receives: Who is it shipped to?; Who gets the delivery?; To whom are the goods sent?; Who receives the goods?; What is the name of the recipient?; Who is the delivery for?; Whom do they deliver to?; For whom is the shipment?
where sent: What is the delivery address?; Where are the goods sent?; Where is it delivered to?; What is the shipping address?; To which address is it shipped?; Where does the delivery go?; At which address do the goods arrive?; To where do they deliver?
letter writer: Who wrote this letter?; Who signed the letter?; Who is the letter from?; Who is the sender?; Who wrote this?; By whom is it signed?; What is the name of the writer?; Whose signature is under it?; Who sent the letter?; Which person signed?; Who is the author?
letter receiver: Who is the letter addressed to?; Who is the letter for?; To whom was it written?; Who is the recipient?; Who received this letter?; What is the name of the addressee?; Who should read this?; Whom is it sent to?; To whom is the letter?
letter date: What is the date of the letter?; When was the letter written?; What date is on the letter?; On which day was it written?; When was this sent?; date of the letter?; Of what date is this letter?; When was this written?; Which date does the letter bear?
letter position: What is the position of the signer?; What is the job title of the writer?; Which position does the sender have?; What is the sender's title?; As what does the writer sign?; What is the role of the person who signed?; What does the signer do?
letter address: What is the address of the recipient?; Where does the recipient live?; To which address was it sent?; What address is the letter sent to?; What is the addressee's address?; Where is the letter going?; What address is given for the recipient?
letter company: Which company sent the letter?; What is the letterhead?; Which organisation wrote this?; Whose letterhead is it?; On whose paper is it written?; Which firm does the letter come from?; What company is the sender with?
letter subject: What is the letter about?; What is the subject?; What is it about?; What is the subject of the letter?; subject?; Which matter does it concern?; What does it concern?; What is the subject line?; What topic is named?
agreement date: What is the date of the agreement?; When was the agreement made?; As of which date is the agreement made?; When was it entered into?; What is the effective date?; On what date was it signed?; From which date is the agreement?; Of which date is the contract?; When does the agreement take effect?
agreement parties: Who are the parties to the agreement?; Which two parties made the agreement?; Between whom is the agreement?; Who are the two parties?; Which companies agree?; Name both parties.; Who signs the agreement with whom?; Who entered into the agreement?
other party: Which company is the other party to the agreement with {first}?; With whom did {first} make the agreement?; Who is the other party beside {first}?; Who agreed with {first}?; With which company does {first} agree?; {first} and who else are the parties?; Who signed with {first}?; Which party is there besides {first}?
governing law: Which state's law governs the agreement?; What is the governing law?; Under which law is the agreement?; What is the jurisdiction?; The laws of which state apply?; Which jurisdiction applies?; jurisdiction?; By which laws is it governed?; Which state's laws apply?
agreement term: What is the term of the agreement?; How long is the agreement valid?; For how long does it last?; How long do the obligations last?; What is its duration?; How many years or months does it run?; For what period is it made?; How long are they bound?
notice period: What is the notice period?; With how much notice can it be ended?; How long in advance must notice be given?; How much notice is needed?; What notice is required?; How many days of notice?; How early must they give notice?; What is the period of notice?
page number: What is the page number?; Which page is this?; page number?; What number has this page?; What page number is printed?; On which page are we?; Which page number does it bear?; What is the number of the page?
who signs: Who signs for {name}?; Who signed for {name}?; Which person signs on behalf of {name}?; By whom is {name} represented?; Whose name stands under {name}?; Who acts for {name}?; What is the name of the person who signs for {name}?; Who represents {name}?
title of: What is the title of {name}?; What is {name}'s position?; As what does {name} sign?; Which title does {name} have?; What is {name}'s role?; What job does {name} have?; What is the position of {name}?; {name} is what?
folder: How many messages are in {name}?; Which number is next to {name}?; How many are in the folder {name}?; {name}: how many?; What count does {name} show?; How many unread messages has {name}?; Which count is shown at {name}?; How many e-mails are in {name}?
sender's address: What is the sender's address?; What is the e-mail address of the sender?; From which address was it sent?; Which e-mail address wrote this?; What address did it come from?; To which address would a reply go?; Which address does the sender use?; Sender's address?
mail time: When was the e-mail sent?; When did it arrive?; When was this e-mail received?; What time or date does the message show?; When was the message written?; Of when is this message?; When did this message come?; Date or time of the message?
attached: What is attached?; Which file is attached?; What is the name of the attachment?; What's the attached file called?; Which attachment does it have?; What file came with it?; What was attached to the message?; Name the attached file.
screen title: What is the title of this screen?; What is the title of the screen?; Which screen is this?; What does the title bar say?; What is the name of this window?; title of the window?; What is the window called?; Which page of the app is open?; What heading does the screen have?; What is the screen called?
status time: What time does the status bar show?; What time is it on the phone?; Which time is shown at the top?; What is the time on the screen?; time in the status bar?; What does the clock show?; What time does the device show?; What is the clock time at the top?
battery: What is the battery level?; How much battery is left?; What percentage is the battery at?; battery?; How full is the battery?; What charge does the battery have?; Which battery percentage is shown?; What does the battery indicator say?
setting: What is {name} set to?; What is the setting of {name}?; Which value has {name}?; What is selected for {name}?; How is {name} set?; What does {name} say?; What is shown at {name}?; {name}?; Current {name}?; Which setting does {name} have?; What is the current value of {name}?; To what is {name} set?
switch: Is {name} on or off?; Is {name} on?; Is {name} turned on?; Is {name} enabled?; Is the switch {name} on?; Has {name} been switched on?; Is {name} active?; Did they enable {name}?
buttons: Which buttons are there?; Which two buttons are shown?; What do the two buttons say?; Between which buttons can I choose?; What are the labels of the buttons?; Which choices do the buttons offer?; What can I press?; Name the two buttons.
dialog asks: What does the dialog say?; What does the message ask?; What question does the dialog ask?; What is the message?; Which message is shown?; What does the box tell me?; Read the message.; What does the warning say?
selected: Which tab is selected?; Which menu entry is selected?; What is highlighted in the menu?; Which entry is active?; Which item of the menu is highlighted?; Which section is open?; Where in the menu am I?; Which entry is marked in the side bar?
tile: What is the number for {name}?; How many {name}?; What does the tile {name} show?; What value is shown for {name}?; {name}?; Which number stands with {name}?; What's the figure for {name}?; How much is {name}?; What does the dashboard say for {name}?; Which figure does {name} have?
command: Which command was entered?; What command was run?; Which command was typed first?; What was typed at the prompt?; What is the first command?; What command stands after the prompt?; What did the user type?; Which command started this output?
prompt: What is the prompt?; What is the name of the user and host?; Which host is it?; What does the prompt say?; Which machine is the terminal on?; What is written before the command?; What stands before the first command?; On which host was it run?
output: What is the {name}?; What is printed as {name}?; What does it print for {name}?; What does the output say for {name}?; {name}?; Which value does the output give for {name}?; Read {name} in the output.; What's the {name} in the output?; Find {name} in the output.; What value has {name}?
message from: What does the message from {name} say?; What did {name} write?; What is the message of {name}?; What does {name} say?; What text is under {name}?; Which message did {name} send?; Read the message of {name}.; What was sent by {name}?
message time: When did {name} write?; What time is shown for {name}?; At what time did {name} send it?; When is the message from {name}?; {name}: what time?; Which time is next to {name}?; When was the entry of {name}?; What time does {name}'s entry have?
chart value: What is the value of {category}?; What is the value for {category}?; How much is {category}?; What value does {category} have?; Which value is shown for {category}?; {category}?; What number stands at {category}?; How high is {category}?; What is the {measure} of {category}?; What was the {measure} in {category}?; What does the chart show for {category}?; Read the value of {category}.; What percentage or value is {category}?; Give me the number for {category}.; What is the figure for {category}?; How large is the {measure} for {category}?
chart series value: What is the value of {series} for {category}?; What is the {series} value in {category}?; How much is {series} in {category}?; What value does {series} have for {category}?; {series}, {category}?; For {category}, what is {series}?; What number does {series} show at {category}?; What does the chart show for {series} in {category}?; In {category}, how high is {series}?; Read {series} for {category}.
chart value in context: What was the {topic} in {category}?; How many {topic}s were there in {category}?; What was the {topic} of {place} in {category}?; How much {topic} did {place} have in {category}?; What percentage of {topic}s in {place} was {category}?; How many {topic}s did {place} count in {category}?; What was the number of {topic}s in {place} in {category}?; What is the {topic} of {category} in {place}?; What was {place}'s {topic} as of {category}?; What share of {topic}s chose {category}?; How high was the {topic} in {place} in {category}?; How much money did {place} spend on {topic}s in {category}?; What was the average {topic} in {category}?; What was the total {topic} in {place} in {category}?; In {category}, how many {topic}s were there in {place}?; How many {topic}s took place in {place} in {category}?; How many thousand {topic}s did {category} have in {place}?; How much {topic} did {place} generate in {category} (in million U.S. dollars)?
chart series value in context: What percentage of {series} had a {topic} in {category}?; What was the {series} {topic} in {category}?; How many {series} {topic}s were there in {place} in {category}?; In {category}, what was the {topic} of {series}?; What share of {topic}s was {series} in {category}?; How much {topic} did {series} have in {category}?; What was the {topic} for {series} in {place} in {category}?; How high was the {series} {topic} in {category}?; How many {topic}s of {series} did {place} count in {category}?; What was the number of {series} {topic}s in {category}?
chart highest in context: Which {head} had the highest {topic}?; In which {head} was the {topic} of {place} the highest?; Which {head} has the most {topic}s?; Which {head} saw the biggest {topic} in {place}?; When did the {topic} in {place} reach its peak?; What {head} had the largest number of {topic}s?; Which {head} was ranked first for {topic}s?; Which {head} led the {topic} in {place}?; What was the leading {head} by {topic}?; Which {head} recorded the most {topic}s in {place}?
chart lowest in context: Which {head} had the lowest {topic}?; In which {head} was the {topic} of {place} the lowest?; Which {head} has the fewest {topic}s?; Which {head} saw the smallest {topic} in {place}?; When did the {topic} in {place} reach its lowest point?; What {head} had the smallest number of {topic}s?; Which {head} was ranked last for {topic}s?; Which {head} had the least {topic}s in {place}?; Which {head} came last by {topic}?; Which {head} recorded the fewest {topic}s in {place}?
chart category: Which category has the value {value}?; What has the value {value}?; Which one shows {value}?; Where is the value {value}?; {value} belongs to what?; Which one accounts for {value}?; What category accounted for {value}?; For what is {value} shown?
chart highest: Which category has the highest value?; Which is the highest one?; Which has the largest value?; Where is the {measure} highest?; Which category is the biggest?; What has the greatest {measure}?; Which one leads the chart?; highest?; Which category comes out on top?; Which is the maximum?; Name the category with the highest value.; Where does the chart peak?
chart lowest: Which category has the lowest value?; What is the smallest one?; Which has the smallest value?; Where is the {measure} lowest?; Which category is the smallest?; What has the least {measure}?; Which one comes last?; lowest?; Which is the minimum?; Name the category with the lowest value.; Which category is at the bottom?
chart highest value: What is the highest value?; What is the largest value in the chart?; What value does the highest one have?; What's the maximum value?; How high is the highest value?; Which is the biggest number in the chart?; What is the peak value?; highest value?; What does the top one reach?
chart lowest value: What is the lowest value?; What is the smallest value in the chart?; What value does the lowest one have?; What's the minimum value?; How low is the lowest value?; Which is the smallest number in the chart?; lowest value?; What does the smallest one reach?
x axis: What is the label of the x-axis?; What does the x-axis show?; What is on the horizontal axis?; What is the title of the horizontal axis?; x-axis label?; How is the x-axis named?; What does the horizontal axis represent?; What is written under the horizontal axis?
y axis: What is the label of the y-axis?; What does the y-axis show?; What is on the vertical axis?; What is the title of the vertical axis?; y-axis label?; What is the unit of the vertical axis?; How is the y-axis named?; What does the vertical axis represent?
legend: What does the legend say?; Which series are there?; What are the two series?; Which two things are compared?; Name the two entries of the legend.; What are the names of the series?; Which two series does the legend list?; What do the two colours stand for?
chart source: What is the source of the chart?; Where do the data come from?; Which source is named?; source?; Who provided the data?; What source is given?; From where are the figures?; Which source is cited?
how many lines: How many lines are there?; How many lines does the chart have?; How many series are there?; Count the lines.; number of lines?; How many curves are drawn?; How many series does the chart show?; How many things are plotted?
how many bars: How many categories are there?; How many categories are shown?; How many categories does the chart have?; Count the categories.; number of categories?; How many groups are there on the axis?; How many different categories do you see?; How many things are compared?
kind of chart: What kind of chart is this?; What type of chart is it?; Which chart type is used?; Is it a bar chart, a line chart or a pie chart?; type of chart?; What sort of diagram is this?; What kind of graph is shown?; How are the data drawn?
who sent: Who is the sender?; Who sent this?; What is the name of the sender?; From whom is it?; Who is it from?; Which name has the sender?; By whom was it sent?; Sender?
sender's place: What is the sender's address?; Where does the sender live?; From which address is it sent?; Where does it come from?; What address does the sender have?; Which address is the return address?; From where was it sent?; What is the return address?
card person: Whose card is this?; Who is this?; What is the name on the card?; Which name is on it?; name?; What is the person's name?; Whose name is printed?; What is the name of the holder?; To whom does it belong?; Who does it belong to?
card company: For which company does the person work?; What is the name of the company?; Which company is it?; Which company is named on the card?; company?; What firm is it from?; Who is the employer?; Which organisation is printed on it?; What business is it?
card job: What is the person's job?; What is the job title?; What does the person do?; Which position does the person have?; What is the profession?; As what does the person work?; What is their role?; What is the person's position?
card contact: What is the {name}?; {name}?; Which {name} is on the card?; What {name} is given?; What is the person's {name}?; Find the {name}.; Read the {name}.; Which {name} can I use?; Under which {name} can they be reached?; Give me the {name} on the card.
section after: What is the heading of section {number}?; Which section has the number {number}?; What is section {number} called?; What is section {number} about?; What is the title of section {number}?; Which heading has number {number}?; Name section {number}.; {number} is which section?
step of list: What is step {number}?; What should be done in step {number}?; What does step {number} say?; Which instruction has the number {number}?; What comes at number {number}?; Read step {number}.; What do I do at step {number}?; What is item {number} of the list?
how many steps: How many steps are there?; How many numbered steps does the list have?; How many items has the numbered list?; Count the steps.; number of steps?; In how many steps is it done?; How many instructions are numbered?; How many points are in the list?
code shown: Which function is defined?; What is the name of the function?; Which function does the code define?; What is the function called?; How is the function in the code named?; What does the code define?; name of the function in the code?; Which function is shown?
event time: When is {name}?; At what time is {name}?; What time does {name} start?; {name}: when?; When does {name} begin?; At which time does {name} take place?; What time is given for {name}?; For when is {name} planned?
event place: Where is {name}?; In which room is {name}?; Where does {name} take place?; {name}: where?; Which place is given for {name}?; Which room is {name} in?; What is the room of {name}?; To which room do I go for {name}?
event at: What is at {time}?; What takes place at {time}?; What starts at {time}?; Which event is at {time}?; What happens at {time}?; {time}: what?; What is planned for {time}?; Which entry has the time {time}?
event first: What comes first?; What is the first event?; Which event is the earliest?; What begins the programme?; With what does the day begin?; What is the first item of the programme?; What is planned first?; Which event starts first?
event last: What comes last?; What is the last event?; Which event is the latest?; What ends the programme?; With what does the day end?; What is the last item of the programme?; What is planned last?; Which event starts last?
listed number: What is the number of {name}?; What is {name}'s number?; How can I call {name}?; Which number does {name} have?; {name}'s phone?; What extension has {name}?; Under which number can {name} be reached?; What number is listed for {name}?; phone number of {name}
number of whom: Whose number is {number}?; Who has the number {number}?; To whom does {number} belong?; Who can be reached at {number}?; {number} is whose number?; For whom is the number {number} listed?; Who answers {number}?; Which entry has the number {number}?
chapter page: On which page is {name}?; On which page does {name} begin?; What page is {name} on?; page of {name}?; Which page number has {name}?; Where does {name} begin, on which page?; To which page do I turn for {name}?; {name}: which page?
items sold: How many items were sold?; What is the number of items?; How many items does it count?; How many items are counted?; item count?; What number of items is printed?; How many pieces does the receipt count?; What is the item count?
kind of page: What kind of document is this?; What type of document is this?; What is this?; Which kind of page is this?; What sort of document is it?; What am I looking at?; kind of document?; What does the image show?; How would you call this document?; Is this a letter, a form, or what?; Document type?; What is shown here?
title: What is the title?; What is the title of this page?; What is the heading?; What is the title of the document?; What does the heading say?; title?; What is this document called?; Which title does it have?; Read the title.; What is written at the top as the title?; What is the headline?; How is this page titled?; Give the title of this page.
largest: What is printed largest?; Which text is the largest?; What is written in the largest letters?; What does the biggest text say?; Which words are printed biggest?; What is in the largest print?; Read the largest text.; Which text stands out by its size?; What is set in the biggest type?
language: Which language is this in?; What language is used?; In which language is it written?; language?; What language is this document in?; Which language is the text?; In what language is the page?
table there: Is there a table?; Does the page contain a table?; Is there a table on this page?; Can you see a table?; Does it have a table?; Is anything laid out as a table?; Are there tables here?; table, yes or no?
handwriting there: Is anything written by hand?; Is there handwriting?; Is the form filled in by hand?; Was this filled in with a pen?; Does it have handwritten entries?; handwritten?; Can you see handwriting?; Did somebody write on it by hand?; Are the entries handwritten?
field there: Is there a {name}?; Does it have a {name}?; Is a {name} given?; Does the page show a {name}?; Can you see a {name} here?; Is the {name} on the page?; Does it mention a {name}?; Is there any {name}?; Do they give a {name}?; Is any {name} stated?
how many items: How many items are there?; How many items are listed?; How many different items were bought?; How many lines does the list have?; number of items?; How many articles are on it?; Count the items.; How many products are listed?; How many positions are there?
how many rows: How many rows does the table have?; How many rows are there?; How many {head} rows are listed?; Count the rows of the table.; How many entries does the table have?; number of rows?; How many lines of data are in the table?; How many records are shown?
how many columns: How many columns does the table have?; How many columns are there?; Count the columns.; number of columns?; How many columns has the table?; Into how many columns is the table divided?; How many headings do the columns have?
how many entries: How many entries are there?; How many entries does the list have?; Count the entries.; number of entries?; How many rows does the list show?; How many things are listed?; How many lines are in the list?; How long is the list, in entries?
how many fields: How many fields are there?; How many fields does the form have?; Count the fields of this form.; number of fields?; How many entries does the form ask for?; How many things does the form ask for?; How many labelled fields do you see?
follows: Which word follows "{label}"?; Which word comes after "{label}"?; What comes right after "{label}"?; What is the next word after "{label}"?; Read the word behind "{label}".; After "{label}", which word is printed?; "{label}" is followed by which word?; What stands directly behind "{label}"?; Name the word that comes next after "{label}".; How does the line go on after "{label}"?
both follow: Which words follow "{first}" and "{second}"?; Which words come after "{first}" and after "{second}"?; What comes right after "{first}", and what after "{second}"?; What are the next words after "{first}" and after "{second}"?; Read the words behind "{first}" and "{second}".; "{first}" and "{second}" are followed by which words?; What stands directly behind "{first}" and behind "{second}"?; Name the words that come next after "{first}" and after "{second}".
which is higher up: Which stands higher on the page, "{first}" or "{second}"?; Which word is nearer to the top, "{first}" or "{second}"?; Which is further up, "{first}" or "{second}"?; What comes first from the top, "{first}" or "{second}"?; Is "{first}" or "{second}" printed higher up?; Of "{first}" and "{second}", which is above the other?; "{first}" or "{second}": which one is higher up?; Which of the words "{first}" and "{second}" is closer to the upper edge?
line end: Which word ends the line that begins with "{label}"?; What is the last word of the line that starts with "{label}"?; How does the line end that begins with "{label}"?; The line starts with "{label}": what is its last word?; Read the last word of the line that begins with "{label}".; Which word is last in the line starting with "{label}"?; A line begins with "{label}". With which word does it end?; Go to the line that starts with "{label}": which word ends it?; What stands at the end of the line that begins with "{label}"?; Find the line that begins with "{label}" and name its last word.
second time: Which word follows "{label}" the second time?; "{label}" is printed twice: which word comes after the second one?; What comes after the lower "{label}"?; Which word stands behind "{label}" where it is printed again?; After the second "{label}" from the top, which word comes next?; Read the word behind the second "{label}".; Of the two "{label}", take the lower one: which word follows?; The word "{label}" comes twice. What follows the second time?; Find the second "{label}" and name the word after it.; Which word comes next where "{label}" is printed for the second time?
which is more: Which number is greater, that of "{first}" or that of "{second}"?; Which is more, "{first}" or "{second}"?; Which has the higher number, "{first}" or "{second}"?; Where is the number higher, at "{first}" or at "{second}"?; Compare "{first}" and "{second}": which is more?; Does "{first}" or "{second}" have the larger number?; "{first}" or "{second}": which number is greater?; Of "{first}" and "{second}", which has the greater number?
how often: How often does the word "{label}" occur?; How many times is "{label}" printed?; How often is the word "{label}" on the page?; How many times does "{label}" appear?; Count the word "{label}".; Count how often "{label}" is printed.; In how many places does it say "{label}"?; How many "{label}" can you find?; What is the number of times that "{label}" occurs?
which more often: Which word occurs more often, "{first}" or "{second}"?; Which is printed more often, "{first}" or "{second}"?; Which appears more times, "{first}" or "{second}"?; Does "{first}" or "{second}" occur more often?; Which of the words "{first}" and "{second}" is more frequent?; "{first}" or "{second}": which one appears more often?; Count "{first}" and "{second}": which occurs more often?; Of "{first}" and "{second}", which is on the page more often?
most often: Which word of five or more letters is printed most often?; Of all words with five letters or more, which is the most frequent?; Which long word, of five letters or more, occurs most often?; What is the most frequent word of at least five letters?; Name the word of five or more letters that appears most often.; Which word with at least five letters is repeated most?; Find the word that occurs most often, of those with five letters or more.; Among words of five letters and more, which appears the most times?; Which word of at least five letters is printed more often than any other?
highest number: What is the highest number?; Which is the largest number on the page?; What is the greatest number that is printed?; Find the highest number.; Which number is the highest?; Of all numbers on the page, which is the greatest?; What is the biggest number here?; Name the largest number that you see.; Which of the printed numbers is the highest?
any above: Is any number above {value}?; Is there a number above {value}?; Is anything above {value}?; Does any number exceed {value}?; Are there numbers greater than {value}?; Can you find a number higher than {value}?; Is one of the numbers larger than {value}?; Do any of the numbers go beyond {value}?; Is at least one number more than {value}?
most words in: Which quarter of the page has the most words?; In which quarter is the most text?; Where on the page is most of the text, top left, top right, bottom left or bottom right?; Which quarter holds the most words?; Which corner of the page has the most text?; Name the quarter with the most text.; Which quarter of the page is the fullest?; In which corner are the most words printed?; Of the four quarters, which has the most text?; Which part of the page is the densest: top left, top right, bottom left or bottom right?
fewest words in: Which quarter of the page has the fewest words?; In which quarter is the least text?; Where on the page is the least text, top left, top right, bottom left or bottom right?; Which quarter holds the fewest words?; Which corner of the page has the least text?; Name the quarter with the least text.; Which quarter of the page is the emptiest?; In which corner are the fewest words printed?; Of the four quarters, which has the least text?; Which part of the page is the sparsest: top left, top right, bottom left or bottom right?
number of words: How many words are there, to the nearest 20?; To the nearest twenty, how many words are printed?; Estimate the number of words to the nearest 20.; About how many words are on the page, in steps of 20?; How long is the text, to the nearest 20 words?; Give the number of words, rounded to the nearest twenty.; How many words does it have, rounded to 20?; What is the number of words, in multiples of 20?; Roughly how many words is the text (nearest 20)?; Rounded to the nearest 20, how many words do you see?
words or numbers: Does the page show mostly words or mostly numbers?; Is it mainly words or numbers?; Words or numbers: what is there more of?; Is the page mostly words or mostly numbers?; What is most of the print, words or numbers?; Are there more words or more numbers?; What prevails, words or numbers?; Is this a page of words or a page of numbers?
both: What are the {first} and the {second}?; What are {first} and {second}?; Give me the {first} and the {second}.; {first} and {second}?; Find {first} and {second}.; Tell me both the {first} and the {second}.; Read the {first} and the {second}.; I need {first} and {second}.; {First} and {second}, please.; Which {first} and which {second} are given?; What does it say for {first} and for {second}?
ticked: Which option is ticked for {name}?; What is ticked under {name}?; Which box is checked for {name}?; What is marked for "{label}"?; Which choice was made for {name}?; {name}: what is selected?; Which {name} is marked?; What did they tick for {name}?; What is selected for {name}?; Which of the boxes at "{label}" is checked?
is ticked: Is "{option}" ticked?; Is the box "{option}" checked?; Is {option} marked?; Is {option} checked?; Is the option "{option}" selected?; Did they tick {option}?; Has the box for {option} been ticked?; {option}: ticked?; Is there a mark at "{option}"?; Was {option} chosen?
"""

_CORE = 4  # wordings of each pool that stay in training


def _parsed() -> dict[str, tuple[str, ...]]:
    table = {}
    for line in _TEXT.strip().replace("\n  ", " ").splitlines():
        kind, texts = line.split(":", 1)
        table[kind] = tuple(text.strip() for text in texts.split(";") if text.strip())
    return table


WORDINGS: dict[str, tuple[str, ...]] = _parsed()
"""Wordings by kind of question."""

_OWN = {  # wordings of kinds of values, in addition to those of any value
    "date": "date", "person": "person", "company": "company", "amount": "amount", "time": "time", "count": "count",
    "place": "place", "city": "place", "measure": "measure", "percent": "percent", "phone": "contact", "email": "contact",
    "number": "measure",
}  # fmt: skip

_PHRASE = re.compile(
    r"( (on|by|to|from|at|in|via|until|since|with|for)|^(in charge|from|to|for|about|cc|re|born|dated|admitted|discharged|departs|arrives|expires|signed|printed|received|tendered|due|prepaid|unpaid|issued|each|call|dial|received by))$"
)
_ANYTHING, _NOTHING = re.compile(""), re.compile("(?!)")
_FITS = {  # names with special wordings
    "count": re.compile(r"s$"),
    "date": re.compile(
        r"date|birth|day|start|end\b|loss|issue|expiry|renewal|delivery|appointment|due|discharge|admission|graduation"
    ),
}
_UNFIT = {  # names for which they are unnatural
    "date": re.compile("^date$|days"),
    "count": re.compile(r"\bof\b|number|class|no\."), "person": re.compile(r"name|signature|phone"), "company": re.compile("name"),
    "place": re.compile("place|city|town|location|port|district|venue|from|to$"), "time": re.compile("time|hour"),
    "percent": re.compile("percent"),
}  # fmt: skip

_ABBREVIATIONS = frozenset(
    """VAT GST HST SST PST IVA IBAN BIC SWIFT SSN DOB MRN BP TIN ABN UID POS TRN ID PO P.O. P.O GPA HOA MLS PNR SKU VIN A/C B/L HS S/N USD EUR GBP ZIP
    AMEX EFTPOS ISBN URL IP PDF CPU RAM USB GPS GDP EU UK US UN HR IT Q1 Q2 Q3 Q4 FY KWH TV PC CEO""".split()
)


def is_phrase(name: str) -> bool:
    """Whether a field's name is not a noun, such as "Ship to"."""
    return _PHRASE.search(spoken(name)) is not None


def spoken(name: str) -> str:
    """A field's name within a sentence: in lower case, except abbreviations."""
    words = name.rstrip(":").split(" ")
    return " ".join(
        word if word.strip("().:#").upper() in _ABBREVIATIONS and word.isupper() else word.lower() for word in words
    )


def boxes_of(pieces: Pieces) -> tuple[Box, ...]:
    """The boxes of the pieces."""
    return tuple(piece.box for piece in pieces)


class QuestionWriter:
    """Collects questions about one page, in the wordings of a split."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split = random, split
        self.questions: list[Question] = []
        self.quotes = False  # whether names are quoted as printed, as in other languages

    def word(self, kind: str, **names: str) -> str:
        """A filled wording of a kind of `WORDINGS`, sometimes with careless spelling."""
        template = self.random.choice(share(WORDINGS[kind], self.split, kind, min(_CORE, len(WORDINGS[kind]) - 4)))
        text = template.format(**names)
        text = re.sub(r"\b([Tt]he) (the|your|our) ", r"\1 ", text).replace("..", ".")
        text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
        if template[0] == "{" and self.random.random() < 0.25:
            text = text[0].upper() + text[1:]
        draw = self.random.random()
        if draw < 0.05:
            text = text.rstrip("?.")
        elif draw < 0.1 and template[0] != "{":
            text = text[0].lower() + text[1:]
        return text

    def add(
        self, text: str, answers: str | Sequence[str], boxes: Sequence[Box] = (), labels: Sequence[Box] = (),
        kind: str = DETAIL, hops: int = 1,
    ) -> None:  # fmt: skip
        """Adds a question, unless it exists."""
        told = (answers,) if isinstance(answers, str) else tuple(answers)
        if all(text.casefold() != other.text.casefold() for other in self.questions):
            self.questions.append(Question(text, told, tuple(boxes), tuple(labels), kind, hops))

    def named(self, name: str, kind: str, label: str = "") -> str:
        """A question for the value of a name; `kind` is its kind of `values.KINDS`.

        Args:
            name: name of the field, as in `fields`.
            label: the name as printed on the page.
        """
        said, own = spoken(name), _OWN.get(kind)
        if self.quotes or _PHRASE.search(said):
            return self.word("quoted", label=(label or name).rstrip(": "))
        fits = own is not None and _FITS.get(own, _ANYTHING).search(said) and not _UNFIT.get(own, _NOTHING).search(said)
        which = own if own and fits and self.random.random() < 0.5 else "any"
        return self.word(which, name=said, Name=said[0].upper() + said[1:], label=(label or name).rstrip(": "))

    def value(self, names: Sequence[str], kind: str, label: Pieces, value: Pieces) -> None:
        """Asks for the value of a label, by the label or by another of its names."""
        printed = joined(label).rstrip(": ")
        other = len(names) > 1 and self.random.random() < 0.3
        name = self.random.choice(names[1:]) if other else names[0]
        self.add(self.named(name, kind, "" if other else printed), joined(value), boxes_of(value), boxes_of(label))

    def beside(self, where: str, label: Piece, value: Pieces) -> None:
        """Asks for the text `right` of, `under` or `above` a label."""
        text = self.word(where, label=label.text.rstrip(": "))
        self.add(text, joined(value), boxes_of(value), boxes_of([label]))

    def inverse(self, label: Piece, value: Pieces) -> None:
        """Asks for the label of a value."""
        name = label.text.rstrip(": ")
        text = self.word("inverse", label=joined(value))
        self.add(text, name, [label.part(name).box], boxes_of(value))

    def absent(self, text: str) -> None:
        """Adds a question about an absent thing."""
        self.add(text, NOT_THERE, kind=ABSENT)

    def both(self, first: tuple[str, Pieces, Pieces], second: tuple[str, Pieces, Pieces]) -> None:
        """Asks for two values at once: each with its name, label and value."""
        (one, label, value), (two, other_label, other) = first, second
        one, two = (f'"{name}"' if self.quotes else spoken(name) for name in (one, two))
        text = self.word("both", first=one, second=two, First=one[0].upper() + one[1:])
        answers = tuple(joined(value) + sign + joined(other) for sign in (" and ", ", ", " "))
        self.add(text, answers, boxes_of([*value, *other]), boxes_of([*label, *other_label]), TWO_PLACES)

    def gist(self, kind: str, answers: str | Sequence[str], pieces: Pieces = (), **names: str) -> None:
        """A question about the page as a whole; one that asks to count, which is kind `SPREAD`, has such a `kind`."""
        spread = kind.startswith("how many")
        self.add(self.word(kind, **names), answers, boxes_of(pieces), kind=SPREAD if spread else GIST)

    def ordered(self, count: int, absent: float) -> tuple[Question, ...]:
        """At most `count` questions in random order, of which about a share of `absent` is about absent things."""
        missing = [question for question in self.questions if question.absent]
        there = [question for question in self.questions if not question.absent]
        self.random.shuffle(there)
        self.random.shuffle(missing)
        wanted = count * absent
        several = min(int(wanted) + (self.random.random() < wanted % 1), len(missing))
        chosen = [*there[: count - several], *missing[:several]]
        self.random.shuffle(chosen)
        return tuple(chosen)
