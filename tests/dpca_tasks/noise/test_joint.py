"""Noise on stacks of matrices.

Noise on stacks of symmetric matrices: its moments, and that any range of it can be drawn alone.
"""

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout, unpack_stack
from dpca_tasks.noise.joint import JointGaussian, SymmetricStack
from dpca_tasks.noise.keystream import subkey

KEY = subkey(bytes(32), label="noise", info=b"stack")
ORDER, COUNT = 3, 5000
NOISE = SymmetricStack(noise_multiplier=1.0)


def test_the_noise_is_isometric_in_every_matrix():
    size = Layout(kind="stack", order=ORDER, count=COUNT).size
    assert size == COUNT * 6
    drawn = NOISE.draw(KEY, ORDER, scale_in_steps=2.0**20, stop=size) / 2.0**20
    stack = unpack_stack(drawn, ORDER)
    assert (stack == stack.transpose(0, 2, 1)).all()
    stds = stack.std(axis=0)
    # the relative error of a std of 5,000 draws is 0.01: five of them, false alarm below 1e-5 for all six
    assert stds == pytest.approx(np.where(np.eye(ORDER), 1.0, 0.5**0.5), rel=0.05)


@pytest.mark.parametrize("start", [0, 1, 5, 6, 7, 100])
def test_a_tile_is_drawn_alone(start):
    whole = NOISE.draw(KEY, ORDER, scale_in_steps=2.0**20, stop=200)
    tile = NOISE.draw(KEY, ORDER, scale_in_steps=2.0**20, start=start, stop=137)
    assert (tile == whole[start:137]).all()


def test_a_stack_states_its_end_and_joint_noise_finds_its_distribution():
    with pytest.raises(InvalidInput, match="state its end"):
        NOISE.draw(KEY, ORDER, scale_in_steps=1.0)
    assert isinstance(JointGaussian(noise_multiplier=2.0).part("stack"), SymmetricStack)
