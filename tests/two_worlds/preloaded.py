"""Preloaded modules of the fork server: it imports every module of the product once, for all worlds."""

from tests.two_worlds import chance

chance.product_modules()
