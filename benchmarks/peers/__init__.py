"""The PCA methods of other libraries (the peers), which run in a separate environment on request over a pipe."""
