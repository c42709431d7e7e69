"""torch's grouped GEMMs of the layer and nothing else: a bound for every layer built on them."""

import torch

from .operators import grouped_mm


class GemmOnly:
    """forward: x W13^T and hidden W2^T; backward: the two input gradients and the two weight
    gradients, BF16. rows_per_expert: rows of each group; without any there is nothing to do."""

    def __init__(self, name, rows_per_expert, tensors, buffers):
        self.name = name
        self.w13, self.w2 = tensors.w13.detach(), tensors.w2.detach()
        ends = torch.tensor(rows_per_expert).cumsum(0)
        self.ends = ends.to(device=self.w13.device, dtype=torch.int32)
        self.rows = rows = int(ends[-1])
        self.x, self.hidden = buffers.x[:rows], buffers.hidden[:rows]
        self.gate_up = buffers.gate_up[:rows]

    def forward(self):
        if self.rows == 0:
            return ()
        return (grouped_mm(self.x, self.w13.transpose(1, 2), offs=self.ends),
                grouped_mm(self.hidden, self.w2.transpose(1, 2), offs=self.ends))

    def backward(self):
        """x stands for d_y, gate_up for d_gate and d_up: the shapes are what counts."""
        if self.rows == 0:
            return ()
        return (grouped_mm(self.x, self.w2, offs=self.ends),
                grouped_mm(self.gate_up, self.w13, offs=self.ends),
                grouped_mm(self.x.t(), self.hidden, offs=self.ends),
                grouped_mm(self.gate_up.t(), self.x, offs=self.ends))


class Buffers:
    """Random operands with as many rows as either form needs."""

    def __init__(self, shape, num_rows, device):
        def normal(cols):
            return torch.randn(num_rows, cols, device=device, dtype=torch.bfloat16)

        self.x, self.hidden = normal(shape.hidden), normal(shape.intermediate)
        self.gate_up = normal(2 * shape.intermediate if shape.backward else 0)


def make_gemm_only(shape, tensors):
    """[balanced, with the run's own counts] of one rank; both of the same number of rows on R = 1.
    Empty where this rank owns no expert."""
    local = len(tensors.rows_per_expert)
    if local == 0:
        return []
    balanced_rows = shape.ranks * shape.tokens_per_rank * shape.top_k * local // shape.experts
    base, more = divmod(balanced_rows, local)
    balanced = [base + (e < more) for e in range(local)]
    own = tensors.rows_per_expert
    buffers = Buffers(shape, max(sum(balanced), sum(own)), tensors.x.device)
    return [GemmOnly("gemm_only", balanced, tensors, buffers),
            GemmOnly("gemm_only_own_counts", own, tensors, buffers)]
