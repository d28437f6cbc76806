"""Train a small language model on xpu, quantize it by torchao's workflows, and let each write on.

    pip install anyxpu[quant]
    python examples/quantize_and_generate.py --workflow int4 --workflow "int8 dynamic" some_text.txt

For each workflow: the loss on text that was not trained on, before and after, and what it writes.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from language_model import CONTEXT, LanguageModel, evaluate, read, train, write
from torchao.quantization import quantize_

from anyxpu.bench.quant_workflows import WORKFLOWS

HERE = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", type=Path, default=[HERE / "README.md"], help="what to learn from")
    parser.add_argument("--workflow", action="append", choices=list(WORKFLOWS), help="default: int4 and int8 dynamic")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()

    text, alphabet = read(options.text)
    torch.manual_seed(0)
    model = LanguageModel(len(alphabet)).bfloat16().to("xpu")
    losses = train(model, text, options.steps, "xpu")
    before = evaluate(model, text, "xpu")
    print(f"{options.steps} steps: loss {losses[0]:.2f} -> {losses[-1]:.2f}, on new text {before:.3f}")
    start = text[:CONTEXT].to("xpu")
    for name in options.workflow or ["int4", "int8 dynamic"]:
        quantized = copy.deepcopy(model)
        quantize_(quantized.layers, WORKFLOWS[name].config())
        call = torch.compile(quantized)
        after = evaluate(call, text, "xpu")
        written = "".join(alphabet[place] for place in write(quantized, start, 80).tolist())
        print(f"{name}: {before:.3f} -> {after:.3f}\n  {written!r}")


if __name__ == "__main__":
    main()
