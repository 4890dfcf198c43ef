"""What the pages of the domains say, other than names, cities and values of documents."""

# ruff: noqa: SIM905 (word pools are readable as running text, not as a thousand quoted strings)
from __future__ import annotations

import numpy as np

from ..splits import Split, part
from ..values import made_up_word, phrases

ITEMS: tuple[str, ...] = phrases(
    """Almonds, Anchovies, Apple, Apricot, Artichoke, Arugula, Asparagus, Avocado, Bacon, Bagel, Baguette, Baking
    soda, Balsamic, Bamboo tips, Banana, Barley, Basil, Batteries, Bay leaves, Bean soup, Beans, Beef, Beer,
    Beetroot, Bell pepper, Berries, Bin bags, Biscuit, Black tea, Blueberry, Bok choy, Bouillon, Bran, Bread, Brie,
    Brioche, Broccoli, Broom, Broth, Brownie, Bulgur, Burger, Burrito, Butter, Cabbage, Cake, Candle, Capers,
    Cappuccino, Caramel, Cardamom, Carrot, Cashews, Cauliflower, Caviar, Celery, Cereal, Chalk, Chard, Cheddar,
    Cheese, Cherry, Chestnuts, Chicken, Chickpeas, Chili, Chips, Chives, Chocolate, Chutney, Ciabatta, Cider,
    Cinnamon, Clams, Cleaner, Cloves, Cocoa, Coconut, Cod, Coffee, Cola, Coleslaw, Comb, Compote, Cookie,
    Coriander, Corn, Cotton, Couscous, Crab, Crackers, Cranberry, Cream, Crepe, Croissant, Crumble, Cucumber,
    Cumin, Cupcake, Currants, Curry, Custard, Dates, Detergent, Dill, Dip, Donut, Dough, Dressing, Dumplings,
    Eclair, Egg, Eggplant, Endive, Eraser, Espresso, Falafel, Fennel, Feta, Figs, Fish soup, Flatbread, Flour,
    Focaccia, Foil, Fries, Fritter, Fudge, Garlic, Gelato, Ghee, Gherkin, Ginger, Glue, Gnocchi, Goulash, Granola,
    Grapefruit, Grapes, Gravy, Green tea, Guava, Gum, Gyros, Haddock, Halibut, Halva, Ham, Ham roll, Hash brown,
    Hazelnut, Herring, Honey, Horseradish, Hot dog, Hummus, Ice cream, Iced tea, Ink, Jam, Jelly, Juice, Kale,
    Kebab, Kefir, Ketchup, Kimchi, Kipper, Kiwi, Lamb, Lamp, Lard, Lasagna, Latte, Leek, Lemon, Lemonade, Lentils,
    Lettuce, Licorice, Lime, Linguine, Liver, Lobster, Lollipop, Lychee, Macaroni, Mackerel, Malt, Mango, Maple
    syrup, Margarine, Marinade, Marmalade, Marzipan, Matches, Mayonnaise, Meatballs, Melon, Meringue, Milk, Mint
    tea, Miso, Mocha, Molasses, Mousse, Mozzarella, Muesli, Muffin, Mushroom, Mussels, Mustard, Mutton, Nachos,
    Napkins, Nectarine, Noodles, Notebook, Nougat, Nutmeg, Oatmeal, Oats, Octopus, Okra, Olive oil, Olives, Omelet,
    Onion, Orange, Oregano, Oysters, Paella, Pancake, Papaya, Paper, Paprika, Parmesan, Parsley, Parsnip, Pasta,
    Pastry, Peach, Peanuts, Pear, Peas, Pecans, Pencil, Pens, Pepper, Pesto, Pickles, Pie, Pilaf, Pineapple,
    Pistachio, Pita, Pizza, Plum, Polenta, Popcorn, Pork, Porridge, Potato, Praline, Prawns, Pretzel, Prunes,
    Pudding, Pumpkin, Puree, Quiche, Quinoa, Rabbit, Radish, Raisins, Ramen, Raspberry, Ravioli, Red wine, Relish,
    Rhubarb, Ribs, Rice, Ricotta, Risotto, Roll, Rosemary, Rusk, Rye bread, Saffron, Sage, Salad, Salami, Salmon,
    Salsa, Salt, Samosa, Sandwich, Sardines, Sauce, Sausage, Scallops, Scone, Seaweed, Semolina, Sesame, Shampoo,
    Sherbet, Shrimp, Smoothie, Soap, Soda, Sorbet, Souffle, Soup, Sour cream, Soy sauce, Spaghetti, Spinach,
    Sponge, Sprouts, Squash, Squid, Stamps, Steak, Stew, Strawberry, Strudel, Stuffing, Sugar, Sundae, Sushi, Sweet
    corn, Syrup, Taco, Tamarind, Tangerine, Tape, Tapioca, Tart, Tartar, Tea bags, Thyme, Tissues, Toast, Toffee,
    Tofu, Tomato, Tonic, Toothpaste, Tortilla, Towel, Treacle, Trifle, Trout, Truffle, Tuna, Turkey, Turmeric,
    Turnip, Vanilla, Veal, Venison, Vinegar, Waffle, Walnuts, Wasabi, Water, Watercress, Watermelon, Wheat beer,
    White wine, Wine, Wipes, Wrap, Yam, Yeast, Yogurt, Zucchini"""
)
SHOPS: tuple[str, ...] = phrases(
    """Acorn Market, All Day Deli, Angel Bakery, Arch Street Bar, Autumn Cafe, Beach Kiosk, Bean & Leaf, Bell Tower
    Inn, Big Spoon, Birch Cafe, Black Cat Pub, Blossom Tea, Blue Door, Brick Oven, Bridge Bistro, Broadway Deli,
    Butter & Jam, Canal House, Candle Room, Castle Kitchen, Cedar Grocer, Cherry Pick, Chili Corner, City Grill,
    Cloud Nine Bar, Coast Cantina, Copper Pot, Corner Shop, Cosy Corner, Crab Shack, Daily Bread, Dawn Bakery, Dock
    Diner, Dragon Wok, Eagle Tavern, East Side Shop, Elm Street Deli, Empire Pizza, Family Foods, Farm to Fork, Fig
    & Olive, Fire Grill, First Stop, Forest Lodge, Fountain Bar, Four Seasons, Fox & Hound, Fresh & Co, Garden
    Grill, Gate House, Golden Fork, Good Earth, Grain & Grape, Grand Cafe, Green Apple, Green Market, Happy Bowl,
    Harbor Bar, Harvest Hall, Hearth & Home, Hidden Door, Hill Store, Honey Pot, Hop & Vine, Ivy Cottage, Jade
    Palace, Joe's Cafe, Juice Point, King Burger, Lake View, Lemon Grove, Little Italy, Long Table, Lotus Garden,
    Lucky Deli, Magic Bean, Main St Market, Maple Diner, Market Hall, Meadow Farm, Midtown Mart, Mill & Son, Mint
    Leaf, Moon Diner, Mountain Top, Night Owl, Noodle Bar, North Foods, Oak & Barley, Oak Tavern, Ocean Plate, Old
    Bakehouse, Old Mill, Orange Tree, Orchard Shop, Palm Court, Paper Moon, Park Kitchen, Pasta House, Pepper Mill,
    Pier Seven, Pine Lodge, Plum Pudding, Quick Bite, Railway Inn, Rainbow Deli, Red Barn, Red Lantern, Rice &
    Spice, River Inn, Roast Room, Rose Garden, Royal Curry, Rustic Oven, Sailor Inn, Salt & Stone, Sea Breeze,
    Silver Spoon, Smoke House, Snack Stop, South Fork, Spice Route, Square One, Star Kiosk, Station Cafe, Stone
    Hearth, Sugar & Rye, Sun Bakery, Sunny Side, Taco Truck, Tea & Toast, Three Bells, Tiger Noodles, Top Grocer,
    Town Butcher, Twin Oaks, Uptown Cafe, Valley Store, Velvet Cup, Village Shop, Vine Street, Waffle Works, Water
    Lily, West End Bar, White Horse, Wild Thyme, Windy Corner, Wooden Spoon, Yellow Door"""
)
REGIONS: tuple[str, ...] = tuple(
    """Alpine Arctic Atlantic Baltic Basin Bayou Beach Border Canyon Cape Capital Central Cliff Coast County Crossing
    Delta Desert Downtown Dunes East Equator Fields Fjord Foothills Forest Frontier Glacier Glen Gorge Grove Gulf
    Harbor Heath Heights Highland Hills Inland Island Isthmus Jungle Lagoon Lakes Lowland Marsh Meadow Mesa Metro
    Midland Midwest Moor Mountain North Northeast Northwest Oasis Ocean Outback Pacific Peak Peninsula Plains
    Plateau Polar Port Prairie Province Reef Ridge Riverside Rural Sahara Savanna Seaside Shore Sound South
    Southeast Southwest Steppe Strait Suburb Summit Swamp Territory Tropics Tundra Upland Urban Vale Valley Volcano
    West Wetland Wilderness Woodland""".split()
)
DEPARTMENTS: tuple[str, ...] = tuple(
    """Accounts Admissions Advertising Analysis Archive Archives Art Assembly Assets Audit Billing Biology Booking
    Botany Branding Budget Cardiology Cargo Catering Chemistry Claims Cleaning Clinic Compliance Contracts Control
    Counsel Credit Customs Data Delivery Dental Design Dispatch Editing Education Energy Engineering Events Export
    Facilities Finance Fleet Garden Genetics Geology Grants Graphics Health Heritage History Housing Imaging Import
    Insurance Intake Inventory Kitchen Labs Languages Legal Lending Library Licensing Logistics Mailroom Marketing
    Mechanics Media Methods Music Network Nursery Nutrition Operations Optics Outreach Packing Parking Patents
    Payroll Permits Pharmacy Physics Planning Policy Press Pricing Printing Production Programs Purchasing Quality
    Radiology Reception Records Recruiting Registry Rentals Repair Research Reserves Safety Sales Sampling
    Scheduling Science Security Service Shipping Software Sourcing Sports Statistics Storage Strategy Studio Supply
    Support Surgery Systems Technology Testing Theatre Tickets Tooling Tours Training Transport Travel Treasury
    Volunteers Wards Welding Workshop Writing""".split()
)
PRODUCTS: tuple[str, ...] = tuple(
    """Adapter Anvil Apron Armchair Backpack Ball Banner Basket Battery Bed Bell Belt Bench Bicycle Binder Blanket
    Blender Blinds Boiler Bolt Bookcase Boots Bowl Bracelet Brush Bucket Buggy Bulb Cabinet Cable Calculator Camera
    Candle Canvas Cap Carpet Chair Charger Chess Chisel Clamp Clock Coat Compass Cooker Cot Couch Crate Cup Curtain
    Cushion Desk Diary Doll Door Drawer Dress Drill Drone Drum Dryer Easel Fan Faucet Fence Flag Flask Flute Folder
    Fork Frame Freezer Funnel Fuse Globe Gloves Goggles Grater Grill Guitar Hammer Hammock Hanger Harness Harp Hat
    Headset Heater Helmet Hinge Hoe Hook Hose Iron Jacket Jar Jeans Jug Kettle Keyboard Kite Knife Ladder Ladle
    Lamp Lantern Laptop Lens Level Lever Locker Mat Mattress Microscope Mirror Mixer Modem Monitor Mop Motor Mug
    Nail Necklace Needle Organ Oven Paddle Padlock Paint Pan Pedal Peeler Pen Piano Pillow Pipe Plate Pliers Pot
    Printer Projector Pump Purse Puzzle Rack Radio Rake Razor Ring Rope Router Rug Ruler Saddle Sandals Saw Scale
    Scanner Scarf Scooter Screw Shears Shelf Shirt Shoes Shovel Sink Skates Skis Sled Socks Sofa Spade Spanner
    Speaker Spoon Stapler Stool Stove Suitcase Sunhat Sweater Swing Tablet Tap Tent Thermos Tie Tiles Timer Toaster
    Tongs Tray Tripod Trolley Trunk Umbrella Vacuum Valve Vase Vest Violin Wagon Wallet Wardrobe Watch Wheel Whisk
    Whistle Window Wrench Zipper""".split()
)
MONTHS: tuple[str, ...] = tuple("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())
DAYS: tuple[str, ...] = tuple("Mon Tue Wed Thu Fri Sat Sun".split())
QUARTERS: tuple[str, ...] = ("Q1", "Q2", "Q3", "Q4")
SIZES: tuple[str, ...] = tuple("Small Medium Large Giant".split())
MEASURES: tuple[str, ...] = tuple("Orders Stock Returns Visits Units Cost Income Staff Hours Rating".split())
STREETS: tuple[str, ...] = tuple(
    """Abbey Acacia Airport Alder Almond Anchor Apple Arch Ash Aspen Avalon Bakers Bank Barn Bay Beach Bear Beech Bell
    Berry Birch Bishop Bluebell Boundary Brewery Brick Bridge Brook Butcher Cactus Camden Canal Canyon Castle
    Cathedral Cedar Chapel Charles Cherry Chestnut Church Clay Cliff Clinton Clover College Copper Coral Cottage
    Court Coventry Crescent Cricket Cross Crown Crystal Cypress Daisy Dale Deer Dove Duke Eagle East Edward Elder
    Elizabeth Elm Factory Fair Falcon Farm Fern Ferry Field Fig Fir Fleet Ford Forest Fort Fountain Fox Franklin
    Frost Garden George Glen Gold Grand Grange Granite Grape Green Grove Hall Hamilton Harbor Hawthorn Hazel Heath
    Heron Hickory High Highland Hill Hollow Holly Horse Hunter Iris Island Ivy Jackson Jasmine Jefferson Juniper
    King Kings Lake Laurel Lavender Lemon Liberty Lilac Lily Lime Linden Lion London Long Lower Madison Magnolia
    Main Manor Maple Marble Marina Market Marsh Mason Meadow Mercer Middle Mill Mint Monroe Moon Mountain Mulberry
    Museum New North Nutmeg Oak Ocean Olive Orange Orchard Orchid Palace Palm Paradise Park Peach Pearl Pepper Pine
    Pioneer Plum Pond Poplar Port Prairie Primrose Prince Quarry Queen Queens Railway Raven Redwood Regent Ridge
    River Robin Rose Rosewood Royal Saddle Salt Sand School Silver Smith South Spring Spruce Square Stable Star
    Station Stone Stream Summer Summit Sunset Swan Sycamore Temple Thistle Thorn Timber Tower Tulip Union Upper
    Valley Victoria View Vine Violet Walnut Water Well West Wharf White Willow Windmill Windsor Winter Wood Wren
    Yew York""".split()
)
TRADES: tuple[str, ...] = tuple(
    """Academy Accountant Agency Antiques Apothecary Arcade Atelier Auction Bagels Bakery Bank Barber Barista Bikes
    Bistro Boatyard Bookshop Brewery Broker Burgers Butcher Cabs Cafe Cameras Candles Carpenter Carpets Casino
    Caterer Ceramics Chapel Chemist Chocolatier Cinema Clinic Clockmaker Clothing Cobbler College Cooper Couriers
    Creamery Curios Dairy Dancing Dentist Diner Distillery Doctor Drapery Drugstore Eatery Electrician Embassy
    Engraver Exchange Fabrics Fashion Ferry Fishmonger Florist Framing Furniture Furrier Gallery Games Garage
    Gardens Gifts Glassworks Glazier Goldsmith Grocery Groomer Gymnasium Haberdasher Hairdresser Hardware Hatter
    Herbalist Hospice Hospital Hostel Hotel Inn Ironmonger Jeweler Joinery Kennels Kiosk Kitchens Launderette
    Laundry Lawyer Library Lighting Locksmith Lounge Luggage Market Mason Mechanic Milliner Motel Motors Movers
    Museum Nails Newsagent Notary Nursery Optician Outfitter Painter Patisserie Pawnshop Pets Pharmacy Photographer
    Pizzeria Plumber Pottery Printer Records Rentals Restaurant Roofer Saddler Salon Sauna School Seafood Shipyard
    Shoes Silversmith Skating Smithy Solicitor Stables Stationer Steakhouse Studio Surgeon Surveyor Tailor Tannery
    Tavern Taxis Tearoom Theater Tiles Tobacconist Toys Travel Upholsterer Veterinary Vineyard Watchmaker Weaver
    Winery Yoga""".split()
)

OPEN_POOLS: tuple[tuple[str, ...], ...] = (ITEMS, SHOPS, REGIONS, DEPARTMENTS, PRODUCTS, STREETS, TRADES)
"""Pools whose words are held out; those of the other pools (months, sizes) are so few that every split shows them."""
_SHOWN_BY_ALL = (MONTHS, DAYS, QUARTERS, SIZES, MEASURES)
_MADE_UP = 0.3  # share of training words that are in no pool


def sample_words(
    rng: np.random.Generator, pool: tuple[str, ...], count: int, split: Split, *, made_up: bool = True
) -> list[str]:
    """Up to `count` distinct words of a split's part of a pool, in a drawn order.

    With `made_up`, three in ten words of training are in no pool, so that reading does not become guessing.
    """
    words = pool if pool in _SHOWN_BY_ALL else part(pool, split)
    chosen = [words[i] for i in rng.permutation(len(words))[:count]]
    if made_up and split == "train":
        chosen = [made_up_word(rng) if rng.random() < _MADE_UP else word for word in chosen]
    return list(dict.fromkeys(chosen))
