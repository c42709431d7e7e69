"""A mixture-of-experts layer as a textbook has it, in NumPy and FP64, with its gradients."""

import numpy as np


def bf16(values):
    """The nearest BF16 numbers (ties to even), as F32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _expert(x, gate_w, up_w, down_w, gate_b=0.0, up_b=0.0, down_b=0.0):
    gate, up = x @ gate_w.T + gate_b, x @ up_w.T + up_b
    sigmoid = 1 / (1 + np.exp(-gate))
    hidden = gate * sigmoid * up
    return hidden @ down_w.T + down_b, (gate, up, sigmoid, hidden)


def _expert_backward(x, gate_w, up_w, down_w, kept, d_y):
    gate, up, sigmoid, hidden = kept
    d_hidden = d_y @ down_w
    d_gate = d_hidden * up * (sigmoid + gate * sigmoid * (1 - sigmoid))
    d_up = d_hidden * gate * sigmoid
    return d_gate @ gate_w + d_up @ up_w, d_gate.T @ x, d_up.T @ x, d_y.T @ hidden, d_gate, d_up


class Layer:
    """Weights as `openmok.Weights` names them, without the shared expert's where there is none."""

    def __init__(self, **weights):
        self.weights = {k: np.asarray(v, np.float64) for k, v in weights.items()}

    def _expert_weights(self, e):
        w = self.weights
        biases = [w[b][e] if b in w else 0.0 for b in ("gate_bias", "up_bias", "down_bias")]
        return [w["gate"][e], w["up"][e], w["down"][e]], biases

    def _shared_weights(self):
        return [self.weights[f"shared_{part}"] for part in ("gate", "up", "down")]

    def forward(self, x, ids, router, shared_weights=None):
        x, router = np.asarray(x, np.float64), np.asarray(router, np.float64)
        out = np.zeros_like(x)
        if "shared_gate" in self.weights:
            s = np.ones(len(x)) if shared_weights is None else shared_weights
            out += s[:, None] * _expert(x, *self._shared_weights())[0]
        for e in range(len(self.weights["gate"])):
            weights, biases = self._expert_weights(e)
            for t, c in np.argwhere(ids == e):
                out[t] += router[t, c] * _expert(x[t : t + 1], *weights, *biases)[0][0]
        return out

    def backward(self, x, ids, router, d_out, shared_weights=None):
        """The gradients by name: x, topk_weights, shared_weights, and the weights' own."""
        x, router = np.asarray(x, np.float64), np.asarray(router, np.float64)
        d_out = np.asarray(d_out, np.float64)
        grads = {name: np.zeros_like(value) for name, value in self.weights.items()}
        d_x, d_router = np.zeros_like(x), np.zeros_like(router)
        for e in range(len(self.weights["gate"])):
            weights, biases = self._expert_weights(e)
            tokens, choices = np.nonzero(ids == e)
            y, kept = _expert(x[tokens], *weights, *biases)
            d_router[tokens, choices] = (y * d_out[tokens]).sum(-1)
            d_y = router[tokens, choices][:, None] * d_out[tokens]
            d_rows, d_gate_w, d_up_w, d_down_w, d_gate, d_up = _expert_backward(
                x[tokens], *weights, kept, d_y
            )
            np.add.at(d_x, tokens, d_rows)
            grads["gate"][e], grads["up"][e], grads["down"][e] = d_gate_w, d_up_w, d_down_w
            for name, rows in (("gate_bias", d_gate), ("up_bias", d_up), ("down_bias", d_y)):
                if name in grads:
                    grads[name][e] = rows.sum(0)
        if "shared_gate" in self.weights:
            s = np.ones(len(x)) if shared_weights is None else shared_weights
            y, kept = _expert(x, *self._shared_weights())
            grads["shared_weights"] = (y * d_out).sum(-1)
            d_rows, *own, _, _ = _expert_backward(
                x, *self._shared_weights(), kept, s[:, None] * d_out
            )
            d_x += d_rows
            for part, grad in zip(("gate", "up", "down"), own):
                grads[f"shared_{part}"] = grad
        return {"x": d_x, "topk_weights": d_router, **grads}
