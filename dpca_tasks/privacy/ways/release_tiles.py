"""The way out for a statistic of several parts with noise that is too large to be held: some items at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.noise.distributions import add_noise
from dpca_tasks.noise.joint import JointGaussian
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.gate import ANSWER, TILED, Gate
from dpca_tasks.privacy.request import Request
from dpca_tasks.privacy.rows import Rows
from dpca_tasks.privacy.units import part_in_data_units, part_scales_in_steps
from dpca_tasks.privacy.ways.release_parts import noised_parts
from dpca_tasks.queries.tiled_sum import Tile, TiledSum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TiledAnswer:
    """The answer to one step, in tiles.

    Attributes
    ----------
    tiles : tuple of Tile
        In order; together they have every item once.
    """

    query: TiledSum
    tiles: tuple[Tile, ...]
    load: Callable[[Tile], NDArray[np.int64]] = field(repr=False)

    def read(self, at: int) -> dict[str, NDArray[np.float64]]:
        """Return the parts of a tile by name, in data units; compute and store it if it has no stored answer.

        A stack is of shape (items, order, order); other parts are packed, or a full matrix for a symmetric one.
        """
        tile = self.tiles[at]
        parts = self.query.split_tile(tile, self.load(tile))
        return {name: part_in_data_units(packed, self.query.parts[name]) for name, packed in parts.items()}

    def whole(self) -> dict[str, NDArray[np.float64]]:
        """Return all tiles together, as `release_parts` returns them: for statistics that fit in memory."""
        read = [self.read(at) for at in range(len(self.tiles))]
        return {name: np.concatenate([parts[name] for parts in read if name in parts]) for name in read[0]}


def release_tiles(
    gate: Gate, rows: Rows, query: TiledSum, distribution: JointGaussian, *, done: Callable[[], None]
) -> TiledAnswer:
    """Return the answer that `release_parts` would give, in tiles that are computed and stored when they are read.

    The noise of a coordinate is a function of the request's key and the coordinate's place in the whole statistic, so
    it is the same in any tile. A step is stored whole where one tile has all items; else its place holds the public
    inputs and where the tiles begin, which a resumed release goes on with. ``done`` is called when the last tile was
    read.
    """
    request = gate.admit(query, distribution, part_scales_in_steps)
    asked = request.query
    if len(asked.tiles) == 1:
        stay = gate.steps_left > 1
        whole = gate.load_or_compute(request, lambda: noised_parts(gate, rows, request, stay=stay))
        done()
        return TiledAnswer(query=asked, tiles=asked.tiles, load=lambda tile: _cut(asked, whole, tile))
    now = np.array([tile.first for tile in asked.tiles])
    starts = gate.load_or_store(request, lambda: (now, asked.public_inputs()), mark=TILED)[ANSWER].tolist()
    tiles = tuple(asked.tile(first, last) for first, last in pairwise([*starts, asked.n_features]))
    gate.advance(request)

    def load(tile: Tile) -> NDArray[np.int64]:
        at = tiles.index(tile)
        answer = gate.load_or_compute_tile(request, at, lambda: _noised_tile(gate, rows, request, tile))
        if rows.progress is not None:
            rows.progress(at + 1, len(tiles))
        if tile == tiles[-1]:
            done()
        return answer

    return TiledAnswer(query=asked, tiles=tiles, load=load)


def _noised_tile(gate: Gate, rows: Rows, request: Request[TiledSum, JointGaussian], tile: Tile) -> NDArray[np.int64]:
    """Sum a tile and add its noise: that of its coordinates in the whole draw of each part."""
    secrets, asked = gate.secrets(request), request.query
    answer = rows.sum_tile(asked.with_secrets(secrets), tile, of=request.digest)
    scales = dict(zip(asked.parts, request.numbers, strict=True))
    for name, packed in asked.split_tile(tile, answer).items():
        layout = asked.parts[name].layout
        key = subkey(secrets.noise.secret, label="part", info=name.encode())
        first, _ = asked.ranges(tile)[name]
        law = request.distribution.part(layout.kind)
        add_noise(packed, law, key, layout.order, scale_in_steps=scales[name], first=first)
    return answer


def _cut(query: TiledSum, whole: NDArray[np.int64], tile: Tile) -> NDArray[np.int64]:
    ranges, parts = query.ranges(tile), query.split(whole)
    return np.concatenate([parts[name][start:stop] for name, (start, stop) in ranges.items()])
