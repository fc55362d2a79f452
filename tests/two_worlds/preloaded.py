"""Modules that the fork server preloads: every module of the product, imported once for all worlds."""

from tests.two_worlds import chance

chance.product_modules()
