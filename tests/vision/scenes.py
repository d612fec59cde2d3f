"""Scenes of coloured shapes, drawn by tensor operations, and questions about them with their answers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

COLOURS = {
    "red": (0.86, 0.16, 0.16),
    "green": (0.16, 0.70, 0.24),
    "blue": (0.18, 0.30, 0.90),
    "yellow": (0.93, 0.85, 0.20),
    "purple": (0.60, 0.22, 0.72),
}
SHAPES = ("circle", "square", "triangle", "plus", "diamond", "ring", "frame", "saltire")
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
TASKS = ("colour", "where", "count", "box")
OBJECTS, ASKED, ANSWER = 6, 6, 5  # shapes of a scene, tokens of a question, and of an answer with its end
SPECIAL = ("<pad>", "<image>", "</s>", "<unk>")
QUESTION_WORDS = ("what", "colour", "is", "the", "?", "where", "how", "many", "shapes", "are", "box", "of")
NUMBERS = tuple(str(number) for number in range(25))  # counts, and edges of boxes in patches
WORDS = (*SPECIAL, *QUESTION_WORDS, *COLOURS, *SHAPES, *ROWS, *COLUMNS, *NUMBERS)
ID = {word: at for at, word in enumerate(WORDS)}
PAD, IMAGE, END = ID["<pad>"], ID["<image>"], ID["</s>"]


class Grid(NamedTuple):
    """A picture's side, that of its patches, and of the cells that shapes lie in, all in pixels.

    Half the size of a shape is between `least` and `most`.
    """

    side: int
    patch: int
    cell: int
    least: float
    most: float

    @property
    def across(self) -> int:
        """The number of patches in a row."""
        return self.side // self.patch

    @property
    def patches(self) -> int:
        """The number of patches."""
        return self.across**2


LARGE, SMALL = Grid(96, 4, 24, 5, 11), Grid(48, 6, 12, 3.5, 6)


class Scenes(NamedTuple):
    """Pictures [n, 3, side, side] from 0 to 1, and their objects.

    Of each of its objects [n, objects] a scene has the colour, the shape, and in pixels the centre and half
    of the sizes [n, objects, 2], x first.
    """

    pictures: Any
    colours: Any
    shapes: Any
    centres: Any
    halves: Any
    grid: Grid


class Asked(NamedTuple):
    """Questions [n, each, ASKED] in tokens, their answers [n, each, ANSWER], padded, and tasks [n, each]."""

    questions: Any
    answers: Any
    tasks: Any


def scenes(count: int, numbers: torch.Generator, grid: Grid, objects: int = OBJECTS) -> Scenes:
    """Draw scenes of so many `objects` on the device of `numbers`, of different shapes and side by side."""
    place = numbers.device

    def drawn(*shape: int) -> Any:
        return torch.rand(shape, generator=numbers, device=place)

    shapes = drawn(count, len(SHAPES)).argsort(-1)[:, :objects]
    colours = (drawn(count, objects) * len(COLOURS)).long()
    row = grid.side // grid.cell
    cells = drawn(count, row * row).argsort(-1)[:, :objects]
    corners = torch.stack([cells % row, cells // row], -1) * grid.cell
    halves = grid.least + (grid.most - grid.least) * drawn(count, objects, 2)
    centres = corners + halves + (grid.cell - 2 * halves) * drawn(count, objects, 2)
    table = torch.tensor(list(COLOURS.values()), device=place)
    shades = (table[colours] + 0.16 * (drawn(count, objects, 3) - 0.5)).clamp(0, 1)
    grey = 0.25 + 0.5 * drawn(count, 1, 1, 1) + 0.1 * (drawn(count, 3, grid.side, grid.side) - 0.5)
    return Scenes(_painted(grey, shapes, shades, centres, halves), colours, shapes, centres, halves, grid)


def _painted(picture: Any, shapes: Any, shades: Any, centres: Any, halves: Any) -> Any:
    """Return pictures with shapes upon them."""
    side = picture.shape[-1]
    pixels = torch.arange(side, device=picture.device) + 0.5
    for at in range(shapes.shape[1]):
        u = ((pixels - centres[:, at, :1]) / halves[:, at, :1])[:, None, :]
        v = ((pixels - centres[:, at, 1:]) / halves[:, at, 1:])[:, :, None]
        covered = _covered(u, v).gather(1, shapes[:, at, None, None, None].expand(-1, 1, side, side))
        picture = torch.where(covered, shades[:, at, :, None, None], picture)
    return picture


def _covered(u: Any, v: Any) -> Any:
    """Return which points [n, shapes, side, side] of a box from -1 to 1 are within each of the shapes."""
    a, b = u.abs(), v.abs()
    far, round_ = torch.maximum(a, b), u * u + v * v
    inside = far < 1
    found = (
        round_ < 1,
        inside,
        inside & (a < (v + 1) / 2),
        inside & (torch.minimum(a, b) < 0.35),
        a + b < 1,
        (round_ < 1) & (round_ > 0.4),
        inside & (far > 0.6),
        inside & ((a - b).abs() < 0.4),
    )
    return torch.stack(torch.broadcast_tensors(*found), 1)


def boxes(drawn: Scenes) -> Any:
    """Return the boxes [n, objects, 4] of all objects in whole patches: left, top, right and bottom edge."""
    low, high = drawn.centres - drawn.halves, drawn.centres + drawn.halves
    edges = torch.cat([(low / drawn.grid.patch).floor(), (high / drawn.grid.patch).ceil()], -1)
    return edges.long().clamp(0, drawn.grid.across)


def ask(drawn: Scenes, each: int, numbers: torch.Generator) -> Asked:
    """Return `each` questions about each scene, their tasks in turn."""
    count, place = len(drawn.colours), numbers.device
    tasks = (torch.arange(each, device=place) % len(TASKS)).expand(count, each)
    objects = drawn.colours.shape[1]
    about = (torch.rand((count, each), generator=numbers, device=place) * objects).long()
    colour, shape = (part.gather(1, about) for part in (drawn.colours, drawn.shapes))
    other = (torch.rand((count, each), generator=numbers, device=place) * len(COLOURS)).long()
    counted = torch.where(torch.rand((count, each), generator=numbers, device=place) < 0.3, other, colour)
    centre = drawn.centres.gather(1, about[..., None].expand(-1, -1, 2))
    box = boxes(drawn).gather(1, about[..., None].expand(-1, -1, 4))
    third = (centre * 3 / drawn.grid.side).long().clamp(0, 2)
    much = (drawn.colours[:, None] == counted[..., None]).sum(-1)
    red, star = colour + ID["red"], shape + ID[SHAPES[0]]
    asked = {
        "colour": ["what", "colour", "is", "the", star, "?"],
        "where": ["where", "is", "the", red, star, "?"],
        "count": ["how", "many", "shapes", "are", counted + ID["red"], "?"],
        "box": ["box", "of", "the", red, star, "?"],
    }
    said = {
        "colour": [red],
        "where": [third[..., 1] + ID[ROWS[0]], third[..., 0] + ID[COLUMNS[0]]],
        "count": [much + ID["0"]],
        "box": [box[..., side] + ID["0"] for side in range(4)],
    }
    ended = {task: [*said[task], "</s>", *["<pad>"] * 4][:ANSWER] for task in TASKS}
    return Asked(_of_task(asked, tasks), _of_task(ended, tasks), tasks)


def _of_task(sayings: dict[str, list[Any]], tasks: Any) -> Any:
    """Return the tokens [n, each, length] of what is said for each task."""

    def ids(saying: list[Any]) -> Any:
        words = [torch.full_like(tasks, ID[word]) if isinstance(word, str) else word for word in saying]
        return torch.stack(words, -1)

    whole = torch.stack([ids(sayings[task]) for task in TASKS])
    return whole.gather(0, tasks[None, ..., None].expand(1, *tasks.shape, whole.shape[-1]))[0]


def correct(found: Any, answers: Any, tasks: Any) -> Any:
    """Return which answers [n, ANSWER] are right: word by word, of boxes those that overlap by half or more.

    The overlap is intersection over union, as in tests of referring expressions.
    """
    done = (answers == PAD) | (found == answers)
    words = done.all(-1)
    a, b = (part[:, :4] - ID["0"] for part in (found, answers))
    sides = torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])
    both = sides.clamp(min=0).prod(-1)
    areas = [(part[:, 2:] - part[:, :2]).clamp(min=0).prod(-1) for part in (a, b)]
    overlap = both / (areas[0] + areas[1] - both).clamp(min=1)
    return torch.where(tasks == TASKS.index("box"), overlap >= 0.5, words)
