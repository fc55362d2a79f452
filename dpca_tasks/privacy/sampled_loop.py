"""One compiled loop for an iteration of thousands of steps, each over a small Poisson sample of the records.

A sum by `exact_sum` takes milliseconds on a cluster. An iteration that samples about one record per step has as many
steps as records, so one sum per step would be too slow. Therefore the samples of all steps are drawn first, and the
sampled records are read from the blocks once. Then one compiled loop computes all steps. Each step consists of an exact
integer product, integer noise, and an update of the directions.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.errors import WorkerFailed
from dpca_tasks.kernels.dense_products import add_long_products
from dpca_tasks.kernels.products import add_moment_products
from dpca_tasks.noise.distributions import Gaussian
from dpca_tasks.noise.keystream import SecretKey, signed_uniforms
from dpca_tasks.queries.base import StepSecrets
from dpca_tasks.queries.poisson_sampled import SampledPasses
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, MomentProduct
from dpca_tasks.records.blocks import BlockSource, RowBlock

_DRAWS_AT_ONCE = 1 << 16  # the noise is drawn in pieces of this size, which fit into the processor's cache


def run_passes(
    source: BlockSource, passes: SampledPasses, distribution: Gaussian, secrets: StepSecrets
) -> NDArray[np.float64]:
    """Compute all steps of an iteration with sampled records, and return its state at each snapshot.

    A step computes the noisy sampled product G of the second moment with the directions V, and updates V. The result
    has shape (snapshots, d + k, k). For each snapshot, the first d rows are V. The last k rows are the mean of
    ``V^T G`` over every fourth step since the previous snapshot; for the first snapshot they are zero. G is in squared
    clip norms, and not divided by the sampling rate.

    Guarantees
    ----------
    G of each step is the integer array that `Curator.release` would have stored for the step, with a separate range of
    one noise stream. Only the snapshots are published. Between steps, V is in floats, computed in this process by loops
    of fixed order. V is rounded to its public grid before it is multiplied with a record. The memory holds only the
    sampled records.

    Raises
    ------
    WorkerFailed
        When a block cannot be read. The exception does not contain its cause, which may contain data.
    """
    query = passes.product
    try:
        step_ptr, ordinals = toss(secrets.step_coins, steps=passes.steps, records=source.n_records, rate=passes.rate)
        touched = np.unique(ordinals)
        rows = _gather(source, query, touched)
    except Exception as error:  # noqa: BLE001 - re-raised without its data
        failure = type(error).__name__
    else:
        return _take_steps(rows, query, passes, distribution, secrets, step_ptr, np.searchsorted(touched, ordinals))
    raise WorkerFailed(f"a block of rows cannot be read ({failure}); check the dataset with `dpca dataset verify`.")


def toss(key: SecretKey, *, steps: int, records: int, rate: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw a Poisson sample of the records for each step.

    Return two arrays. The second array has the ordinals of the sampled records for all steps, one step after the other.
    The first array has the positions in the second array at which each step begins.

    There is one coin for each of the ``steps * records`` pairs of a step and a record, which is heads with probability
    ``rate``. The distances between successive heads are geometrically distributed, so only the heads are drawn, by
    ``distance = 1 + floor(log u / log(1 - rate))`` for uniform u. The computation uses floats, so the probability of
    heads differs from the rate by at most about 2^-48. For a rate of 1 in 32,768, this is 2^-33 of the rate.
    """
    coins = steps * records
    found: list[NDArray[np.int64]] = []
    last, used = -1, 0
    slope = math.log1p(-rate) if rate < 1 else -math.inf
    while last < coins:
        size = max(1024, int(1.1 * coins * rate) - used)
        uniforms, _ = signed_uniforms(key, start=used, stop=used + size)
        gaps = 1.0 + np.floor(np.log(uniforms) / slope)
        places = last + np.cumsum(np.minimum(gaps, float(coins + 1)).astype(np.int64))
        found.append(places)
        last, used = int(places[-1]), used + size
    heads = np.concatenate(found) if found else np.empty(0, np.int64)
    heads = heads[heads < coins]
    if not records:
        return np.zeros(steps + 1, np.int64), heads
    return np.searchsorted(heads, records * np.arange(steps + 1)), heads % records


def _gather(source: BlockSource, query: MomentProduct, touched: NDArray[np.int64]) -> RowBlock:
    """Read every block once, and return the sampled records, rounded to the query's grid."""
    values, indices, lengths, sizes = [], [], [], []
    for at in range(source.n_blocks):
        block = query.grid(source.read(at))
        first = block.first_record
        inside = np.zeros(block.n_records, bool)
        low, high = np.searchsorted(touched, (first, first + block.n_records))
        inside[touched[low:high] - first] = True
        block_sizes, block_lengths = np.diff(block.record_ptr), np.diff(block.row_ptr)
        rows = np.repeat(inside, block_sizes)
        stored = np.repeat(rows, block_lengths)
        values.append(block.values[stored])
        indices.append(block.indices[stored])
        lengths.append(block_lengths[rows])
        sizes.append(block_sizes[inside])
    return RowBlock(
        values=_joined(values, np.int32),
        indices=_joined(indices, np.int32),
        row_ptr=_pointers(lengths),
        record_ptr=_pointers(sizes),
        first_record=0,
        n_features=query.n_features,
        bits=query.bits,
    )


def _take_steps(
    rows: RowBlock,
    query: MomentProduct,
    passes: SampledPasses,
    distribution: Gaussian,
    secrets: StepSecrets,
    step_ptr: NDArray[np.int64],
    records: NDArray[np.int64],
) -> NDArray[np.float64]:
    d, k = query.directions.shape
    directions = np.ascontiguousarray((query.directions / 2.0**DIRECTION_BITS).T)
    out = np.zeros((len(passes.snapshots), d + k, k))
    out[np.asarray(passes.snapshots) == 0, :d] = directions.T
    seen = np.zeros((k + 1, k))  # the sum of V^T G over some steps; the last row counts these steps
    at_once = max(1, _DRAWS_AT_ONCE // (d * k))
    for first in range(0, passes.steps, at_once):
        last = min(first + at_once, passes.steps)
        noise = distribution.draw(
            secrets.noise,
            passes.steps * d * k,
            scale_in_steps=secrets.noise_scale,
            start=first * d * k,
            stop=last * d * k,
        )
        _loop(
            rows.values,
            rows.indices,
            rows.row_ptr,
            rows.record_ptr,
            step_ptr[first : last + 1],
            records,
            noise.reshape(last - first, d * k),
            directions,
            passes.factor,
            1.0 / query.steps_per_unit,
            query.bits,
            query.longest,
            np.asarray(passes.snapshots, np.int64) - first,
            seen,
            out,
        )
    return out


@njit(cache=True, nogil=True)
def _loop(
    values: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    step_ptr: NDArray[np.int64],
    records: NDArray[np.int64],
    noise: NDArray[np.int64],
    directions: NDArray[np.float64],
    factor: float,
    unit: float,
    bits: int,
    longest: int,
    snapshots: NDArray[np.int64],
    seen: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Compute consecutive steps of the iteration, and update ``directions``, of shape (k, d), in place.

    The states at snapshots are written to ``out``.
    """
    k, d = directions.shape
    gridded = np.empty((d, k), np.int64)
    product = np.empty((k, d))
    shares = np.empty(k)
    most = 1 << (2 * bits)
    for step in range(step_ptr.size - 1):
        total = noise[step]
        for at in range(step_ptr[step], step_ptr[step + 1]):
            bounds = record_ptr[records[at] : records[at] + 2]
            for stored in range(row_ptr[bounds[0]], row_ptr[bounds[1]]):  # only nonzero features of the record matter
                i = indices[stored]
                for j in range(k):
                    gridded[i, j] = np.int64(np.rint(directions[j, i] * 16777216.0))
            add_moment_products(values, indices, row_ptr, bounds, gridded, 24, bits, longest, most, total)
            if bounds[1] - bounds[0] > longest:
                add_long_products(values, indices, row_ptr, bounds, gridded, 24, bits, longest, most, total)
        for i in range(d):
            for j in range(k):
                product[j, i] = unit * np.float64(total[i * k + j])
        if step >= snapshots[0] and (step - snapshots[0]) % 4 == 0:
            seen[k] += 1.0
            for j in range(k):
                for other in range(k):
                    seen[j, other] += _dot(directions[j], product[other])
        for j in range(k):
            for i in range(d):
                directions[j, i] += factor * product[j, i]
        _orthonormalise(directions, shares)
        for at in range(snapshots.size):
            if snapshots[at] == step + 1:
                out[at, :d] = directions.T
                out[at, d:] = seen[:k] / max(seen[k, 0], 1.0)
                seen[:] = 0.0


@njit(cache=True, nogil=True)
def _orthonormalise(rows: NDArray[np.float64], shares: NDArray[np.float64]) -> None:
    """Orthonormalise rows in place by Gram-Schmidt, in a fixed order that gives the same bits on every machine.

    One pass is enough. Later steps correct a small loss of orthogonality, and no sensitivity depends on orthogonality.
    """
    k, d = rows.shape
    for j in range(k):
        row = rows[j]
        for before in range(j):
            shares[before] = _dot(rows[before], row)
        for before in range(j):
            share, other = shares[before], rows[before]
            for i in range(d):
                row[i] -= share * other[i]
        scale = 1.0 / np.sqrt(_dot(row, row))
        for i in range(d):
            row[i] *= scale


@njit(cache=True, nogil=True)
def _dot(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return an inner product, as eight partial sums: the compiler can vectorise them, and the order is fixed."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = left.size - left.size % 8
    for i in range(0, whole, 8):
        s0 += left[i] * right[i]
        s1 += left[i + 1] * right[i + 1]
        s2 += left[i + 2] * right[i + 2]
        s3 += left[i + 3] * right[i + 3]
        s4 += left[i + 4] * right[i + 4]
        s5 += left[i + 5] * right[i + 5]
        s6 += left[i + 6] * right[i + 6]
        s7 += left[i + 7] * right[i + 7]
    for i in range(whole, left.size):
        s0 += left[i] * right[i]
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


def _joined(parts: list[NDArray[np.int32]], kind: type[np.int32]) -> NDArray[np.int32]:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _pointers(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(parts) if parts else np.zeros(0, np.int64))])
