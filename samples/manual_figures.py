"""The drawings of the sample manual, each a function that returns a reportlab Drawing."""

import math

from reportlab.graphics.shapes import Circle, Drawing, Line, Polygon, PolyLine, Rect, String
from reportlab.lib import colors

GREEN = colors.HexColor("#1f5b45")
GREY = colors.HexColor("#5a625e")
PALE = colors.HexColor("#eef4f0")
RULE = colors.HexColor("#c3cec8")
AMBER = colors.HexColor("#d08a1d")
RED = colors.HexColor("#b5382f")


def text(x: float, y: float, words: str, size: float = 8, anchor: str = "middle") -> String:
    """A label in the figures' typeface."""
    return String(
        x, y, words, fontName="Helvetica", fontSize=size, textAnchor=anchor, fillColor=GREY
    )


def greenhouse() -> Drawing:
    """The outline of three bays, for the title page."""
    bay, wall, roof = 120, 110, 55
    drawing = Drawing(3 * bay + 40, 230)
    for number in range(3):
        left = 20 + number * bay
        ridge = (left + bay / 2, 30 + wall + roof)
        drawing.add(
            Polygon(
                [left, 30, left, 30 + wall, *ridge, left + bay, 30 + wall, left + bay, 30],
                strokeColor=GREEN,
                fillColor=PALE,
                strokeWidth=1.6,
            )
        )
        for pane in range(1, 4):
            x = left + pane * bay / 4
            top = 30 + wall + roof * (1 - abs(pane - 2) / 2)
            drawing.add(Line(x, 30, x, top, strokeColor=GREEN, strokeWidth=0.5))
        drawing.add(
            Line(left, 30 + wall, left + bay, 30 + wall, strokeColor=GREEN, strokeWidth=0.5)
        )
        # The lee vent of each bay stands a little further open than that of the bay before.
        angle = math.radians(24 - 10 * number)
        drawing.add(
            Line(
                *ridge,
                ridge[0] + 50 * math.cos(angle),
                ridge[1] - 50 * math.sin(angle),
                strokeColor=AMBER,
                strokeWidth=2,
            )
        )
        for plant in range(5):
            foot = left + 16 + plant * 22
            drawing.add(Line(foot, 30, foot, 66, strokeColor=GREEN, strokeWidth=1.2))
            for leaf in range(3):
                side = 7 if leaf % 2 else -7
                drawing.add(
                    Line(foot, 40 + leaf * 10, foot + side, 46 + leaf * 10, strokeColor=GREEN)
                )
    drawing.add(Line(0, 30, 3 * bay + 40, 30, strokeColor=GREY, strokeWidth=2))
    return drawing


def terminal_strip() -> Drawing:
    """The terminals in two rows, with the names of table 3.4."""
    drawing = Drawing(440, 150)
    upper = (
        (1, 2, "24 V"),
        (3, 3, "PE"),
        (4, 7, "BUS"),
        (8, 15, "A1 to A4"),
        (16, 22, "D1 to D6, DC"),
    )
    lower = ((23, 26, "V1, V2"), (27, 29, "COM"), (31, 46, "R1 to R8"))
    for y, pitch, leftmost, groups in ((88, 19.5, 1, upper), (22, 17.6, 23, lower)):
        for first, last, name in groups:
            x = 6 + (first - leftmost) * pitch
            for number in range(first, last + 1):
                left = x + (number - first) * pitch
                drawing.add(Rect(left, y, pitch - 2, 26, strokeColor=GREY, fillColor=PALE))
                drawing.add(
                    Circle(
                        left + pitch / 2 - 1, y + 17, 4, strokeColor=GREY, fillColor=colors.white
                    )
                )
                drawing.add(text(left + pitch / 2 - 1, y + 3, str(number), 7))
            middle = x + (last - first + 1) * pitch / 2 - 1
            drawing.add(
                Line(x, y + 31, x + (last - first + 1) * pitch - 2, y + 31, strokeColor=GREEN)
            )
            drawing.add(text(middle, y + 35, name))
    drawing.add(text(6, 4, "23 to 29: low voltage", 7, "start"))
    drawing.add(text(434, 4, "31 to 46: as much as 250 V", 7, "end"))
    return drawing


def front_panel() -> Drawing:
    """The front of the enclosure: display, wheel, keys and lamps."""
    drawing = Drawing(360, 190)
    drawing.add(
        Rect(2, 2, 356, 186, rx=10, ry=10, strokeColor=GREY, fillColor=PALE, strokeWidth=1.2)
    )
    drawing.add(Rect(20, 58, 196, 112, strokeColor=GREY, fillColor=colors.white))
    lines = (
        ("Bay 3", "14:20"),
        ("Temperature", "22.4 °C"),
        ("Humidity", "71 %"),
        ("Light", "512 W/m²"),
        ("Vents lee", "35 %"),
        ("Vents windward", "0 %"),
        ("Heating", "off"),
        ("Screen", "open"),
    )
    for number, (name, value) in enumerate(lines):
        drawing.add(text(28, 157 - number * 13, name, 8.5, "start"))
        drawing.add(text(208, 157 - number * 13, value, 8.5, "end"))
    drawing.add(Circle(282, 124, 34, strokeColor=GREY, fillColor=colors.white, strokeWidth=1.4))
    drawing.add(Circle(282, 124, 24, strokeColor=GREY, fillColor=PALE))
    drawing.add(text(282, 121, "wheel"))
    for number, name in enumerate(("Back", "Home", "Why", "Quiet")):
        left = 226 + number * 32
        drawing.add(Rect(left, 50, 28, 20, rx=4, ry=4, strokeColor=GREY, fillColor=colors.white))
        drawing.add(text(left + 14, 57, name, 7.5))
    lamps = (("POWER", colors.HexColor("#3b9a5b")), ("HAND", AMBER), ("ALARM", RED))
    for number, (name, colour) in enumerate(lamps):
        x = 50 + number * 64
        drawing.add(Circle(x, 38, 6, strokeColor=GREY, fillColor=colour))
        drawing.add(text(x, 18, name))
    drawing.add(text(290, 18, "ORRINMERE GC-8"))
    return drawing


def heating_temperature(hour: float) -> float:
    """The heating temperature of figure 5-1: night, rise before sunrise, light supplement, fall."""
    day = min(18.0, max(16.5, 16.5 + 1.5 * (hour - 4.5)))
    if hour > 20:
        day = max(16.5, 18.0 - 2.5 * (hour - 20))
    light = max(0.0, 820 * math.sin(math.pi * (hour - 5) / 15.5)) if 5 < hour < 20.5 else 0.0
    return day + 2.0 * min(1.0, max(0.0, (light - 150) / 450))


def day_curve() -> Drawing:
    """Heating and ventilation temperature over 24 hours."""
    drawing = Drawing(420, 190)
    left, bottom, width, height = 40, 30, 360, 140
    low, high = 15.0, 25.0

    def point(hour: float, celsius: float) -> tuple[float, float]:
        return left + hour / 24 * width, bottom + (celsius - low) / (high - low) * height

    drawing.add(Rect(left, bottom, width, height, strokeColor=GREY, fillColor=None))
    for hour in range(0, 25, 4):
        x, _ = point(hour, low)
        drawing.add(Line(x, bottom, x, bottom + height, strokeColor=RULE, strokeWidth=0.4))
        drawing.add(text(x, bottom - 12, f"{hour:02d}:00"))
    for celsius in range(16, 26, 2):
        _, y = point(0, celsius)
        drawing.add(Line(left, y, left + width, y, strokeColor=RULE, strokeWidth=0.4))
        drawing.add(text(left - 5, y - 3, f"{celsius} °C", 8, "end"))
    for distance, colour in ((0.0, RED), (3.0, GREEN)):
        path: list[float] = []
        for step in range(24 * 6 + 1):
            path += point(step / 6, heating_temperature(step / 6) + distance)
        drawing.add(PolyLine(path, strokeColor=colour, strokeWidth=1.6))
    for hour, celsius, words in (
        (12.0, 23.4, "ventilation temperature"),
        (12.0, 21.3, "idle band, 3.0 K"),
        (12.0, 18.9, "heating temperature"),
    ):
        drawing.add(text(*point(hour, celsius), words))
    return drawing
