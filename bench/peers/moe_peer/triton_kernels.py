"""The memory-bound steps of the layer as Triton kernels. Rows are contiguous, BF16."""

import torch
import triton
import triton.language as tl


@triton.jit
def _permute(x, slots, out, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """out[slots[t, k]] = x[t]: a row is read once and written to each of its slots (-1: none)."""
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < hidden
    row = tl.load(x + token * hidden + cols, mask=inside)
    for choice in tl.static_range(TOP_K):
        slot = tl.load(slots + token * TOP_K + choice).to(tl.int64)
        if slot >= 0:
            tl.store(out + slot * hidden + cols, row, mask=inside)


@triton.jit
def _unpermute(rows, slots, out, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """out[t] = sum over k of rows[slots[t, k]], in FP32 in the order of k."""
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < hidden
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        slot = tl.load(slots + token * TOP_K + choice).to(tl.int64)
        row = tl.load(rows + slot * hidden + cols, mask=inside & (slot >= 0), other=0.0)
        total += row.to(tl.float32)
    tl.store(out + token * hidden + cols, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu(gate_up, weights, routes, out, width, BLOCK: tl.constexpr):
    """out[r] = weights[routes[r]] * silu(gate[r]) * up[r]; gate_up [rows, 2 * width]."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < width
    weight = tl.load(weights + tl.load(routes + row))
    gate = tl.load(gate_up + row * 2 * width + cols, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + cols, mask=inside, other=0.0).to(tl.float32)
    hidden = gate * tl.sigmoid(gate) * up * weight
    tl.store(out + row * width + cols, hidden.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward(gate_up, weights, routes, d_out, d_gate_up, d_weights, width,
                     BLOCK: tl.constexpr):
    """Gradients of _swiglu; one program has a whole row, so that it can sum d_weights."""
    row = tl.program_id(0).to(tl.int64)
    route = tl.load(routes + row)
    weight = tl.load(weights + route)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, width, BLOCK):
        cols = begin + tl.arange(0, BLOCK)
        inside = cols < width
        at = row * 2 * width + cols
        gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up + at + width, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(d_out + row * width + cols, mask=inside, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        total += d * silu * up
        d *= weight
        d_gate = d * up * (sigmoid + silu * (1.0 - sigmoid))
        tl.store(d_gate_up + at, d_gate.to(d_gate_up.dtype.element_ty), mask=inside)
        tl.store(d_gate_up + at + width, (d * silu).to(d_gate_up.dtype.element_ty), mask=inside)
    tl.store(d_weights + route, tl.sum(total))


def _blocks(width):
    """Columns of a program and its warps: 16 bytes a thread."""
    block = 1024 if width % 1024 == 0 else 512
    return block, block // 256


def permute(x, slots, num_rows):
    """x [T, H], slots [T, K] -> [num_rows, H]."""
    block, warps = _blocks(x.shape[1])
    out = x.new_empty(num_rows, x.shape[1])
    if x.shape[0] > 0:
        grid = (x.shape[0], triton.cdiv(x.shape[1], block))
        _permute[grid](x, slots, out, x.shape[1], slots.shape[1], block, num_warps=warps)
    return out


def unpermute(rows, slots):
    """rows [n, H], slots [T, K] -> [T, H]."""
    block, warps = _blocks(rows.shape[1])
    out = rows.new_empty(slots.shape[0], rows.shape[1])
    if slots.shape[0] > 0:
        grid = (slots.shape[0], triton.cdiv(rows.shape[1], block))
        _unpermute[grid](rows, slots, out, rows.shape[1], slots.shape[1], block, num_warps=warps)
    return out


def swiglu(gate_up, weights, routes):
    """gate_up [n, 2I], weights of all routes, routes [n] -> [n, I]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    block, warps = _blocks(width)
    out = gate_up.new_empty(rows, width)
    if rows > 0:
        grid = (rows, triton.cdiv(width, block))
        _swiglu[grid](gate_up, weights, routes, out, width, block, num_warps=warps)
    return out


def swiglu_backward(gate_up, weights, routes, d_out):
    """-> gradients of gate_up and of the weights; routes without a row have gradient 0."""
    rows, width = d_out.shape
    d_gate_up = torch.empty_like(gate_up)
    every_route = rows == weights.numel()
    d_weights = torch.empty_like(weights) if every_route else torch.zeros_like(weights)
    if rows > 0:
        block, warps = _blocks(width)
        _swiglu_backward[(rows,)](gate_up, weights, routes, d_out, d_gate_up, d_weights, width,
                                  block, num_warps=warps)
    return d_gate_up, d_weights
