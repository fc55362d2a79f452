"""Noise that makes every noised answer equal in two worlds, which have neighboring datasets.

The first world stores each noised answer when the gate computes it. The other world computes its answer from its own
rows, and checks that type and shape are equal. Then it continues with the answer of the first world. The noise that
this requires is the noise of the first world plus the difference of the exact answers, and the harness supplies it.
Public inputs of a step are not replaced, so they must be equal without help.
"""

import io
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.privacy.gate import Gate

_lock = threading.Lock()


class Answers:
    """The noised answers of one process in the order of computation.

    Parameters
    ----------
    folder : Path
        Folder with one file for each answer.
    label : str
        Name of the process.
    first : bool
        Whether this is the first world, which stores its answers.
    """

    def __init__(self, folder: Path, label: str, *, first: bool) -> None:
        self._folder, self._label, self._first, self._count = folder, label, first, 0
        folder.mkdir(parents=True, exist_ok=True)

    def install(self) -> None:
        """Supply the noise of all answers that this process computes from now on."""
        whole, tile = Gate.load_or_store, Gate.load_or_compute_tile

        def load_or_store(gate: Gate, request: Any, compute: Callable[[], Any], **named: Any) -> Any:
            return whole(gate, request, lambda: self._equal(*compute()), **named)

        def load_or_compute_tile(gate: Gate, request: Any, at: int, compute: Callable[[], Any]) -> Any:
            return tile(gate, request, at, lambda: self._equal(compute(), {})[0])

        patch.object(Gate, "load_or_store", load_or_store).start()
        patch.object(Gate, "load_or_compute_tile", load_or_compute_tile).start()

    @property
    def count(self) -> int:
        """The number of answers computed so far."""
        return self._count

    def _equal(
        self, answer: NDArray[Any], public: Mapping[str, NDArray[Any]]
    ) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
        with _lock:
            path = self._folder / f"{self._label}-{self._count}.npz"
            self._count += 1
        inputs = {f"public {name}": np.asarray(values) for name, values in public.items()}
        if self._first:
            packed = io.BytesIO()
            # savez takes the array names as keywords
            np.savez(packed, answer=answer, **inputs)  # type: ignore[arg-type]
            path.write_bytes(packed.getvalue())
            return answer, public
        if not path.exists():
            raise AssertionError(f"{path.name}: only one world computes this answer, but both must")
        with np.load(path) as kept:
            same = sorted(kept) == sorted(["answer", *inputs]) and all(
                np.array_equal(kept[name], values) for name, values in inputs.items()
            )
            if not same or (kept["answer"].shape, kept["answer"].dtype) != (answer.shape, answer.dtype):
                raise AssertionError(f"{path.name}: the public inputs of this step differ between the worlds")
            return kept["answer"], public
