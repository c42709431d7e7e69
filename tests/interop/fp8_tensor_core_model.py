"""How far a forward in fp8_block moves when sums of E4M3 products keep few bits.

Hopper's tensor cores add such products with fewer bits than FP32 has. The model: of every 32
products and the sum so far, what lies more than `bits` binary places below the largest is cut off.
Prints, for several `bits`, the distance of gate and of the output from exact sums, as norms, on a
layer of the size of gpu_test_fp8_forward's "small" (docs/precision.md).
"""

import numpy as np

HIDDEN, INTERMEDIATE, TOKENS, BLOCK = 256, 128, 96, 128


def to_bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = bits + ((bits >> 16) & 1) + 0x7FFF
    return (rounded & 0xFFFF0000).astype(np.uint32).view(np.float32)


def to_e4m3(x):
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 1e-30)))
    step = 2.0 ** (np.maximum(exponent, -6) - 3)
    return np.round(x / step) * step


def sums_of_block(a, b, bits):
    total = np.zeros((a.shape[0], b.shape[0]))
    for k in range(0, BLOCK, 32):
        terms = a[:, None, k : k + 32] * b[None, :, k : k + 32]
        terms = np.concatenate([terms, total[..., None]], axis=-1)
        if bits is not None:
            largest = np.maximum(np.abs(terms).max(axis=-1, keepdims=True), 1e-300)
            step = 2.0 ** (np.floor(np.log2(largest)) - bits)
            terms = np.trunc(terms / step) * step
        total = terms.sum(axis=-1)
    return total


def product(x, w, bits):
    """x w^T of 1 x 128 and 128 x 128 blocks, blocks of K added exactly."""
    out = np.zeros((x.shape[0], w.shape[0]))
    for k in range(0, x.shape[1], BLOCK):
        a, b = x[:, k : k + BLOCK], w[:, k : k + BLOCK]
        a_scale = np.abs(a).max(axis=1, keepdims=True) / 448
        b_scale = np.abs(b.reshape(-1, BLOCK, BLOCK)).max(axis=(1, 2)) / 448
        b_scale = np.repeat(b_scale, BLOCK)[:, None]
        partial = sums_of_block(to_e4m3(a / a_scale), to_e4m3(b / b_scale), bits)
        out += partial * a_scale * b_scale.T
    return out


def main():
    rng = np.random.default_rng(0)
    x = to_bf16(rng.standard_normal((TOKENS, HIDDEN)))
    gate_up = rng.standard_normal((2, INTERMEDIATE, HIDDEN)) / np.sqrt(HIDDEN)
    w_gate, w_up = to_bf16(gate_up)
    w_down = to_bf16(rng.standard_normal((HIDDEN, INTERMEDIATE)) / np.sqrt(INTERMEDIATE))

    def forward(bits):
        gate, up = product(x, w_gate, bits), product(x, w_up, bits)
        hidden = to_bf16(gate / (1 + np.exp(-gate)) * up)
        return gate, product(hidden, w_down, bits)

    exact = forward(None)
    for bits in (10, 11, 12, 13, 14, 16, 20):
        found = forward(bits)
        gate, out = (np.linalg.norm(f - e) / np.linalg.norm(e) for f, e in zip(found, exact))
        print(f"{bits} bits: gate {gate:.1e}, output {out:.1e}")


if __name__ == "__main__":
    main()
