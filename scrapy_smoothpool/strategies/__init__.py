"""How a proxy is picked: one strategy a module; this package itself imports none of them."""
