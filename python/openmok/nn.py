"""`openmok.MoE`: the layer as a torch module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ._functional import moe
from ._groups import group_name, place_of
from .errors import MokShapeError
from .shape import LayerShape, Tuning


class Router(nn.Module):
    """Scores of each token for each expert, in F32, and the choice of the top k.

    The selection bias (the buffer `e_score_correction_bias`, where there is one; not trained by
    gradients) takes part in the choice and not in the weights.

    Args:
        hidden: H.
        num_experts: E.
        top_k: K.
        score: "softmax" or "sigmoid".
        normalize: divide the weights of a token by their sum.
        scaling: a factor of all weights.
        selection_bias: whether there is one, zero at first.
    """

    def __init__(
        self,
        hidden: int,
        num_experts: int,
        top_k: int,
        score: str = "softmax",
        normalize: bool = True,
        scaling: float = 1.0,
        selection_bias: bool = False,
    ):
        super().__init__()
        if score not in ("softmax", "sigmoid"):
            raise MokShapeError(f"score: expected 'softmax' or 'sigmoid', found {score!r}")
        self.top_k, self.score = top_k, score
        self.normalize, self.scaling = normalize, scaling
        self.weight = nn.Parameter(torch.empty(num_experts, hidden))
        self.register_buffer(
            "e_score_correction_bias", torch.zeros(num_experts) if selection_bias else None
        )
        nn.init.normal_(self.weight, std=hidden**-0.5)

    def forward(
        self, x: torch.Tensor, topk_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, H]; topk_ids [T, K], to replay a choice (-1: no expert). Returns ids int64 and
        weights F32, both [T, K]."""
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.float(), self.weight.float())
        scores = logits.softmax(-1) if self.score == "softmax" else logits.sigmoid()
        if topk_ids is None:
            choice = scores.detach()
            if self.e_score_correction_bias is not None:
                choice = choice + self.e_score_correction_bias
            topk_ids = choice.topk(self.top_k, -1).indices
        taken = topk_ids >= 0
        weights = scores.gather(-1, topk_ids.clamp(min=0).long()) * taken
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-20)
        return topk_ids, weights * self.scaling


class Experts(nn.Module):
    """The weights of this rank's experts: gate_up_proj [E_l, 2I, H], down_proj [E_l, H, I]."""

    def __init__(self, num_local_experts: int, hidden: int, intermediate: int):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(num_local_experts, 2 * intermediate, hidden))
        self.down_proj = nn.Parameter(torch.empty(num_local_experts, hidden, intermediate))
        nn.init.normal_(self.gate_up_proj, std=hidden**-0.5)
        nn.init.normal_(self.down_proj, std=intermediate**-0.5)


class SharedExpert(nn.Module):
    """The weights of an expert that every token passes through: S wide."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)


class MoE(nn.Module):
    """A mixture-of-experts layer: router, experts, optional shared expert.

    Every rank of the group must call it, with no tokens too. Parameters have the names of Hugging
    Face's Qwen MoE blocks: gate.weight, experts.gate_up_proj, experts.down_proj,
    shared_expert.{gate,up,down}_proj.weight, shared_expert_gate.weight.

    Args:
        shape: hidden H, intermediate I, experts E of all ranks, top_k, shared_intermediate S, and
            the precision of the experts.
        score, normalize, scaling, selection_bias: `Router`'s.
        shared_gate: the shared expert's output is weighed by a sigmoid of a linear gate.
        group: the ranks, as `openmok.moe` takes them; absent: this process alone.
        tuning: `openmok.Tuning`.

    Attributes:
        tokens_per_expert: of the last call, [E_l] int32.
    """

    def __init__(
        self,
        shape: LayerShape,
        *,
        score: str = "softmax",
        normalize: bool = True,
        scaling: float = 1.0,
        selection_bias: bool = False,
        shared_gate: bool = False,
        group: Any = None,
        tuning: Tuning | None = None,
    ):
        super().__init__()
        self.shape, self.group, self.tuning = shape, group, tuning
        self.group_name = group_name(group)
        if shared_gate and shape.shared_intermediate == 0:
            raise MokShapeError(
                "shared_gate: expected a shape with a shared expert, found shared_intermediate 0"
            )
        rank, size = place_of(self.group_name)
        local = shape.num_experts // size + (rank < shape.num_experts % size)
        self.gate = Router(
            shape.hidden,
            shape.num_experts,
            shape.top_k,
            score,
            normalize,
            scaling,
            selection_bias,
        )
        self.experts = Experts(local, shape.hidden, shape.intermediate)
        self.shared_expert = (
            SharedExpert(shape.hidden, shape.shared_intermediate)
            if shape.shared_intermediate
            else None
        )
        self.shared_expert_gate = nn.Linear(shape.hidden, 1, bias=False) if shared_gate else None
        self.tokens_per_expert: torch.Tensor | None = None

    def forward(
        self, hidden_states: torch.Tensor, topk_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """hidden_states [..., H], BF16 or F32; returns the same shape and dtype. topk_ids
        [tokens, K] replay a choice; the weights come from the live scores all the same."""
        x = hidden_states.reshape(-1, self.shape.hidden)
        ids, weights = self.gate(x, topk_ids)
        shared = shared_weights = None
        if self.shared_expert is not None:
            e = self.shared_expert
            shared = ((e.gate_proj.weight, e.up_proj.weight), e.down_proj.weight)
            if self.shared_expert_gate is not None:
                shared_weights = self.shared_expert_gate(x).sigmoid().squeeze(-1)
        activation = self.shape.activation
        out, self.tokens_per_expert = moe(
            x,
            ids,
            weights,
            self.experts.gate_up_proj,
            self.experts.down_proj,
            shared=shared,
            shared_weights=shared_weights,
            group=self.group_name,
            activation=activation,
            precision=self.shape.precision,
            tuning=self.tuning,
            num_experts=self.shape.num_experts,
        )
        return out.view_as(hidden_states)
