"""Attention of PyTorch 2.6 or later, as JSON: python pytorch.py > pytorch.json

The weights of its module are those of `pytorch_arrays`.
"""

import json

import torch
from attention_modules import pytorch_arrays

ROWS, WEIGHTS, BIASES, QKV = pytorch_arrays()
module = torch.nn.MultiheadAttention(6, 2, bias=True, dtype=torch.float64)
with torch.no_grad():
    module.in_proj_weight.copy_(torch.tensor(WEIGHTS[:3]).reshape(18, 6))
    module.in_proj_bias.copy_(torch.tensor(BIASES[:3]).reshape(18))
    module.out_proj.weight.copy_(torch.tensor(WEIGHTS[3]))
    module.out_proj.bias.copy_(torch.tensor(BIASES[3]))
rows = torch.tensor(ROWS)
hidden = torch.triu(torch.ones(5, 5, dtype=torch.bool), diagonal=1)
of_module, _ = module(rows, rows, rows, attn_mask=hidden)
of_function = torch.nn.functional.scaled_dot_product_attention(
    *map(torch.tensor, QKV), is_causal=True
)
print(json.dumps({"module": of_module.tolist(), "function": of_function.tolist()}))
