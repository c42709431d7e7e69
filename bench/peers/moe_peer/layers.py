"""The layer on torch's own operations: grouped_mm, Triton for what is bound by memory, autograd."""

import torch
import torch.distributed as dist

from .operators import AllToAll, ExpertOrder, Permute, Reorder, Unpermute, experts


class TorchLayer:
    """All experts on this GPU: no exchange."""

    name = "torch+triton"

    def __init__(self, shape, rank, tensors):
        self.shape, self.tensors = shape, tensors

    def __call__(self):
        t = self.tensors
        order = ExpertOrder(t.ids.reshape(-1), self.shape.experts)
        slots = order.places.view(t.ids.shape)
        rows = Permute.apply(t.x, slots, slots.numel())
        y = experts(rows, t.weights.reshape(-1), order.order, order.ends, t)
        return Unpermute.apply(y, slots)


class NcclLayer:
    """Rows travel by NCCL's all-to-all with split sizes, which the host reads once a forward."""

    name = "nccl+torch+triton"

    def __init__(self, shape, rank, tensors):
        self.shape, self.tensors = shape, tensors
        ranks = range(shape.ranks)
        device = tensors.x.device
        self.num_local = shape.num_local_experts(rank)
        self.experts_of = [shape.num_local_experts(r) for r in ranks]
        last = [max(shape.first_expert(r + 1) - 1, 0) for r in ranks]
        self.last_expert = torch.tensor(last, device=device)
        self.zero = torch.zeros(1, device=device, dtype=torch.int32)
        local = torch.arange(self.num_local, device=device, dtype=torch.int32)
        self.local_of_received = local.repeat(shape.ranks)

    def __call__(self):
        t = self.tensors
        order = ExpertOrder(t.ids.reshape(-1), self.shape.experts)
        slots = order.places.view(t.ids.shape)
        received, receives, sends = self.exchange_counts(order.ends)

        rows = AllToAll.apply(Permute.apply(t.x, slots, slots.numel()), receives, sends)
        sent_weights = Reorder.apply(t.weights.reshape(-1), order.order, order.places)
        weights = AllToAll.apply(sent_weights, receives, sends)

        # From (source rank, expert) to expert order, and back.
        local = torch.repeat_interleave(self.local_of_received, received, output_size=sum(receives))
        by_expert = ExpertOrder(local, self.num_local)
        places = by_expert.places.view(-1, 1)
        y = experts(Permute.apply(rows, places, places.numel()), weights, by_expert.order,
                    by_expert.ends, t)
        back = AllToAll.apply(Unpermute.apply(y, places), sends, receives)
        return Unpermute.apply(back, slots)

    def exchange_counts(self, ends):
        """-> rows by (source rank, local expert), on the device; rows to receive from and to send
        to each rank, on the host."""
        counts = torch.diff(ends, prepend=self.zero)
        received = counts.new_empty(self.shape.ranks * self.num_local)
        dist.all_to_all_single(received, counts, [self.num_local] * self.shape.ranks,
                               self.experts_of)
        sends = torch.diff(ends.index_select(0, self.last_expert), prepend=self.zero)
        receives = received.view(self.shape.ranks, self.num_local).sum(1, dtype=torch.int32)
        receives, sends = torch.stack([receives, sends]).tolist()
        return received, receives, sends
