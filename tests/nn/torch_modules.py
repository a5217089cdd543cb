"""Modules of PyTorch with weights of NumPy, and their results, as JSON:
python torch_modules.py > torch_modules.json

Made by PyTorch 2.14.1. Without PyTorch it holds the weights alone.
"""

import json

import numpy as np

SIZE, HEADS, QUERIES, KEYS = 6, 2, 5, 7
CASES = {
    "packed": {},
    "other sizes, no bias": {"bias": False, "kdim": 5, "vdim": 4},
    "rows of bias and zeros": {"add_bias_kv": True, "add_zero_attn": True},
    "row of bias, other sizes": {"add_bias_kv": True, "kdim": 5, "vdim": 4},
    "row of zeros": {"add_zero_attn": True},
}


def state_of(case):
    """The state_dict of a case, in NumPy."""
    options = CASES[case]
    kdim, vdim = options.get("kdim", SIZE), options.get("vdim", SIZE)
    shapes = {"out_proj.weight": (SIZE, SIZE)}
    if (kdim, vdim) == (SIZE, SIZE):
        shapes["in_proj_weight"] = (3 * SIZE, SIZE)
    else:
        inputs = {"q": SIZE, "k": kdim, "v": vdim}
        shapes |= {f"{part}_proj_weight": (SIZE, inputs[part]) for part in "qkv"}
    if options.get("bias", True):
        shapes |= {"in_proj_bias": (3 * SIZE,), "out_proj.bias": (SIZE,)}
    if options.get("add_bias_kv"):
        shapes |= {"bias_k": (1, 1, SIZE), "bias_v": (1, 1, SIZE)}
    rng = np.random.default_rng(len(case))
    return {name: rng.normal(size=shape) for name, shape in sorted(shapes.items())}


def rows_of_case(case):
    """Queries, keys and values, and a mask, True = seen; the last query sees no key, unless that
    leaves nothing to attend to."""
    options, rng = CASES[case], np.random.default_rng(0)
    shapes = (QUERIES, SIZE), (KEYS, options.get("kdim", SIZE)), (KEYS, options.get("vdim", SIZE))
    mask = rng.uniform(size=(QUERIES, KEYS)) < 0.6
    mask[:, 0] = True
    if "add_bias_kv" in options or "add_zero_attn" in options:
        mask[-1] = False
    return *(rng.normal(size=shape) for shape in shapes), mask


def main():
    import torch  # noqa: PLC0415

    found = {}
    for case, options in CASES.items():
        module = torch.nn.MultiheadAttention(SIZE, HEADS, dtype=torch.float64, **options)
        module.load_state_dict({name: torch.tensor(a) for name, a in state_of(case).items()})
        *rows, mask = (torch.tensor(array) for array in rows_of_case(case))
        out, _ = module(*rows, attn_mask=~mask)
        found[case] = out.tolist()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
