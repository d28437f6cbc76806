"""How many fusions a compiled graph is made of, as Inductor's passes and ours count what they find."""

from __future__ import annotations

from collections import Counter

_END = "_matcher_count"
_NOT = "pattern_"  # all the others again, and rewritings that fuse nothing
_OTHERS = ("fuse_attention", "binary_folding")
"""Passes that count under their own names: of attention written out, and of batch norms into a convolution's weight."""


def fired() -> Counter[str]:
    """Fusions of this process so far by name: ``mkldnn_unary_fusion``, ``fuse_attention`` ….

    ``norm_folding``: batch norms that a convolution took along without freezing (anyxpu.inductor.convolutions).

    ``merged_products``: by frozen weights, such as queries, keys and values, that became one (anyxpu.inductor.merged).
    What Inductor's other patterns replace without a counter of their own is not among them.

    Inductor keeps them with a graph in its cache, so that one found there counts like one that is made;
    ``fuse_attention`` alone fires before that, and is missing where AOTAutograd's cache had the whole.
    """
    from torch._dynamo.utils import counters

    found: Counter[str] = Counter()
    for name, count in counters["inductor"].items():
        if name.endswith(_END) and not name.startswith(_NOT) and not name.endswith(f"_weight_pack{_END}"):
            found[name.removesuffix(_END)] += count
        elif name in _OTHERS:
            found[name] += count
    return found


def fired_since(before: Counter[str]) -> dict[str, int]:
    """Fusions since ``before`` was taken with :func:`fired`, without those that did not fire."""
    return dict(fired() - before)
