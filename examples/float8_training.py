"""Train a small language model on xpu twice: in bfloat16, and with torchao's float8 products, forward and backward.

    pip install anyxpu[quant]
    python examples/float8_training.py --recipe rowwise some_text.txt

Both see the same text in the same order; the loss is printed as they go, with each on text that was not trained on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from language_model import LanguageModel, evaluate, read, train
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

HERE = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", type=Path, default=[HERE / "README.md"], help="what to learn from")
    parser.add_argument("--recipe", default="rowwise", choices=("tensorwise", "rowwise", "rowwise_with_gw_hp"))
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    text, alphabet = read(options.text)
    found = {}
    for name in ("bfloat16", "float8"):
        torch.manual_seed(0)
        model = LanguageModel(len(alphabet)).bfloat16().to("xpu")
        if name == "float8":
            config = Float8LinearConfig.from_recipe_name(options.recipe)
            convert_to_float8_training(model.layers, config=config)
        found[name] = train(model, text, options.steps, "xpu")
        print(f"{name}: on new text {evaluate(model, text, 'xpu'):.3f}", flush=True)
    every = max(1, options.steps // 10)
    for step in range(0, options.steps, every):
        values = [sum(losses[step : step + every]) / len(losses[step : step + every]) for losses in found.values()]
        print(f"step {step:4}: bfloat16 {values[0]:.3f}, float8 {values[1]:.3f}")


if __name__ == "__main__":
    main()
