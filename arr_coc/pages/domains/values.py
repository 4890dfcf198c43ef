"""The texts of synthetic documents: pools of words, names of fields, and seeded generators of values by kind.

Each word of a pool belongs to one split: see `arr_coc.pages.splits`.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

import numpy as np

from ..splits import Split, part

# ruff: noqa: SIM905 (word pools are readable as running text, not as a thousand quoted strings)


def phrases(text: str) -> tuple[str, ...]:
    """The phrases of a running text, separated by commas, not by line ends."""
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


FIRST_NAMES: tuple[str, ...] = tuple(
    """Aaron Abel Abigail Ada Adam Adele Adeline Adrian Adriana Agatha Agnes Ahmed Aidan Aiko Ainsley Aisha Akira Alan
    Alana Alastair Albert Alberta Aldo Alec Alejandro Alessia Alex Alexis Alfonso Alfred Ali Alice Alicia Alina
    Alison Allen Alma Alvin Amanda Amara Amber Ambrose Amelia Amir Amos Amy Ana Anastasia Anders Andre Andrea
    Andrew Angela Angus Anika Anita Anna Anneke Annika Anselm Anton Antonio Anya April Archer Arden Ari Ariana
    Ariel Arjun Arlo Arnold Arthur Arturo Asha Ashley Astor Astrid Athena Aubrey August Augusta Aurora Austin Ava
    Axel Ayaan Ayla Azra Bailey Bambi Barbara Barnaby Basil Bastian Beatrice Becca Belinda Bella Ben Benedict
    Benita Benjamin Bernard Bernice Bertha Beth Bettina Beverly Bianca Bilal Bjorn Blaise Blake Bonnie Boris
    Bradley Brandon Brenda Brent Brian Bridget Brigitte Bronwyn Bruce Bruno Bryan Caleb Callum Calvin Cameron
    Camila Candice Carl Carla Carlos Carlotta Carmela Carmen Carol Caroline Carter Cassandra Catalina Catherine
    Cecilia Cedric Celeste Celia Cesar Chandra Charlotte Chelsea Chen Cheryl Chester Chiara Chloe Chris Christa
    Christian Cindy Clara Clarence Clarissa Claude Clemens Clifford Clive Cody Colette Colin Connor Conrad
    Constance Cora Corinna Cornelia Craig Crystal Curtis Cynthia Cyrus Dagmar Daisy Dakota Dale Dalia Damian Dana
    Danica Daniel Danilo Dante Daphne Daria Dario Darlene Darren David Davina Dawn Dean Deborah Debra Declan Delia
    Della Delphi Demetrius Denis Dennis Derek Desmond Dexter Diana Diego Dimitri Dina Dinah Dirk Dmitri Dolores
    Dominic Donald Donna Dora Doreen Doris Dorothy Douglas Duncan Dustin Dylan Earl Ebony Eddie Edgar Edith Edmund
    Edna Edward Edwin Eileen Elaine Eleanor Elena Eli Elias Elif Elijah Elinor Elisa Elise Eliza Elizabeth Ella
    Ellen Elliot Elmer Elodie Eloise Elsa Elton Elvira Emerson Emil Emilia Emily Emma Emmett Enid Enrique Enzo
    Ephraim Eric Erica Erika Erin Ernest Ernesto Erwin Esmeralda Estelle Esther Ethan Eugene Eunice Eva Evan Evelyn
    Everett Ezra Fabian Faith Farah Farid Fatima Fay Felicia Felix Ferdinand Fergus Fern Fernando Fidel Finn Fiona
    Fleur Flora Florence Floyd Frances Francesca Francis Frank Franz Freda Frederick Freya Frida Fritz Gabriel
    Gareth Garrett Gavin Gemma Geneva Genevieve Geoffrey George Gerald Gerda Germaine Gertrude Gideon Gilbert
    Gillian Gina Giorgio Giovanni Gisela Giulia Glenda Glenn Gloria Gopal Gordon Grace Grant Gregory Greta Gretchen
    Griffin Guadalupe Guido Guillermo Gunther Gustav Gwen Hamid Hamish Hana Hannah Hans Harley Harold Harper
    Harriet Harrison Harry Harvey Hassan Hattie Hazel Heath Heather Hector Hedwig Heidi Heinrich Helen Helena Helga
    Henrietta Henry Herbert Herman Hilary Hilda Hiro Holly Homer Hope Horace Howard Hubert Hugo Hussein Ian Ibrahim
    Ida Ignacio Igor Ilse Imogen India Ines Inga Ingrid Iona Ira Irene Irina Iris Irma Irving Isaac Isabel Isabella
    Isadora Isla Ismail Itzel Ivan Ivana Ivo Ivy Jack Jackie Jacob Jada Jaden Jaime Jake James Jamila Jane
    Jared Jasmine Jason Jasper Javier Jay Jean Jeanette Jeffrey Jemima Jenna Jennifer Jeremy Jerome Jerry Jesse
    Jessica Jill Jimmy Jin Joan Joanna Jocelyn Jodie Joel Johan Johanna John Jolene Jonas Jordan Jorge Josef Joseph
    Joshua Josie Joy Joyce Juan Juana Jude Judith Julia Julian Juliet Julius June Justin Kai Kamal Kara Karen
    Karim Karin Karl Karla Katarina Kate Katherine Katrina Kayla Keiko Keith Kelly Kelvin Kendra Kenji Kenneth
    Kerry Kevin Khalid Kiara Kieran Kim Kimberly Kira Kirk Kirsten Kit Klara Klaus Kofi Krishna Kristina Kumar Kurt
    Kurtis Kwame Kyle Lachlan Lambert Lance Lara Larissa Larry Lars Latisha Laura Laurel Lauren Laurence Lavinia
    Lawrence Layla Lea Leah Leander Leigh Leila Leland Lena Leo Leon Leonard Leonora Leroy Leslie Lester Letitia
    Levi Lewis Li Liam Lidia Lila Lilian Lillian Lin Linda Linus Lionel Lisa Liu Lloyd Logan Lois Lola Lorenzo
    Loretta Lorna Lorraine Lothar Lou Louis Louise Lucas Lucia Lucien Lucille Ludwig Luigi Luis Luka Luna Luther
    Lydia Lyle Lynette Mabel Mackenzie Madeleine Mae Maeve Magda Magnus Maisie Maja Malcolm Malik Mallory Mandy
    Manuel Mara Marcel Marcia Marco Marcus Margaret Margot Maria Mariam Marian Marie Marigold Marina Mario Marion
    Marisol Marjorie Mark Marlene Marlon Marshall Marta Martha Martin Martina Marvin Mary Mason Mateo Mathilde
    Matilda Matthew Maureen Maurice Mavis Max Maxine Maya Megan Mei Melanie Melba Melinda Melissa Melvin Mercedes
    Meredith Merle Mervyn Mia Michael Mick Miguel Mila Milan Mildred Miles Millicent Milo Milton Mimi Mina Minerva
    Minnie Miranda Miriam Mitchell Mohan Moira Molly Mona Monica Morgan Morris Moses Muriel Myles Myra Myron Nadia
    Nadine Nancy Naomi Natalia Natasha Nathan Nathaniel Neil Nellie Nelson Nestor Neville Nia Nicholas Nico Nicole
    Nigel Niklas Nikolai Nils Nina Noah Noel Noelle Noor Nora Norbert Norma Norman Octavia Odette Odin Olaf Oleg
    Olga Olive Oliver Olivia Omar Omari Ophelia Orla Orlando Orson Oscar Osman Osvaldo Oswald Otis Ottilie Otto
    Owen Pablo Palmer Paloma Pamela Paola Parker Parvati Pascal Patience Patricia Patrick Paul Paula Pauline Pearl
    Pedro Peggy Penny Percy Peregrine Perry Peter Petra Philip Phoebe Phyllis Pia Pierre Piers Piotr Polly Prakash
    Preston Priscilla Priya Prudence Quentin Quinn Rachel Rachelle Rafael Rahul Raj Ralph Ramon Ramona Randall
    Rania Raquel Raul Ravi Raymond Rebecca Reggie Regina Reginald Reinhold Renata Rene Reuben Rhea Rhoda Rhys
    Ricardo Richard Ricky Riley Rita Robert Roberta Rocco Roderick Rodrigo Roger Roland Roman Romeo Ronald Ronan
    Rosa Rosalie Rosalind Rose Rosemary Ross Rowan Roxanne Roy Ruben Ruby Rudolf Rufus Rupert Russell Rusty Ruth
    Ryan Sabine Sabrina Sadie Sally Salma Salvatore Sam Samantha Samir Samuel Sandra Sanjay Sara Sarah Sasha Saul
    Savannah Scarlett Scott Seamus Sean Sebastian Selina Selma Serena Sergei Seth Seymour Shannon Sharon Shawn
    Sheila Shelby Sheldon Shirley Sidney Siegfried Sienna Sigrid Silas Silvia Simon Simone Skyler Sofia Solange
    Solomon Sonia Sophia Spencer Stacy Stanley Stefan Stella Stephanie Stephen Steven Stewart Stuart Summer Sunil
    Sunita Susan Suzanne Sven Sybil Sylvester Sylvie Tabitha Tadeo Tamara Tamsin Tanner Tanya Tara Tariq Tatiana
    Taylor Terence Teresa Terry Tess Thaddeus Thalia Thea Thelma Theo Theodora Theresa Thomas Tiffany Timothy Tina
    Tobias Toby Todd Tom Tomas Tony Tracy Trevor Tristan Trudy Tyler Tyrone Ulrich Ulrike Uma Umberto Unity Uriah
    Ursula Usha Valentin Valeria Valerie Vanessa Vaughn Velma Vera Vernon Veronica Vicente Vicky Victor Vijay
    Vikram Viktor Vincent Vincenzo Viola Violet Virgil Virginia Vivian Vladimir Wallace Walter Wanda Warren Wayne
    Wei Wendy Wesley Whitney Wilbur Wilfred Wilhelm Willa William Wilma Winifred Winston Wolfgang Woodrow Wyatt
    Xander Xavier Xenia Ximena Yael Yan Yannick Yara Yasmin Yolanda Yosef Yuki Yuri Yusuf Yvette Yvonne Zach
    Zachary Zahra Zane Zara Zelda Zeno Zion Zita Zoe Zoran Zuri""".split()
)

LAST_NAMES: tuple[str, ...] = tuple(
    """Abbott Ackerman Adams Adler Agarwal Aguilar Akhtar Albrecht Alexander Almeida Alvarez Andersen Anderson Andrade
    Antonov Appleby Armstrong Ashworth Atkinson Aydin Baker Baldwin Ballard Banerjee Barber Barker Barnes Barrett
    Barros Barton Bates Bauer Baumann Baxter Becker Beckett Bell Bennett Benson Berger Bergman Bernstein Berry
    Bhatt Bianchi Bishop Black Blackburn Blanc Blum Bolton Bonnet Booth Bowen Bowman Boyd Bradford Brady Brandt
    Braun Brennan Briggs Brooks Brown Bryant Buchanan Burgess Burke Burns Burton Butler Byrne Caldwell Campbell
    Cardoso Carlson Carpenter Carr Carroll Carson Carvalho Castillo Castro Chambers Chan Chandler Chapman Chavez
    Christensen Clark Clarke Clayton Cohen Coleman Collins Conti Contreras Cooper Correa Costa Cox Crane Crawford
    Cross Cruz Cunningham Curry Dalton Daly Davidson Davies Dawson Delgado Desai Diaz Dickson Dixon Dlamini Donovan
    Dorsey Doyle Drake Dreyer Dubois Duffy Dunn Durand Dvorak Eaton Ebert Edwards Elliott Ellis Engel English
    Erikson Espinoza Evans Faber Falk Farley Farrell Faulkner Ferguson Fernandez Ferrari Ferreira Field Fischer
    Fisher Fleming Fletcher Flores Flynn Fontaine Ford Forster Foster Fournier Fowler Franklin Fraser Freeman
    Friedman Fuchs Fujita Fuller Gallagher Garcia Gardner Garrison Gauthier Geiger Gibbons Gibson Gill Girard
    Goldberg Gomez Goncalves Gonzalez Goodwin Goswami Gould Graham Graves Gray Green Greene Griffith Gross Gruber
    Guerrero Gupta Gutierrez Haas Hahn Hale Haley Hall Hamilton Hammond Hansen Hanson Harding Hardy Harmon Harris
    Hartley Hartmann Hasan Hashimoto Hawkins Hayashi Hayes Heller Henderson Hernandez Herrera Herzog Hess Hicks
    Higgins Hill Hodges Hoffman Hogan Holland Holloway Holm Holmes Holt Hooper Hopkins Horn Horton Houston Howell
    Hoyt Huang Hubbard Huber Hudson Hughes Hunt Hunter Hurley Hussain Hutton Ibarra Ingram Inoue Iqbal Irwin
    Ishikawa Ivanov Iyer Jackson Jacobs Jain Janssen Jansson Jarvis Jefferson Jenkins Jennings Jensen Jimenez
    Johansen Johnson Johnston Jones Joshi Juarez Kaiser Kane Kaplan Kapoor Kaufman Kaur Kaya Keller Kelley Kemp
    Kennedy Khan Kimura King Kirby Klein Knight Knudsen Kobayashi Koch Kohler Kovacs Kowalski Kramer Krause Kruger
    Kuhn Kuznetsov Lang Larkin Larsen Larson Laurent Lawson Leblanc Lefevre Lehmann Lemaire Leroux Levine
    Lindberg Lindgren Lopez Lowe Lund Lynch Lyons Macdonald Machado Mackay Maddox Madsen Maier Malone Mancini Mann
    Manning Marino Marsh Martinez Massey Masters Mathis Matsuda Matthews Maxwell Mayer Mbeki Medina Mehta Mendez
    Mendoza Mercer Meyer Michaud Middleton Miller Mills Mitra Molina Moller Monroe Montgomery Moody Moore Morales
    Moran Moreau Moreno Moretti Mori Morrison Morrow Morse Morton Moss Mueller Mukherjee Mullins Munoz Murphy
    Murray Myers Nagy Nair Nakamura Nash Navarro Neal Neumann Newman Newton Nguyen Nichols Nielsen Nilsson Nixon
    Nolan Norris Norton Novak Nunez Oakley Oconnor Odonnell Ohara Okafor Oliveira Olsen Olson Oneill Orlov Orozco
    Ortega Ortiz Osborne Ota Owens Pace Padilla Page Pappas Park Parsons Patel Paterson Patterson Payne Pearce
    Pearson Pedersen Pereira Perez Perkins Perrin Peters Petersen Petrov Pham Phillips Pierce Pineda Pinto Pohl
    Pollard Popov Porter Potter Powell Powers Prasad Pratt Pritchard Rahman Ramirez Ramos Rao Rasmussen Reddy
    Reed Reeves Reid Reilly Reyes Reynolds Rhodes Ribeiro Richards Richter Rios Ritter Rivera Robbins Roberts
    Robertson Robinson Robles Rocha Rodgers Rodriguez Rogers Rojas Romano Romero Rosen Rossi Rousseau Roussel Rowe
    Rubin Ruiz Russo Ryder Saito Salazar Salinas Sanchez Sandberg Sanders Sandoval Santana Sato Saunders Sauter
    Savage Sawyer Schmidt Schneider Schofield Scholz Schreiber Schroeder Schubert Schultz Schwartz Sharma Sharp
    Shaw Shepherd Sherman Shimizu Shore Silva Simmons Simpson Sinclair Singh Skinner Slater Smirnov Smith Snyder
    Sokolov Solis Sorensen Soto Sousa Spence Stark Steele Stein Stephens Sterling Stevenson Stokes Stone Strand
    Suarez Sullivan Sutton Suzuki Svensson Swanson Sweeney Takahashi Tanaka Tate Teixeira Thompson Thomson Thornton
    Torres Townsend Tran Tucker Turner Underwood Urban Valdez Vance Varga Vargas Vasquez Vaughan Vega Velez Verma
    Vidal Vogel Volkov Wagner Walker Wallis Walsh Walters Wang Ward Warner Watanabe Waters Watkins Watson Watts
    Weaver Webb Weber Webster Weiss Welch Wells West Whalen Wheeler White Whitehead Wiley Wilkins Wilkinson
    Williams Williamson Wilson Winter Wolf Wong Wood Woods Wright Wu Yamada Yamamoto Yang Yates Yilmaz Young Zapata
    Zeller Zhang Zhou Ziegler Zimmerman""".split()
)

CITIES: tuple[str, ...] = phrases(
    """Aachen, Aalborg, Aarhus, Aberdeen, Abu Dhabi, Accra, Adelaide, Agadir, Ahmedabad, Ajaccio, Albany, Aleppo,
    Alesund, Algiers, Alicante, Almaty, Amarillo, Amman, Amsterdam, Anchorage, Ancona, Ankara, Annapolis, Antalya,
    Antwerp, Arequipa, Arezzo, Arles, Arnhem, Asmara, Astana, Asuncion, Athens, Atlanta, Auckland, Augsburg,
    Austin, Avignon, Baghdad, Baku, Baltimore, Bamako, Bamberg, Bandung, Bangalore, Bangkok, Bangui, Banjul,
    Barcelona, Bari, Basel, Basra, Bath, Bayonne, Beijing, Beirut, Belfast, Belgrade, Bendigo, Bergamo, Bergen,
    Berlin, Bern, Bhopal, Biarritz, Bilbao, Birmingham, Bishkek, Bissau, Blackpool, Bochum, Bogota, Boise, Bologna,
    Bolzano, Bonn, Bordeaux, Boston, Bournemouth, Bradford, Braga, Brasilia, Bratislava, Bremen, Brescia, Brest,
    Bridgetown, Brighton, Brisbane, Bristol, Brno, Bruges, Brussels, Bucharest, Budapest, Buenos Aires, Buffalo,
    Bukhara, Burgos, Bursa, Busan, Bytom, Cadiz, Caen, Cagliari, Cairns, Cairo, Calais, Calgary, Cali, Cambridge,
    Canberra, Cancun, Canterbury, Cape Town, Caracas, Cardiff, Carlisle, Cartagena, Casablanca, Catania, Cebu,
    Charleston, Charlotte, Chelmsford, Chengdu, Chennai, Chester, Chiang Mai, Chicago, Chisinau, Cincinnati,
    Cleveland, Cluj, Coimbra, Cologne, Colombo, Columbus, Como, Conakry, Concord, Constanta, Copenhagen, Cordoba,
    Cork, Cotonou, Coventry, Cuenca, Curitiba, Cusco, Da Nang, Dakar, Dalian, Dallas, Damascus, Darmstadt, Darwin,
    Davao, Delhi, Denver, Derby, Des Moines, Detroit, Dhaka, Dijon, Dili, Djibouti, Dodoma, Doha, Dortmund, Dover,
    Dresden, Dubai, Dublin, Dundee, Dunedin, Durban, Durham, Dushanbe, Edinburgh, Eindhoven, El Paso, Elche,
    Erfurt, Esbjerg, Essen, Eugene, Evora, Exeter, Faro, Ferrara, Fez, Florence, Fort Worth, Frankfurt, Freetown,
    Fresno, Fribourg, Fukuoka, Funchal, Gaborone, Galati, Galway, Gaziantep, Gdansk, Gdynia, Geelong, Geneva,
    Genoa, Georgetown, Ghent, Gibraltar, Gijon, Girona, Glasgow, Goa, Gothenburg, Granada, Grasse, Graz, Grenoble,
    Guadalajara, Guangzhou, Guayaquil, Haarlem, Haifa, Halifax, Hamburg, Hamilton, Hangzhou, Hanoi, Hanover,
    Harare, Harbin, Hartford, Havana, Heidelberg, Helsinki, Heraklion, Hereford, Hiroshima, Ho Chi Minh, Hobart,
    Hong Kong, Honiara, Honolulu, Houston, Hue, Hull, Hyderabad, Iasi, Ibadan, Incheon, Indianapolis, Innsbruck,
    Inverness, Ipswich, Irkutsk, Islamabad, Istanbul, Izhevsk, Izmir, Jacksonville, Jaipur, Jakarta, Jeddah, Jena,
    Jerusalem, Johannesburg, Juba, Kabul, Kagoshima, Kaliningrad, Kampala, Kanazawa, Kandy, Kansas City, Karachi,
    Karlsruhe, Kassel, Kathmandu, Katowice, Kaunas, Kazan, Khabarovsk, Kharkiv, Khartoum, Kiel, Kigali, Killarney,
    Kingston, Kingstown, Kinshasa, Klagenfurt, Knoxville, Kobe, Koblenz, Kolkata, Kosice, Krakow, Kuala Lumpur,
    Kumasi, Kunming, Kutaisi, Kuwait, Kyiv, Kyoto, La Paz, La Rochelle, Lagos, Lahore, Lancaster, Lansing, Las
    Vegas, Latina, Launceston, Lausanne, Le Havre, Le Mans, Leeds, Leicester, Leiden, Leipzig, Leon, Libreville,
    Liege, Lille, Lilongwe, Lima, Limerick, Lincoln, Linz, Lisbon, Liverpool, Livorno, Ljubljana, Lodz, Logrono,
    Lome, London, Long Beach, Los Angeles, Louisville, Luanda, Lubeck, Lublin, Lucca, Lucerne, Lugano, Lund,
    Lusaka, Luxembourg, Luxor, Lviv, Lyon, Macau, Madison, Madrid, Madurai, Magdeburg, Mainz, Majuro, Malabo,
    Malacca, Malaga, Male, Malmedy, Malmo, Managua, Manaus, Manchester, Manila, Mannheim, Mantua, Maputo, Maribor,
    Marrakesh, Marseille, Matsuyama, Mecca, Medan, Melbourne, Memphis, Mendoza, Merida, Messina, Metz, Mexico City,
    Miami, Middelburg, Milan, Milwaukee, Minneapolis, Minsk, Miskolc, Mobile, Modena, Mogadishu, Mombasa, Monaco,
    Monrovia, Monterrey, Montevideo, Montreal, Morelia, Moroni, Moscow, Mostar, Mulhouse, Multan, Mumbai, Munich,
    Munster, Murcia, Muscat, Mysore, Nagasaki, Nagoya, Nairobi, Nampula, Nancy, Nanjing, Nantes, Nantong, Napier,
    Naples, Narvik, Nashville, Nassau, Natal, Naypyidaw, Nelson, New Orleans, New York, Newcastle, Niamey, Nice,
    Nicosia, Nimes, Nis, Norwich, Nottingham, Nouakchott, Novara, Nuremberg, Oakland, Odense, Odessa, Okayama,
    Olomouc, Omaha, Omsk, Oporto, Oran, Orebro, Orlando, Orleans, Osaka, Osijek, Oslo, Ostend, Ostrava, Ottawa,
    Ouagadougou, Oulu, Oviedo, Oxford, Padua, Palermo, Palma, Pamplona, Panama City, Paphos, Paramaribo, Pardubice,
    Paris, Parma, Patras, Pau, Pecs, Penang, Perpignan, Perth, Perugia, Peshawar, Philadelphia, Phnom Penh,
    Phoenix, Piraeus, Pisa, Pittsburgh, Plovdiv, Plymouth, Plzen, Podgorica, Poitiers, Ponce, Pori, Port Louis,
    Portland, Porto, Porto Alegre, Portsmouth, Potsdam, Poznan, Prague, Praia, Preston, Pretoria, Providence,
    Puebla, Pune, Punta Arenas, Qingdao, Quebec, Quimper, Quito, Rabat, Raleigh, Ravenna, Recife, Regensburg,
    Reims, Rennes, Reno, Reykjavik, Rhodes, Richmond, Riga, Rijeka, Rimini, Rio, Riyadh, Rochester, Rome, Rosario,
    Roskilde, Rostock, Rotterdam, Rouen, Ruse, Rybnik, Sacramento, Saint Denis, Saint Louis, Saint Malo, Salamanca,
    Salerno, Salford, Salisbury, Salt Lake, Salvador, Salzburg, Samarkand, San Antonio, San Diego, San Jose, San
    Juan, San Marino, San Remo, Sanaa, Santa Fe, Santander, Santiago, Santos, Sao Paulo, Sapporo, Sarajevo,
    Sassari, Savannah, Seattle, Segovia, Sendai, Seoul, Setubal, Seville, Shanghai, Sheffield, Shenzhen, Shiraz,
    Sibiu, Siena, Singapore, Siracusa, Skagen, Skopje, Sligo, Sofia, Sopron, Southampton, Split, Spokane,
    Stavanger, Stirling, Stockholm, Stockton, Strasbourg, Stuttgart, Suez, Surabaya, Suva, Swansea, Sydney,
    Syracuse, Szczecin, Szeged, Tabriz, Tacoma, Taichung, Tainan, Taipa, Taipei, Tallinn, Tamale, Tampa, Tampere,
    Tampico, Tangier, Taranto, Tarragona, Tartu, Tashkent, Tbilisi, Tehran, Tel Aviv, Temuco, Ternopil,
    Thessaloniki, Thimphu, Tianjin, Tijuana, Tilburg, Timisoara, Tirana, Tokyo, Toledo, Toronto, Toulon, Toulouse,
    Tours, Trento, Trenton, Trier, Trieste, Tripoli, Tromso, Trondheim, Truro, Tucson, Tulsa, Tunis, Turin, Turku,
    Udine, Ulm, Ulsan, Uppsala, Urbino, Utica, Utrecht, Vaasa, Vaduz, Valencia, Valletta, Valparaiso, Vancouver,
    Vantaa, Varanasi, Varna, Venice, Veracruz, Verdun, Verona, Viborg, Vicenza, Victoria, Vienna, Vientiane, Vigo,
    Vilnius, Visby, Viterbo, Volos, Wakefield, Warsaw, Washington, Waterford, Weimar, Wellington, Wexford, Wichita,
    Wiesbaden, Windhoek, Windsor, Winnipeg, Wolfsburg, Worcester, Wroclaw, Wuhan, Wurzburg, Xalapa, Xian, Yangon,
    Yaounde, Yerevan, Yokohama, York, Ypres, Zadar, Zagreb, Zaragoza, Zermatt, Zhuhai, Zibo, Zilina, Zurich, Zwolle"""
)

COMPANIES: tuple[str, ...] = phrases(
    """Acorn Foods, Alder & Finch, Alpine Rail, Amber Lines, Anchor Supply, Apex Tools, Arbor Books, Arrow Freight,
    Ashby & Sons, Aspen Energy, Atlas Media, Aurora Labs, Avalon Water, Azure Travel, Badger Works, Baltic Trade,
    Bamboo Home, Barley & Co, Bayside Motors, Beacon Press, Beech Dental, Bell & Howard, Birch Optics, Bison Steel,
    Bluebird Air, Bolt Couriers, Boreal Paper, Brightwell, Bristow Bank, Brook Textiles, Cactus Games, Camden
    Audio, Canyon Glass, Capital Print, Cardinal Gas, Castle Homes, Cedar Mutual, Chalk & Slate, Cinder Coffee,
    Circle Health, Citadel Locks, Clearview, Cliff Hotels, Clover Dairy, Cobalt Chem, Comet Cargo, Copper Kettle,
    Coral Shipping, Cornerstone, Crane & Holt, Crest Pumps, Crimson Arts, Crossroad Bus, Crown Ferry, Crystal Soft,
    Cypress Law, Dawn Solar, Delta Motors, Dunes Golf, Eagle Mills, East Wharf, Echo Studios, Elder & Stone, Elm
    Park Zoo, Ember Stoves, Emerald Bank, Evergreen, Falcon Jets, Fern & Moss, Fieldhouse, Fjord Fish, Flint
    Mining, Forge & Sons, Foxglove, Frontier Oil, Galaxy Toys, Garnet Realty, Gateway Rail, Geyser Spa, Glacier
    Ice, Globe Post, Golden Harvest, Granite Works, Gravel Roads, Grove Clinic, Gull Island, Hazel Nursery, Heron
    Boats, Hilltop Farm, Horizon Air, Hudson Paint, Indigo Wear, Ironbridge, Island Cable, Ivory Pianos, Jade
    Garden, Jasper Inns, Jetstream, Juniper Gin, Kestrel Arms, Keystone, Kite & Kin, Lakeside Gym, Lantern Press,
    Larch Timber, Laurel Films, Ledger & Hall, Lemon Tree, Lighthouse, Lilac Florist, Linden Foods, Lion Brewery,
    Locust Farms, Lotus Yoga, Lunar Phones, Lynx Safety, Magnet Metal, Mallard Inn, Maple Grain, Marble Hall,
    Marigold Soap, Marina Yachts, Meadow Dairy, Mercury Post, Meridian, Mesa Concrete, Mint Laundry, Mistral Fans,
    Monarch Bus, Moss & Miller, Mountain Gear, Nectar Juice, Neptune Pools, Nimbus Cloud, Noble Pens, Northgate,
    Northwind, Nova Dental, Oakfield, Oasis Tours, Obsidian, Ocean Freight, Olive Branch, Onyx Security, Opal
    Jewelry, Orbit Radio, Orchid House, Osprey Cams, Otter Canoes, Oxford Chairs, Pacific Tea, Palm Hotels, Panda
    Cabs, Paragon Tax, Pearl Divers, Pebble Paths, Pelican Pub, Peppermill, Phoenix Fire, Pine & Pike, Pinnacle,
    Pioneer Seed, Pixel Press, Plaza Cinema, Polar Freeze, Poplar Wood, Prairie Wind, Prism Lamps, Puffin Books,
    Quarry Stone, Quartz Watch, Quill & Ink, Rainbow Dye, Raven Books, Redwood, Reef Diving, Regal Carpets, Ridge
    Radio, Riverbend, Robin & Wren, Rocket Pizza, Rose & Thorn, Ruby Motors, Saddle Ranch, Sage Clinic, Sandpiper,
    Sapphire, Scarlet Bikes, Seaview, Sequoia Fund, Shamrock, Sienna Tiles, Silver Oak, Skyline Lifts, Slate Roofs,
    Snowdrop, Solstice, Sparrow Post, Spruce Doors, Starling, Steeple Clocks, Sterling Gas, Stonegate, Summit
    Ropes, Sunrise Farm, Swan Theatre, Swift Parcels, Sycamore, Tangent Maps, Teal Fabrics, Tempo Drums, Terra
    Tiles, Thistle Wool, Thornbury, Tidal Power, Tiger Gyms, Timber & Tin, Topaz Taxis, Torch Energy, Tower Bank,
    Trident Nets, Tulip Farms, Tundra Furs, Turtle Bay, Twin Rivers, Umber Paints, Union Docks, Upland Wool, Valley
    Vets, Vanguard, Velvet Sofas, Vertex Labs, Vesper Wine, Viking Ferry, Violet Candy, Vista Homes, Walnut Grove,
    Waterfall, Waverley, Westbrook, Whale Watch, Wheatland, Willow Crafts, Windmill, Wolf & Bear, Woodland, Wren
    Kitchens, Yarrow Herbs, Yellow Cab, Yew & Ash, Zenith Bank, Zephyr Kites, Zinc Works"""
)

TITLES: tuple[str, ...] = phrases(
    """Account #7, Account info, Agenda, Airport, Arrivals, BOARDING PASS, Baggage tag, Balance, Bank slip, Batch
    card, Bill, Boarding pass, Book Fair, Bus schedule, Car rental, Cargo list, Cash & Carry, Central Station,
    Certificate, Check in, Check out, Checklist, Cinema, City Hall, Claim form, Clinic visit, Club card, Concert,
    Conference, Contact, Copy #2, Copy #3, Corner Shop, Coupon, Course card, Credit note, Customer copy, Customs
    form, Data sheet, Day pass, Declaration, Delivery note, Departures, Deposit slip, Details, Dispatch, Duty list,
    Entry card, Event pass, Exam sheet, Exhibition, Farm Shop, Ferry ticket, Fire drill, Flight log, Form A, Form
    B, Form C-2, Freight note, Fuel receipt, Garden Center, Gate pass, Gift card, Grade report, Grand Hotel, Guest
    check, Hotel bill, INVOICE, Inspection, Insurance, Inventory, Invoice, Item card, Itinerary, Job sheet, Joe's
    Cafe, Key card, Lab report, Lab sample, Label, League table, Lease, Library card, Licence, Loyalty card,
    Machine log, Main Street, Medical card, Membership, Memo, Menu, Meter reading, Minutes, Museum, Night Market,
    North Office, Notice, Office copy, Old Town Inn, Order #12, Order #45, Order summary, Packing list, Page 1,
    Page 2, Page 3, Parking, Part 1, Parts list, Patient file, Pay slip, Payment, Permit, Phone bill, Post Office,
    Power bill, Prescription, Price list, Product card, Purchase order, Quote, RECEIPT, Race result, Receipt,
    Registration, Rental form, Repair slip, Report, Reservation, Returns slip, Room service, Safety check, Sample
    card, School record, Score card, Season ticket, Section 4, Service record, Shift plan, Ship log, Shipping, Spec
    sheet, Statement, Station log, Stock card, Student card, Summary, Survey, TICKET, Task list, Tax form, Tea
    Room, Test record, Thank you, Theatre, Ticket, Time sheet, Timetable, Toll receipt, Train ticket, Transfer,
    Travel plan, Visitor pass, Voucher, Warehouse, Warranty card, Water bill, Waybill, Weather log, Weight slip,
    Withdrawal, Work order, Workshop, Your booking"""
)

UNHEARD_FIELDS: tuple[str, ...] = phrases(
    """passport, warranty, discount, deposit, refund, coupon, voucher, insurance, deductible, mileage, odometer,
    licence, visa, nationality, birthday, age, gender, religion, occupation, employer, salary, bonus, pension,
    mortgage, rent, interest, currency, iban, signature, stamp, barcode, website, email, fax, street, district,
    county, state, country, continent, altitude, latitude, longitude, depth, length, volume, pressure, humidity,
    rainfall, wind, frequency, power, torque, horsepower, fuel, calories, protein, sugar, salt, fibre, allergens,
    dosage, blood type, pulse, diagnosis, allergy, doctor, nurse, hospital, ward, bed, pharmacy, symptom, vaccine,
    teacher, grade, school, subject, semester, score, league, team, referee, stadium, goals, runway, pilot, captain,
    cabin, airline, luggage, baggage, vessel, port, berth, harbour, cargo, container, freight, tonnage, courier,
    parcel, supplier, customer, buyer, seller, landlord, tenant, cashier, waiter, manager, director, author, editor,
    publisher, chapter, verse, edition, genre, artist, album, label, track, director of photography, cast, channel,
    episode, season, colour, material, brand, texture, pattern, shape, size, thickness, diameter, radius, angle,
    hair colour, eye colour, shoe size, mother, father, husband, wife, spouse, sister, brother, godfather, pet, dog,
    horse, breed, species, habitat, moon, planet, weather, forecast, tide, sunrise, sunset, wine, vintage, grape,
    recipe, menu, starter, dessert, opening hours, deadline, holiday, penalty, complaint, verdict, judge, lawyer,
    court, witness, alibi, motive, password, username, hostname, domain, protocol, firmware, memory, storage,
    resolution, aperture, exposure, focus, shutter, lens, magnification, wavelength"""
)


# ruff: noqa: SIM905 (word lists are readable as running text, not as quoted strings)


FIELDS: tuple[str, ...] = tuple(
    """total subtotal tax tip date time name phone city code order invoice price quantity seat gate flight train
    platform room floor table ticket bus lane dock batch lot serial model weight height width speed temp voltage pin zip
    unit account""".split()
)

_MADE_UP = 0.5  # share of training words and unknown fields that are in no pool, so that words cannot be guessed
_ONSETS = "b c d f g h j k l m n p q r s t v w x y z br ch cl cr dr fl gr kn pl pr sh sl sp st str th tr wh".split()
_VOWELS = "a e i o u y ai au ea ee ei ia ie oa oo ou".split()
_CODAS = ("", "", "", *"b ck d f g l ll m n nd ng p r rt s sk ss st t tt v x z".split())


def pick(rng: np.random.Generator, items: tuple[str, ...] | list[str] | str) -> str:
    """One item, uniformly."""
    return items[int(rng.integers(len(items)))]


def letters(rng: np.random.Generator, alphabet: str, length: int) -> str:
    """`length` characters drawn uniformly and independently."""
    return "".join(alphabet[i] for i in rng.integers(len(alphabet), size=length))


def distinct(draw: Callable[[], str], count: int) -> list[str]:
    """`count` distinct texts."""
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[draw()] = None
    return list(texts)


def made_up_word(rng: np.random.Generator) -> str:
    """A capitalised word of 3 to 9 letters that is in no pool: pronounceable or plain random letters, half each."""
    if rng.random() < 0.5:
        return letters(rng, string.ascii_lowercase, int(rng.integers(3, 9))).capitalize()
    word = "".join(pick(rng, _ONSETS) + pick(rng, _VOWELS) + pick(rng, _CODAS) for _ in range(int(rng.integers(1, 4))))
    return word.ljust(3, "n")[:9].capitalize()


def unheard_name(rng: np.random.Generator, split: Split) -> str:
    """A field's name that `FIELDS` lacks, in lower case: a word of the split, in training half of the time made up."""
    if split == "train" and rng.random() < _MADE_UP:
        return made_up_word(rng).lower()
    return pick(rng, part(UNHEARD_FIELDS, split))


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
    if split == "train" and rng.random() < _MADE_UP:
        return made_up_word(rng)
    return pick(rng, part(FIRST_NAMES if rng.random() < 0.6 else LAST_NAMES, split))


def _city(rng: np.random.Generator, split: Split) -> str:
    if split == "train" and rng.random() < _MADE_UP:
        return " ".join(made_up_word(rng)[:7] for _ in range(1 + int(rng.random() < 0.15)))
    return pick(rng, part(CITIES, split))


def _company(rng: np.random.Generator, split: Split) -> str:
    if split == "train" and rng.random() < _MADE_UP:
        return f"{made_up_word(rng)[:7]}{pick(rng, (' ', ' & '))}{made_up_word(rng)[:6]}"
    return pick(rng, part(COMPANIES, split))


def _phone(rng: np.random.Generator, split: Split) -> str:
    return f"{_digits(rng, int(rng.choice([3, 3, 4])))}-{letters(rng, string.digits, 4)}"


KINDS: dict[str, Callable[[np.random.Generator, Split], str]] = {
    "amount": _amount,
    "date": _date,
    "time": _time,
    "number": _number,
    "code": _code,
    "seat": _seat,
    "name": _name,
    "city": _city,
    "company": _company,
    "phone": _phone,
}
KIND_NAMES: tuple[str, ...] = tuple(KINDS)
_TRAINED_KINDS = (*KIND_NAMES, *("name", "city", "company") * 2)
"""Kinds of values for training if any kind is possible; with more words, which a model tends to guess."""

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
    """The plausible kinds of a field's value; fields without an entry have plain numbers."""
    return _PLAUSIBLE.get(field, ("number",))


def sample_value(rng: np.random.Generator, field: str, *, split: Split) -> str:
    """A value for `field`: half of the time of a plausible kind, else of any kind, so that values cannot be guessed."""
    kinds = plausible_kinds(field) if rng.random() < 0.5 else _TRAINED_KINDS if split == "train" else KIND_NAMES
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
