"""Service dialogues of several turns; the domain `dialogue`."""

import random
from dataclasses import dataclass

from .item import Item
from .word_lists import CITIES, COLOURS, DAYS, NAMES, OBJECTS

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight")
TIMES = ("seven o'clock", "half past seven", "eight o'clock", "quarter past six", "noon", "half past nine")
PLACES = ("station", "museum", "library", "market", "post office", "castle", "hospital", "theatre")
STREETS = ("Mill Street", "Park Road", "Bridge Lane", "King Street", "Church Road", "Garden Lane")
WEATHERS = ("sunny", "rainy", "cloudy", "windy", "foggy", "snowy")
SIDES = ("left", "right")
EXTRAS = ("by the window", "in the garden", "near the door", "in a quiet corner")
PAYMENTS = ("by card", "in cash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A dialogue plan: two speakers take turns, each turn has several wordings.

    Attributes:
        title: first line of the text.
        speakers: who speaks first and who answers.
        turns: wordings of each turn, with slots that keep their value over the dialogue.
    """

    title: str
    speakers: tuple[str, str]
    turns: tuple[tuple[str, ...], ...]


GREETINGS = ("Hello.", "Good morning.", "Good evening.", "Hi there.")
THANKS = ("Thank you very much.", "Thanks a lot.", "Great, thank you.", "Perfect, thanks.")
FAREWELLS = ("You're welcome. Goodbye.", "My pleasure. Have a nice day.", "Not at all. See you soon.")

SCENES = (
    Scene(
        title="Booking a table",
        speakers=("Guest", "Host"),
        turns=(
            (
                "{hello} I would like to book a table for {number}.",
                "{hello} Do you have a table for {number} on {day}?",
            ),
            ("Of course. What time on {day} suits you?", "Certainly. At what time on {day} would you like to come?"),
            ("At {time}, please.", "Around {time} would be good.", "{time} if possible."),
            ("Would you like to sit {extra}?", "We have a table free {extra}. Is that all right?"),
            ("Yes, {extra} sounds lovely.", "Yes, please.", "No, any table is fine."),
            ("May I have your name?", "And what is the name, please?"),
            ("My name is {name}.", "It is {name}.", "Please book it for {name}."),
            (
                "Thank you, {name}. A table for {number} on {day} at {time}.",
                "So that is {number} people on {day} at {time}, {name}.",
            ),
            ("{thanks}",),
            ("{bye}",),
        ),
    ),
    Scene(
        title="In the shop",
        speakers=("Customer", "Clerk"),
        turns=(
            ("{hello} I am looking for a {object}.", "{hello} Do you sell a {object} like this one?"),
            ("What colour would you like?", "We have the {object} in {colour} and {colour2}."),
            ("I would like a {colour} one.", "The {colour} {object} looks good.", "Do you have it in {colour}?"),
            ("The {colour} {object} costs {price} euros.", "Yes, a {colour} {object} is {price} euros."),
            ("{price} euros is fine. I'll take it.", "That is a good price.", "Hmm, do you have a cheaper one?"),
            ("How would you like to pay?", "Would you like to pay {pay}?"),
            ("I will pay {pay}.", "{pay}, please."),
            ("Here is your {colour} {object}.", "Thank you. Here is the {object} and the receipt."),
            ("{thanks}",),
            ("{bye}",),
        ),
    ),
    Scene(
        title="Talking about the weather",
        speakers=("{name}", "{name2}"),
        turns=(
            ("{hello} How is the weather in {city}?", "{hello} Do you know if it is {weather} in {city}?"),
            ("It is {weather} today, about {degrees} degrees.", "Today {city} is {weather} with {degrees} degrees."),
            ("And what about {day}?", "Will it stay {weather} until {day}?"),
            ("On {day} it should be {weather2}.", "They say {day} will be {weather2} and colder."),
            ("Then I will take my umbrella to {city}.", "Good to know. I am travelling to {city} on {day}."),
            ("Why are you going to {city}, {name}?", "How long will you stay in {city}, {name}?"),
            ("I am visiting a friend for {number} days.", "There is a meeting, and then I stay {number} days."),
            ("{number} days in {city}! Enjoy the trip.", "Have fun in {city}, even if it is {weather2}."),
            ("{thanks}",),
            ("{bye}",),
        ),
    ),
    Scene(
        title="Asking for directions",
        speakers=("Visitor", "Local"),
        turns=(
            ("Excuse me, how do I get to the {place}?", "{hello} Where is the {place}, please?"),
            ("Go straight on and turn {side} into {street}.", "Take {street} and then turn {side} at the {place2}."),
            ("Is the {place} far from here?", "How long does it take to the {place}?"),
            ("About {number} minutes on foot.", "It is only {number} minutes from the {place2}."),
            ("So I turn {side} and walk {number} minutes?", "So I take {street} first?"),
            ("Exactly. The {place} is on the {side2}.", "Yes. You will see the {place} on the {side2}."),
            ("Is it open on {day}?", "Do I need a ticket on {day}?"),
            ("Yes, from {time} on.", "I think so. It opens at {time} on {day}."),
            ("{thanks}",),
            ("{bye}",),
        ),
    ),
    Scene(
        title="At the ticket office",
        speakers=("Traveller", "Agent"),
        turns=(
            ("{hello} I need {number} tickets to {city}.", "{hello} When is the next train to {city}?"),
            ("When do you want to travel to {city}?", "On which day, please?"),
            ("On {day}, please.", "I want to leave on {day}.", "Next {day}."),
            ("There is a train on {day} at {time}.", "The train to {city} leaves at {time}."),
            ("Is it a direct train?", "Do I have to change trains?"),
            ("You change in {city2}.", "No, you must change trains in {city2}.", "It is a direct train to {city}."),
            ("How much are the tickets?", "And what is the price?"),
            ("{number} tickets to {city} cost {price} euros.", "That is {price} euros."),
            ("I will pay {pay}.", "{pay}, please."),
            ("Here are your {number} tickets. Have a good trip to {city}.", "{bye}"),
        ),
    ),
)


def make_dialogue(rng: random.Random) -> Item:
    """Draw one dialogue; the prompt ends after the name of the next speaker."""
    scene = rng.choice(SCENES)
    slots = _draw_slots(rng)
    lines = []
    for position, wordings in enumerate(scene.turns):
        speaker = scene.speakers[position % 2].format(**slots)
        turn = rng.choice(wordings).format(**slots)
        lines.append(f"{speaker}: {turn[0].upper()}{turn[1:]}")
    first_open = rng.randint(2, 5)
    speaker, _, rest = lines[first_open].partition(":")
    opening = "\n".join([f"Dialogue: {scene.title}", *lines[:first_open], f"{speaker}:"])
    return Item(tag="dialogue", prompt=opening, completion="\n".join([rest, *lines[first_open + 1 :]]))


def _draw_slots(rng: random.Random) -> dict[str, str]:
    name, name2 = rng.sample(NAMES, 2)
    city, city2 = rng.sample(CITIES, 2)
    colour, colour2 = rng.sample(COLOURS, 2)
    place, place2 = rng.sample(PLACES, 2)
    weather, weather2 = rng.sample(WEATHERS, 2)
    return {
        "name": name,
        "name2": name2,
        "city": city,
        "city2": city2,
        "colour": colour,
        "colour2": colour2,
        "place": place,
        "place2": place2,
        "weather": weather,
        "weather2": weather2,
        "hello": rng.choice(GREETINGS),
        "thanks": rng.choice(THANKS),
        "bye": rng.choice(FAREWELLS),
        "number": rng.choice(NUMBERS),
        "day": rng.choice(DAYS),
        "time": rng.choice(TIMES),
        "extra": rng.choice(EXTRAS),
        "object": rng.choice(OBJECTS),
        "price": str(rng.randint(5, 95)),
        "pay": rng.choice(PAYMENTS),
        "degrees": str(rng.randint(2, 29)),
        "side": rng.choice(SIDES),
        "side2": rng.choice(SIDES),
        "street": rng.choice(STREETS),
    }
