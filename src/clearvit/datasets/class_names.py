"""Class names of data sets, and the words that captions use for them."""

from __future__ import annotations

from collections.abc import Sequence


def _split(text: str) -> tuple[str, ...]:
    return tuple(" ".join(name.split()) for name in text.split(","))


VOC = _split("""background, aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow,
dining table, dog, horse, motorbike, person, potted plant, sheep, sofa, train, tv monitor""")

CITYSCAPES = _split("""road, sidewalk, building, wall, fence, pole, traffic light, traffic sign,
vegetation, terrain, sky, person, rider, car, truck, bus, train, motorcycle, bicycle""")

CONTEXT = _split("""background, aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow,
table, dog, horse, motorbike, person, potted plant, sheep, sofa, train, tv monitor, bag, bed, bench,
book, building, cabinet, ceiling, cloth, computer, cup, door, fence, floor, flower, food, grass,
ground, keyboard, light, mountain, mouse, curtain, platform, sign, plate, road, rock, shelves,
sidewalk, sky, snow, bedclothes, track, tree, truck, wall, water, window, wood""")

COCO_THINGS = _split("""person, bicycle, car, motorcycle, airplane, bus, train, truck, boat,
traffic light, fire hydrant, stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow,
elephant, bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis,
snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket,
bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, broccoli,
carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv,
laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book,
clock, vase, scissors, teddy bear, hair drier, toothbrush""")

COCO_STUFF = COCO_THINGS + _split("""banner, blanket, branch, bridge, building-other, bush,
cabinet, cage, cardboard, carpet, ceiling-other, ceiling-tile, cloth, clothes, clouds, counter,
cupboard, curtain, desk-stuff, dirt, door-stuff, fence, floor-marble, floor-other, floor-stone,
floor-tile, floor-wood, flower, fog, food-other, fruit, furniture-other, grass, gravel,
ground-other, hill, house, leaves, light, mat, metal, mirror-stuff, moss, mountain, mud, napkin,
net, paper, pavement, pillow, plant-other, plastic, platform, playingfield, railing, railroad,
river, road, rock, roof, rug, salad, sand, sea, shelf, sky-other, skyscraper, snow, solid-other,
stairs, stone, straw, structural-other, table, tent, textile-other, towel, tree, vegetable,
wall-brick, wall-concrete, wall-other, wall-panel, wall-stone, wall-tile, wall-wood, water-other,
waterdrops, window-blind, window-other, wood""")

ADE20K = _split("""wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass,
cabinet, sidewalk, person, earth, door, table, mountain, plant, curtain, chair, car, water,
painting, sofa, shelf, house, sea, mirror, rug, field, armchair, seat, fence, desk, rock, wardrobe,
lamp, bathtub, railing, cushion, base, box, column, signboard, chest of drawers, counter, sand,
sink, skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, case, pool table,
pillow, screen door, stairway, river, bridge, bookcase, blind, coffee table, toilet, flower, book,
hill, bench, countertop, stove, palm, kitchen island, computer, swivel chair, boat, bar,
arcade machine, hovel, bus, towel, light, truck, tower, chandelier, awning, streetlight, booth,
television receiver, airplane, dirt track, apparel, pole, land, bannister, escalator, ottoman,
bottle, buffet, poster, stage, van, ship, fountain, conveyer belt, canopy, washer, plaything,
swimming pool, stool, barrel, basket, waterfall, tent, bag, minibike, cradle, oven, ball, food,
step, tank, trade name, microwave, pot, animal, bicycle, lake, dishwasher, screen, blanket,
sculpture, hood, sconce, vase, traffic light, tray, ashcan, fan, pier, crt screen, plate, monitor,
bulletin board, shower, radiator, glass, clock, flag""")

# Text queries for the background where only objects are classes.
BACKGROUND_WORDS = _split("""sky, cloud, wall, building, floor, ceiling, window, door, curtain,
shelf, cupboard, desk, bed, lamp, stairs, railing, fence, road, grass, tree, wood, sand, sea, river,
hill, mountain""")

# Names that captions rarely use, with words that they do use.
_CAPTION_WORDS = {
    "aeroplane": "aeroplane, airplane",
    "motorbike": "motorbike, motorcycle",
    "tv monitor": "television, monitor, tv screen",
    "tv": "television, tv screen",
    "sofa": "sofa, couch",
    "couch": "couch, sofa",
    "hair drier": "hair dryer",
    "remote": "remote control",
    "mouse": "computer mouse",
    "windowpane": "window",
    "window-blind": "window blind",
    "playingfield": "playing field",
    "waterdrops": "drops of water",
    "terrain": "terrain, soil",
    "vegetation": "vegetation, tree",
    "television receiver": "television",
    "ashcan": "trash can",
    "minibike": "motorbike",
    "plaything": "toy",
    "trade name": "brand sign",
}
_VAGUE = ("other", "stuff", "solid", "structural")


def caption_words(name: str) -> tuple[str, ...]:
    """Turn a class name into one or several synonyms as captions use them.

    Commas separate synonyms. In COCO-Stuff, "wall-brick" becomes "brick wall" and
    "sky-other" becomes "sky".
    """
    if name in _CAPTION_WORDS:
        return _split(_CAPTION_WORDS[name])
    if name in COCO_STUFF and "-" in name:
        kind, detail = name.split("-")
        if detail in _VAGUE:
            return (f"{kind} thing" if kind in _VAGUE else kind,)
        return (f"{detail} {kind}",)
    return tuple(word for word in _split(name.replace("_", " ")) if word)


def text_queries(
    classes: Sequence[str], *, objects_only: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Return the text queries of each class, its synonyms.

    Args:
        classes: Names, in order.
        objects_only: All classes but the background are objects: query the background by sky,
            wall, grass and so on.
    """
    found = [caption_words(name) for name in classes]
    taken = {word for words in found for word in words}
    if objects_only and classes[0] == "background":
        found[0] = tuple(name for name in BACKGROUND_WORDS if name not in taken)
    return tuple(found)
