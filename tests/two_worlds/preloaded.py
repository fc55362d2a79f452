"""The server from which worlds are forked: it reads every module of the product once, for all of them."""

from tests.two_worlds import chance

chance.product_modules()
