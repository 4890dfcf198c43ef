"""What the pages of the domains say, other than names, cities and values of documents."""

# ruff: noqa: SIM905 (word pools are readable as running text, not as a thousand quoted strings)
from __future__ import annotations

import numpy as np

from ..values import CITIES, FIRST_NAMES, Split, held_out, made_up_word

ITEMS: tuple[str, ...] = tuple(
    name.strip()
    for name in """Apple,Apricot,Bagel,Banana,Basil,Bean soup,Beer,Biscuit,Bread,Brownie,Burger,Butter,Cake,Candle,
    Carrot,Celery,Cheese,Cherry,Chips,Cider,Cinnamon,Cocoa,Coconut,Coffee,Cookie,Corn,Cream,Crepe,Cucumber,Curry,
    Donut,Egg,Espresso,Falafel,Figs,Flour,Fries,Garlic,Ginger,Grapes,Gum,Ham,Hazelnut,Honey,Hummus,Ice cream,Iced tea,
    Jam,Juice,Kale,Ketchup,Kiwi,Lamp,Lasagna,Latte,Leek,Lemon,Lentils,Lime,Mango,Melon,Milk,Mint tea,Muffin,Mushroom,
    Mustard,Napkins,Noodles,Oats,Olive oil,Olives,Omelet,Onion,Orange,Pancake,Paprika,Parsley,Pasta,Peach,Peanuts,Pear,
    Peas,Pencil,Pepper,Pie,Pizza,Plum,Popcorn,Potato,Pretzel,Pudding,Pumpkin,Quiche,Radish,Raisins,Ramen,Rice,Risotto,
    Roll,Rosemary,Salad,Salt,Sandwich,Sardines,Sausage,Scone,Soap,Soda,Spinach,Sponge,Steak,Sugar,Sushi,Syrup,Taco,
    Tofu,Tomato,Tonic,Tuna,Vanilla,Vinegar,Waffle,Walnuts,Water,Wine,Wrap,Yeast,Yogurt""".split(",")
)
SHOPS: tuple[str, ...] = tuple(
    name.strip()
    for name in """Corner Shop,Joe's Cafe,Green Market,Sun Bakery,Old Mill,Blue Door,Fresh & Co,Lucky Deli,River Inn,
    City Grill,Hill Store,Moon Diner,Harbor Bar,North Foods,Rose Garden,Golden Fork,Village Shop,Star Kiosk,Oak Tavern,
    Red Lantern,Daily Bread,Mill & Son,Park Kitchen,Snack Stop""".split(",")
)
REGIONS: tuple[str, ...] = tuple(
    "North South East West Central Coast Harbor Valley Upland Island Delta Plains Forest Lakes Ridge Border".split()
)
DEPARTMENTS: tuple[str, ...] = tuple(
    """Sales Finance Legal Support Research Design Storage Security Kitchen Payroll Training Travel Quality Press
    Archive Printing Transport Planning Export Repair Library Clinic Reception Workshop""".split()
)
PRODUCTS: tuple[str, ...] = tuple(
    """Chair Desk Lamp Shelf Sofa Stool Bench Mirror Carpet Clock Vase Bowl Plate Kettle Toaster Mixer Radio Camera
    Phone Tablet Printer Scanner Router Keyboard Monitor Speaker Jacket Shirt Scarf Boots Gloves Tent""".split()
)
MONTHS: tuple[str, ...] = tuple("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())
DAYS: tuple[str, ...] = tuple("Mon Tue Wed Thu Fri Sat Sun".split())
QUARTERS: tuple[str, ...] = ("Q1", "Q2", "Q3", "Q4")
SIZES: tuple[str, ...] = tuple("Small Medium Large Giant".split())
MEASURES: tuple[str, ...] = tuple("Orders Stock Returns Visits Units Cost Income Staff Hours Rating".split())
STREETS: tuple[str, ...] = tuple(
    """Maple Oak Cedar Pine Elm Birch Willow Chestnut Church Mill Station Market Bridge King Queen Garden Lake River
    Hill School Castle Abbey Forest Meadow Sunset Park Orchard Harbor""".split()
)
TRADES: tuple[str, ...] = tuple(
    """Bakery Pharmacy Florist Butcher Barber Tailor Hotel Bank Museum Theater Gallery Cinema Bookshop Laundry Garage
    Bistro Hostel Clinic Grocery Jeweler""".split()
)

HELD_OUT: frozenset[str] = frozenset(
    word
    for pool in (ITEMS, SHOPS, REGIONS, DEPARTMENTS, PRODUCTS, STREETS, TRADES, FIRST_NAMES, CITIES)
    for word in held_out(pool)
)
"""Words that training never shows, whichever pool they are in."""
_MADE_UP = 0.3  # share of training words that are in no pool


def sample_words(
    rng: np.random.Generator, pool: tuple[str, ...], count: int, split: Split, *, made_up: bool = True
) -> list[str]:
    """Up to `count` distinct words of a pool in a drawn order; every eighth of the pool never in training.

    With `made_up`, three in ten words of training are in no pool, so that reading does not become guessing.
    """
    words = pool if split == "test" else tuple(word for word in pool if word not in HELD_OUT)
    chosen = [words[i] for i in rng.permutation(len(words))[:count]]
    if made_up and split == "train":
        chosen = [made_up_word(rng) if rng.random() < _MADE_UP else word for word in chosen]
    return list(dict.fromkeys(chosen))
