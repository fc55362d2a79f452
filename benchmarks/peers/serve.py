"""A process that runs the PCA methods of other libraries on request, with one JSON object per line in and out.

This module runs in the environment of the peers, which lacks most dependencies of dpca. So it imports only one file of
the packages of dpca. A request contains the method, the number of components and the file for the directions. It also
contains three copies of the rows: a snapshot of dpca (a Zarr group), a SciPy file, and a store written by anndata.

- Scanpy reads the store of anndata. Other methods on Dask read the snapshot, as dpca does.
- All other methods hold the rows in memory, and load them before timing starts. Spark holds the rows in a separate Java
  process, which a separate request starts.
- The Dask cluster is started before the first request.
"""

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from papers.lib.children import Directions, diffprivlib_directions, opendp_directions

POWER_ITERATIONS = 4


def read_block(store: str, block: int, n_features: int) -> sp.csr_matrix:
    """Read one block of a snapshot as CSR, as any Zarr reader can."""
    group = _open(store)
    n_rows, nnz = group["extents"][block, 1:3].tolist()
    row_ptr = np.concatenate(([0], np.cumsum(group["row_nnz"][block, :n_rows], dtype=np.int64)))
    values = np.asarray(group["values"][block, :nnz], np.float64)
    return sp.csr_matrix((values, group["indices"][block, :nnz].astype(np.int32), row_ptr), shape=(n_rows, n_features))


@cache
def _open(store: str) -> Any:
    return zarr.open_group(store, mode="r", zarr_format=3)


def chunked(store: str, *, dense: bool) -> Any:
    """Return the rows of a snapshot as a Dask array that is chunked by rows, with dense or sparse chunks."""
    import dask.array as da
    from dask.delayed import delayed

    group = _open(store)
    n_features = group.attrs["n_features"]
    chunks = []
    for block, n_rows in enumerate(group["extents"][:, 1].tolist()):
        rows = delayed(read_block)(store, block, n_features)
        rows = delayed(sp.csr_matrix.toarray)(rows) if dense else rows
        meta = np.empty((0, 0)) if dense else sp.csr_matrix((0, 0))
        chunks.append(da.from_delayed(rows, shape=(n_rows, n_features), dtype=np.float64, meta=meta))
    return da.concatenate(chunks, axis=0)


@cache
def in_memory(rows: str) -> sp.csr_array:
    """Return the rows of a SciPy file; they are loaded at the first call only."""
    return sp.csr_array(sp.load_npz(rows))


@cache
def dense_in_memory(rows: str) -> NDArray[np.float64]:
    """Return the rows of a SciPy file as a dense array; it is created at the first call only."""
    return np.asarray(in_memory(rows).toarray())


def sklearn_pca_dense(request: dict[str, Any]) -> Directions:
    from sklearn.decomposition import PCA

    return PCA(request["k"], svd_solver="covariance_eigh").fit(dense_in_memory(request["rows"])).components_


def sklearn_pca_sparse(request: dict[str, Any]) -> Directions:
    from sklearn.decomposition import PCA

    return PCA(request["k"], svd_solver="covariance_eigh").fit(in_memory(request["rows"])).components_


def sklearn_truncated_svd(request: dict[str, Any]) -> Directions:
    from sklearn.decomposition import TruncatedSVD

    return TruncatedSVD(request["k"], random_state=0).fit(in_memory(request["rows"])).components_


def scanpy_pca(request: dict[str, Any]) -> Directions:
    """Run Scanpy's PCA on an anndata store, read in chunks with as many rows as a block of dpca."""
    import anndata

    rows: Any = zarr.open_group(request["anndata"], mode="r")["X"]
    n_rows, n_features = rows.attrs["shape"]
    n_chunks = _open(request["store"])["extents"].shape[0]
    return _scanpy(anndata.experimental.read_elem_lazy(rows, chunks=(-(-n_rows // n_chunks), n_features)), request["k"])


def scanpy_pca_of_our_blocks(request: dict[str, Any]) -> Directions:
    return _scanpy(chunked(request["store"], dense=False), request["k"])


def _scanpy(rows: Any, k: int) -> Directions:
    import anndata
    import scanpy

    table = anndata.AnnData(rows)
    scanpy.pp.pca(table, n_comps=k, svd_solver="covariance_eigh")
    return np.asarray(table.varm["PCs"]).T


def dask_ml_truncated_svd(request: dict[str, Any]) -> Directions:
    from dask_ml.decomposition import TruncatedSVD

    model = TruncatedSVD(request["k"], algorithm="randomized", n_iter=POWER_ITERATIONS, random_state=0)
    return np.asarray(model.fit(chunked(request["store"], dense=True)).components_)


def dask_ml_pca(request: dict[str, Any]) -> Directions:
    from dask_ml.decomposition import PCA

    model = PCA(request["k"], svd_solver="randomized", iterated_power=POWER_ITERATIONS, random_state=0)
    return np.asarray(model.fit(chunked(request["store"], dense=True)).components_)


def dask_svd_compressed(request: dict[str, Any]) -> Directions:
    import dask.array as da

    rows = chunked(request["store"], dense=True)
    return np.asarray(da.linalg.svd_compressed(rows, request["k"], n_power_iter=POWER_ITERATIONS, seed=0)[2].compute())


@cache
def spark() -> Any:
    """Start Spark with as many threads as other peers have workers."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": "8g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master(f"local[{os.environ['PEER_WORKERS']}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@cache
def spark_rows(rows: str) -> Any:
    """Return the rows as a distributed Spark matrix of sparse vectors; they are loaded at the first call only."""
    from pyspark.mllib.linalg.distributed import RowMatrix
    from pyspark.mllib.util import MLUtils
    from sklearn.datasets import dump_svmlight_file

    matrix, text = in_memory(rows), Path(rows).with_suffix(".svm")
    dump_svmlight_file(matrix, np.zeros(matrix.shape[0]), str(text), zero_based=False)
    frame = spark().read.format("libsvm").option("numFeatures", matrix.shape[1]).load(str(text))
    vectors = MLUtils.convertVectorColumnsFromML(frame.select("features"), "features")
    held = RowMatrix(vectors, *matrix.shape)
    held._java_matrix_wrapper._java_model.rows().cache().count()
    return held


def spark_start(request: dict[str, Any]) -> Directions:
    spark()
    return np.empty((0, 0))


def spark_row_matrix(request: dict[str, Any]) -> Directions:
    return np.asarray(spark_rows(request["rows"]).computePrincipalComponents(request["k"]).toArray()).T


def diffprivlib_pca(request: dict[str, Any]) -> Directions:
    return diffprivlib_directions(dense_in_memory(request["rows"]), **_requested(request))


def opendp_pca(request: dict[str, Any]) -> Directions:
    return opendp_directions(dense_in_memory(request["rows"]), **_requested(request))


def _requested(request: dict[str, Any]) -> dict[str, Any]:
    return {"n_components": request["k"], "epsilon": request["epsilon"], "clip_norm": request["clip_norm"]}


METHODS: dict[str, Callable[[dict[str, Any]], Directions]] = {
    "sklearn-pca-dense": sklearn_pca_dense,
    "sklearn-pca-sparse": sklearn_pca_sparse,
    "sklearn-truncated-svd": sklearn_truncated_svd,
    "scanpy-pca": scanpy_pca,
    "scanpy-pca-of-our-blocks": scanpy_pca_of_our_blocks,
    "dask-ml-truncated-svd": dask_ml_truncated_svd,
    "dask-ml-pca": dask_ml_pca,
    "dask-svd-compressed": dask_svd_compressed,
    "spark-start": spark_start,
    "spark-row-matrix": spark_row_matrix,
    "diffprivlib-pca": diffprivlib_pca,
    "opendp-pca": opendp_pca,
}
IN_MEMORY: dict[str, Callable[[str], Any]] = {
    "sklearn-pca-dense": dense_in_memory,
    "sklearn-pca-sparse": in_memory,
    "sklearn-truncated-svd": in_memory,
    "spark-row-matrix": spark_rows,
}


def main() -> None:
    """Answer requests from standard input until it is closed."""
    from distributed import Client, LocalCluster

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr  # keep stdout for answers, since libraries print to `sys.stdout`
    n_workers = int(os.environ["PEER_WORKERS"])
    here = {name: number for name, number in os.environ.items() if name.endswith("_NUM_THREADS")}
    os.environ.update(dict.fromkeys(here, "1"))  # Dask workers inherit these variables, and use one thread each
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None, memory_limit=None) as cluster,
        Client(cluster) as client,
    ):
        os.environ.update(here)
        client.run(np.ones, 1)  # make the workers load their threaded libraries
        found = client.run(threadpool_info).values()
        assert {library["num_threads"] for libraries in found for library in libraries} == {1}, "as our workers have"
        for line in sys.stdin:
            request = json.loads(line)
            if request["method"] in IN_MEMORY:
                IN_MEMORY[request["method"]](request["rows"])
            start = time.perf_counter()
            directions = METHODS[request["method"]](request)
            seconds = time.perf_counter() - start
            np.save(request["output"], directions)
            print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
